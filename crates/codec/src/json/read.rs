//! Nested arrays to tensors: numbers go from text straight into the typed buffer that the
//! runtime will read. Whatever deviates is a [`Fault`]; protocols put faults into words.

use std::ops::Range;

use super::scan::{Cursor, SyntaxError};
use super::sink::Column;
use super::walk::Extents;
use tensorserve_tensor::error::Result as EngineResult;
use tensorserve_tensor::{DType, Shape, Tensor};

pub use super::walk::{Fault, ReadOptions, is_base64_object};

/// Builds one tensor from one nested value, or from one per row.
pub struct TensorReader {
    options: ReadOptions,
    dtype: DType,
    extents: Extents,
    column: Column,
}

impl TensorReader {
    /// A reader of elements of type `dtype`; `text_bytes` is how much text is about to be read
    /// at most, to guess the number of elements.
    #[must_use]
    pub fn new(dtype: DType, options: ReadOptions, text_bytes: usize) -> Self {
        // Numbers with their separators are mostly eight bytes or longer.
        let guess = (text_bytes / 8 + 1).min(1 << 20);
        TensorReader {
            options,
            dtype,
            extents: Extents::default(),
            column: Column::new(dtype, options, guess),
        }
    }

    /// Reads the value at `cursor` and appends it. The second and later values must have the
    /// shape of the first.
    ///
    /// # Errors
    /// [`Fault`]. The cursor is then behind the value unless the text itself is broken.
    #[inline]
    pub fn read(&mut self, cursor: &mut Cursor) -> Result<(), Box<Fault>> {
        let start = cursor.offset();
        let first = self.column.len() == 0;
        match self.column.read(cursor, &mut self.extents, self.options) {
            Ok(()) => Ok(()),
            Err(fault) if first => Err(fault),
            Err(fault) => Err(self.row_fault(cursor, start, fault)),
        }
    }

    /// A value that did not fit the first one's shape: says whether it is wrong in itself or has
    /// another shape.
    #[cold]
    fn row_fault(&self, cursor: &mut Cursor, start: usize, fault: Box<Fault>) -> Box<Fault> {
        let Some(expected) = self.extents.known_shape() else {
            return fault;
        };
        let mut alone = TensorReader::new(self.dtype, self.options, 0);
        cursor.seek(start);
        let read = alone.column.read(cursor, &mut alone.extents, alone.options);
        if let Err(own) = read {
            return own;
        }
        let size = alone.column.len();
        let want = expected.elements().unwrap_or(0);
        if size != want {
            let expected = want;
            return Box::new(Fault::RowSize { size, expected });
        }
        match alone.extents.known_shape() {
            Some(shape) if shape != expected => Box::new(Fault::RowShape { shape, expected }),
            _ => fault,
        }
    }

    /// The tensor of the one value that was read.
    ///
    /// # Errors
    /// If none was.
    pub fn finish(self) -> EngineResult<Tensor> {
        let shape = self.extents.known_shape().unwrap_or_else(|| Shape::vector(0));
        self.column.into_tensor(self.dtype, shape)
    }

    /// The tensor whose rows are the `rows` values that were read.
    ///
    /// # Errors
    /// If there were not that many.
    pub fn finish_rows(self, rows: usize) -> EngineResult<Tensor> {
        let row = self.extents.known_shape().unwrap_or_default();
        let mut dims = vec![i64::try_from(rows).unwrap_or(i64::MAX)];
        dims.extend_from_slice(row.dims());
        self.column.into_tensor(self.dtype, Shape::new(&dims)?)
    }
}

/// The byte range of the value at `cursor`, which is put behind it.
///
/// # Errors
/// If it is no JSON.
pub fn span(cursor: &mut Cursor) -> Result<Range<usize>, SyntaxError> {
    let start = cursor.offset();
    cursor.skip_value()?;
    Ok(start..cursor.offset())
}

#[cfg(test)]
mod tests {
    use super::super::walk::Read;
    use super::*;
    use crate::base64::Alphabet;

    const STRICT: ReadOptions = ReadOptions {
        coerce: false,
        all_types: false,
        alphabet: Alphabet::Standard,
        max_bytes: 1 << 20,
    };
    const NUMPY: ReadOptions = ReadOptions { coerce: true, all_types: true, ..STRICT };

    fn read_with(dtype: DType, options: ReadOptions, text: &str) -> Read<Tensor> {
        let mut reader = TensorReader::new(dtype, options, text.len());
        let mut cursor = Cursor::new(text.as_bytes());
        reader.read(&mut cursor)?;
        assert_eq!(cursor.remaining(), 0, "{text}");
        Ok(reader.finish().expect("sizes agree"))
    }

    fn read(dtype: DType, text: &str) -> Read<Tensor> {
        read_with(dtype, STRICT, text)
    }

    fn rows(dtype: DType, texts: &[&str]) -> Read<Tensor> {
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
        assert_eq!(fault("[1,[2]]"), Fault::ListTooDeep { level: 1, rank: 1 });
        assert_eq!(fault("[[1],2]"), Fault::ValueAtWrongLevel { at: 5, level: 1, rank: 2 });
        let size = |size, level, expected| Fault::ListSize { size, level, expected };
        assert_eq!(fault("[[1,2],[3]]"), size(1, 1, 2));
        // The size of a list comes before what is wrong inside it.
        assert_eq!(fault("[[1,2],[3,\"x\",4]]"), size(3, 1, 2));
        assert_eq!(fault("[[],[1]]"), size(1, 1, 0));
        assert_eq!(fault("[1,\"x\"]"), Fault::Type { at: 3 });
        assert_eq!(fault("[1.0]"), Fault::Type { at: 1 });
        assert_eq!(fault("[null]"), Fault::Type { at: 1 });
        assert_eq!(fault("[2147483648]"), Fault::Type { at: 1 });
        assert!(matches!(fault("[1,"), Fault::Syntax(_)));
        assert!(matches!(fault("[1,nul]"), Fault::Syntax(_)));
        assert_eq!(*read(DType::Half, "[1]").expect_err("half"), Fault::Unsupported { at: 1 });
        assert_eq!(*read(DType::Bool, "[1]").expect_err("bool"), Fault::Type { at: 1 });
    }

    #[test]
    fn rows_must_look_like_the_first() {
        let tensor = rows(DType::Int32, &["[1,2]", "[3,4]"]).expect("valid");
        assert_eq!(dims(&tensor), [2, 2]);
        let fault = *rows(DType::Int32, &["[1,2]", "[3]"]).expect_err("short");
        assert_eq!(fault, Fault::RowSize { size: 1, expected: 2 });
        let fault = *rows(DType::Int32, &["[1,2]", "[[3,4]]"]).expect_err("deep");
        let (shape, expected) = (Shape::new(&[1, 2]).unwrap(), Shape::vector(2));
        assert_eq!(fault, Fault::RowShape { shape, expected });
        let fault = *rows(DType::Int32, &["1", "[1]"]).expect_err("list");
        let (shape, expected) = (Shape::vector(1), Shape::scalar());
        assert_eq!(fault, Fault::RowShape { shape, expected });
        let fault = *rows(DType::Int32, &["[1]", "[\"x\"]"]).expect_err("type");
        assert_eq!(fault, Fault::Type { at: 1 });
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
        assert!(matches!(*read(DType::Float, text).expect_err("syntax"), Fault::Syntax(_)));
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
        assert_eq!(fault(r#"[{"b64":"*"}]"#), Fault::NotBase64);
        assert_eq!(fault(r#"[{"b64":"","x":1}]"#), Fault::NotBase64Object { at: 1 });
        assert_eq!(fault("[1]"), Fault::Type { at: 1 });
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
        assert_eq!(*read(DType::Int32, r#"["a"]"#).expect_err("text"), Fault::Type { at: 1 });
        assert_eq!(*read(DType::Int32, "[NaN]").expect_err("NaN"), Fault::Type { at: 1 });
        assert_eq!(*read(DType::UInt8, "[256]").expect_err("range"), Fault::Type { at: 1 });
    }

    #[test]
    fn depth_and_memory_are_bounded() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        assert_eq!(*read(DType::Float, &deep).expect_err("deep"), Fault::TooManyDimensions);
        let many = format!("[{}1]", "1,".repeat(1 << 18));
        assert_eq!(*read(DType::Float, &many).expect_err("large"), Fault::TooLarge);
        let many = format!("[{}\"\"]", "\"\",".repeat(1 << 15));
        assert_eq!(*read(DType::String, &many).expect_err("large"), Fault::TooLarge);
    }
}
