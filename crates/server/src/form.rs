//! Reads forms (`multipart/form-data`).

use std::cell::Cell;
use std::rc::Rc;

use actix_multipart::{Multipart, MultipartError};
use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header::HeaderMap;
use bytes::BytesMut;
use futures_util::StreamExt;

use super::body::{BodyError, BodyLimits, append, check_length, compression_of};
use tensorserve_protocol::MultipartForm;
use tensorserve_tensor::budget::RequestBudget;
use tensorserve_tensor::error::Code;

/// What a part takes besides its name and its content.
const PART_OVERHEAD: usize = 320;

/// The most parts of a form: more than any real form has.
const MOST_PARTS: usize = 1024;

/// Reads a whole form. What it takes is reserved in `budget`.
///
/// # Errors
/// If it exceeds `limits`, is truncated or malformed, has too many parts, or is compressed; if there is
/// no memory for it.
pub async fn read(
    headers: &HeaderMap,
    payload: Payload,
    limits: BodyLimits<'_>,
    budget: &RequestBudget,
) -> Result<MultipartForm, BodyError> {
    check_length(headers, limits.bytes())?;
    if compression_of(headers)?.is_some() {
        let message = "a form must not be compressed: send it without Content-Encoding";
        return Err(BodyError::unsupported(message.to_owned()));
    }
    // Counted before parsing, so that bytes outside of parts count too.
    let limit = limits.bytes();
    let total = Rc::new(Cell::new(0));
    let counter = Rc::clone(&total);
    let counted = payload.map(move |chunk| {
        let chunk = chunk?;
        counter.set(counter.get() + chunk.len());
        if counter.get() > limit { Err(PayloadError::Overflow) } else { Ok(chunk) }
    });
    let reading = collect(Multipart::new(headers, counted), budget);
    match limits.in_time(reading).await? {
        Err(_) if total.get() > limit => Err(BodyError::too_large(limit)),
        form => form,
    }
}

async fn collect(mut parts: Multipart, budget: &RequestBudget) -> Result<MultipartForm, BodyError> {
    let mut form = MultipartForm::default();
    while let Some(part) = parts.next().await {
        let number = form.parts.len() + 1;
        let mut part = part.map_err(|e| broken(&e, number))?;
        if number > MOST_PARTS {
            return Err(bad(&format!("it has more than {MOST_PARTS} parts")));
        }
        let name = part.name().unwrap_or_default().to_owned();
        budget.reserve(name.len().saturating_add(PART_OVERHEAD))?;
        let mut content = BytesMut::new();
        while let Some(chunk) = part.next().await {
            let chunk = chunk.map_err(|e| broken(&e, number))?;
            append(&mut content, chunk, budget).await?;
        }
        form.parts.push((name, content.freeze()));
    }
    Ok(form)
}

/// The error of a form that is invalid at part number `part`.
fn broken(error: &MultipartError, part: usize) -> BodyError {
    #[allow(clippy::wildcard_enum_match_arm)] // Not ours, and open-ended.
    match error {
        MultipartError::Incomplete => bad(&format!(
            "it ends in part {part}, before the closing boundary that its Content-Type declares"
        )),
        MultipartError::Payload(PayloadError::Overflow) => bad(&format!(
            "the headers of part {part}, or a line before the first part, are longer than 64 KiB"
        )),
        MultipartError::Payload(cause) => bad(&format!("it is truncated or malformed: {cause}")),
        MultipartError::Parse(cause) => {
            bad(&format!("the headers of part {part} cannot be read: {cause}"))
        }
        MultipartError::BoundaryMissing => bad("its Content-Type declares no boundary"),
        other => bad(&other.to_string()),
    }
}

fn bad(why: &str) -> BodyError {
    let message = format!("Invalid form-data: {why}");
    BodyError::new(400, Code::InvalidArgument, message)
}
