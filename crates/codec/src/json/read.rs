//! Reads nested arrays into tensors. Numbers are converted from text directly into the typed buffer
//! that the runtime reads. Protocols put a [`TensorReadError`] into their own words.

use super::scan::Cursor;
use super::sink::ElementBuffer;
use super::walk::Extents;
use tensorserve_tensor::error::Result as EngineResult;
use tensorserve_tensor::{DType, Shape, Tensor};

pub use super::walk::{ReadOptions, Refusal, TensorReadError, is_base64_object};

/// Builds one tensor from one nested value, or from one value per row.
pub struct TensorReader {
    options: ReadOptions,
    dtype: DType,
    extents: Extents,
    elements: ElementBuffer,
}

impl TensorReader {
    /// A reader of elements of type `dtype`. `text_bytes` is the most text that it will read, from
    /// which it estimates the number of elements.
    #[must_use]
    pub fn new(dtype: DType, options: ReadOptions, text_bytes: usize) -> Self {
        TensorReader {
            options,
            dtype,
            extents: Extents::default(),
            elements: ElementBuffer::new(dtype, options, text_bytes),
        }
    }

    /// Reads the value at `cursor` and appends its elements. Later values must have the shape of the
    /// first.
    ///
    /// # Errors
    /// [`TensorReadError`]. The cursor is after the value then, unless the text is malformed.
    #[inline]
    pub fn read(&mut self, cursor: &mut Cursor) -> Result<(), Box<TensorReadError>> {
        let start = cursor.offset();
        let is_first = self.elements.len() == 0;
        match self.elements.read(cursor, &mut self.extents) {
            Ok(()) => Ok(()),
            Err(error) if is_first || matches!(*error, TensorReadError::Refused(_)) => Err(error),
            Err(error) => Err(self.row_error(cursor, start, error)),
        }
    }

    /// The error of a row that could not be read with the shape of row 0. Reads the row on its own
    /// to find out whether the row itself is invalid or only its shape differs.
    #[cold]
    fn row_error(
        &self,
        cursor: &mut Cursor,
        start: usize,
        error: Box<TensorReadError>,
    ) -> Box<TensorReadError> {
        let Some(expected) = self.extents.known_shape() else {
            return error;
        };
        let mut row = TensorReader::new(self.dtype, self.options, 0);
        cursor.seek(start);
        if let Err(own) = row.elements.read(cursor, &mut row.extents) {
            return own;
        }
        let size = row.elements.len();
        let expected_size = expected.elements().unwrap_or(0);
        if size != expected_size {
            return Box::new(TensorReadError::RowSize { size, expected: expected_size });
        }
        match row.extents.known_shape() {
            Some(shape) if shape != expected => {
                Box::new(TensorReadError::RowShape { shape, expected })
            }
            _ => error,
        }
    }

    /// Whether missing values can be added: single values of a type that has any.
    #[must_use]
    pub fn takes_missing(&self) -> bool {
        self.options.nulls && self.extents.may_be_element() && self.elements.has_missing()
    }

    /// Adds `count` missing values, as if each were a `null`, if it takes them
    /// ([`TensorReader::takes_missing`]).
    ///
    /// # Errors
    /// [`TensorReadError::TooLarge`] and [`TensorReadError::Refused`].
    pub fn add_missing(&mut self, count: usize) -> Result<(), Box<TensorReadError>> {
        if count == 0 || !self.takes_missing() {
            return Ok(());
        }
        self.extents.set_element();
        self.elements.add_missing(count)
    }

    /// The number of elements that were read.
    #[must_use]
    pub fn values(&self) -> usize {
        self.elements.len()
    }

    /// The tensor of the one value that was read.
    ///
    /// # Errors
    /// If no value, or more than one, was read.
    pub fn finish(self) -> EngineResult<Tensor> {
        let shape = self.extents.known_shape().unwrap_or_else(|| Shape::vector(0));
        self.elements.into_tensor(self.dtype, shape)
    }

    /// The tensor whose rows are the `rows` values that were read.
    ///
    /// # Errors
    /// If another number of values was read.
    pub fn finish_rows(self, rows: usize) -> EngineResult<Tensor> {
        let row = self.extents.known_shape().unwrap_or_default();
        let mut dims = vec![i64::try_from(rows).unwrap_or(i64::MAX)];
        dims.extend_from_slice(row.dims());
        self.elements.into_tensor(self.dtype, Shape::new(&dims)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::walk::ReadResult;
    use super::*;
    use crate::base64::Alphabet;

    const STRICT: ReadOptions = ReadOptions {
        coerce: false,
        all_types: false,
        nulls: false,
        number_texts: None,
        alphabet: Alphabet::Standard,
        max_bytes: 1 << 20,
    };
    const NUMPY: ReadOptions =
        ReadOptions { coerce: true, all_types: true, nulls: false, ..STRICT };

    fn read_with(dtype: DType, options: ReadOptions, text: &str) -> ReadResult<Tensor> {
        let mut reader = TensorReader::new(dtype, options, text.len());
        let mut cursor = Cursor::new(text.as_bytes());
        reader.read(&mut cursor)?;
        assert_eq!(cursor.remaining(), 0, "{text}");
        Ok(reader.finish().expect("sizes agree"))
    }

    fn read(dtype: DType, text: &str) -> ReadResult<Tensor> {
        read_with(dtype, STRICT, text)
    }

    fn rows(dtype: DType, texts: &[&str]) -> ReadResult<Tensor> {
        let mut reader = TensorReader::new(dtype, STRICT, 0);
        for text in texts {
            reader.read(&mut Cursor::new(text.as_bytes()))?;
        }
        Ok(reader.finish_rows(texts.len()).expect("sizes agree"))
    }

    fn dims(tensor: &Tensor) -> &[i64] {
        tensor.shape().dims()
    }

    #[test]
    fn shapes_come_from_the_first_elements() {
        let tensor = read(DType::Float, "[[1, 2.5],[3,4] , [5,6]]").expect("valid");
        assert_eq!(dims(&tensor), [3, 2]);
        assert_eq!(tensor.values::<f32>(), Some(&[1.0, 2.5, 3.0, 4.0, 5.0, 6.0][..]));
        assert_eq!(dims(&read(DType::Int32, "5").expect("scalar")), [0i64; 0]);
        assert_eq!(dims(&read(DType::Int32, "[]").expect("empty")), [0]);
        assert_eq!(dims(&read(DType::Int32, "[[],[]]").expect("empty")), [2, 0]);
        assert_eq!(dims(&read(DType::Int32, "[[[1],[2]]]").expect("cube")), [1, 2, 1]);
    }

    #[test]
    fn faults_are_those_tensorflow_serving_finds_first() {
        let fault = |text| *read(DType::Int32, text).expect_err(text);
        assert_eq!(fault("[1,[2]]"), TensorReadError::ListTooDeep { level: 1, rank: 1 });
        assert_eq!(
            fault("[[1],2]"),
            TensorReadError::ValueAtWrongLevel { at: 5, level: 1, rank: 2 }
        );
        let size = |size, level, expected| TensorReadError::ListSize { size, level, expected };
        assert_eq!(fault("[[1,2],[3]]"), size(1, 1, 2));
        // The size of a list comes before what is wrong inside it.
        assert_eq!(fault("[[1,2],[3,\"x\",4]]"), size(3, 1, 2));
        assert_eq!(fault("[[],[1]]"), size(1, 1, 0));
        assert_eq!(fault("[1,\"x\"]"), TensorReadError::Type { at: 3 });
        assert_eq!(fault("[1.0]"), TensorReadError::Type { at: 1 });
        assert_eq!(fault("[null]"), TensorReadError::Type { at: 1 });
        assert_eq!(fault("[2147483648]"), TensorReadError::Type { at: 1 });
        assert!(matches!(fault("[1,"), TensorReadError::Syntax(_)));
        assert!(matches!(fault("[1,nul]"), TensorReadError::Syntax(_)));
        assert_eq!(
            *read(DType::Half, "[1]").expect_err("half"),
            TensorReadError::Unsupported { at: 1 }
        );
        assert_eq!(*read(DType::Bool, "[1]").expect_err("bool"), TensorReadError::Type { at: 1 });
    }

    #[test]
    fn rows_must_look_like_the_first() {
        let tensor = rows(DType::Int32, &["[1,2]", "[3,4]"]).expect("valid");
        assert_eq!(dims(&tensor), [2, 2]);
        let fault = *rows(DType::Int32, &["[1,2]", "[3]"]).expect_err("short");
        assert_eq!(fault, TensorReadError::RowSize { size: 1, expected: 2 });
        let fault = *rows(DType::Int32, &["[1,2]", "[[3,4]]"]).expect_err("deep");
        let (shape, expected) = (Shape::new(&[1, 2]).unwrap(), Shape::vector(2));
        assert_eq!(fault, TensorReadError::RowShape { shape, expected });
        let fault = *rows(DType::Int32, &["1", "[1]"]).expect_err("list");
        let (shape, expected) = (Shape::vector(1), Shape::scalar());
        assert_eq!(fault, TensorReadError::RowShape { shape, expected });
        let fault = *rows(DType::Int32, &["[1]", "[\"x\"]"]).expect_err("type");
        assert_eq!(fault, TensorReadError::Type { at: 1 });
    }

    #[test]
    fn narrow_integers_wrap() {
        let tensor = read(DType::UInt8, "[256,-1,300]").expect("valid");
        assert_eq!(tensor.values::<u8>(), Some(&[0, 255, 44][..]));
        let tensor = read(DType::Int16, "[70000]").expect("valid");
        assert_eq!(tensor.values::<i16>(), Some(&[4464][..]));
    }

    #[test]
    fn floats_take_everything_numeric() {
        let text = "[1,-0,-0.0,1e400000000,NaN,-Infinity]";
        assert!(matches!(
            *read(DType::Float, text).expect_err("syntax"),
            TensorReadError::Syntax(_)
        ));
        let text = "[1e300,-0,-0.0,NaN,-Infinity,1e-300]";
        let tensor = read(DType::Float, text).expect("valid");
        let values = tensor.values::<f32>().expect("floats");
        assert_eq!(values[0], f32::INFINITY);
        assert!(values[1].is_sign_positive() && values[2].is_sign_negative());
        assert!(values[3].is_nan());
        assert_eq!(values[4], f32::NEG_INFINITY);
        assert_eq!(values[5], 0.0);
    }

    #[test]
    fn strings_and_base64_objects_mix() {
        let tensor = read(DType::String, r#"["a\u00e9", {"b64":"aGVsbG8="}]"#).expect("valid");
        let strings: Vec<&[u8]> = tensor.strings().expect("strings").iter().collect();
        assert_eq!(strings, ["a\u{e9}".as_bytes(), b"hello"]);
        let fault = |text| *read(DType::String, text).expect_err(text);
        assert_eq!(fault(r#"[{"b64":"*"}]"#), TensorReadError::NotBase64);
        assert_eq!(fault(r#"[{"b64":"","x":1}]"#), TensorReadError::NotBase64Object { at: 1 });
        assert_eq!(fault("[1]"), TensorReadError::Type { at: 1 });
    }

    #[test]
    fn numpy_coercion() {
        let read = |dtype, text| read_with(dtype, NUMPY, text);
        let tensor = read(DType::Int32, r#"[1.7,-1.7,"12",true]"#).expect("valid");
        assert_eq!(tensor.values::<i32>(), Some(&[1, -1, 12, 1][..]));
        let tensor = read(DType::Float, r#"["1.5",true,false]"#).expect("valid");
        assert_eq!(tensor.values::<f32>(), Some(&[1.5, 1.0, 0.0][..]));
        let tensor = read(DType::Half, "[1.5,-2]").expect("valid");
        assert_eq!(tensor.bytes(), [0x00, 0x3e, 0x00, 0xc0]);
        assert_eq!(
            *read(DType::Int32, r#"["a"]"#).expect_err("text"),
            TensorReadError::Type { at: 1 }
        );
        assert_eq!(*read(DType::Int32, "[NaN]").expect_err("NaN"), TensorReadError::Type { at: 1 });
        assert_eq!(
            *read(DType::UInt8, "[256]").expect_err("range"),
            TensorReadError::Type { at: 1 }
        );
    }

    #[test]
    fn tables_have_missing_values_and_booleans() {
        let table = ReadOptions { nulls: true, ..STRICT };
        let tensor = read_with(DType::Double, table, "[true,null,false,2.5]").expect("valid");
        let values = tensor.values::<f64>().expect("doubles");
        assert!(values[1].is_nan());
        assert_eq!((values[0], values[2], values[3]), (1.0, 0.0, 2.5));
        let tensor = read_with(DType::Int64, table, "[true,false]").expect("valid");
        assert_eq!(tensor.values::<i64>(), Some(&[1, 0][..]));
        for text in ["[tru]", r#"["1"]"#] {
            read_with(DType::Double, table, text).expect_err(text);
        }
        assert_eq!(
            *read(DType::Double, "[true]").expect_err("bool"),
            TensorReadError::Type { at: 1 }
        );
    }

    #[test]
    fn depth_and_memory_are_bounded() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        assert_eq!(
            *read(DType::Float, &deep).expect_err("deep"),
            TensorReadError::TooManyDimensions
        );
        let many = format!("[{}1]", "1,".repeat(1 << 18));
        assert_eq!(*read(DType::Float, &many).expect_err("large"), TensorReadError::TooLarge);
        let many = format!("[{}\"\"]", "\"\",".repeat(1 << 15));
        assert_eq!(*read(DType::String, &many).expect_err("large"), TensorReadError::TooLarge);
    }
}
