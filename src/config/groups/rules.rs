//! What the values of settings have to satisfy, each by itself. A rule returns what is wrong.

use std::path::Path;

use tensorserve_core::config::{OpPolicy, is_model_name};

use crate::config::MetricsAlias;
use crate::config::units::{ByteSize, CommaSeparated, HumanDuration};

/// The smallest response cache: an entry takes at most a sixteenth of it.
const LEAST_CACHE: usize = 1 << 20;

/// "is not a, b or c".
pub(super) fn is_not(words: &[&str]) -> String {
    match words {
        [others @ .., last] => format!("is not {} or {last}", others.join(", ")),
        [] => String::new(),
    }
}

/// "is neither a nor b".
pub(super) fn is_neither(words: &[&str]) -> String {
    format!("is neither {}", words.join(" nor "))
}

pub(super) fn at_least_one(number: &usize) -> Option<String> {
    (*number == 0).then(|| "must be at least 1".to_owned())
}

pub(super) fn above_zero(number: &f64) -> Option<String> {
    let is_above = *number > 0.0 && number.is_finite();
    (!is_above).then(|| format!("{number} is not a number above 0"))
}

pub(super) fn some_bytes(ByteSize(size): &ByteSize) -> Option<String> {
    at_least_one(size)
}

pub(super) fn some_time(HumanDuration(time): &HumanDuration) -> Option<String> {
    time.is_zero().then(|| "must be more than 0".to_owned())
}

pub(super) fn share(share: &f64) -> Option<String> {
    (!(0.0..=1.0).contains(share)).then(|| format!("{share} is not from 0 to 1"))
}

pub(super) fn cache_size(ByteSize(size): &ByteSize) -> Option<String> {
    let is_enough = *size == 0 || *size >= LEAST_CACHE;
    (!is_enough).then(|| "must be at least 1MiB, or 0 for no cache".to_owned())
}

/// A URL such as `example`.
pub(super) fn url(example: &'static str) -> impl Fn(&str) -> Option<String> {
    move |url| {
        let is_url = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
        (!is_url).then(|| format!("{url:?} is not a URL; write, for example, {example}"))
    }
}

pub(super) fn session_target(target: &str) -> Option<String> {
    let is_target = target.is_empty() || target.starts_with("grpc://");
    (!is_target).then(|| format!("{target:?} is not grpc://HOST:PORT"))
}

pub(super) fn absolute_path(path: &Path) -> Option<String> {
    (!path.is_absolute()).then(|| format!("{} is not an absolute path", path.display()))
}

pub(super) fn model_name(name: &str) -> Option<String> {
    let why = "a model's name must not be empty or contain / or :";
    (!is_model_name(name)).then(|| why.to_owned())
}

/// The names of operations, as [`OpPolicy`] has them.
pub(super) fn operations(CommaSeparated(entries): &CommaSeparated<String>) -> Vec<String> {
    let wrong = entries.iter().filter(|entry| !OpPolicy::is_entry(entry));
    let rule = "is neither the name of an operation, such as ReadFile, nor external";
    wrong.map(|entry| format!("{entry:?} {rule}")).collect()
}

pub(super) fn metrics_aliases(CommaSeparated(names): &CommaSeparated<String>) -> Vec<String> {
    let wrong = names.iter().filter(|name| MetricsAlias::named(name).is_none());
    wrong.map(|name| format!("{name:?} is not triton or tfs")).collect()
}
