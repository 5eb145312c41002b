//! Arrays that NumPy saved (`tests/cases/npy.json`), read and written.

use std::fs;

use serde::Deserialize;
use tensorserve_codec::{base64, npy};
use tensorserve_tensor::{Data, Tensor};

use crate::support::project;

#[derive(Deserialize)]
struct Case {
    name: String,
    file: String,
    dtype: String,
    shape: Vec<i64>,
    values: Values,
    same: bool,
}

/// In hexadecimal.
#[derive(Deserialize, PartialEq, Debug)]
#[serde(untagged)]
enum Values {
    Numbers(String),
    Strings(Vec<String>),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn values(tensor: &Tensor) -> Values {
    match tensor.data() {
        Data::Numeric(buffer) => Values::Numbers(hex(buffer.as_slice())),
        Data::Strings(strings) => Values::Strings(strings.iter().map(hex).collect()),
    }
}

#[test]
fn numpys_own_files_are_read_and_written() {
    let text = fs::read_to_string(project("tests/cases/npy.json")).expect("cases");
    let cases: Vec<Case> = serde_json::from_str(&text).expect("cases");
    assert_eq!(cases.len(), 63, "cases are missing");
    for case in cases {
        let mut file = Vec::new();
        base64::decode(case.file.as_bytes(), base64::Alphabet::Standard, &mut file).expect("file");
        let name = &case.name;
        let tensor = npy::read(&file, 1 << 20).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tensor.dtype().name(), case.dtype, "{name}");
        assert_eq!(tensor.shape().dims(), case.shape, "{name}");
        assert_eq!(values(&tensor), case.values, "{name}");
        let written = npy::write(&tensor, 1 << 20).unwrap_or_else(|e| panic!("{name}: {e}"));
        if case.same {
            assert_eq!(hex(&written), hex(&file), "{name}");
        }
        // The npy format has no bfloat16: it is written and read back as float32.
        let again = npy::read(&written, 1 << 20).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(again.shape().dims(), case.shape, "{name}");
        assert!(values(&again) == case.values || case.dtype == "bfloat16", "{name}");
    }
}
