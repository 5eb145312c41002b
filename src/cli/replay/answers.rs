//! Responses as named tensors, which can be compared: those that a log has, and those of the server.

use tensorserve_core::comparison::NamedOutputs;
use tensorserve_proto::serving::inference_result::Result as TaskOutcome;
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{
    ClassificationResponse, ClassificationResult, ModelSpec, MultiInferenceResponse,
    PredictResponse, PredictionLog, RegressionResponse, RegressionResult,
};
use tensorserve_proto::tensor_from_proto;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Shape, StringsBuilder, Tensor, aligned_vec};

use prost::Message;

/// What a response says.
pub(super) struct AnswerTensors {
    pub(super) outputs: NamedOutputs,
    /// The version that it names.
    pub(super) version: Option<i64>,
}

/// The kind of the response to a recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    Tensors,
    Classes,
    Values,
    Tasks,
}

impl AnswerKind {
    /// That of a record; `None` if it cannot be sent.
    pub(super) fn of(record: &PredictionLog) -> Option<Self> {
        match record.log_type.as_ref()? {
            LogType::PredictLog(_) => Some(AnswerKind::Tensors),
            LogType::ClassifyLog(_) => Some(AnswerKind::Classes),
            LogType::RegressLog(_) => Some(AnswerKind::Values),
            LogType::MultiInferenceLog(_) => Some(AnswerKind::Tasks),
            LogType::SessionRunLog(_) | LogType::PredictStreamedLog(_) => None,
        }
    }

    /// A response of this kind.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn read(self, message: &[u8]) -> Result<AnswerTensors> {
        let read = match self {
            AnswerKind::Tensors => PredictResponse::decode(message).map(of_tensors),
            AnswerKind::Classes => ClassificationResponse::decode(message).map(of_classes),
            AnswerKind::Values => RegressionResponse::decode(message).map(of_values),
            AnswerKind::Tasks => MultiInferenceResponse::decode(message).map(of_tasks),
        };
        let wrong = |e| Error::invalid("the answer is no message of its method").with_source(e);
        read.map_err(wrong)?
    }
}

/// The response in a record; `None` if it has none.
///
/// # Errors
/// If a tensor of it is damaged.
pub(super) fn recorded(record: &PredictionLog) -> Result<Option<AnswerTensors>> {
    let read = match &record.log_type {
        Some(LogType::PredictLog(log)) => log.response.clone().map(of_tensors),
        Some(LogType::ClassifyLog(log)) => log.response.clone().map(of_classes),
        Some(LogType::RegressLog(log)) => log.response.clone().map(of_values),
        Some(LogType::MultiInferenceLog(log)) => log.response.clone().map(of_tasks),
        Some(LogType::SessionRunLog(_) | LogType::PredictStreamedLog(_)) | None => None,
    };
    read.transpose()
}

fn of_tensors(response: PredictResponse) -> Result<AnswerTensors> {
    let outputs = response.outputs.iter().map(|(name, tensor)| {
        let tensor =
            tensor_from_proto(tensor).map_err(|error| error.context(format!("output {name:?}")))?;
        Ok((name.clone(), tensor))
    });
    Ok(AnswerTensors {
        outputs: outputs.collect::<Result<_>>()?,
        version: version_of(response.model_spec.as_ref()),
    })
}

fn of_classes(response: ClassificationResponse) -> Result<AnswerTensors> {
    let version = version_of(response.model_spec.as_ref());
    let outputs = classes("", &response.result.unwrap_or_default())?;
    Ok(AnswerTensors { outputs, version })
}

fn of_values(response: RegressionResponse) -> Result<AnswerTensors> {
    let version = version_of(response.model_spec.as_ref());
    let outputs = values("", &response.result.unwrap_or_default())?;
    Ok(AnswerTensors { outputs, version })
}

fn of_tasks(response: MultiInferenceResponse) -> Result<AnswerTensors> {
    let mut all = AnswerTensors { outputs: NamedOutputs::new(), version: None };
    for task in response.results {
        let spec = task.model_spec.unwrap_or_default();
        all.version = all.version.or(version_of(Some(&spec)));
        let prefix = format!("{}/", spec.signature_name);
        all.outputs.extend(match task.result {
            Some(TaskOutcome::ClassificationResult(result)) => classes(&prefix, &result)?,
            Some(TaskOutcome::RegressionResult(result)) => values(&prefix, &result)?,
            None => NamedOutputs::new(),
        });
    }
    Ok(all)
}

fn version_of(spec: Option<&ModelSpec>) -> Option<i64> {
    match spec?.version_choice.as_ref()? {
        VersionChoice::Version(version) => Some(*version),
        VersionChoice::VersionLabel(_) => None,
    }
}

/// The labels and the scores of classes: a row for each example, if all have equally many.
fn classes(prefix: &str, result: &ClassificationResult) -> Result<NamedOutputs> {
    let rows = &result.classifications;
    let all: Vec<_> = rows.iter().flat_map(|row| &row.classes).collect();
    let width = rows.first().map_or(0, |row| row.classes.len());
    let shape = match rows.iter().all(|row| row.classes.len() == width) {
        true => Shape::new(&[size(rows.len()), size(width)])?,
        false => Shape::vector(all.len()),
    };
    let (mut labels, mut scores) = (StringsBuilder::default(), aligned_vec(all.len()));
    for class in all {
        labels.push(class.label.as_bytes());
        scores.push(class.score);
    }
    Ok(vec![
        (format!("{prefix}classes"), Tensor::from_strings(shape.clone(), labels)?),
        (format!("{prefix}scores"), Tensor::from_vec(shape, scores)?),
    ])
}

fn values(prefix: &str, result: &RegressionResult) -> Result<NamedOutputs> {
    let mut all = aligned_vec(result.regressions.len());
    result.regressions.iter().for_each(|regression| all.push(regression.value));
    let shape = Shape::vector(result.regressions.len());
    Ok(vec![(format!("{prefix}values"), Tensor::from_vec(shape, all)?)])
}

fn size(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_proto::serving::{Class, Classifications, InferenceResult, Regression};

    fn row(classes: &[(&str, f32)]) -> Classifications {
        let class = |(label, score): &(&str, f32)| Class { label: (*label).into(), score: *score };
        Classifications { classes: classes.iter().map(class).collect() }
    }

    #[test]
    fn classes_are_labels_and_scores_by_rows() {
        let all = |rows: &[Classifications]| {
            let result = ClassificationResult { classifications: rows.to_vec() };
            classes("", &result).expect("tensors")
        };
        let even = all(&[row(&[("a", 0.25), ("b", 0.75)]), row(&[("a", 1.0), ("b", 0.0)])]);
        let names: Vec<&str> = even.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["classes", "scores"]);
        assert!(even.iter().all(|(_, tensor)| tensor.shape().dims() == [2, 2]), "{even:?}");
        let labels: Vec<&[u8]> = even[0].1.strings().expect("texts").iter().collect();
        assert_eq!(labels, [b"a", b"b", b"a", b"b"]);
        assert_eq!(even[1].1.values::<f32>(), Some(&[0.25, 0.75, 1.0, 0.0][..]));
        let uneven = all(&[row(&[("a", 1.0)]), row(&[])]);
        assert_eq!(uneven[0].1.shape().dims(), [1]);
        assert_eq!(all(&[])[0].1.shape().dims(), [0, 0]);
    }

    #[test]
    fn tasks_have_the_names_of_their_signatures() {
        let spec = ModelSpec {
            version_choice: Some(VersionChoice::Version(3)),
            signature_name: "regress".to_owned(),
            ..ModelSpec::default()
        };
        let regressions = vec![Regression { value: 2.5 }];
        let outcome = TaskOutcome::RegressionResult(RegressionResult { regressions });
        let task = InferenceResult { model_spec: Some(spec), result: Some(outcome) };
        let message = MultiInferenceResponse { results: vec![task] }.encode_to_vec();
        let read = AnswerKind::Tasks.read(&message).expect("a response");
        assert_eq!(read.version, Some(3));
        assert_eq!(read.outputs[0].0, "regress/values");
        assert!(AnswerKind::Tensors.read(b"\xff").is_err());
    }
}
