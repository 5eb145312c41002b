//! Status and history once a second, as server-sent events.
//!
//! The thread that writes the history encodes the part that is the same for all listeners once; each
//! stream adds its client. A slow listener misses seconds and keeps at most one in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::sync::watch;

use super::status::{PointView, beginning};
use super::{ConsoleClient, ConsoleState, text};
use tensorserve_auth::Permission;
use tensorserve_protocol::{Chunks, Failure, Methods, Reply, RouteGroup};
use tensorserve_tensor::error::{Error, Result};

/// The most listeners at a time.
const MOST: usize = 100;

/// Places among them that only admins get, so that other roles cannot take all.
const FOR_ADMINS: usize = 20;

/// The longest duration of a stream. After it the client must connect again, which authorizes it again.
const LONGEST: Duration = Duration::from_secs(300);

const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The start of a stream: the time to wait before reconnecting, in milliseconds.
const RETRY: &str = "retry: 1000\n\n";

/// Adds the route.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    group
        .immediate(Methods::GetOnly, "/api/v1/stream", Permission::Read, |state, request| {
            state.stream(&state.client(&request)).map_err(Failure::from)
        })
        .own_host()
        .summary("Stream the status and the history once a second, as server-sent events")
        .response(EVENTS, serde_json::json!({ "type": "string" }));
}

/// The open streams.
#[derive(Default)]
pub(super) struct Streams {
    seconds: watch::Sender<StreamedSecond>,
    listeners: Arc<AtomicUsize>,
}

/// The events of one second, without the client-specific part.
#[derive(Clone, Default)]
struct StreamedSecond {
    text: Bytes,
    is_last: bool,
}

/// Counts a listener until this is dropped.
struct StreamListener(Arc<AtomicUsize>);

impl Drop for StreamListener {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Streams {
    fn enter(&self, is_admin: bool) -> Result<StreamListener> {
        let most = if is_admin { MOST } else { MOST - FOR_ADMINS };
        let listener = StreamListener(Arc::clone(&self.listeners));
        if self.listeners.fetch_add(1, SeqCst) >= most {
            let message = format!(
                "{most} clients are already connected to the stream; poll /api/v1/status instead"
            );
            return Err(Error::unavailable(message));
        }
        Ok(listener)
    }
}

impl ConsoleState {
    /// Sends the status to all listeners. Called once a second, and when the server stops.
    pub(super) fn update_streams(&self) {
        let is_last = self.engine().is_stopping();
        if self.streams.listeners.load(SeqCst) > 0 || is_last {
            self.streams.seconds.send_replace(StreamedSecond { text: self.second(), is_last });
        }
    }

    fn second(&self) -> Bytes {
        let status = self.status_for_all();
        let point =
            self.engine().metrics().last_second().map(|point| text(&PointView::new(&point)));
        let point = point.map(|point| format!("event: point\ndata: {point}\n\n"));
        format!("{status}\n\n{}", point.unwrap_or_default()).into()
    }

    /// The response to `GET /api/v1/stream`.
    ///
    /// # Errors
    /// If too many clients are connected.
    fn stream(&self, client: &ConsoleClient) -> Result<Reply> {
        let listener = self.streams.enter(client.is_admin())?;
        let seconds = self.streams.seconds.subscribe();
        let who = Bytes::from(format!("event: status\ndata: {}", beginning(client)));
        let first = [RETRY.as_bytes(), &who, &self.second()].concat();
        let mut reply = Reply::ok(EVENTS, first);
        if !self.engine().is_stopping() {
            reply.more = Some(events(seconds, listener, who));
        }
        Ok(reply)
    }
}

/// The events after the first ones.
fn events(
    seconds: watch::Receiver<StreamedSecond>,
    listener: StreamListener,
    who: Bytes,
) -> Chunks {
    let end = Instant::now() + LONGEST;
    let state = (seconds, listener, None::<StreamedSecond>);
    Box::pin(unfold(state, move |(mut seconds, listener, second)| {
        let who = who.clone();
        async move {
            // The client-specific part has been sent; the common part follows.
            if let Some(second) = second {
                let ends = second.is_last || Instant::now() >= end;
                let next = (seconds, listener, None);
                return Some((second.text, if ends { ended(next) } else { next }));
            }
            seconds.changed().await.ok()?;
            let second = seconds.borrow_and_update().clone();
            Some((who, (seconds, listener, Some(second))))
        }
    }))
}

type StreamState = (watch::Receiver<StreamedSecond>, StreamListener, Option<StreamedSecond>);

/// A state without further events.
fn ended((_, listener, second): StreamState) -> StreamState {
    (watch::channel(StreamedSecond::default()).1, listener, second)
}
