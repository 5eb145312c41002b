//! Authenticates and authorizes requests by their `Authorization` header.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio::sync::watch;

use super::accounts::Accounts;
use super::check::{PasswordChecker, PendingCheck, permit};
use super::file::{self, Account, SecretHash};
use super::secret::{CredentialTag, CredentialTagger, PasswordHash};
use super::{Identity, Permission, Roles};
use crate::AuthConfig;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::priority::PriorityGrant;

/// The longest value of an `Authorization` header that is read, in bytes.
const MAX_AUTHORIZATION_BYTES: usize = 8 << 10;

/// Authenticates and authorizes requests. Cheap to clone.
#[derive(Clone)]
pub struct Authenticator(Arc<AuthenticatorInner>);

struct AuthenticatorInner {
    config: AuthConfig,
    accounts: ArcSwap<Accounts>,
    tagger: CredentialTagger,
    checker: PasswordChecker,
    /// Changes when `accounts` does.
    reloads: watch::Sender<()>,
}

impl AuthenticatorInner {
    fn tag(&self, scheme: Scheme, token: &[u8]) -> CredentialTag {
        self.tagger.tag(scheme as u8, token)
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthError {
    /// The request has no credentials.
    Missing,
    /// The credentials are malformed.
    Malformed,
    /// No user or key has these credentials.
    Wrong,
    /// The user or key lacks the permission.
    Forbidden(Permission),
    /// Too many passwords are being checked.
    Busy,
}

impl AuthError {
    /// One of each kind.
    pub const ALL: [AuthError; 5] = [
        AuthError::Missing,
        AuthError::Malformed,
        AuthError::Wrong,
        AuthError::Forbidden(Permission::Admin),
        AuthError::Busy,
    ];

    /// The reason, for metrics.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            AuthError::Missing => "missing",
            AuthError::Malformed => "malformed",
            AuthError::Wrong => "wrong",
            AuthError::Forbidden(_) => "forbidden",
            AuthError::Busy => "busy",
        }
    }

    /// The error for the client, which is the same for an unknown user and a wrong password.
    #[must_use]
    pub fn error(self) -> Error {
        let (code, message) = match self {
            AuthError::Missing => (
                Code::Unauthenticated,
                "credentials are missing: send the header Authorization with Bearer and a key, or \
                 with Basic and the base64 of user:password"
                    .into(),
            ),
            AuthError::Malformed => (
                Code::Unauthenticated,
                "the credentials are malformed: Authorization must be Bearer and a key, or Basic \
                 and the base64 of user:password"
                    .into(),
            ),
            AuthError::Wrong => (Code::Unauthenticated, "the credentials are wrong".into()),
            AuthError::Forbidden(permission) => (
                Code::PermissionDenied,
                format!("this requires the role {permission}, which the credentials do not have"),
            ),
            AuthError::Busy => (
                Code::ResourceExhausted,
                "too many passwords are being checked; try again, or use a key".into(),
            ),
        };
        Error::new(code, message)
    }
}

/// The outcome of [`Authenticator::authorize`].
pub enum AuthOutcome {
    /// The request is allowed or refused.
    Decided(Result<Identity, AuthError>),
    /// Its password is being checked.
    Pending(PendingCheck),
}

impl Authenticator {
    /// An authenticator for the users and keys of `config`.
    ///
    /// # Errors
    /// Mistakes in the file, or if the system has no random numbers or threads.
    pub fn new(config: &AuthConfig) -> Result<Self> {
        let accounts = match config {
            AuthConfig::File(path) => file::read(path).map_err(|e| e.context("auth_file"))?,
            AuthConfig::OneUser { name, password } => {
                let secret = SecretHash::Password(PasswordHash::of(password)?);
                // All clients share this account: it says nothing about the priority of one of them.
                let identity = Identity::of(name, Roles::ALL);
                let identity = identity.with_priority(PriorityGrant::default());
                vec![Account { identity, secret }]
            }
        };
        Ok(Authenticator(Arc::new(AuthenticatorInner {
            config: config.clone(),
            accounts: ArcSwap::from_pointee(Accounts::new(accounts)),
            tagger: CredentialTagger::new()?,
            checker: PasswordChecker::start()?,
            reloads: watch::Sender::default(),
        })))
    }

    /// The file of the users and keys, if they come from one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.0.config {
            AuthConfig::File(path) => Some(path),
            AuthConfig::OneUser { .. } => None,
        }
    }

    /// Reads the file again and returns the number of its users and keys. Until it is completely
    /// read, requests are authenticated by the previous ones.
    ///
    /// # Errors
    /// Mistakes in the file; the previous users and keys stay valid then.
    pub fn reload(&self) -> Result<usize> {
        let Some(file) = self.file() else {
            return Ok(0);
        };
        let accounts = file::read(file)?;
        let count = accounts.len();
        let accounts = Accounts::new(accounts);
        accounts.keep_verified(&self.0.accounts.load());
        self.0.accounts.store(Arc::new(accounts));
        self.0.reloads.send_replace(());
        Ok(count)
    }

    /// Waits until the credentials of an authorized request are revoked, or have other roles or
    /// another priority: until
    /// its `Authorization` header no longer leads to the same identity without another check.
    pub fn until_revoked(&self, authorization: &[u8]) -> impl Future<Output = ()> + Send + use<> {
        let this = Arc::clone(&self.0);
        let mut reloads = this.reloads.subscribe();
        let tag = credentials(authorization).map(|(scheme, token)| this.tag(scheme, token));
        let identity = move || this.accounts.load().verified(&tag?);
        async move {
            let first = identity();
            while first.is_some() && identity() == first && reloads.changed().await.is_ok() {}
        }
    }

    /// Authenticates a request by its `Authorization` header, and authorizes it for `permission`.
    /// Clients at different addresses take turns if passwords must be checked; requests without an
    /// address share one.
    #[must_use]
    pub fn authorize(
        &self,
        permission: Permission,
        authorization: Option<&[u8]>,
        address: Option<IpAddr>,
    ) -> AuthOutcome {
        if permission == Permission::Public {
            return AuthOutcome::Decided(Ok(Identity::anonymous()));
        }
        let Some(authorization) = authorization else {
            return AuthOutcome::Decided(Err(AuthError::Missing));
        };
        let Some((scheme, token)) = credentials(authorization) else {
            return AuthOutcome::Decided(Err(AuthError::Malformed));
        };
        let accounts = self.0.accounts.load();
        let tag = self.0.tag(scheme, token);
        if let Some(identity) = accounts.verified(&tag) {
            return AuthOutcome::Decided(permit(permission, &identity));
        }
        match scheme {
            Scheme::Bearer => AuthOutcome::Decided(match accounts.with_key(token) {
                Some(account) => {
                    accounts.set_verified(tag, &account);
                    permit(permission, &account.identity)
                }
                None => Err(AuthError::Wrong),
            }),
            Scheme::Basic => match user_and_password(token) {
                Some((user, password)) => {
                    match self.0.checker.check(&accounts, tag, address, &user, password) {
                        Ok(result) => AuthOutcome::Pending(PendingCheck { permission, result }),
                        Err(error) => AuthOutcome::Decided(Err(error)),
                    }
                }
                None => AuthOutcome::Decided(Err(AuthError::Malformed)),
            },
        }
    }
}

/// The authentication scheme of an `Authorization` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Basic,
    Bearer,
}

/// The scheme and the token of an `Authorization` header.
fn credentials(authorization: &[u8]) -> Option<(Scheme, &[u8])> {
    if authorization.len() > MAX_AUTHORIZATION_BYTES {
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

/// The user and the password of a [`Scheme::Basic`] token.
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
        let long = [&b"Bearer "[..], &[b'a'; MAX_AUTHORIZATION_BYTES]].concat();
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
