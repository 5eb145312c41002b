//! The columns of a table of JSON values: their types, and the values that are not written yet.

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as PhysicalType};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedColumnWriter;
use parquet::schema::types::Type;
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::scan::Cursor;
use tensorserve_tensor::error::{Error, Result};

use crate::text;

/// Definition levels of an optional column.
const NULL: i16 = 0;
const PRESENT: i16 = 1;

/// Definition levels of an optional list with optional elements: `NULL`, and these.
const EMPTY_LIST: i16 = 1;
const NULL_ELEMENT: i16 = 2;
const ELEMENT: i16 = 3;

/// Repetition levels of a list: its first element, and the others.
const NEW_LIST: i16 = 0;
const SAME_LIST: i16 = 1;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Number,
    Boolean,
    Text,
    /// A list of numbers.
    Numbers,
    /// The text of any JSON value.
    Json,
}

impl Kind {
    /// The narrowest type of `value`, which is well-formed; `None` if it is null.
    pub(super) fn of(value: &[u8]) -> Option<Kind> {
        match value.first() {
            Some(b'n') => None,
            Some(b'"') => Some(Kind::Text),
            Some(b't' | b'f') => Some(Kind::Boolean),
            Some(b'{') => Some(Kind::Json),
            Some(b'[') => Some(if is_list_of_numbers(value) { Kind::Numbers } else { Kind::Json }),
            _ => Some(if integer(value).is_some() { Kind::Integer } else { Kind::Number }),
        }
    }

    /// The type of a column with values of both types; `None` if there is none.
    pub(super) fn with(self, other: Kind) -> Option<Kind> {
        match (self, other) {
            _ if self == other => Some(self),
            (Kind::Json, _) | (_, Kind::Json) => Some(Kind::Json),
            (Kind::Integer, Kind::Number) | (Kind::Number, Kind::Integer) => Some(Kind::Number),
            _ => None,
        }
    }

    /// What it holds, for error messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Integer => "integers",
            Kind::Number => "numbers",
            Kind::Boolean => "booleans",
            Kind::Text => "strings",
            Kind::Numbers => "lists of numbers",
            Kind::Json => "JSON",
        }
    }
}

/// Whether every element is a number or null.
fn is_list_of_numbers(list: &[u8]) -> bool {
    let mut all = true;
    let is_scalar = |first: u8| matches!(first, b'-' | b'0'..=b'9' | b'N' | b'I' | b'n');
    let read =
        text::elements(list, |element| all &= element.first().copied().is_some_and(is_scalar));
    read.is_ok() && all
}

fn integer(value: &[u8]) -> Option<i64> {
    match Cursor::new(value).number() {
        Ok(Number::Unsigned(number)) => i64::try_from(number).ok(),
        Ok(Number::Negative(number)) => Some(number),
        Ok(Number::Float(_)) | Err(_) => None,
    }
}

fn number(value: &[u8]) -> Option<f64> {
    Cursor::new(value).number().ok().map(Number::as_f64)
}

fn boolean(value: &[u8]) -> Option<bool> {
    match value.first() {
        Some(b't') => Some(true),
        Some(b'f') => Some(false),
        _ => None,
    }
}

/// The text of a string; `None` for another value.
fn string(value: &[u8]) -> Result<Option<ByteArray>> {
    Cursor::new(value).string().ok().map(|text| utf8(text.into_owned())).transpose()
}

/// Adds the value if there is one; whether there is.
fn push_some<T>(values: &mut Vec<T>, value: Option<T>) -> bool {
    let before = values.len();
    values.extend(value);
    values.len() > before
}

/// Text of a file must be UTF-8, which nothing has checked yet.
fn utf8(text: Vec<u8>) -> Result<ByteArray> {
    let text = String::from_utf8(text).map_err(|_| Error::invalid("a string is not UTF-8"))?;
    Ok(ByteArray::from(text.into_bytes()))
}

enum ParquetValues {
    Integers(Vec<i64>),
    Numbers(Vec<f64>),
    Booleans(Vec<bool>),
    Texts(Vec<ByteArray>),
    Lists { elements: Vec<f64>, repetition: Vec<i16> },
    Json(Vec<ByteArray>),
}

/// A column with the values of some rows.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The number of rows that have a value or a null.
    pub(super) rows: usize,
    values: ParquetValues,
    definition: Vec<i16>,
}

impl Column {
    pub(super) fn new(name: String, kind: Kind) -> Self {
        let values = match kind {
            Kind::Integer => ParquetValues::Integers(Vec::new()),
            Kind::Number => ParquetValues::Numbers(Vec::new()),
            Kind::Boolean => ParquetValues::Booleans(Vec::new()),
            Kind::Text => ParquetValues::Texts(Vec::new()),
            Kind::Numbers => ParquetValues::Lists { elements: Vec::new(), repetition: Vec::new() },
            Kind::Json => ParquetValues::Json(Vec::new()),
        };
        Column { name, kind, rows: 0, values, definition: Vec::new() }
    }

    /// The column's type in the file.
    pub(super) fn schema(&self) -> Result<Type, ParquetError> {
        let primitive = |name, physical| {
            Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL)
        };
        match self.kind {
            Kind::Integer => primitive(&self.name, PhysicalType::INT64).build(),
            Kind::Number => primitive(&self.name, PhysicalType::DOUBLE).build(),
            Kind::Boolean => primitive(&self.name, PhysicalType::BOOLEAN).build(),
            // Many readers do not know the annotation JSON, so its text is a plain string.
            Kind::Text | Kind::Json => primitive(&self.name, PhysicalType::BYTE_ARRAY)
                .with_converted_type(ConvertedType::UTF8)
                .with_logical_type(Some(LogicalType::String))
                .build(),
            Kind::Numbers => {
                let element = primitive("element", PhysicalType::DOUBLE).build()?;
                let list = Type::group_type_builder("list")
                    .with_repetition(Repetition::REPEATED)
                    .with_fields(vec![element.into()])
                    .build()?;
                Type::group_type_builder(&self.name)
                    .with_repetition(Repetition::OPTIONAL)
                    .with_converted_type(ConvertedType::LIST)
                    .with_logical_type(Some(LogicalType::List))
                    .with_fields(vec![list.into()])
                    .build()
            }
        }
    }

    /// Adds a row without a value. Returns the memory that it takes, in bytes.
    pub(super) fn push_null(&mut self) -> usize {
        self.rows += 1;
        self.definition.push(NULL);
        if let ParquetValues::Lists { repetition, .. } = &mut self.values {
            repetition.push(NEW_LIST);
        }
        2 * size_of::<i16>()
    }

    /// Adds a row with the well-formed JSON text `value`. Returns the memory that it takes, in bytes.
    ///
    /// # Errors
    /// [`Error::invalid`] if the value is not of the column's type.
    pub(super) fn push(&mut self, value: &[u8]) -> Result<usize> {
        if value.first() == Some(&b'n') {
            return Ok(self.push_null());
        }
        let fits = match &mut self.values {
            ParquetValues::Integers(values) => push_some(values, integer(value)),
            ParquetValues::Numbers(values) => push_some(values, number(value)),
            ParquetValues::Booleans(values) => push_some(values, boolean(value)),
            ParquetValues::Texts(values) => push_some(values, string(value)?),
            ParquetValues::Json(values) => {
                let mut line = Vec::with_capacity(value.len());
                text::append_on_one_line(value, &mut line);
                push_some(values, Some(utf8(line)?))
            }
            ParquetValues::Lists { elements, repetition } => {
                if Kind::of(value) != Some(Kind::Numbers) {
                    return Err(self.misfit(value));
                }
                let before = self.definition.len();
                push_list(value, elements, repetition, &mut self.definition)?;
                self.rows += 1;
                let added = self.definition.len() - before;
                return Ok(added * (size_of::<f64>() + 2 * size_of::<i16>()));
            }
        };
        if !fits {
            return Err(self.misfit(value));
        }
        self.rows += 1;
        self.definition.push(PRESENT);
        Ok(size_of::<ByteArray>() + size_of::<i16>() + value.len())
    }

    fn misfit(&self, value: &[u8]) -> Error {
        let what = match Kind::of(value) {
            Some(Kind::Number) => "a number with a fraction, or beyond 64 bits",
            _ => text::kind(value),
        };
        Error::invalid(format!(
            "the column {:?} holds {} as the first records have them, and the value is {what}: {}",
            self.name,
            self.kind.name(),
            text::excerpt(value)
        ))
    }

    /// Writes the values, and forgets them.
    pub(super) fn write(&mut self, to: &mut SerializedColumnWriter) -> Result<(), ParquetError> {
        let levels = Some(self.definition.as_slice());
        match &mut self.values {
            ParquetValues::Integers(values) => {
                to.typed::<Int64Type>().write_batch(values, levels, None)?;
                values.clear();
            }
            ParquetValues::Numbers(values) => {
                to.typed::<DoubleType>().write_batch(values, levels, None)?;
                values.clear();
            }
            ParquetValues::Booleans(values) => {
                to.typed::<BoolType>().write_batch(values, levels, None)?;
                values.clear();
            }
            ParquetValues::Texts(values) | ParquetValues::Json(values) => {
                to.typed::<ByteArrayType>().write_batch(values, levels, None)?;
                values.clear();
            }
            ParquetValues::Lists { elements, repetition } => {
                to.typed::<DoubleType>().write_batch(elements, levels, Some(repetition))?;
                elements.clear();
                repetition.clear();
            }
        }
        self.definition.clear();
        self.rows = 0;
        Ok(())
    }
}

/// Adds a row with a list of numbers and nulls.
fn push_list(
    list: &[u8],
    elements: &mut Vec<f64>,
    repetition: &mut Vec<i16>,
    definition: &mut Vec<i16>,
) -> Result<()> {
    let mut level = NEW_LIST;
    text::elements(list, |element| {
        repetition.push(level);
        level = SAME_LIST;
        match number(element) {
            Some(number) => {
                elements.push(number);
                definition.push(ELEMENT);
            }
            None => definition.push(NULL_ELEMENT),
        }
    })?;
    if level == NEW_LIST {
        repetition.push(NEW_LIST);
        definition.push(EMPTY_LIST);
    }
    Ok(())
}
