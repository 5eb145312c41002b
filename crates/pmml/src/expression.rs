//! Expressions: values computed from a row, for derived fields and outputs. They are read
//! elsewhere: reading needs what all of a file has in common.

use std::sync::Arc;

use smallvec::SmallVec;

use super::field::{PmmlType, indicator};
use super::function::ApplyFunction;
use super::interval::Interval;
use super::map_values::MapValues;
use super::norm_continuous::NormContinuous;
use super::row::PmmlRow;
use super::value;

/// The number of arguments that take no memory on the heap.
const INLINE_ARGUMENTS: usize = 8;

#[derive(Debug)]
pub(super) enum Expression {
    Constant(f64),
    Field(u32),
    /// A field, or another value where it is missing.
    FieldOr {
        slot: u32,
        missing: f64,
    },
    NormContinuous {
        slot: u32,
        missing: f64,
        function: NormContinuous,
    },
    /// Whether a field has this value.
    NormDiscrete {
        slot: u32,
        missing: f64,
        value: f64,
    },
    /// The value of the first interval that contains the field's; `default` if there is none.
    Discretize {
        slot: u32,
        missing: f64,
        default: f64,
        bins: Box<[(Interval, f64)]>,
    },
    MapValues {
        missing: f64,
        default: f64,
        table: MapValues,
    },
    Apply(Box<ApplyExpression>),
    /// A function that the file defines.
    Call(Box<CallExpression>),
    /// A value as one of another type.
    Convert {
        inner: Box<Expression>,
        from: PmmlType,
        to: PmmlType,
    },
}

/// `Apply`: a built-in function of expressions.
#[derive(Debug)]
pub(super) struct ApplyExpression {
    pub(super) function: ApplyFunction,
    pub(super) arguments: Box<[Expression]>,
    pub(super) missing: MissingTreatment,
}

/// `Apply` of a function that the file defines.
#[derive(Debug)]
pub(super) struct CallExpression {
    pub(super) function: Arc<FunctionBody>,
    pub(super) arguments: Box<[Expression]>,
    pub(super) missing: MissingTreatment,
}

/// What `Apply` makes of missing values.
#[derive(Debug)]
pub(super) struct MissingTreatment {
    /// The result if an argument is missing: `mapMissingTo`. If it is missing itself, the function is
    /// evaluated.
    pub(super) argument: f64,
    /// The result in place of a missing one: `defaultValue`.
    pub(super) result: f64,
}

/// A function that the file defines, for arguments of certain types.
#[derive(Debug)]
pub(super) struct FunctionBody {
    /// The slot of the first parameter; those of the others follow. No function calls itself, so that
    /// they are in use once at a time.
    pub(super) parameters: u32,
    pub(super) expression: Expression,
    pub(super) data_type: PmmlType,
    /// How many expressions a call evaluates.
    pub(super) cost: u32,
    /// How deep these are nested.
    pub(super) height: usize,
}

/// An expression, and the type of its values.
pub(super) struct TypedExpression {
    pub(super) expression: Expression,
    pub(super) data_type: PmmlType,
}

impl Expression {
    pub(super) fn value(&self, row: &mut PmmlRow) -> f64 {
        match self {
            Expression::Constant(value) => *value,
            Expression::Field(slot) => row.get(*slot),
            Expression::FieldOr { slot, missing } => {
                let value = row.get(*slot);
                if value.is_nan() { *missing } else { value }
            }
            Expression::NormContinuous { slot, missing, function } => {
                let value = row.get(*slot);
                if value.is_nan() { *missing } else { function.at(value) }
            }
            #[allow(clippy::float_cmp)] // Codes, or numbers as they are.
            Expression::NormDiscrete { slot, missing, value } => {
                let field = row.get(*slot);
                if field.is_nan() { *missing } else { indicator(field == *value) }
            }
            Expression::Discretize { slot, missing, default, bins } => {
                let value = row.get(*slot);
                if value.is_nan() {
                    return *missing;
                }
                let bin = bins.iter().find(|(interval, _)| interval.contains(value));
                bin.map_or(*default, |(_, result)| *result)
            }
            Expression::MapValues { missing, default, table } => match table.has_keys(row) {
                true => table.find(row).unwrap_or(*default),
                false => *missing,
            },
            Expression::Apply(apply) => apply.value(row),
            Expression::Call(call) => call.value(row),
            Expression::Convert { inner, from, to } => {
                let value = inner.value(row);
                value::convert(value, *from, *to, row.strings)
            }
        }
    }
}

/// The values of arguments. Each is evaluated once: nesting must not multiply the work.
fn values(arguments: &[Expression], row: &mut PmmlRow) -> SmallVec<[f64; INLINE_ARGUMENTS]> {
    arguments.iter().map(|argument| argument.value(row)).collect()
}

impl ApplyExpression {
    fn value(&self, row: &mut PmmlRow) -> f64 {
        let values = values(&self.arguments, row);
        let result = self.missing.of_arguments(&values);
        result.unwrap_or_else(|| self.missing.of_result(self.function.evaluate(&values, row)))
    }
}

impl CallExpression {
    fn value(&self, row: &mut PmmlRow) -> f64 {
        let values = values(&self.arguments, row);
        if let Some(result) = self.missing.of_arguments(&values) {
            return result;
        }
        row.range(self.function.parameters, values.len()).copy_from_slice(&values);
        self.missing.of_result(self.function.expression.value(row))
    }
}

impl MissingTreatment {
    /// The result, if it is determined by a missing argument.
    fn of_arguments(&self, values: &[f64]) -> Option<f64> {
        let is_missing = !self.argument.is_nan() && values.iter().any(|value| value.is_nan());
        is_missing.then_some(self.argument)
    }

    fn of_result(&self, value: f64) -> f64 {
        if value.is_nan() { self.result } else { value }
    }
}
