//! Signals that stop a command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::print_note;
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// The exit status of a command that was interrupted.
pub(super) const INTERRUPTED: u8 = 130;

/// SIGTERM and SIGINT. As soon as this exists, they no longer end the process by themselves.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Receives the signals from now on. Called within a Tokio runtime.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(super) fn new() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(StopSignals { terminate, interrupt })
    }

    /// Waits for the next signal, and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Calls `act` at each SIGINT or SIGTERM that comes after the return, in a thread of its own.
///
/// # Errors
/// If signals cannot be received.
pub(super) fn on_stop_signals(mut act: impl FnMut() + Send + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(no_signals)?;
    // Not in the thread: a signal could come before the thread has begun.
    let mut signals = runtime.block_on(async { StopSignals::new() }).map_err(no_signals)?;
    let watch = move || {
        loop {
            runtime.block_on(signals.next());
            act();
        }
    };
    let started = thread::Builder::new().name("signals".to_owned()).spawn(watch);
    started.map(drop).map_err(no_signals)
}

/// The first SIGINT or SIGTERM sets `stop` and prints `note`, a second one ends the process.
///
/// # Errors
/// If signals cannot be received.
pub(super) fn stop_on_signals(stop: Arc<AtomicBool>, note: &'static str) -> Result<()> {
    on_stop_signals(move || {
        if stop.swap(true, Relaxed) {
            os::exit_now(INTERRUPTED.into());
        }
        print_note(note);
    })
}

/// The error of a process that cannot receive signals.
pub(super) fn no_signals(error: io::Error) -> Error {
    Error::internal("signals cannot be received").with_source(error)
}
