//! The functions that predictors share.

pub(super) use tensorserve_tabular::numeric::{logistic, softmax};

/// The index of the largest of `scores`; of equal ones, of the first. As in NumPy, NaN is larger than
/// any number.
pub(super) fn argmax(scores: &[f64]) -> usize {
    let mut best = 0;
    let mut largest = f64::NEG_INFINITY;
    for (index, score) in scores.iter().enumerate() {
        if score.is_nan() {
            return index;
        }
        if *score > largest {
            (best, largest) = (index, *score);
        }
    }
    best
}

/// Turns logits into logarithms of probabilities.
pub(super) fn log_softmax(scores: &mut [f64]) {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let offset = if largest.is_finite() { largest } else { 0.0 };
    let sum: f64 = scores.iter().map(|score| (*score - offset).exp()).sum();
    let log = offset + sum.ln();
    scores.iter_mut().for_each(|score| *score -= log);
}

/// The dot product, as four partial sums, which a processor adds in parallel.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (left, left_rest) = a.as_chunks::<4>();
    let (right, right_rest) = b.as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (a, b) in left.iter().zip(right) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    let rest: f64 = left_rest.iter().zip(right_rest).map(|(a, b)| a * b).sum();
    let [s0, s1, s2, s3] = sums;
    (s0 + s1) + (s2 + s3) + rest
}

/// 1 for true, 0 for false.
pub(super) fn indicator(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}
