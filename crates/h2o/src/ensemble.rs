//! Stacked ensembles: the predictions of several models are the features of another.
//!
//! Source: `StackedEnsembleMojoModel` and `MultiModelMojoReader` of h2o-genmodel 3.46.0.6.

use std::collections::HashMap;

use super::files::MojoFiles;
use super::head::{MojoHead, MojoScorer};
use super::model::read_scorer;
use super::numeric::{java_max, java_min};
use tensorserve_tensor::error::{Error, Result};

/// The most models of an ensemble.
const MAX_MODELS: usize = 4096;

/// An ensemble.
pub(super) struct Ensemble {
    columns: usize,
    /// `None` for a model that the last one does not use.
    models: Vec<Option<BaseModel>>,
    last: Box<dyn MojoScorer>,
    classes: usize,
    /// Whether the last model takes logarithms of odds.
    takes_odds: bool,
}

struct BaseModel {
    scorer: Box<dyn MojoScorer>,
    /// For each of its features the column of the ensemble.
    columns: Vec<usize>,
}

/// A model within the ensemble.
struct InnerModel {
    head: MojoHead,
    scorer: Box<dyn MojoScorer>,
}

impl Ensemble {
    /// Reads the ensemble.
    pub(super) fn read(files: &MojoFiles, head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let mut inner = read_inner(files, head)?;
        let mut models = Vec::new();
        let count = info.size("base_models_num")?;
        if count > MAX_MODELS {
            return Err(Error::unsupported(format!("{count} models in an ensemble are too many")));
        }
        for number in 0..count {
            let Some(key) = info.text(&format!("base_model{number}")) else {
                models.push(None);
                continue;
            };
            let model = take(&mut inner, key)?;
            models.push(Some(BaseModel::new(model, head).map_err(|error| error.context(key))?));
        }
        let last = take(&mut inner, info.required("metalearner")?)?;
        let per_model = if head.classes > 2 { head.classes } else { 1 };
        let (has, needs) = (count * per_model, last.head.features);
        if has != needs || last.head.classes != head.classes {
            return Err(Error::damaged(format!(
                "the models of the ensemble make {has} features, and the last takes {needs}"
            )));
        }
        let takes_odds = match info.text("metalearner_transform") {
            None | Some("NONE") => false,
            Some("Logit") => true,
            Some(other) => {
                return Err(Error::unsupported(format!(
                    "the transform {other:?} is not supported"
                )));
            }
        };
        Ok(Ensemble {
            columns: head.features,
            models,
            last: last.scorer,
            classes: head.classes,
            // Not of numbers.
            takes_odds: takes_odds && head.classes > 1,
        })
    }

    /// The numbers of a prediction of a model.
    fn width(&self) -> usize {
        if self.classes > 1 { self.classes + 1 } else { 1 }
    }

    /// The numbers of a prediction that are features of the last model.
    fn taken<'p>(&self, prediction: &'p [f64]) -> &'p [f64] {
        let taken = match self.classes {
            1 => prediction.get(..1),
            2 => prediction.get(2..),
            _ => prediction.get(1..),
        };
        taken.unwrap_or_default()
    }
}

/// Reads the models within the ensemble.
fn read_inner(files: &MojoFiles, head: &MojoHead) -> Result<HashMap<String, InnerModel>> {
    let mut inner = HashMap::new();
    let count = head.info.size("submodel_count")?;
    if count > MAX_MODELS {
        return Err(Error::unsupported(format!("{count} models in an ensemble are too many")));
    }
    for number in 0..count {
        let key = head.info.required(&format!("submodel_key_{number}"))?;
        let folder = head.info.required(&format!("submodel_dir_{number}"))?;
        if folder.is_empty() {
            return Err(Error::damaged("a model of the ensemble has no folder"));
        }
        let files = files.within(folder);
        let read = || -> Result<InnerModel> {
            let head = MojoHead::read(&files)?;
            if head.offset_column().is_some() {
                return Err(Error::unsupported(
                    "a model with offsets in an ensemble is not supported",
                ));
            }
            let scorer = read_scorer(&files, &head)?;
            Ok(InnerModel { head, scorer })
        };
        inner.insert(key.to_owned(), read().map_err(|error| error.context(key))?);
    }
    Ok(inner)
}

fn take(inner: &mut HashMap<String, InnerModel>, key: &str) -> Result<InnerModel> {
    inner.remove(key).ok_or_else(|| Error::damaged(format!("the ensemble has no model {key:?}")))
}

impl BaseModel {
    fn new(model: InnerModel, ensemble: &MojoHead) -> Result<Self> {
        let InnerModel { head, scorer } = model;
        if head.classes != ensemble.classes || head.is_classifier() != ensemble.is_classifier() {
            return Err(Error::damaged("the model has other classes than the ensemble"));
        }
        let all: HashMap<&str, (usize, Option<&[String]>)> = ensemble
            .features()
            .enumerate()
            .map(|(index, (name, levels))| (name, (index, levels)))
            .collect();
        let mut columns = Vec::new();
        for (name, levels) in head.features() {
            let Some((index, own)) = all.get(name) else {
                return Err(Error::damaged(format!("the ensemble has no column {name:?}")));
            };
            if *own != levels {
                return Err(Error::unsupported(format!(
                    "the column {name:?} has other levels than in the ensemble: train the models \
                     on the same frame"
                )));
            }
            columns.push(*index);
        }
        Ok(BaseModel { scorer, columns })
    }

    /// The rows of the ensemble with the columns of the model.
    fn rows(&self, rows: &[f64], columns: usize) -> Vec<f64> {
        let mut own = Vec::with_capacity(rows.len() / columns.max(1) * self.columns.len());
        for row in rows.chunks_exact(columns.max(1)) {
            let values = self.columns.iter().map(|index| row.get(*index).copied());
            own.extend(values.map(|value| value.unwrap_or(f64::NAN)));
        }
        own
    }
}

impl MojoScorer for Ensemble {
    fn score(&self, rows: &mut [f64], offsets: &[f64], predictions: &mut [f64]) {
        let count = rows.len() / self.columns.max(1);
        let per_model = if self.classes > 2 { self.classes } else { 1 };
        let features = self.models.len() * per_model;
        let width = self.width();
        let mut last_rows = vec![0.0; count * features];
        let mut scores = vec![0.0; count * width];
        for (number, model) in self.models.iter().enumerate() {
            let Some(model) = model else { continue };
            let mut own = model.rows(rows, self.columns);
            model.scorer.score(&mut own, offsets, &mut scores);
            let rows = last_rows.chunks_exact_mut(features.max(1));
            for (row, score) in rows.zip(scores.chunks_exact(width)) {
                let to = row.get_mut(number * per_model..).unwrap_or_default();
                to.iter_mut().zip(self.taken(score)).for_each(|(to, from)| *to = *from);
            }
        }
        if self.takes_odds {
            last_rows.iter_mut().for_each(|x| *x = log_odds(*x));
        }
        self.last.score(&mut last_rows, offsets, predictions);
    }
}

/// The logarithm of the odds of a probability, within H2O's bounds.
fn log_odds(probability: f64) -> f64 {
    const LEAST: f64 = 1e-9;
    let probability = java_min(1.0 - LEAST, java_max(probability, LEAST));
    let odds = probability / (1.0 - probability);
    if odds == 0.0 { -19.0 } else { java_max(-19.0, odds.ln()) }
}
