//! What became of replayed requests.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::answers::AnswerTensors;
use super::call::CallOutcome;
use super::requests::ReplayRequest;
use crate::cli::comparison::{table, views};
use crate::cli::{print_line, print_text};
use tensorserve_core::comparison::VersionComparison;

/// Requests that differ, as far as they are listed.
const LISTED: usize = 10;

/// Why no more requests are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum ReplayEnd {
    /// All were sent.
    #[default]
    Complete,
    /// The connection broke, for this reason.
    Gone(String),
    /// The user wants it.
    Stopped,
}

/// Failures with one status.
struct ReplayFailures {
    count: u64,
    /// The request that failed first, and its error.
    first: String,
}

/// A request whose answer is another one than the recorded one.
struct DifferentAnswer {
    source: String,
    against: Vec<String>,
}

/// What became of the requests so far.
pub(super) struct ReplayTally {
    /// The requests of the logs.
    total: u64,
    answered: u64,
    failures: BTreeMap<String, ReplayFailures>,
    /// How many requests of a version were answered by which one.
    versions: BTreeMap<(Option<i64>, Option<i64>), u64>,
    /// The digest of each version, by the receipts of its answers.
    digests: BTreeMap<i64, String>,
    comparison: Option<VersionComparison>,
    different: u64,
    listed: BTreeMap<u64, DifferentAnswer>,
    pub(super) end: ReplayEnd,
}

impl ReplayTally {
    /// Of no request yet. With a comparison, answers are compared by its rules.
    pub(super) fn new(total: u64, comparison: Option<VersionComparison>) -> Self {
        ReplayTally {
            total,
            answered: 0,
            failures: BTreeMap::new(),
            versions: BTreeMap::new(),
            digests: BTreeMap::new(),
            comparison,
            different: 0,
            listed: BTreeMap::new(),
            end: ReplayEnd::Complete,
        }
    }

    /// Adds what became of a request.
    pub(super) fn add(&mut self, request: ReplayRequest, outcome: CallOutcome) {
        let (message, receipt) = match outcome {
            CallOutcome::Answered { message, receipt } => (message, receipt),
            CallOutcome::Failed(status, text) => return self.fail(&request, status, &text),
            CallOutcome::Gone(why) => {
                self.fail(&request, "Connection".to_owned(), &why);
                self.end = ReplayEnd::Gone(why);
                return;
            }
        };
        match request.kind.read(&message) {
            Ok(answer) => self.compare(request, &answer, receipt.as_deref()),
            Err(error) => self.fail(&request, "Answer".to_owned(), &error.to_string()),
        }
    }

    fn fail(&mut self, request: &ReplayRequest, status: String, text: &str) {
        let first = || format!("{}: {text}", request.source);
        let failures = self.failures.entry(status);
        failures.or_insert_with(|| ReplayFailures { count: 0, first: first() }).count += 1;
    }

    fn compare(&mut self, request: ReplayRequest, answer: &AnswerTensors, receipt: Option<&str>) {
        self.answered += 1;
        *self.versions.entry((request.version, answer.version)).or_default() += 1;
        if let (Some(version), Some(digest)) = (answer.version, receipt.and_then(digest_of)) {
            self.digests.insert(version, digest.to_owned());
        }
        let (Some(comparison), Some(recorded)) = (&mut self.comparison, &request.recorded) else {
            return;
        };
        let against = comparison.add(request.number, &recorded.outputs, &answer.outputs);
        if !against.is_empty() {
            self.different += 1;
            let different = DifferentAnswer { source: request.source, against };
            self.listed.insert(request.number, different);
            // The first ones: with several connections, an earlier one may come later.
            while self.listed.len() > LISTED {
                self.listed.pop_last();
            }
        }
    }

    fn failed(&self) -> u64 {
        self.failures.values().map(|failures| failures.count).sum()
    }

    /// What the answers have against the version that gave them.
    fn against(&self) -> Vec<String> {
        let mut against =
            self.comparison.as_ref().map(VersionComparison::against).unwrap_or_default();
        if self.comparison.is_some() && self.answered == 0 {
            against.push("no request was answered".to_owned());
        }
        against
    }

    /// Whether every request was answered and, if that was asked for, as it was then.
    pub(super) fn is_good(&self) -> bool {
        self.end == ReplayEnd::Complete
            && self.failed() == 0
            && self.different == 0
            && self.against().is_empty()
    }

    pub(super) fn print(&self, place: &str, time: Duration) {
        let (answered, failed) = (self.answered, self.failed());
        let sent = answered + failed;
        let seconds = time.as_secs_f64();
        print_line(&format!(
            "{sent} of {} requests sent to {place} in {seconds:.3} s: {answered} answered, {failed} failed",
            self.total
        ));
        for (status, ReplayFailures { count, first }) in &self.failures {
            print_line(&format!("  {count} {status}, the first: {first}"));
        }
        self.print_versions();
        match &self.end {
            ReplayEnd::Complete => {}
            ReplayEnd::Gone(_) => print_line("the server went away: no more requests were sent"),
            ReplayEnd::Stopped => print_line("interrupted: no more requests were sent"),
        }
        let Some(comparison) = &self.comparison else { return };
        print_line("");
        print_text(&table(&comparison.figures()));
        print_line("");
        let against = self.against();
        if against.is_empty() && self.different == 0 {
            return print_line(match self.is_good() {
                true => "the same: no answer differs from the recorded one by more than allowed",
                false => "no answer differs from the recorded one by more than allowed",
            });
        }
        print_line("different:");
        for DifferentAnswer { source, against } in self.listed.values() {
            print_line(&format!("  {source}: {}", against.join("; ")));
        }
        let more = self.different.saturating_sub(self.listed.len() as u64);
        if more > 0 {
            print_line(&format!("  and {more} more"));
        }
        against.iter().for_each(|what| print_line(&format!("  {what}")));
    }

    fn print_versions(&self) {
        let named = |version: Option<i64>| {
            version.map_or("a version that is not named".to_owned(), |it| format!("version {it}"))
        };
        for ((logged, answered), count) in &self.versions {
            let by = named(*answered);
            let digest = answered.and_then(|version| self.digests.get(&version));
            let digest = digest.map_or(String::new(), |digest| format!(" ({digest})"));
            print_line(&match logged {
                Some(logged) if Some(*logged) != *answered => {
                    format!("{count} requests of version {logged} were answered by {by}{digest}")
                }
                Some(_) | None => format!("{count} requests were answered by {by}{digest}"),
            });
        }
    }

    pub(super) fn json(&self, place: &str, time: Duration) -> Value {
        let failures = self.failures.iter().map(|(status, ReplayFailures { count, first })| {
            json!({"status": status, "count": count, "first": first})
        });
        let versions = self.versions.iter().map(|((logged, answered), count)| {
            let digest = answered.and_then(|version| self.digests.get(&version));
            json!({"logged": logged, "answered": answered, "requests": count, "digest": digest})
        });
        let ended = match &self.end {
            ReplayEnd::Complete => "complete",
            ReplayEnd::Gone(_) => "server_gone",
            ReplayEnd::Stopped => "stopped",
        };
        json!({
            "target": place,
            "good": self.is_good(),
            "ended": ended,
            "requests": self.total,
            "answered": self.answered,
            "failed": self.failed(),
            "seconds": time.as_secs_f64(),
            "failures": failures.collect::<Vec<_>>(),
            "versions": versions.collect::<Vec<_>>(),
            "verified": self.comparison.as_ref().map(|comparison| self.verified(comparison)),
        })
    }

    fn verified(&self, comparison: &VersionComparison) -> Value {
        let listed = self.listed.iter().map(|(number, different)| {
            let DifferentAnswer { source, against } = different;
            json!({"request": number, "source": source, "against": against})
        });
        json!({
            "requests": comparison.requests(),
            "different": self.different,
            "first_different": listed.collect::<Vec<_>>(),
            "against": self.against(),
            "outputs": views(&comparison.figures()),
        })
    }
}

/// The digest in a receipt, behind names that may contain any text.
fn digest_of(receipt: &str) -> Option<&str> {
    let (_, rest) = receipt.rsplit_once(", digest=")?;
    rest.split(',').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_receipt_is_found_behind_odd_names() {
        let receipt = "model=\"a, digest=b\", version=\"1\", signature=\"s\", digest=sha256:ab, \
                       input=sha256:cd, output=sha256:ef";
        assert_eq!(digest_of(receipt), Some("sha256:ab"));
        assert_eq!(digest_of("model=\"m\""), None);
    }
}
