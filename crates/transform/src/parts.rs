//! The output of an object that is processed in ranges: parts, which are joined when all are there.

use std::collections::HashSet;

use crate::content;
use crate::plan::{Entry, Plan};
use crate::state::{Marker, ObjectOutcome, State};
use tensorserve_store::objects::{ObjectInfo, Place};
use tensorserve_tensor::error::{Code, Error, Result};

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
/// If a marker or a part cannot be read or is damaged, or the output cannot be published.
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
        if !state.is_marked(*part)? {
            return Ok(false);
        }
    }
    let Some(&last) = parts.last() else {
        return Ok(false);
    };
    // Parts are removed only once the output is published, the last one first.
    if output.head(&key(last))?.is_some() {
        join_marked(&parts, state, output, out_key)?;
    } else if output.head(out_key)?.is_none() {
        return Err(part_lost(&format!("{} is missing", key(last))));
    }
    for part in parts.iter().rev() {
        output.delete(&key(*part))?;
    }
    Ok(true)
}

/// Joins parts that are all marked as done, unless the output has their bytes: a run was killed before it
/// could remove them.
fn join_marked(parts: &[usize], state: &State, output: &Place, out_key: &str) -> Result<()> {
    let mut markers = Vec::with_capacity(parts.len());
    for part in parts {
        markers.extend(state.marker(*part)?);
    }
    let (Some(first), Some(expected)) = (parts.first(), whole(&markers)) else {
        return Ok(());
    };
    let published = match output.head(out_key)? {
        Some(found) if content::has_content(output, &found, expected)? => Some(found),
        _ => publish(&markers, output, out_key, expected)?,
    };
    let Some(published) = published else {
        return Ok(());
    };
    let joined = ObjectOutcome {
        key: out_key.to_owned(),
        out_bytes: expected.0,
        crc32c: expected.1,
        out_tag: Some(published.tag),
        ..ObjectOutcome::default()
    };
    state.mark_joined(*first, &joined)
}

/// Publishes the parts as one output. `None` if another process has done so meanwhile, and has removed them.
fn publish(
    markers: &[Marker],
    output: &Place,
    out_key: &str,
    expected: (u64, u32),
) -> Result<Option<ObjectInfo>> {
    for marker in markers {
        let part = key(marker.entry);
        let outcome = marker.objects.first();
        let wrong =
            outcome.map(|outcome| content::difference(output, &part, outcome)).transpose()?;
        if let Some(wrong) = wrong.flatten() {
            let joined = output.head(out_key)?;
            let is_joined = joined.map(|joined| content::has_content(output, &joined, expected));
            return match is_joined.transpose()? {
                Some(true) => Ok(None),
                _ => Err(part_lost(&wrong)),
            };
        }
    }
    let keys: Vec<String> = markers.iter().map(|marker| key(marker.entry)).collect();
    match output.publish_parts(out_key, &keys) {
        Err(error) if error.code() == Code::NotFound && output.head(out_key)?.is_some() => Ok(None),
        published => published.map(Some),
    }
}

fn part_lost(wrong: &str) -> Error {
    Error::new(
        Code::DataLoss,
        format!("{wrong}: the same command, started again, makes this part again"),
    )
}

/// The length and the CRC-32C of all parts together; `None` without any.
pub(crate) fn whole(markers: &[Marker]) -> Option<(u64, u32)> {
    let mut parts = markers.iter().filter_map(|marker| marker.objects.first());
    let first = parts.next()?;
    Some(parts.fold((first.out_bytes, first.crc32c), |(length, sum), part| {
        let more = usize::try_from(part.out_bytes).unwrap_or(usize::MAX);
        (length + part.out_bytes, crc32c::crc32c_combine(sum, part.crc32c, more))
    }))
}
