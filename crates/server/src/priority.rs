//! The priority that a request has and may ask for: by its header, and by its client.

use tensorserve_auth::Identity;
use tensorserve_tensor::budget::RequestBudget;
use tensorserve_tensor::priority::{Priority, PriorityGrant};

/// The header, and the metadata of gRPC, that asks for a priority.
pub(super) const PRIORITY: &str = "x-request-priority";

/// Sets the priority of a request with this value of the header. Other values than the names of
/// priorities ask for nothing.
pub(super) fn grant(budget: &RequestBudget, client: &Identity, header: Option<&[u8]>) {
    let asked = header.and_then(|value| Priority::from_name(std::str::from_utf8(value).ok()?));
    let grant = client.priority().asking(asked);
    if grant != PriorityGrant::default() {
        budget.set_priority(grant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_auth::Roles;
    use tensorserve_tensor::budget::{MemoryBudget, priority};

    fn granted(client: &Identity, header: Option<&[u8]>) -> Priority {
        let budget = MemoryBudget::default().request().unwrap();
        grant(&budget, client, header);
        budget.enter(|| priority().priority(None))
    }

    #[test]
    fn the_header_asks_and_the_client_bounds() {
        let anybody = Identity::unrestricted();
        let member = Identity::of("ana", Roles::ALL);
        let job = member.clone().with_priority(PriorityGrant::up_to(Priority::Low));
        let (high, low) = (Some(&b"high"[..]), Some(&b"low"[..]));
        assert_eq!(granted(&anybody, None), Priority::Normal);
        assert_eq!(granted(&anybody, high), Priority::High);
        assert_eq!(granted(&anybody, low), Priority::Low);
        assert_eq!(granted(&member, None), Priority::Normal);
        assert_eq!(granted(&member, high), Priority::Normal);
        assert_eq!(granted(&member, low), Priority::Low);
        assert_eq!(granted(&job, None), Priority::Low);
        assert_eq!(granted(&job, high), Priority::Low);
    }

    #[test]
    fn a_value_that_is_no_priority_asks_for_nothing() {
        for value in [&b""[..], b"HIGH", b"1", b"high, low", b"\xff\xfe", &[b'h'; 5000]] {
            assert_eq!(granted(&Identity::unrestricted(), Some(value)), Priority::Normal);
        }
    }
}
