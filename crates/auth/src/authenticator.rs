//! From the value of an `Authorization` header to somebody, or a refusal.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::check::{Checker, Checking};
use super::file::{self, Entry, Secret};
use super::people::People;
use super::secret::{PasswordHashed, Tagger};
use super::{Identity, Permission, Roles};
use crate::AuthConfig;
use tensorserve_tensor::error::{Code, Error, Result};

/// The longest value of an `Authorization` header that is looked at.
const LONGEST: usize = 8 << 10;

/// Knows who may do what. Cheap to clone.
#[derive(Clone)]
pub struct Authenticator(Arc<Inner>);

struct Inner {
    from: AuthConfig,
    people: ArcSwap<People>,
    tagger: Tagger,
    checker: Checker,
}

/// Why somebody does not get what they ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They do not say who they are.
    Missing,
    /// What they say can not be read.
    Malformed,
    /// Nobody has this password or key.
    Wrong,
    /// They are known, and have not the role for it.
    Forbidden(Permission),
    /// Too many passwords are being checked.
    Busy,
}

impl Refusal {
    /// The failure for the client. It says the same of an unknown user as of a wrong password.
    #[must_use]
    pub fn error(self) -> Error {
        let unauthenticated = |text: &str| Error::new(Code::Unauthenticated, text.to_owned());
        match self {
            Refusal::Missing => unauthenticated(
                "credentials are missing: send the header Authorization with Bearer and a key, or \
                 with Basic and user and password",
            ),
            Refusal::Malformed => unauthenticated(
                "the credentials can not be read: Authorization must be Bearer and a key, or Basic \
                 and the base64 of user:password",
            ),
            Refusal::Wrong => unauthenticated("the credentials are wrong"),
            Refusal::Forbidden(access) => Error::new(
                Code::PermissionDenied,
                format!("this needs the role {access}, which the credentials do not have"),
            ),
            Refusal::Busy => Error::new(
                Code::ResourceExhausted,
                "too many passwords are being checked; try again, or use a key",
            ),
        }
    }
}

/// What is known at once of somebody who asks.
pub enum Asked {
    /// They may, or may not.
    Answered(Result<Identity, Refusal>),
    /// Their password has to be checked first.
    Unknown(Checking),
}

impl Authenticator {
    /// Knows whom the configuration names.
    ///
    /// # Errors
    /// What is wrong with the file, or if there are no random numbers or threads.
    pub fn new(config: &AuthConfig) -> Result<Self> {
        let entries = match config {
            AuthConfig::File(path) => file::read(path).map_err(|e| e.context("auth_file"))?,
            AuthConfig::OneUser { name, password } => {
                let secret = Secret::Password(PasswordHashed::of(password)?);
                vec![Entry { identity: Identity::of(name, Roles::ALL), secret }]
            }
        };
        Ok(Authenticator(Arc::new(Inner {
            from: config.clone(),
            people: ArcSwap::from_pointee(People::new(entries)),
            tagger: Tagger::new()?,
            checker: Checker::start()?,
        })))
    }

    /// The file that it was made from.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.0.from {
            AuthConfig::File(path) => Some(path),
            AuthConfig::OneUser { .. } => None,
        }
    }

    /// Reads the file again, and says how many it knows. Requests go on with what was known until
    /// it is read whole.
    ///
    /// # Errors
    /// What is wrong with it; then everything stays as it was.
    pub fn reload(&self) -> Result<usize> {
        let Some(file) = self.file() else {
            return Ok(0);
        };
        let entries = file::read(file)?;
        let count = entries.len();
        let people = People::new(entries);
        people.remember_those_of(&self.0.people.load());
        self.0.people.store(Arc::new(people));
        Ok(count)
    }

    /// Whether who sends this `Authorization` header gets `access`.
    #[must_use]
    pub fn ask(&self, access: Permission, authorization: Option<&[u8]>) -> Asked {
        if access == Permission::Public {
            return Asked::Answered(Ok(Identity::nobody()));
        }
        let Some(authorization) = authorization else {
            return Asked::Answered(Err(Refusal::Missing));
        };
        let Some((scheme, token)) = credentials(authorization) else {
            return Asked::Answered(Err(Refusal::Malformed));
        };
        let people = self.0.people.load();
        let tag = self.0.tagger.tag(scheme as u8, token);
        if let Some(identity) = people.known(&tag) {
            return Asked::Answered(permit(access, &identity));
        }
        match scheme {
            Scheme::Bearer => Asked::Answered(match people.with_key(token) {
                Some(entry) => {
                    people.remember(tag, &entry);
                    permit(access, &entry.identity)
                }
                None => Err(Refusal::Wrong),
            }),
            Scheme::Basic => match user_and_password(token) {
                Some((user, password)) => {
                    let checking = self.0.checker.check(&people, tag, &user, password);
                    checking.map_or_else(
                        |refusal| Asked::Answered(Err(refusal)),
                        |answer| Asked::Unknown(Checking { access, answer }),
                    )
                }
                None => Asked::Answered(Err(Refusal::Malformed)),
            },
        }
    }
}

/// The identity, if it gets `access`.
pub(super) fn permit(access: Permission, identity: &Identity) -> Result<Identity, Refusal> {
    if access.allows(identity.roles()) {
        return Ok(identity.clone());
    }
    Err(Refusal::Forbidden(access))
}

/// How credentials are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Basic,
    Bearer,
}

/// The scheme of an `Authorization` header, and what stands behind it.
fn credentials(authorization: &[u8]) -> Option<(Scheme, &[u8])> {
    if authorization.len() > LONGEST {
        return None;
    }
    let space = authorization.iter().position(|byte| *byte == b' ')?;
    let (name, token) = authorization.split_at(space);
    let scheme = if name.eq_ignore_ascii_case(b"basic") {
        Scheme::Basic
    } else if name.eq_ignore_ascii_case(b"bearer") {
        Scheme::Bearer
    } else {
        return None;
    };
    let token = token.trim_ascii();
    (!token.is_empty()).then_some((scheme, token))
}

/// User and password of the token of [`Scheme::Basic`].
fn user_and_password(token: &[u8]) -> Option<(String, Vec<u8>)> {
    let mut user = BASE64_STANDARD.decode(token).ok()?;
    let colon = user.iter().position(|byte| *byte == b':')?;
    let password = user.split_off(colon + 1);
    user.pop();
    Some((String::from_utf8(user).ok()?, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_or_refused() {
        assert_eq!(credentials(b"Bearer abc"), Some((Scheme::Bearer, &b"abc"[..])));
        assert_eq!(credentials(b"bEARER  abc "), Some((Scheme::Bearer, &b"abc"[..])));
        assert_eq!(credentials(b"basic YTpi"), Some((Scheme::Basic, &b"YTpi"[..])));
        let long = [&b"Bearer "[..], &[b'a'; LONGEST]].concat();
        for wrong in
            [&b""[..], b"Bearer", b"Bearer ", b" abc", b"Digest abc", b"AWS4-HMAC-SHA256 x", &long]
        {
            assert_eq!(credentials(wrong), None);
        }
    }

    #[test]
    fn user_and_password_are_taken_apart_at_the_first_colon() {
        let read = |text: &[u8]| user_and_password(BASE64_STANDARD.encode(text).as_bytes());
        assert_eq!(read(b"ana:a:b"), Some(("ana".to_owned(), b"a:b".to_vec())));
        assert_eq!(read(b"ana:"), Some(("ana".to_owned(), Vec::new())));
        assert_eq!(read(b":x"), Some((String::new(), b"x".to_vec())));
        assert_eq!(read(b"ana:\xff"), Some(("ana".to_owned(), b"\xff".to_vec())));
        assert_eq!(read(b"ana"), None);
        assert_eq!(read(b"\xff:x"), None);
        for wrong in [&b"!!!"[..], b"YQ", b"YW5hOng==", b"YW5hOng\xff", b"=", b"YW5h Ong="] {
            assert_eq!(user_and_password(wrong), None, "{wrong:?}");
        }
    }
}
