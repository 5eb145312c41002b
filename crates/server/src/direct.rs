//! Large parts of HTTP responses, written to the connection from where they are in memory.
//!
//! The HTTP library copies each body into the buffer of its connection. For a tensor of 600 KB this copy
//! costs more than all that the server does for the request. So a large part goes around the library: its
//! body waits, the library writes what it holds, and the stream below writes the part behind that.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::rt::net::TcpStream;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::timed_writes::TimedWrites;
use super::tls::MaybeTlsStream;

/// Between pieces of this size other connections get their turn. An image of 224 x 224 x 3 floats is one
/// piece.
pub(super) const PIECE: usize = 640 << 10;

/// A stream that the library writes to, and around it the bodies of its responses.
pub(super) struct DirectStream<S>(Rc<RefCell<SharedStream<S>>>);

/// What a connection and the body of its response share; both stay on one thread.
struct SharedStream<S> {
    stream: S,
    /// What is left of a part.
    part: Bytes,
    /// All that precedes the part is written.
    is_next: bool,
}

impl<S> DirectStream<S> {
    pub(super) fn new(stream: S) -> Self {
        let shared = SharedStream { stream, part: Bytes::new(), is_next: false };
        DirectStream(Rc::new(RefCell::new(shared)))
    }

    pub(super) fn writer(&self) -> PartWriter<S> {
        PartWriter(Rc::clone(&self.0))
    }
}

/// Writes parts to a connection.
pub(super) struct PartWriter<S>(Rc<RefCell<SharedStream<S>>>);

/// Writes parts to the connection of a request.
pub(super) type ConnectionWriter = PartWriter<MaybeTlsStream<TimedWrites<TcpStream>>>;

impl<S> Clone for PartWriter<S> {
    fn clone(&self) -> Self {
        PartWriter(Rc::clone(&self.0))
    }
}

impl<S: AsyncWrite + Unpin> PartWriter<S> {
    /// Starts to write `part` behind what the library holds, which writes that next.
    pub(super) fn start(&self, part: Bytes) {
        let mut shared = self.0.borrow_mut();
        (shared.part, shared.is_next) = (part, false);
    }

    /// Writes a piece of the part; ready when all of it is written.
    pub(super) fn poll_written(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.0.borrow_mut();
        if shared.part.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if !shared.is_next {
            // The library waits until it can write what precedes the part.
            return Poll::Pending;
        }
        shared.poll_turn(context)
    }
}

impl<S: AsyncWrite + Unpin> SharedStream<S> {
    /// Writes a piece of the part.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let piece = self.part.get(..PIECE).unwrap_or(&self.part);
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, piece))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.part.advance(written);
        Poll::Ready(Ok(()))
    }

    /// Writes a piece of the part; ready when it was the last one. Other connections get their turn before
    /// the next one.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_piece(context))?;
        if self.part.is_empty() {
            return Poll::Ready(Ok(()));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes `bytes` of the library, and behind them a piece of the part. Returns how many of the bytes
    /// are written.
    fn poll_write_with_part(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let piece = self.part.get(..PIECE).unwrap_or(&self.part);
        let slices = [IoSlice::new(bytes), IoSlice::new(piece)];
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, &slices))?;
        if let Some(of_part) = written.checked_sub(bytes.len()) {
            self.part.advance(of_part);
            self.is_next = true;
        }
        Poll::Ready(Ok(written.min(bytes.len())))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DirectStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DirectStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut shared = self.0.borrow_mut();
        if shared.part.is_empty() {
            return Pin::new(&mut shared.stream).poll_write(context, bytes);
        }
        if !shared.is_next {
            return shared.poll_write_with_part(context, bytes);
        }
        // What the library writes now follows the part.
        while !shared.part.is_empty() {
            ready!(shared.poll_piece(context))?;
        }
        Pin::new(&mut shared.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.0.borrow_mut();
        // The library flushes when it has written all that it holds.
        shared.is_next = true;
        if !shared.part.is_empty() {
            // The stream below takes a flush that succeeds for progress of its client.
            ready!(shared.poll_turn(context))?;
        }
        Pin::new(&mut shared.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use futures_util::task::noop_waker;

    /// A socket with room for some bytes, which takes at most `step` of them at a time.
    #[derive(Default)]
    struct Narrow {
        step: usize,
        room: usize,
        written: Vec<u8>,
    }

    impl AsyncWrite for Narrow {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(context, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            let count = all.len().min(self.step).min(self.room);
            if count == 0 && !all.is_empty() {
                return Poll::Pending;
            }
            self.room -= count;
            self.written.extend_from_slice(&all[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// As the library does: all that it holds, and then a flush. Whether that is done.
    fn flush(
        stream: &mut DirectStream<Narrow>,
        held: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> bool {
        while !held.is_empty() {
            match Pin::new(&mut *stream).poll_write(context, held) {
                Poll::Ready(written) => drop(held.drain(..written.unwrap())),
                Poll::Pending => return false,
            }
        }
        Pin::new(stream).poll_flush(context).is_ready()
    }

    #[test]
    fn parts_follow_what_the_library_holds_however_the_socket_takes_them() {
        let (waker, part) = (noop_waker(), vec![b'p'; 100]);
        let context = &mut Context::from_waker(&waker);
        for head in [&b""[..], b"the head"] {
            for step in 1..120 {
                for room in 0..step {
                    let narrow = Narrow { step, room, written: Vec::new() };
                    let mut stream = DirectStream::new(narrow);
                    let (writer, mut held) = (stream.writer(), head.to_vec());
                    writer.start(Bytes::from(part.clone()));
                    for turn in 0.. {
                        assert!(turn < 1000, "no progress: {head:?}, {step}, {room}");
                        flush(&mut stream, &mut held, context);
                        if let Poll::Ready(written) = writer.poll_written(context) {
                            written.unwrap();
                            break;
                        }
                        stream.0.borrow_mut().stream.room = step;
                    }
                    stream.0.borrow_mut().stream.room = 100;
                    let mut next = b"next".to_vec();
                    while !flush(&mut stream, &mut next, context) {}
                    let expected = [head, &part, b"next"].concat();
                    assert_eq!(stream.0.borrow().stream.written, expected, "{step}, {room}");
                }
            }
        }
    }
}
