//! Clusters: a row belongs to the one whose center is nearest.

use super::estimator::{ClassLabels, Estimator};
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, StepFacts};
use super::numeric::{argmax, dot};
use tensorserve_tensor::error::Result;

/// Predicts the cluster whose center is nearest.
struct ClusterCenters {
    features: usize,
    /// One center after the other.
    centers: Vec<f64>,
    /// The square of the norm of each center.
    squared_norms: Vec<f64>,
    count: usize,
}

impl Classifier for ClusterCenters {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features)
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let scores = scores.chunks_exact_mut(self.count);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            let centers = self.centers.chunks_exact(self.features).zip(&self.squared_norms);
            for (score, (center, squared_norm)) in scores.iter_mut().zip(centers) {
                // Without the square of the row, which is the same for all centers and would hide
                // what differs if the row is far away.
                *score = 2.0 * dot(row, center) - squared_norm;
            }
            *class = argmax(scores);
        }
        Ok(())
    }
}

impl ClusterCenters {
    fn read(estimator: &Estimator, names: &[&str]) -> Result<Self> {
        let centers = estimator.matrix(names)?;
        let count = centers.rows;
        if count == 0 {
            return Err(estimator.damaged("it has no clusters"));
        }
        let squared_norms = centers.iter().map(|center| dot(center, center)).collect();
        let (features, centers) = (centers.columns, centers.values);
        Ok(ClusterCenters { features, centers, squared_norms, count })
    }
}

/// Reads a `KMeans`, a `MiniBatchKMeans`, a `MeanShift` or an `AffinityPropagation`, which predict the index
/// of the cluster.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    let model = ClusterCenters::read(estimator, &["cluster_centers_"])?;
    let labels = ClassLabels::range(model.count);
    Ok(Predictor::classifier(model, labels, ClassScores::None))
}

/// Reads a `Birch`, which predicts the cluster that the nearest subcluster belongs to.
pub(super) fn birch(estimator: &Estimator) -> Result<Predictor> {
    let model = ClusterCenters::read(estimator, &["subcluster_centers_"])?;
    let labels = estimator.vector_of_len(&["subcluster_labels_"], model.count)?;
    let labels = ClassLabels::Ints(labels.into_iter().map(|label| label as i64).collect());
    Ok(Predictor::classifier(model, labels, ClassScores::None))
}

/// A cluster of a [`ClusterTree`]: two parts of it, or one of the clusters that are predicted.
enum ClusterNode {
    Parts { left: usize, right: usize },
    Leaf { cluster: usize },
}

/// Clusters that are halves of larger ones: a row goes to the half whose center is nearer.
struct ClusterTree {
    features: usize,
    nodes: Vec<ClusterNode>,
    /// The center of each node, one after the other.
    centers: Vec<f64>,
    clusters: usize,
}

impl ClusterTree {
    /// The dot product of twice the row and the center of `node`, less the square of the center's norm:
    /// larger for a center that is nearer.
    fn nearness(&self, row: &[f64], node: usize) -> f64 {
        let range = node * self.features..(node + 1) * self.features;
        let center = self.centers.get(range).unwrap_or_default();
        2.0 * dot(row, center) - dot(center, center)
    }
}

impl Classifier for ClusterTree {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features)
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], _: &mut [f64]) -> Result<()> {
        for (row, class) in rows.iter().zip(classes) {
            let mut node = 0;
            // Parts come after the whole, so that the loop ends.
            while let Some(ClusterNode::Parts { left, right }) = self.nodes.get(node) {
                let is_left = self.nearness(row, *left) >= self.nearness(row, *right);
                node = if is_left { *left } else { *right };
            }
            if let Some(ClusterNode::Leaf { cluster }) = self.nodes.get(node) {
                *class = *cluster;
            }
        }
        Ok(())
    }
}

/// Reads a `BisectingKMeans`.
pub(super) fn bisecting(estimator: &Estimator) -> Result<Predictor> {
    let centers = estimator.matrix(&["cluster_centers_"])?;
    let (clusters, features) = (centers.rows, centers.columns);
    let mean = estimator.optional_vector(&["_X_mean"])?;
    let mut tree = ClusterTree { features, nodes: Vec::new(), centers: Vec::new(), clusters };
    let mut values = vec![estimator.attribute(&["_bisecting_tree"])?];
    while let Some(value) = values.get(tree.nodes.len()) {
        let node = estimator.child(*value)?;
        let center = node.vector_of_len(&["center"], features)?;
        let shift = mean.iter().flatten().copied().chain(std::iter::repeat(0.0));
        tree.centers.extend(center.iter().zip(shift).map(|(x, shift)| x + shift));
        let parts = (node.find(&["left"]), node.find(&["right"]));
        tree.nodes.push(match parts {
            (Some(left), Some(right)) => {
                values.extend([left, right]);
                ClusterNode::Parts { left: values.len() - 2, right: values.len() - 1 }
            }
            _ => ClusterNode::Leaf { cluster: node.count(&["label"])? },
        });
        if values.len() >= 2 * clusters.max(1) {
            return Err(estimator.damaged("its tree has more leaves than there are clusters"));
        }
    }
    let is_valid = tree.nodes.iter().all(|node| match node {
        ClusterNode::Parts { .. } => true,
        ClusterNode::Leaf { cluster } => *cluster < clusters,
    });
    if !is_valid {
        return Err(estimator.damaged("a leaf of its tree is not one of the clusters"));
    }
    let labels = ClassLabels::range(tree.clusters);
    Ok(Predictor::classifier(tree, labels, ClassScores::None))
}
