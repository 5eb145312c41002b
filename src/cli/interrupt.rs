//! Signals to commands that run for long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use super::print_note;
use super::serve::first_signal;
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// The exit status of a command that was interrupted.
pub(super) const INTERRUPTED: u8 = 130;

/// The first SIGINT or SIGTERM sets `stop` and prints `note`, a second one ends the process.
///
/// # Errors
/// If signals cannot be received.
pub(super) fn stop_on_signals(stop: Arc<AtomicBool>, note: &'static str) -> Result<()> {
    let failed = |e| Error::internal("signals cannot be received").with_source(e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let watch = move || {
        while runtime.block_on(first_signal()).is_ok() {
            if stop.swap(true, Relaxed) {
                os::exit_now(INTERRUPTED.into());
            }
            print_note(note);
        }
    };
    let started = thread::Builder::new().name("signals".to_owned()).spawn(watch);
    started.map(drop).map_err(failed)
}
