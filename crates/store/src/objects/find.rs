//! What a user's location means: a directory, a file, a pattern, or a prefix of a store.

use std::fs;
use std::path::{MAIN_SEPARATOR, Path};

use glob::{MatchOptions, Pattern};

use super::{Listing, ObjectInfo, Place, PlaceOptions, UnusableName, local_path};
use crate::location::is_location;
use tensorserve_tensor::error::{Error, Result};

/// As in a shell: `*` stays in one directory and does not mean hidden files.
const RULES: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// The objects that a location means.
pub struct FoundObjects {
    /// What their keys are relative to: the directory, the directory before the first `*` of a
    /// pattern, or the prefix up to its last `/`.
    pub place: Place,
    /// At least one, sorted by key.
    pub objects: Vec<ObjectInfo>,
    /// Files that would be among them if their names could be keys.
    pub unusable: Vec<UnusableName>,
}

impl FoundObjects {
    fn of(place: Place, found: Listing) -> Self {
        FoundObjects { place, objects: found.objects, unusable: found.unusable }
    }
}

/// Finds the objects that a location means. On this machine: all files of a directory, one file, or
/// those that a pattern with `*`, `?`, `[…]` and `**` matches. In a store: every object whose key
/// begins with the path.
///
/// # Errors
/// If there are none, or they cannot be listed.
pub fn find(location: &str, options: &PlaceOptions) -> Result<FoundObjects> {
    if is_location(location) {
        return find_prefix(location, options);
    }
    let path = local_path(location)?;
    let found = match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => {
            let place = Place::open(location, options)?;
            let listing = place.survey("")?;
            FoundObjects::of(place, listing)
        }
        Ok(_) => find_file(location, options)?,
        Err(_) if location.contains(['*', '?', '[']) => find_pattern(&path, options)?,
        Err(error) => return Err(super::local::failed(&path, "it cannot be read", &error)),
    };
    not_empty(location, found)
}

/// Finds every object whose key begins with the path of the location, which need not end at a `/`.
///
/// # Errors
/// As [`find`].
pub fn find_prefix(location: &str, options: &PlaceOptions) -> Result<FoundObjects> {
    let (place, prefix) = Place::open_prefix(location, options)?;
    let listing = place.survey(&prefix)?;
    not_empty(location, FoundObjects::of(place, listing))
}

fn not_empty(location: &str, found: FoundObjects) -> Result<FoundObjects> {
    if found.objects.is_empty() {
        if let Some(unusable) = found.unusable.first() {
            return Err(unusable.error());
        }
        return Err(Error::not_found(format!("{location}: no file or object was found")));
    }
    Ok(found)
}

fn find_file(location: &str, options: &PlaceOptions) -> Result<FoundObjects> {
    let (place, name) = Place::open_prefix(location, options)?;
    let objects = place.head(&name)?.into_iter().collect();
    Ok(FoundObjects { place, objects, unusable: Vec::new() })
}

fn find_pattern(path: &Path, options: &PlaceOptions) -> Result<FoundObjects> {
    let text = path.to_string_lossy();
    let first = text.find(['*', '?', '[']).unwrap_or_default();
    let start = text.get(..first).unwrap_or_default().rfind(MAIN_SEPARATOR).map_or(0, |at| at + 1);
    let (folder, rest) = text.split_at(start);
    let rest = rest.trim_start_matches(MAIN_SEPARATOR);
    let pattern = Pattern::new(rest)
        .map_err(|e| Error::invalid(format!("{text}: this pattern is not valid: {}", e.msg)))?;
    let place = Place::open(if folder.is_empty() { "." } else { folder }, options)?;
    // Only what begins like the pattern is looked at.
    let prefix = text.get(start..first).unwrap_or_default();
    let mut listing = place.survey(prefix)?;
    listing.objects.retain(|object| pattern.matches_with(&object.key, RULES));
    listing.unusable.retain(|unusable| pattern.matches_with(&unusable.name, RULES));
    Ok(FoundObjects::of(place, listing))
}
