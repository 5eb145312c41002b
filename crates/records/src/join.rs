//! Shapes records and predictions as SageMaker's `DataProcessing` does: the input filter applies to
//! the record, the prediction is joined with the unfiltered record, and the output filter applies to
//! the joined one. [`Key`] puts one part of the record beside the prediction instead of all.

use std::borrow::Cow;

use tensorserve_codec::formats::RecordFormat;
use tensorserve_tensor::error::{Error, Result};

use crate::filter::{JsonPath, fields, without_line_end};
use crate::text;

/// The member that holds the prediction.
const OUTPUT_MEMBER: &[u8] = b"SageMakerOutput";

/// Appends to `out` the record `input` joined with its prediction: an object gets the member
/// `SageMakerOutput`, in place of one that it has; any other value becomes
/// `{"SageMakerInput": input, "SageMakerOutput": output}`. Values are copied byte for byte, without
/// line breaks.
///
/// # Errors
/// [`Error::invalid`] if one of them is not JSON.
pub fn join_json(input: &[u8], output: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let input = text::document(input).map_err(|error| error.context("the record"))?;
    let output = text::document(output).map_err(|error| error.context("the prediction"))?;
    if input.first() != Some(&b'{') {
        out.extend_from_slice(b"{\"SageMakerInput\":");
        text::append_on_one_line(input, out);
        out.extend_from_slice(b",\"SageMakerOutput\":");
        text::append_on_one_line(output, out);
        out.push(b'}');
        return Ok(());
    }
    let mut separator = b'{';
    text::members(input, |member| {
        if *member.name != *OUTPUT_MEMBER {
            out.push(separator);
            out.extend_from_slice(member.raw_name);
            out.push(b':');
            text::append_on_one_line(member.value, out);
            separator = b',';
        }
        Ok(())
    })?;
    out.push(separator);
    out.extend_from_slice(b"\"SageMakerOutput\":");
    text::append_on_one_line(output, out);
    out.push(b'}');
    Ok(())
}

/// Appends to `out` the columns of `input` and those of `output`: `1,2,3` and `1` are `1,2,3,1`.
///
/// # Errors
/// [`Error::invalid`] if one of them has a line break other than at its end.
pub fn join_csv(input: &[u8], output: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (input, output) = (one_row(input, "the record")?, one_row(output, "the prediction")?);
    out.extend_from_slice(input);
    out.push(b',');
    out.extend_from_slice(output);
    Ok(())
}

/// `row` without the line break at its end.
fn one_row<'a>(row: &'a [u8], what: &str) -> Result<&'a [u8]> {
    let row = without_line_end(row);
    if row.contains(&b'\n') {
        return Err(Error::invalid(format!(
            "{what} has several lines, and a record of CSV has one: {:?}",
            text::excerpt(row)
        )));
    }
    Ok(row)
}

/// The part of a record that identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A column of a CSV row; a negative number counts from the last one.
    Column(i64),
    /// A member of a JSON object.
    Member(String),
}

impl Key {
    /// The key that `text` names in records of this format.
    ///
    /// # Errors
    /// [`Error::invalid`] for a column that is not an integer.
    pub fn parse(text: &str, format: RecordFormat) -> Result<Key> {
        match format {
            RecordFormat::Json => Ok(Key::Member(text.to_owned())),
            RecordFormat::Csv => text.parse().map(Key::Column).map_err(|_| {
                Error::invalid(format!(
                    "the key {text:?} is not a column of CSV: give its index, 0 for the first column"
                ))
            }),
        }
    }
}

/// What becomes of records before, and of predictions after the model.
#[derive(Clone, Debug)]
pub struct Shaping {
    input_filter: JsonPath,
    join: bool,
    output_filter: JsonPath,
    key: Option<Key>,
    format: RecordFormat,
}

impl Shaping {
    /// Shaping of records of this format. With `join`, predictions are joined with their records.
    ///
    /// # Errors
    /// [`Error::invalid`] for a filter or a key that records of this format cannot have.
    pub fn new(
        format: RecordFormat,
        input_filter: JsonPath,
        join: bool,
        output_filter: JsonPath,
    ) -> Result<Shaping> {
        if format == RecordFormat::Csv {
            input_filter.check_csv().map_err(|error| error.context("input filter"))?;
            output_filter.check_csv().map_err(|error| error.context("output filter"))?;
        }
        Ok(Shaping { input_filter, join, output_filter, key: None, format })
    }

    /// This shaping with a part of the record, `key`, beside each prediction: `{"key": …, "output": …}`, or
    /// `key,prediction` in CSV. The output filter applies to that.
    ///
    /// # Errors
    /// [`Error::invalid`] if predictions are joined with whole records already, or if the key is
    /// one of the other format.
    pub fn with_key(mut self, key: Key) -> Result<Shaping> {
        if self.join {
            return Err(Error::invalid(
                "predictions are joined with their whole records, so no key can be put beside \
                 them: give either the key or the join",
            ));
        }
        let is_valid = match key {
            Key::Column(_) => self.format == RecordFormat::Csv,
            Key::Member(_) => self.format == RecordFormat::Json,
        };
        if !is_valid {
            return Err(Error::invalid(
                "the key is a column for records of JSON, or a member for records of CSV",
            ));
        }
        self.key = Some(key);
        Ok(self)
    }

    /// Whether records and predictions stay as they are.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.input_filter.is_identity() && self.keeps_predictions()
    }

    /// Whether the model gets records as they are.
    #[must_use]
    pub fn keeps_inputs(&self) -> bool {
        self.input_filter.is_identity()
    }

    /// Whether predictions are written as they are.
    #[must_use]
    pub fn keeps_predictions(&self) -> bool {
        !self.join && self.key.is_none() && self.output_filter.is_identity()
    }

    /// What the model gets of `record`.
    ///
    /// # Errors
    /// [`Error::invalid`] if the input filter cannot apply.
    pub fn input<'r>(&self, record: &'r [u8]) -> Result<Cow<'r, [u8]>> {
        if self.input_filter.is_identity() {
            return Ok(Cow::Borrowed(record));
        }
        let filtered = filtered(&self.input_filter, record, self.format);
        filtered.map(Cow::Owned).map_err(|error| error.context("input filter"))
    }

    /// What is written for `record`, whose prediction is `prediction`.
    ///
    /// # Errors
    /// [`Error::invalid`] if the join or the output filter cannot apply.
    pub fn output<'p>(&self, record: &[u8], prediction: &'p [u8]) -> Result<Cow<'p, [u8]>> {
        if self.keeps_predictions() {
            return Ok(Cow::Borrowed(prediction));
        }
        let joined = self.joined(record, prediction)?;
        if self.output_filter.is_identity() {
            return Ok(joined);
        }
        let filtered = filtered(&self.output_filter, &joined, self.format);
        filtered.map(Cow::Owned).map_err(|error| error.context("output filter"))
    }

    fn joined<'p>(&self, record: &[u8], prediction: &'p [u8]) -> Result<Cow<'p, [u8]>> {
        let mut out = Vec::with_capacity(record.len() + prediction.len() + 32);
        match &self.key {
            _ if self.join => match self.format {
                RecordFormat::Json => join_json(record, prediction, &mut out)?,
                RecordFormat::Csv => join_csv(record, prediction, &mut out)?,
            },
            Some(Key::Member(name)) => append_member(name, record, prediction, &mut out)?,
            Some(Key::Column(index)) => join_csv(column(*index, record)?, prediction, &mut out)?,
            None => return Ok(Cow::Borrowed(prediction)),
        }
        Ok(Cow::Owned(out))
    }
}

fn filtered(filter: &JsonPath, record: &[u8], format: RecordFormat) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(record.len());
    match format {
        RecordFormat::Json => filter.apply_json(record, &mut out)?,
        RecordFormat::Csv => filter.apply_csv(one_row(record, "the record")?, &mut out)?,
    }
    Ok(out)
}

/// Appends `{"key":…,"output":…}`.
fn append_member(name: &str, record: &[u8], prediction: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let record = text::document(record).map_err(|error| error.context("the record"))?;
    let prediction = text::document(prediction).map_err(|error| error.context("the prediction"))?;
    if record.first() != Some(&b'{') {
        return Err(Error::invalid(format!(
            "the record is {}, not an object with the key {name:?}",
            text::kind(record)
        )));
    }
    let mut key = None;
    text::members(record, |member| {
        if *member.name == *name.as_bytes() {
            key = Some(member.value);
        }
        Ok(())
    })?;
    let Some(key) = key else {
        return Err(Error::invalid(format!(
            "the record has no member {name:?}, which is the key: {}",
            text::excerpt(record)
        )));
    };
    out.extend_from_slice(b"{\"key\":");
    text::append_on_one_line(key, out);
    out.extend_from_slice(b",\"output\":");
    text::append_on_one_line(prediction, out);
    out.push(b'}');
    Ok(())
}

/// The column of a CSV row, with its quotes.
fn column(index: i64, record: &[u8]) -> Result<&[u8]> {
    let fields = fields(one_row(record, "the record")?);
    let count = fields.len();
    let from_end = || usize::try_from(index.unsigned_abs()).ok().and_then(|i| count.checked_sub(i));
    let position = usize::try_from(index).ok().or_else(from_end);
    position.and_then(|position| fields.get(position)).copied().ok_or_else(|| {
        Error::invalid(format!(
            "the record has {count} columns, and the key is column {index} (the first is 0)"
        ))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(expression: &str) -> JsonPath {
        JsonPath::parse(expression).expect(expression)
    }

    fn json(input: &str, output: &str) -> String {
        let mut out = Vec::new();
        join_json(input.as_bytes(), output.as_bytes(), &mut out).expect(input);
        String::from_utf8(out).expect("UTF-8")
    }

    fn shaping(format: RecordFormat, input: &str, join: bool, output: &str) -> Shaping {
        Shaping::new(format, path(input), join, path(output)).expect("valid")
    }

    fn output(shaping: &Shaping, record: &str, prediction: &str) -> Result<String> {
        let output = shaping.output(record.as_bytes(), prediction.as_bytes())?;
        Ok(String::from_utf8(output.into_owned()).expect("UTF-8"))
    }

    #[test]
    fn an_object_gets_a_member() {
        assert_eq!(json(r#"{"a": 1.50}"#, "[2]"), r#"{"a":1.50,"SageMakerOutput":[2]}"#);
        assert_eq!(json("{}", "null"), r#"{"SageMakerOutput":null}"#);
        let existing = r#"{"SageMakerOutput":{"x":1},"b":2,"SageMaker\u004futput":3}"#;
        assert_eq!(json(existing, "7"), r#"{"b":2,"SageMakerOutput":7}"#);
        assert_eq!(
            json("{\n  \"a\": [1,\n 2]\n}\n", "[\n3]\n"),
            r#"{"a":[1,2],"SageMakerOutput":[3]}"#
        );
    }

    #[test]
    fn other_values_become_members() {
        assert_eq!(json("[1, 2]", "0.5"), r#"{"SageMakerInput":[1, 2],"SageMakerOutput":0.5}"#);
        assert_eq!(json("\"t\"", "NaN"), r#"{"SageMakerInput":"t","SageMakerOutput":NaN}"#);
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_side() {
        let message = |input: &[u8], output: &[u8]| {
            let error = join_json(input, output, &mut Vec::new()).expect_err("malformed");
            error.message().to_owned()
        };
        assert!(message(b"{", b"1").starts_with("the record: is not JSON"));
        assert!(message(b"1", b"1,2").starts_with("the prediction: is not JSON"));
        assert!(message(b"", b"1").starts_with("the record"));
    }

    #[test]
    fn columns_are_appended() {
        let mut out = Vec::new();
        join_csv(b"1,2,3", b"1", &mut out).expect("valid");
        assert_eq!(out, b"1,2,3,1");
        out.clear();
        join_csv(b"\"a,b\",2\r\n", b"0.5,0.5\n", &mut out).expect("valid");
        assert_eq!(out, b"\"a,b\",2,0.5,0.5");
        assert!(join_csv(b"1\n2", b"1", &mut out).is_err());
        assert!(join_csv(b"1", b"1\n2", &mut out).is_err());
    }

    #[test]
    fn filters_apply_around_the_join() {
        // The guide's example: an ID column that the model does not see, and ID and result as output.
        let csv = shaping(RecordFormat::Csv, "$[1:]", true, "$[0,-1]");
        assert_eq!(&*csv.input(b"id7,1,2").expect("valid"), b"1,2");
        assert_eq!(output(&csv, "id7,1,2", "0.9").expect("valid"), "id7,0.9");
        let json = shaping(RecordFormat::Json, "$.features", true, "$['id','SageMakerOutput']");
        let record = r#"{"id":"x","features":[1,2]}"#;
        assert_eq!(&*json.input(record.as_bytes()).expect("valid"), b"[1,2]");
        let expected = r#"{"id":"x","SageMakerOutput":{"p":0.9}}"#;
        assert_eq!(output(&json, record, r#"{"p":0.9}"#).expect("valid"), expected);
        let only_output = shaping(RecordFormat::Json, "$", false, "$.p");
        assert_eq!(output(&only_output, record, r#"{"p":0.9}"#).expect("valid"), "0.9");
        let out_of_range = shaping(RecordFormat::Csv, "$", true, "$[5]");
        let error = output(&out_of_range, "1,2", "3").expect_err("three columns");
        assert!(error.message().starts_with("output filter: "), "{error}");
    }

    #[test]
    fn names_are_refused_for_csv() {
        let refused = Shaping::new(RecordFormat::Csv, path("$.a"), false, path("$"));
        assert!(refused.expect_err("a name").message().starts_with("input filter: "));
        assert!(Shaping::new(RecordFormat::Csv, path("$"), false, path("$['a','b']")).is_err());
    }

    #[test]
    fn identity_copies_nothing() {
        let shaping = shaping(RecordFormat::Json, "$", false, "$");
        assert!(shaping.is_identity());
        assert!(matches!(shaping.input(b"not JSON"), Ok(Cow::Borrowed(b"not JSON"))));
        assert!(matches!(shaping.output(b"", b"not JSON"), Ok(Cow::Borrowed(b"not JSON"))));
    }

    #[test]
    fn a_key_goes_beside_the_prediction() {
        let plain = |format| shaping(format, "$", false, "$");
        let key = Key::parse("id", RecordFormat::Json).expect("a member");
        let json = plain(RecordFormat::Json).with_key(key).expect("valid");
        assert!(!json.is_identity());
        let record = r#"{"id": "x", "f": [1]}"#;
        assert_eq!(output(&json, record, "[2]").expect("valid"), r#"{"key":"x","output":[2]}"#);
        assert!(output(&json, "{\"i\":1}", "2").expect_err("no key").message().contains("\"id\""));
        assert!(output(&json, "[1]", "2").expect_err("an array").message().contains("an array"));
        for (index, expected) in [("0", "\"a,b\",9"), ("-1", "c,9"), ("1", "c,9")] {
            let key = Key::parse(index, RecordFormat::Csv).expect("a column");
            let csv = plain(RecordFormat::Csv).with_key(key).expect("valid");
            assert_eq!(output(&csv, "\"a,b\",c", "9").expect("valid"), expected);
        }
        for index in ["2", "-3", "-9223372036854775808"] {
            let key = Key::parse(index, RecordFormat::Csv).expect("a column");
            let csv = plain(RecordFormat::Csv).with_key(key).expect("valid");
            assert!(output(&csv, "a,b", "9").expect_err("two").message().contains("2 columns"));
        }
        assert!(Key::parse("id", RecordFormat::Csv).is_err());
        assert!(plain(RecordFormat::Json).with_key(Key::Column(0)).is_err());
        assert!(shaping(RecordFormat::Csv, "$", true, "$").with_key(Key::Column(0)).is_err());
    }

    proptest! {
        #[test]
        fn the_join_of_an_object_gives_its_parts_back(a in "[a-z]{0,8}", number: i64) {
            let record = format!("{{\"a\":\"{a}\"}}");
            let joined = json(&record, &number.to_string());
            let select = |expression: &str| {
                let mut out = Vec::new();
                path(expression).apply_json(joined.as_bytes(), &mut out).expect("valid");
                String::from_utf8(out).expect("UTF-8")
            };
            prop_assert_eq!(select("$['a']"), format!("\"{a}\""));
            prop_assert_eq!(select("$.SageMakerOutput"), number.to_string());
        }

        #[test]
        fn any_bytes_are_joined_or_refused(input: Vec<u8>, output: Vec<u8>) {
            let _ = join_json(&input, &output, &mut Vec::new());
            let _ = join_csv(&input, &output, &mut Vec::new());
        }
    }
}
