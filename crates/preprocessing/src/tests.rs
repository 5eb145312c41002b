//! Steps against the results of TensorFlow and NumPy (`tests/cases/steps.json`), against malicious
//! files, and the reading of `tensorserve.toml`.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use tensorserve_tensor::budget::MemoryBudget;
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{
    AlignedVec, DType, DeclaredShape, Element, ImageEncoding, RowDependence, Shape, StringsBuilder,
    TensorSpec,
};

const CASES: &str = include_str!("../../../tests/cases/steps.json");
const FOUND_BY_FUZZING: &[u8] =
    include_bytes!("../../../fuzz/corpus/images/19d1e2b6c633b2863bb287e944d4e3c28c817b8c");

fn cases(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(CASES).expect("JSON");
    let cases = all[name].as_array().expect("a list").clone();
    assert!(!cases.is_empty());
    cases
}

fn numbers(value: &Value) -> Vec<f32> {
    let list = value.as_array().expect("a list");
    list.iter().map(|number| number.as_f64().expect("a number") as f32).collect()
}

fn dims(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|n| n.as_i64().expect("a number")).collect()
}

fn tensor<T: Element>(dims: &[i64], values: &[T]) -> Tensor {
    let shape = Shape::new(dims).expect("a shape");
    Tensor::from_vec(shape, AlignedVec::from_slice(0, values)).expect("a tensor")
}

fn strings<T: AsRef<[u8]>>(values: &[T]) -> Tensor {
    let mut builder = StringsBuilder::default();
    values.iter().for_each(|value| builder.push(value.as_ref()));
    Tensor::from_strings(Shape::vector(values.len()), builder).expect("a tensor")
}

fn spec(alias: &str, dtype: DType, dims: &[i64]) -> TensorSpec {
    TensorSpec {
        alias: alias.to_owned(),
        tensor_name: format!("{alias}:0"),
        dtype_number: dtype.number(),
        shape: DeclaredShape::Dims(dims.iter().map(|size| (*size, String::new())).collect()),
        sparse: None,
        takes_missing: false,
        number_texts: None,
        quantization: None,
        column_names: Vec::new(),
    }
}

fn signature(inputs: &[TensorSpec], outputs: &[TensorSpec]) -> Signature {
    Signature {
        name: DEFAULT_SIGNATURE.to_owned(),
        method_name: "tensorflow/serving/predict".to_owned(),
        inputs: inputs.to_vec(),
        outputs: outputs.to_vec(),
        defaults: Vec::new(),
        images: ImageEncoding::Raw,
        takes_images: false,
        read_only: true,
        repeatable: true,
        exact_shapes: false,
        by_columns: None,
        unused_columns: Vec::new(),
        categories: Vec::new(),
        ignores_unknown: false,
        ran_with: Vec::new(),
        is_bounded: true,
        rows: RowDependence::NoGraph,
    }
}

/// A model's directory with the directory of version 7 and these files in it.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let model = tempfile::tempdir().expect("a directory");
    fs::create_dir(model.path().join("7")).expect("a directory");
    for (name, text) in files {
        fs::write(model.path().join(name), text).expect("written");
    }
    model
}

const MAX_BYTES: usize = 1 << 20;

fn load(model: &TempDir, signature: Signature) -> Result<Option<ProcessingSteps>> {
    let all = load_steps(&model.path().join("7"), &[signature], MAX_BYTES)?;
    Ok(all.into_iter().next().expect("one for each signature"))
}

fn steps(toml: &str, signature: Signature) -> ProcessingSteps {
    let model = folder(&[(FILE_NAME, toml)]);
    load(&model, signature).expect(toml).expect("steps")
}

/// The values of one file after a step `image` with these keys.
fn picture(values: &str, file: &[u8]) -> Result<Vec<f32>> {
    pictures(values, &[file])
}

/// The values of several files.
fn pictures(values: &str, files: &[&[u8]]) -> Result<Vec<f32>> {
    let model = signature(&[spec("x", DType::Float, &[-1, -1])], &[spec("y", DType::Float, &[-1])]);
    let toml = format!("[[preprocess]]\nstep = \"image\"\nflatten = true\n{values}\n");
    let preprocessed = steps(&toml, model).preprocess(&[strings(files)])?;
    Ok(preprocessed[0].values::<f32>().expect("floats").to_vec())
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn pictures_are_resized_as_tensorflow_does() {
    let ways = [
        ("bilinear", resize::Interpolation::Bilinear),
        ("bilinear_legacy", resize::Interpolation::BilinearLegacy),
        ("nearest", resize::Interpolation::Nearest),
    ];
    for case in cases("resize") {
        let (from, to) = (dims(&case["shape"]), dims(&case["size"]));
        let [height, width, channels] = from[..] else { panic!("three") };
        let bytes = numbers(&case["bytes"]).iter().map(|byte| *byte as u8).collect();
        let [height, width, channels] = [height, width, channels].map(|n| n as usize);
        let pixels = resize::Pixels { height, width, channels, bytes };
        for (name, how) in ways {
            let got = resize::resize(&pixels, to[0] as usize, to[1] as usize, how);
            let got = got.expect("no deadline");
            let difference = largest_difference(&got, &numbers(&case[name]));
            assert!(difference < 1e-4, "{name} from {from:?} to {to:?}: {difference}");
        }
    }
}

/// The values of a file in its own size, and those of TensorFlow.
fn decoded(case: &Value, channels: &str) -> (Vec<f32>, Vec<f32>) {
    let file = STANDARD.decode(case["file"].as_str().expect("text")).expect("base64");
    let size = dims(&case["shape"]);
    let values = format!("height = {}\nwidth = {}\nchannels = \"{channels}\"", size[0], size[1]);
    (picture(&values, &file).expect("an image"), numbers(&case[channels]))
}

#[test]
fn pngs_are_what_they_are() {
    for case in cases("png") {
        let name = case["name"].as_str().expect("a name");
        let (got, want) = decoded(&case, "rgb");
        // TensorFlow uses the upper eight of sixteen bits.
        let most = if name == "sixteen bits" { 1.0 } else { 0.0 };
        assert!(largest_difference(&got, &want) <= most, "{name}: {got:?}, not {want:?}");
        // Colors become grey with other weights, rounded differently.
        let (got, want) = decoded(&case, "grey");
        let has_colours = ["rgb", "rgba", "palette"].contains(&name);
        let most = if has_colours { 40.0 } else { most };
        assert!(largest_difference(&got, &want) <= most, "{name}: {got:?}, not {want:?}");
    }
}

#[test]
fn jpegs_are_nearly_what_tensorflow_makes_of_them() {
    for case in cases("jpeg") {
        let name = case["name"].as_str().expect("a name");
        for channels in ["rgb", "grey"] {
            let (got, want) = decoded(&case, channels);
            let difference = largest_difference(&got, &want);
            // The inverse cosine transform, the upsampling of chroma and the conversion from Y'CbCr
            // round differently.
            assert!(difference <= 6.0, "{name}, {channels}: {difference}");
        }
    }
}

#[test]
fn channels_and_layouts() {
    let case = cases("png").into_iter().find(|case| case["name"] == "rgb").expect("one");
    let file = STANDARD.decode(case["file"].as_str().expect("text")).expect("base64");
    let rgb = numbers(&case["rgb"]);
    let size = "height = 5\nwidth = 7\n";
    let bgr = picture(&format!("{size}channels = \"bgr\""), &file).expect("an image");
    assert_eq!(&bgr[..3], [rgb[2], rgb[1], rgb[0]]);
    let planar = picture(&format!("{size}layout = \"nchw\""), &file).expect("an image");
    assert_eq!((planar[0], planar[1], planar[35], planar[70]), (rgb[0], rgb[3], rgb[1], rgb[2]));
}

#[test]
fn numbers_are_scaled_as_numpy_does() {
    for case in cases("scale") {
        let shape = dims(&case["shape"]);
        let open: Vec<i64> = std::iter::once(-1).chain(shape[1..].iter().copied()).collect();
        let model = signature(&[spec("x", DType::Float, &open)], &[spec("y", DType::Float, &[-1])]);
        let text = case["text"].as_str().expect("text");
        let steps = steps(&format!("[[preprocess]]\nstep = \"scale\"\n{text}\n"), model);
        let values = tensor(&shape, &numbers(&case["values"]));
        let scaled = steps.preprocess(&[values]).expect(text);
        assert_eq!(scaled[0].values::<f32>().expect("floats"), numbers(&case["scaled"]), "{text}");
    }
}

#[test]
fn the_largest_are_those_of_tensorflow() {
    for case in cases("top_k") {
        let shape = dims(&case["shape"]);
        let model = signature(
            &[spec("x", DType::Float, &[-1])],
            &[spec("scores", DType::Float, &vec![-1; shape.len()])],
        );
        let toml =
            format!("[[postprocess]]\nstep = \"top_k\"\nk = {}\nindices = \"best\"", case["k"]);
        let steps = steps(&toml, model);
        let outputs =
            steps.postprocess(vec![tensor(&shape, &numbers(&case["values"]))]).expect("some");
        // By name: best, scores.
        assert_eq!(outputs[1].values::<f32>().expect("floats"), numbers(&case["top"]));
        let want: Vec<i32> = numbers(&case["indices"]).iter().map(|index| *index as i32).collect();
        assert_eq!(outputs[0].values::<i32>().expect("indices"), want);
    }
}

#[test]
fn clients_see_what_the_steps_make_of_a_signature() {
    let model = signature(
        &[spec("a_mask", DType::Float, &[-1]), spec("pixels", DType::UInt8, &[-1, 224, 224, 3])],
        &[spec("embedding", DType::Float, &[-1, 8]), spec("scores", DType::Float, &[-1, 3])],
    );
    let files = [
        (
            FILE_NAME,
            "[[preprocess]]\nstep = \"image\"\ninput = \"pixels\"\nname = \"0_image\"\n\
             [[postprocess]]\nstep = \"top_k\"\noutput = \"scores\"\nk = 2\nindices = \"names\"\n\
             [[postprocess]]\nstep = \"labels\"\noutput = \"names\"\nfile = \"kinds/labels.txt\"\n",
        ),
        ("labels.txt", "cat\r\ndog\nfish\n"),
    ];
    let folder = folder(&files[..1]);
    fs::create_dir(folder.path().join("kinds")).expect("a directory");
    fs::write(folder.path().join("kinds/labels.txt"), files[1].1).expect("written");
    let steps = load(&folder, model).expect("valid").expect("steps");
    let seen = |specs: &[TensorSpec]| -> Vec<(String, Option<DType>, Option<Vec<i64>>)> {
        specs.iter().map(|s| (s.alias.clone(), s.dtype(), s.shape.sizes())).collect()
    };
    let some =
        |alias: &str, dtype, dims: &[i64]| (alias.to_owned(), Some(dtype), Some(dims.to_vec()));
    let signature = steps.client_signature();
    assert_eq!(
        seen(&signature.inputs),
        [some("0_image", DType::String, &[-1]), some("a_mask", DType::Float, &[-1])]
    );
    assert_eq!(
        seen(&signature.outputs),
        [
            some("embedding", DType::Float, &[-1, 8]),
            some("names", DType::String, &[-1, 2]),
            some("scores", DType::Float, &[-1, 2]),
        ]
    );
    // The model's order of inputs differs from the clients' order.
    let png = STANDARD.decode(cases("png")[0]["file"].as_str().expect("text")).expect("base64");
    let preprocessed =
        steps.preprocess(&[strings(&[&png]), tensor(&[1], &[1.0f32])]).expect("an image");
    assert_eq!(preprocessed[0].values::<f32>(), Some(&[1.0][..]));
    assert_eq!(
        (preprocessed[1].dtype(), preprocessed[1].shape().dims()),
        (DType::UInt8, &[1, 224, 224, 3][..])
    );
    let scores = tensor(&[1, 3], &[0.1f32, 0.2, 0.7]);
    let outputs = steps.postprocess(vec![tensor(&[1, 8], &[0.0f32; 8]), scores]).expect("outputs");
    let names: Vec<&[u8]> = outputs[1].strings().expect("names").iter().collect();
    assert_eq!(names, [&b"fish"[..], b"dog"]);
    assert_eq!(outputs[2].values::<f32>(), Some(&[0.7, 0.2][..]));
}

#[test]
fn a_versions_own_file_counts_more_than_its_models() {
    let model = folder(&[(FILE_NAME, "[[preprocess]]\nstep = \"scale\"\nscale = 2\n")]);
    let half = || signature(&[spec("x", DType::Float, &[-1])], &[spec("y", DType::Float, &[-1])]);
    let scaled = |steps: Option<ProcessingSteps>| {
        let preprocessed =
            steps.expect("steps").preprocess(&[tensor(&[1], &[3.0f32])]).expect("scaled");
        preprocessed[0].values::<f32>().expect("floats")[0]
    };
    assert_eq!(scaled(load(&model, half()).expect("valid")), 6.0);
    let own = model.path().join("7").join(FILE_NAME);
    fs::write(&own, "[[preprocess]]\nstep = \"scale\"\nscale = 5\n").expect("written");
    assert_eq!(scaled(load(&model, half()).expect("valid")), 15.0);
    // An empty file of the version overrides its model's.
    fs::write(&own, "# nothing\n").expect("written");
    assert!(load(&model, half()).expect("valid").is_none());
    // The file above a directory that is not a version belongs to another model.
    let other = model.path().join("other");
    fs::create_dir(&other).expect("a directory");
    assert!(load_steps(&other, &[half()], MAX_BYTES).expect("none")[0].is_none());
}

#[test]
fn what_cannot_be_says_where_and_why() {
    let image = || {
        signature(
            &[spec("x", DType::Float, &[-1, 28, 28, 1])],
            &[spec("p", DType::Float, &[-1, 10])],
        )
    };
    for (line, part, text) in [
        (1, "\"resise\" is not a pre-processing step", "[[preprocess]]\nstep = \"resise\""),
        (1, "these are scale, top_k, labels", "[[postprocess]]\nstep = \"image\""),
        (
            1,
            "the model's \"x\" has the shape [?, 28, 28, 1], but image produces [..., 28, 28, 3]",
            "[[preprocess]]\nstep = \"image\"",
        ),
        (
            4,
            "[..., 32, 28, 1]",
            "\n\n\n[[preprocess]]\nstep = \"image\"\nheight = 32\nchannels = \"grey\"",
        ),
        (
            3,
            "has no key \"heigth\"; did you mean \"height\"?",
            "[[preprocess]]\nstep = \"image\"\nheigth = 32\nchannels = \"grey\"",
        ),
        (1, "\"z\" not found; available: x", "[[preprocess]]\nstep = \"image\"\ninput = \"z\""),
        (
            1,
            "no signature \"s\"; it has serving_default",
            "[[preprocess]]\nstep = \"image\"\nsignature = \"s\"",
        ),
        (
            1,
            "there are 3 values along axis -1, but \"x\" has the shape [?, 28, 28, 1]",
            "[[preprocess]]\nstep = \"scale\"\nmean = [1, 2, 3]",
        ),
        (1, "std must not be 0", "[[preprocess]]\nstep = \"scale\"\nstd = [0]"),
        (1, "scale and offset", "[[preprocess]]\nstep = \"scale\""),
        (1, "scale and offset", "[[preprocess]]\nstep = \"scale\"\nmean = 1\noffset = 1"),
        (
            1,
            "2 values of one kind and 3 of the other",
            "[[preprocess]]\nstep = \"scale\"\nscale = [1, 2]\noffset = [1, 2, 3]",
        ),
        (
            4,
            "image must be the first step of its input",
            "[[preprocess]]\nstep = \"scale\"\nscale = 2\n[[preprocess]]\nstep = \"image\"\nchannels = \"grey\"",
        ),
        (1, "needs k", "[[postprocess]]\nstep = \"top_k\""),
        (1, "\"p\" has 10 values, fewer than k = 11", "[[postprocess]]\nstep = \"top_k\"\nk = 11"),
        (
            1,
            "two tensors would have the name \"p\"",
            "[[postprocess]]\nstep = \"top_k\"\nk = 1\nindices = \"p\"",
        ),
        (1, "labels are for integers", "[[postprocess]]\nstep = \"labels\"\nfile = \"l.txt\""),
        (1, "file: ", "[[postprocess]]\nstep = \"labels\"\nfile = \"none.txt\""),
        (1, "none.txt cannot be read", "[[postprocess]]\nstep = \"labels\"\nfile = \"none.txt\""),
        (1, "needs vocabulary", "[[preprocess]]\nstep = \"tokens\""),
        (
            1,
            "\"a\" is in line 1 and in line 3",
            "[[preprocess]]\nstep = \"tokens\"\nvocabulary = \"twice.txt\"",
        ),
        (
            1,
            "the vocabulary has no [UNK]",
            "[[preprocess]]\nstep = \"tokens\"\nvocabulary = \"l.txt\"\nlength = 3",
        ),
        (
            1,
            "is of type float, but words become int32 or int64",
            "[[preprocess]]\nstep = \"tokens\"\nvocabulary = \"l.txt\"\nlength = 3\nunknown = 0",
        ),
        (
            2,
            "it must be one of bilinear, bilinear_legacy, nearest",
            "# a comment\n[[preprocess]]\nstep = \"image\"\nresize = \"cubic\"",
        ),
    ] {
        let folder = folder(&[(FILE_NAME, text), ("l.txt", "a\nb\n"), ("twice.txt", "a\nb\na\n")]);
        let Err(error) = load(&folder, image()) else {
            panic!("accepted: {text}");
        };
        let error = error.message();
        assert!(error.contains(part), "{part:?} is not in {error}");
        assert!(error.contains(&format!("tensorserve.toml line {line}: ")), "{line}: {error}");
    }
}

#[test]
fn what_is_no_image_is_told_with_its_place() {
    let png = STANDARD.decode(cases("png")[0]["file"].as_str().expect("text")).expect("base64");
    let jpeg = STANDARD.decode(cases("jpeg")[0]["file"].as_str().expect("text")).expect("base64");
    let model = || {
        signature(&[spec("photo", DType::Float, &[-1, 8, 8, 3])], &[spec("y", DType::Float, &[-1])])
    };
    let toml = "[[preprocess]]\nstep = \"image\"\n";
    let steps = steps(toml, model());
    let refused = |files: &[&[u8]]| {
        let error = steps.preprocess(&[strings(files)]).expect_err("no image");
        assert_eq!(error.code(), tensorserve_tensor::error::Code::InvalidArgument);
        error.message().to_owned()
    };
    for (bad, part) in [
        (&b""[..], "is empty"),
        (b"hello", "is not an image"),
        (b"GIF89a....", "is a GIF file; JPEG and PNG are supported"),
        (b"RIFF....WEBPVP8 ", "is a WebP file"),
        (b"iVBORw0KGgoAAAANSUhEUg", "is the base64 text of an image"),
        (&png[..40], "is not a valid PNG"),
        (&png[..png.len() - 30], "is not a valid PNG"),
        (&jpeg[..30], "is not a valid JPEG"),
        // The decoder panics.
        (&FOUND_BY_FUZZING[1..], "is not a valid JPEG: its parts do not fit together"),
    ] {
        let error = refused(&[&png, &jpeg, bad]);
        assert!(error.starts_with("input \"photo\", element 2: "), "{error}");
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    let error =
        steps.preprocess(&[tensor(&[1], &[1.0f32])]).expect_err("numbers").message().to_owned();
    assert_eq!(error, "input \"photo\" is of type float; expected JPEG or PNG files as strings");
    // A megabyte holds 1365 images of 192 values each.
    let many = vec![png.as_slice(); 1366];
    let error = refused(&many);
    assert!(error.contains("input \"photo\" would become 1049088 bytes"), "{error}");
    assert!(steps.preprocess(&[strings(&many[..1365])]).is_ok());
}

/// The header of a PNG of this size, and nothing after it.
fn png_head(width: u32, height: u32) -> Vec<u8> {
    let mut ihdr = b"IHDR".to_vec();
    ihdr.extend_from_slice(&width.to_be_bytes());
    ihdr.extend_from_slice(&height.to_be_bytes());
    ihdr.extend_from_slice(&[8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\r".to_vec();
    let mut crc = flate2::Crc::new();
    crc.update(&ihdr);
    file.extend_from_slice(&ihdr);
    file.extend_from_slice(&crc.sum().to_be_bytes());
    file
}

#[test]
fn nothing_is_decoded_of_too_many_pixels() {
    let size = "height = 8\nwidth = 8";
    for (width, height) in [(65_500, 65_500), (u32::MAX >> 1, u32::MAX >> 1), (50_000_001, 1)] {
        let error = picture(size, &png_head(width, height)).expect_err("too large");
        let text = format!("has {width} x {height} pixels; at most 50000000 are allowed");
        assert!(error.message().contains(&text), "{error}");
    }
    // A JPEG of too many pixels is refused, too: its frame header has the size.
    let jpeg = STANDARD.decode(cases("jpeg")[0]["file"].as_str().expect("text")).expect("base64");
    let at = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    let mut large = jpeg;
    large[at + 5..at + 9].copy_from_slice(&[0xff, 0xdc, 0xff, 0xdc]);
    let error = picture(size, &large).expect_err("too large");
    assert!(error.message().contains("has 65500 x 65500 pixels"), "{error}");
    let png = STANDARD.decode(cases("png")[0]["file"].as_str().expect("text")).expect("base64");
    let small = picture(&format!("{size}\nmax_pixels = 34"), &png);
    assert!(small.expect_err("5 x 7").message().contains("has 7 x 5 pixels; at most 34"));
}

#[test]
fn the_pixels_of_all_files_of_a_request_are_bounded() {
    let file = png_head(7000, 7000);
    let files: Vec<&[u8]> = vec![&file; 17];
    let error = pictures("height = 8\nwidth = 8", &files).expect_err("too many");
    let text = "have 833000000 pixels together; at most 800000000 are allowed";
    assert!(error.message().contains(text), "{error}");
}

#[test]
fn decoding_ends_at_the_deadline_of_the_request() {
    let png = STANDARD.decode(cases("png")[0]["file"].as_str().expect("text")).expect("base64");
    let request = MemoryBudget::new(64 << 20).request().expect("memory");
    let decode = || pictures("height = 8\nwidth = 8", &[&png, &png]);
    assert!(request.enter(decode).is_ok());
    request.set_deadline(Instant::now());
    std::thread::sleep(Duration::from_millis(2));
    let error = request.enter(decode).expect_err("late");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
}

proptest! {
    #[test]
    fn no_file_does_harm(
        which in 0..11usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        is_cut: bool,
    ) {
        let all: Vec<Value> = cases("png").into_iter().chain(cases("jpeg")).collect();
        let file = all[which]["file"].as_str().expect("text");
        let mut file = STANDARD.decode(file).expect("base64");
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if is_cut {
            file.truncate(cut.index(file.len()));
        }
        for values in ["channels = \"rgb\"", "channels = \"grey\"", "layout = \"nchw\""] {
            let values = format!("height = 4\nwidth = 5\nmax_pixels = 100_000\n{values}");
            if let Ok(numbers) = picture(&values, &file) {
                prop_assert!(numbers.len() == 20 || numbers.len() == 60);
                prop_assert!(numbers.iter().all(|number| (0.0..=255.0).contains(number)));
            }
        }
    }

    #[test]
    fn no_text_of_a_file_of_steps_does_harm(
        text in "(\\[\\[(pre|post)process\\]\\]\n|step = \"(image|scale|top_k|labels|tokens)\"\n|\
                 (k|height|width|axis|length|unknown) = -?[0-9]{1,12}\n|(scale|mean|std) = \\[[0-9., -]{0,9}\\]\n|\
                 (name|input|output|indices|file|vocabulary) = \"[a-z./]{0,5}\"\n|.{0,6}\n){0,9}",
    ) {
        let folder = folder(&[(FILE_NAME, &text), ("a", "x\ny\n")]);
        let model = signature(
            &[spec("x", DType::Float, &[-1, 4, 4, 3])],
            &[spec("y", DType::Float, &[-1, 3])],
        );
        if let Ok(Some(steps)) = load(&folder, model) {
            let sent = [strings(&["", "z"]), tensor(&[2, 4, 4, 3], &[1.0f32; 96])];
            for input in sent {
                let _ = steps.preprocess(&[input]);
            }
            let _ = steps.postprocess(vec![tensor(&[2, 3], &[1.0f32; 6])]);
        }
    }

    #[test]
    fn each_row_is_on_its_own(rows in prop::collection::vec(prop::array::uniform3(-1e3f32..1e3), 1..6)) {
        let model = signature(
            &[spec("x", DType::Float, &[-1, 3])],
            &[spec("y", DType::Float, &[-1, 3])],
        );
        let toml = "[[preprocess]]\nstep = \"scale\"\nmean = [1, 2, 3]\nstd = 2\n\
                    [[postprocess]]\nstep = \"top_k\"\nk = 2\n";
        let steps = steps(toml, model);
        let through = |rows: &[[f32; 3]]| {
            let sent = tensor(&[rows.len() as i64, 3], rows.as_flattened());
            steps.postprocess(steps.preprocess(&[sent]).expect("scaled")).expect("picked")
        };
        let together = through(&rows);
        for (index, row) in rows.iter().enumerate() {
            for (all, alone) in together.iter().zip(through(&[*row])) {
                let mine = all.slice_rows(index..index + 1);
                prop_assert_eq!(mine.bytes(), alone.bytes());
            }
        }
    }
}
