//! The last error of each model, for the dashboard, and what is forgotten of models that are no more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::Metrics;
use tensorserve_tensor::error::{Code, Error};
use tensorserve_tensor::names::beginning;

/// The longest message that is kept, in bytes. Messages quote values of clients, which can be of any size.
const LONGEST: usize = 1000;

/// The last request for a model that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct LastError {
    /// When it failed.
    pub at: SystemTime,
    /// Its code.
    pub code: Code,
    /// The message that the client got, perhaps shortened.
    pub message: String,
}

/// By model. Only models that exist have one.
#[derive(Default)]
pub(super) struct LastErrors(Mutex<HashMap<Arc<str>, LastError>>);

impl LastErrors {
    fn all(&self) -> MutexGuard<'_, HashMap<Arc<str>, LastError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metrics {
    /// Keeps the error of a request for `model`, which exists.
    pub fn note_error(&self, model: &Arc<str>, error: &Error) {
        let message = shortened(error.message());
        let last = LastError { at: SystemTime::now(), code: error.code(), message };
        self.0.last_errors.all().insert(Arc::clone(model), last);
    }

    /// The last error of each model that had one.
    #[must_use]
    pub fn last_errors(&self) -> HashMap<Arc<str>, LastError> {
        self.0.last_errors.all().clone()
    }

    /// Forgets what was counted and kept of models that are no more. What belongs to versions ends with these.
    pub fn forget_models(&self, exists: impl Fn(&str) -> bool) {
        let unserved = self.unserved_models();
        unserved.iter().filter(|model| !exists(model)).for_each(|it| self.forget_unserved(it));
        let failed: Vec<Arc<str>> = self.0.last_errors.all().keys().map(Arc::clone).collect();
        for model in failed.iter().filter(|model| !exists(model)) {
            self.0.last_errors.all().remove(model);
        }
    }
}

/// The beginning of a message that is too long.
fn shortened(message: &str) -> String {
    if message.len() <= LONGEST {
        return message.to_owned();
    }
    format!("{}…", beginning(message, LONGEST))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::entry::{EntryPoint, Method};

    const PREDICT: EntryPoint = EntryPoint { protocol: "test", method: Method::Predict };

    fn line(labels: &str, count: u32) -> String {
        let rest = "protocol=\"test\",method=\"predict\",code=\"INVALID_ARGUMENT\"";
        format!("tensorserve_requests_total{{{labels},{rest}}} {count}")
    }

    #[test]
    fn failures_are_counted_under_the_model_as_far_as_it_is_known() {
        let metrics = Metrics::default();
        let version = metrics.version("digits", 2, &["serving_default"]);
        let (code, time) = (Code::InvalidArgument, Duration::from_millis(1));
        for _ in 0..3 {
            version.failed(PREDICT, code, time);
        }
        metrics.unresolved(PREDICT, Some(&"digits".into()), Some(&version), code, time);
        metrics.unresolved(PREDICT, Some(&"loading".into()), None, code, time);
        metrics.unresolved(PREDICT, None, None, code, time);
        metrics.write_history();
        let page = metrics.encode().expect("text");
        for (labels, count) in [
            ("model=\"digits\",version=\"2\",signature=\"\"", 3),
            ("model=\"digits\",version=\"\",signature=\"\"", 1),
            ("model=\"loading\",version=\"\",signature=\"\"", 1),
            ("model=\"\",version=\"\",signature=\"\"", 1),
        ] {
            assert!(page.contains(&line(labels, count)), "{labels} is not in {page}");
        }
        // Nothing runs without a signature.
        for name in ["queue_duration_seconds", "batch_rows", "requests_running"] {
            let series =
                format!("tensorserve_{name}{{model=\"digits\",version=\"2\",signature=\"\"");
            assert!(!page.contains(&series), "{page}");
        }
        assert_eq!(metrics.past(1)[0].tally.errors(), 6);
        let counts = |model: &str| metrics.past_of(model).last().map(|point| point.tally.errors());
        assert_eq!((counts("digits"), counts("loading")), (Some(4), Some(1)));
        let of_version = metrics.rates_of_versions()[&("digits".into(), 2)];
        assert_eq!((of_version.error_percent, of_version.last_used.is_some()), (100.0, true));
        let unserved = metrics.rates_of_unserved();
        assert_eq!(unserved["loading"].error_percent, 100.0);

        drop(version);
        metrics.forget_models(|model| model == "loading");
        metrics.write_history();
        let page = metrics.encode().expect("text");
        assert!(!page.contains("model=\"digits\""), "{page}");
        assert!(page.contains("model=\"loading\",version=\"\""), "{page}");
        let unserved = metrics.rates_of_unserved();
        assert!(!unserved.contains_key("digits") && unserved.contains_key("loading"));
    }

    #[test]
    fn each_model_has_its_last_error() {
        let metrics = Metrics::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        metrics.note_error(&a, &Error::invalid("first"));
        metrics.note_error(&a, &Error::unavailable("second"));
        metrics.note_error(&b, &Error::invalid("é".repeat(1000)));
        let last = metrics.last_errors();
        assert_eq!((last["a"].code, last["a"].message.as_str()), (Code::Unavailable, "second"));
        assert_eq!(last["b"].message.chars().count(), 501);
        metrics.forget_models(|model| model == "b");
        assert_eq!(metrics.last_errors().into_keys().collect::<Vec<_>>(), [b]);
    }
}
