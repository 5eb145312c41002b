//! Whether a SavedModel is complete: its files may still be arriving.

use std::fs;
use std::path::Path;

use bytes::Bytes;

use crate::bundle;
use crate::files::{FILE, data_loss, decode, is_text, read_error, read_file};
use crate::graph::Graph;
use tensorserve_platform::Completeness;
use tensorserve_proto::tensorflow::MetaGraphDef;

const INDEX: &str = "variables/variables.index";

/// Whether all files that the SavedModel names exist and are long enough.
pub fn check(folder: &Path) -> Completeness {
    if is_text(folder) {
        // Only the runtime can read it. Models without variables have no such directory.
        return match folder.join("variables").is_dir() {
            true => check_variables(folder),
            false => Completeness::Complete,
        };
    }
    let bytes = match read_file(&folder.join(FILE)) {
        Ok(bytes) => Bytes::from(bytes),
        Err(e) => return Completeness::Broken(read_error(FILE, &e)),
    };
    // A file that is still being written looks like a damaged one. The caller distinguishes them by
    // whether the file still changes.
    let model = match decode(bytes) {
        Ok(model) if !model.meta_graphs.is_empty() => model,
        Ok(_) => return Completeness::Broken(data_loss(format!("{FILE} has no graph"))),
        Err(error) => return Completeness::Broken(error),
    };
    for graph in &model.meta_graphs {
        for asset in &graph.asset_file_def {
            let name = format!("assets/{}", asset.filename);
            if !folder.join(&name).is_file() {
                return Completeness::Missing(name);
            }
        }
    }
    if model.meta_graphs.iter().any(restores_variables) {
        return check_variables(folder);
    }
    Completeness::Complete
}

fn restores_variables(graph: &MetaGraphDef) -> bool {
    let restores = graph.saver_def.as_ref().is_some_and(|saver| !saver.restore_op_name.is_empty());
    let definition = graph.graph_def.as_ref();
    restores && definition.is_some_and(|g| Graph::new(g).has_variables())
}

fn check_variables(folder: &Path) -> Completeness {
    // TensorFlow before 0.12 wrote one file without an index.
    if folder.join("variables/variables").is_file() {
        return Completeness::Complete;
    }
    let Ok(index) = read_file(&folder.join(INDEX)) else {
        return Completeness::Missing(INDEX.to_owned());
    };
    let Some(sizes) = bundle::shard_sizes(&index) else {
        let name = format!("{INDEX} (the existing file is truncated or damaged)");
        return Completeness::Missing(name);
    };
    let shards = sizes.len();
    for (shard, size) in sizes.into_iter().enumerate() {
        let name = format!("variables/variables.data-{shard:05}-of-{shards:05}");
        match fs::metadata(folder.join(&name)) {
            Ok(file) if file.len() >= size => {}
            Ok(file) => {
                let existing = file.len();
                let name = format!("{name} ({existing} of {size} bytes exist)");
                return Completeness::Missing(name);
            }
            Err(_) => return Completeness::Missing(name),
        }
    }
    Completeness::Complete
}
