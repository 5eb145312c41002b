//! Samples of requests: one row each, from harmless values to those that a client sends by mistake or
//! to do harm.

use std::sync::Arc;

use half::{bf16, f16};

use super::synthetic::{black_image, image_of, synthetic_dims};
use tensorserve_tensor::{
    Buffer, DType, DeclaredShape, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// The largest input of a sample in bytes.
const LARGEST: usize = 4 << 20;

/// The size of open dimensions behind the 0-th in the second half of the samples.
const LONG: usize = 5;

/// Widths and heights of images with irregular colours, of which all of the same inputs have one.
const IMAGES: [(u16, u16); 4] = [(24, 16), (16, 16), (13, 29), (40, 32)];

/// The largest magnitude of irregular real numbers.
pub const LARGEST_IRREGULAR: f32 = 4.0;

/// Words in a long text.
const WORDS: usize = 300;

/// A sample of a request.
#[derive(Clone, Debug)]
pub struct SyntheticSample {
    /// Its values, in words.
    pub name: &'static str,
    /// One row of each input.
    pub inputs: Vec<Tensor>,
    /// Results do not depend on the order of additions by more than rounding.
    pub is_tame: bool,
}

/// What the inputs of a sample are filled with.
#[derive(Clone, Copy)]
struct Filling {
    name: &'static str,
    number: fn(usize) -> f64,
    text: fn() -> String,
    is_tame: bool,
}

const FILLINGS: [Filling; 10] = [
    Filling { name: "zeros and empty texts", number: |_| 0.0, text: String::new, is_tame: true },
    Filling { name: "ones and a word", number: |_| 1.0, text: || "a".to_owned(), is_tame: true },
    Filling {
        name: "small numbers",
        number: small,
        text: || "two words".to_owned(),
        is_tame: true,
    },
    Filling {
        name: "other small numbers",
        number: |at| small(at + 7919),
        text: || "3".to_owned(),
        is_tame: true,
    },
    Filling { name: "numbers up to 9", number: digit, text: long_text, is_tame: true },
    Filling {
        name: "minus ones and a long word",
        number: |_| -1.0,
        text: || "x".repeat(20_000),
        is_tame: true,
    },
    Filling {
        name: "the largest numbers",
        number: |_| f64::MAX,
        text: || "\u{10ffff} \u{0}\n".to_owned(),
        is_tame: false,
    },
    Filling {
        name: "the lowest numbers",
        number: |_| f64::MIN,
        text: || " ".to_owned(),
        is_tame: false,
    },
    Filling { name: "NaN", number: |_| f64::NAN, text: || "nan".to_owned(), is_tame: false },
    Filling {
        name: "infinities",
        number: |_| f64::INFINITY,
        text: || "[UNK]".to_owned(),
        is_tame: false,
    },
];

/// Samples of requests to `signature`, without those whose inputs would be large. Open dimensions
/// behind the 0-th have the size 1 in one half, and another one in the other half.
#[must_use]
pub fn synthetic_samples(signature: &Signature) -> Vec<SyntheticSample> {
    let is_open = |spec: &TensorSpec| match &spec.shape {
        DeclaredShape::Dims(dims) => dims.iter().skip(1).any(|(size, _)| *size < 0),
        DeclaredShape::UnknownRank | DeclaredShape::Missing => false,
    };
    let lengths: &[usize] = match signature.inputs.iter().any(is_open) {
        true => &[1, LONG],
        false => &[1],
    };
    let all = lengths.iter().flat_map(|&open| FILLINGS.iter().map(move |it| (open, it)));
    let sample = |(open, filling): (usize, &Filling)| {
        let inputs = signature.inputs.iter().map(|spec| input(spec, signature, open, filling));
        let Filling { name, is_tame, .. } = *filling;
        Some(SyntheticSample { name, inputs: inputs.collect::<Option<_>>()?, is_tame })
    };
    all.filter_map(sample).collect()
}

/// Inputs of `rows` rows with irregular values, which differ from row to row and from `seed` to `seed`: numbers from -4
/// to 4, integers from 0 to 9, short words, small images of noise. `None` if they would be large.
#[must_use]
pub fn irregular_inputs(signature: &Signature, rows: usize, seed: usize) -> Option<Vec<Tensor>> {
    let open = if seed.is_multiple_of(2) { 1 } else { LONG };
    sized_inputs(signature, (rows, open), seed)
}

/// The same, with open dimensions of this size.
#[must_use]
pub fn sized_inputs(
    signature: &Signature,
    (rows, open): (usize, usize),
    seed: usize,
) -> Option<Vec<Tensor>> {
    let real = |_, at| small(at) * f64::from(LARGEST_IRREGULAR);
    varied_inputs(signature, (rows, open), seed, &real)
}

/// The same as [`irregular_inputs`], with floats of magnitudes up to `largest`: of both signs, or not below 0 if `seed` is
/// odd, as those of images are.
#[must_use]
pub fn large_inputs(
    signature: &Signature,
    rows: usize,
    seed: usize,
    largest: f32,
) -> Option<Vec<Tensor>> {
    let has_signs = seed.is_multiple_of(2);
    let open = if has_signs { 1 } else { LONG };
    let real = |dtype: DType, at: usize| {
        let largest = if dtype == DType::Float { largest } else { LARGEST_IRREGULAR };
        let value = small(at) * f64::from(largest);
        if has_signs { value } else { value.abs() }
    };
    varied_inputs(signature, (rows, open), seed, &real)
}

/// Inputs with these real numbers by their place, small integers, short words and images of noise.
fn varied_inputs(
    signature: &Signature,
    (rows, open): (usize, usize),
    seed: usize,
    real: &dyn Fn(DType, usize) -> f64,
) -> Option<Vec<Tensor>> {
    let start = seed.checked_mul(1009)?;
    let input = |(number, spec): (usize, &TensorSpec)| {
        let (dtype, start) = (spec.dtype()?, start + number * 131);
        let real = |at: usize| real(dtype, start + at);
        let integer = |at: usize| digit(start + at);
        let number: &dyn Fn(usize) -> f64 = if dtype.is_float() { &real } else { &integer };
        let size = IMAGES.get(seed % IMAGES.len()).copied()?;
        let text = |row: usize| {
            let colour = |at: usize| noise(start + row * 401, at);
            let image = image_of(signature, size, &colour);
            image.unwrap_or_else(|| format!("word{}", start % 50).into_bytes())
        };
        filled(spec, (rows, open), number, &text)
    };
    signature.inputs.iter().enumerate().map(input).collect()
}

fn input(
    spec: &TensorSpec,
    signature: &Signature,
    open: usize,
    filling: &Filling,
) -> Option<Tensor> {
    let text = black_image(signature).unwrap_or_else(|| (filling.text)().into_bytes());
    filled(spec, (1, open), &filling.number, &|_| text.clone())
}

/// An input of these rows and sizes of open dimensions, with numbers or texts by their place.
fn filled(
    spec: &TensorSpec,
    (rows, open): (usize, usize),
    number: &dyn Fn(usize) -> f64,
    text: &dyn Fn(usize) -> Vec<u8>,
) -> Option<Tensor> {
    let shape = Shape::new(&synthetic_dims(spec, rows, open)?).ok()?;
    let (dtype, count) = (spec.dtype()?, shape.elements().ok()?);
    if dtype == DType::String {
        let first = text(0);
        if count.checked_mul(first.len().max(1))? > LARGEST {
            return None;
        }
        let mut strings = StringsBuilder::default();
        let texts = std::iter::once(first).chain((1..count).map(text));
        texts.take(count).for_each(|text| strings.push(&text));
        return Tensor::from_strings(shape, strings).ok();
    }
    if count.checked_mul(dtype.size()?)? > LARGEST {
        return None;
    }
    let mut bytes = aligned_vec::<u8>(count * dtype.size()?);
    (0..count).for_each(|at| {
        push(dtype, number(at), &mut |part| {
            part.iter().for_each(|&byte| bytes.push(byte));
        })
    });
    Tensor::numeric(dtype, shape, Buffer::new(Arc::new(bytes))).ok()
}

/// Appends the bytes of `number`, or of what is nearest to it in this type.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn push(dtype: DType, number: f64, append: &mut impl FnMut(&[u8])) {
    let finite = number.is_finite();
    match dtype {
        DType::Float => append(
            &match finite {
                true => (number as f32).clamp(f32::MIN, f32::MAX),
                false => number as f32,
            }
            .to_ne_bytes(),
        ),
        DType::Double => append(&number.to_ne_bytes()),
        DType::Half => append(&f16::from_f64(number).to_ne_bytes()),
        DType::BFloat16 => append(&bf16::from_f64(number).to_ne_bytes()),
        DType::Int8 => append(&(number as i8).to_ne_bytes()),
        DType::Int16 => append(&(number as i16).to_ne_bytes()),
        DType::Int32 => append(&(number as i32).to_ne_bytes()),
        DType::Int64 => append(&(number as i64).to_ne_bytes()),
        DType::UInt8 => append(&(number as u8).to_ne_bytes()),
        DType::UInt16 => append(&(number as u16).to_ne_bytes()),
        DType::UInt32 => append(&(number as u32).to_ne_bytes()),
        DType::UInt64 => append(&(number as u64).to_ne_bytes()),
        DType::Bool => append(&[u8::from(number > 0.0)]),
        DType::Complex64 => {
            append(&(number as f32).to_ne_bytes());
            append(&0f32.to_ne_bytes());
        }
        DType::Complex128 => {
            append(&number.to_ne_bytes());
            append(&0f64.to_ne_bytes());
        }
        DType::String => {}
    }
}

/// The colour at a place of an image, from 0 to 255, with an irregular sequence.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // From 0 to 255.
fn noise(image: usize, at: usize) -> u8 {
    (small(image * 7919 + at) * 127.5 + 127.5) as u8
}

/// A number from -1 to 1 with an irregular sequence.
#[allow(clippy::cast_precision_loss)]
fn small(at: usize) -> f64 {
    ((at as f64 + 1.0) * 12.9898).sin()
}

/// A number from 0 to 9.
#[allow(clippy::cast_precision_loss)]
fn digit(at: usize) -> f64 {
    (at * 7 % 10) as f64
}

fn long_text() -> String {
    let words: Vec<String> = (0..WORDS).map(|number| format!("word{}", number % 50)).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_reach_the_ends_of_each_type() {
        let specs = vec![
            TensorSpec::new("float", DType::Float, &[-1, 3]),
            TensorSpec::new("half", DType::Half, &[-1]),
            TensorSpec::new("int", DType::Int64, &[-1]),
            TensorSpec::new("text", DType::String, &[-1, -1]),
        ];
        let samples = synthetic_samples(&Signature::only(specs, Vec::new()));
        assert_eq!(samples.len(), 2 * FILLINGS.len());
        let largest = |sample: &SyntheticSample| {
            let floats = sample.inputs[0].values::<f32>().expect("floats");
            assert_eq!(sample.inputs[0].shape().dims(), [1, 3]);
            floats.iter().copied().fold(f32::NAN, f32::max)
        };
        assert_eq!(samples.iter().map(largest).filter(|it| *it == f32::MAX).count(), 2);
        assert!(samples.iter().any(|it| largest(it).is_nan() && !it.is_tame));
        let ints = |sample: &SyntheticSample| sample.inputs[2].values::<i64>().expect("ints")[0];
        for want in [0, 1, -1, i64::MAX, i64::MIN] {
            assert!(samples.iter().any(|it| ints(it) == want), "{want}");
        }
        let texts = |sample: &SyntheticSample| {
            let strings = sample.inputs[3].strings().expect("texts");
            (strings.len(), strings.iter().next().expect("one").len())
        };
        assert_eq!(texts(&samples[0]), (1, 0));
        assert!(samples.iter().any(|it| texts(it) == (LONG, 20_000)));
    }

    #[test]
    fn irregular_images_differ_from_row_to_row() {
        let specs = vec![TensorSpec::new("image", DType::String, &[-1])];
        let mut signature = Signature::only(specs, Vec::new());
        signature.takes_images = true;
        let mut seen = Vec::new();
        for seed in 0..4 {
            let inputs = irregular_inputs(&signature, 3, seed).expect("inputs");
            let images = inputs[0].strings().expect("texts");
            let images: Vec<Vec<u8>> = images.iter().map(<[u8]>::to_vec).collect();
            // Width and height: models may join images that have the same.
            assert!(images.iter().all(|image| image[16..24] == images[0][16..24]));
            seen.extend(images);
        }
        assert!(seen.iter().all(|image| image.starts_with(b"\x89PNG")));
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 12);
    }

    #[test]
    fn large_samples_are_left_out() {
        let spec = TensorSpec::new("x", DType::Float, &[-1, 1 << 30]);
        assert!(synthetic_samples(&Signature::only(vec![spec], Vec::new())).is_empty());
    }
}
