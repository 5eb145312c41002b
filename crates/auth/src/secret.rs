//! Generation, hashing and comparison of passwords and keys.

use std::fmt;

use argon2::password_hash::phc::PasswordHash as PhcHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Argon2, Params};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use tensorserve_tensor::error::{Error, Result};

/// The prefix of every generated key, by which people and secret scanners recognize one.
const KEY_PREFIX: &str = "tsk_";

/// Size of a SHA-256 hash in bytes.
const DIGEST: usize = 32;

/// Size of the salt of a password hash in bytes.
const SALT: usize = 16;

/// The most memory (in KiB), rounds and parallelism of a password hash: a hash from elsewhere must not
/// make each check take a minute.
const MAX_MEMORY: u32 = 256 << 10;
const MAX_ROUNDS: u32 = 16;
const MAX_PARALLELISM: u32 = 16;

/// Random bytes from the system.
fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::internal("the system's source of random numbers failed"))?;
    Ok(bytes)
}

/// Generates a key of 256 random bits.
///
/// # Errors
/// If the system's source of random numbers fails.
pub fn new_key() -> Result<String> {
    let random: [u8; DIGEST] = random()?;
    Ok(format!("{KEY_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(random)))
}

/// The SHA-256 hash of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; DIGEST]);

impl KeyHash {
    /// Hashes `key`.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        let mut bytes = [0; DIGEST];
        bytes.copy_from_slice(digest(&SHA256, key).as_ref());
        KeyHash(bytes)
    }

    /// Parses 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 2 * DIGEST {
            return None;
        }
        let mut bytes = [0; DIGEST];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let &[high, low] = pair else { return None };
            let (high, low) = (char::from(high).to_digit(16)?, char::from(low).to_digit(16)?);
            *byte = u8::try_from(high * 16 + low).ok()?;
        }
        Some(KeyHash(bytes))
    }

    /// Whether the hashes are equal, in constant time.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The argon2id hash of a password, in the PHC string format:
/// `$argon2id$v=19$m=…,t=…,p=…$salt$hash`.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(String);

impl PasswordHash {
    /// Hashes `password` with a new salt.
    ///
    /// # Errors
    /// If the system has no random numbers or memory.
    pub fn of(password: &str) -> Result<Self> {
        let salt: [u8; SALT] = random()?;
        let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
        let hash =
            hash.map_err(|e| Error::internal(format!("the password cannot be hashed: {e}")))?;
        Ok(PasswordHash(hash.to_string()))
    }

    /// Parses a hash in the PHC string format.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let hash = PhcHash::new(text).map_err(|_| {
            "not a password hash; create one with `tensorserve auth hash`".to_owned()
        })?;
        if hash.algorithm.as_str() != "argon2id" || hash.hash.is_none() {
            let algorithm = hash.algorithm.as_str();
            return Err(format!("the hash is of {algorithm}; it must be a complete argon2id hash"));
        }
        let parameters = Params::try_from(&hash).map_err(|e| format!("its parameters: {e}"))?;
        let (memory, rounds) = (parameters.m_cost(), parameters.t_cost());
        if memory > MAX_MEMORY || rounds > MAX_ROUNDS || parameters.p_cost() > MAX_PARALLELISM {
            return Err(format!(
                "the hash is too expensive to check: at most m={MAX_MEMORY}, t={MAX_ROUNDS}, \
                 p={MAX_PARALLELISM} are allowed"
            ));
        }
        Ok(PasswordHash(text.to_owned()))
    }

    /// Whether this is the hash of `password`. Slow on purpose.
    #[must_use]
    pub fn is_of(&self, password: &[u8]) -> bool {
        let hash = PhcHash::new(&self.0);
        hash.is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
    }
}

impl fmt::Display for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keyed hash by which verified credentials are recognized.
pub(super) type CredentialTag = [u8; DIGEST];

/// Computes tags. Its key is random and never leaves the process, so neither a tag nor the time to
/// compare tags reveals anything about the credentials.
pub(super) struct CredentialTagger(hmac::Key);

impl CredentialTagger {
    pub(super) fn new() -> Result<Self> {
        let key: [u8; DIGEST] = random()?;
        Ok(CredentialTagger(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// The tag of credentials of an authentication scheme.
    pub(super) fn tag(&self, scheme: u8, credentials: &[u8]) -> CredentialTag {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&[scheme]);
        context.update(credentials);
        let mut tag = [0; DIGEST];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_long_random_and_known_by_their_hash() {
        let (a, b) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(a, b);
        assert!(a.starts_with("tsk_") && a.len() == 47, "{a}");
        let hash = KeyHash::of(a.as_bytes());
        assert!(KeyHash::parse(&hash.to_string()).unwrap().is(&hash));
        assert!(!hash.is(&KeyHash::of(b.as_bytes())));
        // The first example of FIPS 180.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyHash::of(b"abc").to_string(), abc);
        for wrong in ["", "ba78", &abc.replace('b', "x"), &format!("{abc}00"), &"é".repeat(32)] {
            assert!(KeyHash::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn passwords_are_known_by_their_hash() {
        let hash = PasswordHash::of("correct horse").unwrap();
        assert_ne!(hash.to_string(), PasswordHash::of("correct horse").unwrap().to_string());
        let hash = PasswordHash::parse(&hash.to_string()).expect("our own");
        assert!(hash.is_of(b"correct horse"));
        assert!(!hash.is_of(b"correct horsE") && !hash.is_of(b"") && !hash.is_of(&[0xff; 9]));
    }

    #[test]
    fn hashes_that_are_none_or_too_dear_are_refused() {
        let good = PasswordHash::of("x").unwrap().to_string();
        let (_, tail) = good.split_once("$p=1$").unwrap_or(("", ""));
        let tail = if tail.is_empty() { good.rsplit_once(",p=1").unwrap().1 } else { tail };
        for (wrong, why) in [
            ("secret".to_owned(), "not a password hash"),
            (String::new(), "not a password hash"),
            ("$2y$10$abcdefghijklmnopqrstuv".to_owned(), "hash"),
            (good.replace("argon2id", "argon2i"), "argon2i"),
            (format!("$argon2id$v=19$m=999999999,t=2,p=1{tail}"), "too expensive"),
            (format!("$argon2id$v=19$m=64,t=999,p=1{tail}"), "too expensive"),
            ("$argon2id$v=19$m=64,t=1,p=1".to_owned(), "argon2id"),
        ] {
            let error = PasswordHash::parse(&wrong).err().unwrap_or_default();
            assert!(error.contains(why), "{wrong}: {error:?}");
        }
    }

    #[test]
    fn tags_differ_by_scheme_credentials_and_process() {
        let (a, b) = (CredentialTagger::new().unwrap(), CredentialTagger::new().unwrap());
        assert_eq!(a.tag(0, b"x"), a.tag(0, b"x"));
        for other in [a.tag(1, b"x"), a.tag(0, b"y"), b.tag(0, b"x")] {
            assert_ne!(a.tag(0, b"x"), other);
        }
    }
}
