//! Rules for outputs on the command line, and what a comparison by them has found, as text and as JSON.

use std::collections::BTreeMap;

use clap::Args;

use super::table::columns;
use tensorserve_core::comparison::{OutputFigures, ReleaseRules, WrittenRules};
use tensorserve_protocols::console::OutputView;
use tensorserve_tensor::error::Result;

/// By what outputs are judged.
#[derive(Args)]
pub(super) struct RuleArguments {
    /// How much values may differ, as a fraction of the largest finite magnitude in their output; 0 asks for equal bits
    #[arg(long, value_name = "[OUTPUT=]X", help_heading = "Rules")]
    tolerance: Vec<String>,
    /// In which share of all rows the K largest values must be at the same places; of labels, in which share they
    /// must be equal
    #[arg(long, value_name = "[OUTPUT=]K:SHARE", help_heading = "Rules")]
    top: Vec<String>,
    /// Largest population stability index of the values of all requests
    #[arg(long, value_name = "[OUTPUT=]X", help_heading = "Rules")]
    max_psi: Vec<String>,
    /// Largest Kolmogorov-Smirnov statistic of the values of all requests
    #[arg(long, value_name = "[OUTPUT=]X", help_heading = "Rules")]
    max_ks: Vec<String>,
}

impl RuleArguments {
    /// Reads the rules into `rules`.
    ///
    /// # Errors
    /// If one cannot be read.
    pub(super) fn read_into(&self, rules: &mut ReleaseRules) -> Result<()> {
        let RuleArguments { tolerance, top, max_psi, max_ks } = self;
        let written = WrittenRules { tolerance, top, max_psi, max_ks };
        written.read_into(rules, |name| format!("--{}", name.replace('_', "-")))
    }

    /// The first option that is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--tolerance", &self.tolerance),
            ("--top", &self.top),
            ("--max-psi", &self.max_psi),
            ("--max-ks", &self.max_ks),
        ];
        all.into_iter().find(|(_, values)| !values.is_empty()).map(|(option, _)| option)
    }
}

/// What was found of each output, a line each.
pub(super) fn table(outputs: &BTreeMap<String, OutputFigures>) -> String {
    let header =
        ["output", "requests", "equal bits", "largest difference", "same top", "PSI", "KS"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(outputs.iter().map(|(name, figures)| row(name, figures)));
    columns(&rows)
}

/// What was found of each output, for JSON.
pub(super) fn views(outputs: &BTreeMap<String, OutputFigures>) -> BTreeMap<&str, OutputView> {
    outputs.iter().map(|(name, figures)| (name.as_str(), OutputView::new(figures))).collect()
}

/// A row of the table.
fn row(name: &str, figures: &OutputFigures) -> Vec<String> {
    let share = |share: f64| format!("{:.2} %", share * 100.0);
    let largest = match figures.largest {
        0.0 => "0".to_owned(),
        most if most.is_finite() => format!("{most:.2e} (request {})", figures.largest_in),
        _ => format!("other values (request {})", figures.largest_in),
    };
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
    vec![
        name.to_owned(),
        figures.requests.to_string(),
        figures.equal.to_string(),
        largest,
        figures.agreement.map_or("-".to_owned(), share),
        number(figures.shift.map(|shift| shift.psi)),
        number(figures.shift.map(|shift| shift.ks)),
    ]
}
