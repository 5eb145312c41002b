//! The inputs of a signature: what the module's `forward` takes, with the names, types and shapes that a
//! `tensorserve.toml` declares.

use std::collections::BTreeSet;
use std::ffi::CString;

use serde::Deserialize;

use super::ffi::InputRoute;
use super::package::InputCheck;
use super::types;
use tensorserve_preprocessing::{FILE_NAME, template, wrong_declaration};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, DeclaredShape, TensorSpec};

/// What the shim says about a module.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Declaration {
    /// The arguments of `forward`, without `self`; none for a package.
    pub(crate) inputs: Vec<Argument>,
    /// The specifications of a package's inputs and outputs.
    pub(crate) call_spec: Vec<String>,
    /// Whether runs change the module.
    pub(crate) writes_state: bool,
    /// Whether runs draw random numbers.
    pub(crate) is_random: bool,
}

/// An argument of `forward`, and what is known of it from the first operation that takes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Argument {
    pub(crate) name: String,
    /// Its type, as Python writes it.
    #[serde(rename = "type")]
    pub(crate) annotation: String,
    /// Whether it has a default.
    pub(crate) optional: bool,
    /// The number of its element type.
    pub(crate) dtype: i32,
    /// The size of its last dimension, or -1.
    pub(crate) features: i64,
    /// For the input of a convolution, the number of its dimensions, and of channels.
    pub(crate) rank: usize,
    pub(crate) channels: i64,
}

/// An input of the signature.
#[derive(Clone, Debug)]
pub(crate) struct InputPlan {
    pub(crate) spec: TensorSpec,
    pub(crate) route: InputRoute,
    /// What a package requires of it.
    pub(crate) check: Option<InputCheck>,
    /// The size of the last dimension, where the shape is not known; or -1.
    pub(crate) features: i64,
}

/// What can be passed for an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ArgumentKind {
    Tensor,
    Number(DType),
    Dictionary,
    Other,
}

impl Argument {
    fn kind(&self) -> ArgumentKind {
        let inner = self.annotation.strip_prefix("Optional[").and_then(|it| it.strip_suffix(']'));
        match inner.unwrap_or(&self.annotation) {
            "Tensor" => ArgumentKind::Tensor,
            "int" => ArgumentKind::Number(DType::Int64),
            "float" => ArgumentKind::Number(DType::Double),
            "bool" => ArgumentKind::Number(DType::Bool),
            "Dict[str, Tensor]" => ArgumentKind::Dictionary,
            _ => ArgumentKind::Other,
        }
    }

    fn may_be_absent(&self) -> bool {
        self.optional || self.annotation.starts_with("Optional[")
    }

    /// The spec of an argument that is not declared.
    fn guess(&self) -> TensorSpec {
        if let ArgumentKind::Number(dtype) = self.kind() {
            return TensorSpec::new(self.name.clone(), dtype, &[]);
        }
        let dtype = types::of_number(self.dtype).unwrap_or(DType::Float);
        let mut spec = TensorSpec::new(self.name.clone(), dtype, &[]);
        spec.shape = DeclaredShape::UnknownRank;
        if (3..=5).contains(&self.rank) {
            let mut sizes = vec![-1; self.rank];
            if let Some(channels) = sizes.get_mut(1) {
                *channels = self.channels;
            }
            spec = TensorSpec::new(self.name.clone(), dtype, &sizes);
        }
        spec
    }
}

/// The inputs of a TorchScript module.
///
/// # Errors
/// If the declared ones are not those of the module, or something must be declared.
pub(crate) fn of_script(arguments: &[Argument], declared: &[TensorSpec]) -> Result<Vec<InputPlan>> {
    let needed = |argument: &&Argument| !argument.may_be_absent();
    if let Some(other) = arguments.iter().filter(needed).find(|it| it.kind() == ArgumentKind::Other)
    {
        return Err(Error::new(
            Code::Unimplemented,
            format!(
                "the argument {:?} of forward is {}: only tensors, numbers and dictionaries of tensors can \
                 be passed; write a module around it that takes these",
                other.name, other.annotation
            ),
        ));
    }
    if declared.is_empty() {
        return undeclared(arguments);
    }
    let routes = routes(arguments, declared)?;
    let plans = declared.iter().zip(routes).map(|(spec, route)| {
        let features = -1;
        InputPlan { spec: spec.clone(), route, check: None, features }
    });
    Ok(plans.collect())
}

fn undeclared(arguments: &[Argument]) -> Result<Vec<InputPlan>> {
    let needed = arguments.iter().enumerate().filter(|(_, argument)| !argument.may_be_absent());
    let mut plans = Vec::new();
    for (index, argument) in needed {
        if argument.kind() == ArgumentKind::Dictionary {
            let why = format!("the keys of the argument {:?} are not known", argument.name);
            return Err(declare(&why, &["KEY"]));
        }
        let route = InputRoute { argument: index, key: None };
        let features = argument.features;
        plans.push(InputPlan { spec: argument.guess(), route, check: None, features });
    }
    if plans.is_empty() {
        let names: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
        return Err(declare("each argument of forward may be absent", &names));
    }
    Ok(plans)
}

/// The error that something must be declared, with what to write.
pub(crate) fn declare(why: &str, names: &[&str]) -> Error {
    Error::new(
        Code::FailedPrecondition,
        format!("{why}: declare the inputs in {FILE_NAME} beside the file:\n{}", template(names)),
    )
}

/// Where each declared input goes: to the argument of its name; under its name into the only dictionary; or, if
/// none has the name of an argument, in the order of the arguments.
fn routes(arguments: &[Argument], declared: &[TensorSpec]) -> Result<Vec<InputRoute>> {
    let of_name = |name: &str| {
        arguments.iter().position(|it| it.name == name && it.kind() != ArgumentKind::Other)
    };
    let mut dictionaries = arguments
        .iter()
        .enumerate()
        .filter(|(_, argument)| argument.kind() == ArgumentKind::Dictionary);
    let dictionary = match (dictionaries.next(), dictionaries.next()) {
        (Some((index, _)), None) => Some(index),
        _ => None,
    };
    let is_named = declared.iter().any(|spec| of_name(&spec.alias).is_some());
    let known = || arguments.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut routes = Vec::new();
    if !is_named && dictionary.is_none() {
        let passable =
            arguments.iter().enumerate().filter(|(_, it)| it.kind() != ArgumentKind::Other);
        routes.extend(passable.map(|(argument, _)| InputRoute { argument, key: None }));
        routes.truncate(declared.len());
    } else {
        for spec in declared {
            let argument = of_name(&spec.alias).filter(|index| Some(*index) != dictionary);
            let key = if argument.is_none() { Some(c_key(&spec.alias)?) } else { None };
            let Some(argument) = argument.or(dictionary) else {
                let text = format!("forward has no argument {:?}; it has {}", spec.alias, known());
                return Err(wrong_declaration(text));
            };
            routes.push(InputRoute { argument, key });
        }
    }
    let given: BTreeSet<usize> = routes.iter().map(|route| route.argument).collect();
    let is_missing =
        |(index, it): &(usize, &Argument)| !it.may_be_absent() && !given.contains(index);
    let missing = arguments.iter().enumerate().find(is_missing);
    match missing {
        Some((_, missing)) => Err(wrong_declaration(format!(
            "no input is declared for the argument {:?} of forward, which has {}",
            missing.name,
            known()
        ))),
        None if routes.len() < declared.len() => Err(wrong_declaration(format!(
            "{} inputs are declared; forward has {}",
            declared.len(),
            known()
        ))),
        None => Ok(routes),
    }
}

fn c_key(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| wrong_declaration("a name contains a NUL character"))
}

/// The inputs of a package with these names, if it has them, and checks.
///
/// # Errors
/// If the declared ones are not those of the package, or must be declared.
pub(crate) fn of_package(
    names: Option<&[String]>,
    checks: &[InputCheck],
    declared: &[TensorSpec],
) -> Result<Vec<InputPlan>> {
    let count = names.map_or(checks.len(), <[String]>::len);
    if declared.is_empty() {
        let names: Vec<&str> = names.unwrap_or_default().iter().map(String::as_str).collect();
        let is_known = |check: &InputCheck| check.dtype.is_some();
        if names.is_empty() || checks.len() != count || !checks.iter().all(is_known) {
            let names = if names.is_empty() { vec!["x"] } else { names };
            return Err(declare("the file does not say what its inputs are", &names));
        }
        let plans = names.iter().zip(checks).enumerate().map(|(argument, (name, check))| {
            let sizes: Vec<i64> = check.dims.iter().map(|dim| dim.size()).collect();
            let dtype = check.dtype.unwrap_or(DType::Float);
            let spec = TensorSpec::new(*name, dtype, &sizes);
            let route = InputRoute { argument, key: None };
            InputPlan { spec, route, check: Some(check.clone()), features: -1 }
        });
        return Ok(plans.collect());
    }
    if count > 0 && declared.len() != count {
        let text = format!("{} inputs are declared; the file has {count}", declared.len());
        return Err(wrong_declaration(text));
    }
    let places = declared.iter().map(|spec| names?.iter().position(|name| *name == spec.alias));
    let named: Option<Vec<usize>> = places.collect();
    let plans = declared.iter().enumerate().map(|(index, spec)| {
        let argument = named.as_ref().and_then(|it| it.get(index).copied()).unwrap_or(index);
        let check = checks.get(argument).cloned();
        let route = InputRoute { argument, key: None };
        InputPlan { spec: spec.clone(), route, check, features: -1 }
    });
    Ok(plans.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(name: &str, annotation: &str) -> Argument {
        Argument {
            name: name.to_owned(),
            annotation: annotation.to_owned(),
            dtype: 6,
            features: -1,
            channels: -1,
            ..Argument::default()
        }
    }

    fn spec(name: &str) -> TensorSpec {
        TensorSpec::new(name, DType::Float, &[-1, 4])
    }

    fn places(plans: &[InputPlan]) -> Vec<usize> {
        plans.iter().map(|plan| plan.route.argument).collect()
    }

    #[test]
    fn what_is_not_declared_is_guessed_from_the_arguments() {
        let mut image = argument("image", "Tensor");
        (image.rank, image.channels) = (4, 3);
        let arguments = [
            image,
            argument("scale", "float"),
            argument("mask", "Optional[Tensor]"),
            Argument { optional: true, ..argument("more", "List[Tensor]") },
        ];
        let plans = of_script(&arguments, &[]).expect("known");
        let shapes: Vec<String> = plans.iter().map(|plan| plan.spec.shape.to_string()).collect();
        assert_eq!(shapes, ["[?, 3, ?, ?]", "[]"]);
        assert_eq!(plans[1].spec.dtype(), Some(DType::Double));
        let error = of_script(&[argument("x", "List[Tensor]")], &[]).expect_err("a list");
        assert!(error.message().contains("\"x\" of forward is List[Tensor]"), "{error}");
        let error = of_script(&[argument("x", "Dict[str, Tensor]")], &[]).expect_err("keys");
        assert!(error.message().contains("[[signature.inputs]]"), "{error}");
        assert!(of_script(&[argument("x", "Optional[Tensor]")], &[]).is_err());
    }

    #[test]
    fn declared_inputs_go_to_arguments_by_name_or_in_order() {
        let arguments =
            [argument("a", "Tensor"), argument("b", "Tensor"), argument("c", "Optional[Tensor]")];
        let route = |names: &[&str]| {
            let declared: Vec<TensorSpec> = names.iter().map(|name| spec(name)).collect();
            of_script(&arguments, &declared).map(|plans| places(&plans))
        };
        assert_eq!(route(&["b", "a"]).expect("by name"), [1, 0]);
        assert_eq!(route(&["c", "b", "a"]).expect("by name"), [2, 1, 0]);
        assert_eq!(route(&["x", "y"]).expect("in order"), [0, 1]);
        for (names, part) in [
            (&["a"][..], "no input is declared for the argument \"b\""),
            (&["a", "z"], "forward has no argument \"z\"; it has a, b, c"),
            (&["w", "x", "y", "z"], "4 inputs are declared"),
            (&["x"], "no input is declared for the argument \"b\""),
        ] {
            let error = route(names).expect_err(part);
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn other_names_are_keys_of_the_only_dictionary() {
        let arguments = [argument("x", "Tensor"), argument("batch", "Dict[str, Tensor]")];
        let plans = of_script(&arguments, &[spec("ids"), spec("x"), spec("mask")]).expect("keys");
        assert_eq!(places(&plans), [1, 0, 1]);
        assert_eq!(plans[0].route.key.as_deref(), Some(c"ids"));
    }

    #[test]
    fn inputs_of_packages_come_from_their_checks() {
        let check = InputCheck { dtype: Some(DType::Int64), dims: Vec::new() };
        let names = ["ids".to_owned(), "mask".to_owned()];
        let checks = [check.clone(), InputCheck::default()];
        assert!(of_package(Some(&names), &checks, &[]).is_err(), "a type is unknown");
        assert!(of_package(None, &[], &[]).is_err());
        let plans = of_package(Some(&names[..1]), &checks[..1], &[]).expect("known");
        assert_eq!(plans[0].spec.dtype(), Some(DType::Int64));
        let plans = of_package(Some(&names), &checks, &[spec("mask"), spec("ids")]).expect("named");
        assert_eq!(places(&plans), [1, 0]);
        assert_eq!(plans[1].check.as_ref(), Some(&check));
        assert!(of_package(Some(&names), &checks, &[spec("ids")]).is_err());
    }
}
