//! Who asks, and what they may do.
//!
//! [`Authenticator`] knows the users and keys of a file (or the one user of the command line) and
//! turns the value of an `Authorization` header into an [`Identity`]. An [`Permission`] is what a
//! route or a call asks for. Nothing here knows a route, a socket or a protocol: the server asks
//! once per request, before anything else looks at it.
//!
//! Secrets are kept as hashes: passwords as argon2id, keys, which are long and random, as SHA-256.
//! What was found right once is known again by a keyed hash of the credentials, so that a
//! request does not pay for argon2; see [`check`] for what wrong passwords cost.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fmt;
use std::sync::Arc;

pub use self::authenticator::{Asked, Authenticator, Refusal};
pub use self::check::Checking;
pub use self::config::AuthConfig;
pub use self::file::{Kind, Listed};

mod authenticator;
mod check;
mod config;
pub mod file;
mod people;
pub mod secret;

/// A part that somebody can play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs models, and looks at their state.
    Infer,
    /// Reads metrics, and looks at the state of models.
    Metrics,
    /// Does everything.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 3] = [Role::Infer, Role::Metrics, Role::Admin];

    /// The role of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Its name, as it is in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Infer => "infer",
            Role::Metrics => "metrics",
            Role::Admin => "admin",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Role::Infer => 1,
            Role::Metrics => 2,
            Role::Admin => 4,
        }
    }
}

/// A set of roles. Who is an admin may do what the others may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    /// All of them.
    pub const ALL: Roles = Roles(7);

    /// These.
    #[must_use]
    pub fn of(roles: &[Role]) -> Self {
        let bits = roles.iter().fold(0, |bits, role| bits | role.bit());
        if bits & Role::Admin.bit() != 0 { Roles::ALL } else { Roles(bits) }
    }

    /// Whether `role` is among them.
    #[must_use]
    pub fn has(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// The names of the roles, in the order of the alphabet.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = [Role::Admin, Role::Infer, Role::Metrics];
        all.into_iter().filter(|role| self.has(*role)).map(Role::name).collect()
    }
}

/// Who asks. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: Option<Arc<str>>,
    roles: Roles,
}

impl Identity {
    /// Somebody who is known.
    #[must_use]
    pub fn of(name: &str, roles: Roles) -> Self {
        Identity { name: Some(name.into()), roles }
    }

    /// Whoever asks where nobody has to say who they are.
    #[must_use]
    pub fn anyone() -> Self {
        Identity { name: None, roles: Roles::ALL }
    }

    /// Somebody who did not say who they are, and may do what is open to all.
    #[must_use]
    pub fn nobody() -> Self {
        Identity { name: None, roles: Roles::default() }
    }

    /// The name of the user or key; `None` if nobody is known by name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What they may do.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }
}

/// What is asked of whoever wants something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Nothing: it holds no data.
    Public,
    /// To be somebody, in any role: it shows how the server and its models are.
    Read,
    /// To run models.
    Infer,
    /// To read metrics.
    Metrics,
    /// To change what is served.
    Admin,
    /// The same, for the console: browsers are asked which page it is that sends this.
    ConsoleAdmin,
}

impl Permission {
    /// Whether somebody with these roles gets it.
    #[must_use]
    pub fn allows(self, roles: Roles) -> bool {
        match self {
            Permission::Public => true,
            Permission::Read => roles != Roles::default(),
            Permission::Infer => roles.has(Role::Infer),
            Permission::Metrics => roles.has(Role::Metrics),
            Permission::Admin | Permission::ConsoleAdmin => roles.has(Role::Admin),
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Permission::Public => "none",
            Permission::Read => "any",
            Permission::Infer => "infer",
            Permission::Metrics => "metrics",
            Permission::Admin | Permission::ConsoleAdmin => "admin",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_may_do_everything_and_the_others_their_part() {
        let admin = Roles::of(&[Role::Admin]);
        assert_eq!(admin.names(), ["admin", "infer", "metrics"]);
        for access in [
            Permission::Public,
            Permission::Read,
            Permission::Infer,
            Permission::Metrics,
            Permission::Admin,
        ] {
            assert!(access.allows(admin), "{access}");
            assert_eq!(access.allows(Roles::default()), access == Permission::Public, "{access}");
        }
        let infer = Roles::of(&[Role::Infer]);
        assert!(Permission::Infer.allows(infer) && Permission::Read.allows(infer));
        assert!(!Permission::Metrics.allows(infer) && !Permission::Admin.allows(infer));
        let metrics = Roles::of(&[Role::Metrics]);
        assert!(Permission::Metrics.allows(metrics) && Permission::Read.allows(metrics));
        assert!(!Permission::Infer.allows(metrics) && !Permission::Admin.allows(metrics));
    }

    #[test]
    fn roles_have_names() {
        for role in Role::ALL {
            assert_eq!(Role::of(role.name()), Some(role));
        }
        assert_eq!(Role::of("root"), None);
    }
}
