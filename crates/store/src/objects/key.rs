//! Which keys are accepted.

use tensorserve_tensor::error::{Error, Result};

/// The longest key, in bytes: that of S3.
const MAX_KEY_BYTES: usize = 1024;

/// Checks a key, which becomes a path below a place.
///
/// # Errors
/// If it is empty or too long, contains a NUL, or has an empty part, `.` or `..`.
pub(super) fn check(key: &str) -> Result<()> {
    let why = if key.is_empty() {
        "it is empty"
    } else if key.len() > MAX_KEY_BYTES {
        "it is longer than 1024 bytes"
    } else if key.contains('\0') {
        "it contains the character NUL"
    } else if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
        "it begins or ends with `/`, or contains an empty part, `.` or `..`"
    } else {
        return Ok(());
    };
    let shown: String = key.chars().take(200).collect();
    Err(Error::invalid(format!("{shown:?} cannot be the name of an object: {why}")))
}

/// Checks the beginning of keys: empty, or a key that may be cut off anywhere.
///
/// # Errors
/// As [`check`], except that the last part may be empty, `.` or `..`.
pub(super) fn check_prefix(prefix: &str) -> Result<()> {
    match prefix.rsplit_once('/') {
        Some((folder, rest)) if !rest.contains('\0') => check(folder),
        None if !prefix.contains('\0') => Ok(()),
        _ => check(prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_below_their_place() {
        for key in [
            "a", "a/b.csv", "…/ü", ".hidden", "..a/b..", "a b/c%2F", "a\\b", "a\nb", "\r",
            "\x1b[31m", "-a ",
        ] {
            check(key).expect(key);
        }
        let long = "a".repeat(1025);
        let wrong = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b"];
        for key in wrong.into_iter().chain([&*long]) {
            assert!(check(key).is_err(), "{key:?}");
        }
        for prefix in ["", "a", "a/", "a/b", "a/."] {
            check_prefix(prefix).expect(prefix);
        }
        for prefix in ["/", "/a", "../", "a/../b", "a//", "a\0", "a/\0"] {
            assert!(check_prefix(prefix).is_err(), "{prefix:?}");
        }
    }
}
