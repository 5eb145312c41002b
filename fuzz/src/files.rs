//! Archives, images, and the files that configure a server.

use std::fs;
use std::panic;
use std::path::Path;
use std::sync::LazyLock;

use tensorserve::config::environment::Environment;
use tensorserve::config::{Config, Settings, simple};
use tensorserve_archive::{ExtractionLimits, unpack};
use tensorserve_auth::file as user_file;
use tensorserve_mlflow::MlflowModel;
use tensorserve_preprocessing::{FILE_NAME, ProcessingSteps, load_steps};
use tensorserve_tensor::{DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec};

use super::echo::constant;
use super::memory::unwatched;
use super::target::{selected, split, with_file};

/// The most bytes that an archive may unpack to.
const MAX_UNPACKED_BYTES: u64 = 1 << 20;

/// The most bytes of one input that steps make.
const MAX_INPUT_BYTES: usize = 1 << 22;

/// An archive, of which nothing may come to lie outside of the folder.
pub fn archive(file: &[u8]) {
    let limits =
        ExtractionLimits { bytes: MAX_UNPACKED_BYTES, entries: 100, ratio: 200, free: 1 << 16 };
    with_file("model.tar.gz", file, |path| {
        let around = path.with_file_name("around");
        let into = around.join("into");
        let _ = unpack(path, &into, &limits);
        assert!(size_of(&into) <= MAX_UNPACKED_BYTES);
        let beside = fs::read_dir(&around).into_iter().flatten().flatten();
        assert!(beside.into_iter().all(|entry| entry.file_name() == "into"));
        let _ = fs::remove_dir_all(&around);
    });
}

/// The file `MLmodel` of a model folder of MLflow.
pub fn mlmodel(file: &[u8]) {
    if let Ok(model) = MlflowModel::parse(file) {
        let again = MlflowModel::parse(file).expect("valid before");
        assert_eq!(model.flavor, again.flavor);
        assert!(!model.predict_fn.is_empty());
    }
}

/// The bytes of all files below `folder`.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

/// The steps of a file `tensorserve.toml` with this text, for a signature.
fn read_steps(text: &[u8], signature: &Signature) -> Option<ProcessingSteps> {
    with_file(FILE_NAME, text, |path| {
        let folder = path.parent().unwrap_or(path);
        let steps = load_steps(folder, std::slice::from_ref(signature), MAX_INPUT_BYTES);
        let _ = fs::remove_file(path);
        steps.ok()?.into_iter().next().flatten()
    })
}

/// The steps that decode images.
static IMAGE_STEPS: LazyLock<Vec<ProcessingSteps>> = LazyLock::new(|| {
    const STEPS: [&str; 3] = [
        "height = 8\nwidth = 8",
        "channels = \"grey\"\nresize = \"bilinear_legacy\"\nheight = 5\nwidth = 9",
        "channels = \"bgr\"\nlayout = \"nchw\"\nresize = \"nearest\"\nheight = 7\nwidth = 3",
    ];
    let any = [-1, -1, -1, -1];
    let signature = Signature::only(
        vec![TensorSpec::new("x", DType::Float, &any)],
        vec![TensorSpec::new("y", DType::Float, &any)],
    );
    let read = |step| {
        let text = format!("[[preprocess]]\nstep = \"image\"\nmax_pixels = 100_000\n{step}\n");
        read_steps(text.as_bytes(), &signature).expect("valid steps")
    };
    STEPS.into_iter().map(read).collect()
});

/// Lets panics of the JPEG decoder pass, which are caught: libFuzzer ends at any other one.
static JPEG_PANICS: LazyLock<()> = LazyLock::new(|| {
    let other = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.location().is_some_and(|place| place.file().contains("zune-jpeg")) {
            other(info);
        }
    }));
});

/// Image files. The first byte selects the step that decodes them.
pub fn images(input: &[u8]) {
    LazyLock::force(&JPEG_PANICS);
    let Some((first, file)) = selected(input) else { return };
    let steps = unwatched(|| &IMAGE_STEPS[first % IMAGE_STEPS.len()]);
    let tensor = unwatched(|| {
        let mut strings = StringsBuilder::default();
        strings.push(file);
        Tensor::from_strings(Shape::vector(1), strings).expect("a vector")
    });
    let _ = steps.preprocess_cost(std::slice::from_ref(&tensor));
    if let Ok(images) = steps.preprocess(&[tensor]) {
        assert!(images.iter().all(|image| image.byte_len() <= MAX_INPUT_BYTES));
    }
}

/// The steps in a file, which are read.
pub fn step_file(input: &[u8]) {
    if let Some((signature, text, _)) = signature_and_steps(input) {
        let _ = read_steps(text, &signature);
    }
}

/// A signature that the first byte selects, the text of a file of steps, and the bytes after a line of dashes.
fn signature_and_steps(input: &[u8]) -> Option<(Signature, &[u8], &[u8])> {
    let (first, rest) = selected(input)?;
    let (text, content) = split(rest, b"\n----\n");
    let dtype = [DType::Float, DType::String, DType::Int64, DType::Double][first % 4];
    let shape: &[i64] = [&[-1][..], &[-1, 4], &[-1, 2, 2, 3], &[-1, -1]][first / 4 % 4];
    let signature = Signature::only(
        vec![TensorSpec::new("x", dtype, shape)],
        vec![TensorSpec::new("y", dtype, shape)],
    );
    Some((signature, text, content))
}

/// Steps, which run on zeros, texts and the bytes after a line of dashes.
pub fn steps(input: &[u8]) {
    let Some((signature, text, content)) = signature_and_steps(input) else { return };
    let Some(steps) = unwatched(|| read_steps(text, &signature)) else { return };
    let Some((inputs, output)) = unwatched(|| values_for(&steps, &signature, content)) else {
        return;
    };
    let _ = steps.preprocess(&inputs);
    let _ = steps.postprocess_cost(std::slice::from_ref(&output));
    let _ = steps.postprocess(vec![output]);
}

/// The inputs that a request may bring, and an output of the model.
fn values_for(
    steps: &ProcessingSteps,
    signature: &Signature,
    content: &[u8],
) -> Option<(Vec<Tensor>, Tensor)> {
    let mut inputs = Vec::new();
    for spec in &steps.client_signature().inputs {
        let sizes = spec.shape.sizes().unwrap_or_default();
        let dims: Vec<i64> = sizes.iter().map(|size| if *size < 0 { 2 } else { *size }).collect();
        let shape = Shape::new(&dims).ok()?;
        if shape.elements().is_ok_and(|count| count > 1 << 16) {
            return None;
        }
        let mut tensor = constant(spec.dtype().unwrap_or(DType::Float), shape).expect("zeros");
        if let Some(strings) = tensor.strings() {
            let mut texts = StringsBuilder::default();
            strings.iter().for_each(|_| texts.push(content));
            tensor = Tensor::from_strings(tensor.shape().clone(), texts).expect("texts");
        }
        inputs.push(tensor);
    }
    let declared = signature.outputs.first()?;
    let sizes = declared.shape.sizes()?;
    let sizes: Vec<i64> = sizes.iter().map(|size| if *size < 0 { 2 } else { *size }).collect();
    let output = constant(declared.dtype()?, Shape::new(&sizes).expect("small")).expect("zeros");
    Some((inputs, output))
}

/// The configuration file of the server.
pub fn settings(text: &[u8]) {
    with_file("server.toml", text, |path| {
        let mut settings = Settings { config: Some(path.to_owned()), ..Settings::default() };
        // Named, so that they are not searched for: that reads a hundred directories.
        settings.server.libtensorflow = Some(path.to_owned());
        settings.server.libonnxruntime = Some(path.to_owned());
        settings.server.liblitert = Some(path.to_owned());
        settings.server.libopenvino = Some(path.to_owned());
        let _ = Config::with_mistakes(settings.or_file(), &Environment::default());
    });
}

/// Simple TensorFlow Serving's list of models, and its session settings.
pub fn model_list(text: &[u8]) {
    with_file("models.json", text, |path| {
        if let Ok(list) = simple::models::read(path) {
            drop(list);
        }
    });
    if let Ok(text) = std::str::from_utf8(text) {
        let _ = simple::session(text);
    }
}

/// The file of users and keys.
pub fn users(text: &[u8]) {
    with_file("users.toml", text, |path| drop(user_file::list(path)));
}
