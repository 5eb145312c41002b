//! The response: `{"predictions": …}`, in the form that the flavor's `predict` has in MLflow.

use tensorserve_mlflow::{Flavor, MlflowModel};

use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_codec::row_text::RowText;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Shape, Signature, Tensor, aligned_vec};

/// The layout of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PredictionsForm {
    /// The array of one output; an object of arrays, if there are several.
    Arrays,
    /// An object of arrays.
    Named,
    /// One object per value, with a member for each output.
    Records,
    /// One object per row, whose members are the columns of one output, by number.
    NumberedRecords,
    /// The index of the class with the highest probability.
    Classes,
}

impl PredictionsForm {
    /// The form for a model; `is_table` if its data is a table after the signature was applied.
    pub(super) fn of(model: &MlflowModel, is_table: bool) -> Self {
        match model.flavor {
            Flavor::Onnx if is_table => PredictionsForm::Records,
            Flavor::Onnx => PredictionsForm::Named,
            Flavor::TensorFlow | Flavor::Keras if is_table => PredictionsForm::NumberedRecords,
            Flavor::Xgboost if model.model_class.ends_with("Classifier") => {
                PredictionsForm::Classes
            }
            Flavor::TensorFlow
            | Flavor::Keras
            | Flavor::Sklearn
            | Flavor::Xgboost
            | Flavor::Spark => PredictionsForm::Arrays,
        }
    }
}

/// The outputs that a response has, by number; empty for all.
///
/// # Errors
/// If the model was logged with a method that it does not have here.
pub(super) fn wanted(model: &MlflowModel, signature: &Signature) -> Result<Vec<usize>> {
    let name = match model.flavor {
        Flavor::Sklearn => model.predict_fn.as_str(),
        Flavor::Spark => "prediction",
        Flavor::TensorFlow | Flavor::Keras | Flavor::Onnx | Flavor::Xgboost => {
            return Ok(Vec::new());
        }
    };
    let found = signature.outputs.iter().position(|spec| spec.alias == name);
    found.map(|index| vec![index]).ok_or_else(|| {
        let message = format!(
            "the model was logged with predict_fn {name:?}, which is not available; available are {:?}",
            signature.outputs.iter().map(|spec| &spec.alias).collect::<Vec<_>>()
        );
        Error::new(Code::Unimplemented, message)
    })
}

/// Writes the response to a request. It has rows if the predictions are a list; that of an array with `by_rows` only,
/// which takes longer.
pub(super) fn encode(
    form: PredictionsForm,
    names: &[&str],
    mut outputs: Vec<Tensor>,
    by_rows: bool,
) -> Result<RowText> {
    if form == PredictionsForm::Classes {
        outputs = outputs.iter().map(classes).collect::<Result<_>>()?;
    }
    let mut body = RowText { text: b"{\"predictions\": ".to_vec(), rows: Vec::new() };
    match (form, &outputs[..]) {
        (PredictionsForm::Arrays | PredictionsForm::Classes, [only]) if by_rows => {
            rows_of_array(only, &mut body)?;
        }
        (PredictionsForm::Arrays | PredictionsForm::Classes, [only]) => {
            array(only, &mut body.text)?;
        }
        (PredictionsForm::Records, _) => records(names, &outputs, &mut body)?,
        (PredictionsForm::NumberedRecords, [only]) => numbered(only, &mut body)?,
        _ => named(names, &outputs, &mut body.text)?,
    }
    body.text.push(b'}');
    Ok(body)
}

const STYLE: Style =
    Style { layout: JsonLayout::Line, floats: Floats::Python, texts: Texts::Lossy };

fn array(tensor: &Tensor, out: &mut Vec<u8>) -> Result<()> {
    let no_form = |dtype| {
        let message = format!("the model has an output of type {dtype}, which JSON cannot hold");
        Error::new(Code::Unimplemented, message)
    };
    write::tensor(tensor, STYLE, 0, out).map_err(|error| error.into_error(no_form))
}

/// As [`array()`], row by row; a scalar has none.
fn rows_of_array(tensor: &Tensor, out: &mut RowText) -> Result<()> {
    let Some(rows) = tensor.rows() else {
        return array(tensor, &mut out.text);
    };
    list(rows, out, |index, text| array(&tensor.row(index), text))
}

/// A list with the elements that `write` appends.
fn list(
    count: usize,
    out: &mut RowText,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    out.text.push(b'[');
    for index in 0..count {
        budget::grow(&mut out.text, 2)?;
        if index > 0 {
            out.text.extend_from_slice(b", ");
        }
        let start = out.text.len();
        write(index, &mut out.text)?;
        out.end_row(start)?;
    }
    out.text.push(b']');
    Ok(())
}

fn named(names: &[&str], outputs: &[Tensor], out: &mut Vec<u8>) -> Result<()> {
    out.push(b'{');
    for (index, (name, output)) in names.iter().zip(outputs).enumerate() {
        member(index, name, out)?;
        array(output, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// Begins member number `index` of an object.
fn member(index: usize, name: &str, out: &mut Vec<u8>) -> Result<()> {
    budget::grow(out, write::string_len(name.as_bytes()).saturating_add(8))?;
    if index > 0 {
        out.extend_from_slice(b", ");
    }
    write::string(name.as_bytes(), out);
    out.extend_from_slice(b": ");
    Ok(())
}

/// All values of the outputs without their shape, side by side.
fn records(names: &[&str], outputs: &[Tensor], out: &mut RowText) -> Result<()> {
    let flat: Result<Vec<Tensor>> = outputs.iter().map(flattened).collect();
    let flat = flat?;
    let rows = flat.first().and_then(Tensor::rows).unwrap_or(0);
    if flat.iter().any(|output| output.rows() != Some(rows)) {
        return Err(super::fault::unexpected("All arrays must be of the same length"));
    }
    list(rows, out, |index, text| {
        let row: Vec<Tensor> = flat.iter().map(|output| output.row(index)).collect();
        named(names, &row, text)
    })
}

fn flattened(tensor: &Tensor) -> Result<Tensor> {
    tensor.reshaped(Shape::vector(tensor.shape().elements()?))
}

/// The rows of a matrix as objects.
fn numbered(tensor: &Tensor, out: &mut RowText) -> Result<()> {
    list(tensor.rows().unwrap_or(0), out, |index, text| {
        let row = tensor.row(index);
        let columns = row.rows().unwrap_or(1);
        text.push(b'{');
        for column in 0..columns {
            member(column, &column.to_string(), text)?;
            match row.rows() {
                Some(_) => array(&row.row(column), text)?,
                None => array(&row, text)?,
            }
        }
        text.push(b'}');
        Ok(())
    })
}

/// The classes of probabilities, as XGBoost's classifiers predict them.
fn classes(probabilities: &Tensor) -> Result<Tensor> {
    let (Some(values), dims) = (probabilities.values::<f32>(), probabilities.shape().dims()) else {
        return Ok(probabilities.clone());
    };
    let width = dims.get(1).and_then(|width| usize::try_from(*width).ok());
    let mut classes = aligned_vec::<i64>(values.len());
    match width.filter(|width| *width > 1) {
        None => values.iter().for_each(|p| classes.push(i64::from(*p > 0.5))),
        Some(width) => values.chunks(width).for_each(|row| classes.push(highest(row))),
    }
    let count = i64::try_from(classes.len()).unwrap_or(i64::MAX);
    Tensor::from_vec(Shape::new(&[count])?, classes)
}

/// The index of the highest value; the first, if there are several.
fn highest(row: &[f32]) -> i64 {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if row.get(best).is_some_and(|highest| value > highest) {
            best = index;
        }
    }
    i64::try_from(best).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(dims: &[i64], values: &[f32]) -> Tensor {
        let mut all = aligned_vec(values.len());
        values.iter().for_each(|value| all.push(*value));
        Tensor::from_vec(Shape::new(dims).expect("valid"), all).expect("a tensor")
    }

    fn text(form: PredictionsForm, names: &[&str], outputs: Vec<Tensor>) -> String {
        let encoded = encode(form, names, outputs.clone(), false).expect("encoded");
        let by_rows = encode(form, names, outputs, true).expect("encoded");
        assert_eq!(by_rows.text, encoded.text);
        String::from_utf8(encoded.text).expect("text")
    }

    fn rows(form: PredictionsForm, names: &[&str], outputs: Vec<Tensor>) -> Vec<String> {
        let encoded = encode(form, names, outputs, true).expect("encoded");
        let row = |row: &std::ops::Range<usize>| encoded.text[row.clone()].to_vec();
        let texts = encoded.rows.iter().map(row);
        texts.map(|row| String::from_utf8(row).expect("text")).collect()
    }

    #[test]
    fn predictions_that_are_a_list_have_rows() {
        let matrix = || floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(
            rows(PredictionsForm::Arrays, &["y"], vec![matrix()]),
            ["[1.0, 2.0]", "[3.0, 4.0]"]
        );
        let (one, two) = (floats(&[2, 1], &[1.0, 2.0]), floats(&[2], &[3.0, 4.0]));
        assert_eq!(
            rows(PredictionsForm::Records, &["a", "b"], vec![one, two]),
            ["{\"a\": 1.0, \"b\": 3.0}", "{\"a\": 2.0, \"b\": 4.0}"]
        );
        assert_eq!(
            rows(PredictionsForm::NumberedRecords, &["y"], vec![matrix()]),
            ["{\"0\": 1.0, \"1\": 2.0}", "{\"0\": 3.0, \"1\": 4.0}"]
        );
        let classes = vec![floats(&[2], &[0.2, 0.7])];
        assert_eq!(rows(PredictionsForm::Classes, &["y"], classes), ["0", "1"]);
        assert!(rows(PredictionsForm::Named, &["y"], vec![matrix()]).is_empty());
        let scalar = vec![floats(&[], &[1.0])];
        assert!(rows(PredictionsForm::Arrays, &["y"], scalar).is_empty());
    }

    #[test]
    fn predictions_have_the_form_of_the_flavor() {
        let matrix = || floats(&[2, 2], &[0.1, f32::NAN, 3.0, 1e-7]);
        let arrays = text(PredictionsForm::Arrays, &["y"], vec![matrix()]);
        let want = "[[0.10000000149011612, NaN], [3.0, 1.0000000116860974e-07]]";
        assert_eq!(arrays, format!("{{\"predictions\": {want}}}"));
        let named = text(PredictionsForm::Named, &["y"], vec![matrix()]);
        assert_eq!(named, format!("{{\"predictions\": {{\"y\": {want}}}}}"));
        let (one, two) = (floats(&[2, 1], &[1.0, 2.0]), floats(&[2], &[3.0, 4.0]));
        let records = text(PredictionsForm::Records, &["a", "b"], vec![one, two]);
        let want = "{\"predictions\": [{\"a\": 1.0, \"b\": 3.0}, {\"a\": 2.0, \"b\": 4.0}]}";
        assert_eq!(records, want);
        let numbered =
            text(PredictionsForm::NumberedRecords, &["y"], vec![floats(&[1, 2], &[1., 2.])]);
        assert_eq!(numbered, "{\"predictions\": [{\"0\": 1.0, \"1\": 2.0}]}");
        assert!(
            encode(PredictionsForm::Records, &["a", "b"], vec![matrix(), matrix().row(0)], false)
                .is_err()
        );
    }

    #[test]
    fn classifiers_predict_classes() {
        let binary = text(PredictionsForm::Classes, &["y"], vec![floats(&[3], &[0.5, 0.51, 0.2])]);
        assert_eq!(binary, "{\"predictions\": [0, 1, 0]}");
        let many = floats(&[2, 3], &[0.2, 0.5, 0.3, 0.4, 0.4, 0.2]);
        assert_eq!(text(PredictionsForm::Classes, &["y"], vec![many]), "{\"predictions\": [1, 0]}");
    }
}
