//! Checks the data of a request against the model's signature, as `mlflow.models.utils._enforce_schema`
//! does: inputs that are missing are refused, others are ignored, values are converted.

use std::collections::{HashMap, HashSet};

use super::cast::ValueType;
use super::csv::csv_error;
use super::fault::{self, Reason};
use super::node::Node;
use super::payload::MlflowPayload;
use super::table::{ColumnName, MlflowTable, TableColumn, reserve_values};
use tensorserve_mlflow::schema::{ColumnSpec, ColumnType, InputSchema, TensorInput};
use tensorserve_tensor::budget::{self, Meter};
use tensorserve_tensor::error::{Error, Result};

/// Data in the form that a model takes.
#[derive(Debug)]
pub(super) enum ModelData<'a> {
    /// A table, whose columns are in the order of the signature.
    Table(MlflowTable<'a>),
    /// One array.
    Array(NodeArray<'a>),
    /// Arrays by the names of inputs.
    Named(Vec<(String, NodeArray<'a>)>),
}

/// An array, row-major.
#[derive(Debug, PartialEq)]
pub(super) struct NodeArray<'a> {
    pub(super) dims: Vec<i64>,
    pub(super) values: Vec<Node<'a>>,
}

/// Which type of payload the data comes from, for the texts of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadKind {
    Csv,
    Table,
    Other,
}

impl<'a> NodeArray<'a> {
    /// The array of nested lists, or of one value.
    ///
    /// # Errors
    /// If lists at one level have different lengths.
    pub(super) fn of(node: Node<'a>) -> Result<Self> {
        let mut array = NodeArray { dims: Vec::new(), values: Vec::new() };
        let mut inner = &node;
        while let Node::List(list) = inner {
            array.dims.push(i64::try_from(list.len()).unwrap_or(i64::MAX));
            let Some(first) = list.first() else { break };
            inner = first;
        }
        array.fill(node, 0, &mut Meter::default())?;
        Ok(array)
    }

    fn fill(&mut self, node: Node<'a>, level: usize, meter: &mut Meter) -> Result<()> {
        let size = self.dims.get(level).copied();
        match (node, size) {
            (Node::List(list), Some(size)) if i64::try_from(list.len()) == Ok(size) => {
                for inner in list {
                    self.fill(inner, level + 1, meter)?;
                }
                Ok(())
            }
            (Node::List(_), _) | (_, Some(_)) => Err(fault::invalid_input(format_args!(
                "setting an array element with a sequence. The requested array has an inhomogeneous \
                 shape after {level} dimensions."
            ))),
            (value, None) => meter.push(&mut self.values, value),
        }
    }

    /// Converts all values.
    fn cast(mut self, to: &ValueType) -> Result<Self> {
        for value in &mut self.values {
            to.convert(value).map_err(fault::invalid_input)?;
        }
        Ok(self)
    }

    /// The number of values in a row of a matrix; 1 if each value is a row of its own.
    fn width(&self) -> usize {
        let inner = self.dims.get(1..).unwrap_or_default();
        inner.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).product()
    }

    /// These values with the declared shape, of which one size may be open.
    fn reshaped(mut self, shape: &[i64]) -> Option<Self> {
        let count = i64::try_from(self.values.len()).ok()?;
        let fixed: i64 = shape.iter().filter(|size| **size >= 0).product();
        let open = match shape.iter().filter(|size| **size < 0).count() {
            0 if fixed == count => 0,
            1 => count.checked_div(fixed).filter(|open| open * fixed == count)?,
            _ => return None,
        };
        self.dims = shape.iter().map(|size| if *size < 0 { open } else { *size }).collect();
        Some(self)
    }

    /// Refuses a shape that is not the declared one.
    fn check_shape(self, shape: &[i64]) -> Result<Self> {
        let mut pairs = shape.iter().zip(&self.dims);
        let has_rank = shape.len() == self.dims.len();
        if has_rank && pairs.all(|(declared, given)| *declared < 0 || declared == given) {
            return Ok(self);
        }
        let (given, declared) = (shown(&self.dims), shown(shape));
        Err(fault::schema(format_args!(
            "Shape of input {given} does not match expected shape {declared}."
        )))
    }
}

/// A shape as Python shows a tuple.
fn shown(dims: &[i64]) -> String {
    match dims {
        [one] => format!("({one},)"),
        _ => {
            let all: Vec<String> = dims.iter().map(i64::to_string).collect();
            format!("({})", all.join(", "))
        }
    }
}

/// The data of `payload`, as `schema` declares it.
pub(super) fn enforce<'a>(
    payload: MlflowPayload<'a>,
    schema: Option<&InputSchema>,
    kind: PayloadKind,
) -> Result<ModelData<'a>> {
    match schema {
        None => without_schema(payload),
        Some(InputSchema::Columns(columns)) => {
            let table = as_table(payload, columns)?;
            enforce_columns(table, columns, kind).map(ModelData::Table)
        }
        Some(InputSchema::Tensors(tensors)) => match &tensors[..] {
            [TensorInput { name: None, .. }] => enforce_array(payload, tensors, kind),
            _ => enforce_named(payload, tensors, kind),
        },
    }
}

fn without_schema(payload: MlflowPayload<'_>) -> Result<ModelData<'_>> {
    match payload {
        MlflowPayload::Table(table) => Ok(ModelData::Table(table)),
        MlflowPayload::Records(_) => Err(fault::unexpected("the input is a list of dictionaries")),
        MlflowPayload::Array(node) => Ok(ModelData::Array(NodeArray::of(node)?)),
        MlflowPayload::Named(members) => {
            let mut named = Vec::with_capacity(members.len());
            for (name, node) in members {
                named.push((name, NodeArray::of(node)?));
            }
            Ok(ModelData::Named(named))
        }
    }
}

/// The payload as a table.
fn as_table<'a>(payload: MlflowPayload<'a>, columns: &[ColumnSpec]) -> Result<MlflowTable<'a>> {
    let table = match payload {
        MlflowPayload::Table(table) => Ok(table),
        MlflowPayload::Records(list) => MlflowTable::from_records(list),
        MlflowPayload::Array(node) => match (node, columns) {
            (Node::List(list), [ColumnSpec { name: Some(name), .. }]) => {
                MlflowTable::of_columns(vec![(ColumnName::Text(name.clone()), list)])
            }
            (node, _) => {
                let mut array = NodeArray::of(node)?;
                if let Some(first) = columns.first() {
                    array = array.cast(&ValueType::of_column(&first.dtype))?;
                }
                let width = array.width();
                MlflowTable::of_matrix(array.values, width)
            }
        },
        MlflowPayload::Named(members) => of_members(members, columns),
    };
    table.map_err(|reason| {
        reason.into_error(|why| {
            fault::schema(format_args!(
                "This model contains a column-based signature, which suggests a DataFrame input. \
                 There was an error casting the input data to a DataFrame: {why}"
            ))
        })
    })
}

/// A table of named values: one row if all are single values or lists for columns of lists, else
/// columns, in which a single value is repeated.
fn of_members<'a>(
    members: Vec<(String, Node<'a>)>,
    columns: &[ColumnSpec],
) -> Result<MlflowTable<'a>, Reason> {
    let of_lists = columns
        .iter()
        .filter(|column| matches!(column.dtype, ColumnType::Array(_) | ColumnType::SparkVector));
    let of_lists: HashSet<&str> = of_lists.filter_map(|column| column.name.as_deref()).collect();
    let is_one_value = |(name, value): &(String, Node<'_>)| {
        let takes_lists = of_lists.contains(name.as_str());
        value.list().is_none_or(|list| takes_lists && list.iter().all(Node::is_scalar))
    };
    let is_one_row = members.iter().all(is_one_value);
    let rows = match is_one_row {
        true => 1,
        false => members.iter().find_map(|(_, value)| value.list()).map_or(1, <[_]>::len),
    };
    let mut table = Vec::with_capacity(members.len());
    for (name, value) in members {
        let name = ColumnName::Text(name);
        let values = match (value, is_one_row) {
            (Node::List(list), false) => list,
            (value, _) => {
                reserve_values(rows)?;
                budget::reserve(rows.saturating_mul(value.bytes_of_copy()))?;
                vec![value; rows]
            }
        };
        table.push((name, values));
    }
    MlflowTable::of_columns(table)
}

/// The columns that the signature declares, in its order, converted to its types.
fn enforce_columns<'a>(
    table: MlflowTable<'a>,
    columns: &[ColumnSpec],
    kind: PayloadKind,
) -> Result<MlflowTable<'a>> {
    let names: Option<Vec<&str>> = columns.iter().map(|column| column.name.as_deref()).collect();
    if let Some(names) = &names {
        let required = columns.iter().filter(|column| !column.is_optional);
        let required: Vec<&str> = required.filter_map(|column| column.name.as_deref()).collect();
        check_present(table.columns.iter().map(|column| &column.name), &required, names)?;
    } else if table.columns.len() < columns.len() {
        let (want, got) = (columns.len(), table.columns.len());
        return Err(fault::schema(format_args!(
            "Model inference is missing inputs. The model signature declares {want} inputs  but the \
             provided value only has {got} inputs. Note: the inputs were not named in the signature \
             so we can only verify their count."
        )));
    }
    let rows = table.rows;
    let mut given = GivenInputs::new(table.columns.into_iter().map(|it| (it.name, it.values)));
    let mut typed = Vec::with_capacity(columns.len());
    for (place, column) in columns.iter().enumerate() {
        let taken = match &column.name {
            Some(name) => given.take(name),
            None => given.take_at(place),
        };
        let Some((name, mut values)) = taken else {
            continue;
        };
        let to = match (ValueType::of_column(&column.dtype), kind) {
            // Texts of data frames are any objects; those of CSV are read, also as the bytes of `binary`.
            (ValueType::Text, PayloadKind::Table | PayloadKind::Csv)
            | (ValueType::Binary, PayloadKind::Csv) => ValueType::Any,
            (to, _) => to,
        };
        for value in &mut values {
            to.convert(value).map_err(|why| not_converted(&name, &to, &why, kind))?;
        }
        typed.push(TableColumn { name, values });
    }
    Ok(MlflowTable { columns: typed, rows })
}

/// The inputs of a request, to be taken by name.
struct GivenInputs<T> {
    inputs: Vec<Option<(ColumnName, T)>>,
    places: HashMap<String, usize>,
}

impl<T> GivenInputs<T> {
    fn new(inputs: impl Iterator<Item = (ColumnName, T)>) -> Self {
        // The memory of each is reserved with its column (`COLUMN_BYTES`).
        let inputs: Vec<Option<(ColumnName, T)>> = inputs.map(Some).collect();
        let mut places = HashMap::new();
        for (place, input) in inputs.iter().enumerate() {
            if let Some((ColumnName::Text(name), _)) = input {
                places.insert(name.clone(), place);
            }
        }
        GivenInputs { inputs, places }
    }

    fn take(&mut self, name: &str) -> Option<(ColumnName, T)> {
        let place = self.places.get(name).copied()?;
        self.take_at(place)
    }

    fn take_at(&mut self, place: usize) -> Option<(ColumnName, T)> {
        self.inputs.get_mut(place)?.take()
    }
}

fn not_converted(name: &ColumnName, to: &ValueType, why: &str, kind: PayloadKind) -> Error {
    match kind {
        PayloadKind::Csv => csv_error(why),
        PayloadKind::Other => fault::invalid_input(why),
        PayloadKind::Table => {
            let name = match name {
                ColumnName::Text(name) => name.clone(),
                ColumnName::Place(place) => place.to_string(),
            };
            fault::invalid_input(format_args!(
                "Data is not compatible with model signature. Failed to convert column {name} to \
                 type '{to}'. Error: '{why}'"
            ))
        }
    }
}

/// Refuses inputs without one of those `required`.
fn check_present<'n>(
    given: impl Iterator<Item = &'n ColumnName>,
    required: &[&str],
    declared: &[&str],
) -> Result<()> {
    let declared: HashSet<&str> = declared.iter().copied().collect();
    let (mut present, mut extra) = (HashSet::new(), Vec::new());
    for name in given {
        match name {
            ColumnName::Text(name) if declared.contains(name.as_str()) => {
                present.insert(name.as_str());
            }
            ColumnName::Text(_) | ColumnName::Place(_) => extra.push(name.shown()),
        }
    }
    let missing = required.iter().filter(|name| !present.contains(**name));
    let missing: Vec<String> = missing.map(|name| format!("'{name}'")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut message = format!("Model is missing inputs [{}].", missing.join(", "));
    if !extra.is_empty() {
        let extra = extra.join(", ");
        message.push_str(&format!(" Note that there were extra inputs: [{extra}]."));
    }
    Err(fault::schema(message))
}

/// The data for a signature of one tensor without a name.
fn enforce_array<'a>(
    payload: MlflowPayload<'a>,
    tensors: &[TensorInput],
    kind: PayloadKind,
) -> Result<ModelData<'a>> {
    let Some(tensor) = tensors.first() else {
        return without_schema(payload);
    };
    let to = tensor_type(tensor, kind);
    let mut table = match payload {
        MlflowPayload::Array(node) => {
            let array = NodeArray::of(node)?.cast(&to)?.check_shape(&tensor.shape)?;
            return Ok(ModelData::Array(array));
        }
        MlflowPayload::Named(_) => return Err(no_array("dict")),
        MlflowPayload::Records(_) => return Err(no_array("list")),
        MlflowPayload::Table(table) => table,
    };
    if table.columns.is_empty() {
        return Err(fault::schema("Input DataFrame is empty."));
    }
    if table.rows == 0 {
        return Err(fault::invalid_input("Data is not compatible with model signature: no rows"));
    }
    let mut has_lists = false;
    if table.columns.len() > 1 {
        for column in &mut table.columns {
            if column.values.first().is_some_and(|first| first.list().is_some()) {
                has_lists = true;
                continue;
            }
            for value in &mut column.values {
                to.convert(value).map_err(|why| not_converted(&column.name, &to, &why, kind))?;
            }
        }
    }
    if table.columns.len() == 1
        && let Some(column) = table.columns.pop()
    {
        return reshaped_column(column.values, &column.name, tensor, kind).map(ModelData::Array);
    }
    let width = i64::try_from(table.columns.len()).unwrap_or(i64::MAX);
    if tensor.shape != [-1, width] {
        let shape = shown(&tensor.shape);
        return Err(fault::schema(format_args!(
            "This model contains a model signature with an unnamed input. Since the input data is a \
             pandas DataFrame containing multiple columns, the input shape must be of the structure \
             (-1, number_of_dataframe_columns). Instead, the input DataFrame passed had {width} \
             columns and an input shape of {shape} with all values within the DataFrame of scalar \
             type. Please adjust the passed in DataFrame to match the expected structure"
        )));
    }
    if has_lists {
        let dtype = &tensor.dtype;
        return Err(fault::schema(format_args!(
            "dtype of input object does not match expected dtype {dtype}"
        )));
    }
    into_matrix(table).map(ModelData::Array)
}

/// What the values of a tensor are converted to; texts of CSV are read.
fn tensor_type(tensor: &TensorInput, kind: PayloadKind) -> ValueType {
    match (ValueType::of_numpy(&tensor.dtype), kind) {
        (ValueType::Text, PayloadKind::Csv) => ValueType::Any,
        (to, _) => to,
    }
}

/// The error of data that is not an array, of a type of Python.
fn no_array(kind: &str) -> Error {
    fault::schema(format_args!(
        "This model contains a tensor-based model signature with no input names, which suggests a \
         numpy array input or a pandas dataframe input with proper column values, but an input of \
         type <class '{kind}'> was found."
    ))
}

/// The values of a table by rows.
pub(super) fn into_matrix(table: MlflowTable<'_>) -> Result<NodeArray<'_>> {
    let (rows, width) = (table.rows, table.columns.len());
    reserve_values(rows.saturating_mul(width))?;
    let mut columns: Vec<_> =
        table.columns.into_iter().map(|column| column.values.into_iter()).collect();
    let mut values = Vec::with_capacity(rows.saturating_mul(width));
    for _ in 0..rows {
        values.extend(columns.iter_mut().filter_map(Iterator::next));
    }
    let dims = [rows, width].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
    Ok(NodeArray { dims: dims.to_vec(), values })
}

/// The values of a column as a tensor: one value per row, or one list per row.
fn reshaped_column<'a>(
    values: Vec<Node<'a>>,
    name: &ColumnName,
    tensor: &TensorInput,
    kind: PayloadKind,
) -> Result<NodeArray<'a>> {
    let shape = &tensor.shape;
    let to = tensor_type(tensor, kind);
    if values.iter().all(Node::is_scalar) && !matches!(shape[..], [-1] | [-1, 1]) {
        return Err(fault::schema(format_args!(
            "The input pandas dataframe column '{}' contains scalar values, which requires the shape \
             to be (-1,) or (-1, 1), but got tensor spec shape of {}.",
            name.shown().trim_matches('\''),
            shown(shape)
        )));
    }
    let rows = i64::try_from(values.len()).unwrap_or(i64::MAX);
    let array = NodeArray::of(Node::List(values));
    let array = array.ok().and_then(|array| array.reshaped(shape));
    let Some(mut array) = array.filter(|array| array.dims.first() == Some(&rows)) else {
        return Err(fault::schema(format_args!(
            "The value in the Input DataFrame column {} could not be converted to the expected shape \
             of: '{}'. Ensure that each of the input list elements are of uniform length and that \
             the data can be coerced to the tensor type '{}'",
            name.shown(),
            shown(shape),
            tensor.dtype
        )));
    };
    for value in &mut array.values {
        to.convert(value).map_err(|why| not_converted(name, &to, &why, kind))?;
    }
    Ok(array)
}

/// The data for a signature of named tensors.
fn enforce_named<'a>(
    payload: MlflowPayload<'a>,
    tensors: &[TensorInput],
    kind: PayloadKind,
) -> Result<ModelData<'a>> {
    let is_table = matches!(payload, MlflowPayload::Table(_));
    let given: Vec<(ColumnName, Node<'a>)> = match (payload, tensors) {
        (MlflowPayload::Table(table), _) => {
            table.columns.into_iter().map(|it| (it.name, Node::List(it.values))).collect()
        }
        (MlflowPayload::Named(members), _) => {
            members.into_iter().map(|(name, node)| (ColumnName::Text(name), node)).collect()
        }
        (MlflowPayload::Array(node), [TensorInput { name: Some(name), .. }]) => {
            vec![(ColumnName::Text(name.clone()), node)]
        }
        (MlflowPayload::Array(_) | MlflowPayload::Records(_), _) => Vec::new(),
    };
    let names: Vec<&str> = tensors.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
    check_present(given.iter().map(|(name, _)| name), &names, &names)?;
    let mut given = GivenInputs::new(given.into_iter());
    let mut all = Vec::new();
    for tensor in tensors {
        let name = tensor.name.as_deref().unwrap_or_default();
        let array = match given.take(name) {
            Some((own, Node::List(values))) if is_table => {
                reshaped_column(values, &own, tensor, kind)?
            }
            Some((_, node)) => {
                let array = NodeArray::of(node)?.cast(&ValueType::of_numpy(&tensor.dtype))?;
                array.check_shape(&tensor.shape)?
            }
            None => continue,
        };
        all.push((name.to_owned(), array));
    }
    Ok(ModelData::Named(all))
}
