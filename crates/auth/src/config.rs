//! Where it is said who may do what.

use std::fmt;
use std::path::PathBuf;

/// Where it is said who may do what.
#[derive(Clone, PartialEq, Eq)]
pub enum AuthConfig {
    /// In a file of users and keys, which is watched.
    File(PathBuf),
    /// There is one user, who may do everything.
    OneUser {
        /// The user's name.
        name: String,
        /// The user's password.
        password: String,
    },
}

impl fmt::Debug for AuthConfig {
    /// Without the password: it must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthConfig::File(path) => f.debug_tuple("File").field(path).finish(),
            AuthConfig::OneUser { name, .. } => {
                f.debug_struct("OneUser").field("name", name).finish_non_exhaustive()
            }
        }
    }
}
