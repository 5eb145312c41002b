//! What must hold for a new version to take the place of an old one, and how users write it.

use std::collections::BTreeMap;

use super::{OutputRules, TopRule};
use tensorserve_tensor::error::{Error, Result};

/// What must hold for a new version.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleaseRules {
    /// Of outputs without rules of their own.
    pub outputs: OutputRules,
    /// Of these outputs.
    pub of_output: BTreeMap<String, OutputRules>,
    /// How many times as long as those of the old version its runs may take, by their medians.
    pub max_slowdown: f64,
    /// Whether signatures, inputs and outputs may be missing or have another type or shape.
    pub allow_changes: bool,
}

/// [`ReleaseRules::max_slowdown`], unless the user says otherwise.
pub const MAX_SLOWDOWN: f64 = 1.5;

impl Default for ReleaseRules {
    fn default() -> Self {
        ReleaseRules {
            outputs: OutputRules::default(),
            of_output: BTreeMap::new(),
            max_slowdown: MAX_SLOWDOWN,
            allow_changes: false,
        }
    }
}

/// Rules for outputs as users write them: a value for all outputs, or after the name of one (`scores=0.01`).
#[derive(Clone, Copy, Debug)]
pub struct WrittenRules<'a> {
    /// [`OutputRules::tolerance`].
    pub tolerance: &'a [String],
    /// [`OutputRules::top`], as a number of places and a share: `1:0.99`.
    pub top: &'a [String],
    /// [`OutputRules::most_psi`].
    pub max_psi: &'a [String],
    /// [`OutputRules::most_ks`].
    pub max_ks: &'a [String],
}

impl WrittenRules<'_> {
    /// Reads them into `rules`. `shown` makes, of a name such as `max_psi`, the one that the user knows the rule by.
    ///
    /// # Errors
    /// If a value is not of its form.
    pub fn read_into(
        &self,
        rules: &mut ReleaseRules,
        shown: impl Fn(&str) -> String,
    ) -> Result<()> {
        for (output, most) in limits(&shown("tolerance"), self.tolerance, "0.001")? {
            rules.of(output).tolerance = Some(most);
        }
        for (output, most) in limits(&shown("max_psi"), self.max_psi, "0.1")? {
            rules.of(output).most_psi = Some(most);
        }
        for (output, most) in limits(&shown("max_ks"), self.max_ks, "0.1")? {
            rules.of(output).most_ks = Some(most);
        }
        for value in self.top {
            let (output, text) = named(value);
            let top = top_rule(text).ok_or_else(|| {
                let name = shown("top");
                let form = "give a number of places and a share, such as 1:0.99";
                Error::invalid(format!("{name} {value}: {form}"))
            })?;
            rules.of(output).top = Some(top);
        }
        // What an output has no rule of its own for holds as for all.
        let ReleaseRules { outputs: everywhere, of_output, .. } = rules;
        for rules in of_output.values_mut() {
            rules.tolerance = rules.tolerance.or(everywhere.tolerance);
            rules.top = rules.top.or(everywhere.top);
            rules.most_psi = rules.most_psi.or(everywhere.most_psi);
            rules.most_ks = rules.most_ks.or(everywhere.most_ks);
        }
        Ok(())
    }
}

impl ReleaseRules {
    /// The rules of an output, or those of all.
    fn of(&mut self, output: Option<&str>) -> &mut OutputRules {
        match output {
            Some(output) => self.of_output.entry(output.to_owned()).or_default(),
            None => &mut self.outputs,
        }
    }
}

/// The values of a rule, with the outputs that they are for.
fn limits<'a>(
    rule: &str,
    values: &'a [String],
    example: &str,
) -> Result<Vec<(Option<&'a str>, f64)>> {
    let limit = |value: &'a String| {
        let (output, text) = named(value);
        let number = not_negative(text).ok_or_else(|| {
            let message = format!("{rule} {value}: give a number from 0, such as {example}");
            Error::invalid(message)
        });
        Ok((output, number?))
    };
    values.iter().map(limit).collect()
}

fn top_rule(text: &str) -> Option<TopRule> {
    let (count, share) = text.split_once(':')?;
    let count = count.parse().ok().filter(|count| *count > 0)?;
    Some(TopRule { count, share: not_negative(share).filter(|share| *share <= 1.0)? })
}

fn not_negative(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number| *number >= 0.0)
}

/// The output that a rule names, if it names one, and the rest. Names of outputs may have `=` in them.
fn named(value: &str) -> (Option<&str>, &str) {
    value.rsplit_once('=').map_or((None, value), |(output, rest)| (Some(output), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tolerance: &[&str], top: &[&str]) -> Result<ReleaseRules> {
        let owned = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let (tolerance, top) = (owned(tolerance), owned(top));
        let written = WrittenRules { tolerance: &tolerance, top: &top, max_psi: &[], max_ks: &[] };
        let mut rules = ReleaseRules::default();
        written.read_into(&mut rules, |name| format!("--{name}")).map(|()| rules)
    }

    #[test]
    fn a_rule_is_for_all_outputs_or_for_the_one_it_names() {
        let rules = read(&["0.5", "a=b=0"], &["a=b=3:0.9"]).expect("rules");
        assert_eq!(rules.outputs.tolerance, Some(0.5));
        assert_eq!(rules.outputs.top, None);
        let own = &rules.of_output["a=b"];
        assert_eq!(own.tolerance, Some(0.0));
        assert_eq!(own.top, Some(TopRule { count: 3, share: 0.9 }));
        let other = read(&["0.5"], &["y=1:1"]).expect("rules");
        assert_eq!(other.of_output["y"].tolerance, Some(0.5), "as for all");
    }

    #[test]
    fn what_is_no_rule_is_named() {
        for wrong in ["", "x", "-1", "nan", "y="] {
            let error = read(&[wrong], &[]).expect_err(wrong);
            assert!(error.message().starts_with(&format!("--tolerance {wrong}: ")), "{error}");
        }
        for wrong in ["1", "0:0.5", "1:1.5", "1:", "y=1:nan"] {
            let error = read(&[], &[wrong]).expect_err(wrong);
            assert!(error.message().starts_with(&format!("--top {wrong}: ")), "{error}");
        }
    }
}
