//! Protobuf's text format. Errors have line and column.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::LazyLock;

use miette::Diagnostic;
use prost::Message;
use prost_reflect::text_format::ParseError;
use prost_reflect::{DescriptorPool, DynamicMessage};

use tensorserve_os::files::{self, open_within};
use tensorserve_proto::DESCRIPTORS;
use tensorserve_tensor::error::{Code, Error, Result};

static DESCRIPTIONS: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).ok());

/// The message whose text must not appear in errors or logs, because it holds a private key.
pub const SECRET: &str = "tensorflow.serving.SSLConfig";

/// The largest size of a file that comes with a model, in bytes.
const MOST_BYTES: u64 = 16 << 20;

/// Reads the file at `path` as a message `name`.
///
/// # Errors
/// If the file cannot be read; [`Code::InvalidArgument`] with line and column if its text is not a
/// valid message.
pub fn read<T: Message + Default>(path: &Path, name: &str) -> Result<T> {
    parse_file(path, fs::read_to_string(path), name)
}

/// [`read`], of a file that comes with the model version in `folder`.
///
/// # Errors
/// As [`read`], and for a link out of the model's folder.
pub fn read_within<T: Message + Default>(folder: &Path, path: &Path, name: &str) -> Result<T> {
    let bytes = open_within(folder, path).and_then(|file| files::read(&file, MOST_BYTES));
    let invalid = |e| io::Error::new(ErrorKind::InvalidData, e);
    parse_file(path, bytes.and_then(|bytes| String::from_utf8(bytes).map_err(invalid)), name)
}

fn parse_file<T: Message + Default>(
    path: &Path,
    text: io::Result<String>,
    name: &str,
) -> Result<T> {
    let shown = path.display();
    let text =
        text.map_err(|e| Error::new(Code::of_io(&e), format!("{shown}; {e}")).with_source(e))?;
    parse(&text, name).map_err(|e| e.context(format!("Invalid protobuf file: '{shown}'")))
}

/// Reads `text` as a message `name` (with its package).
pub fn parse<T: Message + Default>(text: &str, name: &str) -> Result<T> {
    let pool = DESCRIPTIONS.as_ref().ok_or_else(|| unknown_message(name))?;
    let description = pool.get_message_by_name(name).ok_or_else(|| unknown_message(name))?;
    let message = DynamicMessage::parse_text_format(description, text).map_err(|error| {
        let (line, column) = place(text, offset(&error).unwrap_or(text.len()));
        let what = match name == SECRET {
            true => "invalid text (not quoted, because the file holds a private key)".to_owned(),
            false => error.to_string(),
        };
        Error::invalid(format!("Error parsing text-format {name}: {line}:{column}: {what}"))
    })?;
    message.transcode_to().map_err(|e| Error::internal(format!("{name}: {e}")).with_source(e))
}

fn unknown_message(name: &str) -> Error {
    Error::internal(format!("{name} is not a known message type"))
}

fn offset(error: &ParseError) -> Option<usize> {
    Some(error.labels()?.next()?.offset())
}

/// Line and column, from 1, of the byte at `offset`.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..).map_or(0, |rest| rest.chars().count()) + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_proto::serving::{BatchingParameters, ModelServerConfig};

    fn wrong(text: &str) -> String {
        let error = parse::<ModelServerConfig>(text, "tensorflow.serving.ModelServerConfig");
        let message = error.expect_err("wrong").message().to_owned();
        let place = "Error parsing text-format tensorflow.serving.ModelServerConfig: ";
        message.strip_prefix(place).expect("a place").to_owned()
    }

    #[test]
    fn errors_have_line_column_and_reason() {
        let error = wrong("model_config_list {\n  config {\n    nme: \"m\"\n  }\n}\n");
        assert!(error.starts_with("3:5: "), "{error}");
        assert!(error.contains("nme") && error.contains("ModelConfig"), "{error}");
        assert!(wrong("model_config_list { config { name: 7 } }").starts_with("1:36: "));
        assert!(wrong("model_config_list {\n").starts_with("2:1: "));
        let error = wrong("model_config_list { config { version_labels { key: 'a' value: x } } }");
        assert!(error.starts_with("1:63: "), "{error}");
    }

    #[test]
    fn all_spellings_of_values_are_read() {
        let text = "# comment\nmax_batch_size { value: 16 }, allowed_batch_sizes: [2, 0x10]\n\
                    pad_variable_length_inputs: true; thread_pool_name < value: 'a' \"b\" >";
        let read: BatchingParameters =
            parse(text, "tensorflow.serving.BatchingParameters").expect("valid");
        assert_eq!(read.max_batch_size, Some(16));
        assert_eq!(read.allowed_batch_sizes, [2, 16]);
        assert_eq!(read.thread_pool_name.as_deref(), Some("ab"));
    }
}
