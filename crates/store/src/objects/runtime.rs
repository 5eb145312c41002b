//! The threads that all places share, and the bridge from blocking code to them.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use tensorserve_tensor::error::{Error, Result};

/// The threads of all transfers.
const THREADS: usize = 2;

fn shared() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let start = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("objects").enable_all().build().ok()
    };
    let failed = || Error::internal("the threads for the transfer of objects cannot start");
    RUNTIME.get_or_init(start).as_ref().ok_or_else(failed)
}

/// Waits for `future` on the calling thread.
///
/// # Errors
/// If the calling thread runs asynchronous code, which must not wait.
pub(super) fn wait_for<F: Future>(future: F) -> Result<F::Output> {
    if Handle::try_current().is_ok() {
        return Err(Error::internal("objects are read and written by threads that may wait"));
    }
    Ok(shared()?.block_on(future))
}

/// Runs `future` on the shared threads.
pub(super) fn spawn<F>(future: F) -> Result<JoinHandle<F::Output>>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Ok(shared()?.spawn(future))
}
