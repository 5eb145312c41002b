//! Pre-processing steps: `image`, `tokens`, and `scale` of an input.

use super::Between;
use super::file::StepTable;
use super::image::{ImageError, ImageStep};
use super::numbers::{FloatValues, ScaleStep};
use super::specs::{check_names, check_real, dtype_name, position};
use super::tokens::TokenStep;
use tensorserve_tensor::budget::{self, reserved_vec};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    DType, DeclaredShape, ImageEncoding, Shape, Signature, Strings, Tensor, TensorSpec,
};

/// The cost of looking up a byte of text, in processed numbers: a word takes as long as some dozen.
const COST_PER_TEXT_BYTE: usize = 4;

/// The pre-processing of one input.
pub(super) struct InputSteps {
    /// Its index among the model's inputs.
    model_index: usize,
    /// The dtype of the model's input.
    dtype: Option<DType>,
    conversion: InputConversion,
    scales: Vec<ScaleStep>,
}

/// How the values of a request become numbers.
enum InputConversion {
    /// The values are numbers.
    Numbers,
    Image(Box<ImageStep>),
    Tokens(Box<TokenStep>),
}

/// Reads the pre-processing steps of a signature, and rewrites its inputs to what clients see.
/// Returns the steps of each input in the new order.
pub(super) fn read_steps(
    tables: &mut [StepTable],
    signature: &mut Signature,
) -> Result<Vec<InputSteps>> {
    let model = signature.inputs.clone();
    let mut inputs: Vec<InputSteps> =
        model.iter().enumerate().map(|(index, spec)| InputSteps::none(index, spec)).collect();
    for table in &mut *tables {
        let index = position(table.text("input")?, &model, table.location())?;
        let (Some(input), Some(model_spec), Some(client_spec)) =
            (inputs.get_mut(index), model.get(index), signature.inputs.get_mut(index))
        else {
            return Err(table.error("the input was not found"));
        };
        let new_name = table.text("name")?;
        input.read(table, model_spec, client_spec)?;
        table.finish()?;
        signature.defaults.retain(|(alias, _)| *alias != model_spec.alias);
        signature.ran_with.retain(|(alias, _)| *alias != model_spec.alias);
        if let Some(name) = new_name {
            client_spec.alias = name;
        }
        check_names(&signature.inputs, table.location())?;
    }
    if inputs.iter().any(|input| matches!(input.conversion, InputConversion::Image(_))) {
        signature.takes_images = inputs.len() == 1;
        signature.images = ImageEncoding::Raw;
    }
    let mut pairs: Vec<(TensorSpec, InputSteps)> = signature.inputs.drain(..).zip(inputs).collect();
    pairs.sort_by(|(a, _), (b, _)| a.alias.cmp(&b.alias));
    let (specs, inputs) = pairs.into_iter().unzip();
    signature.inputs = specs;
    Ok(inputs)
}

impl InputSteps {
    /// An input without steps.
    fn none(model_index: usize, spec: &TensorSpec) -> Self {
        let conversion = InputConversion::Numbers;
        InputSteps { model_index, dtype: spec.dtype(), conversion, scales: Vec::new() }
    }

    pub(super) fn model_index(&self) -> usize {
        self.model_index
    }

    /// Reads one step, and rewrites the spec that clients see.
    fn read(
        &mut self,
        table: &mut StepTable,
        model_spec: &TensorSpec,
        client_spec: &mut TensorSpec,
    ) -> Result<()> {
        let is_first =
            matches!(self.conversion, InputConversion::Numbers) && self.scales.is_empty();
        match table.kind.as_str() {
            "scale" if matches!(self.conversion, InputConversion::Tokens(_)) => {
                return Err(table.error("token numbers cannot be scaled"));
            }
            "scale" => {
                self.scales.push(ScaleStep::read_for(table, model_spec)?);
                return Ok(());
            }
            kind @ ("image" | "tokens") if !is_first => {
                return Err(table.error(format_args!("{kind} must be the first step of its input")));
            }
            "image" => self.read_image(table, model_spec, client_spec)?,
            "tokens" => self.read_tokens(table, model_spec, client_spec)?,
            other => {
                return Err(table.error(format_args!(
                    "{other:?} is not a pre-processing step; these are image, scale, tokens"
                )));
            }
        }
        client_spec.dtype_number = DType::String.number();
        Ok(())
    }

    fn read_image(
        &mut self,
        table: &mut StepTable,
        model_spec: &TensorSpec,
        client_spec: &mut TensorSpec,
    ) -> Result<()> {
        let image = ImageStep::read(table, model_spec.shape.sizes().as_deref())?;
        check_real(model_spec, table.location(), "pixels are numbers")?;
        client_spec.shape = shape_before(model_spec, &image.dims(), table)?;
        self.conversion = InputConversion::Image(Box::new(image));
        Ok(())
    }

    fn read_tokens(
        &mut self,
        table: &mut StepTable,
        model_spec: &TensorSpec,
        client_spec: &mut TensorSpec,
    ) -> Result<()> {
        let tokens = TokenStep::read(table, model_spec.shape.sizes().as_deref())?;
        let (smallest, largest) = tokens.range();
        let fits = match model_spec.dtype() {
            Some(DType::Int32) => i32::try_from(smallest).is_ok() && i32::try_from(largest).is_ok(),
            Some(DType::Int64) => true,
            Some(
                DType::Float
                | DType::Double
                | DType::Half
                | DType::BFloat16
                | DType::Int8
                | DType::Int16
                | DType::UInt8
                | DType::UInt16
                | DType::UInt32
                | DType::UInt64
                | DType::Bool
                | DType::Complex64
                | DType::Complex128
                | DType::String,
            )
            | None => false,
        };
        if !fits {
            let (alias, dtype) = (&model_spec.alias, dtype_name(model_spec));
            return Err(table.error(format_args!(
                "{alias:?} is of type {dtype}, but words become int32 or int64 numbers up to \
                 {largest}"
            )));
        }
        client_spec.shape = shape_before(model_spec, &tokens.dims(), table)?;
        self.conversion = InputConversion::Tokens(Box::new(tokens));
        Ok(())
    }

    /// The estimated cost of [`InputSteps::apply`], in processed numbers.
    pub(super) fn cost(&self, tensor: &Tensor) -> usize {
        match (&self.conversion, tensor.strings()) {
            (InputConversion::Image(image), Some(files)) => {
                files.iter().map(|file| image.cost(file)).fold(0, usize::saturating_add)
            }
            (InputConversion::Tokens(_), Some(texts)) => {
                texts.byte_len().saturating_mul(COST_PER_TEXT_BYTE)
            }
            _ if self.scales.is_empty() => 0,
            _ => tensor.shape().elements().unwrap_or(0),
        }
    }

    /// Converts a tensor of a request, which clients call `alias`, to the model's input.
    pub(super) fn apply(
        &self,
        alias: &str,
        tensor: &Tensor,
        max_bytes: usize,
        between: Between<'_>,
    ) -> Result<Tensor> {
        let Some(dtype) = self.dtype else {
            return Ok(tensor.clone());
        };
        let mut floats = match &self.conversion {
            InputConversion::Numbers if self.scales.is_empty() => return Ok(tensor.clone()),
            InputConversion::Numbers => {
                FloatValues::of(tensor).ok_or_else(|| type_error(alias, tensor, "numbers"))?
            }
            InputConversion::Image(image) => {
                decode_images(image, alias, tensor, max_bytes, between)?
            }
            InputConversion::Tokens(tokens) => {
                return look_up_words(tokens, alias, tensor, dtype, max_bytes);
            }
        };
        for scale in &self.scales {
            scale.apply(&mut floats).map_err(|e| e.context(format_args!("input {alias:?}")))?;
        }
        floats.into_tensor(dtype)
    }
}

/// The shape that clients see of an input to which a step appends the dimensions `appended`.
fn shape_before(
    model_spec: &TensorSpec,
    appended: &[i64],
    table: &StepTable,
) -> Result<DeclaredShape> {
    let DeclaredShape::Dims(dims) = &model_spec.shape else {
        return Ok(model_spec.shape.clone());
    };
    let (rest, last) = dims.split_at(dims.len().saturating_sub(appended.len()));
    let mut sizes = last.iter().map(|(size, _)| *size).zip(appended);
    if last.len() == appended.len() && sizes.all(|(size, new)| size == -1 || size == *new) {
        return Ok(DeclaredShape::Dims(rest.to_vec()));
    }
    let texts: Vec<String> = appended.iter().map(ToString::to_string).collect();
    let (kind, texts) = (&table.kind, texts.join(", "));
    let (alias, shape) = (&model_spec.alias, &model_spec.shape);
    Err(table.error(format_args!(
        "the model's {alias:?} has the shape {shape}, but {kind} produces [..., {texts}] from each \
         string"
    )))
}

fn type_error(alias: &str, tensor: &Tensor, expected: &str) -> Error {
    let dtype = tensor.dtype();
    Error::invalid(format!("input {alias:?} is of type {dtype}; expected {expected}"))
}

/// The shape of a pre-processed input: that of `tensor` with the dimensions `appended`. Refuses one
/// of more than `max_bytes`.
fn shape_after(
    alias: &str,
    tensor: &Tensor,
    appended: &[i64],
    element_size: usize,
    max_bytes: usize,
) -> Result<Shape> {
    let mut dims = tensor.shape().dims().to_vec();
    dims.extend_from_slice(appended);
    let shape = Shape::new(&dims).map_err(|e| e.context(format_args!("input {alias:?}")))?;
    let bytes = shape.elements()?.saturating_mul(element_size);
    if bytes > max_bytes {
        return Err(Error::invalid(format!(
            "input {alias:?} would become {bytes} bytes of shape {shape:?}; at most {max_bytes} are \
             allowed: send fewer elements per request"
        )));
    }
    Ok(shape)
}

/// Refuses files that have too many pixels together: a few bytes can hold very many.
fn check_pixels(image: &ImageStep, alias: &str, files: &Strings) -> Result<()> {
    let pixels = files.iter().map(|file| image.pixels_to_decode(file));
    let (pixels, most) = (pixels.fold(0, usize::saturating_add), image.max_request_pixels());
    if pixels > most {
        return Err(Error::invalid(format!(
            "input {alias:?}: the images of the request have {pixels} pixels together; at most \
             {most} are allowed, 16 times max_pixels of the step: send fewer images per request"
        )));
    }
    Ok(())
}

fn decode_images(
    image: &ImageStep,
    alias: &str,
    tensor: &Tensor,
    max_bytes: usize,
    between: Between<'_>,
) -> Result<FloatValues> {
    let files = tensor.strings();
    let files = files.ok_or_else(|| type_error(alias, tensor, "JPEG or PNG files as strings"))?;
    let shape = shape_after(alias, tensor, &image.dims(), size_of::<f32>(), max_bytes)?;
    check_pixels(image, alias, files)?;
    let mut values = reserved_vec::<f32>(files.len().saturating_mul(image.size()))?;
    for (index, file) in files.iter().enumerate() {
        between()?;
        let _scratch = budget::scratch(image.scratch_bytes(file))?;
        image.append(file, &mut values).map_err(|error| match error {
            ImageError::Invalid(reason) => {
                Error::invalid(format!("input {alias:?}, element {index}: {reason}"))
            }
            ImageError::Refused(error) => error,
        })?;
    }
    Ok(FloatValues { shape, values })
}

fn look_up_words(
    tokens: &TokenStep,
    alias: &str,
    tensor: &Tensor,
    dtype: DType,
    max_bytes: usize,
) -> Result<Tensor> {
    let texts = tensor.strings().ok_or_else(|| type_error(alias, tensor, "texts"))?;
    let shape = shape_after(alias, tensor, &tokens.dims(), size_of::<i64>(), max_bytes)?;
    let mut numbers = reserved_vec::<i64>(shape.elements()?)?;
    tokens.append(texts, &mut numbers);
    if dtype == DType::Int64 {
        return Tensor::from_vec(shape, numbers);
    }
    let mut narrow = reserved_vec::<i32>(numbers.len())?;
    // `read_tokens` has checked that they fit.
    numbers.iter().for_each(|number| narrow.push(i32::try_from(*number).unwrap_or(0)));
    Tensor::from_vec(shape, narrow)
}
