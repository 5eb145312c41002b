//! Serves a connection: input, output and time.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};

use crate::call::{CallPart, RequestBody, answer};
use crate::connection::Http2Connection;
use crate::frame::EndReason;
use crate::{Http2Options, RefusedCalls};

/// The room for input, and that for input of a client that sends much.
const INPUT: usize = 8 << 10;
const LARGE_INPUT: usize = 256 << 10;

/// A client that leaves so much unread is not read from.
const UNREAD: usize = 640 << 10;

/// Pieces that are written at once.
const SLICES: usize = 32;

/// How often a connection looks at its client, at least.
const PERIOD: Duration = Duration::from_secs(10);

/// Serves the calls of a connection with `handle`, until its client closes it, breaks the
/// protocol or exceeds a limit; or, once `is_ending`, until its calls are answered. `ending` is ready then, and wakes
/// the connection for it. A call that its client ends is dropped where it waits.
///
/// Each call has a task of its own, so that the calls of a connection run on all threads. Only a small one that arrives
/// while no other is open is answered by the connection itself, which saves waking two tasks for each call of a client
/// that makes one at a time.
///
/// # Errors
/// Of the stream.
pub async fn serve<S, E, H, F, B>(
    stream: S,
    options: Http2Options,
    refused: RefusedCalls,
    (ending, is_ending): (E, impl Fn() -> bool),
    handle: H,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
    E: Future<Output = ()>,
    H: Fn(Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Display> + Send + 'static,
{
    let mut ending = pin!(ending);
    let mut served = Served {
        stream,
        connection: Http2Connection::new(options),
        input: BytesMut::new(),
        room: INPUT,
        parts: Vec::new(),
        own_call: None,
        refused,
        clock: Clock::new(options),
        is_closing: false,
        has_written: false,
    };
    poll_fn(|context| {
        let is_moved = served.connection.mailbox.register(context.waker());
        if is_moved && !served.clock.is_ending {
            let _ = ending.as_mut().poll(context);
        }
        if is_ending() {
            served.end();
        }
        if served.is_given_up(is_moved, context) {
            return Poll::Ready(Ok(()));
        }
        served.poll(context, &handle)
    })
    .await
}

type OwnCall = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A connection with its stream.
struct Served<S> {
    stream: S,
    connection: Http2Connection,
    input: BytesMut,
    /// How much room the next input gets.
    room: usize,
    parts: Vec<(u32, CallPart)>,
    /// A call that the connection answers itself.
    own_call: Option<(u32, OwnCall)>,
    refused: RefusedCalls,
    clock: Clock,
    /// It ends when all is written.
    is_closing: bool,
    has_written: bool,
}

/// When a connection looks at its client.
struct Clock {
    alarm: Pin<Box<Sleep>>,
    period: Duration,
    /// How many periods a client may take nothing of a response.
    patience: u32,
    /// When the client was last heard, as far as that was looked at.
    quiet_since: Instant,
    heard: bool,
    pinged: Option<Instant>,
    is_ending: bool,
}

impl Clock {
    fn new(options: Http2Options) -> Self {
        let mut clock = Clock {
            alarm: Box::pin(sleep(options.preface_timeout)),
            period: PERIOD,
            patience: 0,
            quiet_since: Instant::now(),
            heard: false,
            pinged: None,
            is_ending: false,
        };
        clock.limit(options.write_timeout);
        clock
    }

    /// A client may take nothing for so long.
    fn limit(&mut self, limit: Duration) {
        self.period = (limit / 2).clamp(Duration::from_millis(1), PERIOD);
        let periods = limit.as_millis().div_ceil(self.period.as_millis().max(1));
        self.patience = u32::try_from(periods).unwrap_or(u32::MAX);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Served<S> {
    /// The listener ends: the client is told, and may pause for less.
    fn end(&mut self) {
        if std::mem::replace(&mut self.clock.is_ending, true) {
            return;
        }
        self.connection.say_farewell();
        let options = &self.connection.options;
        self.clock.limit(options.write_timeout.min(options.drain_pause));
        self.clock.heard = false;
        let next = Instant::now() + self.clock.period;
        self.clock.alarm.as_mut().reset(next);
    }

    /// Looks at the client if it is time to. Whether the connection is to be closed as if the client had closed it.
    fn is_given_up(&mut self, is_moved: bool, context: &mut Context<'_>) -> bool {
        if !is_moved && !self.clock.alarm.is_elapsed() && !self.clock.is_ending {
            return false;
        }
        while self.clock.alarm.as_mut().poll(context).is_ready() {
            if let Some(why) = self.tick() {
                log::debug!("a connection is closed: {why}");
                return true;
            }
            let next = Instant::now() + self.clock.period;
            self.clock.alarm.as_mut().reset(next);
        }
        false
    }

    /// Looks at the client. Returns why the connection is closed, if it is.
    fn tick(&mut self) -> Option<&'static str> {
        let (connection, clock) = (&mut self.connection, &mut self.clock);
        if !connection.has_begun() {
            return Some("its client sent nothing for too long");
        }
        connection.tick = connection.tick.wrapping_add(1);
        let (now, heard) = (Instant::now(), std::mem::take(&mut clock.heard));
        let options = &connection.options;
        match clock.pinged {
            _ if heard => (clock.quiet_since, clock.pinged) = (now, None),
            Some(pinged) if now - pinged >= options.ping_timeout => {
                return Some("its client does not respond to a ping");
            }
            None if now - clock.quiet_since >= options.ping_after => {
                clock.pinged = Some(now);
                connection.ping();
            }
            _ => {}
        }
        if connection.is_leaving() && !heard && connection.streams.is_empty() {
            return Some("its client has no calls while the server stops or after a GOAWAY");
        }
        let is_blocked = connection.is_blocked_for(clock.patience);
        is_blocked.then_some("its client did not take a response (write_timeout)")
    }

    fn poll<H, F, B>(&mut self, context: &mut Context<'_>, handle: &H) -> Poll<io::Result<()>>
    where
        H: Fn(Request<RequestBody>) -> F,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Display> + Send + 'static,
    {
        self.poll_own_call(context);
        loop {
            self.take_parts();
            let is_written = self.poll_write(context)?.is_ready();
            if self.is_closing {
                if !is_written {
                    return Poll::Pending;
                }
                return Pin::new(&mut self.stream).poll_shutdown(context);
            }
            if self.connection.is_over() {
                self.is_closing = true;
                continue;
            }
            if self.connection.out.len() > UNREAD {
                return Poll::Pending;
            }
            if ready!(self.poll_read(context))? == 0 {
                return Poll::Ready(Ok(()));
            }
            self.receive();
            self.begin_calls(handle);
            self.poll_own_call(context);
        }
    }

    /// Goes on with the call that the connection answers itself.
    fn poll_own_call(&mut self, context: &mut Context<'_>) {
        let Some((stream, call)) = &mut self.own_call else { return };
        if !self.connection.streams.contains_key(stream) {
            self.own_call = None;
            return;
        }
        self.connection.mailbox.attend();
        // A panic ends this call alone, as in a task: what is left of it says so when it is dropped.
        let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.own_call = None;
        }
    }

    /// Takes what calls say.
    fn take_parts(&mut self) {
        self.connection.mailbox.take(&mut self.parts);
        for (stream, part) in self.parts.drain(..) {
            self.connection.deliver(stream, part);
        }
        self.connection.release();
        if self.refused.are_too_many() && !self.is_closing {
            self.fail(EndReason::EnhanceYourCalm);
        } else if self.refused.are_many() {
            self.connection.send_away();
        }
    }

    /// Writes what may be sent; ready when that is all.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, io::Error> {
        loop {
            self.connection.send_ready();
            if self.connection.out.len() == 0 {
                break;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.connection.out.slices(&mut slices);
            let slices = slices.get(..count).unwrap_or_default();
            let stream = Pin::new(&mut self.stream);
            let written = match stream.is_write_vectored() {
                true => stream.poll_write_vectored(context, slices),
                false => stream.poll_write(context, slices.first().map_or(&[], |slice| &slice[..])),
            };
            match written? {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => self.connection.out.advance(count),
            }
            self.has_written = true;
        }
        if self.has_written {
            if Pin::new(&mut self.stream).poll_flush(context)?.is_pending() {
                return Ok(Poll::Pending);
            }
            self.has_written = false;
        }
        Ok(Poll::Ready(()))
    }

    /// Reads more input. Returns the number of bytes; 0 at the end.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < self.room.min(INPUT) {
            self.input.reserve(self.room);
        }
        let room = self.input.capacity() - self.input.len();
        let read = pin!(self.stream.read_buf(&mut self.input)).poll(context)?;
        let Poll::Ready(count) = read else {
            if self.input.is_empty() && self.room > INPUT {
                (self.input, self.room) = (BytesMut::new(), INPUT);
            }
            return Poll::Pending;
        };
        if count == room {
            self.room = (2 * self.room).min(LARGE_INPUT);
        }
        self.clock.heard = true;
        Poll::Ready(Ok(count))
    }

    fn receive(&mut self) {
        match self.connection.receive(&mut self.input) {
            Ok(missing) => self.room = self.room.max(missing.min(LARGE_INPUT)),
            Err(reason) => {
                log::debug!("a connection is closed: its client breaks the protocol ({reason:?})");
                self.fail(reason);
            }
        }
    }

    fn fail(&mut self, reason: EndReason) {
        self.connection.fail(reason);
        self.is_closing = true;
    }

    /// Begins the calls that have arrived.
    fn begin_calls<H, F, B>(&mut self, handle: &H)
    where
        H: Fn(Request<RequestBody>) -> F,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Display> + Send + 'static,
    {
        while let Some(arrived) = self.connection.take_arrived() {
            let mailbox = Arc::clone(&self.connection.mailbox);
            let (stream, response) = (arrived.stream, handle(arrived.request));
            let answer = answer(response, arrived.call, mailbox, stream);
            if self.own_call.is_none() && self.connection.is_alone(stream) {
                self.own_call = Some((stream, Box::pin(answer)));
                self.connection.answers(stream, None);
            } else {
                let task = tokio::spawn(answer);
                self.connection.answers(stream, Some(task.abort_handle()));
            }
        }
    }
}
