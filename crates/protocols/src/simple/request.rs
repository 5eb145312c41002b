//! The JSON body of `POST /`.
//!
//! Values can be decoded only when the model is known, but members may be in any order. A body whose
//! `data` follows the members that it depends on is decoded in one pass ([`decode_in_one_pass`]); any
//! other, and every body with a mistake, in two ([`decode_in_two_passes`]).

use super::data::{self, DataOptions, SimpleData};
use super::fault::{excerpt, not_json, python};
use super::find;
use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::members::MemberNames;
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::read::ReadOptions;
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_core::engine::{Engine, InferRequest, ModelHandle, Resolver, SignatureRun};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Error, Result};

/// A request, and whether it is one row without the batch dimension: then so is the response.
pub(super) type SimpleDecoded = (InferRequest, bool);

/// Decodes a body.
///
/// # Errors
/// For invalid JSON, an unknown model, version or signature, and values that do not match it.
pub(super) fn decode(
    engine: &Engine,
    resolver: &mut Resolver<'_>,
    body: &[u8],
) -> Result<SimpleDecoded> {
    match decode_in_one_pass(engine, resolver, body) {
        Some(decoded) => Ok(decoded),
        None => decode_in_two_passes(engine, resolver, body),
    }
}

/// The members besides `data`.
#[derive(Default)]
struct SimpleRequestFields {
    model_name: Option<String>,
    model_version: Option<i64>,
    signature_name: Option<String>,
    base64_decode: bool,
    profile: bool,
    /// The request asks for the preprocess or postprocess function of the model.
    hooks: bool,
}

const FIELDS: [&[u8]; 7] = [
    b"model_name",
    b"model_version",
    b"signature_name",
    b"base64_decode",
    b"run_profile",
    b"preprocess",
    b"postprocess",
];

impl SimpleRequestFields {
    /// Reads the member `name`, whose value is at `cursor`.
    fn read(&mut self, name: &[u8], cursor: &mut Cursor, body: &[u8]) -> Result<()> {
        let at = cursor.offset();
        let wrong = |what: &str| {
            let (name, value) = (String::from_utf8_lossy(name), dump(body, at));
            Error::invalid(format!("{name} must be {what}, not {}", python(&value)))
        };
        let text = |cursor: &mut Cursor| {
            let text = cursor.string().map_err(|_| wrong("a string"))?;
            String::from_utf8(text.into_owned()).map_err(|_| wrong("text"))
        };
        match name {
            b"model_name" => self.model_name = Some(text(cursor)?),
            b"signature_name" => self.signature_name = Some(text(cursor)?),
            b"model_version" => {
                let version = version(cursor);
                self.model_version = Some(version.ok_or_else(|| wrong("a whole number"))?);
            }
            // Any other value means no.
            b"run_profile" => self.profile = raw(cursor, body)? == b"\"true\"",
            b"preprocess" | b"postprocess" => {
                let value = raw(cursor, body)?;
                self.hooks |= !matches!(value, b"false" | b"\"false\"" | b"null");
            }
            _ => {
                self.base64_decode = cursor.peek() == b't';
                cursor.skip_value().map_err(|e| not_json(body, e))?;
            }
        }
        Ok(())
    }

    fn find(&self, engine: &Engine, resolver: &mut Resolver<'_>) -> Result<(ModelHandle, usize)> {
        let (model, signature) = (self.model_name.as_deref(), self.signature_name.as_deref());
        let found = find(engine, resolver, model, self.model_version, signature)?;
        if self.hooks {
            check_hooks(&found.0)?;
        }
        Ok(found)
    }

    /// The request to run a signature on `data`.
    fn request(&self, version: ModelHandle, signature: usize, data: SimpleData) -> SimpleDecoded {
        let run = SignatureRun::predict(signature, data.inputs);
        let mut request = InferRequest::new(version, run);
        request.profile = self.profile;
        (request, data.one_row)
    }

    /// How to read `data` for this model.
    fn data_options(&self, engine: &Engine, handle: &ModelHandle) -> DataOptions {
        let max_bytes = engine.max_tensor_bytes();
        DataOptions {
            read: ReadOptions {
                coerce: true,
                all_types: true,
                nulls: false,
                number_texts: None,
                alphabet: Alphabet::Any,
                max_bytes,
            },
            base64_decode: self.base64_decode,
            input_style: handle.platform().input_style,
        }
    }
}

/// Refuses a request for marshalled functions, which are never run. For a model without such functions,
/// the request is ignored.
fn check_hooks(handle: &ModelHandle) -> Result<()> {
    let model = handle.model();
    if handle.has_marshalled_hooks() {
        return Err(Error::invalid(format!(
            "model {model} has a preprocess or postprocess function in Python's marshal format, \
             which is code for one version of Python and is never run here; send data that is \
             ready for the model, without preprocess and postprocess"
        )));
    }
    log::debug!("model {model} has no preprocess or postprocess function");
    Ok(())
}

/// The value at `cursor` as it is written.
fn raw<'a>(cursor: &mut Cursor, body: &'a [u8]) -> Result<&'a [u8]> {
    let start = cursor.offset();
    cursor.skip_value().map_err(|e| not_json(body, e))?;
    Ok(body.get(start..cursor.offset()).unwrap_or_default().trim_ascii())
}

/// A version as a number or as a string of digits.
fn version(cursor: &mut Cursor) -> Option<i64> {
    if cursor.peek() == b'"' {
        let text = cursor.string().ok()?;
        return std::str::from_utf8(&text).ok()?.trim().parse().ok();
    }
    match cursor.number().ok()? {
        Number::Unsigned(number) => i64::try_from(number).ok(),
        Number::Negative(number) => Some(number),
        Number::Float(_) => None,
    }
}

/// Decodes a body in one pass; `None` for one with a mistake, or whose `data` is too early.
fn decode_in_one_pass(
    engine: &Engine,
    resolver: &mut Resolver<'_>,
    body: &[u8],
) -> Option<SimpleDecoded> {
    let mut cursor = Cursor::new(body);
    if cursor.skip_space() != b'{' || !cursor.open_object().ok()? {
        return None;
    }
    let mut fields = SimpleRequestFields::default();
    let mut decoded: Option<SimpleDecoded> = None;
    loop {
        let name = cursor.name().ok()?;
        if FIELDS.contains(&&*name) {
            // The data was decoded without this member.
            if decoded.is_some() {
                return None;
            }
            fields.read(&name, &mut cursor, body).ok()?;
        } else if &*name == b"data" && decoded.is_none() {
            let (handle, signature) = fields.find(engine, resolver).ok()?;
            let options = fields.data_options(engine, &handle);
            let (signature, declared) = by_names(&handle, signature, &cursor, 1)?;
            let data = data::read(&mut cursor, declared, options).ok()?;
            decoded = Some(fields.request(handle, signature, data));
        } else {
            cursor.skip_value().ok()?;
        }
        if !cursor.next_member().ok()? {
            return decoded;
        }
    }
}

/// Checks the syntax of a body, then decodes it; reports the mistake if there is one.
fn decode_in_two_passes(
    engine: &Engine,
    resolver: &mut Resolver<'_>,
    body: &[u8],
) -> Result<SimpleDecoded> {
    let data_at = find_data(body)?;
    let mut fields = SimpleRequestFields::default();
    let mut cursor = Cursor::new(body);
    cursor.skip_space();
    let mut more = cursor.open_object().map_err(|e| not_json(body, e))?;
    while more {
        let name = cursor.name().map_err(|e| not_json(body, e))?;
        if FIELDS.contains(&&*name) {
            fields.read(&name, &mut cursor, body)?;
        } else {
            cursor.skip_value().map_err(|e| not_json(body, e))?;
        }
        more = cursor.next_member().map_err(|e| not_json(body, e))?;
    }
    let (handle, signature) = fields.find(engine, resolver)?;
    let Some(data_at) = data_at else {
        return Err(Error::invalid("Inference with empty data, please check the request JSON"));
    };
    cursor.seek(data_at);
    let found = by_names(&handle, signature, &cursor, usize::MAX);
    let Some((signature, declared)) = found else {
        return Err(Error::internal("the signature does not exist"));
    };
    let read = data::read(&mut cursor, declared, fields.data_options(engine, &handle));
    let data = read.map_err(|fault| data::error(&fault, declared, body, data_at))?;
    Ok(fields.request(handle, signature, data))
}

/// The signature for the values at `cursor`: number `signature`, or the one that takes the columns that they name. At
/// most `most` of the names are looked at.
fn by_names<'h>(
    handle: &'h ModelHandle,
    signature: usize,
    cursor: &Cursor,
    most: usize,
) -> Option<(usize, &'h Signature)> {
    let found = (signature, handle.signatures().get(signature)?);
    if found.1.by_columns.is_none() || cursor.peek() != b'{' {
        return Some(found);
    }
    Some(handle.signature_by_inputs(found, MemberNames::of(cursor.clone()).take(most)))
}

/// Checks the syntax of `body` and returns the offset of the value of `data`.
fn find_data(body: &[u8]) -> Result<Option<usize>> {
    let scan = || -> std::result::Result<Option<Option<usize>>, SyntaxError> {
        let mut cursor = Cursor::new(body);
        cursor.open_document()?;
        if cursor.peek() != b'{' {
            cursor.skip_value()?;
            return Ok(None);
        }
        let mut data = None;
        let mut more = cursor.open_object()?;
        while more {
            let name = cursor.name()?;
            if &*name == b"data" && data.is_none() {
                data = Some(cursor.offset());
            }
            cursor.skip_value()?;
            more = cursor.next_member()?;
        }
        Ok(Some(data))
    };
    match scan() {
        Ok(Some(data)) => Ok(data),
        Ok(None) => Err(Error::invalid(format!(
            "Invalid json data: {}: it must be an object",
            excerpt(body)
        ))),
        Err(error) => Err(not_json(body, error)),
    }
}
