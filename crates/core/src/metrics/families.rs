//! The metrics that are counted, or set, where something happens. Each is one field of [`Families`].

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::histogram::Histogram;
use super::sharded::{ShardedCounter, ShardedGauge};
use super::tally::{ROW_LIMITS, TIME_LIMITS};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    pub(super) model: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) signature: Arc<str>,
    pub(super) protocol: &'static str,
    pub(super) method: &'static str,
    pub(super) code: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct SignatureLabels {
    pub(super) model: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) signature: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct VersionLabels {
    pub(super) model: Arc<str>,
    pub(super) version: Arc<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ModelResultLabels {
    pub(super) model: Arc<str>,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FormLabels {
    pub(super) model: Arc<str>,
    pub(super) kind: &'static str,
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabels {
    pub(super) result: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReasonLabels {
    pub(super) reason: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PriorityLabels {
    pub(super) priority: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct LocationLabels {
    pub(super) location: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct BuildLabels {
    pub(super) version: &'static str,
}

/// Buckets of a histogram, as a constructor that a [`Family`] can clone. Values are integers; the
/// exported unit is `per_unit` of them.
#[derive(Clone, Copy)]
pub(super) struct Buckets {
    limits: &'static [f64],
    per_unit: f64,
}

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.limits, self.per_unit)
    }
}

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;

pub(super) const SECONDS: Buckets = Buckets { limits: &TIME_LIMITS, per_unit: NANOS };

pub(super) const ROWS: Buckets = Buckets { limits: &ROW_LIMITS, per_unit: 1.0 };

/// Loads take from milliseconds to minutes.
const LOAD_SECONDS: Buckets = Buckets {
    limits: &[1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10, 2e10, 6e10, 1.2e11, 3e11],
    per_unit: NANOS,
};

type Counters<L> = Family<L, Counter>;
type Gauges<L> = Family<L, Gauge>;
pub(super) type Histograms<L> = Family<L, Histogram, Buckets>;

/// Declares metrics as the fields of a struct, each of which is registered under its name, with its
/// doc comment as its help. A histogram also has its buckets, after `=`.
macro_rules! families {
    (
        $(#[$attribute:meta])*
        pub(super) struct $families:ident {
            $($(#[doc = $help:literal])+ $name:ident: $type:ty $(= $buckets:expr)?,)+
        }
    ) => {
        $(#[$attribute])*
        pub(super) struct $families {
            $($(#[doc = $help])+ pub(super) $name: $type,)+
        }

        impl $families {
            /// Registers all of them. The page has them in the order of their declarations.
            pub(super) fn register(registry: &mut Registry) -> Self {
                let families = $families { $($name: families!(@new $type $(, $buckets)?),)+ };
                $(
                    let text = help(&[$($help),+]);
                    registry.register(stringify!($name), text, families.$name.clone());
                )+
                families
            }

            /// Gives each of them a series, so that the page has all of them.
            #[cfg(test)]
            pub(super) fn sample(&self) {
                $(tests::Sample::sample(&self.$name);)+
            }
        }
    };
    (@new $type:ty) => { <$type>::default() };
    (@new $type:ty, $buckets:expr) => { <$type>::new_with_constructor($buckets) };
}

/// The help of a metric, from the lines of its doc comment. The registry adds the full stop.
fn help(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ").trim_end_matches('.').to_owned()
}

families! {
    /// All of them. The names on the page begin with `tensorserve_`, and those of counters end in
    /// `_total`. The unit of a value is in the name.
    pub(super) struct Families {
        /// Inference requests answered.
        requests: Family<RequestLabels, ShardedCounter>,
        /// Time from the end of a request's headers to its response.
        request_duration_seconds: Histograms<RequestLabels> = SECONDS,
        /// Queue delay of requests that waited for a batch.
        queue_duration_seconds: Histograms<SignatureLabels> = SECONDS,
        /// Duration of a batch run in the runtime.
        run_duration_seconds: Histograms<SignatureLabels> = SECONDS,
        /// Rows of a batch, including padding.
        batch_rows: Histograms<SignatureLabels> = ROWS,
        /// Requests in flight.
        in_flight_requests: ShardedGauge,
        /// Versions for which a form that takes less CPU time is being made, compared or timed.
        optimizing_versions: Gauge,
        /// Other forms of versions that were looked for, by kind and result.
        other_forms: Counters<FormLabels>,
        /// Model versions loaded, by result.
        loads: Counters<ModelResultLabels>,
        /// Time to load and warm a version.
        load_duration_seconds: Histograms<VersionLabels> = LOAD_SECONDS,
        /// Size of a loaded version's files.
        model_bytes: Gauges<VersionLabels>,
        /// Sampled requests, by result of logging them.
        logged_requests: Counters<ModelResultLabels>,
        /// Requests refused by authentication or authorization, by reason.
        auth_failures: Counters<ReasonLabels>,
        /// 1 if every configured model has a ready version, else 0.
        ready: Gauge,
        /// Internal errors caught as panics; should stay 0.
        panics: Counter,
        /// Resident memory of the process.
        resident_memory_bytes: Gauge,
        /// CPU time used by the process.
        cpu_seconds: Counter<f64, AtomicU64>,
        /// Constant 1, with the version.
        build_info: Gauges<BuildLabels>,
        /// Memory held by requests in flight: bodies, tensors and responses.
        request_memory_bytes: Gauge,
        /// The limit of it, max_request_memory.
        request_memory_limit_bytes: Gauge,
        /// Reservations of memory that exceeded the limit.
        request_memory_refusals: Counter,
        /// 1 if the store of this location responded when it was last listed, else 0.
        store_up: Gauges<LocationLabels>,
        /// When this location was last listed, in seconds since 1970.
        store_listed_timestamp_seconds: Gauges<LocationLabels>,
        /// Objects at this location.
        store_objects: Gauges<LocationLabels>,
        /// Downloads under way from this location.
        store_downloads: Gauges<LocationLabels>,
        /// Bytes of these downloads so far.
        store_downloaded_bytes: Gauges<LocationLabels>,
        /// Bytes of these downloads in all.
        store_download_bytes: Gauges<LocationLabels>,
        /// Size of the models from stores on the disk.
        model_cache_bytes: Gauge,
        /// The limit of it, model_cache_bytes.
        model_cache_limit_bytes: Gauge,
        /// Requests that were also meant for a shadow version, by result.
        shadow_requests: Counters<ModelResultLabels>,
        /// Runs looked up in the response cache, by result.
        response_cache_lookups: Counters<ModelResultLabels>,
        /// Memory of cached responses and the inputs they belong to.
        response_cache_bytes: Gauge,
        /// The limit of it, response_cache_bytes.
        response_cache_limit_bytes: Gauge,
        /// Cached responses.
        response_cache_entries: Gauge,
        /// Cached responses removed to make room for others.
        response_cache_evictions: Counter,
        /// Requests that were not answered because of the load, by reason.
        shed_requests: Counters<ReasonLabels>,
        /// Inferences that were not answered because of the load, by priority.
        priority_shed_requests: Counters<PriorityLabels>,
        /// Spans that the collector of traces has taken (exported), that it has not (failed), and that
        /// were too many to wait for it (dropped).
        trace_spans: Counters<ResultLabels>,
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hash;

    use super::*;

    /// A metric that a test gives a series.
    pub(super) trait Sample {
        fn sample(&self);
    }

    // One without labels has its series from the start.
    impl<N, A> Sample for Counter<N, A> {
        fn sample(&self) {}
    }

    impl<N, A> Sample for Gauge<N, A> {
        fn sample(&self) {}
    }

    impl Sample for ShardedGauge {
        fn sample(&self) {}
    }

    impl<L, M, C> Sample for Family<L, M, C>
    where
        L: Clone + Default + Eq + Hash,
        M: Clone,
        C: MetricConstructor<M>,
    {
        fn sample(&self) {
            drop(self.get_or_create_owned(&L::default()));
        }
    }

    #[test]
    fn the_help_is_the_doc_comment() {
        assert_eq!(
            help(&[" Rows of a batch, including", " padding."]),
            "Rows of a batch, including padding"
        );
    }
}
