//! What a scan of the sources, and a check of files, mean for a model: pure functions.

use std::path::Path;

use super::entry::Origin;

/// What decides about a model after a scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScannedModel<'a> {
    pub(super) origin: Origin,
    /// The path of the source that it has its versions from.
    pub(super) source: &'a Path,
    pub(super) has_ready_version: bool,
    pub(super) is_out_of_service: bool,
    /// What the scan found of it.
    pub(super) discovered: Option<Discovered<'a>>,
    /// Its own source could not be read: the model may be there.
    pub(super) source_is_unreadable: bool,
    /// Its directory could not be read, or a source of its name.
    pub(super) model_is_unreadable: bool,
}

/// What a scan found of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Discovered<'a> {
    pub(super) source: &'a Path,
    pub(super) has_versions: bool,
}

/// What a scan means for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reconciliation {
    /// The model stays as it is.
    Keep,
    /// The model stays as it is: a request has loaded it, and a source has one of the same name.
    KeepRequested,
    /// No source has the model any more.
    Withdraw,
    /// The model takes over the source's settings; its versions stay as they are.
    AdoptSettings,
    /// The model takes over the source's settings; its versions stay, although its directory was
    /// emptied: that looks like a mistake, or like storage that went away.
    AdoptSettingsOfEmptied,
    /// The model takes over the source's settings and versions, and where they come from.
    Adopt,
}

/// What a scan means for a model.
pub(super) fn reconcile(model: &ScannedModel) -> Reconciliation {
    let Some(discovered) = model.discovered else {
        let may_be_there = model.source_is_unreadable || model.model_is_unreadable;
        return match model.origin {
            Origin::Source if !may_be_there => Reconciliation::Withdraw,
            Origin::Source | Origin::Request | Origin::Removed => Reconciliation::Keep,
        };
    };
    match model.origin {
        Origin::Request => return Reconciliation::KeepRequested,
        Origin::Removed => return Reconciliation::Adopt,
        Origin::Source => {}
    }
    let has_moved = discovered.source != model.source;
    if has_moved && model.source_is_unreadable {
        // The source that counts may have it still.
        return Reconciliation::Keep;
    }
    if !has_moved && !discovered.has_versions && model.has_ready_version {
        return Reconciliation::AdoptSettingsOfEmptied;
    }
    match model.is_out_of_service {
        true => Reconciliation::AdoptSettings,
        false => Reconciliation::Adopt,
    }
}

/// What decides about a version that waits for its files, or has failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedFiles {
    /// Its load has failed, or its files are broken.
    pub(super) has_failed: bool,
    /// Its files differ from those at the last check.
    pub(super) have_changed: bool,
    /// No file has changed for a while: no copy is under way.
    pub(super) are_quiet: bool,
    /// A failed version may be loaded again without another file.
    pub(super) retry_is_due: bool,
}

/// What to do about a version that waits for its files, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileStep {
    /// Nothing, before its files change or the next attempt is due.
    Leave,
    /// Compare its files again next time: they are still changing.
    Wait,
    /// Find out whether all files are there.
    Check,
}

/// What to do about a version that waits for its files, or has failed.
pub(super) fn next_file_step(files: CheckedFiles) -> FileStep {
    if files.has_failed && !files.have_changed && !files.retry_is_due {
        return FileStep::Leave;
    }
    match files.have_changed && !files.are_quiet {
        true => FileStep::Wait,
        false => FileStep::Check,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of the source `a` that is ready.
    fn model() -> ScannedModel<'static> {
        ScannedModel {
            origin: Origin::Source,
            source: Path::new("a"),
            has_ready_version: true,
            is_out_of_service: false,
            discovered: None,
            source_is_unreadable: false,
            model_is_unreadable: false,
        }
    }

    fn found(source: &'static str, has_versions: bool) -> Option<Discovered<'static>> {
        Some(Discovered { source: Path::new(source), has_versions })
    }

    fn check(cases: &[(&str, ScannedModel, Reconciliation)]) {
        for (name, model, want) in cases {
            assert_eq!(reconcile(model), *want, "{name}");
        }
    }

    #[test]
    fn a_model_follows_its_source() {
        let out = ScannedModel { is_out_of_service: true, ..model() };
        let unready = ScannedModel { has_ready_version: false, ..model() };
        let removed = ScannedModel { origin: Origin::Removed, ..unready };
        check(&[
            (
                "found",
                ScannedModel { discovered: found("a", true), ..model() },
                Reconciliation::Adopt,
            ),
            (
                "new",
                ScannedModel { discovered: found("a", true), ..removed },
                Reconciliation::Adopt,
            ),
            (
                "moved",
                ScannedModel { discovered: found("b", true), ..model() },
                Reconciliation::Adopt,
            ),
            (
                "moved to an empty directory",
                ScannedModel { discovered: found("b", false), ..model() },
                Reconciliation::Adopt,
            ),
            ("no source has it", model(), Reconciliation::Withdraw),
            ("out of service, and no source has it", out, Reconciliation::Withdraw),
            (
                "out of service",
                ScannedModel { discovered: found("a", true), ..out },
                Reconciliation::AdoptSettings,
            ),
            ("removed long ago", removed, Reconciliation::Keep),
        ]);
    }

    #[test]
    fn an_emptied_folder_keeps_the_loaded_version() {
        let emptied = ScannedModel { discovered: found("a", false), ..model() };
        let unready = ScannedModel { has_ready_version: false, ..emptied };
        let out = ScannedModel { is_out_of_service: true, ..emptied };
        check(&[
            ("ready", emptied, Reconciliation::AdoptSettingsOfEmptied),
            ("still draining", out, Reconciliation::AdoptSettingsOfEmptied),
            ("not ready", unready, Reconciliation::Adopt),
        ]);
    }

    #[test]
    fn what_cannot_be_read_keeps_its_models() {
        let source = ScannedModel { source_is_unreadable: true, ..model() };
        let folder = ScannedModel { model_is_unreadable: true, ..model() };
        let elsewhere = ScannedModel { discovered: found("b", true), ..source };
        let moved = ScannedModel { discovered: found("b", true), ..folder };
        check(&[
            ("its source", source, Reconciliation::Keep),
            ("its directory", folder, Reconciliation::Keep),
            ("its source, and another has the name", elsewhere, Reconciliation::Keep),
            ("its directory, and another source has the name", moved, Reconciliation::Adopt),
        ]);
    }

    #[test]
    fn a_requested_model_has_its_name_for_itself() {
        let requested = ScannedModel { origin: Origin::Request, ..model() };
        let same = ScannedModel { discovered: found("a", true), ..requested };
        check(&[
            ("no source has the name", requested, Reconciliation::Keep),
            ("a source has it", same, Reconciliation::KeepRequested),
        ]);
    }

    #[test]
    fn files_are_checked_when_they_stop_changing() {
        use FileStep::{Check, Leave, Wait};
        // Failed, changed, quiet, retry due.
        let cases = [
            ("seen for the first time", [false, true, false, true], Wait),
            ("seen for the first time, and old", [false, true, true, true], Check),
            ("as before", [false, false, false, true], Check),
            ("as before, and old", [false, false, true, true], Check),
            ("failed, and nothing has changed", [true, false, true, false], Leave),
            ("failed a while ago", [true, false, true, true], Check),
            ("failed, and files change", [true, true, false, false], Wait),
            ("failed, and files have changed", [true, true, true, false], Check),
        ];
        for (name, [has_failed, have_changed, are_quiet, retry_is_due], want) in cases {
            let files = CheckedFiles { has_failed, have_changed, are_quiet, retry_is_due };
            assert_eq!(next_file_step(files), want, "{name}");
        }
    }
}
