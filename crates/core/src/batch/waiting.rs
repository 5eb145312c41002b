//! The requests of one queue that wait for a thread, in the order in which they run.
//!
//! Whatever is done here while the queue is locked takes logarithmic time: requests are as many as a client
//! likes to send, and others wait for the lock.

use std::collections::BTreeMap;
use std::time::Instant;

use super::task::{WaitingTask, WaitingTasks};
use tensorserve_tensor::priority::Priority;

/// Where a request is among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskKey {
    priority: Priority,
    number: u64,
}

/// Requests that wait.
#[derive(Default)]
pub(super) struct WaitingRequests {
    /// The requests of each priority, the highest first, in the order of their arrival.
    levels: [Level; 3],
    /// Requests that have come.
    entered: u64,
}

#[derive(Default)]
struct Level {
    tasks: BTreeMap<u64, WaitingTask>,
    rows: usize,
}

impl Level {
    fn taken(&mut self, waiter: &WaitingTask) {
        self.rows -= waiter.size();
    }
}

impl WaitingRequests {
    fn level(&mut self, priority: Priority) -> &mut Level {
        let [high, normal, low] = &mut self.levels;
        match priority {
            Priority::High => high,
            Priority::Normal => normal,
            Priority::Low => low,
        }
    }

    fn levels(&self) -> impl DoubleEndedIterator<Item = (Priority, &Level)> {
        Priority::ALL.into_iter().zip(&self.levels)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.levels.iter().all(|level| level.tasks.is_empty())
    }

    /// The rows of all of them.
    pub(super) fn rows(&self) -> usize {
        self.levels.iter().map(|level| level.rows).sum()
    }

    /// The rows of those of at least this priority; `None` if there are none.
    pub(super) fn rows_from(&self, priority: Priority) -> Option<usize> {
        let levels = self.levels().filter(|(level, _)| *level >= priority);
        let present = levels.filter(|(_, level)| !level.tasks.is_empty());
        present.map(|(_, level)| level.rows).reduce(|a, b| a + b)
    }

    /// The highest priority of one of them.
    pub(super) fn highest(&self) -> Option<Priority> {
        Some(self.levels().find(|(_, level)| !level.tasks.is_empty())?.0)
    }

    /// The lowest priority of one of them.
    pub(super) fn lowest(&self) -> Option<Priority> {
        Some(self.levels().rev().find(|(_, level)| !level.tasks.is_empty())?.0)
    }

    /// When the one that waits longest was queued.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let first = |level: &Level| Some(level.tasks.first_key_value()?.1.task.queued);
        self.levels.iter().filter_map(first).min()
    }

    /// Adds a request behind the others of its priority.
    pub(super) fn add(&mut self, waiter: WaitingTask) -> TaskKey {
        let key = TaskKey { priority: waiter.task.priority, number: self.entered };
        self.entered += 1;
        let level = self.level(key.priority);
        level.rows += waiter.size();
        level.tasks.insert(key.number, waiter);
        key
    }

    /// Takes this request, if it still waits.
    pub(super) fn remove(&mut self, key: TaskKey) -> Option<WaitingTask> {
        let level = self.level(key.priority);
        let waiter = level.tasks.remove(&key.number)?;
        level.taken(&waiter);
        Some(waiter)
    }

    /// Takes the newest of the requests of the lowest priority, if that is below `priority`.
    pub(super) fn pop_below(&mut self, priority: Priority) -> Option<WaitingTask> {
        let lowest = self.lowest().filter(|lowest| *lowest < priority)?;
        let level = self.level(lowest);
        let (_, waiter) = level.tasks.pop_last()?;
        level.taken(&waiter);
        Some(waiter)
    }

    /// Takes all of them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = WaitingTask> + use<> {
        let levels = std::mem::take(&mut self.levels);
        levels.into_iter().flat_map(|level| level.tasks.into_values())
    }

    /// All of them in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskKey, &WaitingTask)> {
        self.levels().flat_map(|(priority, level)| {
            let tasks = level.tasks.iter();
            tasks.map(move |(&number, waiter)| (TaskKey { priority, number }, waiter))
        })
    }

    /// How many wait, and how long.
    pub(super) fn summary(&self) -> WaitingTasks {
        let mut all = WaitingTasks { oldest: self.oldest(), ..WaitingTasks::default() };
        for (priority, level) in self.levels() {
            all.count += level.tasks.len();
            all.priorities.add(priority, level.tasks.len());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::BatchTask;
    use super::*;
    use tokio::sync::oneshot;

    fn waiter(priority: Priority, rows: usize) -> WaitingTask {
        let queued = Instant::now();
        let task =
            BatchTask { inputs: vec![], rows, deadline: None, queued, priority, trace: None };
        WaitingTask { task, reply: oneshot::channel().0 }
    }

    fn rows(waiting: &WaitingRequests) -> Vec<usize> {
        waiting.iter().map(|(_, waiter)| waiter.task.rows).collect()
    }

    #[test]
    fn higher_priorities_come_first_and_equal_ones_in_the_order_of_their_arrival() {
        let mut waiting = WaitingRequests::default();
        let normal = waiting.add(waiter(Priority::Normal, 1));
        for (priority, rows) in [(Priority::Low, 2), (Priority::High, 3), (Priority::Normal, 4)] {
            waiting.add(waiter(priority, rows));
        }
        assert_eq!(rows(&waiting), [3, 1, 4, 2]);
        assert_eq!(
            (waiting.highest(), waiting.lowest()),
            (Some(Priority::High), Some(Priority::Low))
        );
        assert_eq!(waiting.rows(), 10);
        assert_eq!(waiting.rows_from(Priority::Normal), Some(8));
        assert_eq!(waiting.remove(normal).expect("it waits").task.rows, 1);
        assert!(waiting.remove(normal).is_none(), "it is gone");
        assert_eq!(rows(&waiting), [3, 4, 2]);
        assert_eq!(waiting.summary().count, 3);
        assert_eq!(waiting.summary().priorities.of(Priority::High), 1);
    }

    #[test]
    fn the_newest_of_the_lowest_priority_makes_room() {
        let mut waiting = WaitingRequests::default();
        for (priority, rows) in [(Priority::Low, 1), (Priority::Low, 2), (Priority::Normal, 3)] {
            waiting.add(waiter(priority, rows));
        }
        assert!(waiting.pop_below(Priority::Low).is_none());
        assert_eq!(waiting.pop_below(Priority::Normal).expect("the last").task.rows, 2);
        assert_eq!(waiting.pop_below(Priority::High).expect("the first").task.rows, 1);
        assert_eq!(waiting.pop_below(Priority::High).expect("the normal one").task.rows, 3);
        assert!(waiting.pop_below(Priority::High).is_none());
        assert_eq!((waiting.rows(), waiting.rows_from(Priority::Low)), (0, None));
    }

    #[test]
    fn a_request_that_was_taken_with_all_others_is_not_mistaken_for_a_later_one() {
        let mut waiting = WaitingRequests::default();
        let before = waiting.add(waiter(Priority::Normal, 1));
        assert_eq!(waiting.take_all().count(), 1);
        assert!(waiting.is_empty() && waiting.rows() == 0);
        waiting.add(waiter(Priority::Normal, 2));
        assert!(waiting.remove(before).is_none());
    }
}
