//! Bodies of type `text/csv`, as the scoring server reads them: `pandas.read_csv` with the types of the
//! signature.
//!
//! The types of a column are decided by all of its fields: pandas tries the declared type, then integers, numbers
//! and truth values, and takes those that the declared type has without loss.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::cast::ValueType;
use super::fault::{self, Reason};
use super::node::Node;
use super::table::{COLUMN_BYTES, ColumnName, MlflowTable};
use tensorserve_codec::csv::{CsvReader, Dialect, is_missing};
use tensorserve_mlflow::schema::{ColumnType, InputSchema};
use tensorserve_tensor::budget::{self, ALLOCATION, Meter};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::limited;

/// The fields of a column.
#[derive(Default)]
struct RawColumn {
    text: Vec<u8>,
    /// Where each field ends in `text`.
    ends: Vec<usize>,
}

impl RawColumn {
    fn push(&mut self, field: &[u8]) {
        self.text.extend_from_slice(field);
        self.ends.push(self.text.len());
    }

    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.text.get(start..*end).unwrap_or_default())
    }

    /// The values of all fields, of which `of` makes them; `None` if it makes none of one.
    fn each<'c>(
        &'c self,
        of: impl Fn(&'c [u8]) -> Option<Node<'static>>,
    ) -> Option<Vec<Node<'static>>> {
        self.fields().map(of).collect()
    }

    /// The first field that is none of these values.
    fn first_other(&self, is_value: impl Fn(&[u8]) -> bool) -> Cow<'_, str> {
        String::from_utf8_lossy(self.fields().find(|field| !is_value(field)).unwrap_or_default())
    }
}

/// The table in a body, whose first record has the names of the columns.
///
/// # Errors
/// If it is no table, or has values that are not of the types of `schema`.
pub(super) fn read(text: &[u8], schema: Option<&InputSchema>) -> Result<MlflowTable<'static>> {
    if std::str::from_utf8(text).is_err() {
        return Err(fault::invalid_input("Ensure that input is a valid UTF-8 encoded string."));
    }
    let types = Types::of(schema)?;
    let (names, columns) = read_fields(text).map_err(|error| match error.http_status() {
        400 => csv_error(error.message()),
        _ => error,
    })?;
    let mut typed = Vec::with_capacity(columns.len());
    for (place, (name, column)) in names.into_iter().zip(columns).enumerate() {
        let values = match types.get(place, &name) {
            Some(to) => declared(&column, to).map_err(|reason| {
                reason.into_error(|why| csv_error(format_args!("{why} in column {name:?}")))
            })?,
            None => inferred(&column).map_err(|reason| reason.into_error(csv_error))?,
        };
        typed.push((ColumnName::Text(name), values));
    }
    MlflowTable::of_columns(typed).map_err(|reason| reason.into_error(csv_error))
}

/// The error of a CSV payload that is not a table.
pub(super) fn csv_error(reason: impl std::fmt::Display) -> Error {
    Error::invalid(limited(format_args!(
        "Failed to parse input as a Pandas DataFrame. Ensure that the input is a valid CSV-formatted \
         Pandas DataFrame produced using the `pandas.DataFrame.to_csv()` method. Error: '{reason}'"
    )))
}

/// The types of columns that a signature declares.
enum Types {
    None,
    /// Of columns with these names.
    Named(HashMap<String, ValueType>),
    /// Of the first columns.
    Placed(Vec<ValueType>),
    /// Of all columns.
    Same(ValueType),
}

impl Types {
    fn of(schema: Option<&InputSchema>) -> Result<Self> {
        Ok(match schema {
            None => Types::None,
            Some(InputSchema::Columns(columns)) => {
                let mut types = Vec::with_capacity(columns.len());
                for column in columns {
                    types.push((column.name.clone(), type_of_column(&column.dtype)?));
                }
                match types.iter().all(|(name, _)| name.is_some()) {
                    true => Types::Named(
                        types.into_iter().filter_map(|(name, to)| Some((name?, to))).collect(),
                    ),
                    false => Types::Placed(types.into_iter().map(|(_, to)| to).collect()),
                }
            }
            Some(InputSchema::Tensors(tensors)) => match &tensors[..] {
                [tensor] if tensor.name.is_none() => {
                    Types::Same(ValueType::of_numpy(&tensor.dtype))
                }
                _ => {
                    let of = |name: &Option<String>, dtype: &str| {
                        Some((name.clone()?, ValueType::of_numpy(dtype)))
                    };
                    Types::Named(tensors.iter().filter_map(|it| of(&it.name, &it.dtype)).collect())
                }
            },
        })
    }

    fn get(&self, place: usize, name: &str) -> Option<&ValueType> {
        match self {
            Types::None => None,
            Types::Named(types) => types.get(name),
            Types::Placed(types) => types.get(place),
            Types::Same(to) => Some(to),
        }
    }
}

/// The type of a column, of those that pandas reads.
fn type_of_column(column: &ColumnType) -> Result<ValueType> {
    match column {
        ColumnType::Boolean
        | ColumnType::Integer
        | ColumnType::Long
        | ColumnType::Float
        | ColumnType::Double
        | ColumnType::String => Ok(ValueType::of_column(column)),
        // Its text is the value: base64 is for JSON.
        ColumnType::Binary => Ok(ValueType::Text),
        ColumnType::Datetime => Err(csv_error(
            "the dtype datetime64[ns] is not supported for parsing: send JSON for a model with a column of \
             datetime",
        )),
        ColumnType::Array(_) | ColumnType::SparkVector | ColumnType::Other(_) => Err(csv_error(
            "Failed to get pandas types as some of the inputs types are not DataType: send JSON",
        )),
    }
}

type Columns = (Vec<String>, Vec<RawColumn>);

/// The names and the fields of all columns. Rows that are shorter end with missing values. If the first one is
/// longer than the header, its first fields are labels, as those of the other rows, and no column.
fn read_fields(text: &[u8]) -> Result<Columns> {
    let mut reader = CsvReader::new(text, Dialect::Rfc4180);
    if !reader.next_record()? {
        return Err(Error::invalid("No columns to parse from file"));
    }
    let mut meter = Meter::default();
    let names = read_names(&mut reader, &mut meter)?;
    let mut columns: Vec<RawColumn> = Vec::new();
    columns.resize_with(names.len(), RawColumn::default);
    let mut width = None;
    while reader.next_record()? {
        let (line, mut found) = (reader.record_line(), 0_usize);
        let labels = match width {
            Some(width) => width - names.len(),
            None => count_fields(reader.clone())?.saturating_sub(names.len()),
        };
        let width = *width.get_or_insert(names.len() + labels);
        while let Some(field) = reader.next_field()? {
            let column = found.checked_sub(labels).and_then(|at| columns.get_mut(at));
            found += 1;
            if let Some(column) = column {
                meter.add(2 * (field.len() + size_of::<usize>() + size_of::<Node>()))?;
                column.push(field);
            }
        }
        if found > width {
            return Err(Error::invalid(format!(
                "Error tokenizing data. C error: Expected {width} fields in line {line}, saw {found}"
            )));
        }
        for column in columns.iter_mut().skip(found.saturating_sub(labels)) {
            meter.add(2 * (size_of::<usize>() + size_of::<Node>()))?;
            column.push(b"");
        }
    }
    Ok((names, columns))
}

fn count_fields(mut reader: CsvReader<'_>) -> Result<usize> {
    let mut count = 0;
    while reader.next_field()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// The names in the header: those that are there again get a number, and those without text `Unnamed`.
fn read_names(reader: &mut CsvReader<'_>, meter: &mut Meter) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    while let Some(field) = reader.next_field()? {
        meter.add(3 * field.len() + COLUMN_BYTES + size_of::<RawColumn>())?;
        names.push(match field {
            [] => format!("Unnamed: {}", names.len()),
            _ => String::from_utf8_lossy(field).into_owned(),
        });
    }
    let mut taken: HashSet<String> = names.iter().cloned().collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for name in &mut names {
        let count = counts.entry(name.clone()).or_insert(0);
        if *count > 0 {
            let mut other = format!("{name}.{count}");
            while taken.contains(&other) {
                *count += 1;
                other = format!("{name}.{count}");
            }
            *count += 1;
            taken.insert(other.clone());
            *name = other;
        } else {
            *count = 1;
        }
    }
    Ok(names)
}

/// The values of a column of the type `to`.
///
/// # Errors
/// Why it is not of that type, in pandas' words.
fn declared(column: &RawColumn, to: &ValueType) -> Result<Vec<Node<'static>>, Reason> {
    match to {
        ValueType::Text | ValueType::Binary | ValueType::Any | ValueType::List(_) => texts(column),
        ValueType::Bool => Ok(bools(column)?),
        ValueType::Integer { .. } => Ok(integers(column)?),
        ValueType::Float32 | ValueType::Float64 => {
            let numbers = column.each(number_or_missing).or_else(|| {
                column.each(|field| if is_missing(field) { Some(Node::Null) } else { truth(field) })
            });
            let other = || column.first_other(|field| number_or_missing(field).is_some());
            let wrong = || format!("could not convert string to float: '{}'", other());
            Ok(numbers.ok_or_else(wrong)?)
        }
    }
}

fn bools(column: &RawColumn) -> Result<Vec<Node<'static>>, String> {
    if column.fields().any(is_missing) {
        return Err("Bool column has NA values".to_owned());
    }
    let as_number = |field: &[u8]| match number(field)? {
        0.0 => Some(Node::Bool(false)),
        1.0 => Some(Node::Bool(true)),
        _ => None,
    };
    column.each(truth).or_else(|| column.each(as_number)).ok_or_else(|| {
        let other = column.first_other(|field| truth(field).is_some());
        format!("cannot safely convert '{other}' to bool")
    })
}

fn integers(column: &RawColumn) -> Result<Vec<Node<'static>>, String> {
    if column.fields().any(is_missing) {
        return Err("Integer column has NA values".to_owned());
    }
    let values = column.each(integer).or_else(|| column.each(whole)).or_else(|| column.each(truth));
    values.ok_or_else(|| {
        let other = column.first_other(|field| whole(field).is_some());
        format!("cannot safely convert '{other}' to an integer")
    })
}

/// The integer that a number is.
fn whole(field: &[u8]) -> Option<Node<'static>> {
    let number = number(field)?;
    #[allow(clippy::cast_possible_truncation)] // Checked.
    (number.fract() == 0.0 && number.abs() < 9e18).then_some(Node::Int(number as i64))
}

fn texts(column: &RawColumn) -> Result<Vec<Node<'static>>, Reason> {
    let overhead = column.ends.len().saturating_mul(ALLOCATION);
    budget::reserve(column.text.len().saturating_add(overhead))?;
    let text = |field: &[u8]| match is_missing(field) {
        true => Node::Null,
        false => Node::Text(Cow::Owned(field.to_vec())),
    };
    Ok(column.fields().map(text).collect())
}

/// The values of a column without a declared type.
fn inferred(column: &RawColumn) -> Result<Vec<Node<'static>>, Reason> {
    let bools =
        || column.each(|field| if is_missing(field) { Some(Node::Null) } else { truth(field) });
    let numbers = column.each(integer).or_else(|| column.each(number_or_missing));
    numbers.or_else(bools).map_or_else(|| texts(column), Ok)
}

fn integer(field: &[u8]) -> Option<Node<'static>> {
    std::str::from_utf8(field.trim_ascii()).ok()?.parse().ok().map(Node::Int)
}

/// The number in a field; not a number that is spelt otherwise than pandas' missing values is text.
fn number(field: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(field.trim_ascii()).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

fn number_or_missing(field: &[u8]) -> Option<Node<'static>> {
    if is_missing(field) {
        return Some(Node::Float(f64::NAN));
    }
    number(field).map(Node::Float)
}

fn truth(field: &[u8]) -> Option<Node<'static>> {
    match field {
        _ if field.eq_ignore_ascii_case(b"true") => Some(Node::Bool(true)),
        _ if field.eq_ignore_ascii_case(b"false") => Some(Node::Bool(false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match read(text.as_bytes(), None) {
            Ok(table) => {
                let columns = table.columns.iter();
                let columns = columns.map(|it| format!("{}={:?}", it.name.shown(), it.values));
                columns.collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.message().rsplit("Error: ").next().unwrap_or_default().to_owned(),
        }
    }

    /// As `pandas.read_csv` of pandas 3.1 has them.
    #[test]
    fn names_and_rows_are_those_of_pandas() {
        assert_eq!(
            shown("a,\"b,c\"\r\n1,x\n2.5,\n\n,y\n"),
            "'a'=[Float(1.0), Float(2.5), Float(NaN)] 'b,c'=[Text([120]), Null, Text([121])]"
        );
        assert_eq!(
            shown("a,a,,a.1,a\n1,2,3,4,5"),
            "'a'=[Int(1)] 'a.2'=[Int(2)] 'Unnamed: 2'=[Int(3)] 'a.1'=[Int(4)] 'a.3'=[Int(5)]"
        );
        // The first row is longer: its first field is a label, also of the others.
        assert_eq!(shown("a,b\n0,1,2\n1,3\n"), "'a'=[Int(1), Int(3)] 'b'=[Float(2.0), Float(NaN)]");
        assert_eq!(
            shown("a,b\n1,2\n1\n1,2,3"),
            "'Error tokenizing data. C error: Expected 2 fields in line 4, saw 3'"
        );
        assert_eq!(shown("a\n"), "'a'=[]");
        assert_eq!(shown(" \n"), "'No columns to parse from file'");
        assert_eq!(shown("a\n\"x"), "'the quote that opens a field in line 2 is not closed'");
        assert!(read(b"a\n\xff", None).is_err());
    }

    #[test]
    fn columns_without_a_type_have_the_narrowest() {
        assert_eq!(shown("a\n01\n+2"), "'a'=[Int(1), Int(2)]");
        assert_eq!(
            shown("a,b\nTRUE,x\nfalse,x\nNA,x"),
            "'a'=[Bool(true), Bool(false), Null] 'b'=[Text([120]), Text([120]), Text([120])]"
        );
        assert_eq!(shown("a\n1\ntrue"), "'a'=[Text([49]), Text([116, 114, 117, 101])]");
    }
}
