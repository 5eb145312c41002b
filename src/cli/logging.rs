//! The log of the program, on stderr: text for people, or JSON for programs.

use std::io::{self, Write};
use std::sync::OnceLock;

use env_logger::fmt::Formatter;
use env_logger::fmt::style::AnsiColor;
use env_logger::{Logger, Target};
use log::kv::{self, Key, Value, VisitSource};
use log::{Level, LevelFilter, Log, Record};
use serde_json::json;

use super::printable::message;
use super::{library_events, native_log, print_line};
use crate::config::environment::Environment;
use crate::config::{LogFormat, ServerSettings, Settings};
use tensorserve_server::ACCESS_LOG;

/// The libraries log every thread they start, and every malformed request as an error; the listener
/// logs the latter at debug level.
const OF_LIBRARIES: &str = "actix_server=warn,actix_http=error,actix_http::h1=off,h2=info,hyper=info,\
                            tower=info";

/// Where the lines go that libraries write to stderr by themselves, if the log is JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LibraryLines {
    /// Into the log. [`native_log::start`] has to follow.
    InLog,
    /// To stderr, as they are.
    #[cfg(feature = "transform")]
    AsTheyAre,
}

/// What the server says about itself on stdout, if the log is JSON: events, as in the log, at every level of it.
static EVENTS_ON_STDOUT: OnceLock<Logger> = OnceLock::new();

/// The target of these events.
const SELF: &str = "tensorserve";

/// Says on stdout what the server does, such as where it listens: a line for people, or an event with `keys` if the log
/// is JSON.
pub(super) fn say(text: &str, keys: &[(&str, &str)]) {
    let Some(events) = EVENTS_ON_STDOUT.get() else {
        return print_line(text);
    };
    let mut record = Record::builder();
    let record = record.level(Level::Info).target(SELF).key_values(&keys);
    events.log(&record.args(format_args!("{text}")).build());
}

/// Whether stdout has events, and not text for people.
pub(super) fn says_events() -> bool {
    EVENTS_ON_STDOUT.get().is_some()
}

/// Starts the log on stderr; before the settings are checked, because the checks log.
pub(super) fn start(settings: &Settings, environment: &Environment, libraries: LibraryLines) {
    let server = &settings.server;
    let level = server.log_level.as_deref().or_else(|| environment.get("RUST_LOG"));
    // The access log has a setting of its own, and is not subject to a level for all.
    let default = ServerSettings::default().log_level();
    let filter = format!("{OF_LIBRARIES},{ACCESS_LOG}=info,{}", level.unwrap_or(&default));
    let mut builder = env_logger::Builder::new();
    builder.parse_filters(&filter);
    builder.format(write_text);
    if server.log_format() == LogFormat::Json {
        builder.format(write_json);
        // The log itself goes past the redirection.
        if libraries == LibraryLines::InLog
            && let Some(original) = native_log::redirect()
        {
            builder.target(Target::Pipe(Box::new(original)));
            let mut events = env_logger::Builder::new();
            events.filter_level(LevelFilter::Info).format(write_json).target(Target::Stdout);
            let _ = EVENTS_ON_STDOUT.set(events.build());
        }
    }
    // A second start in one process (tests) keeps the first log.
    let _ = builder.try_init();
    library_events::start();
}

/// Writes a line for people: time, level and target in brackets, and the message. Further lines of a message are
/// indented, so that no message can look like two.
fn write_text(formatter: &mut Formatter, record: &Record<'_>) -> io::Result<()> {
    let bracket = AnsiColor::BrightBlack.on_default();
    let level = formatter.default_level_style(record.level());
    let time = formatter.timestamp();
    write!(formatter, "{bracket}[{bracket:#}{time} {level}{:<5}{level:#} ", record.level())?;
    writeln!(formatter, "{}{bracket}]{bracket:#} {}", record.target(), message_text(record))
}

fn message_text(record: &Record<'_>) -> String {
    message(&record.args().to_string())
}

/// Writes a line: an object with `time`, `level`, `target`, `message`, and the keys of the event.
fn write_json(formatter: &mut Formatter, record: &Record<'_>) -> io::Result<()> {
    let mut line = JsonLine::default();
    line.add("time", &json!(formatter.timestamp_micros().to_string()));
    line.add("level", &json!(record.level().as_str()));
    line.add("target", &json!(record.target()));
    line.add("message", &json!(record.args().to_string()));
    let _ = record.key_values().visit(&mut line);
    formatter.write_all(line.0.as_bytes())?;
    formatter.write_all(b"}\n")
}

/// An object that is being written, in the order of its keys.
#[derive(Default)]
struct JsonLine(String);

impl JsonLine {
    fn add(&mut self, key: &str, value: &serde_json::Value) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&json!(key).to_string());
        self.0.push(':');
        self.0.push_str(&value.to_string());
    }
}

impl<'kvs> VisitSource<'kvs> for JsonLine {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), kv::Error> {
        let json = match (value.to_u64(), value.to_i64(), value.to_f64(), value.to_borrowed_str()) {
            (Some(number), ..) => json!(number),
            (_, Some(number), ..) => json!(number),
            (_, _, Some(number), _) => json!(number),
            (.., Some(text)) => json!(text),
            _ => json!(value.to_string()),
        };
        self.add(key.as_str(), &json);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::kv::Source;

    #[test]
    fn no_message_can_look_like_another_line() {
        let forged = "model \"a\u{1b}[2K\r\"\n[2026-11-25T00:00:00Z INFO  tensorserve] ready";
        let args = format_args!("{forged}");
        let text = message_text(&Record::builder().args(args).build());
        let safe = "model \"a\\u{1b}[2K\\r\"\n    [2026-11-25T00:00:00Z INFO  tensorserve] ready";
        assert_eq!(text, safe);
    }

    #[test]
    fn a_line_is_an_object_in_the_order_of_its_keys() {
        let mut line = JsonLine::default();
        line.add("time", &json!("now"));
        let text = "\u{1}\"\\\n";
        let values = [
            ("text", Value::from(text)),
            ("count", Value::from(3_u64)),
            ("change", Value::from(-1_i64)),
            ("took", Value::from(0.25)),
            ("infinite", Value::from(f64::INFINITY)),
        ];
        let _ = values[..].visit(&mut line);
        let read: serde_json::Value = serde_json::from_str(&format!("{}}}", line.0)).unwrap();
        assert!(line.0.starts_with(r#"{"time":"now","text":"#), "{}", line.0);
        assert_eq!(read["text"], text);
        assert_eq!((read["count"].as_u64(), read["change"].as_i64()), (Some(3), Some(-1)));
        assert_eq!((read["took"].as_f64(), read["infinite"].is_null()), (Some(0.25), true));
    }
}
