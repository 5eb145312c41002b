//! The tables of `docs/observability.md` have every metric of the registry, and no other.

use std::collections::BTreeMap;

use super::{Metrics, ServerCapacity};

/// The type of a metric and the names of its labels.
type Description = (String, Vec<String>);

fn words(list: &str) -> Vec<String> {
    list.split(", ").filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The metrics of a page.
fn registered(page: &str) -> BTreeMap<String, Description> {
    let mut metrics = BTreeMap::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' '))
        else {
            continue;
        };
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        // Each has a series after its type. Those of histograms begin with the sum, without `le`.
        let series = lines.next().expect("a series");
        let labels = series.split_once('{').map_or("", |(_, labels)| labels);
        let labels = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0));
        metrics.insert(name, (kind.to_owned(), labels.map(str::to_owned).collect()));
    }
    metrics
}

/// The metrics of the tables whose first column is `name`, or `name, all gauges`.
fn documented(text: &str) -> BTreeMap<String, Description> {
    let mut metrics = BTreeMap::new();
    let mut columns: Vec<&str> = Vec::new();
    let mut labels = Vec::new();
    for line in text.lines() {
        let Some(row) = line.strip_prefix("| ").and_then(|row| row.strip_suffix('|')) else {
            columns.clear();
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if columns.is_empty() {
            columns = cells;
            continue;
        }
        let cell = |name| columns.iter().zip(&cells).find(|(column, _)| **column == name);
        let all = columns.first().and_then(|column| column.strip_prefix("name, all "));
        let kind = all.map(|kind| kind.trim_end_matches('s')).or(cell("type").map(|it| *it.1));
        let Some(kind) = kind else {
            continue;
        };
        match cell("labels") {
            Some((_, &"the same")) => {}
            cell => labels = cell.map_or(Vec::new(), |it| words(it.1)),
        }
        // The line below the head of the table has no names.
        for name in cells[0].split('`').filter(|name| name.starts_with("tensorserve_")) {
            metrics.insert(name.to_owned(), (kind.to_owned(), labels.clone()));
        }
    }
    metrics
}

#[test]
fn every_metric_is_documented_with_its_type_and_labels() {
    let metrics = Metrics::default();
    metrics.0.families.sample();
    let _version = metrics.version("digits", 1, &["serving_default"]);
    metrics.read_signals(&ServerCapacity {
        batch_threads: 1,
        cores: 1,
        request_memory: (0, 1),
        versions: vec![("digits".into(), "ready", 1)],
    });
    let registered = registered(&metrics.encode().expect("text"));
    assert!(registered.len() > 40, "{registered:?}");
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/observability.md");
    let documented = documented(&std::fs::read_to_string(docs).expect("docs"));
    let missing: Vec<_> =
        registered.iter().filter(|(name, _)| !documented.contains_key(*name)).collect();
    assert!(missing.is_empty(), "docs/observability.md does not have {missing:?}");
    let extra: Vec<_> = documented.keys().filter(|name| !registered.contains_key(*name)).collect();
    assert!(extra.is_empty(), "docs/observability.md has {extra:?}, which do not exist");
    for (name, description) in &registered {
        assert_eq!(documented.get(name), Some(description), "{name} in docs/observability.md");
    }
}
