//! Responses by rows: one JSON value per line, or comma-separated values.

use crate::tfs::TfsAnswer;
use crate::tfs::classify::Class;
use tensorserve_codec::formats::RecordFormat;
use tensorserve_codec::json::float;
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_codec::row_text::RowText;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Tensor, TensorSpec};

/// A line for each row, in this format.
pub(super) fn rows(answer: &TfsAnswer, format: RecordFormat) -> Result<RowText> {
    match format {
        RecordFormat::Json => lines(answer),
        RecordFormat::Csv => csv(answer),
    }
}

/// Each row as JSON on its own line: a value if there is one output, else an object.
fn lines(answer: &TfsAnswer) -> Result<RowText> {
    if let Some(lines) = lines_of_one(answer)? {
        return Ok(lines);
    }
    let lines = by_rows(answer, &|specs, row, out| {
        if let ([spec], [output]) = (specs, row) {
            return value(output, spec, out);
        }
        for (index, (spec, output)) in specs.iter().zip(row).enumerate() {
            out.push(if index == 0 { b'{' } else { b',' });
            budget::grow(out, write::string_len(spec.alias.as_bytes()) + ROW_FRAME)?;
            write::string(spec.alias.as_bytes(), out);
            out.push(b':');
            value(output, spec, out)?;
        }
        out.push(b'}');
        Ok(())
    })?;
    lines.map_or_else(|| examples(answer, class_list), Ok)
}

/// The lines of an answer that is one tensor of numbers: the same, and faster.
fn lines_of_one(answer: &TfsAnswer) -> Result<Option<RowText>> {
    let TfsAnswer::Outputs { tensors, .. } = answer else {
        return Ok(None);
    };
    let ([spec], [output]) = (answer.specs(), tensors.as_slice()) else {
        return Ok(None);
    };
    let mut out = RowText::default();
    let is_written = write::rows(output, style_of(spec), &mut out);
    let is_written = is_written.map_err(|error| error.into_error(no_form(spec)))?;
    Ok(is_written.then_some(out))
}

/// The values of each row, separated by commas, of one output after the other.
fn csv(answer: &TfsAnswer) -> Result<RowText> {
    let lines = by_rows(answer, &|specs, row, out| {
        for (index, (spec, output)) in specs.iter().zip(row).enumerate() {
            if index > 0 {
                out.push(b',');
            }
            flat(output, spec, out)?;
        }
        Ok(())
    })?;
    lines.map_or_else(|| examples(answer, class_fields), Ok)
}

/// The bytes of a row besides its values, at first.
const ROW_FRAME: usize = 64;

type WriteRow<'w> = &'w dyn Fn(&[TensorSpec], &[Tensor], &mut Vec<u8>) -> Result<()>;

/// One line for each row of the outputs; `None` if the answer is not tensors.
fn by_rows(answer: &TfsAnswer, write: WriteRow) -> Result<Option<RowText>> {
    let TfsAnswer::Outputs { tensors, .. } = answer else {
        return Ok(None);
    };
    let specs = answer.specs();
    let rows = common_rows(specs, tensors)?;
    let mut out = RowText::default();
    for index in 0..rows {
        let start = out.text.len();
        budget::grow(&mut out.text, ROW_FRAME)?;
        let row: Vec<Tensor> = tensors.iter().map(|tensor| tensor.row(index)).collect();
        write(specs, &row, &mut out.text)?;
        out.end_line(start)?;
    }
    Ok(Some(out))
}

/// The number of rows, which all outputs must have in common.
fn common_rows(specs: &[TensorSpec], tensors: &[Tensor]) -> Result<usize> {
    let mut all = tensors.iter().map(Tensor::rows);
    let first = all.next().flatten();
    match first {
        Some(rows) if all.all(|other| other == first) => Ok(rows),
        _ => {
            let shapes = specs.iter().zip(tensors);
            let shapes: Vec<String> =
                shapes.map(|(spec, t)| format!("{} {:?}", spec.alias, t.shape())).collect();
            let shapes = shapes.join(", ");
            Err(Error::invalid(format!(
                "the outputs do not all have the same number of rows ({shapes}): accept application/json"
            )))
        }
    }
}

fn value(tensor: &Tensor, spec: &TensorSpec, out: &mut Vec<u8>) -> Result<()> {
    let written = write::tensor(tensor, style_of(spec), 0, out);
    written.map_err(|error| error.into_error(no_form(spec)))
}

fn style_of(spec: &TensorSpec) -> Style {
    // By convention, outputs with this suffix hold bytes and not text.
    let texts = if spec.alias.ends_with("_bytes") { Texts::Base64 } else { Texts::Lossy };
    Style { layout: JsonLayout::Compact, floats: Floats::TensorFlowServing, texts }
}

fn no_form(spec: &TensorSpec) -> impl Fn(DType) -> Error {
    let alias = &spec.alias;
    move |dtype| {
        Error::invalid(format!("output {alias:?} is of type {dtype}, which has no text form"))
    }
}

/// Writes all values of a tensor without nesting.
fn flat(tensor: &Tensor, spec: &TensorSpec, out: &mut Vec<u8>) -> Result<()> {
    if let Some(strings) = tensor.strings() {
        for (index, text) in strings.iter().enumerate() {
            budget::grow(out, text.len().saturating_mul(2).saturating_add(3))?;
            if index > 0 {
                out.push(b',');
            }
            field(text, out);
        }
        return Ok(());
    }
    let mut nested = Vec::new();
    value(tensor, spec, &mut nested)?;
    budget::grow(out, nested.len())?;
    out.extend(nested.into_iter().filter(|byte| !b"[]".contains(byte)));
    Ok(())
}

/// Writes a field, in quotes if necessary.
fn field(text: &[u8], out: &mut Vec<u8>) {
    if !text.iter().any(|byte| b"\",\r\n".contains(byte)) {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for byte in text {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// One line for each example.
fn examples(answer: &TfsAnswer, write: fn(&[Class], &mut Vec<u8>)) -> Result<RowText> {
    let mut out = RowText::default();
    match answer {
        TfsAnswer::Outputs { .. } => {}
        TfsAnswer::Classes(all) => {
            for classes in all {
                let start = out.text.len();
                write(classes, &mut out.text);
                out.end_line(start)?;
            }
        }
        TfsAnswer::Numbers(all) => {
            for number in all {
                let start = out.text.len();
                float::float32(*number, &mut out.text);
                out.end_line(start)?;
            }
        }
    }
    Ok(out)
}

fn class_list(classes: &[Class], out: &mut Vec<u8>) {
    out.push(b'[');
    for (index, class) in classes.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
        write::string(&class.label, out);
        out.push(b',');
        float::float32(class.score, out);
        out.push(b']');
    }
    out.push(b']');
}

fn class_fields(classes: &[Class], out: &mut Vec<u8>) {
    for (index, class) in classes.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        field(&class.label, out);
        out.push(b',');
        float::float32(class.score, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        let csv = |text: &str| {
            let mut out = Vec::new();
            field(text.as_bytes(), &mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(csv("plain text"), "plain text");
        assert_eq!(csv("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
    }

    #[test]
    fn a_line_break_in_a_text_does_not_end_a_row() {
        let class = |label: &str| vec![Class { label: label.into(), score: 0.5 }];
        let rows = csv(&TfsAnswer::Classes(vec![class("a\nb"), class("c")])).expect("written");
        let row = |index: usize| String::from_utf8_lossy(&rows.text[rows.rows[index].clone()]);
        assert_eq!((rows.rows.len(), &*row(0), &*row(1)), (2, "\"a\nb\",0.5", "c,0.5"));
    }

    #[test]
    fn examples_have_a_line_each() {
        let class = |label: &str, score| Class { label: label.into(), score };
        let classes = TfsAnswer::Classes(vec![vec![class("a", 0.5), class("b,c", 1.0)], vec![]]);
        let text = |rows: RowText| {
            assert_eq!(rows.rows.len(), 2);
            String::from_utf8(rows.text).expect("text")
        };
        assert_eq!(
            lines(&classes).map(text).ok().as_deref(),
            Some("[[\"a\",0.5],[\"b,c\",1.0]]\n[]\n")
        );
        assert_eq!(csv(&classes).map(text).ok().as_deref(), Some("a,0.5,\"b,c\",1.0\n\n"));
        let numbers = TfsAnswer::Numbers(vec![1.0, 2.5]);
        assert_eq!(lines(&numbers).map(text).ok().as_deref(), Some("1.0\n2.5\n"));
        assert_eq!(csv(&numbers).map(text).ok().as_deref(), Some("1.0\n2.5\n"));
    }
}
