//! Calls: what one shares with its connection, the body of its request, and how its response is handed over.
//!
//! A call runs in a task of its own, so that the calls of a connection run on all threads. The connection puts what
//! arrives into the [`CallState`], and takes parts of responses from its [`Mailbox`].

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};

use crate::frame::EndReason;
use crate::head::{response_block, trailers_block};

/// How many bytes of a response may wait to be sent before the call is asked for more. A response that holds memory
/// gives it back when at most so many are left.
const QUEUED: usize = 64 << 10;

/// A part of a response, or what a call tells its connection.
pub(crate) enum CallPart {
    Head(Vec<u8>),
    /// The whole response.
    LastHead(Vec<u8>),
    Data(Bytes),
    Trailers(Vec<u8>),
    End,
    Reset(EndReason),
    /// The handler has read so many bytes.
    Read(usize),
}

/// What the calls of a connection tell it.
pub(crate) struct Mailbox {
    inner: Mutex<MailboxInner>,
    /// Bytes that handlers have read, or never will, since the last update of the connection's window.
    released: AtomicUsize,
    /// At so many of them the window is updated.
    enough: usize,
}

#[derive(Default)]
struct MailboxInner {
    parts: Vec<(u32, CallPart)>,
    waker: Option<Waker>,
    /// The connection is about to take what there is.
    is_attended: bool,
}

impl Mailbox {
    /// For a connection with this window.
    pub(crate) fn new(window: u32) -> Self {
        let enough = usize::try_from(window / 2).unwrap_or(usize::MAX);
        Mailbox { inner: Mutex::default(), released: AtomicUsize::new(0), enough }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is to be woken with this waker. Whether it is another one than before.
    pub(crate) fn register(&self, waker: &Waker) -> bool {
        let mut inner = self.lock();
        if inner.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return false;
        }
        inner.waker = Some(waker.clone());
        true
    }

    /// Takes all parts; `parts` is empty. From now on, new ones wake the connection.
    pub(crate) fn take(&self, parts: &mut Vec<(u32, CallPart)>) {
        let mut inner = self.lock();
        inner.is_attended = false;
        std::mem::swap(&mut inner.parts, parts);
    }

    /// Parts need not wake the connection until it takes them.
    pub(crate) fn attend(&self) {
        self.lock().is_attended = true;
    }

    fn send(&self, parts: &mut Vec<(u32, CallPart)>) {
        if parts.is_empty() {
            return;
        }
        let mut inner = self.lock();
        let is_first = inner.parts.is_empty();
        match is_first {
            true => std::mem::swap(&mut inner.parts, parts),
            false => inner.parts.append(parts),
        }
        // Who put the first part in has woken it.
        let is_asleep = is_first && !inner.is_attended;
        let waker = inner.waker.clone().filter(|_| is_asleep);
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The client may send so many bytes more on the connection.
    pub(crate) fn release(&self, bytes: usize) {
        let before = self.released.fetch_add(bytes, Relaxed);
        if before < self.enough && before + bytes >= self.enough {
            let waker = self.lock().waker.clone();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Takes the released bytes if they are enough for an update.
    pub(crate) fn take_released(&self) -> Option<usize> {
        if self.released.load(Relaxed) < self.enough {
            return None;
        }
        Some(self.released.swap(0, Relaxed))
    }
}

/// What a call and its connection share.
#[derive(Default)]
pub(crate) struct CallState(Mutex<CallInner>);

#[derive(Default)]
struct CallInner {
    chunks: VecDeque<Bytes>,
    /// What follows them: small parts, which together take no more memory than they have bytes.
    small: BytesMut,
    trailers: Option<HeaderMap>,
    end: BodyEnd,
    /// The handler reads no more.
    is_dropped: bool,
    reader: Option<Waker>,
    /// Bytes that the handler has read since it last said so.
    read: usize,
    /// Bytes of the response that the connection has not written.
    queued: usize,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum BodyEnd {
    #[default]
    Open,
    Complete,
    Reset,
}

impl CallInner {
    /// Makes a chunk of the small parts.
    fn flush_small(&mut self) {
        if !self.small.is_empty() {
            self.chunks.push_back(self.small.split().freeze());
        }
    }

    /// How many bytes have arrived that nobody has read.
    fn unread(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum::<usize>() + self.small.len()
    }
}

impl CallState {
    fn lock(&self) -> MutexGuard<'_, CallInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the handler reads, and wakes it.
    fn arrive(&self, change: impl FnOnce(&mut CallInner)) {
        let mut inner = self.lock();
        change(&mut inner);
        let reader = inner.reader.take();
        drop(inner);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// A part of the body has arrived. Whether the handler still reads.
    pub(crate) fn data(&self, data: Bytes, is_last: bool) -> bool {
        self.part(is_last, |inner| {
            inner.flush_small();
            inner.chunks.push_back(data);
        })
    }

    /// A small part has arrived. Whether the handler still reads.
    pub(crate) fn small_data(&self, data: &[u8], is_last: bool) -> bool {
        self.part(is_last, |inner| inner.small.extend_from_slice(data))
    }

    fn part(&self, is_last: bool, put: impl FnOnce(&mut CallInner)) -> bool {
        let mut is_read = true;
        self.arrive(|inner| {
            is_read = !inner.is_dropped;
            if is_read {
                put(inner);
            }
            if is_last {
                inner.end = BodyEnd::Complete;
            }
        });
        is_read
    }

    /// The body is complete.
    pub(crate) fn complete(&self, trailers: Option<HeaderMap>) {
        self.arrive(|inner| (inner.trailers, inner.end) = (trailers, BodyEnd::Complete));
    }

    /// The client sends no more, though the body is not complete.
    pub(crate) fn reset(&self) {
        self.arrive(|inner| {
            if inner.end == BodyEnd::Open {
                inner.end = BodyEnd::Reset;
            }
        });
    }

    /// So many bytes of the response are written.
    pub(crate) fn written(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.queued = inner.queued.saturating_sub(bytes);
        let writer = if inner.queued <= QUEUED { inner.writer.take() } else { None };
        drop(inner);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Waits until few bytes of the response are not written.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if inner.queued <= QUEUED {
            return Poll::Ready(());
        }
        inner.writer = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The body of a request.
pub struct RequestBody {
    call: Arc<CallState>,
    mailbox: Arc<Mailbox>,
    stream: u32,
    /// After so many bytes that it has read, the client may send more.
    enough: usize,
}

/// The client, or its connection, ended a call before its request was complete.
#[derive(Clone, Copy, Debug)]
pub struct CallReset;

impl fmt::Display for CallReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client ended the call before its request was complete")
    }
}

impl std::error::Error for CallReset {}

impl RequestBody {
    /// The body of a call with this window.
    pub(crate) fn new(
        call: Arc<CallState>,
        mailbox: Arc<Mailbox>,
        stream: u32,
        window: u32,
    ) -> Self {
        let enough = usize::try_from(window / 2).unwrap_or(usize::MAX);
        RequestBody { call, mailbox, stream, enough }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = CallReset;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CallReset>>> {
        let mut inner = self.call.lock();
        if inner.chunks.is_empty() {
            inner.flush_small();
        }
        if let Some(chunk) = inner.chunks.pop_front() {
            inner.read += chunk.len();
            let is_enough = inner.read >= self.enough && inner.end == BodyEnd::Open;
            let read = if is_enough { std::mem::take(&mut inner.read) } else { 0 };
            drop(inner);
            self.mailbox.release(chunk.len());
            if read > 0 {
                self.mailbox.send(&mut vec![(self.stream, CallPart::Read(read))]);
            }
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        match inner.end {
            BodyEnd::Complete => Poll::Ready(inner.trailers.take().map(Frame::trailers).map(Ok)),
            BodyEnd::Reset => Poll::Ready(Some(Err(CallReset))),
            BodyEnd::Open => {
                inner.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let inner = self.call.lock();
        inner.end == BodyEnd::Complete && inner.unread() == 0 && inner.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.call.lock();
        let bytes = u64::try_from(inner.unread()).unwrap_or(u64::MAX);
        if inner.end == BodyEnd::Complete {
            return SizeHint::with_exact(bytes);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(bytes);
        hint
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let mut inner = self.call.lock();
        inner.is_dropped = true;
        let unread = inner.unread();
        let read = (std::mem::take(&mut inner.chunks), std::mem::take(&mut inner.small));
        drop(inner);
        drop(read);
        if unread > 0 {
            self.mailbox.release(unread);
        }
    }
}

/// Hands a response over to the connection, part by part. Ends the call with an error when it is dropped before the
/// end.
struct Outgoing {
    call: Arc<CallState>,
    mailbox: Arc<Mailbox>,
    stream: u32,
    parts: Vec<(u32, CallPart)>,
    is_ended: bool,
}

impl Outgoing {
    fn put(&mut self, part: CallPart) {
        if let CallPart::Data(data) = &part {
            self.call.lock().queued += data.len();
        }
        self.parts.push((self.stream, part));
    }

    fn end(&mut self, part: CallPart) {
        self.is_ended = true;
        self.put(part);
        self.mailbox.send(&mut self.parts);
    }

    /// Hands over what of the response is ready; ready when that is all.
    fn poll_body<B>(&mut self, mut body: Pin<&mut B>, context: &mut Context<'_>) -> Poll<()>
    where
        B: Body<Data = Bytes, Error: fmt::Display>,
    {
        loop {
            if self.call.poll_room(context).is_pending() {
                self.mailbox.send(&mut self.parts);
                return Poll::Pending;
            }
            let frame = match body.as_mut().poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.mailbox.send(&mut self.parts);
                    return Poll::Pending;
                }
            };
            let frame = match frame {
                None => {
                    self.end(CallPart::End);
                    return Poll::Ready(());
                }
                Some(Err(error)) => {
                    log::debug!("a response cannot be completed: {error}");
                    self.end(CallPart::Reset(EndReason::Internal));
                    return Poll::Ready(());
                }
                Some(Ok(frame)) => frame,
            };
            match frame.into_data().map_err(Frame::into_trailers) {
                Ok(data) => self.put(CallPart::Data(data)),
                Err(Ok(trailers)) => {
                    self.end(CallPart::Trailers(trailers_block(&trailers)));
                    return Poll::Ready(());
                }
                // There are no other frames.
                Err(Err(_)) => {}
            }
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        if !self.is_ended {
            self.end(CallPart::Reset(EndReason::Internal));
        }
    }
}

/// Waits for a response, and hands it over.
pub(crate) async fn answer<F, B>(
    response: F,
    call: Arc<CallState>,
    mailbox: Arc<Mailbox>,
    stream: u32,
) where
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error: fmt::Display>,
{
    let parts = Vec::new();
    let mut outgoing = Outgoing { call, mailbox, stream, parts, is_ended: false };
    let (head, body) = response.await.into_parts();
    let block = response_block(head.status, &head.headers);
    if body.is_end_stream() {
        return outgoing.end(CallPart::LastHead(block));
    }
    outgoing.parts.reserve(3);
    outgoing.put(CallPart::Head(block));
    let mut body = pin!(body);
    poll_fn(|context| outgoing.poll_body(body.as_mut(), context)).await;
    // The body may hold memory for what is not written.
    poll_fn(|context| outgoing.call.poll_room(context)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(body: &mut RequestBody) -> Poll<Option<usize>> {
        let context = &mut Context::from_waker(Waker::noop());
        let polled = Pin::new(body).poll_frame(context);
        polled.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap().len()))
    }

    #[test]
    fn small_parts_are_one_chunk_in_their_order() {
        let (call, mailbox) = (Arc::new(CallState::default()), Arc::new(Mailbox::new(1000)));
        let mut body = RequestBody::new(Arc::clone(&call), Arc::clone(&mailbox), 1, 1_000_000);
        assert_eq!(next(&mut body), Poll::Pending);
        for _ in 0..10_000 {
            assert!(call.small_data(b"x", false));
        }
        call.data(Bytes::from(vec![0; 5000]), false);
        call.small_data(b"end", true);
        assert_eq!(body.size_hint().exact(), Some(15_003));
        assert_eq!(next(&mut body), Poll::Ready(Some(10_000)));
        assert_eq!(next(&mut body), Poll::Ready(Some(5000)));
        assert!(!body.is_end_stream());
        assert_eq!(next(&mut body), Poll::Ready(Some(3)));
        assert!(body.is_end_stream());
        assert_eq!(next(&mut body), Poll::Ready(None));
        assert_eq!(mailbox.take_released(), Some(15_003));
    }

    #[test]
    fn what_nobody_reads_is_released() {
        let (call, mailbox) = (Arc::new(CallState::default()), Arc::new(Mailbox::new(1000)));
        let body = RequestBody::new(Arc::clone(&call), Arc::clone(&mailbox), 1, 1_000_000);
        call.small_data(b"abc", false);
        call.data(Bytes::from(vec![0; 5000]), false);
        drop(body);
        assert_eq!(mailbox.take_released(), Some(5003));
        assert!(!call.small_data(b"abc", false), "the rest is not kept");
    }
}
