use std::fs;

use tempfile::TempDir;

use super::*;

/// A model in a format, as the files of a folder.
struct Sample {
    /// Where the model is in the folder; empty for the folder itself.
    path: &'static str,
    files: Vec<(&'static str, Vec<u8>)>,
    /// What the explanation says. `/m` stands for the folder.
    says: &'static [&'static str],
}

/// A sample of one file.
fn one(name: &'static str, content: &[u8], says: &'static [&'static str]) -> Sample {
    Sample { path: name, files: vec![(name, content.to_vec())], says }
}

/// A sample of a file with other files, which are not read.
fn beside(
    name: &'static str,
    content: &[u8],
    others: &[&'static str],
    says: &'static [&'static str],
) -> Sample {
    let mut sample = one(name, content, says);
    sample.files.extend(others.iter().map(|other| (*other, b"x".to_vec())));
    sample
}

/// A sample that is a folder with these files.
fn folder(files: &[(&'static str, &str)], says: &'static [&'static str]) -> Sample {
    let files = files.iter().map(|(name, content)| (*name, content.as_bytes().to_vec()));
    Sample { path: "", files: files.collect(), says }
}

/// What the name of a file looks like in an archive: behind other content.
fn archive(name: &str) -> Vec<u8> {
    let mut bytes = ZIP.to_vec();
    bytes.resize(100_000, 7);
    bytes.extend_from_slice(b"PK\x01\x02");
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(bytes.len() + 100, 0);
    bytes
}

/// At least one sample of each row of the table.
fn samples() -> Vec<Sample> {
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0";
    let safetensors = b"\x10\0\0\0\0\0\0\0{\"__metadata__\": {}}";
    let cntk = b"\x08\x02\x12\x11\x0a\x07version\x12\x1f\x0a\x04type\x12CompositeFunction\x12\x20\x0a\x03uid";
    let weka = b"\xac\xed\0\x05sr\0\x1eweka.classifiers.trees.J48";
    let text = b"ir_version: 8\ngraph {\n  node {\n";
    let ml_file = b"service: x";
    vec![
        one("a.onnx", lfs, &["git lfs pull"]),
        one("a.keras", &archive("model.weights.h5"), &["Keras", "convert --with-python /m/a.keras /m/a`"]),
        one("a.h5", b"\x89HDF\r\n\x1a\n", &["HDF5", "convert --with-python /m/a.h5 /m/a`"]),
        folder(&[("adapter_config.json", "{}")], &["adapter", "merge_and_unload", "/m /m-merged`"]),
        folder(
            &[
                ("config.json", "{\"architectures\": [\"BertForSequenceClassification\"]}"),
                ("model.safetensors", ""),
            ],
            &["Hugging Face", "optimum-cli export onnx --task text-classification --model /m /m-onnx`, and serve /m-onnx/model.onnx"],
        ),
        folder(&[("model_index.json", "{}")], &["diffusers", "--model /m /m-onnx"]),
        folder(&[("meta.json", "{}"), ("config.cfg", "")], &["spaCy", "inference.py"]),
        one("a.safetensors", safetensors, &["weights without the program", "--model /m /m-onnx"]),
        one("a.gguf", b"GGUF\x03\0\0\0", &["llama.cpp", "llama-server --model /m/a.gguf"]),
        one("a.ort", b"\x20\0\0\0ORTM", &["ONNX Runtime", "the ONNX file that it was made of"]),
        one("a.textproto", text, &["ONNX as text", "onnx.load(sys.argv[1])", "/m/a.textproto /m/a.onnx`"]),
        one("a.json", b"{\n \"irVersion\": \"8\",", &["ONNX in JSON", "/m/a.json /m/a.onnx`"]),
        one("model.plan", b"ptrt", &["TensorRT", "the ONNX file that it was built from"]),
        one("a.engine", b"ftrt", &["TensorRT"]),
        beside("a.pdmodel", b"x", &["a.pdiparams"], &[
            "PaddlePaddle",
            "--model_dir /m --model_filename a.pdmodel --params_filename a.pdiparams --save_file /m/a.onnx",
        ]),
        beside("a.json", b"{\"base_code\":{\"magic\":\"pir\"},\"program\":{", &["a.pdiparams"], &[
            "PaddlePaddle",
            "--model_filename a.json --params_filename a.pdiparams",
        ]),
        one("a.pdparams", b"x", &["without the model's program", "paddle.jit.save"]),
        one("a.mlmodel", b"x", &["Core ML", "onnxmltools==1.11.2", "/m/a.mlmodel /m/a.onnx`"]),
        one("a.caffemodel", b"x", &["Caffe", "--prototxt /m/deploy.prototxt --caffemodel /m/a.caffemodel"]),
        folder(
            &[("predict_net.pb", "\n\u{1}t"), ("init_net.pb", "\n\u{1}t")],
            &["Caffe2", "convert-caffe2-to-onnx /m/predict_net.pb --caffe2-init-net /m/init_net.pb"],
        ),
        one("a.model", cntk, &["CNTK", "Python 3.6", "/m/a.model /m/a.onnx`"]),
        one("a.dnn", b"B\0C\0N\0", &["CNTK"]),
        one("a-0000.params", &[0x12, 1, 0, 0, 0, 0, 0, 0], &["MXNet", "net.export('model')"]),
        one(
            "model.json",
            b"{\"format\": \"layers-model\", \"modelTopology\": {\"keras_version\": \"3\"}, \"weightsManifest\": []",
            &["TensorFlow.js", "layers", "/m/model.json"],
        ),
        one(
            "model.json",
            b"{\"format\": \"graph-model\", \"modelTopology\": {\"node\": []}, \"weightsManifest\": []",
            &["TensorFlow.js", "tfjs_graph_converter /m/model.json /m/model"],
        ),
        beside("a.ckpt.index", b"x", &["a.ckpt.meta", "a.ckpt.data-00000-of-00002"], &[
            "checkpoint of TensorFlow 1",
            "--input_meta_graph=/m/a.ckpt.meta --input_checkpoint=/m/a.ckpt ",
            "serve /m/a.ckpt.pb",
        ]),
        beside("a-1.index", b"x", &["a-1.data-00000-of-00001"], &[
            "without the graph",
            "tf.saved_model.save",
        ]),
        one("a.mar", &archive("MAR-INF/MANIFEST.json"), &["TorchServe", "unzip /m/a.mar -d /m/a`"]),
        one("a.zip", &archive("half/1/saved_model.pb"), &["archive of a SavedModel", "unzip /m/a.zip -d /m/a`"]),
        one("a.tar.gz", b"\x1f\x8b\x08", &["an archive", "tar -xzf /m/a.tar.gz -C /m/a.d`"]),
        one("a.rds", b"\x1f\x8b\x08", &["an R object", "xgboost::xgb.save", "/m/a.rds /m/a.ubj`"]),
        one("a.RData", b"\x1f\x8b\x08", &["workspace of R", "load(a[1])", "/m/a.RData /m/a.ubj`"]),
        one("a.model", weka, &["Weka", "cannot be converted"]),
        one("a.ser", b"\xac\xed\0\x05sr\0\x04java", &["object of Java"]),
        one("a.vw", b"\x07\0\0\09.11.0\0\x01\0\0\0m", &["Vowpal Wabbit", "inference.py"]),
        one("a.bin", &[0xba, 0x16, 0x4f, 0x2f, 12, 0, 0, 0], &["fastText", "inference.py"]),
        one("checkpoint.tl", b"x", &["Treelite", "XGBoost, LightGBM or scikit-learn"]),
        folder(&[("model.yaml", "module: bentoml.detectron")], &["BentoML", "bentoml.models.get"]),
        folder(&[("bento.yaml", "name: x")], &["a Bento", "/m/models"]),
        one("model.py", b"import x\nclass TritonPythonModel:\n", &["Triton's Python backend", "inference.py"]),
        // A file of another name is recognised by its content, if its path is given.
        one("weights", safetensors, &["weights without the program"]),
        Sample { path: "x.mlpackage", files: vec![("x.mlpackage/Manifest.json", ml_file.to_vec())], says: &[
            "package of Core ML",
            "cannot be converted",
        ] },
    ]
}

/// Writes the files below `inner` of a new folder.
fn written(sample: &Sample, inner: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("temporary directory");
    for (name, content) in &sample.files {
        let file = folder.path().join(inner).join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("directories");
        fs::write(file, content).expect("written");
    }
    folder
}

/// The explanation of the model at `path`, with `/m` in place of the folder of its files.
fn explained(path: &Path, folder: &Path) -> String {
    let why = ForeignFormats::explain(path).unwrap_or_default();
    why.replace(&folder.display().to_string(), "/m")
}

#[track_caller]
fn check(sample: &Sample, why: &str) {
    for part in sample.says {
        assert!(why.contains(part), "{:?} is not in {why:?}", part);
    }
    assert!(!why.contains(['{', '}']) || why.contains("{\"data\""), "{why}");
}

#[test]
fn each_format_is_named_with_the_way_on() {
    for sample in samples() {
        let folder = written(&sample, "");
        check(&sample, &explained(&folder.path().join(sample.path), folder.path()));
    }
}

#[test]
fn a_model_is_found_in_its_folder_and_in_a_version() {
    for sample in
        samples().iter().filter(|sample| !["weights", "x.mlpackage"].contains(&sample.path))
    {
        for inner in ["", "1"] {
            let folder = written(sample, inner);
            let version: PathBuf = folder.path().join(inner).components().collect();
            check(sample, &explained(&version, &version));
            let place = ModelPath::new(&version);
            assert!(ForeignFormats.recognises(&place), "{:?}", sample.files[0].0);
            let Completeness::Broken(error) = ForeignFormats.check(&version) else {
                panic!("{:?} is not refused", sample.files[0].0);
            };
            assert_eq!(error.code(), Code::Unimplemented);
            let errors = [
                ForeignFormats.load(&version, &LoadOptions::default()).err(),
                ForeignFormats.inspect(&version, &LoadOptions::default()).err(),
            ];
            for other in errors {
                assert_eq!(other.expect("refused").message(), error.message());
            }
        }
    }
}

#[test]
fn each_row_of_the_table_has_a_sample() {
    let samples = samples();
    for format in FORMATS {
        let is_tested = samples.iter().any(|sample| {
            let folder = written(sample, "");
            let path = folder.path().join(sample.path);
            identify(&ModelPath::new(&path), true)
                .is_some_and(|found| found.format.what == format.what)
        });
        assert!(is_tested, "no sample is {}", format.what);
    }
}

#[test]
fn other_files_are_no_models() {
    let files: &[(&str, &[u8])] = &[
        ("README.md", b"# GGUF"),
        ("package.json", b"{\"name\": \"program\"}"),
        ("pom.xml", b"<project><layers></layers></project>"),
        ("weights.bin", b"\0\0\0\0"),
        ("labels.txt", b"a\nb\n"),
        ("a.zip", b"PK\x03\x04 nothing"),
        ("a.h5", b"no HDF5"),
        ("model.py", b"print(1)"),
        ("a.index", b"an index of something"),
        ("a.model", b"\x06\0\0\0nothing"),
    ];
    for (name, content) in files {
        let sample = Sample { path: "", files: vec![(name, content.to_vec())], says: &[] };
        let folder = written(&sample, "");
        assert_eq!(explained(folder.path(), folder.path()), "", "{name}");
        assert_eq!(explained(&folder.path().join(name), folder.path()), "", "{name}");
        assert!(matches!(ForeignFormats.check(folder.path()), Completeness::Missing(_)), "{name}");
    }
}

#[test]
fn paths_are_quoted_and_not_taken_for_words_of_the_text() {
    let sample = one("it's {stem}.textproto", b"ir_version: 8\ngraph {", &[]);
    let folder = written(&sample, "a b");
    let home = folder.path().join("a b");
    let why = explained(&home.join(sample.path), folder.path());
    assert!(
        why.contains(r"'/m/a b/it'\''s {stem}.textproto' '/m/a b/it'\''s {stem}'.onnx`"),
        "{why}"
    );
}

#[test]
fn damaged_files_are_read_without_a_panic() {
    for sample in samples() {
        let folder = written(&sample, "");
        for (name, content) in &sample.files {
            for length in (0..content.len().min(64)).chain([content.len() / 2]) {
                fs::write(folder.path().join(name), &content[..length]).expect("written");
                let _ = ForeignFormats::explain(&folder.path().join(sample.path));
                let _ = ForeignFormats.recognises(&ModelPath::new(folder.path()));
            }
        }
    }
}
