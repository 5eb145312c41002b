//! The forms of payloads: which member holds the data, and what its value means.

use tensorserve_mlflow::schema::InputSchema;

use super::fault;
use super::node::Node;
use super::table::{COLUMN_BYTES, GrowingColumns, MlflowTable};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::{limited, quoted};

/// The data of a request.
#[derive(Debug)]
pub(super) enum MlflowPayload<'a> {
    /// A table.
    Table(MlflowTable<'a>),
    /// A list of objects, which becomes a table for a signature of columns.
    Records(Vec<Node<'a>>),
    /// Nested lists, or one value.
    Array(Node<'a>),
    /// Values by the name of an input or a column.
    Named(Vec<(String, Node<'a>)>),
}

/// A request in JSON.
#[derive(Debug)]
pub(super) struct JsonRequest<'a> {
    pub(super) payload: MlflowPayload<'a>,
    /// The parameters.
    pub(super) params: Option<Node<'a>>,
}

const FORMATS: [&str; 4] = ["dataframe_split", "dataframe_records", "instances", "inputs"];

const REQUIRED: &str = "The input must be a JSON dictionary with exactly one of the input fields \
                        {'dataframe_split', 'dataframe_records', 'instances', 'inputs'}";

/// Reads a body of type `application/json`.
pub(super) fn read<'a>(body: &'a [u8], schema: Option<&InputSchema>) -> Result<JsonRequest<'a>> {
    let mut document = Node::read(body)?;
    let Node::Object(members) = &document else {
        let what = match matches!(document, Node::List(_)) {
            true => "a list".to_owned(),
            false => format!("unexpected input type '<class '{}'>", document.type_name()),
        };
        return Err(fault::invalid_input(format_args!("{REQUIRED}. Received {what}.")));
    };
    let is_given = |format: &&str| members.iter().any(|(name, _)| name == format);
    let given: Vec<&str> = FORMATS.into_iter().filter(is_given).collect();
    let [format] = given[..] else {
        let names = members.iter().map(|(name, _)| format!("'{}'", quoted(name.as_bytes())));
        let names = names.collect::<Vec<_>>().join(", ");
        return Err(Error::invalid(limited(format_args!(
            "{REQUIRED}. Received dictionary with input fields: [{names}]."
        ))));
    };
    let params = document.take("params");
    let value = document.take(format).unwrap_or(Node::Null);
    let payload = match format {
        "dataframe_split" => MlflowPayload::Table(MlflowTable::of_split(value)?),
        "dataframe_records" => MlflowPayload::Table(MlflowTable::of_records(value)?),
        "instances" => instances(value, schema)?,
        _ => inputs(value, schema)?,
    };
    Ok(JsonRequest { payload, params })
}

/// The value of `instances`: rows. Objects become columns.
fn instances<'a>(value: Node<'a>, schema: Option<&InputSchema>) -> Result<MlflowPayload<'a>> {
    if !matches!(&value, Node::List(list) if matches!(list.first(), Some(Node::Object(_)))) {
        let payload = inputs(value, schema)?;
        if let MlflowPayload::Named(members) = &payload {
            check_lengths(members)?;
        }
        return Ok(payload);
    }
    let Node::List(list) = value else {
        return Err(fault::invalid_input("Expecting data to have `instances` as key."));
    };
    let mut columns = GrowingColumns::default();
    for item in list {
        let Node::Object(members) = item else {
            let kind = item.type_name();
            return Err(fault::invalid_input(format_args!(
                "Ensure that the input is a valid JSON-formatted string.\nError: an instance is of \
                 type {kind} and not dict"
            )));
        };
        for (name, value) in members {
            let at = columns.place(name)?;
            columns.push(at, value)?;
        }
    }
    let columns: Vec<(String, Node<'_>)> =
        columns.columns.into_iter().map(|(name, values)| (name, Node::List(values))).collect();
    check_lengths(&columns)?;
    Ok(MlflowPayload::Named(columns))
}

/// All lists must have the same length.
fn check_lengths(columns: &[(String, Node<'_>)]) -> Result<()> {
    let mut lengths = columns.iter().filter_map(|(_, value)| value.list()).map(<[_]>::len);
    let first = lengths.next();
    match lengths.all(|length| Some(length) == first) {
        true => Ok(()),
        false => Err(fault::invalid_input(
            "The length of values for each input/column name are not the same",
        )),
    }
}

/// The value of `inputs`: columns, records or an array.
fn inputs<'a>(value: Node<'a>, schema: Option<&InputSchema>) -> Result<MlflowPayload<'a>> {
    match value {
        Node::Object(members) => {
            check_names(schema)?;
            budget::reserve(members.len().saturating_mul(COLUMN_BYTES))?;
            Ok(MlflowPayload::Named(members))
        }
        Node::List(list)
            if !list.is_empty() && list.iter().all(|item| matches!(item, Node::Object(_))) =>
        {
            Ok(MlflowPayload::Records(list))
        }
        value @ (Node::Null
        | Node::Bool(_)
        | Node::Int(_)
        | Node::Float(_)
        | Node::Text(_)
        | Node::List(_)) => Ok(MlflowPayload::Array(value)),
    }
}

/// Refuses an object of values if the signature has no names.
fn check_names(schema: Option<&InputSchema>) -> Result<()> {
    let is_unnamed = match schema {
        Some(InputSchema::Columns(columns)) => columns.iter().any(|column| column.name.is_none()),
        Some(InputSchema::Tensors(tensors)) => tensors.iter().any(|tensor| tensor.name.is_none()),
        None => false,
    };
    match is_unnamed {
        true => Err(fault::invalid_input(
            "Failed to parse input data. This model contains an un-named  model signature which \
             expects a single n-dimensional array or a single value as input, however, an input of \
             type <class 'dict'> was found.",
        )),
        false => Ok(()),
    }
}
