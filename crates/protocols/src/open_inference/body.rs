//! The body of a request over REST: a JSON document, and behind it the raw bytes of the inputs that say
//! their size instead of their data (the binary tensor data extension).

use std::borrow::Cow;

use bytes::Bytes;

use super::datatype;
use super::raw;
use super::request::{
    GivenRequest, Parameters, WantedOutput, checked_cast, no_classification, priority_of,
    truncated_range,
};
use super::shared_memory::{Regions, SharedRange};
use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::read::{ReadOptions, TensorReadError as Fault, TensorReader};
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::quoted;
use tensorserve_tensor::{DType, Shape, Tensor, budget};

/// The header with the number of bytes of the document; all others are raw.
pub(super) const HEADER_LENGTH: &str = "inference-header-content-length";

/// The most numbers that are read of a shape. A valid one has far fewer.
const MOST_DIMS: usize = 512;

/// The memory of an input besides its data: its place in a list that grows, and what its data is in.
const INPUT_OVERHEAD: usize = 2 * size_of::<(String, Tensor)>() + 160;

/// The memory of an output that is asked for.
const OUTPUT_OVERHEAD: usize = 2 * size_of::<WantedOutput>() + 32;

/// Reads the value of the header.
///
/// # Errors
/// If it is not a number of bytes.
pub(super) fn header_length(value: Option<&str>) -> Result<Option<usize>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let length = value.trim().parse().map_err(|_| {
        Error::invalid(format!(
            "the header Inference-Header-Content-Length must be a number of bytes, not {value:?}"
        ))
    })?;
    Ok(Some(length))
}

/// Reads a body whose first `length` bytes are the document, and all without one. With `nulls`, `null` is a
/// missing value.
///
/// # Errors
/// That say which part is wrong.
pub(super) fn read(
    body: Bytes,
    length: Option<usize>,
    nulls: bool,
    max_bytes: usize,
    regions: &Regions,
) -> Result<GivenRequest> {
    let length = length.unwrap_or(body.len());
    if length > body.len() {
        return Err(Error::invalid(format!(
            "the header Inference-Header-Content-Length is {length}, but the body has only {} bytes",
            body.len()
        )));
    }
    let mut tail = body.clone();
    let document = tail.split_to(length);
    let options = ReadOptions {
        coerce: false,
        all_types: true,
        nulls,
        number_texts: None,
        alphabet: Alphabet::Standard,
        max_bytes,
    };
    let reader = DocumentReader { document: &document, tail, options, regions };
    reader.request()
}

/// Reads a document, and takes the raw bytes behind it as its inputs need them.
struct DocumentReader<'d> {
    document: &'d [u8],
    tail: Bytes,
    options: ReadOptions,
    regions: &'d Regions,
}

/// The members of an input that are not its data.
#[derive(Default)]
struct InputHead {
    name: Option<String>,
    dims: Option<Vec<i64>>,
    dtype: Option<DType>,
    place: DataPlace,
}

/// Where parameters say that data is, if it is not in the document.
#[derive(Default)]
struct DataPlace {
    binary_size: Option<usize>,
    region: Option<String>,
    offset: u64,
    byte_size: Option<u64>,
}

impl DataPlace {
    /// The range of shared memory, if there is one.
    fn shared(self, kind: &str, name: &str) -> Result<Option<SharedRange>> {
        let Some(region) = self.region else {
            return Ok(None);
        };
        let byte_size = self.byte_size.ok_or_else(|| {
            let parameter = "shared_memory_byte_size";
            Error::invalid(format!("{kind} {name:?} lacks the parameter \"{parameter}\""))
        })?;
        Ok(Some(SharedRange { region, offset: self.offset, byte_size }))
    }
}

impl DocumentReader<'_> {
    fn request(mut self) -> Result<GivenRequest> {
        let mut request = GivenRequest::default();
        let mut has_inputs = false;
        let mut cursor = Cursor::new(self.document);
        let more = cursor.open_document().and_then(|()| match cursor.peek() {
            b'{' => cursor.open_object().map(Some),
            _ => Ok(None),
        });
        let Some(mut more) = more.map_err(syntax)? else {
            return Err(Error::invalid("the request must be a JSON object"));
        };
        while more {
            let name = cursor.name().map_err(syntax)?;
            match &*name {
                b"inputs" if has_inputs => return Err(twice("inputs")),
                b"inputs" => {
                    has_inputs = true;
                    self.list(&mut cursor, "inputs", |reader, cursor| {
                        request.inputs.push(reader.input(cursor)?);
                        Ok(())
                    })?;
                }
                _ if takes_null(&mut cursor)? => {}
                b"id" => request.id = self.text(&mut cursor, "id")?,
                b"parameters" => request.parameters = self.parameters(&mut cursor)?,
                b"outputs" if !request.outputs.is_empty() => return Err(twice("outputs")),
                b"outputs" => self.list(&mut cursor, "outputs", |reader, cursor| {
                    request.outputs.push(reader.output(cursor)?);
                    Ok(())
                })?,
                _ => cursor.skip_value().map_err(syntax)?,
            }
            more = cursor.next_member().map_err(syntax)?;
        }
        cursor.skip_space();
        if cursor.remaining() > 0 {
            let at = cursor.offset();
            return Err(Error::invalid(format!(
                "the JSON document ends at byte {at}, but more follows; raw bytes require the header \
                 Inference-Header-Content-Length"
            )));
        }
        if !has_inputs {
            return Err(Error::invalid("the request lacks the member \"inputs\""));
        }
        if !self.tail.is_empty() {
            return Err(Error::invalid(format!(
                "{} bytes are left after the raw bytes of all inputs",
                self.tail.len()
            )));
        }
        Ok(request)
    }

    /// Reads a list of objects.
    fn list(
        &mut self,
        cursor: &mut Cursor,
        what: &str,
        mut each: impl FnMut(&mut Self, &mut Cursor) -> Result<()>,
    ) -> Result<()> {
        if cursor.peek() != b'[' {
            return Err(self.wrong(cursor, what, "a list"));
        }
        let mut more = cursor.open_array();
        while more {
            if cursor.peek() != b'{' {
                return Err(self.wrong(cursor, &format!("an element of {what}"), "an object"));
            }
            each(self, cursor)?;
            more = cursor.next_element().map_err(syntax)?;
        }
        Ok(())
    }

    fn input(&mut self, cursor: &mut Cursor) -> Result<(String, Tensor)> {
        let mut head = InputHead::default();
        let (mut tensor, mut data_at) = (None, None);
        let mut more = cursor.open_object().map_err(syntax)?;
        while more {
            let name = cursor.name().map_err(syntax)?;
            match &*name {
                b"name" => head.name = Some(self.text(cursor, "the name of an input")?),
                b"datatype" => head.dtype = Some(self.datatype(cursor)?),
                b"shape" => head.dims = Some(self.dims(cursor)?),
                b"data" if data_at.is_some() => return Err(twice("data")),
                b"data" => {
                    data_at = Some(cursor.offset());
                    match head.dtype {
                        Some(dtype) => tensor = Some(self.data(cursor, dtype, &head)?),
                        None => cursor.skip_value().map_err(syntax)?,
                    }
                }
                b"parameters" if !takes_null(cursor)? => head.place = self.place(cursor)?,
                b"parameters" => {}
                _ => cursor.skip_value().map_err(syntax)?,
            }
            more = cursor.next_member().map_err(syntax)?;
        }
        if let (None, Some(at), Some(dtype)) = (&tensor, data_at, head.dtype) {
            let mut cursor = cursor.clone();
            cursor.seek(at);
            tensor = Some(self.data(&mut cursor, dtype, &head)?);
        }
        self.finished_input(head, tensor)
    }

    fn finished_input(
        &mut self,
        head: InputHead,
        tensor: Option<Tensor>,
    ) -> Result<(String, Tensor)> {
        let InputHead { name, dims, dtype, place } = head;
        let name = name.ok_or_else(|| Error::invalid("an input lacks the member \"name\""))?;
        budget::reserve(name.len().saturating_add(INPUT_OVERHEAD))?;
        let lacks =
            |member: &str| Error::invalid(format!("input {name:?} lacks the member \"{member}\""));
        let dtype = dtype.ok_or_else(|| lacks("datatype"))?;
        let dims = dims.ok_or_else(|| lacks("shape"))?;
        let shape = Shape::new(&dims).map_err(|error| error.context(format!("input {name:?}")))?;
        let (size, shared) = (place.binary_size, place.shared("input", &name)?);
        let tensor = match (tensor, size, shared) {
            (None, None, None) => return Err(lacks("data")),
            (Some(tensor), None, None) => reshaped(&name, tensor, shape)?,
            (None, Some(size), None) => raw::read(&name, dtype, shape, self.take(&name, size)?)?,
            (None, None, Some(range)) => {
                raw::read(&name, dtype, shape, self.regions.read(&name, &range)?)?
            }
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "input {name:?} has more than one of \"data\" and the parameters \
                     \"binary_data_size\" and \"shared_memory_region\""
                )));
            }
        };
        Ok((name, tensor))
    }

    /// The next raw bytes.
    fn take(&mut self, name: &str, size: usize) -> Result<Bytes> {
        if size > self.tail.len() {
            return Err(Error::invalid(format!(
                "input {name:?} has binary_data_size {size}, but only {} raw bytes are left",
                self.tail.len()
            )));
        }
        Ok(self.tail.split_to(size))
    }

    /// The elements of an input, flat or nested.
    fn data(&self, cursor: &mut Cursor, dtype: DType, head: &InputHead) -> Result<Tensor> {
        let name = head.name.as_deref().unwrap_or_default();
        if datatype::is_raw_only(dtype) {
            return Err(Error::invalid(format!(
                "input {name:?}: {} data cannot be sent as JSON; send it as raw bytes, with \
                 \"binary_data_size\"",
                datatype::name_of(dtype)
            )));
        }
        if cursor.peek() != b'[' {
            return Err(self.wrong(cursor, &format!("\"data\" of input {name:?}"), "a list"));
        }
        // The reader takes any int32 for the types that TensorFlow Serving truncates to.
        let is_truncated = truncated_range(dtype).is_some();
        let read_dtype = if is_truncated { DType::Int32 } else { dtype };
        let mut reader = TensorReader::new(read_dtype, self.options, cursor.remaining());
        let read = reader.read(cursor);
        read.map_err(|fault| self.data_error(name, dtype, &fault))?;
        let tensor = reader.finish().map_err(|error| error.context(format!("input {name:?}")))?;
        if !is_truncated {
            return Ok(tensor);
        }
        checked_cast(&tensor, dtype).ok_or_else(|| {
            let dtype = datatype::name_of(dtype);
            Error::invalid(format!("\"data\" of input {name:?}: a value does not fit {dtype}"))
        })
    }

    fn data_error(&self, name: &str, dtype: DType, fault: &Fault) -> Error {
        let what = match fault {
            Fault::Syntax(error) => return syntax(*error),
            Fault::Refused(refusal) => return refusal.error(),
            Fault::Type { at } | Fault::Unsupported { at } | Fault::NotBase64Object { at } => {
                let (value, dtype) = (dump(self.document, *at), datatype::name_of(dtype));
                format!("{value} at byte {at} is not a {dtype}")
            }
            Fault::NotBase64 => "the text of a \"b64\" object is not base64".to_owned(),
            Fault::ListTooDeep { .. }
            | Fault::ValueAtWrongLevel { .. }
            | Fault::ListSize { .. }
            | Fault::RowSize { .. }
            | Fault::RowShape { .. } => {
                "lists at the same depth must have the same size".to_owned()
            }
            Fault::TooManyDimensions => "lists are nested too deeply".to_owned(),
            Fault::TooLarge => format!("it needs more than {} bytes", self.options.max_bytes),
        };
        Error::invalid(format!("\"data\" of input {name:?}: {what}"))
    }

    fn datatype(&self, cursor: &mut Cursor) -> Result<DType> {
        let name = self.utf8(cursor, "datatype")?;
        datatype::of_name(&name).ok_or_else(|| {
            Error::invalid(format!(
                "datatype {name:?} is not one of BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, \
                 FP32, FP64 and BYTES"
            ))
        })
    }

    fn dims(&self, cursor: &mut Cursor) -> Result<Vec<i64>> {
        let at = cursor.clone();
        let wrong = || self.wrong(&at, "shape", "a list of whole numbers");
        if cursor.peek() != b'[' {
            return Err(wrong());
        }
        let mut dims = Vec::new();
        let mut more = cursor.open_array();
        while more {
            let dim = match cursor.number() {
                Ok(Number::Unsigned(dim)) => i64::try_from(dim).map_err(|_| wrong())?,
                Ok(Number::Negative(dim)) => dim,
                Ok(Number::Float(_)) | Err(_) => return Err(wrong()),
            };
            if dims.len() == MOST_DIMS {
                return Err(wrong());
            }
            dims.push(dim);
            more = cursor.next_element().map_err(|_| wrong())?;
        }
        Ok(dims)
    }

    fn output(&mut self, cursor: &mut Cursor) -> Result<WantedOutput> {
        let (mut found, mut binary, mut place) = (None, None, DataPlace::default());
        let mut more = cursor.open_object().map_err(syntax)?;
        while more {
            let name = cursor.name().map_err(syntax)?;
            match &*name {
                b"name" => found = Some(self.text(cursor, "the name of an output")?),
                b"parameters" if !takes_null(cursor)? => {
                    self.each_parameter(cursor, |reader, name, cursor| match name {
                        b"binary_data" => {
                            binary = Some(reader.boolean(cursor, "binary_data")?);
                            Ok(true)
                        }
                        b"classification" => Err(no_classification()),
                        _ => reader.shared(name, cursor, &mut place),
                    })?;
                }
                b"parameters" => {}
                _ => cursor.skip_value().map_err(syntax)?,
            }
            more = cursor.next_member().map_err(syntax)?;
        }
        let name = found.ok_or_else(|| Error::invalid("an output lacks the member \"name\""))?;
        budget::reserve(name.len().saturating_add(OUTPUT_OVERHEAD))?;
        let range = place.shared("output", &name)?;
        let shared = range.map(|range| self.regions.output(&name, range)).transpose()?;
        Ok(WantedOutput { name, binary, shared })
    }

    fn parameters(&mut self, cursor: &mut Cursor) -> Result<Parameters> {
        let mut parameters = Parameters::default();
        self.each_parameter(cursor, |reader, name, cursor| {
            match name {
                b"binary_data_output" => {
                    parameters.binary_data_output = reader.boolean(cursor, "binary_data_output")?;
                }
                b"timeout" => {
                    let timeout = reader.whole(cursor, "timeout")?;
                    // As in Triton, 0 is none.
                    parameters.timeout = (timeout > 0).then_some(timeout);
                }
                b"priority" => {
                    parameters.priority = priority_of(reader.whole(cursor, "priority")?);
                }
                b"signature_name" => {
                    parameters.signature = Some(reader.text(cursor, "signature_name")?);
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(parameters)
    }

    /// The place of an input's data.
    fn place(&mut self, cursor: &mut Cursor) -> Result<DataPlace> {
        let mut place = DataPlace::default();
        self.each_parameter(cursor, |reader, name, cursor| {
            if name == b"binary_data_size" {
                let bytes = reader.whole(cursor, "binary_data_size")?;
                place.binary_size = Some(usize::try_from(bytes).unwrap_or(usize::MAX));
                return Ok(true);
            }
            reader.shared(name, cursor, &mut place)
        })?;
        Ok(place)
    }

    /// Reads a parameter of shared memory; returns whether it is one.
    fn shared(&self, name: &[u8], cursor: &mut Cursor, place: &mut DataPlace) -> Result<bool> {
        match name {
            b"shared_memory_region" => {
                place.region = Some(self.text(cursor, "shared_memory_region")?);
            }
            b"shared_memory_offset" => place.offset = self.whole(cursor, "shared_memory_offset")?,
            b"shared_memory_byte_size" => {
                place.byte_size = Some(self.whole(cursor, "shared_memory_byte_size")?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads the members of an object of parameters: strings, numbers and Booleans. `read` returns
    /// whether it has read the value.
    fn each_parameter(
        &mut self,
        cursor: &mut Cursor,
        mut read: impl FnMut(&mut Self, &[u8], &mut Cursor) -> Result<bool>,
    ) -> Result<()> {
        if cursor.peek() != b'{' {
            return Err(self.wrong(cursor, "parameters", "an object"));
        }
        let mut more = cursor.open_object().map_err(syntax)?;
        while more {
            let name = cursor.name().map_err(syntax)?;
            if matches!(cursor.peek(), b'{' | b'[' | b'n') && &*name != b"headers" {
                let name = format!("the parameter {:?}", quoted(&name));
                return Err(self.wrong(cursor, &name, "a string, a number or a Boolean"));
            }
            if !read(self, &name, cursor)? {
                cursor.skip_value().map_err(syntax)?;
            }
            more = cursor.next_member().map_err(syntax)?;
        }
        Ok(())
    }

    fn text(&self, cursor: &mut Cursor, what: &str) -> Result<String> {
        let text = self.utf8(cursor, what)?;
        Ok(text.into_owned())
    }

    fn utf8<'c>(&self, cursor: &mut Cursor<'c>, what: &str) -> Result<Cow<'c, str>> {
        if cursor.peek() != b'"' {
            return Err(self.wrong(cursor, what, "a string"));
        }
        let text = match cursor.string().map_err(syntax)? {
            Cow::Borrowed(text) => std::str::from_utf8(text).ok().map(Cow::Borrowed),
            Cow::Owned(text) => String::from_utf8(text).ok().map(Cow::Owned),
        };
        text.ok_or_else(|| Error::invalid(format!("{what} must be UTF-8")))
    }

    fn boolean(&self, cursor: &mut Cursor, what: &str) -> Result<bool> {
        let value = cursor.peek() == b't';
        if !matches!(cursor.peek(), b't' | b'f') {
            return Err(self.wrong(cursor, what, "true or false"));
        }
        cursor.skip_value().map_err(syntax)?;
        Ok(value)
    }

    fn whole(&self, cursor: &mut Cursor, what: &str) -> Result<u64> {
        let at = cursor.clone();
        let wrong = || self.wrong(&at, what, "a whole number that is not negative");
        match cursor.number() {
            Ok(Number::Unsigned(number)) => Ok(number),
            Ok(Number::Negative(_) | Number::Float(_)) | Err(_) => Err(wrong()),
        }
    }

    /// The error for a value at the cursor of the wrong kind.
    fn wrong(&self, cursor: &Cursor, what: &str, expected: &str) -> Error {
        let at = cursor.offset();
        let value = dump(self.document, at);
        Error::invalid(format!("{what} must be {expected}, not {value} (byte {at})"))
    }
}

/// Data in the shape of its input. It may be flat or nested in any way.
fn reshaped(name: &str, tensor: Tensor, shape: Shape) -> Result<Tensor> {
    if *tensor.shape() == shape {
        return Ok(tensor);
    }
    let (needed, given) = (shape.elements()?, tensor.shape().elements()?);
    if needed != given {
        return Err(Error::invalid(format!(
            "input {name:?} has {given} elements, but its shape {shape:?} has {needed}"
        )));
    }
    tensor.reshaped(shape)
}

/// Skips a null, which stands for an optional member that is absent.
fn takes_null(cursor: &mut Cursor) -> Result<bool> {
    if cursor.peek() != b'n' {
        return Ok(false);
    }
    cursor.skip_value().map_err(syntax)?;
    Ok(true)
}

fn twice(member: &str) -> Error {
    Error::invalid(format!("the member \"{member}\" is given twice"))
}

fn syntax(error: SyntaxError) -> Error {
    let SyntaxError { kind, offset, .. } = error;
    Error::invalid(format!("failed to parse the request JSON: {} (byte {offset})", kind.text()))
}
