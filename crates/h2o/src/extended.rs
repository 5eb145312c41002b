//! Extended isolation forests: their trees split by planes.
//!
//! A tree is the number of its columns, and then nodes: the number of the node (the children of node i
//! are 2i + 1 and 2i + 2), `N` with a normal and a point of the plane, or `L` with the rows that
//! training left there; zeros may follow. All is little-endian. Source: `ExtendedIsolationForestMojoModel` of
//! h2o-genmodel 3.46.0.6.

use std::collections::HashMap;

use super::files::MojoFiles;
use super::head::{MojoHead, MojoScorer};
use super::numeric::float;
use tensorserve_tensor::error::{Error, Result};

/// Euler's constant, as H2O has it.
const EULER: f64 = 0.577_215_664_9;

const NODE: u8 = b'N';
const LEAF: u8 = b'L';

/// A forest.
pub(super) struct ExtendedIsolationForest {
    columns: usize,
    /// The mean path of a search among the rows of a sample.
    normal_path: f64,
    nodes: Vec<IsolationTreeNode>,
    /// Normals and points: each as many numbers as there are columns.
    planes: Vec<f64>,
    roots: Vec<usize>,
}

enum IsolationTreeNode {
    /// The start of its normal, after which its point follows, and the children.
    Plane { plane: usize, children: [Option<usize>; 2] },
    /// The length of the path.
    Leaf(f64),
}

impl ExtendedIsolationForest {
    /// Reads the forest.
    pub(super) fn read(files: &MojoFiles, head: &MojoHead) -> Result<Self> {
        let info = &head.info;
        let mut forest = ExtendedIsolationForest {
            columns: head.features,
            normal_path: mean_path(info.number("sample_size")?),
            nodes: Vec::new(),
            planes: Vec::new(),
            roots: Vec::new(),
        };
        for number in 0..info.size("ntrees")? {
            let name = format!("trees/t{number:02}.bin");
            let bytes = files.read(&name)?;
            forest.add(&bytes).ok_or_else(|| Error::damaged(format!("{name} is not a tree")))?;
        }
        Ok(forest)
    }

    /// Adds a tree.
    fn add(&mut self, bytes: &[u8]) -> Option<()> {
        let (columns, mut rest) = bytes.split_first_chunk()?;
        if usize::try_from(i32::from_le_bytes(*columns)) != Ok(self.columns) {
            return None;
        }
        // The number of a node in the file, its index here.
        let mut indices = HashMap::new();
        let first = self.nodes.len();
        let mut numbers = Vec::new();
        while let Some((number, after)) = rest.split_first_chunk() {
            let number = u64::from(u32::from_le_bytes(*number));
            if number == 0 && !numbers.is_empty() {
                // The rest is what the writer's buffer had left: zeros.
                rest = &[];
                break;
            }
            let (kind, after) = after.split_first()?;
            // The evaluator of H2O takes the first node with a number.
            indices.entry(number).or_insert(self.nodes.len());
            numbers.push(number);
            rest = match *kind {
                NODE => {
                    let (plane, after) = after.split_at_checked(self.columns.checked_mul(16)?)?;
                    let start = self.planes.len();
                    let numbers =
                        plane.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
                    self.planes.extend(numbers);
                    self.nodes.push(IsolationTreeNode::Plane { plane: start, children: [None; 2] });
                    after
                }
                LEAF => {
                    let (rows, after) = after.split_first_chunk()?;
                    let height = f64::from((number + 1).ilog2());
                    let rows = f64::from(i32::from_le_bytes(*rows));
                    self.nodes.push(IsolationTreeNode::Leaf(height + mean_path(rows)));
                    after
                }
                _ => return None,
            };
        }
        rest.is_empty().then_some(())?;
        let nodes = self.nodes.get_mut(first..).unwrap_or_default();
        for (index, (node, number)) in (first..).zip(nodes.iter_mut().zip(numbers)) {
            if let IsolationTreeNode::Plane { children, .. } = node {
                let child = |side| indices.get(&(2 * number + side)).copied();
                // H2O's evaluator finds only what follows in the file.
                *children = [child(1), child(2)].map(|child| child.filter(|child| *child > index));
            }
        }
        self.roots.push(indices.get(&0).copied()?);
        Some(())
    }

    /// The length of the path of a row in the tree of a root; H2O's −1 if it ends nowhere.
    fn path(&self, root: usize, row: &[f64]) -> f64 {
        let mut at = Some(root);
        while let Some(index) = at {
            match self.nodes.get(index) {
                Some(IsolationTreeNode::Leaf(path)) => return *path,
                Some(IsolationTreeNode::Plane { plane, children }) => {
                    let plane = self.planes.get(*plane..).unwrap_or_default();
                    let (normal, points) = plane.split_at_checked(self.columns).unwrap_or_default();
                    let mut side = 0.0;
                    for ((x, normal), point) in row.iter().zip(normal).zip(points) {
                        side += (x - point) * normal;
                    }
                    let [left, right] = *children;
                    at = if side <= 0.0 { left } else { right };
                }
                None => break,
            }
        }
        -1.0
    }
}

/// The mean path of an unsuccessful search in a binary tree of `rows` rows.
fn mean_path(rows: f64) -> f64 {
    if rows < 2.0 {
        return 0.0;
    }
    if rows < 3.0 {
        return 1.0;
    }
    2.0 * ((rows - 1.0).ln() + EULER) - 2.0 * (rows - 1.0) / rows
}

impl MojoScorer for ExtendedIsolationForest {
    fn score(&self, rows: &mut [f64], _: &[f64], predictions: &mut [f64]) {
        let rows = rows.chunks_exact(self.columns.max(1));
        for (row, prediction) in rows.zip(predictions.chunks_exact_mut(2)) {
            let paths: f64 = self.roots.iter().map(|root| self.path(*root, row)).sum();
            let path = paths / float(self.roots.len());
            if let [score, mean] = prediction {
                *score = 2.0_f64.powf(-(path / self.normal_path));
                *mean = path;
            }
        }
    }
}
