//! What is done to a request before its model runs, and to the answer behind it, as a
//! `tensorserve.toml` beside the model says: files of images become numbers, numbers are scaled,
//! words are looked up, the largest scores are picked and named.
//!
//! [`of_version`] reads the file and makes a [`Chain`] of each signature that has steps. A chain
//! knows what clients then see ([`Chain::signature`]) and turns tensors into tensors. Who calls it,
//! and on which thread, is not known here.
//!
//! `docs/preprocessing.md` is the reference of the file.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::path::Path;

use self::file::{File, Step};
use self::image::Image;
use self::numbers::{Floats, Scale};
use self::output::{OutputStep, check_names, check_scale, position};
use self::tokens::Tokens;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    DType, DeclaredShape, ImageEncoding, Shape, Signature, Tensor, TensorSpec, aligned_vec,
};

mod file;
mod image;
mod numbers;
mod output;
mod resize;
mod tokens;

pub use self::file::FILE_NAME;

/// The signature that steps are for which name none.
const DEFAULT_SIGNATURE: &str = "serving_default";

/// The steps of one signature.
pub struct Chain {
    /// What the model declares.
    model: Signature,
    /// What clients see.
    signature: Signature,
    /// The inputs that clients see, in order.
    inputs: Vec<Input>,
    /// Steps behind the model, in order.
    outputs: Vec<OutputStep>,
    /// For each output that clients see, its place among those that the steps end with.
    order: Vec<usize>,
    /// The most bytes that one input of the model may become.
    max_bytes: usize,
}

/// One input: where it goes, and what becomes of it on its way.
struct Input {
    /// Its place among the model's inputs.
    at: usize,
    /// What the model takes.
    dtype: Option<DType>,
    from: Source,
    scales: Vec<Scale>,
}

/// What the numbers of an input are made of.
enum Source {
    /// They are sent.
    Numbers,
    Images(Box<Image>),
    Texts(Box<Tokens>),
}

/// The chains of the version in `folder` with these signatures: one for each signature, where it
/// has steps.
///
/// # Errors
/// What is wrong with the file or those that it names, with file and line.
pub fn of_version(
    folder: &Path,
    signatures: &[Signature],
    max_bytes: usize,
) -> Result<Vec<Option<Chain>>> {
    let Some(path) = file::of_version(folder) else {
        return Ok(signatures.iter().map(|_| None).collect());
    };
    let File { before, after } = File::read(&path)?;
    let mut before = grouped(before, signatures)?;
    let mut after = grouped(after, signatures)?;
    let chain = |(index, signature): (usize, &Signature)| {
        let (mut before, mut after) = (take(&mut before, index), take(&mut after, index));
        if before.is_empty() && after.is_empty() {
            return Ok(None);
        }
        Chain::new(signature, &mut before, &mut after, max_bytes).map(Some)
    };
    signatures.iter().enumerate().map(chain).collect()
}

/// Each step with the number of the signature that it is for.
fn grouped(steps: Vec<Step>, signatures: &[Signature]) -> Result<Vec<(usize, Step)>> {
    let find = |mut step: Step| {
        let name = step.text("signature")?;
        let name = name.as_deref().unwrap_or(DEFAULT_SIGNATURE);
        let at = signatures.iter().position(|signature| signature.name == name);
        let at = at.ok_or_else(|| {
            let names: Vec<&str> = signatures.iter().map(|s| s.name.as_str()).collect();
            step.error(format_args!(
                "the model has no signature {name:?}; it has {}: name one with signature = \"…\"",
                names.join(", ")
            ))
        })?;
        Ok((at, step))
    };
    steps.into_iter().map(find).collect()
}

fn take(steps: &mut Vec<(usize, Step)>, index: usize) -> Vec<Step> {
    let (mine, others) = steps.drain(..).partition(|(at, _)| *at == index);
    *steps = others;
    let mine: Vec<(usize, Step)> = mine;
    mine.into_iter().map(|(_, step)| step).collect()
}

impl Chain {
    fn new(
        model: &Signature,
        before: &mut [Step],
        after: &mut [Step],
        max_bytes: usize,
    ) -> Result<Self> {
        let mut signature = model.clone();
        let inputs = inputs(before, &mut signature)?;
        let mut outputs = Vec::with_capacity(after.len());
        for step in after {
            outputs.push(OutputStep::read(step, &mut signature.outputs)?);
        }
        let mut order: Vec<usize> = (0..signature.outputs.len()).collect();
        let alias = |at: &usize| signature.outputs.get(*at).map(|spec| spec.alias.clone());
        order.sort_by_key(alias);
        signature.outputs.sort_by(|a, b| a.alias.cmp(&b.alias));
        Ok(Chain { model: model.clone(), signature, inputs, outputs, order, max_bytes })
    }

    /// What the model itself declares.
    #[must_use]
    pub fn model(&self) -> &Signature {
        &self.model
    }

    /// What clients see.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// What [`Chain::prepare`] costs, roughly, in numbers that are touched.
    #[must_use]
    pub fn cost_before(&self, inputs: &[Tensor]) -> usize {
        let costs = self.inputs.iter().zip(inputs).map(|(input, tensor)| input.cost(tensor));
        costs.fold(0, usize::saturating_add)
    }

    /// The same of [`Chain::finish`].
    #[must_use]
    pub fn cost_behind(&self, outputs: &[Tensor]) -> usize {
        let costs = self.outputs.iter().map(|step| step.cost(outputs));
        costs.fold(0, usize::saturating_add)
    }

    /// What the model takes, of what a client sent: one tensor for each input, in order. Blocks,
    /// for images perhaps long.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](tensorserve_tensor::error::Code::InvalidArgument) with the input, and the
    /// element that is wrong.
    pub fn prepare(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut prepared: Vec<Option<Tensor>> = vec![None; self.inputs.len()];
        let specs = &self.signature.inputs;
        for ((input, tensor), spec) in self.inputs.iter().zip(inputs).zip(specs) {
            let tensor = input.apply(tensor, self.max_bytes).map_err(|error| {
                let (code, what) = (error.code(), error.message());
                Error::new(code, format!("input {:?}{what}", spec.alias))
            })?;
            if let Some(slot) = prepared.get_mut(input.at) {
                *slot = Some(tensor);
            }
        }
        let all: Option<Vec<Tensor>> = prepared.into_iter().collect();
        all.ok_or_else(|| Error::internal("an input is missing"))
    }

    /// What clients get, of what the model gave. Blocks.
    ///
    /// # Errors
    /// If the model gave something else than it declares.
    pub fn finish(&self, mut outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        if self.outputs.is_empty() {
            return Ok(outputs);
        }
        for step in &self.outputs {
            step.apply(&mut outputs)?;
        }
        let get = |at: &usize| outputs.get(*at).cloned();
        let all: Option<Vec<Tensor>> = self.order.iter().map(get).collect();
        all.ok_or_else(|| Error::internal("an output is missing"))
    }
}

/// Reads the steps before a model, and makes of its inputs what clients see of them.
fn inputs(steps: &mut [Step], signature: &mut Signature) -> Result<Vec<Input>> {
    let plain = |(at, spec): (usize, &TensorSpec)| Input {
        at,
        dtype: spec.dtype(),
        from: Source::Numbers,
        scales: Vec::new(),
    };
    let model = signature.inputs.clone();
    let mut inputs: Vec<Input> = model.iter().enumerate().map(plain).collect();
    for step in &mut *steps {
        let at = position(step.text("input")?, &model, step.place())?;
        let (Some(input), Some(spec), Some(seen)) =
            (inputs.get_mut(at), model.get(at), signature.inputs.get_mut(at))
        else {
            return Err(step.error("there is no such input"));
        };
        let renamed = step.text("name")?;
        input.read(step, spec, seen)?;
        step.finish()?;
        signature.defaults.retain(|(alias, _)| *alias != spec.alias);
        if let Some(name) = renamed {
            seen.alias = name;
        }
        let place = step.place().clone();
        check_names(&signature.inputs, &place)?;
    }
    let has_images = inputs.iter().any(|input| matches!(input.from, Source::Images(_)));
    if has_images {
        signature.takes_images = inputs.len() == 1;
        signature.images = ImageEncoding::Raw;
    }
    let mut seen: Vec<(TensorSpec, Input)> = signature.inputs.drain(..).zip(inputs).collect();
    seen.sort_by(|(a, _), (b, _)| a.alias.cmp(&b.alias));
    let (specs, inputs) = seen.into_iter().unzip();
    signature.inputs = specs;
    Ok(inputs)
}

impl Input {
    /// Reads one step for an input that the model declares as `spec`, and that clients see as
    /// `seen`.
    fn read(&mut self, step: &mut Step, spec: &TensorSpec, seen: &mut TensorSpec) -> Result<()> {
        let wanted = spec.shape.sizes();
        let is_first = matches!(self.from, Source::Numbers) && self.scales.is_empty();
        match step.kind.as_str() {
            "scale" if matches!(self.from, Source::Texts(_)) => {
                return Err(step.error("numbers of words can not be scaled"));
            }
            "scale" => {
                let scale = Scale::read(step)?;
                check_scale(&scale, spec, step.place())?;
                self.scales.push(scale);
                return Ok(());
            }
            "image" | "tokens" if !is_first => {
                let kind = &step.kind;
                return Err(step.error(format_args!("{kind} must be the first step of its input")));
            }
            "image" => {
                let image = Image::read(step, wanted.as_deref())?;
                check_numbers(step, spec)?;
                seen.shape = before(&spec.shape, &image.dims(), step, spec)?;
                self.from = Source::Images(Box::new(image));
            }
            "tokens" => {
                let tokens = Tokens::read(step, wanted.as_deref())?;
                let (most, least) = tokens.range();
                let fits = match spec.dtype() {
                    Some(DType::Int32) => {
                        i32::try_from(most).is_ok() && i32::try_from(least).is_ok()
                    }
                    Some(DType::Int64) => true,
                    _ => false,
                };
                if !fits {
                    let kind = spec.dtype().map_or("no known type", DType::name);
                    return Err(step.error(format_args!(
                        "{:?} is of type {kind}, and words become int32 or int64 up to {most}",
                        spec.alias
                    )));
                }
                let length: Vec<i64> =
                    tokens.length().and_then(|n| i64::try_from(n).ok()).into_iter().collect();
                seen.shape = before(&spec.shape, &length, step, spec)?;
                self.from = Source::Texts(Box::new(tokens));
            }
            other => {
                return Err(step.error(format_args!(
                    "{other:?} is no step before a model; these are: image, scale, tokens"
                )));
            }
        }
        seen.dtype_number = DType::String.number();
        Ok(())
    }

    fn cost(&self, tensor: &Tensor) -> usize {
        let strings = tensor.strings();
        match (&self.from, strings) {
            (Source::Images(image), Some(files)) => {
                files.iter().map(|file| image.cost(file)).fold(0, usize::saturating_add)
            }
            // A word is looked up in the time that some dozen numbers take.
            (Source::Texts(_), Some(texts)) => texts.byte_len().saturating_mul(4),
            _ if self.scales.is_empty() => 0,
            _ => tensor.shape().elements().unwrap_or(0),
        }
    }

    /// What the model takes. The message of an error goes on behind the input's name.
    fn apply(&self, tensor: &Tensor, max_bytes: usize) -> Result<Tensor> {
        let Some(dtype) = self.dtype else {
            return Ok(tensor.clone());
        };
        let mut floats = match &self.from {
            Source::Numbers if self.scales.is_empty() => return Ok(tensor.clone()),
            Source::Numbers => Floats::of(tensor).ok_or_else(|| {
                let kind = tensor.dtype();
                Error::invalid(format!(" is of type {kind}, and it takes numbers"))
            })?,
            Source::Images(image) => pictures(image, tensor, max_bytes)?,
            Source::Texts(tokens) => return words(tokens, tensor, dtype, max_bytes),
        };
        for scale in &self.scales {
            scale
                .apply(&mut floats)
                .map_err(|error| Error::invalid(format!(": {}", error.message())))?;
        }
        floats.into_tensor(dtype)
    }
}

/// The shape that clients see of an input that a step adds the dimensions `added` to.
fn before(
    declared: &DeclaredShape,
    added: &[i64],
    step: &Step,
    spec: &TensorSpec,
) -> Result<DeclaredShape> {
    let DeclaredShape::Dims(dims) = declared else {
        return Ok(declared.clone());
    };
    let (rest, last) = dims.split_at(dims.len().saturating_sub(added.len()));
    let fits = |((size, _), added): (&(i64, String), &i64)| *size == -1 || size == added;
    if last.len() != added.len() || !last.iter().zip(added).all(fits) {
        let made: Vec<String> = added.iter().map(ToString::to_string).collect();
        let (kind, alias, made) = (&step.kind, &spec.alias, made.join(", "));
        return Err(step.error(format_args!(
            "the model's {alias:?} has the shape {declared}, and {kind} makes [..., {made}] of each \
             string"
        )));
    }
    Ok(DeclaredShape::Dims(rest.to_vec()))
}

fn check_numbers(step: &Step, spec: &TensorSpec) -> Result<()> {
    if spec.dtype().is_some_and(numbers::is_real) {
        return Ok(());
    }
    let kind = spec.dtype().map_or("no known type", DType::name);
    let alias = &spec.alias;
    Err(step.error(format_args!("the model's {alias:?} is of type {kind}, and pixels are numbers")))
}

/// The shape of `tensor` with more dimensions behind it, if its elements then take no more than
/// `max_bytes`.
fn grown(tensor: &Tensor, added: &[i64], size: usize, max_bytes: usize) -> Result<Shape> {
    let mut dims = tensor.shape().dims().to_vec();
    dims.extend_from_slice(added);
    let shape = Shape::new(&dims).map_err(|e| Error::invalid(format!(": {}", e.message())))?;
    let bytes = shape.elements()?.saturating_mul(size);
    if bytes > max_bytes {
        return Err(Error::invalid(format!(
            " would become {bytes} bytes of shape {shape:?}, more than {max_bytes}: send fewer at \
             a time"
        )));
    }
    Ok(shape)
}

fn pictures(image: &Image, tensor: &Tensor, max_bytes: usize) -> Result<Floats> {
    let files = tensor.strings().ok_or_else(|| {
        let kind = tensor.dtype();
        Error::invalid(format!(" is of type {kind}, and it takes JPEG or PNG files as strings"))
    })?;
    let shape = grown(tensor, &image.dims(), 4, max_bytes)?;
    let mut values = aligned_vec::<f32>(files.len().saturating_mul(image.size()));
    image::all(image, files, &mut values)
        .map_err(|(index, why)| Error::invalid(format!(", element {index}: {why}")))?;
    Ok(Floats { shape, values })
}

fn words(tokens: &Tokens, tensor: &Tensor, dtype: DType, max_bytes: usize) -> Result<Tensor> {
    let texts = tensor.strings().ok_or_else(|| {
        let kind = tensor.dtype();
        Error::invalid(format!(" is of type {kind}, and it takes texts"))
    })?;
    let length = tokens.length().and_then(|length| i64::try_from(length).ok());
    let added: Vec<i64> = length.into_iter().collect();
    let shape = grown(tensor, &added, 8, max_bytes)?;
    let mut numbers = aligned_vec::<i64>(shape.elements()?);
    tokens.append(texts, &mut numbers);
    if dtype == DType::Int64 {
        return Tensor::from_vec(shape, numbers);
    }
    let mut narrow = aligned_vec::<i32>(numbers.len());
    // They were checked against the type when the step was read.
    numbers.iter().for_each(|number| narrow.push(i32::try_from(*number).unwrap_or(0)));
    Tensor::from_vec(shape, narrow)
}

#[cfg(test)]
mod tests;
