//! A batch transform job of `SageMaker`, as `CreateTransformJob` takes it and `DescribeTransformJob`
//! prints it. Names, values and limits are those of the API (service model `sagemaker/2017-07-24`).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use tensorserve_tensor::error::{Error, Result};

use crate::filter::JsonPath;

/// The longest text of a job, in bytes. An environment of the API's limits needs 160 KiB.
const MAX_JOB: usize = 1 << 20;

/// The most unknown fields that are named.
const MAX_IGNORED: usize = 100;

/// A job. A field that the document does not have, or that is null there, is `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)] // The fields have the API's names.
pub struct TransformJob {
    pub transform_job_name: Option<String>,
    pub model_name: Option<String>,
    pub max_concurrent_transforms: Option<u64>,
    pub model_client_config: Option<ModelClientConfig>,
    /// In MiB; 0 is no limit.
    #[serde(rename = "MaxPayloadInMB")]
    pub max_payload_in_mb: Option<u64>,
    pub batch_strategy: Option<BatchStrategy>,
    pub environment: Option<BTreeMap<String, String>>,
    pub transform_input: Option<TransformInput>,
    pub transform_output: Option<TransformOutput>,
    pub data_capture_config: Option<DataCaptureConfig>,
    pub transform_resources: Option<TransformResources>,
    pub data_processing: Option<DataProcessing>,
    pub tags: Option<Vec<Tag>>,
    pub experiment_config: Option<BTreeMap<String, String>>,
    pub transform_job_arn: Option<String>,
    pub transform_job_status: Option<TransformJobStatus>,
    pub failure_reason: Option<String>,
    /// Seconds since 1970 or text, depending on the tool that printed it; as the other times.
    pub creation_time: Option<Value>,
    pub transform_start_time: Option<Value>,
    pub transform_end_time: Option<Value>,
    pub labeling_job_arn: Option<String>,
    #[serde(rename = "AutoMLJobArn")]
    pub auto_ml_job_arn: Option<String>,
    /// The paths of fields that are none of the API's, as `TransformInput.Splittype`; the first 100.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

/// How a model is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct ModelClientConfig {
    /// 1 to 3600.
    pub invocations_timeout_in_seconds: Option<u64>,
    /// 0 to 3.
    pub invocations_max_retries: Option<u64>,
}

/// What is read, and how it is split into records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct TransformInput {
    pub data_source: Option<DataSource>,
    pub content_type: Option<String>,
    pub compression_type: Option<CompressionType>,
    pub split_type: Option<SplitType>,
}

/// Where the objects are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct DataSource {
    pub s3_data_source: Option<S3DataSource>,
}

/// Objects below a prefix, or of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct S3DataSource {
    pub s3_data_type: Option<S3DataType>,
    pub s3_uri: Option<String>,
}

/// What is written, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct TransformOutput {
    pub s3_output_path: Option<String>,
    pub accept: Option<String>,
    pub assemble_with: Option<AssembleWith>,
    pub kms_key_id: Option<String>,
}

/// Where requests and responses are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct DataCaptureConfig {
    pub destination_s3_uri: Option<String>,
    pub kms_key_id: Option<String>,
    pub generate_inference_id: Option<bool>,
}

/// The machines of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct TransformResources {
    pub instance_type: Option<String>,
    /// At least 1.
    pub instance_count: Option<u64>,
    pub volume_kms_key_id: Option<String>,
    pub transform_ami_version: Option<String>,
}

/// The filters of records, which are valid paths, and the join.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct DataProcessing {
    pub input_filter: Option<String>,
    pub output_filter: Option<String>,
    pub join_source: Option<JoinSource>,
}

/// A label of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct Tag {
    pub key: Option<String>,
    pub value: Option<String>,
}

/// How many records a request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum BatchStrategy {
    MultiRecord,
    SingleRecord,
}

/// The compression of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum CompressionType {
    None,
    Gzip,
}

/// How objects are split into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum SplitType {
    None,
    Line,
    #[serde(rename = "RecordIO")]
    RecordIo,
    #[serde(rename = "TFRecord")]
    TfRecord,
}

/// What [`S3DataSource::s3_uri`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum S3DataType {
    ManifestFile,
    S3Prefix,
    /// Not for the records of a transform job: [`TransformJob::parse`] refuses it.
    AugmentedManifestFile,
    /// As `AugmentedManifestFile`.
    Converse,
}

/// What separates outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum AssembleWith {
    None,
    Line,
}

/// What predictions are joined with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum JoinSource {
    Input,
    None,
}

/// The state of a job that ran in `SageMaker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum TransformJobStatus {
    InProgress,
    Completed,
    Failed,
    Stopping,
    Stopped,
}

impl TransformJob {
    /// Reads the JSON document of a job.
    ///
    /// # Errors
    /// [`Error::invalid`] with the path of the field whose value the API does not allow.
    pub fn parse(json: &[u8]) -> Result<TransformJob> {
        if json.len() > MAX_JOB {
            let length = json.len();
            return Err(Error::invalid(format!(
                "the job has {length} bytes, and {MAX_JOB} are allowed"
            )));
        }
        let (mut ignored, mut track) = (Vec::new(), serde_path_to_error::Track::new());
        let mut reader = serde_json::Deserializer::from_slice(json);
        let tracked = serde_path_to_error::Deserializer::new(&mut reader, &mut track);
        let read = serde_ignored::deserialize(tracked, |path| {
            if ignored.len() < MAX_IGNORED {
                // Each optional field on the way is a level of its own, which prints as "?".
                ignored.push(path.to_string().replace("?.", ""));
            }
        });
        let mut job: TransformJob = match read {
            Ok(job) => job,
            Err(error) => {
                let path = track.path().to_string();
                let place = if path == "." { String::new() } else { format!(": {path}") };
                return Err(Error::invalid(format!("the job is invalid{place}: {error}")));
            }
        };
        reader.end().map_err(|error| Error::invalid(format!("the job is invalid: {error}")))?;
        if let Some(processing) = &mut job.data_processing {
            // The API takes an empty filter for none.
            processing.input_filter.take_if(|filter| filter.is_empty());
            processing.output_filter.take_if(|filter| filter.is_empty());
        }
        job.check().map_err(|error| error.context("the job is invalid"))?;
        job.ignored = ignored;
        Ok(job)
    }

    fn check(&self) -> Result<()> {
        name("TransformJobName", self.transform_job_name.as_ref())?;
        length("ModelName", self.model_name.as_ref(), 63)?;
        number("MaxPayloadInMB", self.max_payload_in_mb, 0, 100)?;
        number("MaxConcurrentTransforms", self.max_concurrent_transforms, 0, u64::MAX)?;
        let (payload, transforms) = (self.max_payload_in_mb, self.max_concurrent_transforms);
        if let (Some(payload), Some(transforms)) = (payload, transforms)
            && payload.saturating_mul(transforms) > 100
        {
            return Err(Error::invalid(format!(
                "MaxConcurrentTransforms * MaxPayloadInMB is {transforms} * {payload}, and at most 100 \
                 is allowed"
            )));
        }
        if let Some(config) = &self.model_client_config {
            let at = |field: &str| format!("ModelClientConfig.{field}");
            let timeout = config.invocations_timeout_in_seconds;
            number(&at("InvocationsTimeoutInSeconds"), timeout, 1, 3600)?;
            number(&at("InvocationsMaxRetries"), config.invocations_max_retries, 0, 3)?;
        }
        self.environment.as_ref().map_or(Ok(()), check_environment)?;
        self.transform_input.as_ref().map_or(Ok(()), check_input)?;
        if let Some(output) = &self.transform_output {
            length("TransformOutput.S3OutputPath", output.s3_output_path.as_ref(), 1024)?;
            length("TransformOutput.Accept", output.accept.as_ref(), 256)?;
            length("TransformOutput.KmsKeyId", output.kms_key_id.as_ref(), 2048)?;
        }
        if let Some(resources) = &self.transform_resources {
            let at = |field: &str| format!("TransformResources.{field}");
            number(&at("InstanceCount"), resources.instance_count, 1, u64::MAX)?;
            length(&at("VolumeKmsKeyId"), resources.volume_kms_key_id.as_ref(), 2048)?;
            length(&at("TransformAmiVersion"), resources.transform_ami_version.as_ref(), 63)?;
        }
        if let Some(capture) = &self.data_capture_config {
            let at = |field: &str| format!("DataCaptureConfig.{field}");
            length(&at("DestinationS3Uri"), capture.destination_s3_uri.as_ref(), 1024)?;
            length(&at("KmsKeyId"), capture.kms_key_id.as_ref(), 2048)?;
        }
        if let Some(processing) = &self.data_processing {
            filter("DataProcessing.InputFilter", processing.input_filter.as_ref())?;
            filter("DataProcessing.OutputFilter", processing.output_filter.as_ref())?;
        }
        match &self.tags {
            Some(tags) if tags.len() > 50 => {
                Err(Error::invalid(format!("Tags: there are {}, and 50 are allowed", tags.len())))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn check_input(input: &TransformInput) -> Result<()> {
    length("TransformInput.ContentType", input.content_type.as_ref(), 256)?;
    let source = input.data_source.as_ref().and_then(|source| source.s3_data_source.as_ref());
    let Some(source) = source else {
        return Ok(());
    };
    length("TransformInput.DataSource.S3DataSource.S3Uri", source.s3_uri.as_ref(), 1024)?;
    match source.s3_data_type {
        Some(kind @ (S3DataType::AugmentedManifestFile | S3DataType::Converse)) => {
            Err(Error::invalid(format!(
                "TransformInput.DataSource.S3DataSource.S3DataType: transform jobs cannot read \
                 {kind:?}: give S3Prefix or ManifestFile",
            )))
        }
        Some(S3DataType::ManifestFile | S3DataType::S3Prefix) | None => Ok(()),
    }
}

fn check_environment(environment: &BTreeMap<String, String>) -> Result<()> {
    if environment.len() > 16 {
        let count = environment.len();
        return Err(Error::invalid(format!("Environment: there are {count}, and 16 are allowed")));
    }
    for (key, value) in environment {
        let mut characters = key.chars();
        let starts = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !starts || !characters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(Error::invalid(format!(
                "Environment: the name {key:?} is not of letters, digits and underscores only, or \
                 starts with a digit"
            )));
        }
        length("Environment", Some(key), 1024)?;
        length(&format!("Environment.{key}"), Some(value), 10_240)?;
    }
    Ok(())
}

/// Checks the API's `^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}`.
fn name(field: &str, value: Option<&String>) -> Result<()> {
    let Some(text) = value else {
        return Ok(());
    };
    length(field, value, 63)?;
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if text.is_empty() || !is_plain || text.starts_with('-') || text.ends_with('-') {
        return Err(Error::invalid(format!(
            "{field}: {text:?} is not of letters, digits, and hyphens between them"
        )));
    }
    Ok(())
}

fn length(field: &str, value: Option<&String>, most: usize) -> Result<()> {
    let length = value.map_or(0, |value| value.chars().count());
    if length > most {
        return Err(Error::invalid(format!(
            "{field}: it has {length} characters, and {most} are allowed"
        )));
    }
    Ok(())
}

fn number(field: &str, value: Option<u64>, least: u64, most: u64) -> Result<()> {
    match value {
        Some(value) if value < least || value > most => Err(Error::invalid(format!(
            "{field}: {value} is outside the range from {least} to {most}"
        ))),
        Some(_) | None => Ok(()),
    }
}

fn filter(field: &str, value: Option<&String>) -> Result<()> {
    let Some(expression) = value else {
        return Ok(());
    };
    JsonPath::parse(expression).map(drop).map_err(|error| error.context(field))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What `aws sagemaker describe-transform-job` prints.
    const DESCRIBED: &str = r#"{
        "TransformJobName": "digits-2024",
        "TransformJobArn": "arn:aws:sagemaker:us-west-2:123:transform-job/digits-2024",
        "TransformJobStatus": "Completed",
        "ModelName": "digits",
        "MaxConcurrentTransforms": 4,
        "ModelClientConfig": {"InvocationsTimeoutInSeconds": 600, "InvocationsMaxRetries": 3},
        "MaxPayloadInMB": 6,
        "BatchStrategy": "MultiRecord",
        "Environment": {"SAGEMAKER_TFS_DEFAULT_MODEL_NAME": "digits"},
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/in/"}},
            "ContentType": "text/csv",
            "CompressionType": "Gzip",
            "SplitType": "Line"
        },
        "TransformOutput": {
            "S3OutputPath": "s3://b/out", "Accept": "text/csv", "AssembleWith": "Line", "KmsKeyId": ""
        },
        "DataCaptureConfig": {"DestinationS3Uri": "s3://b/capture", "GenerateInferenceId": true},
        "TransformResources": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 2},
        "CreationTime": "2024-01-02T03:04:05.678000+00:00",
        "TransformStartTime": 1704164645.678,
        "TransformEndTime": null,
        "DataProcessing": {"InputFilter": "$[1:]", "OutputFilter": "$[0,-1]", "JoinSource": "Input"},
        "ExperimentConfig": {"TrialName": "t"},
        "Tags": [{"Key": "team", "Value": "x"}]
    }"#;

    fn job(json: &str) -> TransformJob {
        TransformJob::parse(json.as_bytes()).expect(json)
    }

    fn refused(json: &str, why: &str) {
        let error = TransformJob::parse(json.as_bytes()).expect_err(json);
        assert!(error.message().contains(why), "{why:?} is not in {:?}", error.message());
    }

    #[test]
    fn every_field_of_a_described_job_is_read() {
        let job = job(DESCRIBED);
        assert_eq!(job.ignored, [""; 0]);
        assert_eq!(job.transform_job_name.as_deref(), Some("digits-2024"));
        assert_eq!(job.transform_job_status, Some(TransformJobStatus::Completed));
        assert_eq!((job.max_concurrent_transforms, job.max_payload_in_mb), (Some(4), Some(6)));
        assert_eq!(job.batch_strategy, Some(BatchStrategy::MultiRecord));
        let config = job.model_client_config.expect("given");
        assert_eq!(config.invocations_timeout_in_seconds, Some(600));
        assert_eq!(config.invocations_max_retries, Some(3));
        let environment = job.environment.expect("given");
        assert_eq!(environment["SAGEMAKER_TFS_DEFAULT_MODEL_NAME"], "digits");
        let input = job.transform_input.expect("given");
        assert_eq!(input.content_type.as_deref(), Some("text/csv"));
        assert_eq!(input.compression_type, Some(CompressionType::Gzip));
        assert_eq!(input.split_type, Some(SplitType::Line));
        let source = input.data_source.and_then(|source| source.s3_data_source).expect("given");
        assert_eq!(source.s3_data_type, Some(S3DataType::S3Prefix));
        assert_eq!(source.s3_uri.as_deref(), Some("s3://b/in/"));
        let output = job.transform_output.expect("given");
        assert_eq!(output.s3_output_path.as_deref(), Some("s3://b/out"));
        assert_eq!(output.assemble_with, Some(AssembleWith::Line));
        let capture = job.data_capture_config.expect("given");
        assert_eq!(capture.generate_inference_id, Some(true));
        assert_eq!(job.transform_resources.expect("given").instance_count, Some(2));
        let processing = job.data_processing.expect("given");
        assert_eq!(processing.input_filter.as_deref(), Some("$[1:]"));
        assert_eq!(processing.join_source, Some(JoinSource::Input));
        assert_eq!(job.transform_end_time, None);
        assert!(job.creation_time.is_some_and(|time| time.is_string()));
        assert_eq!(job.tags.map(|tags| tags.len()), Some(1));
    }

    #[test]
    fn binary_splits_have_their_names() {
        let split = |name: &str| {
            let json = format!("{{\"TransformInput\":{{\"SplitType\":\"{name}\"}}}}");
            job(&json).transform_input.and_then(|input| input.split_type)
        };
        assert_eq!(split("RecordIO"), Some(SplitType::RecordIo));
        assert_eq!(split("TFRecord"), Some(SplitType::TfRecord));
        assert_eq!(split("None"), Some(SplitType::None));
        assert_eq!(job("{}"), TransformJob::default());
    }

    #[test]
    fn an_empty_filter_is_none() {
        let job = job(r#"{"DataProcessing":{"InputFilter":"","OutputFilter":"$[0]"}}"#);
        let processing = job.data_processing.expect("given");
        assert_eq!(processing.input_filter, None);
        assert_eq!(processing.output_filter.as_deref(), Some("$[0]"));
    }

    #[test]
    fn unknown_fields_are_named() {
        let json = r#"{"Modelname":"m","TransformInput":{"Splittype":"Line",
            "DataSource":{"S3DataSource":{"Uri":[1,{"a":2}]}}},"Tags":[{"Name":"x"}]}"#;
        let expected = [
            "Modelname",
            "TransformInput.Splittype",
            "TransformInput.DataSource.S3DataSource.Uri",
            "Tags.0.Name",
        ];
        assert_eq!(job(json).ignored, expected);
        let many: Vec<String> = (0..1000).map(|index| format!("\"f{index}\":0")).collect();
        assert_eq!(job(&format!("{{{}}}", many.join(","))).ignored.len(), 100);
    }

    #[test]
    fn values_that_the_api_refuses_are_refused_with_the_field() {
        refused("", "the job is invalid: EOF");
        refused("{} {}", "trailing characters");
        refused("5", "invalid type: integer `5`");
        let split = r#"{"TransformInput":{"SplitType":"Lines"}}"#;
        refused(split, "TransformInput.SplitType: unknown variant `Lines`, expected one of `None`");
        refused(r#"{"MaxPayloadInMB":"6"}"#, "MaxPayloadInMB: invalid type: string \"6\"");
        refused(r#"{"MaxPayloadInMB":-1}"#, "MaxPayloadInMB: invalid value: integer `-1`");
        refused(r#"{"MaxPayloadInMB":101}"#, "MaxPayloadInMB: 101 is outside");
        refused(r#"{"MaxPayloadInMB":51,"MaxConcurrentTransforms":2}"#, "2 * 51");
        refused(
            r#"{"ModelClientConfig":{"InvocationsTimeoutInSeconds":0}}"#,
            "ModelClientConfig.InvocationsTimeoutInSeconds: 0 is outside the range from 1 to 3600",
        );
        refused(r#"{"ModelClientConfig":{"InvocationsMaxRetries":4}}"#, "InvocationsMaxRetries: 4");
        refused(r#"{"TransformResources":{"InstanceCount":0}}"#, "InstanceCount: 0");
        refused(r#"{"TransformJobName":"a_b"}"#, "TransformJobName: \"a_b\"");
        refused(r#"{"TransformJobName":"a-"}"#, "TransformJobName");
        refused(&format!(r#"{{"TransformJobName":"{}"}}"#, "a".repeat(64)), "64 characters");
        refused(r#"{"Environment":{"1A":"x"}}"#, "Environment: the name \"1A\"");
        let long = "x".repeat(10_241);
        refused(&format!(r#"{{"Environment":{{"A":"{long}"}}}}"#), "Environment.A: it has 10241");
        let many: Vec<String> = (0..17).map(|index| format!("\"A{index}\":\"\"")).collect();
        refused(&format!("{{\"Environment\":{{{}}}}}", many.join(",")), "there are 17");
        let filter = r#"{"DataProcessing":{"InputFilter":"$..a"}}"#;
        refused(
            filter,
            "DataProcessing.InputFilter: the JSONPath \"$..a\" is invalid at character 3",
        );
        refused(
            r#"{"TransformInput":{"DataSource":{"S3DataSource":{"S3DataType":"AugmentedManifestFile"}}}}"#,
            "S3DataType: transform jobs cannot read",
        );
        refused(&" ".repeat(2 << 20), "2097152 bytes, and 1048576 are allowed");
        refused(&format!("{{\"a\":{}", "[".repeat(100_000)), "the job is invalid");
    }

    proptest! {
        #[test]
        fn a_cut_or_changed_document_is_read_or_refused(
            at in any::<prop::sample::Index>(),
            byte: u8,
            cut: bool,
        ) {
            let mut bytes = DESCRIBED.as_bytes().to_vec();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
                prop_assert!(TransformJob::parse(&bytes).is_err());
            } else {
                bytes[at] = byte;
                let _ = TransformJob::parse(&bytes);
            }
        }
    }
}
