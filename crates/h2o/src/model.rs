//! A model as it is evaluated, whatever its algorithm.

use super::calibration::MojoCalibration;
use super::ensemble::Ensemble;
use super::extended::ExtendedIsolationForest;
use super::files::MojoFiles;
use super::glm::LinearModel;
use super::head::{MAX_WIDTH, MojoHead, MojoScorer};
use super::inputs::MojoInput;
use super::kmeans::KMeans;
use super::network::Network;
use super::trees::MojoTreeModel;
use super::xgboost::BoosterModel;
use tensorserve_tensor::error::{Error, Result};

/// The output with the predicted class or number.
const PREDICT: &str = "predict";

/// The scorer of the model in `files`.
pub(super) fn read_scorer(files: &MojoFiles, head: &MojoHead) -> Result<Box<dyn MojoScorer>> {
    let algorithm = head.algorithm()?;
    head.check_version(algorithm)?;
    match algorithm {
        "gbm" => Ok(Box::new(MojoTreeModel::read_boosted(files, head)?)),
        "drf" => Ok(Box::new(MojoTreeModel::read_random(files, head)?)),
        "isolationforest" => Ok(Box::new(MojoTreeModel::read_isolation(files, head)?)),
        "extendedisolationforest" => Ok(Box::new(ExtendedIsolationForest::read(files, head)?)),
        "glm" => Ok(Box::new(LinearModel::read(head)?)),
        "kmeans" => Ok(Box::new(KMeans::read(head)?)),
        "deeplearning" => Ok(Box::new(Network::read(head)?)),
        "xgboost" => Ok(Box::new(BoosterModel::read(files, head)?)),
        "stackedensemble" if !files.is_nested() => Ok(Box::new(Ensemble::read(files, head)?)),
        algorithm => Err(Error::unsupported(format!(
            "the algorithm {algorithm:?} is not supported, only gbm, drf, glm, xgboost, \
             deeplearning, kmeans, isolationforest, extendedisolationforest and stackedensemble: \
             score this model with h2o-genmodel"
        ))),
    }
}

/// A loaded model.
pub(super) struct MojoModel {
    /// The version of H2O that wrote it; empty if not recorded.
    pub(super) written_by: String,
    pub(super) features: usize,
    /// The numbers of a prediction.
    pub(super) width: usize,
    pub(super) inputs: Vec<MojoInput>,
    pub(super) outputs: Vec<MojoOutput>,
    pub(super) scorer: Box<dyn MojoScorer>,
    pub(super) labels: Vec<String>,
    pub(super) calibration: Option<MojoCalibration>,
}

/// An output, and where it is in a prediction.
pub(super) struct MojoOutput {
    pub(super) name: String,
    pub(super) value: OutputValue,
}

/// What an output is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputValue {
    /// The name of the class whose index is the first number.
    Label,
    /// The integer that is the first number.
    Integer,
    /// The number at this index.
    Number(usize),
    /// The calibrated probability of the first (0) or second class.
    Calibrated(usize),
    /// Numbers: the index of the first, and how many.
    Numbers(usize, usize),
}

impl MojoModel {
    /// Reads a model.
    pub(super) fn read(files: &MojoFiles) -> Result<Self> {
        let head = MojoHead::read(files)?;
        let scorer = read_scorer(files, &head)?;
        let calibration = MojoCalibration::read(files, &head)?;
        let (outputs, width) = outputs(&head, calibration.is_some())?;
        let labels = match head.response() {
            Some(labels) if head.is_classifier() && labels.len() == head.classes => labels.to_vec(),
            None if head.classes == 2 => vec!["0".to_owned(), "1".to_owned()],
            _ if !head.is_classifier() => Vec::new(),
            _ => return Err(Error::damaged("the classes do not have a name each")),
        };
        Ok(MojoModel {
            written_by: head.info.text("h2o_version").unwrap_or_default().to_owned(),
            features: head.features,
            width,
            inputs: MojoInput::read(files, &head)?,
            outputs,
            scorer,
            labels,
            calibration,
        })
    }
}

/// The outputs of a model, and the numbers of a prediction.
fn outputs(head: &MojoHead, is_calibrated: bool) -> Result<(Vec<MojoOutput>, usize)> {
    let number = |name: &str, index| (name.to_owned(), OutputValue::Number(index));
    let (named, width) = match &*head.category {
        "Binomial" | "Multinomial" | "Ordinal" => {
            (class_outputs(head, is_calibrated)?, head.classes + 1)
        }
        "Regression" => (vec![number(PREDICT, 0)], 1),
        "Clustering" => {
            let clusters = head.info.size("center_num")?;
            let distances = OutputValue::Numbers(1, clusters);
            let cluster = ("cluster".to_owned(), OutputValue::Integer);
            (vec![cluster, ("distances".to_owned(), distances)], clusters.saturating_add(1))
        }
        "AnomalyDetection" if head.algorithm()? == "extendedisolationforest" => {
            (vec![number("anomaly_score", 0), number("mean_length", 1)], 2)
        }
        "AnomalyDetection" if head.info.flag_or("output_anomaly_flag", false)? => {
            let flag = (PREDICT.to_owned(), OutputValue::Integer);
            (vec![flag, number("score", 1), number("mean_length", 2)], 3)
        }
        "AnomalyDetection" => (vec![number(PREDICT, 0), number("mean_length", 1)], 2),
        "AutoEncoder" => {
            let sizes = head.info.sizes("neural_network_sizes")?;
            let units = sizes.last().copied().unwrap_or(0);
            let reconstructed = OutputValue::Numbers(0, units);
            let named = vec![("reconstructed".to_owned(), reconstructed), number("mse", units)];
            (named, units.saturating_add(1))
        }
        category => {
            return Err(Error::unsupported(format!(
                "models of the category {category} are not supported"
            )));
        }
    };
    if width > MAX_WIDTH {
        return Err(Error::unsupported(format!(
            "a prediction has {width} numbers, more than {MAX_WIDTH}"
        )));
    }
    let mut outputs: Vec<MojoOutput> =
        named.into_iter().map(|(name, value)| MojoOutput { name, value }).collect();
    outputs.sort_by(|a, b| a.name.cmp(&b.name));
    if outputs.windows(2).any(|pair| matches!(pair, [a, b] if a.name == b.name)) {
        return Err(Error::damaged("two classes of the model have the same name"));
    }
    Ok((outputs, width))
}

/// The predicted class, and the probability of each, under the names that H2O gives the columns of a
/// prediction: that of the class, with `p` before an integer.
fn class_outputs(head: &MojoHead, is_calibrated: bool) -> Result<Vec<(String, OutputValue)>> {
    let names: Vec<String> = match head.response() {
        Some(labels) => labels.iter().map(|label| column_name(label)).collect(),
        None if head.algorithm()? == "glm" => vec!["0".to_owned(), "1".to_owned()],
        None => vec!["pVal0".to_owned(), "pVal1".to_owned()],
    };
    let mut outputs = vec![(PREDICT.to_owned(), OutputValue::Label)];
    for (index, name) in names.into_iter().enumerate() {
        if is_calibrated {
            outputs.push((format!("cal_{name}"), OutputValue::Calibrated(index)));
        }
        outputs.push((name, OutputValue::Number(index + 1)));
    }
    Ok(outputs)
}

/// The name of the column with the probability of the class `label`.
fn column_name(label: &str) -> String {
    if label.parse::<i32>().is_ok() || label == PREDICT {
        return format!("p{label}");
    }
    label.to_owned()
}
