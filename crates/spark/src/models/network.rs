//! `MultilayerPerceptronClassificationModel`.

use super::super::damaged;
use super::super::folder::StageFolder;
use super::super::numeric::{logistic, softmax};
use super::super::table::VectorRow;
use super::super::vector::read_vector;
use super::predict::{ClassModel, SparkClassifier, decision};
use tensorserve_tensor::error::Result;

/// A layer: a sum for each of its units.
struct PerceptronLayer {
    inputs: usize,
    /// The weights of one unit after the other.
    weights: Vec<f64>,
    biases: Vec<f64>,
}

struct MultilayerPerceptron(Vec<PerceptronLayer>);

impl SparkClassifier for MultilayerPerceptron {
    fn raw(&self, row: VectorRow<'_>, raw: &mut [f64]) {
        let last = self.0.len().saturating_sub(1);
        let mut values: Vec<f64> = Vec::new();
        for (at, layer) in self.0.iter().enumerate() {
            let row = if at == 0 { row } else { VectorRow::Dense(&values) };
            let units = layer.weights.chunks_exact(layer.inputs).zip(&layer.biases);
            let mut sums: Vec<f64> = units.map(|(weights, bias)| row.dot(weights) + bias).collect();
            // The last layer has no logistic function.
            if at < last {
                sums.iter_mut().for_each(|value| *value = logistic(*value));
            }
            values = sums;
        }
        raw.iter_mut().zip(values).for_each(|(raw, value)| *raw = value);
    }

    fn probabilities(&self, raw: &mut [f64]) {
        softmax(raw);
    }
}

pub(in super::super) fn network(folder: &StageFolder) -> Result<ClassModel> {
    let data = folder.data()?;
    let weights = read_vector(&data, "weights")?;
    // Before Spark 3, the sizes of layers are in the table.
    let sizes = folder.numbers("layers")?.unwrap_or_else(|| data.list("layers").to_vec());
    let sizes: Vec<usize> = sizes.into_iter().map(super::super::index_of).collect();
    if sizes.len() < 2 || sizes.contains(&0) {
        return Err(damaged("its layers are not valid"));
    }
    let wrong = || damaged("its weights do not fit its layers");
    let (mut layers, mut rest) = (Vec::new(), &weights[..]);
    for pair in sizes.windows(2) {
        let [inputs, units] = *pair else { continue };
        let count = inputs.checked_mul(units).ok_or_else(wrong)?;
        let (own, behind) = rest.split_at_checked(count).ok_or_else(wrong)?;
        let (biases, behind) = behind.split_at_checked(units).ok_or_else(wrong)?;
        rest = behind;
        // The weights are in columns: those of an input are together.
        let mut by_unit = Vec::with_capacity(count);
        for unit in 0..units {
            by_unit.extend(own.iter().skip(unit).step_by(units));
        }
        layers.push(PerceptronLayer { inputs, weights: by_unit, biases: biases.to_vec() });
    }
    if !rest.is_empty() {
        return Err(wrong());
    }
    let (features, classes) = (sizes.first().copied(), sizes.last().copied().unwrap_or(0));
    let decision = decision(folder, classes)?;
    let classifier = Box::new(MultilayerPerceptron(layers));
    Ok(ClassModel { classifier, classes, decision, features, has_probabilities: true })
}
