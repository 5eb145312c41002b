//! What a location contains: names that can be paths, fingerprints, and a tree of empty files in
//! which models are discovered before anything is downloaded.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest;
use serde::{Deserialize, Serialize};

use crate::client::RemoteObject;
use crate::location::Location;
use tensorserve_tensor::error::{Code, Error, Result};

/// The longest name of a file, in bytes (`NAME_MAX`).
const MAX_NAME_BYTES: usize = 255;

/// The longest path below a location, in bytes: `PATH_MAX` less the path of the cache.
const MAX_PATH_BYTES: usize = 2048;

/// The deepest path below a location.
const MAX_DEPTH: usize = 64;

/// An object whose name can be a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedObject {
    /// Its path below the location, or below a unit; empty for the object at the location itself.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) etag: Option<String>,
    /// The seconds from 1970 to its last change.
    pub(crate) modified: u64,
}

/// What a unit consists of, as it is kept beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The hash of the location.
    pub(crate) location: String,
    /// The path of the unit below the location.
    pub(crate) within: String,
    pub(crate) objects: Vec<ListedObject>,
}

/// The objects of a location at one moment, sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listing {
    pub(crate) objects: Vec<ListedObject>,
}

/// Files of a location that are downloaded together: a version, or all of it.
#[derive(Debug)]
pub(crate) struct DownloadUnit {
    /// Its name in the cache. It changes with the files.
    pub(crate) id: String,
    /// What logs and errors call it.
    pub(crate) shown: String,
    /// The name of its directory or file.
    pub(crate) name: String,
    pub(crate) manifest: Manifest,
    /// The unit is one archive, to be unpacked.
    pub(crate) is_archive: bool,
}

impl DownloadUnit {
    /// The size of its files, packed if it is an archive.
    pub(crate) fn bytes(&self) -> u64 {
        self.manifest.objects.iter().fold(0, |sum, object| object.bytes.saturating_add(sum))
    }

    /// When the latest of its objects was written.
    pub(crate) fn modified(&self) -> SystemTime {
        let latest = self.manifest.objects.iter().map(|object| object.modified).max();
        UNIX_EPOCH + Duration::from_secs(latest.unwrap_or(0))
    }
}

/// The hash that a location has in the names of the cache.
pub(crate) fn hash_of(location: &Location) -> String {
    hex(&digest::digest(&digest::SHA256, location.identity().as_bytes()))
}

fn hex(digest: &digest::Digest) -> String {
    digest.as_ref().iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}

impl Listing {
    /// Takes over the objects whose names can be paths; the notes name the others.
    pub(crate) fn new(location: &Location, remote: Vec<RemoteObject>) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        let mut objects: Vec<ListedObject> = Vec::new();
        for object in remote {
            let Some(path) = path_below(&object.key, location.key()) else {
                continue;
            };
            if let Some(why) = unusable(path) {
                let shown: String = object.key.escape_debug().take(200).collect();
                notes.push(format!("{location}: the object {shown:?} is ignored: {why}"));
                continue;
            }
            let modified = object.modified.duration_since(UNIX_EPOCH);
            objects.push(ListedObject {
                path: path.to_owned(),
                bytes: object.bytes,
                etag: object.etag,
                modified: modified.map_or(0, |since| since.as_secs()),
            });
        }
        objects.sort_by(|a, b| a.path.cmp(&b.path));
        objects.dedup_by(|a, b| a.path == b.path);
        // An empty object at the location itself stands for a directory, as consoles create them.
        let is_prefix = objects.len() > 1;
        objects.retain(|object| !object.path.is_empty() || (object.bytes > 0 && !is_prefix));
        let folders: BTreeSet<String> = objects.iter().flat_map(|it| parents(&it.path)).collect();
        objects.retain(|object| {
            let is_folder = folders.contains(&object.path);
            if is_folder && object.bytes > 0 {
                let (path, why) = (&object.path, "others have its name as their directory");
                notes.push(format!("{location}: the object {path:?} is ignored: {why}"));
            }
            !is_folder
        });
        (Listing { objects }, notes)
    }

    /// Whether the location is an object itself, and not a prefix of others.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.objects.as_slice(), [only] if only.path.is_empty())
    }

    /// The files below the path `within`, as they are to be downloaded. `None` if there are none.
    pub(crate) fn unit(&self, location: &Location, within: &str) -> Option<DownloadUnit> {
        let prefix = if within.is_empty() { String::new() } else { format!("{within}/") };
        let first = self.objects.partition_point(|object| object.path < prefix);
        let rest = self.objects.get(first..).unwrap_or_default();
        let inside = rest.iter().map_while(|object| {
            let path = object.path.strip_prefix(&prefix)?.to_owned();
            Some(ListedObject { path, ..object.clone() })
        });
        let objects: Vec<ListedObject> = inside.collect();
        if objects.is_empty() {
            return None;
        }
        let hash = hash_of(location);
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(format!("{hash}\n{within}").as_bytes());
        let place = hex(&context.finish());
        let mut context = digest::Context::new(&digest::SHA256);
        for object in &objects {
            // Without an ETag, the time tells whether an object has changed.
            let modified = if object.etag.is_some() { 0 } else { object.modified };
            let facts = (&object.path, object.bytes, &object.etag, modified);
            context.update(format!("{facts:?}\n").as_bytes());
        }
        let (name, shown) = match within.rsplit('/').next() {
            None | Some("") => (location.name().to_owned(), location.to_string()),
            Some(name) => (name.to_owned(), format!("{location}/{within}")),
        };
        let is_archive = self.is_file() && stem(&name).is_some();
        Some(DownloadUnit {
            id: format!("{place}-{}", hex(&context.finish())),
            shown,
            name: stem(&name).filter(|_| is_archive).unwrap_or(&name).to_owned(),
            manifest: Manifest { location: hash, within: within.to_owned(), objects },
            is_archive,
        })
    }

    /// Writes a tree of empty files with the names of the objects into the new directory `folder`.
    /// Returns its root, which has the last two names of the location, because the discovery of
    /// models reads names and numbers from there.
    pub(crate) fn write_names(&self, location: &Location, folder: &Path) -> Result<PathBuf> {
        let failed = |e: io::Error| {
            let message = format!("the cache of models cannot be written: {e}");
            Error::new(Code::of_io(&e), message)
        };
        let mut parts = location.key().rsplit('/').filter(|part| !part.is_empty());
        let (last, before) = (parts.next(), parts.next());
        let root = folder
            .join(before.unwrap_or(location.bucket()))
            .join(last.unwrap_or(location.bucket()));
        fs::create_dir_all(&root).map_err(failed)?;
        for object in &self.objects {
            let path = root.join(&object.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(failed)?;
            }
            fs::write(path, b"").map_err(failed)?;
        }
        Ok(root)
    }
}

/// The path of `key` below `prefix`; `None` if it is not below.
fn path_below<'k>(key: &'k str, prefix: &str) -> Option<&'k str> {
    let rest = key.strip_prefix(prefix)?;
    match prefix {
        "" => Some(rest),
        _ if rest.is_empty() => Some(rest),
        _ => rest.strip_prefix('/'),
    }
}

/// Why `path` cannot be a path below a directory.
fn unusable(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return None;
    }
    if path.len() > MAX_PATH_BYTES || path.split('/').count() > MAX_DEPTH {
        return Some("its name is too long");
    }
    path.split('/').find_map(|name| match name {
        "" => Some("its name has an empty part"),
        "." | ".." => Some("its name leads out of its directory"),
        _ if name.len() > MAX_NAME_BYTES => Some("a part of its name is too long"),
        _ if name.contains('\0') => Some("its name contains NUL"),
        _ => None,
    })
}

/// The directories that the file `path` is in.
fn parents(path: &str) -> impl Iterator<Item = String> + '_ {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at).map(str::to_owned))
}

/// The name of an archive without its ending; `None` for another file.
fn stem(name: &str) -> Option<&str> {
    let ending = tensorserve_archive::ending(name)?;
    name.get(..name.len() - ending.len()).filter(|stem| !stem.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(key: &str, bytes: u64, etag: &str) -> RemoteObject {
        let etag = (!etag.is_empty()).then(|| etag.to_owned());
        RemoteObject { key: key.to_owned(), bytes, etag, modified: UNIX_EPOCH }
    }

    fn listing(location: &str, keys: &[(&str, u64)]) -> (Listing, Vec<String>) {
        let location = Location::parse(location).expect("a location");
        Listing::new(&location, keys.iter().map(|(key, bytes)| object(key, *bytes, "e")).collect())
    }

    #[test]
    fn names_that_cannot_be_paths_are_ignored() {
        let long = format!("m/{}", "x".repeat(256));
        let keys = ["m/../x", "m/./x", "m//x", "m/a\0b", &long, "/etc/passwd", "m/ok/1", "other"];
        let keys: Vec<(&str, u64)> = keys.iter().map(|key| (*key, 1)).collect();
        let (found, notes) = listing("s3://b/m", &keys);
        let paths: Vec<&str> = found.objects.iter().map(|it| it.path.as_str()).collect();
        assert_eq!((paths, notes.len()), (vec!["ok/1"], 5));
        let (found, notes) = listing("s3://b", &[("/etc/passwd", 1), ("..", 1), ("a", 1)]);
        assert_eq!((found.objects.len(), notes.len()), (1, 2));
    }

    #[test]
    fn objects_that_stand_for_directories_are_no_files() {
        let (found, notes) =
            listing("s3://b/m", &[("m", 0), ("m/1", 0), ("m/1/a", 1), ("m/2", 3), ("m/2/b", 1)]);
        let paths: Vec<&str> = found.objects.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(paths, ["1/a", "2/b"]);
        assert!(notes.len() == 1 && notes[0].contains("\"2\" is ignored"), "{notes:?}");
        assert_eq!(listing("s3://b/m", &[("m", 0)]).0, Listing::default());
        assert!(listing("s3://b/m.onnx", &[("m.onnx", 1)]).0.is_file());
    }

    #[test]
    fn a_unit_changes_its_name_with_its_files() {
        let location = Location::parse("s3://b/models").expect("a location");
        let unit = |files: &[(&str, u64, &str)], within: &str| {
            let objects =
                files.iter().map(|(key, bytes, etag)| object(key, *bytes, etag)).collect();
            Listing::new(&location, objects).0.unit(&location, within)
        };
        let files =
            [("models/m/1/a", 1, "x"), ("models/m/1/v/b", 2, "y"), ("models/m/2/a", 1, "x")];
        let one = unit(&files, "m/1").expect("a unit");
        assert_eq!(
            (one.bytes(), one.name.as_str(), one.shown.as_str()),
            (3, "1", "s3://b/models/m/1")
        );
        assert_eq!(one.manifest.objects[1].path, "v/b");
        assert_eq!(unit(&files, "m/1").expect("a unit").id, one.id);
        let changed = [("models/m/1/a", 1, "z"), ("models/m/1/v/b", 2, "y")];
        let changed = unit(&changed, "m/1").expect("a unit");
        assert_ne!(changed.id, one.id);
        assert_eq!(changed.id.split('-').next(), one.id.split('-').next(), "of the same place");
        assert!(unit(&files, "m/3").is_none() && unit(&files, "m/").is_none());
        assert_eq!(unit(&files, "").expect("all").bytes(), 4);
    }

    #[test]
    fn archives_are_known_by_their_ending() {
        let unit = |url: &str| {
            let location = Location::parse(url).expect("a location");
            let objects = vec![object(location.key(), 1, "x")];
            let unit = Listing::new(&location, objects).0.unit(&location, "").expect("a unit");
            (unit.name, unit.is_archive)
        };
        assert_eq!(unit("https://h/a/model.tar.gz"), ("model".to_owned(), true));
        assert_eq!(unit("s3://b/ranker.TGZ"), ("ranker".to_owned(), true));
        assert_eq!(unit("https://h/iris.onnx"), ("iris.onnx".to_owned(), false));
        assert_eq!(unit("https://h/.tar.gz"), (".tar.gz".to_owned(), false));
    }

    #[test]
    fn the_tree_of_names_keeps_the_last_names_of_the_location() {
        let folder = tempfile::tempdir().expect("a directory");
        let location = Location::parse("s3://b/all/half_plus_two/3").expect("a location");
        let objects = vec![object("all/half_plus_two/3/saved_model.pb", 5, "x")];
        let (found, _) = Listing::new(&location, objects);
        let root = found.write_names(&location, folder.path()).expect("written");
        assert!(root.ends_with("half_plus_two/3"), "{}", root.display());
        assert_eq!(fs::metadata(root.join("saved_model.pb")).expect("a file").len(), 0);
        let bucket = Location::parse("s3://b").expect("a location");
        let root = found.write_names(&bucket, folder.path()).expect("written");
        assert!(root.ends_with("b/b"), "{}", root.display());
    }
}
