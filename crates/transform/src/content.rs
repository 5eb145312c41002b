//! Whether an output is still what was published.

use std::io::{self, Read};

use crate::state::ObjectOutcome;
use tensorserve_store::objects::{ObjectInfo, Place, error_of};
use tensorserve_tensor::error::Result;

/// How an output differs from what was published; `None` if it does not, or there was none.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn difference(
    output: &Place,
    key: &str,
    outcome: &ObjectOutcome,
) -> Result<Option<String>> {
    if outcome.out_tag.is_none() {
        return Ok(None);
    }
    let Some(found) = output.head(key)? else {
        return Ok(Some(format!("{key} is missing")));
    };
    if found.size != outcome.out_bytes {
        let (now, before) = (found.size, outcome.out_bytes);
        return Ok(Some(format!("{key} has {now} bytes in place of {before}")));
    }
    let content = (outcome.out_bytes, outcome.crc32c);
    // What was copied from elsewhere has another version, and the same content.
    if is_version(&found, outcome) || has_content(output, &found, content)? {
        return Ok(None);
    }
    Ok(Some(format!("the content of {key} is no longer what was written")))
}

/// Whether an object is the version that was published.
pub(crate) fn is_version(found: &ObjectInfo, outcome: &ObjectOutcome) -> bool {
    found.size == outcome.out_bytes && outcome.out_tag.as_deref() == Some(found.tag.as_str())
}

/// Whether an object has this length and CRC-32C.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn has_content(place: &Place, found: &ObjectInfo, content: (u64, u32)) -> Result<bool> {
    if found.size != content.0 {
        return Ok(false);
    }
    let sum = checksum_of(place.read(&found.key, None, None)?, (0, 0)).map_err(error_of)?;
    Ok(sum == content)
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
