//! Models that `tests/data/platforms/tflite/make_tflite.py` wrote and models of others, compared with the
//! predictions of LiteRT's Python interpreter; damaged models, and hostile requests.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use super::*;
use tensorserve_platform::RunOptions;
use tensorserve_platform::library::SearchFolder;
use tensorserve_tensor::error::{Code, Error};

use tensorserve_tensor::{Buffer, DType, Shape, StringsBuilder, Tensor, aligned_vec};

/// The platform with the library that the environment names, or that `make lib` downloads.
pub(crate) fn litert() -> LiteRt {
    let downloaded = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../lib");
    let folders = std::env::var_os("TENSORSERVE_LIB_DIR").map(PathBuf::from);
    LiteRt::new(RuntimeConfig {
        library: std::env::var_os("TENSORSERVE_LIBLITERT").map(PathBuf::from),
        search: folders.into_iter().chain([downloaded]).map(SearchFolder::from).collect(),
        intra_op_threads: 1,
    })
}

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/platforms/tflite").join(path)
}

fn load(file: &Path) -> Loaded {
    litert().load(file, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The tensors of a file that `make_tflite.py` wrote, by name.
fn expected(model: &Path) -> BTreeMap<String, Tensor> {
    let packed = fs::File::open(model.with_extension("expected.gz")).expect("predictions");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).expect("gzip");
    let mut rest = &bytes[..];
    let mut tensors = BTreeMap::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').expect("a line");
        let line = std::str::from_utf8(&rest[..end]).expect("text").to_owned();
        rest = &rest[end + 1..];
        let [name, kind, sizes] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let sizes = sizes.split(',').filter(|size| !size.is_empty());
        let dims: Vec<i64> = sizes.map(|size| size.parse().expect("a size")).collect();
        let shape = Shape::new(&dims).expect("a shape");
        let count = shape.elements().expect("small");
        let tensor = if kind == "string" {
            let mut strings = StringsBuilder::default();
            for _ in 0..count {
                let length = u32::from_le_bytes(*rest.first_chunk().expect("a length")) as usize;
                strings.push(&rest[4..4 + length]);
                rest = &rest[4 + length..];
            }
            Tensor::from_strings(shape, strings)
        } else {
            let mut known = DType::ALL.iter().filter(|dtype| dtype.python_name() == kind);
            let dtype = *known.next().unwrap_or_else(|| panic!("{kind}"));
            let length = count * dtype.size().expect("numbers");
            let mut values = aligned_vec(length);
            values.extend_from_slice(&rest[..length]);
            rest = &rest[length..];
            Tensor::numeric(dtype, shape, Buffer::new(Arc::new(values)))
        };
        tensors.insert(name.to_owned(), tensor.expect("a tensor"));
    }
    tensors
}

/// The greatest difference of two tensors: 0 if all bits are equal, except those of NaN; infinity for another
/// type, shape or text.
fn difference(got: &Tensor, wanted: &Tensor) -> f64 {
    if (got.dtype(), got.shape()) != (wanted.dtype(), wanted.shape()) {
        return f64::INFINITY;
    }
    if let (Some(got), Some(wanted)) = (got.strings(), wanted.strings()) {
        return if got.iter().eq(wanted.iter()) { 0.0 } else { f64::INFINITY };
    }
    if got.bytes() == wanted.bytes() {
        return 0.0;
    }
    let (Some(got), Some(wanted)) = (got.values::<f32>(), wanted.values::<f32>()) else {
        return f64::INFINITY;
    };
    got.iter().zip(wanted).fold(0.0, |greatest: f64, (a, b)| {
        match a.is_nan() && b.is_nan() || a == b {
            true => greatest,
            false if a.is_nan() || b.is_nan() => f64::INFINITY,
            false => greatest.max(f64::from((a - b).abs())),
        }
    })
}

/// Runs all signatures of a model, twice, and returns the greatest difference and the number of rows.
fn check(model: &Path) -> Result<(f64, usize)> {
    let (loaded, tensors) = (litert().load(model, &LoadOptions::default())?, expected(model));
    let (mut greatest, mut rows) = (0.0_f64, 0);
    for (number, signature) in loaded.signatures.iter().enumerate() {
        let find = |kind: &str, alias: &str| {
            let name = format!("{}/{kind}/{alias}", signature.name);
            tensors.get(&name).cloned().ok_or_else(|| Error::not_found(format!("no {name}")))
        };
        let inputs = signature.inputs.iter().map(|spec| find("inputs", &spec.alias));
        let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
        rows = inputs[0].rows().unwrap_or(1).max(rows);
        // A model with state answers otherwise when it runs again.
        for _ in 0..if signature.read_only { 2 } else { 1 } {
            let outputs = loaded.executable.run(number, &inputs, RunOptions::default())?;
            for (spec, output) in signature.outputs.iter().zip(&outputs) {
                greatest = greatest.max(difference(output, &find("outputs", &spec.alias)?));
            }
        }
    }
    Ok((greatest, rows))
}

/// How far predictions may be from those of a CPU with AVX-512: others round recurrent networks differently.
fn exact_but_recurrent(model: &str) -> f64 {
    #[cfg(target_arch = "x86_64")]
    let is_of_that_kind = std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    let is_of_that_kind = false;
    if model == "recurrent.tflite" && !is_of_that_kind { 1e-6 } else { 0.0 }
}

/// Checks the models of a folder, each of which may differ by what `most` says of its name.
fn check_all(folder: &str, most: impl Fn(&str) -> f64) -> usize {
    let models = models(folder);
    let mut wrong = Vec::new();
    for model in &models {
        let name = model.file_name().unwrap_or_default().to_string_lossy();
        match check(model) {
            Ok((difference, _)) if difference <= most(&name) => {}
            Ok((difference, rows)) => wrong.push(format!("{name}: {difference:e} in {rows} rows")),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    models.len()
}

/// The models of a folder that have predictions.
fn models(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(data(folder)).expect("a folder").flatten();
    let files = entries.map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|ending| ending == "tflite"))
        .filter(|path| path.with_extension("expected.gz").is_file())
        .collect();
    files.sort();
    files
}

#[test]
fn predictions_are_those_of_python() {
    assert!(check_all("made", exact_but_recurrent) >= 14);
}

#[test]
fn models_of_others_predict_as_in_python() {
    assert!(check_all("others", |_| 1e-6) >= 1);
}

fn ones(dtype: DType, dims: &[i64]) -> Tensor {
    let shape = Shape::new(dims).expect("a shape");
    let count = shape.elements().expect("small");
    let Some(width) = dtype.size() else {
        let mut strings = StringsBuilder::default();
        (0..count).for_each(|_| strings.push(b"one"));
        return Tensor::from_strings(shape, strings).expect("strings");
    };
    let mut values = aligned_vec(count * width);
    values.resize(count * width, 0_u8);
    if dtype == DType::Float {
        values.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&1_f32.to_le_bytes()));
    }
    Tensor::numeric(dtype, shape, Buffer::new(Arc::new(values))).expect("a tensor")
}

#[test]
fn what_litert_cannot_run_is_refused_by_name() {
    for (file, reason) in [
        ("flex", "Select TF: FlexAbs), which LiteRT lacks: serve the SavedModel"),
        ("custom", "custom operators, which LiteRT lacks: Abs. Convert"),
    ] {
        let path = data(&format!("refused/{file}.tflite"));
        let error = litert().load(&path, &LoadOptions::default()).err().expect(file);
        assert_eq!(error.code(), Code::Unimplemented, "{error}");
        assert!(error.message().contains(reason), "{error}");
        assert!(error.message().starts_with(file), "{error}");
        assert!(litert().inspect(&path, &LoadOptions::default()).is_err());
    }
}

#[test]
fn damaged_files_are_refused_or_read() {
    for name in ["made/signatures", "made/dense_int8", "made/strings", "made/recurrent"] {
        let bytes = fs::read(data(&format!("{name}.tflite"))).expect("a model");
        for end in 0..bytes.len() {
            let _ = model::read_model(&bytes[..end]);
        }
        assert!(model::read_model(&bytes[..bytes.len() / 2]).is_err());
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut flipped = bytes.clone();
                flipped[at] ^= flip;
                if let Ok(model) = model::read_model(&flipped) {
                    let _ = rewrite::rewrite(&flipped, &model);
                }
            }
        }
    }
}

#[test]
fn rows_of_a_model_that_takes_one_run_one_after_the_other() {
    let model = load(&data("made/convolution_of_one.tflite"));
    let signature = &model.signatures[0];
    assert_eq!(signature.inputs[0].shape.sizes().expect("a shape"), [-1, 8, 8, 3]);
    assert!(signature.is_batchable() && signature.exact_shapes);
    for rows in [1, 3] {
        let input = ones(DType::Float, &[rows, 8, 8, 3]);
        let outputs = model.executable.run(0, &[input], RunOptions::default()).expect("runs");
        assert_eq!(outputs[0].shape().dims(), [rows, 2]);
    }
}

#[test]
fn requests_of_another_shape_are_refused_with_the_name_of_the_input() {
    let model = load(&data("made/signatures.tflite"));
    for dims in [&[2, 3][..], &[0, 2], &[2], &[2, 2, 1]] {
        let inputs = [ones(DType::Float, dims), ones(DType::Float, dims)];
        let error = model.executable.run(0, &inputs, RunOptions::default()).expect_err("refused");
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with("input \"left\" has shape"), "{error}");
        assert!(error.message().contains("takes [?, 2]"), "{error}");
    }
    // An error of an operation, after which the model still runs.
    let inputs = [ones(DType::Float, &[2, 2]), ones(DType::Float, &[3, 2])];
    let error = model.executable.run(0, &inputs, RunOptions::default()).expect_err("refused");
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let inputs = [ones(DType::Float, &[2, 2]), ones(DType::Float, &[2, 2])];
    model.executable.run(0, &inputs, RunOptions::default()).expect("runs");
}

#[test]
fn a_run_ends_at_its_deadline() {
    let model = load(&data("made/recurrent.tflite"));
    let input = ones(DType::Float, &[200, 5, 3]);
    let timeout = Some(std::time::Duration::ZERO);
    let options = RunOptions { timeout, ..RunOptions::default() };
    let error =
        model.executable.run(0, std::slice::from_ref(&input), options).expect_err("too late");
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    model.executable.run(0, &[input], RunOptions::default()).expect("in time");
}

#[test]
fn runs_at_the_same_time_do_not_disturb_each_other() {
    let (path, model) = (data("made/recurrent.tflite"), load(&data("made/recurrent.tflite")));
    let tensors = expected(&path);
    let alias = |kind: &str| format!("serving_default/{kind}/");
    let find = |kind: &str| {
        let name = tensors.keys().find(|name| name.starts_with(&alias(kind))).expect("a tensor");
        tensors[name].clone()
    };
    let (input, output) = (find("inputs"), find("outputs"));
    std::thread::scope(|scope| {
        for rows in [1, 7, 100, 1000] {
            let (input, output, model) = (&input, &output, &model);
            scope.spawn(move || {
                for _ in 0..20 {
                    let inputs = [input.slice_rows(0..rows)];
                    let outputs = model.executable.run(0, &inputs, RunOptions::default());
                    let got = &outputs.expect("runs")[0];
                    assert!(difference(got, &output.slice_rows(0..rows)) <= 1e-6, "{rows} rows");
                }
            });
        }
    });
}

#[test]
fn a_model_is_described_without_the_library() {
    let nowhere = LiteRt::new(RuntimeConfig::default());
    let path = data("made/dense_int8.tflite");
    let inspection = nowhere.inspect(&path, &LoadOptions::default()).expect("a model");
    assert_eq!(inspection.written_by, "MLIR Converted.");
    let signature = &inspection.signatures[0];
    assert_eq!(signature.name, "serving_default");
    assert_eq!(
        (&*signature.inputs[0].alias, signature.inputs[0].dtype()),
        ("flower", Some(DType::Int8))
    );
    assert_eq!(signature.inputs[0].shape.sizes().expect("a shape"), [-1, 4]);
    let quantization = signature.inputs[0].quantization.expect("a quantised input");
    assert_eq!(quantization.to_string(), "0.045398965 * (value - 15)");
    assert!(matches!(nowhere.check(&path), Completeness::Complete));
    let other = nowhere.inspect(&data("make_tflite.py"), &LoadOptions::default());
    let error = other.expect_err("a program");
    assert!(error.message().contains("does not begin as one (TFL3)"), "{error}");
}

#[test]
fn a_while_is_not_bounded() {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/platforms");
    let file = model::TfliteFile::read(&data.join("endless/adding.tflite")).expect("a model");
    let model = file.model().expect("a model");
    assert!(model.has_loops);
    assert!(super::executable::signatures(&model, &file.bytes).iter().all(|it| !it.is_bounded));
}
