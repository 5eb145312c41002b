//! Expressions: values computed from a row, for derived fields and outputs.

use super::apply::ApplyExpression;
use super::field::{FieldScope, MISSING, PmmlField, PmmlRow, PmmlType, StringTable, ValueKind};
use super::field::{indicator, rounded};
use super::interval::Interval;
use super::map_values::MapValues;
use super::norm_continuous::NormContinuous;
use super::xml::{MAX_DEPTH, XmlElement, parse_number};
use tensorserve_tensor::error::Result;

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
    /// A number, rounded to single precision.
    SinglePrecision(Box<Expression>),
}

/// An expression, and the kind of its values.
pub(super) struct TypedExpression {
    pub(super) expression: Expression,
    pub(super) kind: ValueKind,
}

impl Expression {
    pub(super) fn value(&self, row: &PmmlRow) -> f64 {
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
            Expression::SinglePrecision(inner) => rounded(inner.value(row), true),
        }
    }
}

/// The elements that are expressions.
const ELEMENTS: [&str; 10] = [
    "Constant",
    "FieldRef",
    "NormContinuous",
    "NormDiscrete",
    "Discretize",
    "MapValues",
    "Apply",
    "TextIndex",
    "Aggregate",
    "Lag",
];

/// Reads the expression among the children of `element`, a field of type `data_type`.
pub(super) fn read_child(
    element: XmlElement,
    data_type: PmmlType,
    scope: &FieldScope,
    strings: &mut StringTable,
) -> Result<Expression> {
    let found = element.children().find(|child| ELEMENTS.contains(&child.name()));
    let child = found.ok_or_else(|| element.damaged("has no expression"))?;
    let mut reader = ExpressionReader { scope, strings, data_type };
    let TypedExpression { expression, kind } = reader.read(child, 0)?;
    let is_number = data_type.kind == ValueKind::Number;
    let is_convertible = kind == data_type.kind || (kind == ValueKind::Boolean && is_number);
    if !is_convertible {
        let (from, to) = (kind.name(), data_type.kind.name());
        return Err(element.unsupported(format!("the conversion of a {from} to a {to}")));
    }
    Ok(match data_type.is_single && is_number {
        true => Expression::SinglePrecision(Box::new(expression)),
        false => expression,
    })
}

/// Reads an expression and those within it.
pub(super) struct ExpressionReader<'a, 's> {
    scope: &'a FieldScope<'s>,
    pub(super) strings: &'a mut StringTable,
    /// The type of the field that the whole expression computes: the default type of missing
    /// constants, and of the results of tables.
    data_type: PmmlType,
}

impl ExpressionReader<'_, '_> {
    pub(super) fn read(&mut self, element: XmlElement, depth: usize) -> Result<TypedExpression> {
        if depth >= MAX_DEPTH {
            return Err(element.damaged("is nested too deeply"));
        }
        match element.name() {
            "Constant" => self.read_constant(element),
            "FieldRef" => self.read_field(element),
            "NormContinuous" => self.read_norm_continuous(element),
            "NormDiscrete" => self.read_norm_discrete(element),
            "Discretize" => self.read_discretize(element),
            "MapValues" => self.read_map_values(element),
            "Apply" => ApplyExpression::read(self, element, depth),
            _ => Err(element.unsupported("this expression")),
        }
    }

    fn read_constant(&mut self, element: XmlElement) -> Result<TypedExpression> {
        if element.boolean_or("missing", false)? {
            let kind = self.data_type.kind;
            return Ok(TypedExpression { expression: Expression::Constant(MISSING), kind });
        }
        let text = element.text();
        let data_type = match element.attribute("dataType") {
            Some(name) => PmmlType::named(element, name)?,
            None if parse_number(text).is_some() => PmmlType::NUMBER,
            None => PmmlType::TEXT,
        };
        let value = self.strings.constant(element, data_type, text)?;
        Ok(TypedExpression { expression: Expression::Constant(value), kind: data_type.kind })
    }

    fn read_field(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let PmmlField { slot, data_type } = self.scope.field(element, "field")?;
        let expression = match element.attribute("mapMissingTo") {
            None => Expression::Field(slot),
            Some(text) => {
                let missing = self.strings.constant(element, data_type, text)?;
                Expression::FieldOr { slot, missing }
            }
        };
        Ok(TypedExpression { expression, kind: data_type.kind })
    }

    fn read_norm_continuous(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let slot = self.number_field(element)?;
        let missing = element.number_or("mapMissingTo", MISSING)?;
        let function = NormContinuous::read(element)?;
        let expression = Expression::NormContinuous { slot, missing, function };
        Ok(TypedExpression { expression, kind: ValueKind::Number })
    }

    fn read_norm_discrete(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let PmmlField { slot, data_type } = self.scope.field(element, "field")?;
        let value = self.strings.constant(element, data_type, element.required("value")?)?;
        let missing = element.number_or("mapMissingTo", MISSING)?;
        let expression = Expression::NormDiscrete { slot, missing, value };
        Ok(TypedExpression { expression, kind: ValueKind::Number })
    }

    fn read_discretize(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let slot = self.number_field(element)?;
        let data_type = self.result_type(element)?;
        let missing = self.strings.optional_constant(element, data_type, "mapMissingTo")?;
        let default = self.strings.optional_constant(element, data_type, "defaultValue")?;
        let mut bins = Vec::new();
        for bin in element.children_named("DiscretizeBin") {
            let value = self.strings.constant(bin, data_type, bin.required("binValue")?)?;
            bins.push((Interval::read(bin.required_child("Interval")?)?, value));
        }
        let expression = Expression::Discretize { slot, missing, default, bins: bins.into() };
        Ok(TypedExpression { expression, kind: data_type.kind })
    }

    fn read_map_values(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let data_type = self.result_type(element)?;
        let missing = self.strings.optional_constant(element, data_type, "mapMissingTo")?;
        let default = self.strings.optional_constant(element, data_type, "defaultValue")?;
        let table = MapValues::read(element, data_type, self.scope, self.strings)?;
        let expression = Expression::MapValues { missing, default, table };
        Ok(TypedExpression { expression, kind: data_type.kind })
    }

    /// The type of the results of a table or of bins: the declared one, or that of the field.
    fn result_type(&self, element: XmlElement) -> Result<PmmlType> {
        match element.attribute("dataType") {
            Some(name) => PmmlType::named(element, name),
            None => Ok(self.data_type),
        }
    }

    fn number_field(&self, element: XmlElement) -> Result<u32> {
        let field = self.scope.field(element, "field")?;
        match field.data_type.kind {
            ValueKind::Number => Ok(field.slot),
            ValueKind::Text | ValueKind::Boolean => {
                Err(element.damaged("needs a field of numbers"))
            }
        }
    }
}
