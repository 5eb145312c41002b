use std::fs;
use std::io::Write as _;

use super::*;

/// A zip file of empty stored files with these names.
pub(crate) fn zip(names: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    for name in names {
        let offset = u32::try_from(bytes.len()).expect("small");
        let length = u16::try_from(name.len()).expect("short");
        bytes.extend_from_slice(b"PK\x03\x04");
        bytes.extend_from_slice(&[0; 22]);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(name.as_bytes());
        directory.extend_from_slice(b"PK\x01\x02");
        directory.extend_from_slice(&[0; 24]);
        directory.extend_from_slice(&length.to_le_bytes());
        directory.extend_from_slice(&[0; 12]);
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let (start, size) = (bytes.len(), directory.len());
    bytes.extend_from_slice(&directory);
    bytes.extend_from_slice(b"PK\x05\x06");
    bytes.extend_from_slice(&[0; 4]);
    let count = u16::try_from(names.len()).expect("few");
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(size).expect("small").to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(start).expect("small").to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes
}

fn opened(name: &str, content: &[u8]) -> Result<TorchFile> {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join(name);
    fs::write(&path, content).expect("written");
    TorchFile::open(&path)
}

const SCRIPT: [&str; 4] = ["m/data.pkl", "m/code/__torch__.py", "m/constants.pkl", "m/version"];

#[test]
fn scripts_and_packages_are_told_by_the_names_in_them() {
    assert!(matches!(opened("m.pt", &zip(&SCRIPT)), Ok(TorchFile::Script(_))));
    let package = ["m/data/aotinductor/other/x.wrapper.so", "m/archive_format"];
    match opened("m.pt2", &zip(&package)) {
        Ok(TorchFile::Package { name, .. }) => assert_eq!(name, "other"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_holds_no_program_is_refused_with_the_lines_that_convert_it() {
    let legacy = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    for (name, content, parts) in [
        ("w.pth", zip(&["w/data.pkl", "w/data/0"]), ["torch.load(", "torch.jit.script("]),
        ("old.pt", legacy.to_vec(), ["torch.load(", "torch.jit.script("]),
        (
            "p.pt2",
            zip(&["p/models/model.json"]),
            ["torch.export.load(", "aoti_compile_and_package"],
        ),
        ("p.pt2", zip(&["serialized_exported_program.json"]), ["torch.export.load(", "p-aoti.pt2"]),
    ] {
        let error = opened(name, &content).expect_err(name);
        assert_eq!(error.code(), Code::Unimplemented, "{error}");
        assert!(parts.iter().all(|part| error.message().contains(part)), "{error}");
        // What it is, and three lines.
        assert_eq!(error.message().lines().count(), 4, "{error}");
    }
}

#[test]
fn files_are_recognised_by_ending_and_content() {
    let folder = tempfile::tempdir().expect("a directory");
    let recognised = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("written");
        recognises(&ModelPath::new(&path))
    };
    let weights = zip(&["w/data.pkl", "w/data/0"]);
    for name in ["a.pt", "a.pth", "a.PT2", "a.torchscript", "pytorch_model.bin", "a.ckpt"] {
        assert!(recognised(name, &weights), "{name}");
    }
    assert!(recognised("cut.pt", &weights[..40]), "its error must be seen");
    for (name, content) in [
        ("a.zip", &weights[..]),
        ("b.bin", b"binf"),
        ("b.pt", b"version https://git-lfs.github.com/spec/v1\n"),
        ("c.ckpt", &zip(&["x/y"])),
        ("d.bin", &weights[..40]),
    ] {
        assert!(!recognised(name, content), "{name}");
    }
    let folder = tempfile::tempdir().expect("a directory");
    fs::write(folder.path().join("pytorch_model.bin"), &weights).expect("written");
    assert!(!recognises(&ModelPath::new(folder.path())), "a folder of Hugging Face explains more");
}

#[test]
fn names_that_lead_out_of_a_package_are_refused() {
    for name in ["m/data/aotinductor/model/../../../../x.so", "/etc/x.so", "m/a\\..\\x.so"] {
        let names = ["m/data/aotinductor/model/a.so", name];
        let error = opened("m.pt2", &zip(&names)).expect_err(name);
        assert!(error.message().contains("leads out of it"), "{error}");
    }
}

#[test]
fn damaged_archives_are_errors() {
    let whole = zip(&SCRIPT);
    for length in 0..whole.len() {
        assert!(opened("m.pt", &whole[..length]).is_err(), "{length} bytes");
    }
    for at in 0..whole.len() {
        for bit in [0x01, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[at] ^= bit;
            let _ = opened("m.pt", &changed);
        }
    }
}

#[test]
fn files_in_an_archive_are_read_within_a_limit() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&zip(&SCRIPT)).expect("written");
    let archive = Archive::open(file.path()).expect("an archive");
    assert_eq!(archive.read("data.pkl", 10).expect("empty"), b"");
    assert!(archive.read("other", 10).is_err());
}
