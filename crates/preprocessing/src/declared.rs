//! The tables `[[signature.inputs]]` and `[[signature.outputs]]` of `tensorserve.toml`: names, dtypes
//! and shapes of a model whose own file does not have them.

use std::path::Path;

use super::file::{self, FileLine, StepTable, StepsFile};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, DeclaredShape, Signature, TensorSpec};

/// What the file declares of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeclaredSignature {
    /// The inputs, in the order of the file.
    pub inputs: Vec<TensorSpec>,
    /// The outputs, in the order of the file; dtype and shape are optional.
    pub outputs: Vec<DeclaredOutput>,
}

/// An output, as far as the file declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredOutput {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Option<DType>,
    /// The size of each dimension, -1 for one that varies.
    pub shape: Option<Vec<i64>>,
}

/// Reads what the `tensorserve.toml` of the version at `path` declares; `None` without the file, or
/// without such a table.
///
/// # Errors
/// Mistakes in the file, with file and line.
pub fn declared_signature(path: &Path) -> Result<Option<DeclaredSignature>> {
    let Some(path) = file::find(path) else {
        return Ok(None);
    };
    let StepsFile { inputs, outputs, .. } = StepsFile::read(&path)?;
    if inputs.is_empty() && outputs.is_empty() {
        return Ok(None);
    }
    let inputs: Vec<TensorSpec> = inputs.into_iter().map(input).collect::<Result<_>>()?;
    let outputs = outputs.into_iter().map(|table| Ok(output(table)?.0));
    let outputs: Vec<DeclaredOutput> = outputs.collect::<Result<_>>()?;
    Ok(Some(DeclaredSignature { inputs, outputs }))
}

/// Refuses tables for inputs or outputs that the only signature of a model does not have: a platform
/// that reads them from the model's file does not read these tables.
pub(super) fn check(
    inputs: Vec<StepTable>,
    outputs: Vec<StepTable>,
    signatures: &[Signature],
) -> Result<()> {
    let known = |specs: fn(&Signature) -> &Vec<TensorSpec>| {
        let all = signatures.iter().flat_map(specs);
        all.map(|spec| spec.alias.clone()).collect::<Vec<_>>()
    };
    let inputs = inputs.into_iter().map(|table| ("input", table, known(|it| &it.inputs)));
    let outputs = outputs.into_iter().map(|table| ("output", table, known(|it| &it.outputs)));
    for (kind, table, known) in inputs.chain(outputs) {
        let (DeclaredOutput { name, .. }, location) = output(table)?;
        if !known.contains(&name) {
            return Err(location.error(format_args!(
                "the model has no {kind} {name:?}; it has {}",
                known.join(", ")
            )));
        }
    }
    Ok(())
}

fn input(table: StepTable) -> Result<TensorSpec> {
    let (DeclaredOutput { name, dtype, shape }, location) = output(table)?;
    let missing = |key: &str, example: &str| {
        location
            .error(format_args!("the input {name:?} has no {key}; write, for example, {example}"))
    };
    let dtype = dtype.ok_or_else(|| missing("dtype", "dtype = \"float32\""))?;
    let shape = shape.ok_or_else(|| missing("shape", "shape = [-1, 4], with -1 for the rows"))?;
    Ok(TensorSpec::new(name, dtype, &shape))
}

fn output(mut table: StepTable) -> Result<(DeclaredOutput, FileLine)> {
    let location = table.location().clone();
    let name = table.text("name")?.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| location.error("write the name: name = \"…\""))?;
    let names = DType::ALL.map(|dtype| (dtype.python_name(), dtype));
    let dtype = table.choice("dtype", &names)?;
    let shape = table.sizes("shape")?;
    table.finish()?;
    Ok((DeclaredOutput { name, dtype, shape }, location))
}

impl DeclaredOutput {
    /// Its spec, if dtype and shape are declared.
    #[must_use]
    pub fn spec(&self) -> Option<TensorSpec> {
        Some(TensorSpec::new(self.name.clone(), self.dtype?, self.shape.as_deref()?))
    }

    /// The declared dtype and shape, or else those that a run has shown.
    #[must_use]
    pub fn or_learnt(&self, learnt: &TensorSpec) -> TensorSpec {
        let mut spec = TensorSpec { alias: self.name.clone(), ..learnt.clone() };
        spec.tensor_name.clone_from(&self.name);
        if let Some(dtype) = self.dtype {
            spec.dtype_number = dtype.number();
        }
        if let Some(shape) = &self.shape {
            let dims = shape.iter().map(|size| (*size, String::new()));
            spec.shape = DeclaredShape::Dims(dims.collect());
        }
        spec
    }
}

/// The tables to write for inputs that are not declared, for error messages.
#[must_use]
pub fn template(inputs: &[&str]) -> String {
    let table = |name: &&str| {
        format!("[[signature.inputs]]\nname = {name:?}\ndtype = \"float32\"\nshape = [-1, 4]")
    };
    inputs.iter().map(table).collect::<Vec<_>>().join("\n")
}

/// An error that names the file.
#[must_use]
pub fn wrong_declaration(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {why}", file::FILE_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_steps;
    use std::fs;

    fn declared(text: &str) -> Result<Option<DeclaredSignature>> {
        let folder = tempfile::tempdir().expect("a directory");
        fs::write(folder.path().join(file::FILE_NAME), text).expect("written");
        declared_signature(folder.path())
    }

    #[test]
    fn names_types_and_shapes_are_read_in_order() {
        let text = "[[signature.inputs]]\nname = \"pixels\"\ndtype = \"float32\"\n\
                    shape = [-1, 3]\n[[signature.outputs]]\nname = \"p\"\n\
                    [[signature.outputs]]\nname = \"a\"\ndtype = \"int64\"\nshape = []\n";
        let read = declared(text).expect("TOML").expect("declared");
        assert_eq!(read.inputs, [TensorSpec::new("pixels", DType::Float, &[-1, 3])]);
        let [p, a] = &read.outputs[..] else { panic!("two") };
        assert_eq!(a.spec(), Some(TensorSpec::new("a", DType::Int64, &[])));
        assert_eq!(p.spec(), None);
        let learnt = TensorSpec::new("output", DType::Half, &[-1]);
        assert_eq!(p.or_learnt(&learnt), TensorSpec::new("p", DType::Half, &[-1]));
        assert_eq!(declared("[[preprocess]]\nstep = \"scale\"\n").expect("TOML"), None);
        let written = declared(&template(&["x", "y"])).expect("TOML").expect("declared");
        assert_eq!(written.inputs.len(), 2);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let input = "[[signature.inputs]]\nname = \"x\"\n";
        for (text, part) in [
            (input.to_owned(), "line 1: the input \"x\" has no dtype"),
            (format!("{input}dtype = \"float32\"\n"), "has no shape"),
            (format!("{input}dtype = \"floaty\"\n"), "must be one of float32, float64"),
            (format!("{input}shape = [-2]\n"), "line 3: shape"),
            (format!("{input}shape = [1.5]\n"), "line 3: shape"),
            (format!("{input}shap = [1]\n"), "line 3: "),
            ("[[signature.inputs]]\n".to_owned(), "write the name"),
            ("[signature]\ninput = 1\n".to_owned(), "line 2: "),
            ("[[signature]]\n".to_owned(), "[[signature.inputs]]"),
        ] {
            let error = declared(&text).expect_err(&text).message().to_owned();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn tables_for_other_inputs_than_the_models_are_refused() {
        let folder = tempfile::tempdir().expect("a directory");
        let text = "[[signature.inputs]]\nname = \"x\"\ndtype = \"float32\"\nshape = [-1]\n";
        fs::write(folder.path().join(file::FILE_NAME), text).expect("written");
        let spec = |name: &str| vec![TensorSpec::new(name, DType::Float, &[-1])];
        let load = |name: &str| {
            let signature = Signature::only(spec(name), spec("y"));
            load_steps(folder.path(), &[signature], usize::MAX).map(|steps| steps.len())
        };
        assert_eq!(load("x").ok(), Some(1));
        let error = load("data").expect_err("another");
        assert!(error.message().contains("line 1: the model has no input \"x\"; it has data"));
    }
}
