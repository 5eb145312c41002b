//! What a package of AOTInductor says about its inputs and outputs: the source of its wrapper, which is in the
//! package, has the names, and checks of types and sizes. These checks are off when the machine code runs, which
//! reads other memory than its inputs for other sizes; so they are made here.

use serde_json::Value;

use super::archive::Archive;
use super::types;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Tensor};

/// The largest source of a wrapper that is read.
const LARGEST_WRAPPER: usize = 64 << 20;

/// The most inputs and dimensions that are read.
const MOST_INPUTS: usize = 4096;
const MOST_DIMENSIONS: usize = 64;

/// What the wrapper says.
#[derive(Debug, Default)]
pub(crate) struct Wrapper {
    /// The checks of each input.
    pub(crate) inputs: Vec<InputCheck>,
    /// The names of the inputs and of the outputs, in order, if the wrapper has them.
    pub(crate) names: Option<(Vec<String>, Vec<String>)>,
    /// Whether the code may draw random numbers.
    pub(crate) is_random: bool,
}

/// What an input must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct InputCheck {
    /// Its type; `None` if it is one that tensorserve does not have.
    pub(crate) dtype: Option<DType>,
    /// Its dimensions.
    pub(crate) dims: Vec<DimCheck>,
}

/// What a dimension must be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DimCheck {
    /// Its only size.
    fixed: Option<i64>,
    /// Its smallest size.
    least: Option<i64>,
    /// Its largest size.
    most: Option<i64>,
}

impl DimCheck {
    /// Every size from 1 to `most`.
    pub(crate) fn up_to(most: i64) -> Self {
        DimCheck { fixed: None, least: None, most: Some(most) }
    }

    /// This size only.
    pub(crate) fn only(size: i64) -> Self {
        DimCheck { fixed: Some(size), ..DimCheck::default() }
    }

    /// Its size, or -1 if it varies.
    pub(crate) fn size(self) -> i64 {
        self.fixed.unwrap_or(-1)
    }

    /// Its largest size, if it varies and has a bound.
    pub(crate) fn most(self) -> Option<i64> {
        self.most.filter(|_| self.fixed.is_none())
    }

    /// The size that is allowed and nearest to `wanted`.
    pub(crate) fn nearest(self, wanted: i64) -> i64 {
        let wanted = wanted.max(self.least.unwrap_or(0)).min(self.most.unwrap_or(i64::MAX));
        self.fixed.unwrap_or(wanted)
    }

    /// Whether `size` is allowed. PyTorch writes that a size must be 2 at least for every size that varies,
    /// and runs the code for 1 all the same; so this does, too.
    fn allows(self, size: i64) -> bool {
        let least = self.least.filter(|least| *least > 2).unwrap_or(1);
        match self.fixed {
            Some(fixed) => size == fixed,
            None => size >= least && self.most.is_none_or(|most| size <= most),
        }
    }
}

impl Wrapper {
    /// Reads the wrapper of the model `name` of a package; `None` if the package does not have it.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn read(archive: &Archive, name: &str) -> Result<Option<Self>> {
        let folder = format!("data/aotinductor/{name}/");
        let is_wrapper = |file: &&str| file.starts_with(&folder) && file.ends_with(".wrapper.cpp");
        let Some(file) = archive.names().find(is_wrapper).map(str::to_owned) else {
            return Ok(None);
        };
        let text = archive.read(&file, LARGEST_WRAPPER)?;
        Ok(Some(Wrapper::parse(&String::from_utf8_lossy(&text))))
    }

    /// Reads the source of a wrapper.
    pub(crate) fn parse(text: &str) -> Self {
        let mut inputs: Vec<InputCheck> = Vec::new();
        for check in text.split("\"input_handles[").skip(1) {
            read_check(check, &mut inputs);
        }
        let spec = |name: &str| {
            let start = text.find(&format!("{name} = R\"("))?;
            let (_, rest) = text.get(start..)?.split_once("R\"(")?;
            Some(rest.split_once(")\"")?.0)
        };
        let names = spec("in_spec_").zip(spec("out_spec_"));
        let names = names.and_then(|(inputs, outputs)| names_of(inputs, outputs));
        let is_random = ["_rand", "_bernoulli", "_seeds", "_multinomial", "_normal("];
        Wrapper { inputs, names, is_random: is_random.iter().any(|word| text.contains(word)) }
    }
}

/// Reads one check: what follows `"input_handles[` in the wrapper.
fn read_check(text: &str, inputs: &mut Vec<InputCheck>) -> Option<()> {
    let (index, rest) = text.split_once("]: ")?;
    let index: usize = index.parse().ok().filter(|index| *index < MOST_INPUTS)?;
    if inputs.len() <= index {
        inputs.resize(index + 1, InputCheck::default());
    }
    let input = inputs.get_mut(index)?;
    if rest.starts_with("unmatched dtype") {
        let (_, name) = rest.split_once("(at::")?;
        input.dtype = types::of_name(name.split(')').next()?);
        return Some(());
    }
    let (what, rest) = rest.split_once(" at ")?;
    let dimension: usize = leading_number(rest)?.try_into().ok()?;
    if dimension >= MOST_DIMENSIONS {
        return None;
    }
    if input.dims.len() <= dimension {
        input.dims.resize(dimension + 1, DimCheck::default());
    }
    let dim = input.dims.get_mut(dimension)?;
    let after = |mark: &str| leading_number(rest.split_once(mark)?.1);
    match what {
        "unmatched dim value" => dim.fixed = after("expected: "),
        "dim value is too small" => dim.least = after(">= "),
        "dim value is too large" => dim.most = after("<= "),
        // Shows that the dimension exists.
        _ => {}
    }
    Some(())
}

fn leading_number(text: &str) -> Option<i64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..digits)?.parse().ok()
}

/// The names of inputs and outputs that the specifications of a call (`torch.utils._pytree`, JSON) give them.
pub(crate) fn names_of(inputs: &str, outputs: &str) -> Option<(Vec<String>, Vec<String>)> {
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok()?.get(1).cloned();
    let (inputs, outputs) = (parse(inputs)?, parse(outputs)?);
    let [positional, keywords] = children(&inputs)? else {
        return None;
    };
    let mut input_names = Vec::new();
    match children(positional)? {
        [only] => leaves(only, "input", true, &mut input_names)?,
        _ => leaves(positional, "input", true, &mut input_names)?,
    }
    leaves(keywords, "", true, &mut input_names)?;
    let mut output_names = Vec::new();
    leaves(&outputs, "output", true, &mut output_names)?;
    Some((input_names, output_names))
}

fn children(node: &Value) -> Option<&[Value]> {
    node.get("children_spec")?.as_array().map(Vec::as_slice)
}

/// Appends the names of the leaves below `node`, which is called `name`. The keys of the outermost dictionary
/// are names of their own.
fn leaves(node: &Value, name: &str, is_outermost: bool, names: &mut Vec<String>) -> Option<()> {
    if names.len() > MOST_INPUTS {
        return None;
    }
    let kind = node.get("type")?;
    if kind.is_null() {
        names.push(name.to_owned());
        return Some(());
    }
    let keys: Option<Vec<Value>> = match kind.as_str()? {
        "builtins.dict" => serde_json::from_str(node.get("context")?.as_str()?).ok(),
        _ => None,
    };
    for (index, child) in children(node)?.iter().enumerate() {
        let key = keys.as_ref().and_then(|keys| keys.get(index));
        let key = key.map(|key| key.as_str().map_or_else(|| key.to_string(), str::to_owned));
        let own = match key {
            Some(key) if is_outermost => key,
            Some(key) => format!("{name}.{key}"),
            None => format!("{name}_{index}"),
        };
        leaves(child, &own, false, names)?;
    }
    Some(())
}

impl InputCheck {
    /// Refuses a tensor of another type or other sizes.
    ///
    /// # Errors
    /// A message that names the input `alias`.
    pub(crate) fn check(&self, alias: &str, tensor: &Tensor) -> Result<()> {
        let (dims, dtype) = (tensor.shape().dims(), tensor.dtype());
        if self.dtype.is_some_and(|wanted| wanted != dtype) {
            let wanted = self.dtype.map_or("", DType::python_name);
            return Err(Error::invalid(format!(
                "input {alias:?} is {}; the model was compiled for {wanted}",
                dtype.python_name()
            )));
        }
        let allowed = self.dims.len() == dims.len()
            && self.dims.iter().zip(dims).all(|(check, size)| check.allows(*size));
        if allowed {
            return Ok(());
        }
        let shown: Vec<String> = self.dims.iter().map(ToString::to_string).collect();
        Err(Error::invalid(format!(
            "input {alias:?} has shape {:?}; the model was compiled for [{}]",
            tensor.shape(),
            shown.join(", ")
        )))
    }
}

impl std::fmt::Display for DimCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.fixed, self.most) {
            (Some(fixed), _) => write!(f, "{fixed}"),
            (None, Some(most)) => write!(f, "1 to {most}"),
            (None, None) => f.write_str("?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tensorserve_tensor::{Buffer, Shape, aligned_vec};

    const WRAPPER: &str = r#"
        in_spec_ = R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [
            {"type": "builtins.tuple", "context": "null", "children_spec": [
                {"type": null, "context": null, "children_spec": []}]},
            {"type": "builtins.dict", "context": "[\"scale\"]", "children_spec": [
                {"type": null, "context": null, "children_spec": []}]}]}])";
        out_spec_ = R"([1, {"type": "builtins.dict", "context": "[\"p\", \"s\"]", "children_spec": [
            {"type": null, "context": null, "children_spec": []},
            {"type": "builtins.tuple", "context": "null", "children_spec": [
                {"type": null, "context": null, "children_spec": []},
                {"type": null, "context": null, "children_spec": []}]}]}])";
        ss << "input_handles[0]: unmatched dtype, "
           << "expected: " << arg4_1_expected_dtype << "(at::kFloat), "
        ss << "input_handles[0]: dim value is too small at 0, "
           << "expected it to be >= 2, " << "but got: "
        ss << "input_handles[0]: dim value is too large at 0, "
           << "expected to be <= 4096, " << "but got: "
        ss << "input_handles[0]: unmatched dim value at 1, "
           << "expected: 4, " << "but got: " << arg4_1_size[1]
        ss << "input_handles[1]: unmatched dtype, "
           << "expected: " << arg5_1_expected_dtype << "(at::kLong), "
        ss << "input_handles[1]: unmatched stride value at 0, "
    "#;

    fn zeros(dtype: DType, dims: &[i64]) -> Tensor {
        let shape = Shape::new(dims).expect("valid");
        let mut zeros = aligned_vec::<u8>(0);
        let size = dtype.size().expect("fixed");
        zeros.resize(shape.elements().expect("small") * size, 0);
        Tensor::numeric(dtype, shape, Buffer::new(Arc::new(zeros))).expect("a tensor")
    }

    #[test]
    fn names_types_and_sizes_are_those_of_the_wrapper() {
        let wrapper = Wrapper::parse(WRAPPER);
        let (inputs, outputs) = wrapper.names.expect("names");
        assert_eq!(inputs, ["input", "scale"]);
        assert_eq!(outputs, ["p", "s_0", "s_1"]);
        let dtypes: Vec<_> = wrapper.inputs.iter().map(|input| input.dtype).collect();
        assert_eq!(dtypes, [Some(DType::Float), Some(DType::Int64)]);
        let sizes =
            |input: &InputCheck| input.dims.iter().map(|dim| dim.size()).collect::<Vec<_>>();
        assert_eq!(sizes(&wrapper.inputs[0]), [-1, 4]);
        assert_eq!(sizes(&wrapper.inputs[1]), [-1]);
        assert!(!wrapper.is_random);
        assert_eq!(wrapper.inputs[0].dims[0].nearest(1), 2);
        assert_eq!(wrapper.inputs[0].dims[0].nearest(9999), 4096);
    }

    #[test]
    fn tensors_of_other_sizes_are_refused_with_the_name_of_the_input() {
        let wrapper = Wrapper::parse(WRAPPER);
        let check = |tensor: Tensor| wrapper.inputs[0].check("x", &tensor);
        for dims in [&[1, 4][..], &[2, 4], &[4096, 4]] {
            check(zeros(DType::Float, dims)).expect("allowed");
        }
        for dims in [&[4][..], &[0, 4], &[4097, 4], &[2, 5], &[2, 4, 1]] {
            let error = check(zeros(DType::Float, dims)).expect_err("other sizes");
            assert!(error.message().contains("compiled for [1 to 4096, 4]"), "{error}");
        }
        let error = check(zeros(DType::Double, &[2, 4])).expect_err("another type");
        assert_eq!(error.message(), "input \"x\" is float64; the model was compiled for float32");
    }

    #[test]
    fn other_texts_say_nothing() {
        for text in [
            "",
            "\"input_handles[x]: unmatched dtype",
            "\"input_handles[99999999]: a at 1",
            "\"input_handles[0]: dim value is too small at 99999999999999999999, >= 2",
            "in_spec_ = R\"([1, 2])\"; out_spec_ = R\"([1])\";",
        ] {
            let wrapper = Wrapper::parse(text);
            assert!(wrapper.names.is_none() && wrapper.inputs.len() <= 1, "{text}");
        }
    }
}
