//! What the outputs of two versions of a model for the same requests have in common, and whether the new version may
//! take the place of the old one.

use std::collections::BTreeMap;

use tensorserve_tensor::{DType, Tensor, same};

mod rules;
mod scores;
mod signatures;

pub use self::rules::{MAX_SLOWDOWN, ReleaseRules, WrittenRules};
pub use self::scores::ScoreShift;
use self::scores::Scores;
pub use self::signatures::SignatureChanges;
pub(crate) use tensorserve_tensor::same::{Tolerance, difference, same_outputs};

/// What must hold for an output over all requests. Without any of it, values of each request may differ as much as
/// two exports of the same model usually do: by 1e-3 of the largest magnitude, or 2e-2 for floats of 2 bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputRules {
    /// The most that values may differ by in a request, as a fraction of the largest finite magnitude of the output
    /// there; 0 asks for equal bits. What is no real number must be equal.
    pub tolerance: Option<f64>,
    /// How often what is ranked first must stay the same.
    pub top: Option<TopRule>,
    /// The largest population stability index of the values of all requests.
    pub most_psi: Option<f64>,
    /// The largest Kolmogorov-Smirnov statistic of the values of all requests.
    pub most_ks: Option<f64>,
}

impl OutputRules {
    /// The tolerance for values of this type: only what is asked for holds, if something else is.
    fn tolerance(&self, dtype: DType) -> Option<f64> {
        let is_judged = self.top.is_some() || self.most_psi.is_some() || self.most_ks.is_some();
        let default = (!is_judged).then(|| Tolerance::Versions.of(dtype));
        self.tolerance.or(default)
    }
}

/// In at least `share` of all rows, the `count` largest values of the last dimension must be at the same places. Of
/// outputs that are no real numbers, such as labels, elements must be equal that often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopRule {
    /// How many places are compared, without their order.
    pub count: usize,
    /// From 0 to 1.
    pub share: f64,
}

/// What an output had in common in all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OutputFigures {
    /// Requests in which both versions had it.
    pub requests: u64,
    /// Those with equal bits.
    pub equal: u64,
    /// Those in which it had another type or shape.
    pub reshaped: u64,
    /// Those in which values differ by more than the tolerance, if there is one.
    pub beyond: u64,
    /// Values that are not finite in the new version and were so in the old one.
    pub no_longer_finite: u64,
    /// The largest difference, as a fraction of the largest finite magnitude.
    pub largest: f64,
    /// The number of its request.
    pub largest_in: u64,
    /// In which share of the rows what is ranked first is the same; `None` without rows.
    pub agreement: Option<f64>,
    /// How far the values of all requests are from those of the old version; `None` if they are no real numbers.
    pub shift: Option<ScoreShift>,
}

/// An output, as far as requests have shown it.
#[derive(Clone, Debug, Default)]
struct OutputStatistics {
    /// Its type in the old version; `None` before the first request.
    dtype: Option<DType>,
    /// Without what is found out of all requests.
    seen: OutputFigures,
    /// Rows, or elements, in which what is ranked first is the same.
    same_top: u64,
    /// All rows, or elements.
    rows: u64,
    old: Scores,
    new: Scores,
}

impl OutputStatistics {
    fn figures(&self) -> OutputFigures {
        OutputFigures { agreement: self.agreement(), shift: self.shift(), ..self.seen }
    }

    /// How far the values of all requests are from those of the old version; `None` if they are no real numbers.
    fn shift(&self) -> Option<ScoreShift> {
        scores::shift(&self.old, &self.new)
    }

    /// In which share of the rows what is ranked first is the same; `None` without rows.
    // Counts of one comparison are exact.
    #[allow(clippy::cast_precision_loss)]
    fn agreement(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.same_top as f64 / self.rows as f64)
    }

    /// Adds a request. Returns what is against its values, beside ranks and distributions, which are of all requests.
    fn add(
        &mut self,
        number: u64,
        old: &Tensor,
        new: &Tensor,
        rules: &OutputRules,
    ) -> Option<String> {
        self.seen.requests += 1;
        self.dtype = Some(old.dtype());
        if old.dtype() != new.dtype() || old.shape() != new.shape() {
            self.seen.reshaped += 1;
            return Some(format!("{new:?} instead of {old:?}"));
        }
        let (Some(a), Some(b)) = (same::floats(old), same::floats(new)) else {
            return self.add_exact(number, old, new, rules);
        };
        let is_equal = old.bytes() == new.bytes();
        self.seen.equal += u64::from(is_equal);
        let difference = if is_equal { 0.0 } else { same::largest_difference(&a, &b) };
        self.differs(number, difference);
        let tolerance = rules.tolerance(old.dtype());
        let is_beyond = |most: f64| if most == 0.0 { !is_equal } else { difference > most };
        let is_beyond = tolerance.is_some_and(is_beyond);
        self.seen.beyond += u64::from(is_beyond);
        let lost = a.iter().zip(&b).filter(|(a, b)| a.is_finite() && !b.is_finite());
        let lost = lost.count() as u64;
        self.seen.no_longer_finite += lost;
        // The only dimension of a vector is that of the examples.
        let width = match old.shape().dims() {
            [_, .., width] => usize::try_from(*width).unwrap_or(0),
            _ => 0,
        };
        if let (Some(top), true) = (rules.top.or(Some(TOP_1)), width > 1) {
            for (a, b) in a.chunks(width).zip(b.chunks(width)) {
                self.rows += 1;
                self.same_top += u64::from(leaders(a, top.count) == leaders(b, top.count));
            }
        }
        self.old.add(&a);
        self.new.add(&b);
        if is_beyond {
            return Some(match difference.is_finite() {
                true => format!("values differ by {difference:.2e} of the largest magnitude"),
                false => "values differ".to_owned(),
            });
        }
        let is_lost = lost > 0 && rules.tolerance.is_none();
        is_lost.then(|| format!("{lost} values are no longer finite"))
    }

    /// Adds what is compared to the bit.
    fn add_exact(
        &mut self,
        number: u64,
        old: &Tensor,
        new: &Tensor,
        rules: &OutputRules,
    ) -> Option<String> {
        let (same, all) = equal_elements(old, new);
        let is_equal = same == all;
        self.seen.equal += u64::from(is_equal);
        self.same_top += same;
        self.rows += all;
        self.differs(number, if is_equal { 0.0 } else { f64::INFINITY });
        let is_beyond = !is_equal && rules.tolerance(old.dtype()).is_some();
        self.seen.beyond += u64::from(is_beyond);
        is_beyond.then(|| format!("{} of {all} values differ", all - same))
    }

    fn differs(&mut self, number: u64, difference: f64) {
        if difference > self.seen.largest {
            (self.seen.largest, self.seen.largest_in) = (difference, number);
        }
    }

    /// What is against the values of single requests.
    fn against_values(&self, rules: &OutputRules) -> Vec<String> {
        let mut found = Vec::new();
        let of = self.seen.requests;
        if self.seen.reshaped > 0 {
            found.push(format!("another type or shape in {} of {of} requests", self.seen.reshaped));
        }
        if self.seen.beyond > 0 {
            let most = self.seen.largest_in;
            found.push(match self.seen.largest.is_finite() {
                true => format!(
                    "values differ by more than allowed in {} of {of} requests, the most in request {most}: by {:.2e} \
                     of the largest magnitude",
                    self.seen.beyond, self.seen.largest
                ),
                false => format!(
                    "values differ in {} of {of} requests, for example in request {most}",
                    self.seen.beyond
                ),
            });
        }
        if self.seen.no_longer_finite > 0 && rules.tolerance.is_none() {
            found.push(format!("{} values are no longer finite", self.seen.no_longer_finite));
        }
        found
    }

    /// What is against ranks and distributions, which are of all requests.
    fn against_sums(&self, rules: &OutputRules) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(top) = rules.top {
            match self.agreement() {
                Some(share) if share < top.share => found.push(format!(
                    "the first {} are the same in {:.2} % of {} rows, and must be in {:.2} %",
                    top.count,
                    share * 100.0,
                    self.rows,
                    top.share * 100.0
                )),
                Some(_) => {}
                None => {
                    found.push("it has no rows of several values that could be ranked".to_owned())
                }
            }
        }
        if rules.most_psi.is_none() && rules.most_ks.is_none() {
            return found;
        }
        let shift = self.shift();
        let limits = [
            ("population stability index", rules.most_psi, shift.map(|shift| shift.psi)),
            ("Kolmogorov-Smirnov statistic", rules.most_ks, shift.map(|shift| shift.ks)),
        ];
        for (name, most, is) in limits {
            match (most, is) {
                (Some(most), Some(is)) if is > most => {
                    found.push(format!("the {name} is {is:.3}, and may be {most}"));
                }
                (Some(_), None) => found.push(format!("it has no values for a {name}")),
                _ => {}
            }
        }
        found
    }
}

/// What is counted without a rule.
const TOP_1: TopRule = TopRule { count: 1, share: 0.0 };

/// The places of the `count` largest values, in ascending order. NaN is below all numbers; of equal values, the
/// first come first.
fn leaders(row: &[f64], count: usize) -> Vec<usize> {
    let key = |at: usize| row.get(at).copied().filter(|x| !x.is_nan()).unwrap_or(f64::NEG_INFINITY);
    let mut places: Vec<usize> = (0..row.len()).collect();
    places.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    places.truncate(count);
    places.sort_unstable();
    places
}

/// How many elements are equal, and all, of two tensors of one type and shape.
fn equal_elements(old: &Tensor, new: &Tensor) -> (u64, u64) {
    let count = |same: usize, all: usize| (same as u64, all as u64);
    if let (Some(a), Some(b)) = (old.strings(), new.strings()) {
        return count(a.iter().zip(b.iter()).filter(|(a, b)| a == b).count(), a.iter().count());
    }
    let size = old.dtype().size().unwrap_or(1).max(1);
    let (a, b) = (old.bytes().chunks(size), new.bytes().chunks(size));
    count(a.clone().zip(b).filter(|(a, b)| a == b).count(), a.count())
}

/// The outputs of a request, by name.
pub type NamedOutputs = Vec<(String, Tensor)>;

/// Rules for outputs, and what was seen of them.
#[derive(Clone, Debug, Default)]
pub struct VersionComparison {
    /// Of outputs without rules of their own.
    rules: OutputRules,
    of_output: BTreeMap<String, OutputRules>,
    outputs: BTreeMap<String, OutputStatistics>,
    requests: u64,
    /// Outputs that the new version does not have.
    missing: BTreeMap<String, u64>,
}

impl VersionComparison {
    /// With rules for outputs that have none of their own.
    #[must_use]
    pub fn new(rules: OutputRules, of_output: BTreeMap<String, OutputRules>) -> Self {
        VersionComparison { rules, of_output, ..VersionComparison::default() }
    }

    /// One with the same rules, also those that were widened, that has seen nothing.
    #[must_use]
    pub fn anew(&self) -> Self {
        VersionComparison::new(self.rules.clone(), self.of_output.clone())
    }

    fn rules_of(&self, output: &str) -> &OutputRules {
        self.of_output.get(output).unwrap_or(&self.rules)
    }

    /// Compares the outputs of the request with this number. Returns what is against the new ones in this request alone.
    pub fn add(&mut self, number: u64, old: &NamedOutputs, new: &NamedOutputs) -> Vec<String> {
        self.requests += 1;
        let mut against = Vec::new();
        let find = |all: &NamedOutputs, name: &str| {
            all.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor.clone())
        };
        for (name, tensor) in old {
            let Some(other) = find(new, name) else {
                *self.missing.entry(name.clone()).or_default() += 1;
                against.push(format!("output {name:?} is missing"));
                continue;
            };
            let rules = self.of_output.get(name).unwrap_or(&self.rules);
            let statistics = self.outputs.entry(name.clone()).or_default();
            let found = statistics.add(number, tensor, &other, rules);
            against.extend(found.map(|what| format!("output {name:?}: {what}")));
        }
        against
    }

    /// Allows as much as a version differs from itself: `noise` is the comparison of its outputs with its own of
    /// another run. Returns the outputs whose tolerance that widens, with the new one.
    pub fn widen(&mut self, noise: &VersionComparison) -> Vec<(String, f64)> {
        let mut widened = Vec::new();
        for (name, statistics) in &noise.outputs {
            let mut rules = self.rules_of(name).clone();
            let tolerance = statistics.dtype.and_then(|dtype| rules.tolerance(dtype));
            // The largest of few differences is less than the largest of many.
            let most = statistics.seen.largest * 2.0;
            let is_wider = tolerance.is_some_and(|tolerance| tolerance < most);
            if is_wider && most.is_finite() {
                rules.tolerance = Some(most);
                self.of_output.insert(name.clone(), rules);
                widened.push((name.clone(), most));
            }
        }
        widened
    }

    /// Requests that were compared.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// What was seen of each output.
    #[must_use]
    pub fn figures(&self) -> BTreeMap<String, OutputFigures> {
        let of = |(name, it): (&String, &OutputStatistics)| (name.clone(), it.figures());
        self.outputs.iter().map(of).collect()
    }

    /// What is against the new version; nothing if it may take the place of the old one.
    #[must_use]
    pub fn against(&self) -> Vec<String> {
        let mut found = self.against_seen(0);
        let unseen = |name: &&String| !self.outputs.contains_key(*name);
        for name in self.of_output.keys().filter(unseen) {
            found.push(format!("output {name:?}, for which there is a rule, was in no request"));
        }
        found
    }

    /// What is against the new version in the outputs that were seen. Ranks and distributions count for those of at least
    /// `fewest` requests: they are of all requests.
    pub(crate) fn against_seen(&self, fewest: u64) -> Vec<String> {
        let missing = self.missing.iter();
        let mut found: Vec<String> = missing
            .map(|(name, count)| format!("output {name:?} is missing in {count} requests"))
            .collect();
        for (name, statistics) in &self.outputs {
            let rules = self.rules_of(name);
            let mut against = statistics.against_values(rules);
            if statistics.seen.requests >= fewest {
                against.extend(statistics.against_sums(rules));
            }
            found.extend(against.into_iter().map(|what| format!("output {name:?}: {what}")));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{Element, Shape, StringsBuilder, aligned_vec};

    fn matrix<T: Element>(rows: &[&[T]]) -> Tensor {
        let mut values = aligned_vec(rows.iter().map(|row| row.len()).sum());
        rows.iter().for_each(|row| values.extend_from_slice(row));
        let shape = Shape::new(&[rows.len() as i64, rows[0].len() as i64]).expect("a shape");
        Tensor::from_vec(shape, values).expect("a tensor")
    }

    fn compared(rules: OutputRules, pairs: &[(Tensor, Tensor)]) -> VersionComparison {
        let mut comparison = VersionComparison::new(rules, BTreeMap::new());
        for (number, (old, new)) in (1..).zip(pairs) {
            comparison.add(number, &named(old), &named(new));
        }
        comparison
    }

    fn named(tensor: &Tensor) -> NamedOutputs {
        vec![("y".to_owned(), tensor.clone())]
    }

    fn rules(change: impl FnOnce(&mut OutputRules)) -> OutputRules {
        let mut rules = OutputRules::default();
        change(&mut rules);
        rules
    }

    #[test]
    fn rounding_is_allowed_and_more_is_not() {
        let old = matrix(&[&[1.0f32, 100.0]]);
        let near = matrix(&[&[1.05f32, 100.0]]);
        let far = matrix(&[&[2.0f32, 100.0]]);
        let pairs = [(old.clone(), near), (old.clone(), old.clone())];
        assert!(compared(OutputRules::default(), &pairs).against().is_empty());
        let exactly = rules(|rules| rules.tolerance = Some(0.0));
        let mut each = VersionComparison::new(exactly, BTreeMap::new());
        let found = pairs.each_ref().map(|(old, new)| each.add(1, &named(old), &named(new)));
        let what = "output \"y\": values differ by 5.00e-4 of the largest magnitude".to_owned();
        assert_eq!(found, [vec![what], Vec::new()]);
        let exact = compared(rules(|rules| rules.tolerance = Some(0.0)), &pairs);
        assert!(exact.against()[0].contains("in 1 of 2 requests"), "{:?}", exact.against());
        let found = compared(OutputRules::default(), &[(old.clone(), old.clone()), (old, far)]);
        let statistics = &found.figures()["y"];
        assert_eq!((statistics.equal, statistics.largest_in), (1, 2));
        assert!((statistics.largest - 0.01).abs() < 1e-6, "{statistics:?}");
        assert!(found.against()[0].contains("request 2: by 1.00e-2"), "{:?}", found.against());
    }

    #[test]
    fn zeros_with_another_sign_are_not_equal_bits() {
        let pair = [(matrix(&[&[0.0f32]]), matrix(&[&[-0.0f32]]))];
        assert!(compared(OutputRules::default(), &pair).against().is_empty());
        let exact = compared(rules(|rules| rules.tolerance = Some(0.0)), &pair);
        assert_eq!(exact.against().len(), 1);
    }

    #[test]
    fn what_is_no_longer_finite_is_found() {
        let old = matrix(&[&[1.0f32, f32::NAN]]);
        let same = compared(OutputRules::default(), &[(old.clone(), old.clone())]);
        assert!(same.against().is_empty(), "{:?}", same.against());
        let new = matrix(&[&[f32::NAN, f32::NAN]]);
        let ranked = rules(|rules| rules.most_ks = Some(1.0));
        let found = compared(ranked, &[(old.clone(), old.clone()), (old, new)]);
        assert!(found.against()[0].contains("1 values are no longer finite"));
    }

    #[test]
    fn ranks_may_stay_where_values_move() {
        let old = matrix(&[&[0.1f32, 0.9], &[0.7, 0.3], &[0.5, 0.5], &[0.2, 0.8]]);
        let moved = matrix(&[&[0.3f32, 0.7], &[0.6, 0.4], &[0.5, 0.5], &[0.6, 0.4]]);
        let with = |share: f64| {
            let rules = rules(|rules| rules.top = Some(TopRule { count: 1, share }));
            compared(rules, &[(old.clone(), moved.clone())])
        };
        assert!(with(0.75).against().is_empty(), "{:?}", with(0.75).against());
        let against = with(0.8).against();
        assert!(against[0].contains("75.00 % of 4 rows"), "{against:?}");
        // All of two places are the same two.
        let both = rules(|rules| rules.top = Some(TopRule { count: 2, share: 1.0 }));
        assert!(compared(both, &[(old.clone(), moved.clone())]).against().is_empty());
        let column = matrix(&[&[1.0f32], &[2.0]]);
        let against = compared(
            rules(|rules| rules.top = Some(TopRule { count: 1, share: 0.5 })),
            &[(column.clone(), column)],
        );
        assert!(against.against()[0].contains("no rows of several values"));
        assert_eq!(leaders(&[f64::NAN, 1.0, 3.0, 3.0], 2), [2, 3]);
    }

    #[test]
    fn labels_agree_element_by_element() {
        let old = matrix(&[&[1i64, 2, 3, 4]]);
        let new = matrix(&[&[1i64, 2, 3, 5]]);
        let pair = [(old, new)];
        assert!(!compared(OutputRules::default(), &pair).against().is_empty());
        let most = rules(|rules| rules.top = Some(TopRule { count: 1, share: 0.75 }));
        assert!(compared(most, &pair).against().is_empty());
        let texts = |last: &str| {
            let mut builder = StringsBuilder::default();
            ["a", last].iter().for_each(|text| builder.push(text.as_bytes()));
            Tensor::from_strings(Shape::vector(2), builder).expect("a tensor")
        };
        let found = compared(OutputRules::default(), &[(texts("b"), texts("c"))]);
        assert_eq!(found.figures()["y"].agreement, Some(0.5));
        assert!(found.against()[0].contains("for example in request 1"));
    }

    #[test]
    fn distributions_are_judged_over_all_requests() {
        let column = |from: f32| {
            let values: Vec<f32> = (0..100).map(|n| from + n as f32 / 100.0).collect();
            matrix(&[&values])
        };
        let pairs = [(column(0.0), column(0.5)), (column(1.0), column(1.5))];
        let lenient = rules(|rules| rules.most_ks = Some(0.3));
        assert!(compared(lenient, &pairs).against().is_empty());
        let strict = rules(|rules| (rules.most_ks, rules.most_psi) = (Some(0.1), Some(0.1)));
        let against = compared(strict.clone(), &pairs).against();
        assert!(against[0].contains("population stability index"), "{against:?}");
        assert!(against[1].contains("Kolmogorov-Smirnov statistic is 0.25"), "{against:?}");
        assert_eq!(compared(strict.clone(), &pairs).against_seen(2), against);
        assert!(compared(strict, &pairs).against_seen(3).is_empty(), "too few requests");
    }

    #[test]
    fn outputs_that_come_and_go_are_named() {
        let tensor = matrix(&[&[1.0f32]]);
        let rule = [("z".to_owned(), OutputRules::default())].into();
        let mut comparison = VersionComparison::new(OutputRules::default(), rule);
        comparison.add(1, &named(&tensor), &vec![("x".to_owned(), tensor.clone())]);
        let against = comparison.against();
        assert!(against[0].contains("\"y\" is missing in 1 requests"), "{against:?}");
        assert!(against[1].contains("\"z\", for which there is a rule"), "{against:?}");
        assert_eq!(comparison.against_seen(0), against[..1], "nobody asked for z");
        let reshaped = [(tensor, matrix(&[&[1.0f32, 2.0]]))];
        let found = compared(OutputRules::default(), &reshaped);
        assert!(found.against()[0].contains("another type or shape in 1 of 1"));
    }

    #[test]
    fn a_model_that_differs_from_itself_gets_as_much() {
        let (first, second) = (matrix(&[&[100.0f32]]), matrix(&[&[101.0f32]]));
        let noise = compared(OutputRules::default(), &[(first.clone(), second)]);
        let mut comparison = VersionComparison::new(OutputRules::default(), BTreeMap::new());
        let widened = comparison.widen(&noise);
        assert!(widened[0].0 == "y" && (widened[0].1 - 0.02).abs() < 1e-6, "{widened:?}");
        comparison.add(1, &named(&first), &named(&matrix(&[&[101.5f32]])));
        assert!(comparison.against().is_empty(), "{:?}", comparison.against());
        comparison.add(2, &named(&first), &named(&matrix(&[&[103.0f32]])));
        assert_eq!(comparison.against().len(), 1);
        // Less than what is allowed anyway makes no rule stricter, and ranks alone say nothing about values.
        let slight = compared(
            rules(|rules| rules.tolerance = Some(0.0)),
            &[(first.clone(), matrix(&[&[100.001f32]]))],
        );
        let mut usual = VersionComparison::new(OutputRules::default(), BTreeMap::new());
        assert_eq!(usual.widen(&slight), []);
        let ranks = rules(|rules| rules.most_ks = Some(0.5));
        let mut ranked = VersionComparison::new(ranks, BTreeMap::new());
        assert_eq!(ranked.widen(&noise), []);
    }
}
