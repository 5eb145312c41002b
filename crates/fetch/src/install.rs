//! Unpacks the libraries of wheels into a directory, which appears complete or not at all. The layout
//! and the files of state are those of `scripts/wheels.py`.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use zip::ZipArchive;

use crate::download::{hexadecimal, sha256};
use crate::pins::{Pin, Wheel};
use crate::report::{Report, failed_at, megabytes};
use tensorserve_tensor::error::{Error, Result};

/// What was unpacked; written last.
pub(crate) const STAMP: &str = "FETCHED.json";

/// A file that was unpacked.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Unpacked {
    size: u64,
    sha256: String,
}

/// The wheels that were unpacked, with their hashes, and the files.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
struct Contents {
    wheels: BTreeMap<String, String>,
    files: BTreeMap<String, Unpacked>,
}

/// The directory of a runtime, and the one beside it in which it is prepared.
pub struct Installation<'a> {
    pin: &'a Pin,
    /// Where the files will be.
    pub dest: PathBuf,
    /// What was downloaded and unpacked so far, kept when a run ends early.
    work: PathBuf,
}

impl<'a> Installation<'a> {
    /// The installation of `pin` below `folder`.
    #[must_use]
    pub fn new(pin: &'a Pin, folder: &Path) -> Self {
        let work = folder.join(format!(".{}.part", pin.folder));
        Installation { pin, dest: folder.join(&pin.folder), work }
    }

    /// The installed library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.dest.join(self.pin.needed.first().map_or("", String::as_str))
    }

    /// The problem with the installed files; `None` if all are there, with the right size.
    #[must_use]
    pub fn shortcoming(&self) -> Option<String> {
        let stamp = self.dest.join(STAMP);
        let contents = match read_contents(&stamp) {
            Ok(Some(contents)) => contents,
            Ok(None) => return Some("it is not installed".to_owned()),
            Err(why) => return Some(why),
        };
        if contents.wheels != self.wheels() {
            return Some("its files are from other wheels".to_owned());
        }
        self.changed(&self.dest, &contents)
    }

    /// The first file below `tree` that is missing or has another size.
    fn changed(&self, tree: &Path, contents: &Contents) -> Option<String> {
        for (name, expected) in &contents.files {
            match fs::metadata(tree.join(name)) {
                Ok(found) if found.len() == expected.size => {}
                Ok(found) => {
                    let (found, expected) = (found.len(), expected.size);
                    return Some(format!("{name} has {found} bytes, expected {expected}"));
                }
                Err(e) => return Some(format!("{name}: {e}")),
            }
        }
        None
    }

    /// Compares all installed files with their hashes. Returns their number.
    ///
    /// # Errors
    /// If files are missing or have changed; the message names them.
    pub fn verify(&self) -> Result<usize> {
        let (title, dest) = (&self.pin.title, self.dest.display());
        let contents = match read_contents(&self.dest.join(STAMP)) {
            Ok(Some(contents)) => contents,
            Ok(None) => return Err(Error::not_found(format!("{title} is not in {dest}"))),
            Err(why) => {
                return Err(Error::invalid(format!("{why}: remove {dest} and fetch again")));
            }
        };
        let mut bad = Vec::new();
        for (name, expected) in &contents.files {
            match sha256(&self.dest.join(name)) {
                Ok(hash) if hash == expected.sha256 => {}
                Ok(_) => bad.push(name.clone()),
                Err(error) => bad.push(error.message().to_owned()),
            }
        }
        if bad.is_empty() {
            return Ok(contents.files.len());
        }
        Err(Error::invalid(format!(
            "these files of {title} have changed since they were unpacked: {}. Remove {dest} and fetch \
             again",
            bad.join(", ")
        )))
    }

    /// Bytes of an installation that has begun and is not complete.
    #[must_use]
    pub fn begun(&self) -> u64 {
        bytes_below(&self.work)
    }

    /// Prevents other runs from changing the directory, until the file is closed.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(crate) fn lock(&self, report: &dyn Report) -> Result<File> {
        let folder = self.work.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder).map_err(|e| failed_at(folder, &e))?;
        // The file stays: if it were removed, a third run could lock a new one while another waits.
        let path = folder.join(format!(".{}.lock", self.pin.folder));
        let opened = File::options().create(true).append(true).open(&path);
        let file = opened.map_err(|e| failed_at(&path, &e))?;
        if file.try_lock().is_err() {
            report.say("Another run is fetching the same files; waiting for it.");
            file.lock().map_err(|e| failed_at(&path, &e))?;
        }
        Ok(file)
    }

    /// Fetches each wheel with `obtain`, which gets the file to write, unpacks it, and puts all in
    /// place. Before that, `complete` may make more files in the tree, and returns their names in it. The
    /// lock must be held.
    ///
    /// # Errors
    /// If the directory is not ours, the disk is too small, or a wheel cannot be fetched or unpacked; those
    /// of `complete`, after which the next run continues there.
    pub(crate) fn install(
        &self,
        obtain: impl Fn(&Wheel, usize, &Path) -> Result<PathBuf>,
        complete: impl Fn(&Path) -> Result<Vec<String>>,
    ) -> Result<()> {
        self.refuse_foreign_directory()?;
        let (tree, wheels) = (self.work.join("tree"), self.work.join("wheels"));
        let mut done = self.continued(&tree);
        for folder in [&tree, &wheels] {
            fs::create_dir_all(folder).map_err(|e| failed_at(folder, &e))?;
        }
        self.check_space()?;
        for (number, wheel) in self.pin.wheels.iter().enumerate() {
            if done.wheels.contains_key(&wheel.file) {
                continue;
            }
            let partial = wheels.join(&wheel.file);
            let file = obtain(wheel, number, &partial)?;
            self.unpack(wheel, &file, &tree, &mut done)?;
            done.wheels.insert(wheel.file.clone(), wheel.sha256.clone());
            write_whole(&self.progress(), &done)?;
            // Now, so that the next wheel can use the space.
            let _ = fs::remove_file(&partial);
        }
        self.make_links(&tree, &mut done)?;
        let missing = self.pin.needed.iter().find(|name| !done.files.contains_key(*name));
        if let Some(missing) = missing {
            return Err(Error::internal(format!("the wheels do not contain {missing}")));
        }
        for name in complete(&tree)? {
            done.files.insert(name.clone(), unpacked(&tree.join(&name))?);
        }
        self.remove_headers(&tree, &mut done)?;
        self.write_stamp(&tree, &done)?;
        self.put_in_place(&tree)
    }

    fn wheels(&self) -> BTreeMap<String, String> {
        self.pin.wheels.iter().map(|wheel| (wheel.file.clone(), wheel.sha256.clone())).collect()
    }

    fn progress(&self) -> PathBuf {
        self.work.join("unpacked.json")
    }

    /// What an earlier run has unpacked into `tree`. If that cannot be used, removes it.
    fn continued(&self, tree: &Path) -> Contents {
        let earlier = read_contents(&self.progress()).ok().flatten();
        let wheels = self.wheels();
        let usable = earlier.filter(|earlier| {
            let are_ours = earlier.wheels.iter().all(|(file, hash)| wheels.get(file) == Some(hash));
            are_ours && self.changed(tree, earlier).is_none()
        });
        if usable.is_none() {
            let _ = fs::remove_dir_all(tree);
            let _ = fs::remove_file(self.progress());
        }
        usable.unwrap_or_default()
    }

    /// Replacing the directory as a whole requires that it was fetched, or that it is empty or absent.
    fn refuse_foreign_directory(&self) -> Result<()> {
        let dest = &self.dest;
        if dest.symlink_metadata().is_err() || dest.join(STAMP).exists() {
            return Ok(());
        }
        let is_empty = fs::read_dir(dest).is_ok_and(|mut entries| entries.next().is_none());
        if is_empty {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "{} exists and was not created by `tensorserve fetch`: choose another --dest",
            dest.display()
        )))
    }

    fn check_space(&self) -> Result<()> {
        let wheels = self.pin.wheels.iter();
        let largest = wheels.map(|wheel| wheel.size).max().unwrap_or(0);
        let needed = (self.pin.unpacked + largest).saturating_sub(self.begun());
        let free = rustix::fs::statvfs(&self.work)
            .map_err(|e| failed_at(&self.work, &e.into()))
            .map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))?;
        if free >= needed {
            return Ok(());
        }
        let folder = self.work.parent().unwrap_or(&self.work);
        Err(Error::precondition(format!(
            "the disk of {} has {} free; {} requires {}. Free some space or choose another --dest",
            folder.display(),
            megabytes(free),
            self.pin.title,
            megabytes(needed)
        )))
    }

    fn unpack(&self, wheel: &Wheel, file: &Path, tree: &Path, done: &mut Contents) -> Result<()> {
        let invalid = |e: zip::result::ZipError| Error::invalid(format!("{}: {e}", file.display()));
        let opened = File::open(file).map_err(|e| failed_at(file, &e))?;
        let mut archive = ZipArchive::new(opened).map_err(invalid)?;
        for index in 0..archive.len() {
            let mut member = archive.by_index(index).map_err(invalid)?;
            let name = member.name().map_err(invalid)?.into_owned();
            let Some(name) = self.pin.name_in_tree(&name, wheel) else {
                continue;
            };
            let unpacked = copy(&mut member, &tree.join(&name))?;
            done.files.insert(name, unpacked);
        }
        Ok(())
    }

    fn make_links(&self, tree: &Path, done: &mut Contents) -> Result<()> {
        for (link, target) in &self.pin.links {
            let Some(file) = done.files.get(target).cloned() else {
                continue;
            };
            let path = tree.join(link);
            let folder = path.parent().unwrap_or(tree);
            fs::create_dir_all(folder).map_err(|e| failed_at(folder, &e))?;
            let depth = link.matches('/').count();
            let relative = Path::new(&"../".repeat(depth)).join(target);
            let _ = fs::remove_file(&path);
            symlink(relative, &path).map_err(|e| failed_at(&path, &e))?;
            done.files.insert(link.clone(), file);
        }
        Ok(())
    }

    /// Removes what was needed for a compilation only.
    fn remove_headers(&self, tree: &Path, done: &mut Contents) -> Result<()> {
        let headers: Vec<String> =
            done.files.keys().filter(|name| self.pin.is_header(name)).cloned().collect();
        for name in &headers {
            let path = tree.join(name);
            fs::remove_file(&path).map_err(|e| failed_at(&path, &e))?;
            done.files.remove(name);
            // The directories around it, once they are empty.
            let around = path.ancestors().skip(1).take_while(|folder| *folder != tree);
            let _ = around.map(fs::remove_dir).take_while(Result::is_ok).count();
        }
        Ok(())
    }

    fn write_stamp(&self, tree: &Path, done: &Contents) -> Result<()> {
        let mut stamp = Map::new();
        stamp.insert(self.pin.runtime.clone(), self.pin.version.clone().into());
        stamp.insert("library".to_owned(), self.pin.needed.first().cloned().into());
        stamp.insert("wheels".to_owned(), serde_json::to_value(&done.wheels).map_err(not_written)?);
        stamp.insert("files".to_owned(), serde_json::to_value(&done.files).map_err(not_written)?);
        write_whole(&tree.join(STAMP), &Value::Object(stamp))
    }

    /// Renames the tree to its directory, after the disk has all of it.
    fn put_in_place(&self, tree: &Path) -> Result<()> {
        let opened = File::open(tree).map_err(|e| failed_at(tree, &e))?;
        rustix::fs::syncfs(&opened).map_err(|e| failed_at(tree, &e.into()))?;
        let (dest, old) = (&self.dest, self.work.join("old"));
        let _ = fs::remove_dir_all(&old);
        let is_replaced = dest.symlink_metadata().is_ok();
        if is_replaced {
            fs::rename(dest, &old).map_err(|e| failed_at(dest, &e))?;
        }
        if let Err(e) = fs::rename(tree, dest) {
            if is_replaced {
                let _ = fs::rename(&old, dest);
            }
            return Err(failed_at(dest, &e));
        }
        let _ = fs::remove_dir_all(&self.work);
        Ok(())
    }
}

/// Writes a member of a wheel to `path`.
fn copy(member: &mut impl Read, path: &Path) -> Result<Unpacked> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|e| failed_at(folder, &e))?;
    let mut file = File::create(path).map_err(|e| failed_at(path, &e))?;
    let (mut context, mut size) = (Context::new(&SHA256), 0);
    let mut block = vec![0; 1 << 20];
    loop {
        let read = member.read(&mut block).map_err(|e| failed_at(path, &e))?;
        if read == 0 {
            break;
        }
        let bytes = block.get(..read).unwrap_or_default();
        context.update(bytes);
        file.write_all(bytes).map_err(|e| failed_at(path, &e))?;
        size += read as u64;
    }
    if path.ends_with("ptxas") {
        // The only program.
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(path, executable).map_err(|e| failed_at(path, &e))?;
    }
    Ok(Unpacked { size, sha256: hexadecimal(context) })
}

/// A file that was made in the tree.
fn unpacked(path: &Path) -> Result<Unpacked> {
    let size = fs::metadata(path).map_err(|e| failed_at(path, &e))?.len();
    Ok(Unpacked { size, sha256: sha256(path)? })
}

/// The contents that a file of state names; `None` without the file.
fn read_contents(path: &Path) -> Result<Option<Contents>, String> {
    let Ok(text) = fs::read(path) else {
        return Ok(None);
    };
    let contents = serde_json::from_slice(&text);
    contents.map(Some).map_err(|e| format!("{} is damaged: {e}", path.display()))
}

/// Replaces the file at `path`, which is never seen half written.
fn write_whole(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(not_written)?;
    text.push(b'\n');
    let new = path.with_extension("new");
    fs::write(&new, text).map_err(|e| failed_at(&new, &e))?;
    fs::rename(&new, path).map_err(|e| failed_at(path, &e))
}

fn not_written(e: serde_json::Error) -> Error {
    Error::internal("a file of state cannot be written").with_source(e)
}

/// The size of all files below `folder`.
fn bytes_below(folder: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(found) if found.is_dir() => bytes += bytes_below(&entry.path()),
            Ok(found) => bytes += found.len(),
            Err(_) => {}
        }
    }
    bytes
}
