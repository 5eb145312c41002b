//! Properties of the JSON reader and writer, checked against `serde_json` and the standard library
//! (`docs/decisions/0007-own-json-reader-and-writer.md`, which also lists the intended differences).
//!
//! The ordinary tests check some thousand random cases of each property. For millions of them, which
//! take some minutes:
//!
//! ```text
//! cargo test -p tensorserve-codec --release --test json_properties -- --ignored
//! ```
#![allow(
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm
)]

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use serde_json::Value;
use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::json::read::{ReadOptions, TensorReadError, TensorReader};
use tensorserve_codec::json::scan::Cursor;
use tensorserve_codec::json::write::{self, Style};
use tensorserve_tensor::{DType, Tensor};

mod documents;
mod numbers;
mod strings;
mod tensors;

use documents::*;
use numbers::*;
use strings::*;
use tensors::*;

/// Cases of each property in the ordinary tests.
const CASES: u32 = 2_000;

/// Cases of each property in `millions_of_cases`.
const MANY_CASES: u32 = 1_000_000;

/// Defines a test per property, and one that checks all of them with many cases.
macro_rules! properties {
    ($($name:ident: $strategy:expr, $property:expr;)*) => {
        $(
            #[test]
            fn $name() {
                check(CASES, $strategy, $property);
            }
        )*

        #[test]
        #[ignore = "takes minutes; see the top of the file"]
        fn millions_of_cases() {
            $(
                println!("{}", stringify!($name));
                check(MANY_CASES, $strategy, $property);
            )*
        }
    };
}

properties! {
    number_tokens_are_read_as_std_parses_them: number_token(), number_reads_as_std;
    printed_doubles_are_read_exactly: double(), printed_double_reads_back;
    numbers_that_serde_json_refuses_are_refused: "[-+.eE0-9]{1,12}", same_verdict;
    float32s_are_written_in_digits_that_round_trip: float32(), float32_round_trips;
    doubles_are_written_in_digits_that_round_trip: double(), double_round_trips;
    doubles_are_written_as_python_repr_does: double(), python_repr_is_shortest;
    integers_of_every_width_round_trip: integer(), integer_round_trips;
    strings_are_read_as_serde_json_reads_them: string_literal(), string_reads_as_serde;
    malformed_strings_are_refused: malformed_string_literal(), string_reads_as_serde;
    any_bytes_round_trip_as_a_string: vec(any::<u8>(), 0..60), bytes_round_trip;
    documents_are_read_as_serde_json_reads_them: document_text(), document_reads_as_serde;
    mutated_documents_are_refused_where_serde_json_refuses: mutated_document(), same_verdict;
    any_text_is_refused_where_serde_json_refuses: token_soup(), same_verdict;
    nesting_of_any_depth_is_skipped: (nesting(), 0..2_000_usize), nesting_is_skipped;
    tensors_of_every_dtype_round_trip: (tensor(), style()), tensor_round_trips;
}

fn check<S>(cases: u32, strategy: S, property: impl Fn(S::Value) -> TestCaseResult)
where
    S: Strategy,
    S::Value: Debug,
{
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(&strategy, property) {
        panic!("{error}");
    }
}

/// Every dtype that numbers can have, strict types, and standard base64.
const OPTIONS: ReadOptions = ReadOptions {
    coerce: false,
    all_types: true,
    nulls: false,
    number_texts: None,
    alphabet: Alphabet::Standard,
    max_bytes: 1 << 20,
};

fn read_tensor(dtype: DType, text: impl AsRef<[u8]>) -> Result<Tensor, TensorReadError> {
    let mut reader = TensorReader::new(dtype, OPTIONS, text.as_ref().len());
    let mut cursor = Cursor::new(text.as_ref());
    reader.read(&mut cursor).map_err(|error| *error)?;
    assert_eq!(cursor.remaining(), 0, "the whole text is one value");
    Ok(reader.finish().expect("as many elements as the shape says"))
}

fn write_tensor(tensor: &Tensor, style: Style) -> Vec<u8> {
    let mut out = Vec::new();
    write::tensor(tensor, style, 0, &mut out).expect("a dtype with a JSON form");
    out
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).expect("ASCII")
}

/// How far serde_json's doubles are from the nearest one, in units of the last place.
const SERDE_JSON_ULPS: u64 = 2;

/// Equality up to the rounding of serde_json, and to the sign of the token -0.
fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(x), Some(y)) => {
                a == b || (x == 0.0 && y == 0.0) || ulps_apart(x, y) <= SERDE_JSON_ULPS
            }
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(name, a)| b.get(name).is_some_and(|b| same_value(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        _ => a == b,
    }
}

fn ulps_apart(a: f64, b: f64) -> u64 {
    if a.is_sign_positive() != b.is_sign_positive() {
        return u64::MAX;
    }
    a.to_bits().abs_diff(b.to_bits())
}
