//! The process of an isolated model, and the keeper between it and the probe host.
//!
//! The keeper forks the process and waits for its end, which it reports. It ends when the server closes
//! the control channel, and the kernel ends the process with it.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use tensorserve_os::fork::fork;
use tensorserve_os::{exit_now, process_cpu_time};
use tensorserve_platform::{Executable, Loaded, Platform, Platforms, RunOptions, unset};
use tensorserve_tensor::error::{Code, Error, Result};

use super::channel::{Channel, ChannelFrame};
use super::description::{OpRunDescription, VersionDescription};
use super::{kind, reply};
use crate::ProbeConfig;
use crate::memory::{self, MemoryLimit};
use crate::messages::ProbeRequest;
use crate::monitor::describe;
use crate::trial::run_declared;

/// The exit status of a process in which a run has panicked.
const PANICKED: i32 = 101;

/// Keeps the process of a model, until the model is unloaded or the process ends. `files` are socket and
/// memory of each channel; the first channel is the control channel. Returns the exit status.
pub(crate) fn keep(
    request: &ProbeRequest,
    platforms: &Platforms,
    config: &ProbeConfig,
    files: Vec<OwnedFd>,
) -> i32 {
    let mut files = files.into_iter();
    let mut channels = Vec::new();
    while let (Some(socket), Some(memory)) = (files.next(), files.next()) {
        channels.push(Channel { socket: socket.into(), memory: memory.into() });
    }
    let mut channels = channels.into_iter();
    let Some(control) = channels.next() else {
        return 1;
    };
    let mut run_channels = Some(channels.collect::<Vec<_>>());
    let limit = memory::limit_of_version(config);
    let forked = fork(|| load_and_serve(request, platforms, limit, &control, run_channels.take()));
    // The keeper's copies would hide the end of the process.
    drop(run_channels);
    let ended = match forked {
        Ok(mut process) => {
            let Ok(socket) = control.socket.try_clone() else {
                return 1;
            };
            thread::spawn(move || wait_for_unload(socket));
            process.wait().map_or_else(|error| format!("ended ({error})"), describe)
        }
        Err(error) => format!("cannot start: {error}"),
    };
    i32::from(
        control
            .send(&ChannelFrame { kind: kind::ENDED, text: ended, ..ChannelFrame::default() })
            .is_err(),
    )
}

/// Ends the keeper when the server closes the channel. The server sends nothing on it.
fn wait_for_unload(mut socket: impl Read) {
    let _ = socket.read(&mut [0]);
    exit_now(0);
}

/// What the process does. Returns its exit status.
fn load_and_serve(
    request: &ProbeRequest,
    platforms: &Platforms,
    memory_limit: u64,
    control: &Channel,
    run_channels: Option<Vec<Channel>>,
) -> i32 {
    let platform = platforms.iter().find(|platform| platform.info.name == request.platform);
    let Some((platform, run_channels)) = platform.zip(run_channels) else {
        return 1;
    };
    let loaded = match load_and_try(platform, request, memory_limit) {
        Ok(loaded) => loaded,
        Err(error) => return i32::from(control.send(&failed(&error)).is_err()),
    };
    let (description, defaults) = VersionDescription::of(&loaded);
    let text = serde_json::to_string(&description).unwrap_or_default();
    let frame =
        ChannelFrame { kind: kind::LOADED, text, tensors: defaults, ..ChannelFrame::default() };
    if control.send(&frame).is_err() {
        return 1;
    }
    thread::scope(|scope| {
        for channel in run_channels {
            let executable = &*loaded.executable;
            scope.spawn(move || {
                let served = catch_unwind(AssertUnwindSafe(|| serve(&channel, executable)));
                if served.is_err() {
                    exit_now(PANICKED);
                }
            });
        }
    });
    0
}

/// Loads the version and runs it on synthetic inputs, with no more memory than `memory_limit` bytes. Requests may take
/// more: what is free then, nobody knows now.
fn load_and_try(platform: &Platform, request: &ProbeRequest, memory_limit: u64) -> Result<Loaded> {
    let limited = MemoryLimit::new(memory::limit_of_process(memory_limit));
    if let Err(error) = &limited {
        log::warn!("the memory of an isolated model has no limit while it loads: {error}");
    }
    let named = |error: Error| {
        if error.code() != Code::ResourceExhausted {
            return error;
        }
        Error::new(error.code(), memory::exceeded(memory_limit, error.message()))
    };
    let loaded = platform.loader.load(&request.folder, &request.options()).map_err(named)?;
    for (index, signature) in loaded.signatures.iter().enumerate() {
        if !signature.read_only {
            continue; // A run may have effects outside the process.
        }
        let Err(error) = run_declared(&*loaded.executable, index, signature) else {
            continue;
        };
        if error.code() == Code::ResourceExhausted {
            return Err(named(error));
        }
        // A model may reject synthetic inputs; what matters is that it survives them.
        if let Some(refusal) = unset::refusal(&error, signature, &loaded.signatures) {
            return Err(refusal);
        }
    }
    Ok(loaded)
}

/// Runs what arrives on a run channel, until the server closes it.
fn serve(channel: &Channel, executable: &dyn Executable) {
    while let Ok(request) = channel.receive() {
        let answer = run(&request, executable).unwrap_or_else(|error| failed(&error));
        if channel.send(&answer).is_err() {
            return;
        }
    }
}

fn run(request: &ChannelFrame, executable: &dyn Executable) -> Result<ChannelFrame> {
    let [signature, threads, timeout] = request.numbers;
    let signature = usize::try_from(signature).unwrap_or(usize::MAX);
    let options = RunOptions {
        threads: usize::try_from(threads).unwrap_or(0),
        timeout: (timeout != 0).then(|| Duration::from_nanos(timeout)),
    };
    if request.kind == kind::RUN {
        let began = process_cpu_time();
        let tensors = executable.run(signature, &request.tensors, options)?;
        let took = process_cpu_time().zip(began).map(|(end, began)| end.saturating_sub(began));
        let nanos = took.map_or(0, |took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        let numbers = [nanos, executable.prepares().into(), 0];
        return Ok(ChannelFrame { kind: reply::DONE, numbers, tensors, ..ChannelFrame::default() });
    }
    let (tensors, runs) = executable.profile(signature, &request.tensors, options)?;
    let runs: Vec<OpRunDescription> = runs.into_iter().map(OpRunDescription::from).collect();
    let text = serde_json::to_string(&runs)
        .map_err(|error| Error::internal("the profile cannot be sent").with_source(error))?;
    Ok(ChannelFrame { kind: reply::DONE, text, tensors, ..ChannelFrame::default() })
}

fn failed(error: &Error) -> ChannelFrame {
    let numbers = [u64::from(error.code().grpc()), 0, 0];
    let text = error.message().to_owned();
    ChannelFrame { kind: reply::FAILED, numbers, text, tensors: Vec::new() }
}
