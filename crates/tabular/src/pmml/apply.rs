//! `Apply`: a function of expressions.

use smallvec::SmallVec;

use super::expression::{Expression, ExpressionReader, TypedExpression};
use super::field::{PmmlRow, PmmlType, ValueKind};
use super::function::ApplyFunction;
use super::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// The number of arguments that take no memory on the heap.
const INLINE_ARGUMENTS: usize = 8;

#[derive(Debug)]
pub(super) struct ApplyExpression {
    function: ApplyFunction,
    arguments: Box<[Expression]>,
    /// The result if an argument is missing: `mapMissingTo`. If it is missing itself, the function is
    /// evaluated.
    missing: f64,
    /// The result in place of a missing one: `defaultValue`.
    default: f64,
}

impl ApplyExpression {
    pub(super) fn read(
        reader: &mut ExpressionReader,
        element: XmlElement,
        depth: usize,
    ) -> Result<TypedExpression> {
        let name = element.required("function")?;
        if let Some(other) = element.attribute("invalidValueTreatment")
            && !matches!(other, "returnInvalid" | "asMissing")
        {
            return Err(element.unsupported(format!("invalidValueTreatment={other:?}")));
        }
        let mut arguments: Vec<Expression> = Vec::new();
        let mut kinds: Vec<ValueKind> = Vec::new();
        for child in element.children() {
            let argument = reader.read(child, depth + 1)?;
            arguments.push(argument.expression);
            kinds.push(argument.kind);
        }
        let (function, kind) = ApplyFunction::resolve(element, name, &kinds)?;
        let data_type = PmmlType::of_kind(kind);
        let missing = reader.strings.optional_constant(element, data_type, "mapMissingTo")?;
        let default = reader.strings.optional_constant(element, data_type, "defaultValue")?;
        let apply = ApplyExpression { function, arguments: arguments.into(), missing, default };
        Ok(TypedExpression { expression: Expression::Apply(Box::new(apply)), kind })
    }

    pub(super) fn value(&self, row: &PmmlRow) -> f64 {
        // Each argument is evaluated once: nesting must not multiply the work.
        let values: SmallVec<[f64; INLINE_ARGUMENTS]> =
            self.arguments.iter().map(|argument| argument.value(row)).collect();
        if !self.missing.is_nan() && values.iter().any(|value| value.is_nan()) {
            return self.missing;
        }
        let value = self.function.evaluate(&values, row);
        if value.is_nan() { self.default } else { value }
    }
}
