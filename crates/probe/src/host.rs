//! The probe host: a process with one thread, which only forks monitors.

use std::os::unix::net::UnixDatagram;

use tensorserve_os::fork::{fork, ignore_ended_children, ignore_requests_to_stop, start_session};
use tensorserve_platform::Platforms;

use crate::messages::{ProbeOutcome, ProbeReport, ProbeRequest};
use crate::{ProbeConfig, descriptors, isolation, monitor};

/// The longest message in bytes.
pub(crate) const LONGEST_MESSAGE: usize = 64 << 10;

/// Forks a monitor for each request that arrives, until the server ends. Returns the exit status.
pub(crate) fn serve(socket: &UnixDatagram, platforms: &Platforms, config: &ProbeConfig) -> i32 {
    start_session();
    ignore_requests_to_stop();
    ignore_ended_children(true);
    let mut message = vec![0; LONGEST_MESSAGE];
    loop {
        let Ok((length, files)) = descriptors::receive(socket, &mut message) else {
            return 1;
        };
        let text = message.get(..length).unwrap_or_default();
        let Ok(request) = serde_json::from_slice::<ProbeRequest>(text) else {
            continue;
        };
        let is_isolated = request.isolated;
        let mut files = Some(files);
        let monitor = fork(|| {
            ignore_ended_children(false);
            if is_isolated {
                let files = files.take().unwrap_or_default();
                return isolation::keep(&request, platforms, config, files);
            }
            let outcome = monitor::probe(&request, platforms, config);
            i32::from(report(socket, request.id, outcome).is_err())
        });
        match monitor {
            // Ended children need no waiting for, and this one must outlive the value.
            Ok(monitor) => std::mem::forget(monitor),
            // Without one, the channels of an isolated model close.
            Err(_) if is_isolated => {}
            Err(error) => {
                let why = format!("the process of the load probe cannot start: {error}");
                let _ = report(socket, request.id, ProbeOutcome::Failed(why));
            }
        }
    }
}

fn report(socket: &UnixDatagram, id: u64, outcome: ProbeOutcome) -> std::io::Result<()> {
    let report = serde_json::to_vec(&ProbeReport { id, outcome })?;
    socket.send(&report).map(drop)
}
