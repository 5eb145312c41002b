//! Steps behind a model: `top_k`, `labels`, and `scale` of what it says.

use super::file::{Place, Step};
use super::numbers::{Floats, Scale, is_real};
use tensorserve_codec::cast::cast;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    Buffer, DType, DeclaredShape, Shape, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// One step, on the output at a place among those there are by then.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OutputStep {
    at: usize,
    /// What the model calls it.
    alias: String,
    what: What,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Scale(Scale),
    /// The largest numbers take the place of all; where they were goes behind the last output.
    TopK(usize),
    Labels(Labels),
}

/// Names of classes.
#[derive(Clone, Debug, PartialEq)]
struct Labels {
    names: Vec<String>,
    /// For a class without a name; its number without it.
    unknown: Option<String>,
}

impl OutputStep {
    /// Reads a step for one of `outputs`, and makes of their declarations what it makes of them.
    pub(super) fn read(step: &mut Step, outputs: &mut Vec<TensorSpec>) -> Result<Self> {
        let place = step.place().clone();
        let at = position(step.text("output")?, outputs, &place)?;
        let renamed = step.text("name")?;
        let Some(spec) = outputs.get_mut(at) else {
            return Err(place.error("there is no such output"));
        };
        let alias = spec.alias.clone();
        let mut more = None;
        let what = match step.kind.as_str() {
            "scale" => What::Scale(scale(step, spec)?),
            "top_k" => {
                let (k, indices) = top_k(step, spec)?;
                more = Some(indices);
                What::TopK(k)
            }
            "labels" => What::Labels(labels(step, spec)?),
            other => {
                return Err(step.error(format_args!(
                    "{other:?} is no step behind a model; these are: scale, top_k, labels"
                )));
            }
        };
        step.finish()?;
        if let Some(name) = renamed {
            spec.alias = name;
        }
        outputs.extend(more);
        check_names(outputs, &place)?;
        Ok(OutputStep { at, alias, what })
    }

    /// Takes the step.
    ///
    /// # Errors
    /// If the model gave something else than it declares.
    pub(super) fn apply(&self, outputs: &mut Vec<Tensor>) -> Result<()> {
        let Some(output) = outputs.get_mut(self.at) else {
            return Err(Error::internal("an output is missing"));
        };
        let wrong = |e: Error| {
            let (code, what) = (e.code(), e.message());
            Error::new(code, format!("the model's output {:?}: {what}", self.alias))
        };
        match &self.what {
            What::Scale(scale) => {
                let dtype = output.dtype();
                let floats = Floats::of(output).ok_or_else(|| no_numbers(output));
                let mut floats = floats.map_err(wrong)?;
                scale.apply(&mut floats).map_err(wrong)?;
                *output = floats.into_tensor(dtype)?;
            }
            What::TopK(k) => {
                let (values, indices) = largest(output, *k).map_err(wrong)?;
                *output = values;
                outputs.push(indices);
            }
            What::Labels(labels) => *output = labels.of(output).map_err(wrong)?,
        }
        Ok(())
    }

    /// What it costs, in numbers that are touched.
    pub(super) fn cost(&self, outputs: &[Tensor]) -> usize {
        outputs.get(self.at).map_or(0, |output| output.shape().elements().unwrap_or(0))
    }
}

/// The place of the tensor that a step names; of the only one if it names none.
pub(super) fn position(name: Option<String>, specs: &[TensorSpec], place: &Place) -> Result<usize> {
    let names = || specs.iter().map(|spec| spec.alias.as_str()).collect::<Vec<_>>().join(", ");
    match name {
        None if specs.len() == 1 => Ok(0),
        None => Err(place.error(format_args!("say for which: there are {}", names()))),
        Some(name) => {
            let found = specs.iter().position(|spec| spec.alias == name);
            found.ok_or_else(|| {
                place.error(format_args!("there is no {name:?} here; there is {}", names()))
            })
        }
    }
}

/// Refuses two tensors of one name.
pub(super) fn check_names(specs: &[TensorSpec], place: &Place) -> Result<()> {
    let mut names: Vec<&str> = specs.iter().map(|spec| spec.alias.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([twice, _]) => Err(place.error(format_args!("two would be called {twice:?}"))),
        _ if names.contains(&"") => Err(place.error("a name is empty")),
        _ => Ok(()),
    }
}

fn scale(step: &mut Step, spec: &TensorSpec) -> Result<Scale> {
    let scale = Scale::read(step)?;
    check_scale(&scale, spec, step.place())?;
    Ok(scale)
}

/// Whether a tensor that is declared so can be scaled.
pub(super) fn check_scale(scale: &Scale, spec: &TensorSpec, place: &Place) -> Result<()> {
    let (alias, dtype) = (&spec.alias, spec.dtype());
    if !dtype.is_some_and(is_real) {
        let kind = dtype.map_or("no known type", DType::name);
        return Err(place.error(format_args!("{alias:?} is of type {kind}: it can not be scaled")));
    }
    let (Some((count, axis)), Some(dims)) = (scale.channels(), spec.shape.sizes()) else {
        return Ok(());
    };
    let size = super::numbers::place(axis, dims.len()).and_then(|at| dims.get(at).copied());
    match size {
        Some(-1) => Ok(()),
        Some(size) if usize::try_from(size) == Ok(count) => Ok(()),
        _ => Err(place.error(format_args!(
            "there are {count} values along axis {axis}, and {alias:?} has the shape {}",
            spec.shape
        ))),
    }
}

fn top_k(step: &mut Step, spec: &mut TensorSpec) -> Result<(usize, TensorSpec)> {
    let k = step.count("k")?;
    let k = k.ok_or_else(|| step.error("a step \"top_k\" needs k, how many are wanted"))?;
    let alias = &spec.alias;
    if !spec.dtype().is_some_and(is_real) {
        let kind = spec.dtype().map_or("no known type", DType::name);
        return Err(step.error(format_args!("{alias:?} is of type {kind}: it has no largest")));
    }
    let indices = step.text("indices")?.unwrap_or_else(|| format!("{alias}_indices"));
    if let DeclaredShape::Dims(dims) = &mut spec.shape {
        let Some((last, _)) = dims.last_mut() else {
            return Err(step.error(format_args!("{alias:?} is a single number: it has no largest")));
        };
        if *last >= 0 && usize::try_from(*last).is_ok_and(|classes| classes < k) {
            return Err(step.error(format_args!("{alias:?} has {last} numbers, less than k = {k}")));
        }
        *last = i64::try_from(k).unwrap_or(i64::MAX);
    }
    let indices = TensorSpec {
        alias: indices,
        tensor_name: format!("tensorserve/top_k/{}", spec.tensor_name),
        dtype_number: DType::Int32.number(),
        shape: spec.shape.clone(),
        sparse: None,
    };
    Ok((k, indices))
}

fn labels(step: &mut Step, spec: &mut TensorSpec) -> Result<Labels> {
    let names = step.lines("file")?;
    let names = names.ok_or_else(|| {
        step.error("a step \"labels\" needs file, with the name of a class a line")
    })?;
    let unknown = step.text("unknown")?;
    let whole = [DType::Int8, DType::Int16, DType::Int32, DType::Int64];
    let whole =
        whole.into_iter().chain([DType::UInt8, DType::UInt16, DType::UInt32, DType::UInt64]);
    if !spec.dtype().is_some_and(|dtype| whole.into_iter().any(|other| other == dtype)) {
        let (alias, kind) = (&spec.alias, spec.dtype().map_or("no known type", DType::name));
        return Err(step.error(format_args!(
            "{alias:?} is of type {kind}, and names are for whole numbers; top_k before it gives \
             them, as its indices"
        )));
    }
    spec.dtype_number = DType::String.number();
    Ok(Labels { names, unknown })
}

impl Labels {
    fn of(&self, classes: &Tensor) -> Result<Tensor> {
        let numbers = cast(classes, DType::Int64).ok_or_else(|| no_numbers(classes))?;
        let numbers = numbers.values::<i64>().unwrap_or_default();
        let mut names = StringsBuilder::with_capacity(numbers.len(), numbers.len() * 16);
        for number in numbers {
            let name = usize::try_from(*number).ok().and_then(|at| self.names.get(at));
            match name.or(self.unknown.as_ref()) {
                Some(name) => names.push(name.as_bytes()),
                None => names.push(number.to_string().as_bytes()),
            }
        }
        Tensor::from_strings(classes.shape().clone(), names)
    }
}

fn no_numbers(tensor: &Tensor) -> Error {
    Error::precondition(format!("it is of type {}, and no numbers as declared", tensor.dtype()))
}

/// The `k` largest numbers of each row of the last dimension, largest first, and where they were.
/// Of equal ones the first comes first; what is no number (NaN) comes last.
fn largest(tensor: &Tensor, k: usize) -> Result<(Tensor, Tensor)> {
    let mut dims = tensor.shape().dims().to_vec();
    let classes = dims.last().and_then(|&last| usize::try_from(last).ok()).unwrap_or(0);
    let scores = cast(tensor, DType::Double).ok_or_else(|| no_numbers(tensor))?;
    if classes < k {
        let shape = tensor.shape();
        return Err(Error::precondition(format!("its shape is {shape:?}, less than k = {k}")));
    }
    if let Some(last) = dims.last_mut() {
        *last = i64::try_from(k).unwrap_or(i64::MAX);
    }
    let shape = Shape::new(&dims)?;
    let count = shape.elements()?;
    let size = tensor.dtype().size().unwrap_or(1);
    let mut values = aligned_vec::<u8>(count * size);
    let mut indices = aligned_vec::<i32>(count);
    let mut order: Vec<(f64, i32)> = Vec::with_capacity(classes);
    let rows = scores.values::<f64>().unwrap_or_default().chunks_exact(classes.max(1));
    for (row, bytes) in rows.zip(tensor.bytes().chunks_exact((classes * size).max(1))) {
        order.clear();
        order.extend(row.iter().copied().zip(0..));
        let by_score = |a: &(f64, i32), b: &(f64, i32)| {
            let nan_last = a.0.is_nan().cmp(&b.0.is_nan());
            let score = b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal);
            nan_last.then(score).then(a.1.cmp(&b.1))
        };
        if k < classes {
            order.select_nth_unstable_by(k, by_score);
            order.truncate(k);
        }
        order.sort_unstable_by(by_score);
        for (_, index) in &order {
            let at = usize::try_from(*index).unwrap_or(0) * size;
            values.extend_from_slice(bytes.get(at..at + size).unwrap_or_default());
            indices.push(*index);
        }
    }
    let values =
        Tensor::numeric(tensor.dtype(), shape.clone(), Buffer::new(std::sync::Arc::new(values)))?;
    Ok((values, Tensor::from_vec(shape, indices)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{AlignedVec, Element};

    fn tensor<T: Element>(dims: &[i64], values: &[T]) -> Tensor {
        let shape = Shape::new(dims).expect("a shape");
        Tensor::from_vec(shape, AlignedVec::from_slice(0, values)).expect("a tensor")
    }

    #[test]
    fn the_largest_come_first_and_equal_ones_in_their_order() {
        let scores =
            tensor(&[2, 4], &[0.5f32, 2.0, 2.0, -1.0, 0.0, -0.0, f32::NAN, f32::NEG_INFINITY]);
        let (values, indices) = largest(&scores, 3).expect("three");
        assert_eq!(values.shape().dims(), [2, 3]);
        assert_eq!(indices.values::<i32>(), Some(&[1, 2, 0, 0, 1, 3][..]));
        assert_eq!(
            values.values::<f32>(),
            Some(&[2.0, 2.0, 0.5, 0.0, -0.0, f32::NEG_INFINITY][..])
        );
        let (values, indices) = largest(&tensor(&[3], &[7i64, 9, 8]), 3).expect("all");
        assert_eq!(values.values::<i64>(), Some(&[9, 8, 7][..]));
        assert_eq!(indices.values::<i32>(), Some(&[1, 2, 0][..]));
        assert!(largest(&scores, 5).is_err());
        let none = tensor::<f32>(&[0, 4], &[]);
        assert_eq!(largest(&none, 2).expect("none").1.shape().dims(), [0, 2]);
    }

    #[test]
    fn classes_without_a_name_keep_their_number() {
        let names = vec!["no".to_owned(), "yes".to_owned()];
        let text = |labels: &Labels, classes: &Tensor| -> Vec<String> {
            let tensor = labels.of(classes).expect("names");
            let strings = tensor.strings().expect("strings").iter();
            strings.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        };
        let labels = Labels { names: names.clone(), unknown: None };
        assert_eq!(text(&labels, &tensor(&[2, 2], &[1i32, 0, 2, -1])), ["yes", "no", "2", "-1"]);
        let labels = Labels { names, unknown: Some("?".to_owned()) };
        assert_eq!(text(&labels, &tensor(&[2], &[1u8, 200])), ["yes", "?"]);
        assert!(labels.of(&tensor(&[1], &[1.0f32])).is_err());
    }
}
