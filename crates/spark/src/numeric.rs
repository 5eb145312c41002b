//! Functions of numbers, as Spark's models compute them.

use tensorserve_tabular::numeric::exponentials;
pub(super) use tensorserve_tabular::numeric::logistic;

/// The index of the largest value; of equal ones, of the first.
pub(super) fn argmax(values: impl Iterator<Item = f64>) -> f64 {
    let (mut best, mut largest) = (0u32, f64::NEG_INFINITY);
    for (index, value) in (0u32..).zip(values) {
        // As Spark does, whose first value may be NaN.
        if value > largest || index == 0 {
            (best, largest) = (index, value);
        }
    }
    f64::from(best)
}

/// Turns logits into probabilities. Infinite ones share all of the probability.
pub(super) fn softmax(values: &mut [f64]) {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::INFINITY {
        values.iter_mut().for_each(|value| *value = f64::from(u8::from(*value == largest)));
    } else {
        exponentials(values, largest);
    }
    normalize(values);
}

/// Divides by the sum, unless that is 0.
pub(super) fn normalize(values: &mut [f64]) {
    let total: f64 = values.iter().sum();
    if total != 0.0 {
        values.iter_mut().for_each(|value| *value /= total);
    }
}
