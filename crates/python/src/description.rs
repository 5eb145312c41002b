//! What a process reports of the model that it has loaded: JSON, as `about` in `python/models.py` writes
//! it. The process runs code of the model, so nothing in it is taken for granted.

use std::collections::BTreeSet;

use serde::Deserialize;

use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, MAX_RANK, Signature, TensorSpec};

/// The most inputs or outputs of a signature.
const MAX_SPECS: usize = 65_536;

/// The signatures of a model, and the program that wrote it.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelDescription {
    signatures: Vec<SignatureDescription>,
    pub(crate) written_by: String,
}

#[derive(Debug, Deserialize)]
struct SignatureDescription {
    name: String,
    inputs: Vec<SpecDescription>,
    outputs: Vec<SpecDescription>,
    by_columns: Option<String>,
    unused: Vec<String>,
}

/// Name, dtype, shape, and whether values may be missing.
#[derive(Debug, Deserialize)]
struct SpecDescription(String, String, Vec<i64>, bool);

impl ModelDescription {
    /// Reads the description.
    ///
    /// # Errors
    /// If it is not JSON of this form.
    pub(crate) fn read(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| invalid(&error))
    }

    /// The signatures, sorted by name.
    ///
    /// # Errors
    /// Names that occur twice, unknown dtypes, impossible shapes.
    pub(crate) fn signatures(&self) -> Result<Vec<Signature>> {
        let mut signatures = Vec::new();
        for described in &self.signatures {
            let inputs = specs(&described.inputs)?;
            let outputs = specs(&described.outputs)?;
            let mut signature = Signature::only(inputs, outputs);
            signature.name.clone_from(&described.name);
            // Nothing is known about what the code does: it may draw random numbers.
            signature.repeatable = false;
            signature.by_columns.clone_from(&described.by_columns);
            signature.unused_columns.clone_from(&described.unused);
            signatures.push(signature);
        }
        let sorted = signatures.is_sorted_by(|one, next| one.name < next.name);
        if signatures.is_empty() || !sorted {
            return Err(invalid("its signatures have no order"));
        }
        Ok(signatures)
    }
}

fn specs(described: &[SpecDescription]) -> Result<Vec<TensorSpec>> {
    if described.is_empty() || described.len() > MAX_SPECS {
        let count = described.len();
        return Err(invalid(format!("{count} inputs or outputs: 1 to {MAX_SPECS} are possible")));
    }
    let mut names = BTreeSet::new();
    let mut specs = Vec::with_capacity(described.len());
    for SpecDescription(name, dtype, shape, takes_missing) in described {
        if !names.insert(name) {
            return Err(invalid(format!("two inputs or outputs have the name {name:?}")));
        }
        let dtype = dtype_named(dtype)?;
        if shape.len() > MAX_RANK || shape.iter().any(|size| *size < -1) {
            return Err(invalid(format!("{name:?} has the shape {shape:?}")));
        }
        let spec = TensorSpec::new(name.as_str(), dtype, shape);
        specs.push(if *takes_missing { spec.with_missing_values() } else { spec });
    }
    Ok(specs)
}

/// The dtype with this name in NumPy.
pub(crate) fn dtype_named(name: &str) -> Result<DType> {
    let found = DType::ALL.into_iter().find(|dtype| dtype.python_name() == name);
    found.ok_or_else(|| invalid(format!("the dtype {name:?} is unknown")))
}

/// The error of what a process sends and cannot be.
pub(crate) fn invalid(why: impl std::fmt::Display) -> Error {
    Error::internal(format!("the process of the Python model has sent an invalid reply: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"signatures": [{"name": "a", "inputs": [["y", "float64", [-1], true],
        ["x", "string", [-1], true]], "outputs": [["p", "int64", [-1, 2], false]],
        "by_columns": null, "unused": ["z"]}], "written_by": "scikit-learn 1.9"}"#;

    #[test]
    fn signatures_are_read_with_their_inputs_in_order() {
        let signatures = ModelDescription::read(GOOD).expect("JSON").signatures().expect("valid");
        let [signature] = &signatures[..] else { panic!("one") };
        let inputs: Vec<&str> = signature.inputs.iter().map(|spec| &*spec.alias).collect();
        assert_eq!(inputs, ["x", "y"]);
        assert_eq!(signature.outputs, [TensorSpec::new("p", DType::Int64, &[-1, 2])]);
        assert!(signature.takes_missing() && signature.is_unused(b"z") && !signature.repeatable);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (from, to, part) in [
            ("\"y\"", "\"x\"", "two inputs or outputs have the name \"x\""),
            ("int64", "int65", "the dtype \"int65\" is unknown"),
            ("[-1, 2]", "[-2]", "has the shape [-2]"),
            ("[[\"p\", \"int64\", [-1, 2], false]]", "[]", "0 inputs or outputs"),
            ("\"written_by\"", "\"by\"", "missing field `written_by`"),
        ] {
            let text = GOOD.replace(from, to);
            let read = ModelDescription::read(&text).and_then(|read| read.signatures());
            let error = read.expect_err(part);
            assert!(error.message().contains(part), "{error}");
        }
        let error = ModelDescription::read(r#"{"signatures": [], "written_by": ""}"#);
        let error = error.expect("JSON").signatures().expect_err("none");
        assert!(error.message().contains("no order"), "{error}");
    }
}
