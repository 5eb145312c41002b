//! The data of a request as the tensors of a model's signature.

use std::collections::HashMap;

use super::cast::float;
use super::enforce::{ModelData, NodeArray, into_matrix};
use super::fault::{self, Reason};
use super::node::Node;
use super::table::{ColumnName, MlflowTable, TableColumn};
use tensorserve_codec::json::java::number_text;
use tensorserve_codec::json::number::Number;
use tensorserve_core::engine::ModelHandle;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::names::InputName;
use tensorserve_tensor::{
    DType, Element, NumberTexts, Shape, Signature, StringsBuilder, Tensor, TensorSpec,
};

/// The names of the columns, if all have one.
pub(super) fn column_names<'t>(table: &'t MlflowTable<'_>) -> Option<Vec<&'t str>> {
    let name = |column: &'t TableColumn<'_>| match &column.name {
        ColumnName::Text(name) => Some(name.as_str()),
        ColumnName::Place(_) => None,
    };
    table.columns.iter().map(name).collect()
}

/// The signature for a table with these columns: `found`, or the one that takes the columns of its matrix by
/// their names.
///
/// # Errors
/// For the name of a column that the model was not trained with, as in scikit-learn.
pub(super) fn by_columns<'h>(
    version: &'h ModelHandle,
    found: (usize, &'h Signature),
    names: &[&str],
) -> Result<(usize, &'h Signature)> {
    let Some(other) = found.1.by_columns.as_deref().and_then(|name| version.signature(name)) else {
        return Ok(found);
    };
    let unknown = |name: &&&str| other.1.named(name.as_bytes()) == InputName::Unknown;
    match names.iter().find(unknown) {
        None => Ok(other),
        Some(name) => {
            let instead = other.1.instead_of(name.as_bytes());
            Err(fault::unexpected(format_args!(
                "The feature names should match those that were passed during fit. Feature names unseen \
                 at fit time: '{name}'; {instead}"
            )))
        }
    }
}

/// One tensor for each input of `signature`, in order; each takes at most `max_bytes`.
pub(super) fn tensors(
    data: ModelData<'_>,
    signature: &Signature,
    max_bytes: usize,
) -> Result<Vec<Tensor>> {
    let inputs = &signature.inputs;
    let arrays = match (data, &inputs[..]) {
        (ModelData::Table(table), [_]) => vec![of_table(table)?],
        (ModelData::Array(array), [_]) => vec![array],
        (ModelData::Named(mut named), [only]) => match (named.pop(), named.is_empty()) {
            (Some((_, array)), true) => vec![array],
            _ => {
                let name = &only.alias;
                return Err(fault::unexpected(format_args!(
                    "the model takes one array, {name:?}, and not a dictionary of arrays"
                )));
            }
        },
        (ModelData::Array(_), _) => {
            let names: Vec<String> =
                inputs.iter().map(|spec| format!("'{}'", spec.alias)).collect();
            return Err(fault::unexpected(format_args!(
                "Unable to map numpy array input to the expected model input. This model requires {} \
                 inputs. Please pass in data as either a dictionary or a DataFrame with the following \
                 tensors: [{}].",
                inputs.len(),
                names.join(", ")
            )));
        }
        (ModelData::Named(named), _) => by_name(named, inputs)?,
        (ModelData::Table(table), _) => {
            let mut named = Vec::new();
            for column in table.columns {
                if let ColumnName::Text(name) = column.name {
                    named.push((name, NodeArray::of(Node::List(column.values))?));
                }
            }
            by_name(named, inputs)?
        }
    };
    let pairs = arrays.into_iter().zip(inputs);
    pairs.map(|(array, spec)| tensor(array, spec, max_bytes)).collect()
}

/// The rows of a table; those of its lists, if it has one column of lists.
fn of_table(mut table: MlflowTable<'_>) -> Result<NodeArray<'_>> {
    let has_lists = table.columns.iter().flat_map(|column| &column.values).any(|v| !v.is_scalar());
    match table.columns.pop() {
        Some(column) if has_lists && table.columns.is_empty() => {
            NodeArray::of(Node::List(column.values))
        }
        Some(column) => {
            table.columns.push(column);
            into_matrix(table)
        }
        None => Err(fault::unexpected("the table has no columns")),
    }
}

/// The arrays in the order of the inputs.
fn by_name<'a>(
    named: Vec<(String, NodeArray<'a>)>,
    inputs: &[TensorSpec],
) -> Result<Vec<NodeArray<'a>>> {
    let mut named: HashMap<String, NodeArray<'a>> = named.into_iter().collect();
    let take = |spec: &TensorSpec| {
        let name = &spec.alias;
        let array = named.remove(name);
        array.ok_or_else(|| fault::unexpected(format_args!("the input {name:?} is missing")))
    };
    inputs.iter().map(take).collect()
}

/// The array as a tensor of the declared type. One column, where the model declares a column, gets its
/// second dimension.
fn tensor(mut array: NodeArray<'_>, spec: &TensorSpec, max_bytes: usize) -> Result<Tensor> {
    let Some(dtype) = spec.dtype() else {
        return Err(fault::unexpected(format_args!("input {:?} has an unknown type", spec.alias)));
    };
    if let (Some(declared), [_]) = (spec.shape.sizes(), &array.dims[..])
        && matches!(declared[..], [_, 1])
    {
        array.dims.push(1);
    }
    let size = array.values.len().saturating_mul(dtype.size().unwrap_or(size_of::<Node>()));
    if size > max_bytes {
        let alias = &spec.alias;
        return Err(fault::invalid_input(format_args!(
            "input {alias:?} takes {size} bytes; at most {max_bytes} are allowed"
        )));
    }
    let shape = Shape::new(&array.dims)?;
    let made = match dtype {
        DType::Double => numbers(&array, shape, float),
        #[allow(clippy::cast_possible_truncation)] // What the type means.
        DType::Float => numbers(&array, shape, |value| float(value).map(|number| number as f32)),
        DType::Int8 => numbers(&array, shape, integer::<i8>),
        DType::Int16 => numbers(&array, shape, integer::<i16>),
        DType::Int32 => numbers(&array, shape, integer::<i32>),
        DType::Int64 => numbers(&array, shape, integer::<i64>),
        DType::UInt8 => numbers(&array, shape, integer::<u8>),
        DType::UInt16 => numbers(&array, shape, integer::<u16>),
        DType::UInt32 => numbers(&array, shape, integer::<u32>),
        DType::UInt64 => numbers(&array, shape, integer::<u64>),
        DType::Bool => bools(&array, shape),
        DType::String => texts(&array, shape, spec),
        DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => {
            Err(format!("values of type {dtype} cannot be sent in JSON").into())
        }
    };
    made.map_err(|reason| {
        reason.into_error(|why| fault::unexpected(format_args!("input {:?}: {why}", spec.alias)))
    })
}

type Made<T> = Result<T, Reason>;

fn numbers<T: Element>(
    array: &NodeArray<'_>,
    shape: Shape,
    convert: impl Fn(&Node<'_>) -> Result<T, String>,
) -> Made<Tensor> {
    let mut values = budget::reserved_vec(array.values.len())?;
    for value in &array.values {
        values.push(convert(value)?);
    }
    Ok(Tensor::from_vec(shape, values)?)
}

/// An integer without loss.
fn integer<T: TryFrom<i64>>(value: &Node<'_>) -> Result<T, String> {
    let number = match value {
        Node::Int(number) => Some(*number),
        Node::Bool(bool) => Some(i64::from(*bool)),
        #[allow(clippy::cast_possible_truncation)] // Checked.
        Node::Float(number) if number.fract() == 0.0 && number.abs() < 9e18 => Some(*number as i64),
        Node::Null | Node::Float(_) | Node::Text(_) | Node::List(_) | Node::Object(_) => None,
    };
    let converted = number.and_then(|number| T::try_from(number).ok());
    converted.ok_or_else(|| format!("a value of type {} is not an integer", value.type_name()))
}

fn bools(array: &NodeArray<'_>, shape: Shape) -> Made<Tensor> {
    let mut values = budget::reserved_vec(array.values.len())?;
    for value in &array.values {
        values.push(u8::from(integer::<i64>(value)? != 0));
    }
    Ok(Tensor::from_bools(shape, values)?)
}

/// Texts; where they may be missing, null is a missing one.
fn texts(array: &NodeArray<'_>, shape: Shape, spec: &TensorSpec) -> Made<Tensor> {
    let bytes: usize = array.values.iter().filter_map(Node::text).map(<[u8]>::len).sum();
    let overhead = array.values.len().saturating_mul(size_of::<usize>());
    budget::reserve(bytes.saturating_add(overhead))?;
    let mut values = StringsBuilder::with_capacity(array.values.len(), bytes);
    for value in &array.values {
        let no_text = || format!("a value of type {} is not text", value.type_name());
        if let Some(text) = spec.number_texts.and_then(|texts| text_of_number(value, texts)) {
            values.push(text.as_bytes());
            continue;
        }
        match spec.takes_missing && matches!(value, Node::Null) {
            true => values.push_missing(),
            false => values.push(value.text().ok_or_else(no_text)?),
        }
    }
    Ok(Tensor::from_strings(shape, values)?)
}

fn text_of_number(value: &Node<'_>, texts: NumberTexts) -> Option<String> {
    match value {
        Node::Int(number) => number_text(Number::Negative(*number), texts),
        Node::Float(number) => number_text(Number::Float(*number), texts),
        Node::Null | Node::Bool(_) | Node::Text(_) | Node::List(_) | Node::Object(_) => None,
    }
}
