//! A thread of the load: its connections, and its share of the arrivals.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::connection::{ConnectionStage, ConnectionStep, LoadConnection};
use crate::cost::ThreadCost;
use crate::pace::Pace;
use crate::plan::{LoadTls, WireRequest};
use crate::poller::Poller;
use crate::recorder::{Recorder, ThreadTotals};
use crate::results::{FailureKind, FailureSample};

/// Between two attempts to connect.
const RECONNECT: u64 = 50_000_000;

/// How often requests are looked through for those that have taken too long.
const CHECK: u64 = 100_000_000;

/// The longest time after the end for which responses are awaited.
const DRAIN: u64 = 5_000_000_000;

/// How large a piece of a response is read at once.
const BUFFER: usize = 64 << 10;

/// The end of the run, in nanoseconds from its start, which may be moved to an earlier time.
pub(crate) type End = Arc<AtomicU64>;

/// What a thread is given.
pub(crate) struct Share {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<LoadTls>,
    pub(crate) requests: Arc<Vec<WireRequest>>,
    pub(crate) connections: Vec<LoadConnection>,
    pub(crate) pace: Option<Pace>,
    pub(crate) timeout: Duration,
    pub(crate) start: Instant,
    pub(crate) end: End,
    /// The number of its first request, and the step to the next: threads take turns.
    pub(crate) first: usize,
    pub(crate) step: usize,
    pub(crate) recorder: Recorder,
}

pub(crate) struct LoadThread {
    share: Share,
    poller: Poller,
    idle: VecDeque<usize>,
    in_flight: usize,
    next_request: usize,
    timeout: u64,
    next_check: u64,
    /// Since when no attempt to connect has succeeded.
    refused_since: Option<u64>,
    buffer: Vec<u8>,
    /// What the thread had cost at the start of the measured time.
    before: Option<ThreadCost>,
    /// The end has passed.
    is_over: bool,
}

impl LoadThread {
    pub(crate) fn new(share: Share) -> io::Result<Self> {
        let poller = Poller::new()?;
        for (number, connection) in share.connections.iter().enumerate() {
            if let Some(stream) = connection.stream() {
                poller.add(stream, number)?;
            }
        }
        let idle = (0..share.connections.len()).collect();
        let timeout = u64::try_from(share.timeout.as_nanos()).unwrap_or(u64::MAX);
        Ok(LoadThread {
            poller,
            idle,
            in_flight: 0,
            next_request: share.first,
            timeout,
            next_check: CHECK.min(timeout),
            refused_since: None,
            buffer: vec![0; BUFFER],
            before: None,
            is_over: false,
            share,
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.share.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Runs until the end, and then until what is in flight is answered.
    pub(crate) fn run(mut self) -> io::Result<ThreadTotals> {
        loop {
            let now = self.now();
            let end = self.share.end.load(Relaxed);
            let refused_for = self.refused_for(now);
            self.share.recorder.turn(now, end, refused_for);
            if self.before.is_none() && self.share.recorder.counts(now) {
                self.before = Some(ThreadCost::read(now));
            }
            if now >= self.next_check {
                self.next_check = now + CHECK.min(self.timeout / 4 + 1);
                self.check_timeouts(now);
                self.reconnect(now);
            }
            if now < end {
                self.send_due(now);
            } else if !self.is_over {
                // A thread that wakes up after the end has requests left that were due before it.
                self.is_over = true;
                if self.share.pace.is_some() {
                    self.send_due(end.saturating_sub(1));
                }
            }
            let patience = end.saturating_add(self.timeout.min(DRAIN));
            if now >= end && (self.in_flight == 0 || now >= patience) {
                return Ok(self.finish(now, end));
            }
            let until = self.wake_at(end);
            self.poller.wait(self.now(), until)?;
            self.handle();
        }
    }

    fn refused_for(&self, now: u64) -> u64 {
        self.refused_since.map_or(0, |since| now.saturating_sub(since).max(1))
    }

    /// The next moment at which there is something to do.
    fn wake_at(&self, end: u64) -> u64 {
        // A window that ends after the end is closed with the run.
        let window = self.share.recorder.window_end();
        let until = if window < end { self.next_check.min(window) } else { self.next_check };
        // The end may be moved at any time; the check of timeouts notices it.
        if self.now() >= end {
            return until;
        }
        match &self.share.pace {
            Some(pace) if !self.idle.is_empty() => until.min(end).min(pace.due()),
            _ => until.min(end),
        }
    }

    /// Sends what is due, as far as connections are free.
    fn send_due(&mut self, now: u64) {
        let Some(mut due) = self.share.pace.as_ref().map(Pace::due) else {
            while let Some(number) = self.idle.pop_front() {
                let sent = self.now();
                self.send(number, sent, sent);
            }
            return;
        };
        let end = self.share.end.load(Relaxed);
        let mut now = now;
        while due <= now && due < end {
            let Some(number) = self.idle.pop_front() else { return };
            now = self.now();
            let idle_since = self.share.connections.get(number).map_or(0, |c| c.idle_since);
            if self.share.recorder.counts(due) {
                if idle_since > due {
                    self.share.recorder.waited();
                }
                self.share.recorder.lag(now.saturating_sub(due.max(idle_since)));
            }
            self.send(number, due, now);
            if let Some(pace) = &mut self.share.pace {
                pace.advance();
                due = pace.due();
            }
        }
    }

    fn send(&mut self, number: usize, due: u64, sent: u64) {
        let request = self.next_request % self.share.requests.len().max(1);
        self.next_request = request + self.share.step;
        let requests = Arc::clone(&self.share.requests);
        let Some(connection) = self.share.connections.get_mut(number) else { return };
        self.in_flight += 1;
        let step = connection.send(&requests, LoadConnection::flight(request, due, sent));
        self.take(number, step);
    }

    fn handle(&mut self) {
        let ready: Vec<_> = self.poller.ready().collect();
        let requests = Arc::clone(&self.share.requests);
        for event in ready {
            if event.writable
                && let Some(connection) = self.share.connections.get_mut(event.number)
            {
                let step = connection.writable(&requests);
                self.take(event.number, step);
            }
            if event.readable
                && let Some(connection) = self.share.connections.get_mut(event.number)
            {
                let step = connection.readable(&requests, &mut self.buffer, event.is_ending);
                self.take(event.number, step);
            }
        }
    }

    /// Counts what a connection has done, and decides what it does next.
    fn take(&mut self, number: usize, step: ConnectionStep) {
        if matches!(step, ConnectionStep::Waits) {
            return;
        }
        let now = self.now();
        let Some(connection) = self.share.connections.get_mut(number) else { return };
        match step {
            ConnectionStep::Waits => {}
            ConnectionStep::Connected => {
                connection.idle_since = now;
                self.refused_since = None;
                self.share.recorder.reconnected();
                self.idle.push_back(number);
            }
            ConnectionStep::Answered => {
                self.refused_since = None;
                self.in_flight = self.in_flight.saturating_sub(1);
                let flight = connection.flight;
                let answer = connection.answer(&self.share.requests);
                let recorder = &mut self.share.recorder;
                if now < self.share.end.load(Relaxed) && answer.is_success {
                    recorder.completed(now);
                }
                if recorder.counts(flight.due) {
                    recorder.answered(&answer, now.saturating_sub(flight.due));
                    let sent =
                        self.share.requests.get(flight.request).map_or(0, WireRequest::length);
                    recorder.bytes(sent, connection.received);
                    if !answer.is_success {
                        recorder.sample(|| FailureSample::of_status(answer.status, answer.text));
                    }
                }
                if answer.closes {
                    self.lose(number, now);
                } else {
                    connection.idle_since = now;
                    connection.stage = ConnectionStage::Idle;
                    self.idle.push_back(number);
                }
            }
            ConnectionStep::Left => self.lose(number, now),
            ConnectionStep::Failed(kind, why) => {
                if connection.stage == ConnectionStage::Busy {
                    self.fail(number, kind, why, now);
                } else {
                    self.share.recorder.sample(|| FailureSample::of_kind(kind, &why));
                }
                if kind == FailureKind::Connect {
                    let _ = self.refused_since.get_or_insert(now);
                }
                let delay = if kind == FailureKind::Connect { RECONNECT } else { 0 };
                self.lose(number, now + delay);
            }
        }
    }

    /// Counts a request that has failed.
    fn fail(&mut self, number: usize, kind: FailureKind, why: String, now: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(connection) = self.share.connections.get(number) else { return };
        let flight = connection.flight;
        if self.share.recorder.counts(flight.due) {
            self.share.recorder.failed(kind, now.saturating_sub(flight.due));
            self.share.recorder.sample(|| FailureSample::of_kind(kind, &why));
        }
    }

    /// Closes a connection, and connects again at `at` or later.
    fn lose(&mut self, number: usize, at: u64) {
        self.idle.retain(|idle| *idle != number);
        let now = self.now();
        let Some(connection) = self.share.connections.get_mut(number) else { return };
        connection.close(at);
        if at > now {
            return;
        }
        let opened = connection.reopen(self.share.address, self.share.tls.as_ref());
        let added = opened.and_then(|()| match connection.stream() {
            Some(stream) => self.poller.add(stream, number),
            None => Ok(()),
        });
        if let Err(error) = added {
            connection.close(now.saturating_add(RECONNECT));
            let _ = self.refused_since.get_or_insert(now);
            let why = error.to_string();
            self.share.recorder.sample(|| FailureSample::of_kind(FailureKind::Connect, &why));
        }
    }

    /// Connects what has waited for it.
    fn reconnect(&mut self, now: u64) {
        for number in 0..self.share.connections.len() {
            let stage = self.share.connections.get(number).map(|connection| connection.stage);
            if let Some(ConnectionStage::Closed(until)) = stage
                && until <= now
            {
                self.lose(number, now);
            }
        }
    }

    fn check_timeouts(&mut self, now: u64) {
        for number in 0..self.share.connections.len() {
            let Some(connection) = self.share.connections.get(number) else { continue };
            let is_late = now.saturating_sub(connection.flight.sent) >= self.timeout;
            if connection.stage == ConnectionStage::Busy && is_late {
                let why = format!("no response in {:?}", self.share.timeout);
                self.fail(number, FailureKind::Timeout, why, now);
                self.lose(number, now);
            }
        }
    }

    /// Counts what has not been answered, and what has not been sent.
    fn finish(mut self, now: u64, end: u64) -> ThreadTotals {
        for number in 0..self.share.connections.len() {
            if self.share.connections.get(number).is_some_and(|c| c.stage == ConnectionStage::Busy)
            {
                let why = "no response until the end of the run".to_owned();
                self.fail(number, FailureKind::Timeout, why, now);
            }
        }
        let mut unsent = 0;
        if let Some(pace) = &mut self.share.pace {
            while pace.due() < end {
                unsent += u64::from(self.share.recorder.counts(pace.due()));
                pace.advance();
            }
        }
        self.share.recorder.unsent(unsent);
        let refused_for = self.refused_for(now);
        let after = ThreadCost::read(self.now());
        let cost = self.before.map_or(ThreadCost::default(), |before| after.since(before));
        self.share.recorder.finish(refused_for, cost)
    }
}
