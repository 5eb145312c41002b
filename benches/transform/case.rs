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
    /// The outputs of a batch of files are one file.
    pub combine_outputs: bool,
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
    let csv = |name, model, columns, batch_rows| Case {
        name,
        model,
        inputs: Inputs::Csv { columns },
        combine_outputs: false,
        batch_rows,
        request_rows: 64,
    };
    let jpeg = |name, model, inputs, combine_outputs| Case {
        name,
        model,
        inputs,
        combine_outputs,
        batch_rows: 32,
        request_rows: 1,
    };
    // The least work for a file.
    let tiny = Inputs::Jpeg { width: 28, height: 28, part: 1 };
    let digits = || project("models/digits");
    let mut cases = vec![
        csv("csv_wide_mlp", project("models/wide_mlp"), PIXELS, 64),
        csv("csv_xgboost", crate::data::xgboost_model(), FEATURES, 1024),
        jpeg("jpeg_digits", digits(), photos(1), false),
        jpeg("jpeg_digits_combined", digits(), photos(1), true),
        jpeg("tiny_jpeg_digits", digits(), tiny, false),
        jpeg("tiny_jpeg_digits_combined", digits(), tiny, true),
    ];
    if let Some(model) = resnet {
        // A twentieth of a second each, on one core.
        cases.push(jpeg("jpeg_resnet50", model.to_path_buf(), photos(10), false));
    }
    cases
}
