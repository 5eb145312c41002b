//! The socket of a connection, with TLS or without.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};
use rustls::ClientConnection;

use crate::plan::LoadTls;

/// A socket that blocks nobody: [`ErrorKind::WouldBlock`] says that the time has not come.
pub(crate) struct LoadSocket {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl LoadSocket {
    /// Connects, and waits for that and for the handshake.
    pub(crate) fn open(
        address: SocketAddr,
        tls: Option<&LoadTls>,
        timeout: Duration,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        let mut socket = LoadSocket::of(stream, tls)?;
        if let Some(tls) = &mut socket.tls {
            socket.stream.set_read_timeout(Some(timeout))?;
            socket.stream.set_write_timeout(Some(timeout))?;
            while tls.is_handshaking() {
                tls.complete_io(&mut socket.stream).map_err(|e| not_secured(&e))?;
            }
        }
        socket.stream.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Begins to connect.
    pub(crate) fn begin(address: SocketAddr, tls: Option<&LoadTls>) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        LoadSocket::of(TcpStream::from(socket), tls)
    }

    fn of(stream: TcpStream, tls: Option<&LoadTls>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let session = |tls: &LoadTls| {
            let session = ClientConnection::new(tls.config.clone(), tls.name.clone());
            session.map(Box::new).map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))
        };
        Ok(LoadSocket { stream, tls: tls.map(session).transpose()? })
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Goes on to connect. Returns whether it is connected.
    pub(crate) fn connected(&mut self) -> io::Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error);
        }
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.is_handshaking() {
            match tls.complete_io(&mut self.stream) {
                Ok(_) => {}
                Err(error) if is_not_yet(&error) => return Ok(false),
                Err(error) => return Err(not_secured(&error)),
            }
        }
        Ok(true)
    }

    /// Whether there can be more to read after a read that has not filled its buffer.
    pub(crate) fn keeps_bytes(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.stream.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            // Without the end that TLS has, it is an end all the same.
            if tls.read_tls(&mut self.stream)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
        }
    }

    /// Takes bytes, and sends what the socket takes of them. The rest goes with [`flush`](Self::flush).
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else { return self.stream.write(bytes) };
            let taken = tls.writer().write(bytes)?;
            self.flush()?;
            if taken > 0 {
                return Ok(taken);
            }
            if self.tls.as_ref().is_some_and(|tls| tls.wants_write()) {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Sends what has been taken before, as far as the socket takes it.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            match tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if is_not_yet(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn not_secured(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the TLS handshake has failed: {error}"))
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
