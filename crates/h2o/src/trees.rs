//! Gradient boosting machines, random forests and isolation forests.
//!
//! Source: `GbmMojoModel`, `DrfMojoModel` and `IsolationForestMojoModel` of h2o-genmodel 3.46.0.6.

use super::classes::ClassRule;
use super::compressed::{TreeFormat, add_tree};
use super::files::MojoFiles;
use super::forest::MojoForest;
use super::head::{MojoHead, MojoScorer};
use super::info::MojoInfo;
use super::link::bounded_mean;
use super::numeric::float;
use tensorserve_tabular::numeric::{Link, softmax};
use tensorserve_tensor::error::{Error, Result};

/// The most trees of a model.
const MAX_TREES: usize = 1 << 20;

/// A model of trees.
pub(super) struct MojoTreeModel {
    forest: MojoForest,
    columns: usize,
    /// Sums of a row.
    sums: usize,
    finish: Finish,
}

/// How the sums of a row become its prediction.
enum Finish {
    /// A sum, with the start and the offset, is the predicted number.
    BoostedNumber {
        link: Link,
        start: f64,
    },
    /// A sum is the logarithm of the odds of the second of two classes.
    BoostedPair {
        link: Link,
        start: f64,
        rule: ClassRule,
    },
    /// Sums are logarithms of the probabilities of classes.
    BoostedClasses {
        start: f64,
        rule: ClassRule,
    },
    /// Means of the number of trees.
    MeanNumber {
        trees: f64,
    },
    /// The mean is the probability of the first of two classes.
    MeanPair {
        trees: f64,
        rule: ClassRule,
    },
    /// Sums are in the proportion of the probabilities.
    Proportions {
        rule: ClassRule,
    },
    Isolation {
        trees: f64,
        shortest: f64,
        longest: f64,
        threshold: Option<f64>,
    },
}

fn read_link(info: &MojoInfo, family: &str) -> Result<Link> {
    let by_family = match family {
        "bernoulli" | "fractionalbinomial" | "quasibinomial" | "modified_huber" | "ordinal" => {
            "logit"
        }
        "multinomial" | "poisson" | "gamma" | "tweedie" => "log",
        _ => "identity",
    };
    match info.text("link_function").unwrap_or(by_family) {
        "identity" | "tweedie" => Ok(Link::Identity),
        "log" => Ok(Link::Log),
        "logit" | "ologit" => Ok(Link::Logit),
        "inverse" => Ok(Link::Inverse),
        other => Err(Error::unsupported(format!("the link function {other:?} is not supported"))),
    }
}

impl MojoTreeModel {
    /// Reads a gradient boosting machine.
    pub(super) fn read_boosted(files: &MojoFiles, head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let family = info.required("distribution")?;
        let link = read_link(info, family)?;
        let start = info.number("init_f")?;
        let finish = match (family, head.classes) {
            ("bernoulli" | "quasibinomial" | "modified_huber", 2) => {
                Finish::BoostedPair { link, start, rule: ClassRule::read(info, 2)? }
            }
            ("multinomial", classes) if classes > 1 => {
                Finish::BoostedClasses { start, rule: ClassRule::read(info, classes)? }
            }
            (_, 1) => Finish::BoostedNumber { link, start },
            (family, classes) => {
                return Err(Error::damaged(format!(
                    "the distribution {family} does not fit {classes} classes"
                )));
            }
        };
        Self::read(files, head, finish)
    }

    /// Reads a random forest.
    pub(super) fn read_random(files: &MojoFiles, head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let trees = float(info.size("n_trees")?);
        let finish = match head.classes {
            1 => Finish::MeanNumber { trees },
            2 if !info.flag_or("binomial_double_trees", false)? => {
                Finish::MeanPair { trees, rule: ClassRule::read(info, 2)? }
            }
            classes => Finish::Proportions { rule: ClassRule::read(info, classes)? },
        };
        Self::read(files, head, finish)
    }

    /// Reads an isolation forest.
    pub(super) fn read_isolation(files: &MojoFiles, head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let flags = info.flag_or("output_anomaly_flag", false)?;
        let threshold = info.number_or("default_threshold", 0.5)?;
        let finish = Finish::Isolation {
            trees: float(info.size("n_trees")?),
            shortest: info.number_or("min_path_length", 0.0)?,
            longest: info.number_or("max_path_length", 0.0)?,
            threshold: flags.then_some(threshold),
        };
        Self::read(files, head, finish)
    }

    fn read(files: &MojoFiles, head: &MojoHead, finish: Finish) -> Result<Self> {
        let info = &head.info;
        let groups = info.size("n_trees")?;
        let per_group = info.size_or("n_trees_per_class", head.default_trees(info)?)?;
        let (fits, sums) = match &finish {
            Finish::BoostedClasses { rule, .. } => {
                let is_single = rule.classes == 2 && per_group == 1;
                (per_group == rule.classes || is_single, rule.classes)
            }
            Finish::Proportions { rule } => (per_group == rule.classes, per_group),
            Finish::BoostedNumber { .. }
            | Finish::BoostedPair { .. }
            | Finish::MeanNumber { .. }
            | Finish::MeanPair { .. }
            | Finish::Isolation { .. } => (per_group == 1, 1),
        };
        if !fits {
            let classes = head.classes;
            return Err(Error::damaged(format!(
                "model.ini: n_trees_per_class is {per_group}, for {classes} classes"
            )));
        }
        if groups.checked_mul(per_group).is_none_or(|trees| trees > MAX_TREES) {
            return Err(Error::unsupported(format!(
                "the model has {groups} times {per_group} trees; {MAX_TREES} are supported"
            )));
        }
        let format = TreeFormat::of_mojo(info.number("mojo_version")?);
        let mut forest = MojoForest::default();
        for output in 0..per_group {
            for group in 0..groups {
                let name = format!("trees/t{output:02}_{group:03}.bin");
                if !files.has(&name) {
                    continue;
                }
                let bytes = files.read(&name)?;
                add_tree(&mut forest, &bytes, output, head.features, format)
                    .map_err(|error| error.context(&name))?;
            }
        }
        Ok(MojoTreeModel { forest, columns: head.features, sums, finish })
    }
}

impl MojoScorer for MojoTreeModel {
    fn score(&self, rows: &mut [f64], offsets: &[f64], predictions: &mut [f64]) {
        let count = rows.len() / self.columns.max(1);
        let width = predictions.len() / count.max(1);
        let mut sums = vec![0.0; count * self.sums];
        self.forest.add_to(&mut sums, self.sums, rows, self.columns);
        let rows = rows.chunks_exact(self.columns.max(1));
        let sums = sums.chunks_exact(self.sums.max(1));
        let predictions = predictions.chunks_exact_mut(width.max(1));
        for (index, ((row, sums), prediction)) in rows.zip(sums).zip(predictions).enumerate() {
            let offset = offsets.get(index).copied().unwrap_or(0.0);
            self.finish.apply(sums, offset, row, prediction);
        }
    }
}

impl Finish {
    fn apply(&self, sums: &[f64], offset: f64, row: &[f64], prediction: &mut [f64]) {
        let sum = sums.first().copied().unwrap_or(f64::NAN);
        match self {
            Finish::BoostedNumber { link, start } => {
                prediction.fill(bounded_mean(*link, sum + start + offset));
            }
            Finish::MeanNumber { trees } => prediction.fill(sum / trees),
            Finish::BoostedPair { link, start, rule } => {
                let second = bounded_mean(*link, sum + start + offset);
                put(prediction, &[0.0, 1.0 - second, second]);
                rule.decide(prediction, row);
            }
            Finish::MeanPair { trees, rule } => {
                let first = sum / trees;
                put(prediction, &[0.0, first, 1.0 - first]);
                rule.decide(prediction, row);
            }
            Finish::BoostedClasses { start, rule } => {
                if rule.classes == 2 {
                    let first = sum + start + offset;
                    put(prediction, &[0.0, first, -first]);
                } else {
                    put(prediction.get_mut(1..).unwrap_or_default(), sums);
                }
                softmax(prediction.get_mut(1..).unwrap_or_default());
                rule.decide(prediction, row);
            }
            Finish::Proportions { rule } => {
                let probabilities = prediction.get_mut(1..).unwrap_or_default();
                put(probabilities, sums);
                let total: f64 = sums.iter().sum();
                if total > 0.0 {
                    probabilities.iter_mut().for_each(|probability| *probability /= total);
                }
                rule.decide(prediction, row);
            }
            Finish::Isolation { trees, shortest, longest, threshold } => {
                let mean = if *trees >= 1.0 { sum / trees } else { 0.0 };
                let range = longest - shortest;
                let score = if range > 0.0 { (longest - sum) / range } else { 1.0 };
                match threshold {
                    None => put(prediction, &[score, mean]),
                    Some(threshold) => {
                        let flag = f64::from(u8::from(score > *threshold));
                        put(prediction, &[flag, score, mean]);
                    }
                }
            }
        }
    }
}

fn put(to: &mut [f64], from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}
