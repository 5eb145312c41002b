//! The main file of a SavedModel, which has its graphs.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use tensorserve_platform::{files, names_version};
use tensorserve_proto::tensorflow::{MetaGraphDef, SavedModel};
use tensorserve_tensor::error::{Code, Error, Result};

/// The name of the main file.
pub const FILE: &str = "saved_model.pb";

/// The main file in protobuf's text format, which the runtime reads where there is no other.
pub const TEXT_FILE: &str = "saved_model.pbtxt";

/// The directory of a SavedModel in a version directory, in Triton's repositories.
const TRITON_FOLDER: &str = "model.savedmodel";
/// The largest protobuf message in bytes.
pub const MAX_FILE_SIZE: u64 = i32::MAX as u64;

/// The directory that contains the SavedModel of `folder`: `folder` itself or, if its name is a version number, its
/// subdirectory `model.savedmodel`, as in Triton's repositories. `None` if neither contains a saved_model.pb or
/// saved_model.pbtxt. Does not read the file.
#[must_use]
pub fn find(folder: &Path) -> Option<Cow<'_, Path>> {
    let exists = |folder: &Path| folder.join(FILE).is_file() || folder.join(TEXT_FILE).is_file();
    if exists(folder) {
        return Some(folder.into());
    }
    let is_version = folder.file_name()?.to_str().is_some_and(names_version);
    let inner = folder.join(TRITON_FOLDER);
    (is_version && exists(&inner)).then(|| inner.into())
}

/// Whether the main file of the SavedModel in `folder` is a text.
#[must_use]
pub fn is_text(folder: &Path) -> bool {
    !folder.join(FILE).is_file()
}

/// The main file of the SavedModel in `folder`.
#[must_use]
pub fn main_file(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

/// The content of the main file.
///
/// # Errors
/// If it cannot be read, or is empty.
pub fn read_main_file(folder: &Path) -> Result<Bytes> {
    let bytes = Bytes::from(read_file(&main_file(folder)).map_err(|e| read_error(FILE, &e))?);
    match bytes.is_empty() {
        true => Err(data_loss(format!("{FILE} is empty"))),
        false => Ok(bytes),
    }
}

/// Reads the graph that has exactly the tags `tags`.
///
/// # Errors
/// If the main file cannot be read; [`Code::DataLoss`] if it is damaged; [`Code::NotFound`] if it has no such graph.
pub fn read(folder: &Path, tags: &[String]) -> Result<MetaGraphDef> {
    Ok(numbered_graph(read_main_file(folder)?, tags)?.1)
}

/// The graph that has exactly the tags `tags`, and its number, of a main file with this content.
///
/// # Errors
/// [`Code::DataLoss`] if it is damaged; [`Code::NotFound`] if it has no such graph.
pub fn numbered_graph(bytes: Bytes, tags: &[String]) -> Result<(usize, MetaGraphDef)> {
    select_graph(decode(bytes)?, tags)
}

/// The content of a file, which has at most as many bytes as protobuf allows.
pub(crate) fn read_file(file: &Path) -> std::io::Result<Vec<u8>> {
    files::read_open(&files::open(file)?, MAX_FILE_SIZE)
}

/// Decodes the main file. The decoder refuses messages that are nested deeper than 100 levels.
pub(crate) fn decode(bytes: Bytes) -> Result<SavedModel> {
    SavedModel::decode(bytes)
        .map_err(|e| data_loss(format!("{FILE} is not a SavedModel ({e})")).with_source(e))
}

fn select_graph(model: SavedModel, tags: &[String]) -> Result<(usize, MetaGraphDef)> {
    if model.meta_graphs.is_empty() {
        return Err(data_loss(format!("{FILE} has no graph")));
    }
    let mut selected = tags.to_vec();
    // An option cannot give an empty list otherwise.
    selected.retain(|tag| !tag.is_empty());
    selected.sort();
    let available: Vec<Vec<String>> = model.meta_graphs.iter().map(sorted_tags).collect();
    let mut graphs = model.meta_graphs.into_iter().enumerate();
    graphs.find(|(_, graph)| sorted_tags(graph) == selected).ok_or_else(|| {
        let sets: Vec<String> = available.iter().map(|tags| tags.join(",")).collect();
        Error::not_found(format!(
            "no graph with the tags {:?}; {FILE} has {:?}: select one with tags (`tags = []` for a module \
             of TensorFlow Hub, which has none)",
            selected.join(","),
            sets.join("; ")
        ))
    })
}

fn sorted_tags(graph: &MetaGraphDef) -> Vec<String> {
    let info = graph.meta_info_def.as_ref();
    let mut tags = info.map_or(Vec::new(), |info| info.tags.clone());
    tags.sort();
    tags
}

/// The size of all files below `folder`, in bytes.
#[must_use]
pub fn size_of_files(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of_files(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

pub(crate) fn data_loss(message: String) -> Error {
    Error::new(Code::DataLoss, message)
}

pub(crate) fn read_error(name: &str, error: &std::io::Error) -> Error {
    if error.kind() == ErrorKind::FileTooLarge {
        return data_loss(format!("{name} has more bytes than protobuf allows"));
    }
    Error::new(Code::of_io(error), format!("{name} cannot be read: {error}"))
}
