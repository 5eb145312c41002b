//! The models of `tests/data/platforms/openvino`, read without the library; how they run is tested through the server,
//! in a process of their own.

use std::fs;
use std::path::{Path, PathBuf};

use super::model::IrFiles;
use super::{OpenVino, RuntimeConfig};
use tensorserve_platform::{Completeness, LoadOptions, ModelLoader, ModelPath};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::Code;

fn data(path: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/platforms/openvino");
    data.join(path)
}

/// Without a library: nothing here may need one.
fn platform() -> OpenVino {
    let library = Some(PathBuf::from("/no/such/library"));
    OpenVino::new(RuntimeConfig { library, ..RuntimeConfig::default() })
}

fn inspected(path: &Path) -> Signature {
    let mut found = platform().inspect(path, &LoadOptions::default()).expect("a model");
    found.signatures.pop().expect("a signature")
}

/// `name TYPE[sizes]` of each input, and of each output.
fn described(signature: &Signature) -> String {
    let words = |specs: &[tensorserve_tensor::TensorSpec]| {
        let each = specs.iter().map(|spec| {
            let dtype = spec.dtype().expect("a type");
            format!("{} {dtype:?}{}", spec.alias, spec.shape)
        });
        each.collect::<Vec<_>>().join(", ")
    };
    format!("{} -> {}", words(&signature.inputs), words(&signature.outputs))
}

/// A model that consists of the graph of `made/NAME.xml`, changed, and its weights.
fn changed(name: &str, change: impl Fn(&str) -> String) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    let graph = fs::read_to_string(data(&format!("made/{name}.xml"))).expect("a graph");
    let new = change(&graph);
    assert_ne!(graph, new, "nothing was changed");
    fs::write(folder.path().join("m.xml"), new).expect("written");
    fs::copy(data(&format!("made/{name}.bin")), folder.path().join("m.bin")).expect("copied");
    folder
}

/// The error for it.
fn refused(folder: &Path) -> (Code, String) {
    let files = IrFiles::read(folder);
    let error = files.and_then(|files| files.model()).expect_err("refused");
    (error.code(), error.message().to_owned())
}

#[test]
fn inputs_and_outputs_are_read_without_the_library() {
    for (name, want) in [
        ("dense", "x Float[?, 4] -> scores Float[?, 3]"),
        ("half", "x Float[?, 3] -> y Float[?, 2]"),
        ("image", "image Float[1, 3, 8, 8] -> features Float[1, 4]"),
        ("nameless", "x Float[?, 4] -> scores Float[?, 3]"),
        (
            "several",
            "flags Bool[?, 2], ids Int64[?], left Float[?, 2] -> chosen Float[?, 2], doubled Int64[?], total Float[?, 2]",
        ),
    ] {
        let signature = inspected(&data(&format!("made/{name}.xml")));
        assert_eq!(described(&signature), want, "{name}");
        assert!(signature.exact_shapes && signature.read_only && signature.repeatable, "{name}");
        assert!(signature.is_bounded, "{name}");
    }
    assert!(!inspected(&data("made/unbounded.xml")).is_bounded);
    let written_by = platform().inspect(&data("made/half.xml"), &LoadOptions::default());
    assert_eq!(written_by.expect("a model").written_by, "OpenVINO 2026.4.1");
}

#[test]
fn random_numbers_are_not_repeatable() {
    let random =
        changed("dense", |graph| graph.replacen("type=\"ReLU\"", "type=\"RandomUniform\"", 1));
    assert!(!inspected(random.path()).repeatable);
}

#[test]
fn only_graphs_of_openvino_are_recognised() {
    let recognises = |path: &Path| platform().recognises(&ModelPath::new(path));
    assert!(recognises(&data("made")) && recognises(&data("made/dense.xml")));
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("a.xml"), "<PMML version=\"4.4\"/>").expect("written");
    assert!(!recognises(folder.path()));
}

#[test]
fn what_cannot_be_served_is_refused() {
    for (name, words) in [
        ("stateful", "keeps a state from request to request"),
        ("any_rank", "input \"x\" has no fixed rank"),
        ("texts", "the type \"string\" of \"x\" is not supported"),
    ] {
        let (code, message) = refused(&data(&format!("refused/{name}.xml")));
        assert_eq!(code, Code::Unimplemented, "{name}: {message}");
        assert!(message.contains(words), "{name}: {message}");
    }
    let old = changed("dense", |graph| graph.replace("version=\"11\"", "version=\"7\""));
    assert!(refused(old.path()).1.contains("version 7 of the format"));
    let custom =
        changed("dense", |graph| graph.replacen("version=\"opset8\"", "version=\"mine\"", 1));
    assert!(refused(custom.path()).1.contains("the extension \"mine\""));
    let twice = changed("several", |graph| graph.replace("names=\"ids\"", "names=\"left\""));
    assert!(refused(twice.path()).1.contains("two inputs have the name \"left\""));
}

#[test]
fn damaged_files_are_refused() {
    for (name, from, to, words) in [
        ("dense", "offset=\"0\"", "offset=\"200\"", "are not in the weights"),
        ("dense", "offset=\"0\"", "offset=\"18446744073709551615\"", "are not in the weights"),
        ("dense", "offset=\"0\"", "offset=\"-1\"", "is no size"),
        ("dense", "shape=\"4, 8\"", "shape=\"4, 9\"", "does not fit its 128 bytes"),
        ("dense", "shape=\"?,4\"", "shape=\"?,-7\"", "is no shape"),
        ("dense", "type=\"Result\"", "type=\"ReLU\"", "there is no output"),
        ("dense", "</net>", "", "is not valid XML"),
        ("dense", "to-layer=\"9\"", "to-layer=\"77\"", "no edge leads to this output"),
        ("dense", "<dim>3</dim>", "<dim>three</dim>", "is no size"),
        ("dense", "<layer id=\"1\"", "<layer id=\"0\"", "another layer has the id \"0\""),
    ] {
        let folder = changed(name, |graph| graph.replace(from, to));
        let (code, message) = refused(folder.path());
        assert_eq!(code, Code::DataLoss, "{from}: {message}");
        assert!(message.starts_with("m.xml is damaged: ") && message.contains(words), "{message}");
    }
}

#[test]
fn a_graph_without_its_weights_is_incomplete() {
    let folder = changed("dense", |graph| format!("{graph}\n"));
    assert!(matches!(platform().check(folder.path()), Completeness::Complete));
    fs::remove_file(folder.path().join("m.bin")).expect("removed");
    let Completeness::Missing(what) = platform().check(folder.path()) else {
        panic!("complete without weights");
    };
    assert!(what.contains("m.bin"), "{what}");
}

#[test]
fn weights_that_become_shorter_are_refused() {
    let folder = changed("dense", |graph| format!("\u{feff}{graph}"));
    let files = IrFiles::read(folder.path()).expect("files");
    let model = files.model().expect("a byte order mark is no part of the graph");
    assert!(model.graph.starts_with('<'));
    let weights = folder.path().join("m.bin");
    let all = fs::read(&weights).expect("weights");
    assert_eq!(files.weights().expect("weights"), all);
    fs::write(&weights, &all[1..]).expect("written");
    let error = files.weights().expect_err("shorter");
    assert!(error.message().starts_with("m.bin is damaged: it became shorter"), "{error}");
}

#[test]
fn tensors_without_names_get_some() {
    let files = IrFiles::read(&data("made/nameless.xml")).expect("files");
    let model = files.model().expect("a model");
    let names = [&model.inputs[0].tensor_name, &model.outputs[0].tensor_name];
    assert_eq!(names, ["unnamed0", "unnamed1"]);
    for name in names {
        assert_eq!(
            model.graph.matches(&format!(" names=\"{name}\"")).count(),
            1,
            "{}",
            model.graph
        );
    }
    // Names of the file that look like these do not become other tensors.
    let hostile = changed("nameless", |graph| {
        graph.replacen("<port id=\"1\"", "<port names=\"unnamed0\" id=\"1\"", 1)
    });
    let model = IrFiles::read(hostile.path()).and_then(|files| files.model()).expect("a model");
    assert_eq!(model.inputs[0].tensor_name, "unnamed_0");
}

#[test]
fn a_library_that_is_not_there_is_told() {
    let loaded = platform().load(&data("made/dense.xml"), &LoadOptions::default());
    let message = loaded.err().expect("no library").to_string();
    assert!(message.contains("/no/such/library"), "{message}");
}
