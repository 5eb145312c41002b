//! Tables in CSV for models of tables: one matrix of numbers, or a column for each input. A field without
//! text is a missing value: NaN, or the empty string.
//!
//! The first line may have the names of the columns; for several inputs it must. The fields are those of
//! [`csv`].

use super::csv::{self, Field};
use tensorserve_tensor::budget::Meter;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::{InputName, shown};
use tensorserve_tensor::{
    AlignedVec, DType, STRING_OVERHEAD, Shape, Signature, StringsBuilder, Tensor, TensorSpec,
    aligned_vec,
};

/// Whether [`read`] can read these inputs: those of a table, of which at least one takes missing values, of the
/// type float, double or string.
#[must_use]
pub fn can_read(inputs: &[TensorSpec]) -> bool {
    let is_readable = |dtype| matches!(dtype, DType::Float | DType::Double | DType::String);
    let all = |spec: &TensorSpec| spec.dtype().is_some_and(is_readable);
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

/// Reads a table into a tensor for each input of `signature`, in their order: `[rows]` for a column, `[rows, fields]`
/// for a matrix.
///
/// # Errors
/// With the line and the name or the number of the field; and for more than `max_bytes`.
pub fn read(text: &[u8], signature: &Signature, max_bytes: usize) -> Result<Vec<Tensor>> {
    match signature.inputs.as_slice() {
        [matrix] if !matrix.is_column() => Ok(vec![read_matrix(text, matrix, max_bytes)?]),
        _ => read_columns(text, signature, max_bytes),
    }
}

/// The first field of a table, which may be the name of a column.
#[must_use]
pub fn first_name(text: &[u8]) -> Option<Vec<u8>> {
    let (_, line) = numbered(text).next()?;
    let mut field = Vec::new();
    csv::field(line, &mut field);
    Some(field.trim_ascii().to_vec())
}

/// The values of a column or of a matrix, row by row.
enum Values {
    Float(AlignedVec<f32>),
    Double(AlignedVec<f64>),
    Text(StringsBuilder),
}

impl Values {
    fn of(dtype: Option<DType>) -> Self {
        match dtype {
            Some(DType::Float) => Values::Float(aligned_vec(0)),
            Some(DType::String) => Values::Text(StringsBuilder::default()),
            _ => Values::Double(aligned_vec(0)),
        }
    }

    /// Appends a missing value.
    fn push_missing(&mut self) {
        match self {
            Values::Float(values) => values.push(f32::NAN),
            Values::Double(values) => values.push(f64::NAN),
            Values::Text(values) => values.push_missing(),
        }
    }

    /// Appends a field; `None` if it is not a number, but must be one.
    fn push(&mut self, field: &[u8]) -> Option<()> {
        match self {
            Values::Float(values) => values.push(narrowed(number(field)?)),
            Values::Double(values) => values.push(number(field)?),
            Values::Text(values) => values.push(field),
        }
        Some(())
    }

    /// The bytes of a field.
    fn size_of(&self, field: &[u8]) -> usize {
        match self {
            Values::Float(_) => size_of::<f32>(),
            Values::Double(_) => size_of::<f64>(),
            Values::Text(_) => field.len() + STRING_OVERHEAD,
        }
    }

    fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        match self {
            Values::Float(values) => Tensor::from_vec(shape, values),
            Values::Double(values) => Tensor::from_vec(shape, values),
            Values::Text(values) => Tensor::from_strings(shape, values),
        }
    }
}

#[allow(clippy::cast_possible_truncation)]
const fn narrowed(number: f64) -> f32 {
    number as f32
}

/// The number in a field: NaN for one without text; `None` for other text.
fn number(field: &[u8]) -> Option<f64> {
    let text = field.trim_ascii();
    if text.is_empty() || text.eq_ignore_ascii_case(b"nan") {
        return Some(f64::NAN);
    }
    match csv::kind(text) {
        Field::Number(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        Field::Text => None,
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

/// The lines with text, with their numbers from 1.
fn numbered(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate();
    lines.map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.is_empty())
}

/// Calls `each` with the number of a field, from 0, and its text. Returns how many there are.
fn each_field(
    line: &[u8],
    field: &mut Vec<u8>,
    mut each: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<usize> {
    let (mut rest, mut count) = (Some(line), 0);
    while let Some(text) = rest {
        rest = csv::field(text, field);
        each(count, field)?;
        count += 1;
    }
    Ok(count)
}

fn read_matrix(text: &[u8], spec: &TensorSpec, max_bytes: usize) -> Result<Tensor> {
    let (mut values, mut field) = (Values::of(spec.dtype()), Vec::new());
    let mut room = Room::new(max_bytes);
    let (mut rows, mut width) = (0, None);
    for (at, (line_number, line)) in numbered(text).enumerate() {
        if at == 0 && has_names(line, &mut field) {
            continue;
        }
        let found = each_field(line, &mut field, |column, field| {
            room.take(values.size_of(field))?;
            values.push(field).ok_or_else(|| not_a_number(line_number, &(column + 1), field))
        })?;
        let expected = *width.get_or_insert(found);
        if found != expected {
            return Err(Error::invalid(format!(
                "line {line_number} has {found} fields, the first row {expected}"
            )));
        }
        rows += 1;
    }
    let size = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    values.into_tensor(Shape::new(&[size(rows), size(width.unwrap_or(0))])?)
}

/// Whether a first line of a matrix has names: one of its fields has text that is not a number.
fn has_names(line: &[u8], field: &mut Vec<u8>) -> bool {
    let mut has_text = false;
    let all = each_field(line, field, |_, field| {
        has_text |= number(field).is_none();
        Ok(())
    });
    all.is_ok() && has_text
}

fn read_columns(text: &[u8], signature: &Signature, max_bytes: usize) -> Result<Vec<Tensor>> {
    let specs = &signature.inputs;
    let mut field = Vec::new();
    let mut lines = numbered(text).peekable();
    let named = match lines.peek() {
        Some((_, first)) => columns_named(first, signature, &mut field)?,
        None => return Err(Error::invalid("the table has no lines")),
    };
    let places = match named {
        Some(places) => {
            lines.next();
            places
        }
        None => vec![Some(0)],
    };
    let mut columns: Vec<Values> = specs.iter().map(|spec| Values::of(spec.dtype())).collect();
    let (mut room, mut rows) = (Room::new(max_bytes), 0);
    for (line_number, line) in lines {
        let found = each_field(line, &mut field, |at, field| {
            let Some(Some(place)) = places.get(at) else {
                return Ok(());
            };
            let (Some(column), Some(spec)) = (columns.get_mut(*place), specs.get(*place)) else {
                return Ok(());
            };
            if field.is_empty() && !spec.takes_missing {
                return Err(Error::invalid(format!(
                    "line {line_number}, column {}: a value is missing, which the model does not \
                     accept there",
                    spec.alias
                )));
            }
            room.take(column.size_of(field))?;
            column.push(field).ok_or_else(|| not_a_number(line_number, &spec.alias, field))
        })?;
        if found != places.len() {
            return Err(Error::invalid(format!(
                "line {line_number} has {found} fields; the columns are {}",
                places.len()
            )));
        }
        rows += 1;
    }
    let finished = columns.into_iter().zip(specs).enumerate().map(|(at, (mut column, spec))| {
        if !places.contains(&Some(at)) {
            if !spec.takes_missing {
                let name = &spec.alias;
                return Err(Error::invalid(format!("the table lacks the column {name:?}")));
            }
            for _ in 0..rows {
                room.take(column.size_of(b""))?;
                column.push_missing();
            }
        }
        column.into_tensor(Shape::vector(rows))
    });
    finished.collect()
}

/// The inputs that the fields of the first line name, `None` for a column that the model does not use; or
/// `None` if the line is the value of the only input.
fn columns_named(
    line: &[u8],
    signature: &Signature,
    field: &mut Vec<u8>,
) -> Result<Option<Vec<Option<usize>>>> {
    let specs = &signature.inputs;
    let (mut places, mut unknown): (Vec<Option<usize>>, Option<Vec<u8>>) = (Vec::new(), None);
    let mut twice = None;
    each_field(line, field, |_, name| {
        let name = name.trim_ascii();
        match signature.named(name) {
            InputName::Declared(at) if places.contains(&Some(at)) => twice = Some(shortened(name)),
            InputName::Declared(at) => places.push(Some(at)),
            InputName::Unused => places.push(None),
            InputName::Ignored | InputName::Unknown => {
                unknown = unknown.take().or_else(|| Some(name.to_owned()));
            }
        }
        Ok(())
    })?;
    if let Some(name) = twice {
        return Err(Error::invalid(format!("the first line has the column {name:?} twice")));
    }
    let Some(unknown) = unknown else {
        return Ok(Some(places));
    };
    if specs.len() == 1 && places.is_empty() {
        return Ok(None);
    }
    Err(Error::invalid(format!(
        "the first line must have the names of the columns: the model has no input {}; {}",
        shown(&unknown),
        signature.instead_of(&unknown)
    )))
}

fn not_a_number(line: usize, column: &dyn std::fmt::Display, field: &[u8]) -> Error {
    let text = shortened(field);
    Error::invalid(format!("line {line}, column {column}: {text:?} is not a number"))
}

/// The start of a text, for an error.
fn shortened(text: &[u8]) -> String {
    const LONGEST: usize = 80;
    String::from_utf8_lossy(text.get(..LONGEST).unwrap_or(text)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(alias: &str, dtype: DType) -> TensorSpec {
        TensorSpec::new(alias, dtype, &[-1]).with_missing_values()
    }

    fn passengers() -> Signature {
        let inputs = vec![column("age", DType::Double), column("sex", DType::String)];
        let mut signature = Signature::only(inputs, Vec::new());
        signature.unused_columns.push("name".to_owned());
        signature
    }

    fn strings(tensor: &Tensor) -> Vec<&[u8]> {
        tensor.strings().expect("strings").iter().collect()
    }

    #[test]
    fn columns_have_the_names_in_the_first_line() {
        let text = b"sex,age\r\nmale,22\n,\n\"fe,male\", 30.5 \n";
        let tensors = read(text, &passengers(), 1000).expect("a table");
        let age = tensors[0].values::<f64>().expect("doubles");
        assert_eq!((age[0], age[1].is_nan(), age[2]), (22.0, true, 30.5));
        assert_eq!(strings(&tensors[1]), [&b"male"[..], b"", b"fe,male"]);
        // A column that is not there is missing in each row.
        let tensors = read(b"age\n1\n2\n", &passengers(), 1000).expect("a table");
        assert_eq!(strings(&tensors[1]), [b"", b""]);
        // One that the model does not use is not read.
        let text = b"name,age,sex\n\"Astor, Mrs.\",18,female\n";
        let tensors = read(text, &passengers(), 1000).expect("a table");
        assert_eq!(strings(&tensors[1]), [b"female"]);
    }

    #[test]
    fn wrong_tables_are_refused_with_their_place() {
        let refused = |text: &str| {
            let error = read(text.as_bytes(), &passengers(), 1000).expect_err(text);
            error.message().to_owned()
        };
        assert_eq!(
            refused("22,male\n"),
            "the first line must have the names of the columns: the model has no input \"22\"; its inputs are \
             \"age\", \"sex\""
        );
        assert_eq!(refused("age,sex\n\nx,y\n"), "line 3, column age: \"x\" is not a number");
        assert_eq!(refused("age,sex\n1\n"), "line 2 has 1 fields; the columns are 2");
        let mut signature = passengers();
        signature.inputs[1].takes_missing = false;
        let refused_by = |text: &str| {
            let error = read(text.as_bytes(), &signature, 1000).expect_err(text);
            error.message().to_owned()
        };
        assert_eq!(
            refused_by("age,sex\n1,\n"),
            "line 2, column sex: a value is missing, which the model does not accept there"
        );
        assert_eq!(refused_by("age\n1\n"), "the table lacks the column \"sex\"");
        assert_eq!(refused("age,age\n1,2\n"), "the first line has the column \"age\" twice");
        assert_eq!(refused(""), "the table has no lines");
        assert!(refused(&format!("age\n{}", "1\n".repeat(200))).contains("more than 1000 bytes"));
    }

    #[test]
    fn a_matrix_may_have_names() {
        let matrix = TensorSpec::new("data", DType::Float, &[-1, 3]).with_missing_values();
        let matrix = Signature::only(vec![matrix], Vec::new());
        assert!(can_read(&matrix.inputs));
        for text in ["a,b,c\n1,,3\n4,NaN,6\n", "1,,3\n4,nan,6"] {
            let tensors = read(text.as_bytes(), &matrix, 1000).expect("a matrix");
            assert_eq!(tensors[0].shape().dims(), [2, 3]);
            let values = tensors[0].values::<f32>().expect("floats");
            assert_eq!((values[0], values[2], values[3]), (1.0, 3.0, 4.0));
            assert!(values[1].is_nan() && values[4].is_nan());
        }
        let error = read(b"1,2,3\n1,x,3", &matrix, 1000).expect_err("text");
        assert_eq!(error.message(), "line 2, column 2: \"x\" is not a number");
        let error = read(b"1,2,3\n1,3", &matrix, 1000).expect_err("too short");
        assert_eq!(error.message(), "line 2 has 2 fields, the first row 3");
    }

    #[test]
    fn the_only_column_needs_no_name() {
        let text = Signature::only(vec![column("text", DType::String)], Vec::new());
        for table in ["text\na b\nc", "a b\nc"] {
            let tensors = read(table.as_bytes(), &text, 1000).expect("a column");
            assert_eq!(strings(&tensors[0]), [&b"a b"[..], b"c"]);
        }
    }
}
