//! One connection: its socket, what it sends and what it has received.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::grpc::GrpcWire;
use crate::plan::{LoadTls, WireKind, WireRequest};
use crate::response::{Arrived, ResponseReader};
use crate::results::FailureKind;
use crate::socket::LoadSocket;

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

/// What goes over a connection.
enum Wire {
    Http(ResponseReader),
    Grpc(Box<GrpcWire>),
}

impl Wire {
    fn new(kind: WireKind) -> Self {
        match kind {
            WireKind::Http => Wire::Http(ResponseReader::default()),
            WireKind::Grpc => Wire::Grpc(Box::new(GrpcWire::new())),
        }
    }
}

/// A response that is complete.
pub(crate) struct Answered<'c> {
    pub(crate) status: u16,
    pub(crate) is_success: bool,
    /// The value of `Server-Timing`.
    pub(crate) timing: &'c [u8],
    /// Of a failure: the start of the body, or the message of a call.
    pub(crate) text: &'c [u8],
    /// The connection takes no other request.
    pub(crate) closes: bool,
}

pub(crate) struct LoadConnection {
    socket: Option<LoadSocket>,
    kind: WireKind,
    wire: Wire,
    pub(crate) stage: ConnectionStage,
    pub(crate) flight: Flight,
    /// Since when it is idle.
    pub(crate) idle_since: u64,
    pub(crate) received: u64,
}

impl LoadConnection {
    /// Connects, and waits for that.
    pub(crate) fn open(
        address: SocketAddr,
        kind: WireKind,
        tls: Option<&LoadTls>,
        timeout: Duration,
    ) -> io::Result<Self> {
        Ok(LoadConnection {
            socket: Some(LoadSocket::open(address, tls, timeout)?),
            kind,
            wire: Wire::new(kind),
            stage: ConnectionStage::Idle,
            flight: Flight::default(),
            idle_since: 0,
            received: 0,
        })
    }

    pub(crate) fn stream(&self) -> Option<&TcpStream> {
        self.socket.as_ref().map(LoadSocket::stream)
    }

    /// Begins to connect again.
    pub(crate) fn reopen(&mut self, address: SocketAddr, tls: Option<&LoadTls>) -> io::Result<()> {
        self.socket = Some(LoadSocket::begin(address, tls)?);
        self.wire = Wire::new(self.kind);
        self.stage = ConnectionStage::Connecting;
        Ok(())
    }

    /// Closes it until it is time to connect again.
    pub(crate) fn close(&mut self, until: u64) {
        self.socket = None;
        self.stage = ConnectionStage::Closed(until);
    }

    /// The flight of a request that is sent at `sent`.
    pub(crate) fn flight(request: usize, due: u64, sent: u64) -> Flight {
        Flight { request, due, sent, written: 0 }
    }

    /// Begins to send a request.
    pub(crate) fn send(&mut self, requests: &[WireRequest], flight: Flight) -> ConnectionStep {
        self.flight = flight;
        self.stage = ConnectionStage::Busy;
        self.received = 0;
        match (&mut self.wire, requests.get(flight.request)) {
            (Wire::Http(reader), _) => reader.reset(),
            (Wire::Grpc(wire), Some(request)) => wire.begin(request),
            (Wire::Grpc(_), None) => {}
        }
        self.write(requests)
    }

    /// Writes what is to be written, as far as the socket takes it.
    fn write(&mut self, requests: &[WireRequest]) -> ConnectionStep {
        let request = requests.get(self.flight.request);
        let is_busy = self.stage == ConnectionStage::Busy;
        let Some(socket) = &mut self.socket else { return ConnectionStep::Waits };
        loop {
            let rest = match (&mut self.wire, request) {
                (Wire::Http(_), Some(request)) if is_busy => {
                    request.body.get(self.flight.written..).unwrap_or_default()
                }
                (Wire::Http(_), _) => &[],
                (Wire::Grpc(wire), request) => {
                    if let (true, Some(request)) = (is_busy, request) {
                        wire.fill(request);
                    }
                    wire.unsent()
                }
            };
            let sent =
                if rest.is_empty() { socket.flush().map(|()| 0) } else { socket.write(rest) };
            match sent {
                Ok(0) => return ConnectionStep::Waits,
                Ok(written) => {
                    self.flight.written += written;
                    if let Wire::Grpc(wire) = &mut self.wire {
                        wire.sent(written);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return ConnectionStep::Waits;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What the server wrote before it closed the connection says more, and is read next.
                Err(_) if self.flight.written > 0 || !is_busy => return ConnectionStep::Waits,
                Err(error) => {
                    return ConnectionStep::Failed(FailureKind::Closed, error.to_string());
                }
            }
        }
    }

    /// The socket can be written to.
    pub(crate) fn writable(&mut self, requests: &[WireRequest]) -> ConnectionStep {
        match self.stage {
            ConnectionStage::Connecting => self.connect(),
            ConnectionStage::Busy | ConnectionStage::Idle => self.write(requests),
            ConnectionStage::Closed(_) => ConnectionStep::Waits,
        }
    }

    /// Goes on to connect.
    fn connect(&mut self) -> ConnectionStep {
        match self.socket.as_mut().map(LoadSocket::connected) {
            Some(Ok(true)) => {
                self.stage = ConnectionStage::Idle;
                ConnectionStep::Connected
            }
            Some(Ok(false)) | None => ConnectionStep::Waits,
            Some(Err(error)) => ConnectionStep::Failed(FailureKind::Connect, error.to_string()),
        }
    }

    /// The socket can be read from, up to its end if `is_ending`. Bytes pass through `buffer`.
    pub(crate) fn readable(
        &mut self,
        requests: &[WireRequest],
        buffer: &mut [u8],
        is_ending: bool,
    ) -> ConnectionStep {
        match self.stage {
            ConnectionStage::Closed(_) => return ConnectionStep::Waits,
            // Before the handshake has ended.
            ConnectionStage::Connecting => return self.connect(),
            ConnectionStage::Busy | ConnectionStage::Idle => {}
        }
        loop {
            let Some(socket) = &mut self.socket else { return ConnectionStep::Waits };
            let reads_on = is_ending || socket.keeps_bytes();
            let count = match socket.read(buffer) {
                Ok(0) => return self.ended("the server closed the connection"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.write(requests),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.ended(&error.to_string()),
            };
            self.received = self.received.saturating_add(count as u64);
            let bytes = buffer.get(..count).unwrap_or_default();
            if let Some(step) = self.take(bytes) {
                return step;
            }
            // The rest has not arrived: its arrival is another edge.
            if count < buffer.len() && !reads_on {
                return self.write(requests);
            }
        }
    }

    /// Takes bytes that have arrived. Returns what they lead to, if there is nothing more to be read.
    fn take(&mut self, bytes: &[u8]) -> Option<ConnectionStep> {
        let is_busy = self.stage == ConnectionStage::Busy;
        let malformed =
            |what: &str| Some(ConnectionStep::Failed(FailureKind::Malformed, what.to_owned()));
        match &mut self.wire {
            Wire::Http(_) if !is_busy => malformed("bytes that belong to no request"),
            Wire::Http(reader) => match reader.read(bytes) {
                Ok(Arrived::Part) => None,
                Ok(Arrived::Whole(used)) if used == bytes.len() => Some(ConnectionStep::Answered),
                Ok(Arrived::Whole(_)) => malformed("bytes after the end of the response"),
                Err(what) => malformed(what),
            },
            Wire::Grpc(wire) => match wire.read(bytes) {
                Ok(()) if is_busy && wire.is_answered() => Some(ConnectionStep::Answered),
                Ok(()) if !is_busy && wire.closes() => Some(ConnectionStep::Left),
                Ok(()) => None,
                Err((kind, what)) => Some(ConnectionStep::Failed(kind, what)),
            },
        }
    }

    /// The server sends nothing more.
    fn ended(&self, why: &str) -> ConnectionStep {
        if self.stage != ConnectionStage::Busy {
            return ConnectionStep::Left;
        }
        let (is_whole, has_begun) = match &self.wire {
            Wire::Http(reader) => (reader.ends(), reader.has_begun()),
            Wire::Grpc(wire) => (false, wire.has_begun()),
        };
        let place = if has_begun { "in the middle of a response" } else { "without a response" };
        match is_whole {
            true => ConnectionStep::Answered,
            false => ConnectionStep::Failed(FailureKind::Closed, format!("{why} {place}")),
        }
    }

    /// The response that is complete. A server that answers before it has read the whole request reads no other
    /// one behind it.
    pub(crate) fn answer(&self, requests: &[WireRequest]) -> Answered<'_> {
        let request = requests.get(self.flight.request);
        match &self.wire {
            Wire::Http(reader) => {
                let is_sent =
                    request.is_none_or(|request| self.flight.written >= request.body.len());
                Answered {
                    status: reader.status(),
                    is_success: (200..300).contains(&reader.status()),
                    timing: reader.timing(),
                    text: reader.body(),
                    closes: reader.closes() || !is_sent,
                }
            }
            Wire::Grpc(wire) => Answered {
                status: wire.status(),
                is_success: wire.status() == 0,
                timing: wire.timing(),
                text: wire.message(),
                closes: wire.closes() || request.is_some_and(|request| !wire.is_sent(request)),
            },
        }
    }
}
