//! Exemplars: for each bucket of a histogram, the trace of the last request in it that was recorded.
//!
//! The library that encodes metrics cannot be given exemplars of a histogram of another type than its
//! own, so they are added to its text: each histogram tells, when it is encoded, the exemplars of its
//! buckets, and the lines of buckets come in the same order.
//!
//! Source: OpenMetrics 1.0, "Exemplars".

use std::cell::RefCell;
use std::fmt::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tensorserve_trace::TraceId;

/// A request in a bucket.
#[derive(Clone, Copy, Debug)]
struct Exemplar {
    trace: TraceId,
    /// In the unit of the page.
    value: f64,
    at: SystemTime,
}

/// The exemplars of a histogram's buckets. Empty until the first request is recorded.
#[derive(Debug, Default)]
pub(super) struct Exemplars(OnceLock<Mutex<Vec<Option<Exemplar>>>>);

impl Exemplars {
    /// Makes a request the exemplar of the bucket number `bucket` of `buckets`.
    pub(super) fn set(&self, bucket: usize, buckets: usize, value: f64, trace: TraceId) {
        let all = self.0.get_or_init(|| Mutex::new(vec![None; buckets]));
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(exemplar) = all.get_mut(bucket) {
            *exemplar = Some(Exemplar { trace, value, at: SystemTime::now() });
        }
    }

    /// Tells the page that is being encoded the exemplars of the next `buckets` buckets.
    pub(super) fn tell(&self, buckets: usize) {
        ENCODED.with_borrow_mut(|encoded| {
            let Some(encoded) = encoded else {
                return;
            };
            match self.0.get() {
                None => encoded.extend(std::iter::repeat_n(None, buckets)),
                Some(all) => {
                    encoded.extend_from_slice(&all.lock().unwrap_or_else(PoisonError::into_inner));
                }
            }
        });
    }
}

thread_local! {
    /// The exemplars of all buckets of the page that this thread encodes, in order.
    static ENCODED: RefCell<Option<Vec<Option<Exemplar>>>> = const { RefCell::new(None) };
}

/// The text that `encode` makes, with exemplars.
pub(super) fn annotated<E>(encode: impl FnOnce() -> Result<String, E>) -> Result<String, E> {
    ENCODED.set(Some(Vec::new()));
    let text = encode();
    let exemplars = ENCODED.take().unwrap_or_default();
    let text = text?;
    if exemplars.iter().all(Option::is_none) {
        return Ok(text);
    }
    let mut exemplars = exemplars.into_iter();
    let mut out = String::with_capacity(text.len() + 100 * exemplars.len().min(1000));
    for line in text.lines() {
        out.push_str(line);
        if is_bucket(line)
            && let Some(Some(exemplar)) = exemplars.next()
        {
            let at = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let Exemplar { trace, value, .. } = exemplar;
            // Writing to a String cannot fail.
            let _ = write!(out, " # {{trace_id=\"{trace}\"}} {value} {at:.3}");
        }
        out.push('\n');
    }
    Ok(out)
}

/// Whether a line of the page is a bucket of a histogram.
fn is_bucket(line: &str) -> bool {
    line.split_once('{')
        .is_some_and(|(name, _)| !name.starts_with('#') && name.ends_with("_bucket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exemplars_follow_their_buckets() {
        let (none, some) = (Exemplars::default(), Exemplars::default());
        some.set(1, 2, 0.5, TraceId([0xab; 16]));
        some.set(7, 2, 0.5, TraceId([1; 16]));
        let text = "# HELP a_bucket{ x\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 1\na_sum 3\n\
                    b_bucket{le=\"1\"} 1\nb_bucket{le=\"+Inf\"} 2\nb_count 2\n# EOF\n";
        let page = annotated(|| {
            none.tell(2);
            some.tell(2);
            Ok::<_, ()>(text.to_owned())
        });
        let page = page.unwrap();
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines.len(), text.lines().count());
        let with: Vec<&&str> = lines.iter().filter(|line| line.contains("trace_id")).collect();
        let [line] = &with[..] else { panic!("{page}") };
        let start =
            format!("b_bucket{{le=\"+Inf\"}} 2 # {{trace_id=\"{}\"}} 0.5 ", "ab".repeat(16));
        assert!(line.starts_with(&start), "{line}");
        // Without any, the text stays as it is.
        let plain = annotated(|| {
            none.tell(2);
            Ok::<_, ()>(text.to_owned())
        });
        assert_eq!(plain.unwrap(), text);
    }
}
