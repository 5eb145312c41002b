//! A model as it is evaluated, whatever the format of its file.

use super::document::CatboostDocument;
use super::features::{BLOCK, FeatureQuantizer};
use super::inputs::ModelInputs;
use super::output::Prediction;
use super::rows::RowBlock;
use super::trees::Trees;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Signature, Tensor, aligned_vec};

/// Fewer rows are evaluated one by one.
const FEW_ROWS: usize = 8;

/// The most sums of a row: classes or targets.
const MAX_DIMENSION: usize = 1 << 16;

/// A loaded model.
pub(super) struct CatboostModel {
    /// The version of the library that wrote it; empty if not recorded.
    pub(super) written_by: String,
    inputs: ModelInputs,
    quantizer: FeatureQuantizer,
    trees: Trees,
    dimension: usize,
    scale: f64,
    /// One for each sum.
    bias: Vec<f64>,
    prediction: Prediction,
    /// The columns of numbers and of categories.
    columns: (usize, usize),
}

impl CatboostModel {
    pub(super) fn new(mut document: CatboostDocument) -> Result<Self> {
        let dimension = document.dimension;
        if dimension == 0 || dimension > MAX_DIMENSION {
            return Err(Error::unsupported(format!(
                "the model has {dimension} outputs; 1 to {MAX_DIMENSION} are supported"
            )));
        }
        let mut bias = std::mem::take(&mut document.bias);
        if bias.len() <= 1 {
            bias = vec![bias.first().copied().unwrap_or(0.0); dimension];
        }
        if bias.len() != dimension {
            let has = bias.len();
            return Err(Error::damaged(format!(
                "the model has {has} biases and needs {dimension}"
            )));
        }
        let inputs = ModelInputs::new(&document)?;
        let (quantizer, splits) = FeatureQuantizer::new(&mut document)?;
        let trees = Trees::new(std::mem::take(&mut document.trees), &splits, dimension)?;
        let version = &document.info.version;
        Ok(CatboostModel {
            written_by: match version.is_empty() {
                true => String::new(),
                false => format!("CatBoost {version}"),
            },
            inputs,
            quantizer,
            trees,
            dimension,
            scale: document.scale,
            bias,
            prediction: Prediction::new(&document.info, dimension)?,
            columns: (document.floats.len(), document.categories.len()),
        })
    }

    /// The inputs, and the outputs that the loss function asks for.
    pub(super) fn signature(&self) -> Result<Signature> {
        self.inputs.signature(self.prediction.outputs(self.dimension))
    }
}

impl Executable for CatboostModel {
    fn run(&self, _signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let (values, rows) = self.inputs.read(inputs)?;
        let mut sums = aligned_vec::<f64>(rows.saturating_mul(self.dimension));
        sums.resize(rows * self.dimension, 0.0);
        let block = rows.min(BLOCK);
        let (floats, categories) = self.columns;
        let mut block = RowBlock {
            rows: block,
            floats: vec![0.0; floats * block],
            categories: vec![0; categories * block],
        };
        let mut bins = Vec::new();
        for (number, sums) in sums.chunks_mut(BLOCK * self.dimension).enumerate() {
            block.rows = sums.len() / self.dimension;
            block.floats.truncate(floats * block.rows);
            block.categories.truncate(categories * block.rows);
            values.fill(number * BLOCK, &mut block);
            // A large part of a block is evaluated as a whole one.
            let stride = if block.rows < FEW_ROWS { block.rows } else { BLOCK };
            self.quantizer.write(&block, stride, &mut bins);
            self.trees.add_to(sums, self.dimension, &bins, stride);
            for sums in sums.chunks_exact_mut(self.dimension) {
                sums.iter_mut().zip(&self.bias).for_each(|(x, bias)| *x = self.scale * *x + bias);
            }
        }
        self.prediction.tensors(rows, self.dimension, sums)
    }
}
