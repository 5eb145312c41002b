//! The output of an object that is processed in ranges: parts, which are joined when all are there.

use crate::plan::{Entry, Plan};
use crate::state::State;
use tensorserve_store::objects::Place;
use tensorserve_tensor::error::Result;

const PARTS: &str = "_transform/parts/";

/// The key of the part that an entry makes.
pub(crate) fn key(entry: usize) -> String {
    format!("{PARTS}{entry:09}")
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
    let mut keys = Vec::new();
    for part in plan.parts_of(entry) {
        if !state.is_done(part.entry)? {
            return Ok(false);
        }
        keys.push(key(part.entry));
    }
    if output.head(keys.first().map_or("", String::as_str))?.is_none() {
        // Joined before; the first part is removed last.
        return Ok(output.head(out_key)?.is_some());
    }
    output.publish_parts(out_key, &keys)?;
    for key in keys.iter().rev() {
        output.delete(key)?;
    }
    Ok(true)
}
