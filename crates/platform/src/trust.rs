//! Who can change a file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const WRITABLE_BY_ALL: u32 = 0o002;
/// In a directory with this bit, only the owner of an entry can replace it.
const STICKY: u32 = 0o1000;

/// The first of the directories and links on the way to `file`, or the file itself, that every user
/// of the machine can change or replace. Users of the same group are trusted: many systems give each
/// user a group, and make directories writable for it.
pub(crate) fn open_to_all(file: &Path) -> Option<PathBuf> {
    let resolved = file.canonicalize().ok()?;
    first_open(file).or_else(|| first_open(&resolved))
}

fn first_open(file: &Path) -> Option<PathBuf> {
    let own = fs::metadata("/proc/self").map_or(0, |process| process.uid());
    let mut way: Vec<&Path> = file.ancestors().collect();
    way.reverse();
    let mut is_in_shared = false;
    for place in way {
        let found = fs::symlink_metadata(place).ok()?;
        let is_foreign = ![0, own].contains(&found.uid());
        let is_open = !found.is_symlink() && found.mode() & WRITABLE_BY_ALL != 0;
        let is_shared = is_open && found.is_dir() && found.mode() & STICKY != 0;
        // Other libraries are opened from the directory of the file.
        let has_file = Some(place) == file.parent();
        if (is_in_shared && is_foreign) || (is_open && (has_file || !is_shared)) {
            return Some(place.to_owned());
        }
        is_in_shared = is_shared;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn allow(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
    }

    #[test]
    fn a_file_that_all_users_can_replace_is_found() {
        let home = tempfile::tempdir().expect("temporary directory");
        let lib = home.path().join("lib");
        fs::create_dir(&lib).expect("directory");
        let file = lib.join("library.so");
        fs::write(&file, "").expect("written");
        let link = home.path().join("link.so");
        symlink(&file, &link).expect("link");
        for (mode, open) in
            [(0o755, None), (0o775, None), (0o777, Some(&lib)), (0o1777, Some(&lib))]
        {
            allow(&lib, mode);
            assert_eq!(open_to_all(&file).as_ref(), open, "{mode:o}");
            assert_eq!(open_to_all(&link).as_ref(), open, "{mode:o}, through a link");
        }
        allow(&lib, 0o755);
        allow(&file, 0o666);
        assert_eq!(open_to_all(&file), Some(file.clone()));
        allow(&file, 0o644);
        // As in /tmp: entries belong to their owners, and this one is ours.
        allow(home.path(), 0o1777);
        assert_eq!(open_to_all(&file), None);
        allow(home.path(), 0o777);
        assert_eq!(open_to_all(&file), Some(home.path().to_owned()));
    }
}
