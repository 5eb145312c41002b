//! The body of `:classify` and `:regress`: `{"signature_name": …, "context": {…}, "examples":
//! [{…}, …]}`, where each object of features becomes a serialized `tensorflow.Example`.
//!
//! The JSON text determines the type of a feature: strings and `{"b64": "…"}` become bytes, integers
//! and booleans int64, numbers with a decimal point or an exponent floats. Of duplicate members, the
//! first wins in the body and the last in an example, as in the reference.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::classify::{ExamplesBuilder, too_large};
use super::fault;
use super::outline::Outline;
use tensorserve_codec::base64::{self, Alphabet};
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::read::is_base64_object;
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_proto::tensorflow::feature::Kind;
use tensorserve_proto::tensorflow::features::Entry;
use tensorserve_proto::{BytesList, Example, Feature, Features, FloatList, Int64List};
use tensorserve_tensor::budget::Meter;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::quoted;
use tensorserve_tensor::{STRING_OVERHEAD, Tensor};

/// A decoded body.
pub(super) struct DecodedExamples {
    /// Empty for the default signature.
    pub(super) signature_name: String,
    /// The serialized examples of the body, each preceded by the context.
    pub(super) examples: Tensor,
}

/// Decodes a body. It needs no model: the reference reports mistakes in the body before an unknown
/// model.
pub(super) fn decode(body: &[u8], max_bytes: usize) -> Result<DecodedExamples> {
    let outline = Outline::of(body, ["signature_name", "context", "examples"])?;
    let [signature_name, context, examples] = outline.members;
    let signature_name = outline.signature_name(signature_name)?;
    let mut serialized = Vec::new();
    if let Some(offset) = context {
        let mut reader = ExampleReader {
            body,
            cursor: outline.at(offset),
            room: max_bytes,
            meter: Meter::default(),
        };
        serialize(&reader.example()?, &mut serialized)?;
    }
    let Some(offset) = examples else {
        return Err(
            outline.error("When method is classify, key 'examples' is expected and was not found")
        );
    };
    let mut cursor = outline.at(offset);
    if cursor.peek() != b'[' {
        return Err(outline.error("Expecting 'examples' value to be an list/array"));
    }
    if !cursor.open_array() {
        return Err(outline.error("'examples' value is an empty array"));
    }
    Ok(DecodedExamples {
        signature_name: String::from_utf8_lossy(&signature_name).into_owned(),
        examples: read_examples(body, cursor, ExamplesBuilder::new(&serialized, max_bytes))?,
    })
}

/// Reads the elements of a list; `cursor` is at the first.
fn read_examples(body: &[u8], cursor: Cursor, mut all: ExamplesBuilder) -> Result<Tensor> {
    let mut reader = ExampleReader { body, cursor, room: 0, meter: Meter::default() };
    let mut serialized = Vec::new();
    loop {
        reader.room = all.room();
        let example = reader.example()?;
        serialized.clear();
        serialize(&example, &mut serialized)?;
        all.push(&serialized)?;
        if !reader.cursor.next_element().map_err(fault::syntax)? {
            return all.into_tensor();
        }
    }
}

fn serialize(example: &Example, out: &mut Vec<u8>) -> Result<()> {
    example
        .encode(out)
        .map_err(|e| Error::internal("an example cannot be serialized").with_source(e))
}

/// Reads objects of features.
struct ExampleReader<'b> {
    body: &'b [u8],
    cursor: Cursor<'b>,
    /// The remaining memory budget in bytes.
    room: usize,
    meter: Meter,
}

impl<'b> ExampleReader<'b> {
    /// The approximate overhead of a feature and of a string: a payload must not take many times its
    /// size in memory.
    const FEATURE: usize = 128;

    fn example(&mut self) -> Result<Example> {
        if self.cursor.peek() != b'{' {
            let kind = self.kind();
            let message = format!("Example must be JSON object but got JSON {kind}");
            return Err(Error::invalid(message));
        }
        let mut features = BTreeMap::new();
        let mut more = self.cursor.open_object().map_err(fault::syntax)?;
        while more {
            let name = self.cursor.name().map_err(fault::syntax)?;
            self.take(Self::FEATURE + name.len())?;
            let feature = Feature { kind: self.feature(&name)? };
            features.insert(name, feature);
            more = self.cursor.next_member().map_err(fault::syntax)?;
        }
        if features.is_empty() {
            return Ok(Example::default());
        }
        let feature = features.into_iter().map(feature_entry).collect();
        Ok(Example { features: Some(Features { feature }) })
    }

    /// The values of the feature `name`: a list, or one value. `None` for an empty list.
    fn feature(&mut self, name: &[u8]) -> Result<Option<Kind>> {
        let mut kind = None;
        if self.cursor.peek() != b'[' {
            self.value(name, &mut kind)?;
            return Ok(kind);
        }
        let mut more = self.cursor.open_array();
        while more {
            self.value(name, &mut kind)?;
            more = self.cursor.next_element().map_err(fault::syntax)?;
        }
        Ok(kind)
    }

    /// Adds the value at the cursor to `kind`.
    fn value(&mut self, name: &[u8], kind: &mut Option<Kind>) -> Result<()> {
        match self.cursor.peek() {
            b'"' => {
                let list = bytes_list(name, kind)?;
                let text = self.cursor.string().map_err(fault::syntax)?;
                self.take(STRING_OVERHEAD + text.len())?;
                self.meter.push(list, text.into_owned().into())?;
            }
            b'{' if is_base64_object(&self.cursor).map_err(fault::syntax)? => {
                let list = bytes_list(name, kind)?;
                let bytes = self.base64()?;
                self.meter.push(list, bytes)?;
            }
            b'n' | b'[' | b'{' => {
                let (name, kind) = (quoted(name), self.kind());
                return Err(Error::invalid(format!(
                    "Feature: {name} has element with unexpected JSON type: {kind}"
                )));
            }
            byte @ (b't' | b'f') => {
                let list = int64_list(name, kind)?;
                self.take(size_of::<i64>())?;
                self.cursor.skip_value().map_err(fault::syntax)?;
                list.push(i64::from(byte == b't'));
            }
            _ => self.number(name, kind)?,
        }
        Ok(())
    }

    fn number(&mut self, name: &[u8], kind: &mut Option<Kind>) -> Result<()> {
        self.take(size_of::<i64>())?;
        match self.cursor.number().map_err(fault::syntax)? {
            // Rounded to nearest; too large numbers become infinite, as in C.
            #[allow(clippy::cast_possible_truncation)]
            Number::Float(x) => float_list(name, kind)?.push(x as f32),
            Number::Negative(n) => int64_list(name, kind)?.push(n),
            Number::Unsigned(n) => {
                let list = int64_list(name, kind)?;
                let Ok(n) = i64::try_from(n) else {
                    let name = quoted(name);
                    return Err(Error::invalid(format!(
                        "Feature: {name} has uint64_t element. Only int64_t is supported."
                    )));
                };
                list.push(n);
            }
        }
        Ok(())
    }

    /// The bytes of the object `{"b64": "…"}` at the cursor.
    fn base64(&mut self) -> Result<Bytes> {
        let text = self.base64_text().map_err(fault::syntax)?;
        self.take(STRING_OVERHEAD + text.len())?;
        let mut bytes = Vec::new();
        base64::decode(&text, Alphabet::Standard, &mut bytes)
            .map_err(|_| Error::invalid("Unable to base64 decode"))?;
        Ok(bytes.into())
    }

    fn base64_text(&mut self) -> Result<Cow<'b, [u8]>, SyntaxError> {
        self.cursor.open_object()?;
        self.cursor.name()?;
        let text = self.cursor.string()?;
        self.cursor.next_member()?;
        Ok(text)
    }

    /// RapidJSON's name for the type of the value at the cursor.
    fn kind(&self) -> &'static str {
        fault::kind_of(self.body, self.cursor.offset())
    }

    /// Takes `bytes` from the memory budget.
    fn take(&mut self, bytes: usize) -> Result<()> {
        self.room = self.room.checked_sub(bytes).ok_or_else(too_large)?;
        self.meter.add(bytes)
    }
}

fn feature_entry((name, value): (Cow<'_, [u8]>, Feature)) -> Entry {
    Entry { key: Some(name.into_owned().into()), value: Some(value) }
}

/// The byte list of a feature; an error if it already has values of another type.
fn bytes_list<'k>(name: &[u8], kind: &'k mut Option<Kind>) -> Result<&'k mut Vec<Bytes>> {
    match kind.get_or_insert_with(|| Kind::BytesList(BytesList::default())) {
        Kind::BytesList(list) => Ok(&mut list.value),
        Kind::FloatList(_) => Err(mixed(name, "float")),
        Kind::Int64List(_) => Err(mixed(name, "int64")),
    }
}

/// The float list of a feature; an error if it already has values of another type.
fn float_list<'k>(name: &[u8], kind: &'k mut Option<Kind>) -> Result<&'k mut Vec<f32>> {
    match kind.get_or_insert_with(|| Kind::FloatList(FloatList::default())) {
        Kind::FloatList(list) => Ok(&mut list.value),
        Kind::BytesList(_) => Err(mixed(name, "bytes")),
        Kind::Int64List(_) => Err(mixed(name, "int64")),
    }
}

/// The integer list of a feature; an error if it already has values of another type.
fn int64_list<'k>(name: &[u8], kind: &'k mut Option<Kind>) -> Result<&'k mut Vec<i64>> {
    match kind.get_or_insert_with(|| Kind::Int64List(Int64List::default())) {
        Kind::Int64List(list) => Ok(&mut list.value),
        Kind::BytesList(_) => Err(mixed(name, "bytes")),
        Kind::FloatList(_) => Err(mixed(name, "float")),
    }
}

fn mixed(name: &[u8], expected: &str) -> Error {
    let name = quoted(name);
    Error::invalid(format!("Unexpected element type in feature: {name} expecting type: {expected}"))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    const ROOM: usize = 1 << 20;

    fn serialized(body: &str) -> Vec<Vec<u8>> {
        let examples = decode(body.as_bytes(), ROOM).expect(body).examples;
        examples.strings().expect("strings").iter().map(<[u8]>::to_vec).collect()
    }

    fn error(body: &str) -> String {
        let error = decode(body.as_bytes(), ROOM).map(|_| ()).expect_err(body);
        error.message().to_owned()
    }

    #[test]
    fn examples_are_encoded_as_tensorflow_does() {
        let one = |features: &str| serialized(&format!(r#"{{"examples": [{features}]}}"#));
        let floats = b"\x0a\x0f\x0a\x0d\x0a\x01x\x12\x08\x12\x06\x0a\x04\x00\x00\x20\x40";
        assert_eq!(one(r#"{"x": 2.5}"#), [floats]);
        assert_eq!(one(r#"{"x": [2.5]}"#), [floats]);
        // Packed, and a negative number as ten bytes.
        let ints = b"\x0a\x19\x0a\x17\x0a\x01x\x12\x12\x1a\x10\x0a\x0e\xac\x02\
            \xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01\x00";
        assert_eq!(one(r#"{"x": [300, -1, true, false]}"#), [ints]);
        let texts = b"\x0a\x10\x0a\x0e\x0a\x01x\x12\x09\x0a\x07\x0a\x02hi\x0a\x01\xff";
        assert_eq!(one(r#"{"x": ["hi", {"b64": "/w=="}]}"#), [texts]);
        // A feature without values is still present, as the parser of examples requires.
        let empty = b"\x0a\x07\x0a\x05\x0a\x01x\x12\x00";
        assert_eq!(one(r#"{"x": []}"#), [empty]);
        let unnamed = b"\x0a\x0b\x0a\x09\x0a\x00\x12\x05\x1a\x03\x0a\x01\x07";
        assert_eq!(one(r#"{"": 7}"#), [unnamed]);
        assert_eq!(one("{}"), [b""]);
    }

    #[test]
    fn the_context_comes_before_each_example() {
        let examples = serialized(r#"{"examples": [{"x": 1}, {}], "context": {"x": 2}}"#);
        let feature = |value: u8| {
            let mut example = b"\x0a\x0c\x0a\x0a\x0a\x01x\x12\x05\x1a\x03\x0a\x01".to_vec();
            example.push(value);
            example
        };
        assert_eq!(examples, [[feature(2), feature(1)].concat(), feature(2)]);
    }

    #[test]
    fn the_first_duplicate_member_and_the_last_duplicate_feature_win() {
        let body = r#"{"examples": [{"x": 1, "x": 7}], "examples": 5, "signature_name": "a"}"#;
        let seven = b"\x0a\x0c\x0a\x0a\x0a\x01x\x12\x05\x1a\x03\x0a\x01\x07";
        assert_eq!(serialized(body), [seven]);
        assert_eq!(decode(body.as_bytes(), ROOM).expect("valid").signature_name, "a");
        // Both are read and checked.
        let text = error(r#"{"examples": [{"x": null, "x": 7}]}"#);
        assert_eq!(text, "Feature: x has element with unexpected JSON type: Null");
    }

    #[test]
    fn the_text_determines_the_type() {
        let mixed = |values: &str| error(&format!(r#"{{"examples": [{{"x": [{values}]}}]}}"#));
        let expecting =
            |kind| format!("Unexpected element type in feature: x expecting type: {kind}");
        for ints in ["1, 1.0", "true, 1e0", "-5, \"a\"", "1, NaN", "1, 18446744073709551616"] {
            assert_eq!(mixed(ints), expecting("int64"), "{ints}");
        }
        // A wrong type is reported before a wrong value.
        for floats in
            ["1.0, 1", "NaN, true", "-Infinity, {\"b64\": \"*\"}", "1e5, 9223372036854775808"]
        {
            assert_eq!(mixed(floats), expecting("float"), "{floats}");
        }
        for bytes in ["\"a\", 1", "{\"b64\": \"\"}, 1.5", "\"\", false"] {
            assert_eq!(mixed(bytes), expecting("bytes"), "{bytes}");
        }
        assert_eq!(mixed("1.5, null"), "Feature: x has element with unexpected JSON type: Null");
        assert_eq!(mixed(r#""a", {"b64": "*"}"#), "Unable to base64 decode");
    }

    #[test]
    fn checks_come_in_the_references_order() {
        let all = r#"{"signature_name": 5, "context": 5, "examples": 5"#;
        assert!(error(all).starts_with("JSON Parse error: Missing a comma or }"));
        assert!(
            error(&format!("{all}}}")).ends_with("'signature_name' key must be a string value.")
        );
        let text = error(r#"{"context": 5, "examples": 5}"#);
        assert_eq!(text, "Example must be JSON object but got JSON Number");
        let text = error(r#"{"examples": 5}"#);
        let want =
            "JSON Value: {\n    \"examples\": 5\n} Expecting 'examples' value to be an list/array";
        assert_eq!(text, want);
        assert_eq!(error("[]"), "JSON Value: [] Is not object");
        assert_eq!(error(""), "JSON Parse error: The document is empty");
    }

    #[test]
    fn memory_is_bounded() {
        let too_large = "The examples, each with its context, take too much memory";
        // A context is repeated for each example.
        let context = "a".repeat(10_000);
        let examples = vec!["{}"; 1000].join(",");
        let body = format!(r#"{{"context": {{"x": "{context}"}}, "examples": [{examples}]}}"#);
        assert_eq!(error(&body), too_large);
        // Values, names and strings in one example that take many times their text.
        for value in [r#""","#, "0,", "{\"b64\":\"\"},"] {
            let values = value.repeat(1 << 18);
            let body = format!(r#"{{"examples": [{{"x": [{values}0]}}]}}"#);
            assert_eq!(error(&body), too_large, "{value}");
        }
        let names = r#""a":[],"#.repeat(1 << 14);
        assert_eq!(error(&format!(r#"{{"examples": [{{{names}"a":[]}}]}}"#)), too_large);
        let examples = vec!["{}"; 1 << 16].join(",");
        assert_eq!(error(&format!(r#"{{"examples": [{examples}]}}"#)), too_large);
    }

    fn json_string(text: &str) -> String {
        serde_json::to_string(text).expect("a string")
    }

    /// The JSON list of the values of a feature.
    fn json_values(kind: Option<&Kind>) -> String {
        let values: Vec<String> = match kind {
            None => Vec::new(),
            Some(Kind::BytesList(list)) => {
                list.value.iter().map(|bytes| json_bytes(bytes)).collect()
            }
            // Exact as a double, always with a point or an exponent.
            Some(Kind::FloatList(list)) => {
                list.value.iter().map(|&x| format!("{:?}", f64::from(x))).collect()
            }
            Some(Kind::Int64List(list)) => list.value.iter().map(i64::to_string).collect(),
        };
        format!("[{}]", values.join(","))
    }

    fn json_bytes(bytes: &[u8]) -> String {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return json_string(text);
        }
        let mut text = Vec::new();
        base64::encode(bytes, &mut text);
        format!(r#"{{"b64":"{}"}}"#, String::from_utf8(text).expect("ASCII"))
    }

    fn kinds() -> impl Strategy<Value = Option<Kind>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..6).prop_map(Bytes::from);
        let bytes = proptest::collection::vec(bytes, 1..4);
        let floats = proptest::collection::vec(proptest::num::f32::NORMAL, 1..4);
        let ints = proptest::collection::vec(any::<i64>(), 1..4);
        prop_oneof![
            Just(None),
            bytes.prop_map(|value| Some(Kind::BytesList(BytesList { value }))),
            floats.prop_map(|value| Some(Kind::FloatList(FloatList { value }))),
            ints.prop_map(|value| Some(Kind::Int64List(Int64List { value }))),
        ]
    }

    proptest! {
        #[test]
        fn decoding_gives_the_same_features(
            examples in proptest::collection::vec(
                proptest::collection::btree_map("\\PC{0,4}", kinds(), 0..4),
                1..4,
            ),
        ) {
            let mut objects = Vec::new();
            for example in &examples {
                let mut object = String::new();
                for (name, kind) in example {
                    let comma = if object.is_empty() { "" } else { "," };
                    let (name, values) = (json_string(name), json_values(kind.as_ref()));
                    write!(object, "{comma}{name}:{values}").expect("memory");
                }
                objects.push(format!("{{{object}}}"));
            }
            let encoded = serialized(&format!(r#"{{"examples":[{}]}}"#, objects.join(",")));
            prop_assert_eq!(encoded.len(), examples.len());
            for (bytes, example) in encoded.iter().zip(&examples) {
                let decoded = Example::decode(bytes.as_slice()).expect("an example");
                let entries = decoded.features.unwrap_or_default().feature;
                let features: BTreeMap<String, Option<Kind>> = entries
                    .into_iter()
                    .map(|entry| {
                        let name = entry.key.expect("a name").to_vec();
                        let value = entry.value.expect("a feature");
                        (String::from_utf8(name).expect("text"), value.kind)
                    })
                    .collect();
                prop_assert_eq!(&features, example);
            }
        }
    }
}
