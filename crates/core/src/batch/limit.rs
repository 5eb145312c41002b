//! How many requests of one model may be in its queues at once, waiting or running.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::guards::lock;
use super::{CountGuard, QueueRequests};
use tensorserve_tensor::error::{Error, Shed};

/// No limit.
const NONE: usize = usize::MAX;

/// The limit of one model, which its versions and their queues share.
#[derive(Debug)]
pub struct ModelLimit {
    model: Arc<str>,
    /// The limit, or [`NONE`].
    most: AtomicUsize,
    /// Requests that count. Without a limit nobody counts them.
    present: AtomicUsize,
    /// The requests of its queues.
    queues: Mutex<Vec<Weak<QueueRequests>>>,
}

impl ModelLimit {
    fn new(model: &Arc<str>) -> Self {
        let (most, present) = (AtomicUsize::new(NONE), AtomicUsize::new(0));
        ModelLimit { model: Arc::clone(model), most, present, queues: Mutex::default() }
    }

    /// Requests of this queue count.
    pub(super) fn add(&self, queue: &Arc<QueueRequests>) {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(queue));
    }

    /// The queues whose requests count.
    pub(super) fn queues(&self) -> Vec<Arc<QueueRequests>> {
        lock(&self.queues).iter().filter_map(Weak::upgrade).collect()
    }

    /// Sets the limit; `None` for no limit. Requests that are in progress stay, and those that
    /// were in progress when a limit came up are not counted.
    pub fn set(&self, most: Option<usize>) {
        self.most.store(most.unwrap_or(NONE), Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.most.load(Relaxed) != NONE
    }

    /// Counts a request until the guard is dropped, unless the limit is reached.
    pub(super) fn enter(&self) -> Option<CountGuard<'_>> {
        let most = self.most.load(Relaxed);
        let more = |present: usize| (present < most).then_some(present + 1);
        self.present.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(CountGuard::counted(&self.present))
    }

    /// Counts a request in the place of one that has been displaced, which leaves in a moment.
    pub(super) fn enter_instead(&self) -> CountGuard<'_> {
        CountGuard::new(&self.present)
    }

    /// The error of a request above the limit.
    pub(super) fn reached(&self) -> Error {
        let (model, most) = (&self.model, self.most.load(Relaxed));
        let error = Error::unavailable(format!(
            "model {model:?} has {most} requests in progress, as many as its \
             max_concurrent_requests allows: try again"
        ));
        error.shed_for(Shed::ConcurrencyLimit)
    }
}

/// The limits of all models in memory.
#[derive(Default)]
pub(super) struct Limits(Mutex<HashMap<Arc<str>, Weak<ModelLimit>>>);

impl Limits {
    /// The limit of `model`.
    pub(super) fn of(&self, model: &Arc<str>) -> Arc<ModelLimit> {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        limits.retain(|_, limit| limit.strong_count() > 0);
        if let Some(limit) = limits.get(model).and_then(Weak::upgrade) {
            return limit;
        }
        let limit = Arc::new(ModelLimit::new(model));
        limits.insert(Arc::clone(model), Arc::downgrade(&limit));
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_requests_enter_than_allowed() {
        let limit = ModelLimit::new(&"m".into());
        assert!(!limit.is_set());
        limit.set(Some(2));
        assert!(limit.is_set());
        let (first, _second) = (limit.enter().expect("one"), limit.enter().expect("two"));
        assert!(limit.enter().is_none());
        let error = limit.reached();
        assert_eq!(error.shed(), Some(Shed::ConcurrencyLimit));
        assert!(error.message().contains("\"m\" has 2 requests"), "{error}");
        // The displaced one leaves later than the other enters.
        let instead = limit.enter_instead();
        drop(first);
        assert!(limit.enter().is_none());
        drop(instead);
        assert!(limit.enter().is_some());
    }

    #[test]
    fn threads_do_not_exceed_a_limit_together() {
        let limit = ModelLimit::new(&"m".into());
        limit.set(Some(3));
        let most = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let guard = limit.enter();
                        if guard.is_some() {
                            most.fetch_max(limit.present.load(Relaxed), Relaxed);
                        }
                    }
                });
            }
        });
        assert!((1..=3).contains(&most.into_inner()));
        assert_eq!(limit.present.into_inner(), 0);
    }

    #[test]
    fn versions_of_a_model_share_its_limit_as_long_as_one_is_in_memory() {
        let limits = Limits::default();
        let (a, other) = (limits.of(&"a".into()), limits.of(&"b".into()));
        assert!(Arc::ptr_eq(&a, &limits.of(&"a".into())) && !Arc::ptr_eq(&a, &other));
        a.set(Some(1));
        drop(a);
        assert!(!limits.of(&"a".into()).is_set());
    }
}
