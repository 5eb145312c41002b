//! Reads forms with images (`multipart/form-data`).

use actix_multipart::Multipart;
use actix_web::dev::Payload;
use actix_web::http::header::HeaderMap;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use super::body::{BodyError, Limits, check_length, too_slow};
use crate::error::Code;
use crate::protocol::simple::ImageForm;

/// More parts than any real form has.
const MOST_PARTS: usize = 1024;

/// Longer than any name or number in a text field.
const LONGEST_TEXT: usize = 4096;

/// Reads a whole form. Fields we do not know are read over, as the original does.
pub(super) async fn read(
    headers: &HeaderMap,
    payload: Payload,
    limits: Limits,
) -> Result<ImageForm, BodyError> {
    check_length(headers, limits.bytes)?;
    let reading = collect(Multipart::new(headers, payload), limits.bytes);
    match tokio::time::timeout(limits.time, reading).await {
        Ok(form) => form,
        Err(_) => Err(too_slow(limits.time)),
    }
}

async fn collect(mut parts: Multipart, limit: usize) -> Result<ImageForm, BodyError> {
    let mut form = ImageForm::default();
    let mut images = Vec::new();
    let mut total = 0;
    let mut count = 0;
    while let Some(part) = parts.next().await {
        let mut part = part.map_err(|e| bad(&e.to_string()))?;
        count += 1;
        if count > MOST_PARTS {
            return Err(bad(&format!("it has more than {MOST_PARTS} parts")));
        }
        let name = part.name().unwrap_or_default().to_owned();
        let mut content = BytesMut::new();
        while let Some(chunk) = part.next().await {
            let chunk = chunk.map_err(|e| bad(&e.to_string()))?;
            total += chunk.len();
            if total > limit {
                return Err(BodyError::too_large(limit));
            }
            content.extend_from_slice(&chunk);
        }
        match name.as_str() {
            "image" => form.images.push(content.freeze()),
            "images" => images.push(content.freeze()),
            "model_name" => form.model_name = Some(text(&name, &content)?),
            "model_version" => form.model_version = Some(text(&name, &content)?),
            "signature_name" => form.signature_name = Some(text(&name, &content)?),
            _ => {}
        }
    }
    // Whatever their order in the form, `image` goes first.
    form.images.append(&mut images);
    form.images.retain(|image: &Bytes| !image.is_empty());
    Ok(form)
}

fn text(name: &str, content: &[u8]) -> Result<String, BodyError> {
    if content.len() > LONGEST_TEXT {
        return Err(bad(&format!("field {name} is longer than {LONGEST_TEXT} bytes")));
    }
    String::from_utf8(content.to_vec()).map_err(|_| bad(&format!("field {name} is no text")))
}

fn bad(why: &str) -> BodyError {
    let message = format!("Invalid form-data: {why}");
    BodyError::new(400, Code::InvalidArgument, message)
}
