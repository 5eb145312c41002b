//! What is measured: a model, its inputs, and the options of the command.

use std::path::{Path, PathBuf};

/// Numbers in a row of the XGBoost model.
pub const FEATURES: usize = 28;

/// Numbers in a row of `wide_mlp`.
pub const PIXELS: usize = 784;

pub struct Case {
    pub name: &'static str,
    pub model: PathBuf,
    pub inputs: Inputs,
    /// Records in a batch, for the command and for the bare loop.
    pub batch_rows: usize,
    /// Records in a request over HTTP.
    pub request_rows: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Inputs {
    /// Lines with this many numbers.
    Csv { columns: usize },
    /// A JPEG for each record, of this many pixels, and one of how many there are.
    Jpeg { width: u32, height: u32, part: usize },
}

/// All cases; that of ResNet-50 if its model is there.
pub fn all(resnet: Option<&Path>) -> Vec<Case> {
    let project = |path: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let photos = |part| Inputs::Jpeg { width: 500, height: 375, part };
    let mut cases = vec![
        Case {
            name: "csv_wide_mlp",
            model: project("models/wide_mlp"),
            inputs: Inputs::Csv { columns: PIXELS },
            batch_rows: 256,
            request_rows: 64,
        },
        Case {
            name: "csv_xgboost",
            model: crate::data::xgboost_model(),
            inputs: Inputs::Csv { columns: FEATURES },
            batch_rows: 1024,
            request_rows: 64,
        },
        Case {
            name: "jpeg_digits",
            model: project("models/digits"),
            inputs: photos(1),
            batch_rows: 32,
            request_rows: 1,
        },
        // The least work for a file.
        Case {
            name: "tiny_jpeg_digits",
            model: project("models/digits"),
            inputs: Inputs::Jpeg { width: 28, height: 28, part: 1 },
            batch_rows: 64,
            request_rows: 1,
        },
    ];
    if let Some(model) = resnet {
        cases.push(Case {
            name: "jpeg_resnet50",
            model: model.to_path_buf(),
            // A twentieth of a second each, on one core.
            inputs: photos(10),
            batch_rows: 32,
            request_rows: 1,
        });
    }
    cases
}
