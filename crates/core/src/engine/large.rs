//! Decoding and encoding of large requests, off the threads that serve connections.
//!
//! Many connections share a thread. Work on a payload of 60 MB takes more than half a second, in which the
//! others would wait; and only a thread that is free notices that a client has left.

use std::panic::resume_unwind;

use tensorserve_tensor::Tensor;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};

/// A request that has reserved this many bytes for its payload, as received and as decompressed, is
/// large. JSON of this size takes some 20 ms; moving the work to another thread takes some 20 us.
const LARGE_REQUEST: usize = 2 << 20;

/// Outputs of this many bytes make a large response.
const LARGE_RESPONSE: usize = 1 << 20;

/// Whether this thread works for a large request.
pub(super) fn is_large_request() -> bool {
    budget::reserved() >= LARGE_REQUEST
}

/// Whether these outputs make a large response.
pub(super) fn is_large_response<'t>(outputs: impl Iterator<Item = &'t Tensor>) -> bool {
    outputs.map(Tensor::byte_len).sum::<usize>() >= LARGE_RESPONSE
}

/// Does `work` on a thread for long work, within the budget of the request. If the result is no longer
/// awaited because the client has left, the work ends when it next looks at its budget.
///
/// # Errors
/// [`Code::Unavailable`] if the runtime is stopping.
pub(super) async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let budget = budget::current();
    let working = tokio::task::spawn_blocking(move || match budget {
        Some(budget) => budget.enter(work),
        None => work(),
    });
    match working.await {
        Ok(done) => Ok(done),
        Err(failure) => match failure.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(Error::new(Code::Unavailable, "the server is stopping")),
        },
    }
}
