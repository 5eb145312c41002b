//! Which version gets a request that names none, and what else happens with the requests of a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::watch::LiveComparison;
use super::{ModelHandle, Servable};
use crate::cache::VersionCache;
use crate::config::ModelConfig;
use crate::metrics::{CacheCounters, Metrics, ShadowCounters};
use tensorserve_trace::random;

/// Shares of the ready versions of a model in the requests that name no version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TrafficSplit {
    /// For each version, by its index, the sum of the weights up to it.
    ends: Vec<(u64, usize)>,
    total: u64,
}

impl TrafficSplit {
    /// The shares of the versions `ready`, by number. A label whose version is not ready leaves its
    /// share to the others. `None` if no share is left.
    pub(super) fn new(
        ready: &[i64],
        labels: &BTreeMap<String, i64>,
        weights: &BTreeMap<String, u32>,
    ) -> Option<Self> {
        let (mut ends, mut total) = (Vec::new(), 0);
        for (label, &weight) in weights {
            let number = labels.get(label);
            let index = number.and_then(|number| ready.iter().position(|it| it == number));
            if let Some(index) = index {
                total += u64::from(weight);
                ends.push((total, index));
            }
        }
        (total > 0).then_some(TrafficSplit { ends, total })
    }

    /// The index of the version for a request, at random by weight.
    pub(super) fn draw(&self) -> Option<usize> {
        let (total, random) = (u128::from(self.total), u128::from(random()));
        // The high half of the product is uniform below the total.
        let place = u64::try_from((random * total) >> 64).unwrap_or(0);
        self.ends.iter().find(|(end, _)| place < *end).map(|(_, index)| *index)
    }
}

/// What happens with the requests of a model besides that they are answered. Published with its ready
/// versions.
pub(super) struct Traffic {
    /// Of a version that is watched.
    live: Option<Arc<LiveComparison>>,
    shadow: Option<(Arc<Servable>, ShadowCounters)>,
    cache: Option<CacheCounters>,
}

impl Traffic {
    /// That of a model with these ready versions; `None` if nothing else happens.
    pub(super) fn new(
        model: &Arc<str>,
        ready: &[Arc<Servable>],
        live: Option<Arc<LiveComparison>>,
        config: &ModelConfig,
        metrics: &Metrics,
    ) -> Option<Arc<Self>> {
        let label = config.traffic.shadow.as_ref();
        let number = label.and_then(|label| config.labels.get(label));
        let shadow = number.and_then(|&number| ready.iter().find(|it| it.version() == number));
        let shadow = shadow.map(|it| (Arc::clone(it), metrics.shadow(model)));
        let is_cached =
            config.traffic.response_cache && ready.iter().any(|it| it.cache().is_some());
        let cache = is_cached.then(|| metrics.cache(model));
        let has_any = live.is_some() || shadow.is_some() || cache.is_some();
        has_any.then(|| Arc::new(Traffic { live, shadow, cache }))
    }
}

/// The version that gets a copy of a request, kept in memory.
pub(crate) struct ShadowHandle(ShadowAim);

enum ShadowAim {
    /// The shadow version of the model's settings.
    Configured(Arc<Traffic>),
    /// The version before the one that answers.
    Before(Arc<LiveComparison>),
}

impl ShadowHandle {
    /// The version. `None` never, in practice.
    pub(crate) fn version(&self) -> Option<&Servable> {
        match &self.0 {
            ShadowAim::Configured(traffic) => traffic.shadow.as_ref().map(|(it, _)| &**it),
            ShadowAim::Before(live) => Some(live.old()),
        }
    }

    /// The model's counters of shadow requests, if the version is that of the settings.
    pub(crate) fn counters(&self) -> Option<&ShadowCounters> {
        match &self.0 {
            ShadowAim::Configured(traffic) => traffic.shadow.as_ref().map(|(_, it)| it),
            ShadowAim::Before(_) => None,
        }
    }

    /// What compares its answers, if it is the version before the one that answers.
    pub(crate) fn live(&self) -> Option<&LiveComparison> {
        match &self.0 {
            ShadowAim::Configured(_) => None,
            ShadowAim::Before(live) => Some(live),
        }
    }
}

/// The response cache as one version uses it.
#[derive(Clone, Copy)]
pub(crate) struct CacheUse<'h> {
    pub(crate) responses: &'h VersionCache,
    pub(crate) counters: &'h CacheCounters,
}

impl ModelHandle {
    /// The version that gets a copy of the requests that this one answers.
    pub(crate) fn shadow(&self) -> Option<ShadowHandle> {
        let traffic = self.traffic.as_ref()?;
        if let Some(live) = traffic.live.as_ref().filter(|live| live.wants(self.version())) {
            return Some(ShadowHandle(ShadowAim::Before(Arc::clone(live))));
        }
        let (version, _) = traffic.shadow.as_ref()?;
        (version.version() != self.version())
            .then(|| ShadowHandle(ShadowAim::Configured(Arc::clone(traffic))))
    }

    /// The response cache, if this version's responses are cached.
    pub(crate) fn response_cache(&self) -> Option<CacheUse<'_>> {
        let counters = self.traffic.as_ref()?.cache.as_ref()?;
        Some(CacheUse { responses: self.cache()?, counters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(
        ready: &[i64],
        labels: &[(&str, i64)],
        weights: &[(&str, u32)],
    ) -> Option<TrafficSplit> {
        let labels = labels.iter().map(|&(label, version)| (label.to_owned(), version)).collect();
        let weights = weights.iter().map(|&(label, weight)| (label.to_owned(), weight)).collect();
        TrafficSplit::new(ready, &labels, &weights)
    }

    fn shares(split: &TrafficSplit, draws: u32) -> BTreeMap<usize, u32> {
        let mut shares = BTreeMap::new();
        for _ in 0..draws {
            *shares.entry(split.draw().expect("a version")).or_default() += 1;
        }
        shares
    }

    #[test]
    fn versions_are_drawn_by_weight() {
        let labels = [("canary", 5), ("stable", 4)];
        let split = split(&[4, 5], &labels, &[("canary", 5), ("stable", 95)]).expect("a split");
        let shares = shares(&split, 100_000);
        // 5000 are expected, with a standard deviation of 69.
        assert!((4000..6000).contains(&shares[&1]), "{shares:?}");
        assert_eq!(shares[&0] + shares[&1], 100_000);
    }

    #[test]
    fn the_share_of_a_version_that_is_not_ready_goes_to_the_others() {
        let labels = [("a", 1), ("b", 2), ("c", 3)];
        let weights = [("a", 98), ("b", 1), ("c", 1)];
        let two = split(&[2, 3], &labels, &weights).expect("a split");
        let shares = shares(&two, 10_000);
        assert!(shares.keys().eq(&[0, 1]) && shares[&0] > 4000 && shares[&1] > 4000, "{shares:?}");
        assert_eq!(split(&[7], &labels, &weights), None);
        assert_eq!(split(&[1], &[], &weights), None, "labels were removed");
        assert_eq!(split(&[1], &labels, &[]), None);
    }

    #[test]
    fn the_largest_weights_do_not_overflow() {
        let labels = [("a", 1), ("b", 2), ("c", 1)];
        let weights = [("a", u32::MAX), ("b", 1), ("c", u32::MAX)];
        let split = split(&[1, 2], &labels, &weights).expect("a split");
        assert!(shares(&split, 1000)[&0] > 990);
    }
}
