//! Reads expressions.

use std::sync::Arc;

use super::builder::PmmlBuilder;
use super::expression::{
    ApplyExpression, CallExpression, Expression, FunctionBody, MissingTreatment, TypedExpression,
};
use super::field::{FieldScope, MISSING, PmmlField, PmmlType};
use super::function::ApplyFunction;
use super::interval::Interval;
use super::map_values::MapValues;
use super::norm_continuous::NormContinuous;
use super::text_function::TextFunction;
use super::value;
use tensorserve_codec::xml::{MAX_DEPTH, XmlElement};
use tensorserve_tensor::error::Result;

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

/// The expression among the children of `element`.
pub(super) fn find_expression(element: XmlElement<'_>) -> Option<XmlElement<'_>> {
    element.children().find(|child| ELEMENTS.contains(&child.name()))
}

/// Reads the expression among the children of `element`, a field of type `data_type`.
pub(super) fn read_child<'d>(
    element: XmlElement<'d>,
    data_type: PmmlType,
    scope: &FieldScope,
    builder: &mut PmmlBuilder<'d>,
) -> Result<Expression> {
    let child = find_expression(element).ok_or_else(|| element.damaged("has no expression"))?;
    let mut reader = ExpressionReader { scope, builder, data_type, cost: 0, deepest: 0 };
    let expression = reader.read(child, 0)?;
    converted(element, expression, data_type)
}

/// An expression as one of the type `to`.
fn converted(element: XmlElement, expression: TypedExpression, to: PmmlType) -> Result<Expression> {
    let TypedExpression { expression, data_type: from } = expression;
    // Doubles hold all values of the other types of numbers.
    if from == to || (from.is_number() && to == PmmlType::NUMBER) {
        return Ok(expression);
    }
    if !value::is_convertible(from, to) {
        let (from, to) = (from.kind.name(), to.kind.name());
        return Err(element.unsupported(format!("the conversion of a {from} to a {to}")));
    }
    Ok(Expression::Convert { inner: Box::new(expression), from, to })
}

/// Reads an expression and those within it.
struct ExpressionReader<'a, 's, 'd> {
    scope: &'a FieldScope<'s>,
    builder: &'a mut PmmlBuilder<'d>,
    /// The type of the field that the whole expression computes: the default type of missing
    /// constants, and of the results of tables.
    data_type: PmmlType,
    /// How many expressions an evaluation evaluates.
    cost: u32,
    /// How deep these are nested.
    deepest: usize,
}

impl<'d> ExpressionReader<'_, '_, 'd> {
    fn read(&mut self, element: XmlElement<'d>, depth: usize) -> Result<TypedExpression> {
        if depth >= MAX_DEPTH {
            return Err(element.damaged("is nested too deeply"));
        }
        self.cost = self.cost.saturating_add(1);
        self.deepest = self.deepest.max(depth);
        match element.name() {
            "Constant" => self.read_constant(element),
            "FieldRef" => self.read_field(element),
            "NormContinuous" => self.read_norm_continuous(element),
            "NormDiscrete" => self.read_norm_discrete(element),
            "Discretize" => self.read_discretize(element),
            "MapValues" => self.read_map_values(element),
            "Apply" => self.read_apply(element, depth),
            _ => Err(element.unsupported("this expression")),
        }
    }

    fn read_constant(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let text = element.text();
        let declared = match element.attribute("dataType") {
            Some(name) => Some(PmmlType::named(element, name)?),
            None => None,
        };
        if element.boolean_or("missing", false)? {
            let data_type = declared.unwrap_or(self.data_type);
            return Ok(TypedExpression { expression: Expression::Constant(MISSING), data_type });
        }
        let data_type = declared.unwrap_or_else(|| PmmlType::of_constant(text));
        let value = self.builder.strings.constant(element, data_type, text)?;
        Ok(TypedExpression { expression: Expression::Constant(value), data_type })
    }

    fn read_field(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let PmmlField { slot, data_type } = self.scope.field(element, "field")?;
        let expression = match element.attribute("mapMissingTo") {
            None => Expression::Field(slot),
            Some(text) => {
                let missing = self.builder.strings.constant(element, data_type, text)?;
                Expression::FieldOr { slot, missing }
            }
        };
        Ok(TypedExpression { expression, data_type })
    }

    fn read_norm_continuous(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let slot = self.number_field(element)?;
        let missing = element.number_or("mapMissingTo", MISSING)?;
        let function = NormContinuous::read(element)?;
        let expression = Expression::NormContinuous { slot, missing, function };
        Ok(TypedExpression { expression, data_type: PmmlType::NUMBER })
    }

    fn read_norm_discrete(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let PmmlField { slot, data_type } = self.scope.field(element, "field")?;
        let text = element.required("value")?;
        let value = self.builder.strings.constant(element, data_type, text)?;
        let missing = element.number_or("mapMissingTo", MISSING)?;
        let expression = Expression::NormDiscrete { slot, missing, value };
        Ok(TypedExpression { expression, data_type: PmmlType::NUMBER })
    }

    fn read_discretize(&mut self, element: XmlElement<'d>) -> Result<TypedExpression> {
        let slot = self.number_field(element)?;
        let data_type = self.result_type(element)?;
        let strings = &mut self.builder.strings;
        let missing = strings.optional_constant(element, data_type, "mapMissingTo")?;
        let default = strings.optional_constant(element, data_type, "defaultValue")?;
        let mut bins = Vec::new();
        for bin in element.children_named("DiscretizeBin") {
            let value = strings.constant(bin, data_type, bin.required("binValue")?)?;
            bins.push((Interval::read(bin.required_child("Interval")?)?, value));
        }
        let expression = Expression::Discretize { slot, missing, default, bins: bins.into() };
        Ok(TypedExpression { expression, data_type })
    }

    fn read_map_values(&mut self, element: XmlElement) -> Result<TypedExpression> {
        let data_type = self.result_type(element)?;
        let strings = &mut self.builder.strings;
        let missing = strings.optional_constant(element, data_type, "mapMissingTo")?;
        let default = strings.optional_constant(element, data_type, "defaultValue")?;
        let table = MapValues::read(element, data_type, self.scope, strings)?;
        let expression = Expression::MapValues { missing, default, table };
        Ok(TypedExpression { expression, data_type })
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
        match field.data_type.is_number() {
            true => Ok(field.slot),
            false => Err(element.damaged("needs a field of numbers")),
        }
    }

    fn read_apply(&mut self, element: XmlElement<'d>, depth: usize) -> Result<TypedExpression> {
        let name = element.required("function")?;
        if let Some(other) = element.attribute("invalidValueTreatment")
            && !matches!(other, "returnInvalid" | "asMissing")
        {
            return Err(element.unsupported(format!("invalidValueTreatment={other:?}")));
        }
        let mut arguments: Vec<Expression> = Vec::new();
        let mut types: Vec<PmmlType> = Vec::new();
        for child in element.children() {
            let argument = self.read(child, depth + 1)?;
            arguments.push(argument.expression);
            types.push(argument.data_type);
        }
        if let Some(definition) = self.builder.function(name) {
            return self.read_call(element, definition, depth, arguments, &types);
        }
        let (function, data_type) = match TextFunction::pattern_count(name) {
            0 => ApplyFunction::resolve(element, name, &types)?,
            count => self.read_patterns(element, name, count, &mut arguments, &types)?,
        };
        let missing = self.missing_treatment(element, data_type)?;
        let apply = ApplyExpression { function, arguments: arguments.into(), missing };
        Ok(TypedExpression { expression: Expression::Apply(Box::new(apply)), data_type })
    }

    fn missing_treatment(
        &mut self,
        element: XmlElement,
        data_type: PmmlType,
    ) -> Result<MissingTreatment> {
        // An integer function may be replaced by a number that is not one.
        let data_type = if data_type.is_number() { PmmlType::NUMBER } else { data_type };
        let strings = &mut self.builder.strings;
        let argument = strings.optional_constant(element, data_type, "mapMissingTo")?;
        let result = strings.optional_constant(element, data_type, "defaultValue")?;
        Ok(MissingTreatment { argument, result })
    }

    /// The function `name`, whose last `count` arguments are patterns. They are removed.
    fn read_patterns(
        &mut self,
        element: XmlElement,
        name: &str,
        count: usize,
        arguments: &mut Vec<Expression>,
        types: &[PmmlType],
    ) -> Result<(ApplyFunction, PmmlType)> {
        if types.len() != count + 1 {
            let needs = TextFunction::arguments_of(name);
            return Err(element.damaged(format!("function={name:?} needs {needs}")));
        }
        self.builder.count_pattern(element)?;
        let mut patterns = Vec::new();
        for (argument, data_type) in arguments.drain(1..).zip(types.iter().skip(1)) {
            let mut text = None;
            if let (Expression::Constant(code), PmmlType::TEXT) = (argument, *data_type) {
                text = self.builder.strings.text(code);
            }
            let text =
                text.ok_or_else(|| element.unsupported("a pattern that is not a constant"))?;
            patterns.push(text);
        }
        let (function, data_type) = TextFunction::with_patterns(element, name, types, &patterns)?;
        Ok((ApplyFunction::Text(function), data_type))
    }

    /// Reads the call of a function that the file defines.
    fn read_call(
        &mut self,
        element: XmlElement<'d>,
        definition: XmlElement<'d>,
        depth: usize,
        arguments: Vec<Expression>,
        types: &[PmmlType],
    ) -> Result<TypedExpression> {
        let parameters: Vec<XmlElement> = definition.children_named("ParameterField").collect();
        if parameters.len() != arguments.len() {
            let (have, need) = (arguments.len(), parameters.len());
            return Err(element.damaged(format!("has {have} arguments for {need} parameters")));
        }
        let mut converted_arguments = Vec::new();
        let mut parameter_types = Vec::new();
        let pairs = parameters.iter().zip(arguments.into_iter().zip(types));
        for (parameter, (expression, from)) in pairs {
            let to = match parameter.attribute("dataType") {
                Some(name) => PmmlType::named(*parameter, name)?,
                None => *from,
            };
            let argument = TypedExpression { expression, data_type: *from };
            converted_arguments.push(converted(element, argument, to)?);
            parameter_types.push(to);
        }
        let function = self.compile(definition, &parameter_types, depth + 1)?;
        let deepest = depth.saturating_add(function.height).saturating_add(1);
        if deepest >= MAX_DEPTH {
            return Err(element.damaged("calls functions that are nested too deeply"));
        }
        self.deepest = self.deepest.max(deepest);
        self.cost = self.cost.saturating_add(function.cost);
        self.builder.count_cost(element, function.cost)?;
        let data_type = function.data_type;
        let missing = self.missing_treatment(element, data_type)?;
        let call = CallExpression { function, arguments: converted_arguments.into(), missing };
        Ok(TypedExpression { expression: Expression::Call(Box::new(call)), data_type })
    }

    /// The function of `definition` for arguments of these types.
    fn compile(
        &mut self,
        definition: XmlElement<'d>,
        types: &[PmmlType],
        depth: usize,
    ) -> Result<Arc<FunctionBody>> {
        let name = definition.required("name")?;
        if let Some(known) = self.builder.compiled_function(name, types) {
            return Ok(known);
        }
        if depth >= MAX_DEPTH {
            return Err(definition.damaged("is nested too deeply"));
        }
        let body = find_expression(definition);
        let body = body.ok_or_else(|| definition.damaged("has no expression"))?;
        let declared = match definition.attribute("dataType") {
            Some(name) => Some(PmmlType::named(definition, name)?),
            None => None,
        };
        self.builder.begin_function(definition, name)?;
        let parameters = self.builder.allocate_slots(definition, types.len())?;
        let mut scope = FieldScope::root();
        let names = definition.children_named("ParameterField");
        for ((slot, data_type), parameter) in (parameters..).zip(types).zip(names) {
            scope.set(parameter.required("name")?, PmmlField { slot, data_type: *data_type });
        }
        let builder = &mut *self.builder;
        let data_type = declared.unwrap_or(PmmlType::NUMBER);
        let mut reader =
            ExpressionReader { scope: &scope, builder, data_type, cost: 0, deepest: 0 };
        let typed = reader.read(body, 0);
        let (cost, height) = (reader.cost, reader.deepest + 1);
        self.builder.end_function(name);
        let typed = typed?;
        let data_type = declared.unwrap_or(typed.data_type);
        let expression = converted(definition, typed, data_type)?;
        let function = FunctionBody { parameters, expression, data_type, cost, height };
        Ok(self.builder.add_function(name, types, function))
    }
}
