//! One connection: its socket, what it sends and what it has received.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};

use crate::response::{Arrived, ResponseReader};
use crate::results::FailureKind;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStage {
    /// Not connected; connects again at this time.
    Closed(u64),
    Connecting,
    Idle,
    /// A request is being sent or answered.
    Busy,
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flight {
    /// The number of the request in the plan.
    pub(crate) request: usize,
    /// When it was due, and when its first byte was sent.
    pub(crate) due: u64,
    pub(crate) sent: u64,
    written: usize,
}

impl Flight {
    /// Whether all of a request of `length` bytes is sent.
    pub(crate) fn is_sent(&self, length: usize) -> bool {
        self.written >= length
    }
}

/// What a socket's readiness has led to.
pub(crate) enum ConnectionStep {
    /// Nothing yet.
    Waits,
    /// It is connected.
    Connected,
    /// The response is complete.
    Answered,
    /// The server has closed it while no request was in flight.
    Left,
    /// The request, or the attempt to connect, has failed.
    Failed(FailureKind, String),
}

pub(crate) struct LoadConnection {
    stream: Option<TcpStream>,
    pub(crate) stage: ConnectionStage,
    pub(crate) flight: Flight,
    /// Since when it is idle.
    pub(crate) idle_since: u64,
    pub(crate) reader: ResponseReader,
    pub(crate) received: u64,
}

impl LoadConnection {
    /// Connects, and waits for that.
    pub(crate) fn open(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(LoadConnection {
            stream: Some(stream),
            stage: ConnectionStage::Idle,
            flight: Flight::default(),
            idle_since: 0,
            reader: ResponseReader::default(),
            received: 0,
        })
    }

    pub(crate) fn stream(&self) -> Option<&TcpStream> {
        self.stream.as_ref()
    }

    /// Begins to connect again.
    pub(crate) fn reopen(&mut self, address: SocketAddr) -> io::Result<()> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        self.stream = Some(stream);
        self.stage = ConnectionStage::Connecting;
        Ok(())
    }

    /// Closes it until it is time to connect again.
    pub(crate) fn close(&mut self, until: u64) {
        self.stream = None;
        self.stage = ConnectionStage::Closed(until);
        self.reader.reset();
    }

    /// Begins to send a request.
    pub(crate) fn send(&mut self, bytes: &[u8], flight: Flight) -> ConnectionStep {
        self.flight = flight;
        self.stage = ConnectionStage::Busy;
        self.reader.reset();
        self.received = 0;
        self.write(bytes)
    }

    /// The flight of a request that is sent at `sent`.
    pub(crate) fn flight(request: usize, due: u64, sent: u64) -> Flight {
        Flight { request, due, sent, written: 0 }
    }

    fn write(&mut self, bytes: &[u8]) -> ConnectionStep {
        let Some(stream) = &mut self.stream else { return ConnectionStep::Waits };
        loop {
            let rest = bytes.get(self.flight.written..).unwrap_or_default();
            if rest.is_empty() {
                return ConnectionStep::Waits;
            }
            match stream.write(rest) {
                Ok(written) => self.flight.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return ConnectionStep::Waits;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What the server wrote before it closed the connection says more.
                Err(_) if self.flight.written > 0 => return ConnectionStep::Waits,
                Err(error) => {
                    return ConnectionStep::Failed(FailureKind::Closed, error.to_string());
                }
            }
        }
    }

    /// The socket can be written to.
    pub(crate) fn writable(&mut self, requests: &[Vec<u8>]) -> ConnectionStep {
        match self.stage {
            ConnectionStage::Connecting => match self.stream.as_ref().map(TcpStream::take_error) {
                Some(Ok(None)) => {
                    self.stage = ConnectionStage::Idle;
                    ConnectionStep::Connected
                }
                Some(Ok(Some(error)) | Err(error)) => {
                    ConnectionStep::Failed(FailureKind::Connect, error.to_string())
                }
                None => ConnectionStep::Waits,
            },
            ConnectionStage::Busy => {
                let bytes = requests.get(self.flight.request).map_or(&[][..], Vec::as_slice);
                self.write(bytes)
            }
            ConnectionStage::Idle | ConnectionStage::Closed(_) => ConnectionStep::Waits,
        }
    }

    /// The socket can be read from, up to its end if `is_ending`. Bytes pass through `buffer`.
    pub(crate) fn readable(&mut self, buffer: &mut [u8], is_ending: bool) -> ConnectionStep {
        if !matches!(self.stage, ConnectionStage::Busy | ConnectionStage::Idle) {
            return ConnectionStep::Waits;
        }
        let Some(stream) = &mut self.stream else { return ConnectionStep::Waits };
        loop {
            let count = match stream.read(buffer) {
                Ok(0) => return self.ended("the server closed the connection"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return ConnectionStep::Waits;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.ended(&error.to_string()),
            };
            self.received = self.received.saturating_add(count as u64);
            let bytes = buffer.get(..count).unwrap_or_default();
            if self.stage == ConnectionStage::Idle {
                let what = "bytes that belong to no request".to_owned();
                return ConnectionStep::Failed(FailureKind::Malformed, what);
            }
            match self.reader.read(bytes) {
                Ok(Arrived::Whole(used)) if used == count => return ConnectionStep::Answered,
                Ok(Arrived::Whole(_)) => {
                    let what = "bytes after the end of the response".to_owned();
                    return ConnectionStep::Failed(FailureKind::Malformed, what);
                }
                // The rest has not arrived: its arrival is another edge.
                Ok(Arrived::Part) if count < buffer.len() && !is_ending => {
                    return ConnectionStep::Waits;
                }
                Ok(Arrived::Part) => {}
                Err(what) => {
                    return ConnectionStep::Failed(FailureKind::Malformed, what.to_owned());
                }
            }
        }
    }

    /// The server sends nothing more.
    fn ended(&self, why: &str) -> ConnectionStep {
        match self.stage {
            ConnectionStage::Busy if self.reader.ends() => ConnectionStep::Answered,
            ConnectionStage::Busy if self.reader.has_begun() => ConnectionStep::Failed(
                FailureKind::Closed,
                format!("{why} in the middle of a response"),
            ),
            ConnectionStage::Busy => {
                ConnectionStep::Failed(FailureKind::Closed, format!("{why} without a response"))
            }
            ConnectionStage::Idle | ConnectionStage::Connecting | ConnectionStage::Closed(_) => {
                ConnectionStep::Left
            }
        }
    }
}
