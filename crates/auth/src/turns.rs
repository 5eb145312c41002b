//! Queues that are served in turn, one per client, so that a client with many entries delays only
//! its own.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Queues of `T`, one for each `K` that has entries.
pub(super) struct FairQueue<K, T> {
    queues: HashMap<K, VecDeque<T>>,
    /// The keys with entries, in the order in which they are served.
    turns: VecDeque<K>,
    len: usize,
    most_per_key: usize,
    most: usize,
}

impl<K: Copy + Eq + Hash, T> FairQueue<K, T> {
    /// A queue of at most `most` entries, and at most `most_per_key` with the same key.
    pub(super) fn new(most_per_key: usize, most: usize) -> Self {
        FairQueue { queues: HashMap::new(), turns: VecDeque::new(), len: 0, most_per_key, most }
    }

    /// Adds an entry, and returns the one that had to leave for it: if there are too many, the last
    /// one of the key with the most. That may be the entry itself.
    pub(super) fn push(&mut self, key: K, entry: T) -> Option<T> {
        let own = self.queues.get(&key).map_or(0, VecDeque::len);
        if own >= self.most_per_key {
            return Some(entry);
        }
        let mut displaced = None;
        if self.len >= self.most {
            let longest = self.turns.iter().copied().max_by_key(|key| self.length_of(key));
            match longest.filter(|longest| self.length_of(longest) > own + 1) {
                Some(longest) => displaced = self.displace(&longest),
                None => return Some(entry),
            }
        }
        if own == 0 {
            self.turns.push_back(key);
        }
        self.queues.entry(key).or_default().push_back(entry);
        self.len += 1;
        displaced
    }

    /// Removes the next entry.
    pub(super) fn pop(&mut self) -> Option<T> {
        let key = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&key)?;
        let entry = queue.pop_front()?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        Some(entry)
    }

    fn length_of(&self, key: &K) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Removes the last of at least two entries with this key.
    fn displace(&mut self, key: &K) -> Option<T> {
        let entry = self.queues.get_mut(key)?.pop_back()?;
        self.len -= 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(queue: &mut FairQueue<char, u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn keys_are_served_in_turn() {
        let mut queue = FairQueue::new(10, 100);
        for entry in 0..5 {
            assert_eq!(queue.push('a', entry), None);
        }
        assert_eq!(queue.pop(), Some(0));
        assert_eq!(queue.push('b', 10), None);
        assert_eq!(queue.push('b', 11), None);
        assert_eq!(queue.push('c', 20), None);
        assert_eq!(rest(&mut queue), [1, 10, 20, 2, 11, 3, 4]);
        assert!(queue.queues.is_empty() && queue.turns.is_empty() && queue.len == 0);
    }

    #[test]
    fn a_key_has_a_bounded_number_of_entries() {
        let mut queue = FairQueue::new(2, 100);
        assert_eq!(queue.push('a', 1), None);
        assert_eq!(queue.push('a', 2), None);
        assert_eq!(queue.push('a', 3), Some(3));
        assert_eq!(queue.push('b', 4), None);
        assert_eq!(rest(&mut queue), [1, 4, 2]);
    }

    #[test]
    fn a_new_entry_displaces_the_last_one_of_the_longest_queue() {
        let mut queue = FairQueue::new(10, 4);
        for (key, entry) in [('a', 1), ('a', 2), ('a', 3), ('b', 4)] {
            assert_eq!(queue.push(key, entry), None);
        }
        assert_eq!(queue.push('c', 5), Some(3));
        assert_eq!(queue.push('a', 6), Some(6), "its own queue is the longest");
        assert_eq!(queue.push('b', 7), Some(7), "no queue would stay as long as its own");
        assert_eq!(rest(&mut queue), [1, 4, 5, 2]);
    }
}
