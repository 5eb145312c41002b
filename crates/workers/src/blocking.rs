//! Waits of a thread without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// The interval at which a value is looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future that needs no runtime; `None` if it is not complete at the deadline.
pub(super) fn wait_until<F: Future>(future: F, deadline: Instant) -> Option<F::Output> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// Waits until there is a value, at most for `time`.
pub(super) fn wait_for<T: Clone>(value: &watch::Receiver<Option<T>>, time: Duration) -> Option<T> {
    let deadline = Instant::now() + time;
    loop {
        let found = value.borrow().clone();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[test]
    fn a_thread_waits_for_another_one_or_until_the_deadline() {
        let (sender, receiver) = oneshot::channel();
        let sending = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            sender.send(7)
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        assert_eq!(wait_until(receiver, deadline), Some(Ok(7)));
        assert_eq!(sending.join().expect("sent"), Ok(()));
        let (_sender, receiver) = oneshot::channel::<u8>();
        assert_eq!(wait_until(receiver, Instant::now() + Duration::from_millis(5)), None);
    }

    #[test]
    fn a_value_is_waited_for_within_bounds() {
        let (sender, receiver) = watch::channel(None);
        assert_eq!(wait_for::<u8>(&receiver, Duration::from_millis(5)), None);
        sender.send(Some(3)).expect("a receiver");
        assert_eq!(wait_for(&receiver, Duration::from_secs(30)), Some(3));
    }
}
