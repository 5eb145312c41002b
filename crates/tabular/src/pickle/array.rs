//! NumPy's arrays: what their elements are, and where each lies.

use std::sync::Arc;

use bytes::Bytes;
use half::f16;

use super::{Id, Node};
use tensorserve_codec::places::Places;

/// The most dimensions that NumPy's arrays have.
pub(super) const MOST_DIMENSIONS: usize = 64;

/// What the elements of an array are: NumPy's dtype.
#[derive(Clone, Debug)]
pub struct ElementType {
    /// NumPy's letter of the kind: `f`, `i`, `u`, `b`, `U`, `S`, `O`, `V` (fields or raw), …
    letter: char,
    /// Bytes of an element.
    size: usize,
    big_endian: bool,
    fields: Vec<Field>,
}

/// A part of an element of kind `V`.
#[derive(Clone, Debug)]
struct Field {
    name: String,
    offset: usize,
    letter: char,
    size: usize,
    big_endian: bool,
}

impl ElementType {
    /// The type that NumPy calls `name`, such as `f8` or `<U3`.
    pub(super) fn named(name: &str) -> Option<Self> {
        let big_endian = name.starts_with('>');
        let name = name.trim_start_matches(['<', '>', '=', '|']);
        let mut rest = name.chars();
        let letter = rest.next().filter(char::is_ascii_alphabetic)?;
        let count: usize = match rest.as_str() {
            "" => 8,
            digits => digits.parse().ok()?,
        };
        let size = if letter == 'U' { count.checked_mul(4)? } else { count };
        Some(ElementType { letter, size, big_endian, fields: Vec::new() })
    }

    pub(super) fn set_order(&mut self, big_endian: bool) {
        self.big_endian = big_endian;
    }

    /// Takes the size of one that has none in its name; NumPy notes -1 for others.
    pub(super) fn set_size(&mut self, size: usize) {
        self.size = size;
    }

    pub(super) fn add_field(&mut self, name: String, kind: &ElementType, offset: usize) {
        let ElementType { letter, size, big_endian, .. } = *kind;
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.size);
        if fits && kind.fields.is_empty() {
            self.fields.push(Field { name, offset, letter, size, big_endian });
        }
    }

    /// NumPy's letter of its kind: `f`, `i`, `u`, `b`, `U`, `S`, `O`, `V`, …
    #[must_use]
    pub fn letter(&self) -> char {
        self.letter
    }

    /// The names of its fields; none for a plain type.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.name.as_str())
    }

    /// Bytes of an array of this shape; `None` for too many, or elements of no size.
    pub(super) fn bytes_of(&self, shape: &[usize]) -> Option<usize> {
        count(shape)?.checked_mul(self.size).filter(|_| self.size > 0)
    }
}

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size))
}

/// An array of NumPy's.
#[derive(Clone, Debug)]
pub struct Array {
    shape: Vec<usize>,
    count: usize,
    /// Whether the first dimension varies fastest.
    by_columns: bool,
    letter: char,
    size: usize,
    big_endian: bool,
    element: Arc<ElementType>,
    data: Data,
}

#[derive(Clone, Debug)]
enum Data {
    /// Elements, the first at `offset`, `stride` bytes from one to the next.
    Bytes { bytes: Bytes, offset: usize, stride: usize },
    /// The list of the elements, which are values of the pickle.
    Objects(Id),
}

impl Default for Array {
    fn default() -> Self {
        let element = ElementType { letter: 'V', size: 1, big_endian: false, fields: Vec::new() };
        let data = Data::Bytes { bytes: Bytes::new(), offset: 0, stride: 1 };
        Array::new(Arc::new(element), vec![0], 0, false, data)
    }
}

impl Array {
    fn new(
        element: Arc<ElementType>,
        shape: Vec<usize>,
        count: usize,
        by_columns: bool,
        data: Data,
    ) -> Self {
        let ElementType { letter, size, big_endian, .. } = *element;
        Array { shape, count, by_columns, letter, size, big_endian, element, data }
    }

    /// `None` if the bytes are not as many as it needs.
    pub(super) fn of_bytes(
        element: Arc<ElementType>,
        shape: Vec<usize>,
        by_columns: bool,
        bytes: Bytes,
    ) -> Option<Self> {
        element.bytes_of(&shape).filter(|needed| *needed == bytes.len())?;
        let (count, stride) = (count(&shape)?, element.size);
        let data = Data::Bytes { bytes, offset: 0, stride };
        Some(Array::new(element, shape, count, by_columns, data))
    }

    /// `None` if the objects are not as many as it needs.
    pub(super) fn of_objects(
        element: Arc<ElementType>,
        shape: Vec<usize>,
        by_columns: bool,
        list: Id,
        length: usize,
    ) -> Option<Self> {
        let count = count(&shape).filter(|count| *count == length)?;
        Some(Array::new(element, shape, count, by_columns, Data::Objects(list)))
    }

    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// NumPy's letter of the elements' kind: `f`, `i`, `u`, `b`, `U`, `S`, `O`, `V`, …
    #[must_use]
    pub fn letter(&self) -> char {
        self.letter
    }

    /// Bytes of an element.
    #[must_use]
    pub fn element_size(&self) -> usize {
        self.size
    }

    /// What its elements are.
    #[must_use]
    pub fn element(&self) -> &ElementType {
        &self.element
    }

    /// The field `name` of each element.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Array> {
        let field = self.element.fields.iter().find(|field| field.name == name)?;
        let Data::Bytes { bytes, offset, stride } = &self.data else { return None };
        let data =
            Data::Bytes { bytes: bytes.clone(), offset: offset + field.offset, stride: *stride };
        let Field { letter, size, big_endian, .. } = *field;
        let shape = self.shape.clone();
        Some(Array { shape, letter, size, big_endian, data, ..self.clone() })
    }

    /// The elements by rows, as numbers; `None` if they are none.
    #[must_use]
    pub fn f64s(&self) -> Option<Vec<f64>> {
        match (self.letter, self.size) {
            ('f', 8) => self.map(f64::from_le_bytes),
            ('f', 4) => self.map(|bytes| f32::from_le_bytes(bytes).into()),
            ('f', 2) => self.map(|bytes| f16::from_le_bytes(bytes).into()),
            ('u', 8) => self.map(|bytes| u64::from_le_bytes(bytes) as f64),
            _ => Some(self.i64s()?.into_iter().map(|number| number as f64).collect()),
        }
    }

    /// The elements by rows, as whole numbers; `None` if they are none, or too large.
    #[must_use]
    pub fn i64s(&self) -> Option<Vec<i64>> {
        match (self.letter, self.size) {
            ('i', 8) => self.map(i64::from_le_bytes),
            ('i', 4) => self.map(|bytes| i32::from_le_bytes(bytes).into()),
            ('i', 2) => self.map(|bytes| i16::from_le_bytes(bytes).into()),
            ('i', 1) => self.map(|bytes| i8::from_le_bytes(bytes).into()),
            ('u', 8) => {
                let wide: Vec<u64> = self.map(u64::from_le_bytes)?;
                wide.into_iter().map(|number| i64::try_from(number).ok()).collect()
            }
            ('u', 4) => self.map(|bytes| u32::from_le_bytes(bytes).into()),
            ('u', 2) => self.map(|bytes| u16::from_le_bytes(bytes).into()),
            ('u', 1) => self.map(|[byte]| byte.into()),
            ('b', 1) => self.map(|[byte]| i64::from(byte != 0)),
            _ => None,
        }
    }

    /// The elements by rows, as text; `None` if they are none.
    #[must_use]
    pub fn strings(&self) -> Option<Vec<String>> {
        match self.letter {
            'S' => self.places().map(|place| self.narrow_text(place)).collect(),
            'U' => self.places().map(|place| self.wide_text(place)).collect(),
            _ => None,
        }
    }

    fn narrow_text(&self, place: usize) -> Option<String> {
        let bytes = self.bytes_at(place)?;
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        String::from_utf8(bytes.get(..used)?.to_vec()).ok()
    }

    fn wide_text(&self, place: usize) -> Option<String> {
        let units = self.bytes_at(place)?.as_chunks::<4>().0;
        let number = |unit: &[u8; 4]| match self.big_endian {
            true => u32::from_be_bytes(*unit),
            false => u32::from_le_bytes(*unit),
        };
        let text: Option<String> = units.iter().map(|unit| char::from_u32(number(unit))).collect();
        text.map(|text| text.trim_end_matches('\0').to_owned())
    }

    fn bytes_at(&self, place: usize) -> Option<&[u8]> {
        let Data::Bytes { bytes, offset, stride } = &self.data else { return None };
        let start = place.checked_mul(*stride)?.checked_add(*offset)?;
        bytes.get(start..start.checked_add(self.size)?)
    }

    /// Each element by rows, of its bytes in the order of a small-endian machine.
    fn map<const N: usize, T>(&self, read: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
        let element = |place| {
            let mut bytes = *self.bytes_at(place)?.first_chunk::<N>()?;
            if self.big_endian {
                bytes.reverse();
            }
            Some(read(bytes))
        };
        self.places().map(element).collect()
    }

    /// Where in the data the elements lie, by rows.
    pub(super) fn places(&self) -> Places {
        match self.by_columns && self.shape.len() > 1 {
            true => Places::by_columns(self.shape.iter().copied(), self.count),
            false => Places::by_rows(self.count),
        }
    }

    /// The list of the objects that are its elements.
    pub(super) fn objects(&self) -> Option<Id> {
        match self.data {
            Data::Objects(list) => Some(list),
            Data::Bytes { .. } => None,
        }
    }

    /// Its only element, as a value of its own.
    pub(super) fn only(&self) -> Option<Node> {
        let number = self.i64s().and_then(|numbers| numbers.first().copied());
        match (self.letter, number) {
            ('b', Some(number)) => Some(Node::Bool(number != 0)),
            (_, Some(number)) => Some(Node::Int(number)),
            ('U' | 'S', None) => Some(Node::Text(self.strings()?.into_iter().next()?)),
            _ => Some(Node::Float(self.f64s()?.first().copied()?)),
        }
    }
}
