//! Tables in CSV for models of tables: one matrix of numbers, or a column for each input. A field of a number
//! that pandas takes for missing is NaN, one of text without characters the empty string.
//!
//! The first record may have the names of the columns ([`Header`]); for several inputs it must. Records are
//! those of [`Dialect::Rfc4180`].

use crate::csv::{self, CsvReader, Dialect};
use tensorserve_tensor::budget::Meter;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape, Signature, Tensor, TensorSpec};

use self::values::Values;

mod header;
mod values;

pub use self::header::{Header, has_header};

/// Whether [`read`] can read these inputs: those of a table, of which at least one takes missing values, of the
/// type float, double or string.
#[must_use]
pub fn can_read(inputs: &[TensorSpec]) -> bool {
    let all = |spec: &TensorSpec| spec.dtype().is_some_and(may_be_missing);
    let is_matrix = |spec: &TensorSpec| spec.dtype() != Some(DType::String);
    match inputs {
        [] => false,
        [one] => one.takes_missing && all(one) && (one.is_column() || is_matrix(one)),
        several => {
            several.iter().any(|spec| spec.takes_missing)
                && several.iter().all(|spec| all(spec) && spec.is_column())
        }
    }
}

/// Whether [`read`] has a value of a type for what is missing.
fn may_be_missing(dtype: DType) -> bool {
    match dtype {
        DType::Float | DType::Double | DType::String => true,
        DType::Half
        | DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128 => false,
    }
}

/// Whether [`read`] can read these inputs from a table with a header: several columns.
#[must_use]
pub fn has_columns(inputs: &[TensorSpec]) -> bool {
    let is_column = |spec: &TensorSpec| {
        spec.is_column() || matches!(spec.shape.sizes().as_deref(), Some([-1, 1]))
    };
    let is_readable = |spec: &TensorSpec| spec.dtype().is_some_and(Values::can_be);
    inputs.len() > 1 && inputs.iter().all(|spec| is_column(spec) && is_readable(spec))
}

/// Reads a table into a tensor for each input of `signature`, in their order: `[rows]` for a column, `[rows, fields]`
/// for a matrix. If the model knows the names of the columns of its matrix, a header puts them into its order.
///
/// # Errors
/// With the line and the name or the number of the field; for names that are not those of the model; and for
/// more than `max_bytes`.
pub fn read(
    text: &[u8],
    signature: &Signature,
    header: Header,
    max_bytes: usize,
) -> Result<Vec<Tensor>> {
    match signature.inputs.as_slice() {
        [matrix] if !matrix.is_column() => {
            let has_names = has_header(text, signature, header)?;
            Ok(vec![read_matrix(text, matrix, has_names, max_bytes)?])
        }
        [_] => {
            let has_names = has_header(text, signature, header)?;
            read_columns(text, signature, has_names, max_bytes)
        }
        _ if header == Header::Absent => {
            let names: Vec<&str> = signature.inputs.iter().map(|spec| &*spec.alias).collect();
            Err(Error::invalid(format!(
                "the model takes its columns by name: the first line must have the names of the \
                 columns, which are {}",
                names.join(", ")
            )))
        }
        _ => read_columns(text, signature, true, max_bytes),
    }
}

/// The memory of a table.
struct Room {
    meter: Meter,
    left: usize,
    most: usize,
}

impl Room {
    fn new(most: usize) -> Self {
        Room { meter: Meter::default(), left: most, most }
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        let most = self.most;
        let too_large = || Error::oversized(format!("the table needs more than {most} bytes"));
        self.left = self.left.checked_sub(bytes).ok_or_else(too_large)?;
        // What grows has up to twice the capacity that it needs.
        self.meter.add(bytes.saturating_mul(2))
    }
}

fn dtype_of(spec: &TensorSpec) -> Result<DType> {
    let unknown =
        || Error::invalid(format!("input {:?} has a type that CSV cannot have", spec.alias));
    spec.dtype().filter(|dtype| Values::can_be(*dtype)).ok_or_else(unknown)
}

fn read_matrix(
    text: &[u8],
    spec: &TensorSpec,
    has_names: bool,
    max_bytes: usize,
) -> Result<Tensor> {
    let dtype = dtype_of(spec)?;
    let mut reader = CsvReader::new(text, Dialect::Rfc4180);
    let (mut order, mut rest) = (None, text);
    if has_names {
        reader.next_record()?;
        order = header::order(&mut reader, spec)?;
        rest = reader.clone().after_record()?;
    }
    if order.is_none()
        && let Some(tensor) = csv::numbers(rest, dtype, max_bytes)
    {
        return Ok(tensor);
    }
    let (mut values, mut room) = (Values::of(dtype), Room::new(max_bytes));
    let (mut rows, mut width) = (0, order.as_ref().map(Vec::len));
    while reader.next_record()? {
        let (line, mut found) = (reader.record_line(), 0);
        while let Some(field) = reader.next_field()? {
            found += 1;
            room.take(values.size_of(field))?;
            values.push(field).ok_or_else(|| not_of_type(line, &found, field, &values))?;
        }
        let expected = *width.get_or_insert(found);
        if found != expected {
            let first = if order.is_some() { "header" } else { "first row" };
            return Err(Error::invalid(format!(
                "line {line} has {found} fields, the {first} {expected}"
            )));
        }
        if let Some(order) = &order {
            values.reorder_last(order);
        }
        rows += 1;
    }
    let Some(width) = width.filter(|_| rows > 0) else {
        return Err(Error::invalid("the table has no rows"));
    };
    let size = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    values.into_tensor(Shape::new(&[size(rows), size(width)])?)
}

fn read_columns(
    text: &[u8],
    signature: &Signature,
    has_names: bool,
    max_bytes: usize,
) -> Result<Vec<Tensor>> {
    let specs = &signature.inputs;
    let mut reader = CsvReader::new(text, Dialect::Rfc4180);
    let mut places = vec![Some(0)];
    if has_names {
        if !reader.next_record()? {
            return Err(Error::invalid("the table has no lines"));
        }
        places = header::places(&mut reader, signature)?;
    }
    let dtypes = specs.iter().map(dtype_of).collect::<Result<Vec<DType>>>()?;
    let mut columns: Vec<Values> = dtypes.into_iter().map(Values::of).collect();
    let (mut room, mut rows) = (Room::new(max_bytes), 0);
    while reader.next_record()? {
        let (line, mut found) = (reader.record_line(), 0);
        while let Some(field) = reader.next_field()? {
            let place = places.get(found).copied().flatten();
            found += 1;
            let column = place.and_then(|place| columns.get_mut(place).zip(specs.get(place)));
            if let Some((column, spec)) = column {
                push(field, column, spec, line, &mut room)?;
            }
        }
        if found != places.len() {
            return Err(Error::invalid(format!(
                "line {line} has {found} fields; the columns are {}",
                places.len()
            )));
        }
        rows += 1;
    }
    if rows == 0 {
        return Err(Error::invalid("the table has no rows"));
    }
    let is_there = |at: usize| places.contains(&Some(at));
    let finished = columns.into_iter().zip(specs).enumerate();
    let finished = finished.map(|(at, (column, spec))| {
        if is_there(at) {
            return finish(column, spec, rows);
        }
        room.take(column.size_of(b"").saturating_mul(rows))?;
        let lacks = || Error::invalid(format!("the table lacks the column {:?}", spec.alias));
        signature.absent_input(spec, rows)?.ok_or_else(lacks)
    });
    finished.collect()
}

/// Appends a field to its column.
fn push(
    field: &[u8],
    column: &mut Values,
    spec: &TensorSpec,
    line: usize,
    room: &mut Room,
) -> Result<()> {
    let is_missing = match column {
        Values::Text(_) => field.is_empty(),
        Values::Float(_) | Values::Double(_) | Values::Integers(..) => {
            csv::is_missing(field.trim_ascii())
        }
    };
    if is_missing && !spec.takes_missing {
        return Err(Error::invalid(format!(
            "line {line}, column {}: a value is missing, which the model does not accept there",
            spec.alias
        )));
    }
    room.take(column.size_of(field))?;
    column.push(field).ok_or_else(|| not_of_type(line, &spec.alias, field, column))
}

/// The tensor of a column.
fn finish(column: Values, spec: &TensorSpec, rows: usize) -> Result<Tensor> {
    let shape = match spec.is_column() {
        true => Shape::vector(rows),
        false => Shape::new(&[i64::try_from(rows).unwrap_or(i64::MAX), 1])?,
    };
    column.into_tensor(shape).map_err(|error| error.context(format!("column {}", spec.alias)))
}

fn not_of_type(
    line: usize,
    column: &dyn std::fmt::Display,
    field: &[u8],
    values: &Values,
) -> Error {
    let (text, what) = (shortened(field), values.type_name());
    Error::invalid(format!("line {line}, column {column}: {text:?} is not {what}"))
}

/// The start of a text, for an error.
fn shortened(text: &[u8]) -> String {
    const LONGEST: usize = 80;
    String::from_utf8_lossy(text.get(..LONGEST).unwrap_or(text)).into_owned()
}

#[cfg(test)]
mod tests;
