//! Authentication and authorization: users, API keys, roles and permissions.
//!
//! [`Authenticator`] holds the users and keys of a file, or the one user of the command line. It
//! authenticates the value of an `Authorization` header as an [`Identity`], and authorizes that for
//! the [`Permission`] that a route or a gRPC method requires. Nothing here depends on routes,
//! sockets or protocols: the server asks once per request, before anything else reads it.
//!
//! Secrets are stored as hashes: passwords as argon2id; keys, which are long and random, as SHA-256.
//! Credentials that have been verified once are recognized by a keyed hash, so that requests do not
//! pay for argon2. [`check`] bounds the cost of wrong passwords.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fmt;
use std::sync::Arc;

use tensorserve_tensor::priority::{Priority, PriorityGrant};

pub use self::authenticator::{AuthError, AuthOutcome, Authenticator};
pub use self::check::PendingCheck;
pub use self::config::AuthConfig;
pub use self::file::{AccountSummary, CredentialKind};

mod accounts;
mod authenticator;
mod check;
mod config;
pub mod file;
pub mod secret;
mod turns;

/// What a user or key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Run models, and read their state.
    Infer,
    /// Read metrics, and the state of models.
    Metrics,
    /// Everything.
    Admin,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 3] = [Role::Infer, Role::Metrics, Role::Admin];

    /// The role with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The name of the role in the file.
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

/// A set of roles. An admin has the other roles, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles(u8);

impl Roles {
    /// Every role.
    pub const ALL: Roles = Roles(7);

    /// The set of these roles.
    #[must_use]
    pub fn of(roles: &[Role]) -> Self {
        let bits = roles.iter().fold(0, |bits, role| bits | role.bit());
        if bits & Role::Admin.bit() != 0 { Roles::ALL } else { Roles(bits) }
    }

    /// Whether the set contains `role`.
    #[must_use]
    pub fn has(self, role: Role) -> bool {
        self.0 & role.bit() != 0
    }

    /// The names of the roles, sorted.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = [Role::Admin, Role::Infer, Role::Metrics];
        all.into_iter().filter(|role| self.has(*role)).map(Role::name).collect()
    }
}

/// The user or key that a request is authenticated as. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: Option<Arc<str>>,
    roles: Roles,
    priority: PriorityGrant,
}

impl Identity {
    /// A user or key with a name, whose requests have at most the usual priority.
    #[must_use]
    pub fn of(name: &str, roles: Roles) -> Self {
        let priority = PriorityGrant::up_to(Priority::default());
        Identity { name: Some(name.into()), roles, priority }
    }

    /// This user or key with other priorities.
    #[must_use]
    pub fn with_priority(self, priority: PriorityGrant) -> Self {
        Identity { priority, ..self }
    }

    /// Any caller of a server without authentication: nameless, with every role
    /// and priority.
    #[must_use]
    pub fn unrestricted() -> Self {
        let priority = PriorityGrant::default();
        Identity { name: None, roles: Roles::ALL, priority }
    }

    /// A caller of a public route, who is not authenticated: nameless, without roles.
    #[must_use]
    pub fn anonymous() -> Self {
        let priority = PriorityGrant::up_to(Priority::default());
        Identity { name: None, roles: Roles::default(), priority }
    }

    /// The name of the user or key; `None` if the request was not authenticated.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The priority of its requests, and the highest one that they may ask for.
    #[must_use]
    pub fn priority(&self) -> PriorityGrant {
        self.priority
    }

    /// The roles of the user or key.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.roles
    }
}

/// What a route or a gRPC method requires of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Nothing: it exposes no data.
    Public,
    /// Any role: it shows the state of the server and its models.
    Read,
    /// To run models.
    Infer,
    /// To read metrics.
    Metrics,
    /// To change what is served.
    Admin,
    /// To change what is served through the console: the server also verifies that the request
    /// comes from its own page.
    ConsoleAdmin,
}

impl Permission {
    /// Whether these roles include the permission.
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
    /// The role that the permission requires.
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
        for permission in [
            Permission::Public,
            Permission::Read,
            Permission::Infer,
            Permission::Metrics,
            Permission::Admin,
        ] {
            assert!(permission.allows(admin), "{permission}");
            let is_public = permission == Permission::Public;
            assert_eq!(permission.allows(Roles::default()), is_public, "{permission}");
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
            assert_eq!(Role::from_name(role.name()), Some(role));
        }
        assert_eq!(Role::from_name("root"), None);
    }
}
