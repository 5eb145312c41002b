//! Where the users and keys come from.

use std::fmt;
use std::path::PathBuf;

/// Where the users and keys come from.
#[derive(Clone, PartialEq, Eq)]
pub enum AuthConfig {
    /// A file of users and keys, which is watched for changes.
    File(PathBuf),
    /// A single user, with every role.
    OneUser {
        /// The user's name.
        name: String,
        /// The user's password.
        password: String,
    },
}

impl fmt::Debug for AuthConfig {
    /// Omits the password, which must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthConfig::File(path) => f.debug_tuple("File").field(path).finish(),
            AuthConfig::OneUser { name, .. } => {
                f.debug_struct("OneUser").field("name", name).finish_non_exhaustive()
            }
        }
    }
}
