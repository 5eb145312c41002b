//! The timeout that a gRPC client sets for a call (`grpc-timeout`).

use std::time::{Duration, Instant};

use tonic::Status;
use tonic::codegen::http::HeaderMap;

/// The deadline of a call whose head arrived now; `None` without a valid `grpc-timeout`.
pub(super) fn of(headers: &HeaderMap) -> Option<Instant> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    Instant::now().checked_add(time(text)?)
}

/// The status of a call whose deadline has passed.
pub(super) fn passed() -> Status {
    Status::deadline_exceeded("the request's deadline (grpc-timeout) has passed")
}

/// The time in a `grpc-timeout` header: digits and a unit.
fn time(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(count.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(time("20m"), Some(Duration::from_millis(20)));
        assert_eq!(time("7n"), Some(Duration::from_nanos(7)));
        for nonsense in ["", "m", "20", "20x", "-1S", "1.5S", "99999999999999999999S", "1é"] {
            assert_eq!(time(nonsense), None, "{nonsense:?}");
        }
        assert_eq!(time("18446744073709551615H"), None);
    }
}
