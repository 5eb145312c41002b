//! Waiting for sockets and for a moment.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The number under which the timer is registered.
const TIMER: u64 = u64::MAX;

/// An epoll instance with a timer.
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The moment for which the timer is set, on the caller's clock.
    set: Option<u64>,
    events: Vec<Event>,
}

/// What a socket is ready for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) number: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The other side sends nothing more: no further edge will say so.
    pub(crate) is_ending: bool,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // Edges: setting the timer again makes it unready, so its descriptor is never read.
        let interest = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), interest)?;
        Ok(Poller { epoll, timer, set: None, events: Vec::with_capacity(256) })
    }

    /// Reports on a socket from now on, once for each change. It is forgotten when it is closed.
    pub(crate) fn add(&self, socket: impl AsFd, number: usize) -> io::Result<()> {
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(number as u64), interest)?)
    }

    /// Waits until a socket is ready or it is `until`; `now` is the time on the same clock, in nanoseconds.
    pub(crate) fn wait(&mut self, now: u64, until: u64) -> io::Result<()> {
        self.events.clear();
        if self.set != Some(until) {
            // Zero would stop the timer.
            let left = until.saturating_sub(now).max(1);
            let seconds = i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX);
            let value = Timespec { tv_sec: seconds, tv_nsec: (left % 1_000_000_000) as _ };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: never, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
            self.set = Some(until);
        }
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if self.events.iter().any(|event| event.data.u64() == TIMER) {
            self.set = None;
        }
        Ok(())
    }

    /// The sockets that are ready.
    pub(crate) fn ready(&self) -> impl Iterator<Item = Ready> + use<'_> {
        let sockets = self.events.iter().filter(|event| event.data.u64() != TIMER);
        sockets.map(|event| {
            let (flags, data) = (event.flags, event.data.u64());
            let ended = EventFlags::HUP | EventFlags::ERR;
            let is_ending = flags.intersects(EventFlags::RDHUP | ended);
            let readable = is_ending || flags.intersects(EventFlags::IN);
            let writable = flags.intersects(EventFlags::OUT | ended);
            {
                let number = usize::try_from(data).unwrap_or(usize::MAX);
                Ready { number, readable, writable, is_ending }
            }
        })
    }
}
