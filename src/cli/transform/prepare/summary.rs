//! What a run says at its end, and its report.

use super::super::inputs::{MOST_NAMED, one_line};
use super::super::show::note;
use tensorserve_store::objects::Place;
use tensorserve_transform::progress::{FailureNote, Progress};
use tensorserve_transform::report::{self, ReportFacts, bytes, counted, duration};

/// The key of the report.
const REPORT: &str = "_transform/report.html";

/// Writes the report, and prints the summary.
pub(super) fn summarize(progress: &Progress, ended: &str, output: &Place, facts: &ReportFacts) {
    let page = report::html("tensorserve transform", progress, facts);
    let report = match output.put(REPORT, page.as_bytes()) {
        Ok(_) => format!("{}/{REPORT}", output.display()),
        Err(error) => format!("not written: {error}"),
    };
    let now = progress.snapshot();
    note(&format!(
        "{ended}: {}, {} in {} ({:.0} records/s), {} read, {} written",
        counted(now.objects, "object"),
        counted(now.records, "record"),
        duration(now.seconds),
        now.records_per_second,
        bytes(now.bytes),
        bytes(now.output_bytes)
    ));
    let (_, _, failures) = progress.history();
    if let Some(wrong) = wrong(now.failed_objects, now.bad_records) {
        note(&wrong);
        each(&failures);
    }
    if now.skipped_objects > 0 {
        note(&format!("{} skipped", counted(now.skipped_objects, "object")));
        each(&progress.skips());
    }
    note(&format!("report: {report}"));
}

/// Says that there was nothing to do in a job with this many objects. Its report stays.
pub(super) fn nothing_to_do(objects: usize, output: &Place) {
    note(&format!("nothing to do, {objects} of {} done", counted(objects, "object")));
    if let Ok(Some(_)) = output.head(REPORT) {
        note(&format!("report: {}/{REPORT}", output.display()));
    }
}

/// What was wrong with how much.
fn wrong(failed: u64, bad: u64) -> Option<String> {
    let failed = (failed > 0).then(|| format!("{} failed", counted(failed, "object")));
    let bad = (bad > 0).then(|| counted(bad, "bad record"));
    let all: Vec<String> = failed.into_iter().chain(bad).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn each(notes: &[FailureNote]) {
    for FailureNote { object, reason } in notes.iter().take(MOST_NAMED) {
        note(&format!("  {}", one_line(&format!("{object}: {reason}"))));
    }
}

#[cfg(test)]
mod tests {
    use super::wrong;

    #[test]
    fn only_what_is_wrong_is_counted() {
        assert_eq!(wrong(1, 0).as_deref(), Some("1 object failed"));
        assert_eq!(wrong(3, 1).as_deref(), Some("3 objects failed, 1 bad record"));
        assert_eq!(wrong(0, 2).as_deref(), Some("2 bad records"));
        assert_eq!(wrong(0, 0), None);
    }
}
