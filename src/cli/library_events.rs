//! Passes on to the log what libraries say through `tracing`: events, not spans.
//!
//! Without a subscriber `tracing` does that itself, and asks the log at each span that a library enters or leaves. h2 has
//! several for each frame, which were a tenth of the instructions of a gRPC call.

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Passes events on from now on, down to the most verbose level that the log has now.
pub(super) fn start() {
    // A second start in one process (tests) keeps the first one.
    let _ = set_global_default(EventsToLog);
}

struct EventsToLog;

impl Subscriber for EventsToLog {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() { Interest::sometimes() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match log::max_level() {
            log::LevelFilter::Off => LevelFilter::OFF,
            log::LevelFilter::Error => LevelFilter::ERROR,
            log::LevelFilter::Warn => LevelFilter::WARN,
            log::LevelFilter::Info => LevelFilter::INFO,
            log::LevelFilter::Debug => LevelFilter::DEBUG,
            log::LevelFilter::Trace => LevelFilter::TRACE,
        })
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && log::logger().enabled(&for_log(metadata))
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = EventText::default();
        event.record(&mut text);
        let mut record = log::Record::builder();
        record.metadata(for_log(metadata));
        record.module_path(metadata.module_path()).file(metadata.file()).line(metadata.line());
        log::logger().log(&record.args(format_args!("{}", text.0)).build());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Never called: no span is enabled.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn for_log<'m>(metadata: &Metadata<'m>) -> log::Metadata<'m> {
    let level = match *metadata.level() {
        Level::ERROR => log::Level::Error,
        Level::WARN => log::Level::Warn,
        Level::INFO => log::Level::Info,
        Level::DEBUG => log::Level::Debug,
        Level::TRACE => log::Level::Trace,
    };
    log::Metadata::builder().level(level).target(metadata.target()).build()
}

/// The message of an event, and its other fields after it.
#[derive(Default)]
struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let separator = if self.0.is_empty() { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{separator}{value:?}"),
            name => write!(self.0, "{separator}{name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What was logged.
    struct Kept(Mutex<Vec<String>>);

    impl log::Log for Kept {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.target() != "quiet"
        }

        fn log(&self, record: &log::Record<'_>) {
            let line = format!("{} {}: {}", record.level(), record.target(), record.args());
            self.0.lock().expect("no panic").push(line);
        }

        fn flush(&self) {}
    }

    static KEPT: Kept = Kept(Mutex::new(Vec::new()));

    #[test]
    fn events_that_the_log_wants_are_in_it_and_spans_are_not() {
        // The program's own tests start no log.
        log::set_logger(&KEPT).expect("the first logger");
        log::set_max_level(log::LevelFilter::Debug);
        tracing::subscriber::with_default(EventsToLog, || {
            let _span = tracing::trace_span!("frame", kind = 3).entered();
            tracing::warn!(target: "library", stream = 7, "frame {} is too large", "DATA");
            tracing::debug!(target: "library", closed = true);
            tracing::error!(target: "quiet", "no");
            tracing::trace!(target: "library", "no");
        });
        let lines = std::mem::take(&mut *KEPT.0.lock().expect("no panic"));
        let of_library: Vec<_> = lines.into_iter().filter(|it| it.contains("library")).collect();
        assert_eq!(
            of_library,
            ["WARN library: frame DATA is too large stream=7", "DEBUG library: closed=true"]
        );
    }
}
