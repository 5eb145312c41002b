//! The output of an object that is processed in ranges: parts, which are joined when all are there.

use std::collections::HashSet;
use std::io::{self, Read};

use crate::plan::{Entry, Plan};
use crate::state::State;
use tensorserve_store::objects::{Place, error_of};
use tensorserve_tensor::error::{Code, Result};

const PARTS: &str = "_transform/parts/";

/// The key of the part that an entry makes.
pub(crate) fn key(entry: usize) -> String {
    format!("{PARTS}{entry:09}")
}

/// The keys of the parts that are there: their objects are not joined, or it was not cleared up.
///
/// # Errors
/// If they cannot be listed.
pub(crate) fn left(output: &Place) -> Result<HashSet<String>> {
    Ok(output.list(PARTS)?.into_iter().map(|part| part.key).collect())
}

/// Joins the parts of the object that `entry` is a range of, if all of them are done. Two processes may
/// do so at the same time: they publish the same bytes.
///
/// # Errors
/// If a marker or a part cannot be read, or the output cannot be published.
pub(crate) fn join(
    plan: &Plan,
    entry: &Entry,
    state: &State,
    output: &Place,
    out_key: &str,
) -> Result<bool> {
    let parts: Vec<usize> = plan.parts_of(entry).map(|part| part.entry).collect();
    // The last one is usually the last to be done: asking for it first saves asking for all others.
    for part in parts.iter().rev() {
        if !state.is_done(*part)? {
            return Ok(false);
        }
    }
    let keys: Vec<String> = parts.into_iter().map(key).collect();
    // Parts are removed only once the output is published, the last one first.
    let last = keys.last().map_or("", String::as_str);
    if output.head(last)?.is_some() && !is_joined(output, &keys, out_key)? {
        match output.publish_parts(out_key, &keys) {
            Err(error) if error.code() == Code::NotFound && output.head(out_key)?.is_some() => {
                // Another process has joined them meanwhile.
            }
            published => drop(published?),
        }
    }
    for key in keys.iter().rev() {
        output.delete(key)?;
    }
    Ok(output.head(out_key)?.is_some())
}

/// Whether the output has the bytes of all parts: a run was killed before it could remove them.
fn is_joined(output: &Place, parts: &[String], out_key: &str) -> Result<bool> {
    let Some(found) = output.head(out_key)? else {
        return Ok(false);
    };
    let mut expected = (0, 0);
    for part in parts {
        let Some(part) = output.head(part)? else {
            return Ok(true);
        };
        expected.0 += part.size;
    }
    if expected.0 != found.size {
        return Ok(false);
    }
    let mut whole = (0, 0);
    for part in parts {
        whole = checksum_of(output.read(part, None, None)?, whole).map_err(error_of)?;
    }
    let published = checksum_of(output.read(out_key, None, None)?, (0, 0)).map_err(error_of)?;
    Ok(published == whole)
}

/// The length and the CRC-32C of what follows bytes with these.
///
/// # Errors
/// Those of the source.
pub(crate) fn checksum_of(mut source: impl Read, before: (u64, u32)) -> io::Result<(u64, u32)> {
    let mut buffer = vec![0; 256 << 10];
    let (mut length, mut sum) = before;
    loop {
        let count = source.read(&mut buffer)?;
        if count == 0 {
            return Ok((length, sum));
        }
        length += u64::try_from(count).unwrap_or(0);
        sum = crc32c::crc32c_append(sum, buffer.get(..count).unwrap_or_default());
    }
}
