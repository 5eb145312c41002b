//! Which queue gets the next thread. Whatever is done here takes logarithmic time in the number of queues:
//! the queues of all models share one list, and its lock.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use tensorserve_tensor::priority::Priority;

/// When the next batch of a queue may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// At this time at the latest: until then the batch may grow.
    At(Instant),
    /// When a run has ended: one of the version's that take too long, or one of the queue's on a GPU.
    Held,
}

impl Due {
    pub(super) fn is_past(self, now: Instant) -> bool {
        match self {
            Due::Now => true,
            Due::At(until) => until <= now,
            Due::Held => false,
        }
    }

    /// Whether it is sooner than `time`.
    pub(super) fn is_before(self, time: Instant) -> bool {
        match self {
            Due::Now => true,
            Due::At(until) => until < time,
            Due::Held => false,
        }
    }
}

/// Where a queue is in the list. One that a thread has taken from there keeps its place until the thread
/// has looked at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum QueuePlace {
    #[default]
    Nowhere,
    Ready(Rank),
    Growing(Instant, Rank),
    Held(Rank),
}

/// The priority of a queue and its turn among those of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    priority: Reverse<Priority>,
    turn: u64,
}

/// Queues `Q` with waiting requests, each in one place.
pub(super) struct ReadyList<Q> {
    ready: BTreeMap<Rank, Q>,
    growing: BTreeMap<(Instant, Rank), Q>,
    held: BTreeMap<Rank, Q>,
    turns: u64,
}

impl<Q> Default for ReadyList<Q> {
    fn default() -> Self {
        let (ready, growing, held) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        ReadyList { ready, growing, held, turns: 0 }
    }
}

impl QueuePlace {
    /// The highest priority of the requests for which the queue was put there.
    pub(super) fn priority(self) -> Option<Priority> {
        match self {
            QueuePlace::Nowhere => None,
            QueuePlace::Ready(rank) | QueuePlace::Growing(_, rank) | QueuePlace::Held(rank) => {
                Some(rank.priority.0)
            }
        }
    }
}

impl<Q> ReadyList<Q> {
    /// Puts a queue that is nowhere behind the others of its priority.
    pub(super) fn put(&mut self, queue: Q, due: Due, priority: Priority) -> QueuePlace {
        let rank = Rank { priority: Reverse(priority), turn: self.turns };
        self.turns += 1;
        match due {
            Due::Now => {
                self.ready.insert(rank, queue);
                QueuePlace::Ready(rank)
            }
            Due::At(until) => {
                self.growing.insert((until, rank), queue);
                QueuePlace::Growing(until, rank)
            }
            Due::Held => {
                self.held.insert(rank, queue);
                QueuePlace::Held(rank)
            }
        }
    }

    /// Takes the queue from its place, if no thread has done so.
    pub(super) fn remove(&mut self, place: QueuePlace) -> Option<Q> {
        match place {
            QueuePlace::Nowhere => None,
            QueuePlace::Ready(rank) => self.ready.remove(&rank),
            QueuePlace::Growing(until, rank) => self.growing.remove(&(until, rank)),
            QueuePlace::Held(rank) => self.held.remove(&rank),
        }
    }

    /// Takes the queue whose turn it is.
    pub(super) fn next(&mut self, now: Instant) -> Option<Q> {
        let ready = self.ready.first_key_value().map(|(rank, _)| *rank);
        let grown = self.growing.first_key_value().map(|(key, _)| *key);
        match grown.filter(|(until, _)| *until <= now) {
            Some(key) if ready.is_none_or(|ready| key.1 < ready) => self.growing.remove(&key),
            _ => self.ready.remove(&ready?),
        }
    }

    /// When the next batch has grown.
    pub(super) fn grown_at(&self) -> Option<Instant> {
        self.growing.first_key_value().map(|((until, _), _)| *until)
    }

    /// Lets threads look at all queues that are held.
    pub(super) fn release(&mut self) {
        self.ready.extend(std::mem::take(&mut self.held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn queues_of_one_priority_take_turns_and_higher_ones_come_first() {
        let (mut list, now) = (ReadyList::default(), Instant::now());
        for (queue, priority) in
            [("a", Priority::Normal), ("b", Priority::Normal), ("c", Priority::High)]
        {
            list.put(queue, Due::Now, priority);
        }
        assert_eq!(list.next(now), Some("c"));
        assert_eq!(list.next(now), Some("a"));
        list.put("a", Due::Now, Priority::Normal);
        list.put("c", Due::Now, Priority::Low);
        assert_eq!(
            [list.next(now), list.next(now), list.next(now)],
            [Some("b"), Some("a"), Some("c")]
        );
        assert_eq!(list.next(now), None);
    }

    #[test]
    fn a_batch_grows_until_its_time_and_does_not_keep_others_waiting_then() {
        let (mut list, now) = (ReadyList::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        list.put("ready", Due::Now, Priority::Normal);
        list.put("grows", Due::At(later), Priority::Normal);
        list.put("urgent", Due::At(later), Priority::High);
        assert_eq!((list.next(now), list.next(now)), (Some("ready"), None));
        assert_eq!(list.grown_at(), Some(later));
        list.put("behind", Due::Now, Priority::Normal);
        let order = [list.next(later), list.next(later), list.next(later)];
        assert_eq!(order, [Some("urgent"), Some("grows"), Some("behind")]);
    }

    #[test]
    fn a_queue_is_found_at_its_place_until_a_thread_takes_it() {
        let (mut list, now) = (ReadyList::default(), Instant::now());
        let ready = list.put("a", Due::Now, Priority::Normal);
        let growing = list.put("b", Due::At(now), Priority::Normal);
        let held = list.put("c", Due::Held, Priority::Low);
        assert_eq!(held.priority(), Some(Priority::Low));
        assert_eq!((list.remove(ready), list.remove(ready)), (Some("a"), None));
        assert_eq!((list.remove(growing), list.remove(growing)), (Some("b"), None));
        assert_eq!(list.next(now), None, "it is held");
        list.release();
        assert_eq!(list.remove(held), None, "a thread looks at it next");
        assert_eq!(list.next(now), Some("c"));
    }
}
