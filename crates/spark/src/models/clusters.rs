//! `KMeansModel` and `BisectingKMeansModel`.

use std::borrow::Cow;
use std::collections::HashMap;

use super::super::folder::StageFolder;
use super::super::schema::{ColumnKind, Schema};
use super::super::stage::PipelineStage;
use super::super::table::{SparkColumn, SparkTable, dot};
use super::super::vector::read_vectors;
use super::super::{damaged, float, index_of, unsupported};
use super::predict::{features, prediction_name};
use tensorserve_tensor::error::Result;

/// A measure of distance.
#[derive(Clone, Copy)]
enum Distance {
    Euclidean,
    Cosine,
}

impl Distance {
    fn read(folder: &StageFolder) -> Result<Self> {
        match folder.text("distanceMeasure", "euclidean")? {
            "euclidean" => Ok(Distance::Euclidean),
            "cosine" => Ok(Distance::Cosine),
            other => Err(unsupported(format!("the distanceMeasure {other:?}"))),
        }
    }

    /// A number that is smaller for a center that is nearer to the row.
    fn to(self, center: &Center, row: &[f64]) -> f64 {
        match self {
            Distance::Euclidean => {
                let differences = row.iter().zip(&center.values).map(|(a, b)| a - b);
                differences.map(|difference| difference * difference).sum()
            }
            // The norm of the row is the same for all centers.
            Distance::Cosine => -dot(&center.values, row) / center.norm,
        }
    }
}

struct Center {
    values: Vec<f64>,
    norm: f64,
}

impl Center {
    fn new(values: Vec<f64>) -> Self {
        let norm = dot(&values, &values).sqrt();
        Center { values, norm }
    }
}

/// A cluster: a center, and those that it is divided into.
struct Cluster {
    center: Center,
    /// The number that is predicted, if it is not divided.
    number: f64,
    children: Vec<usize>,
}

/// Clusters, of which the first contains the others.
struct ClusterStage {
    features: usize,
    prediction: usize,
    distance: Distance,
    clusters: Vec<Cluster>,
}

impl ClusterStage {
    fn number(&self, row: &[f64]) -> f64 {
        let mut at = self.clusters.first();
        // Children come after their parents, so that this ends.
        while let Some(cluster) = at {
            if cluster.children.is_empty() {
                return cluster.number;
            }
            let mut nearest: Option<(f64, &Cluster)> = None;
            for child in cluster.children.iter().filter_map(|child| self.clusters.get(*child)) {
                let distance = self.distance.to(&child.center, row);
                if nearest.is_none_or(|(least, _)| distance < least) {
                    nearest = Some((distance, child));
                }
            }
            at = nearest.map(|(_, child)| child);
        }
        f64::NAN
    }
}

impl PipelineStage for ClusterStage {
    fn run(&self, table: &mut SparkTable<'_>) -> Result<()> {
        let mut numbers = Vec::with_capacity(table.rows);
        table.vectors(self.features)?.for_dense_rows(table.rows, |_, row| {
            numbers.push(self.number(row));
            Ok(())
        })?;
        table.put(self.prediction, SparkColumn::Numbers(Cow::Owned(numbers)));
        Ok(())
    }
}

fn stage(
    folder: &StageFolder,
    schema: &mut Schema,
    clusters: Vec<Cluster>,
) -> Result<Box<dyn PipelineStage>> {
    let distance = Distance::read(folder)?;
    let width = clusters.first().map_or(0, |cluster| cluster.center.values.len());
    if width == 0 || clusters.iter().any(|cluster| cluster.center.values.len() != width) {
        return Err(damaged("its centers differ in length, or are empty"));
    }
    let features = features(folder, schema, Some(width))?;
    let prediction = schema.make(prediction_name(folder)?, ColumnKind::Integer)?;
    schema.add_output(prediction);
    Ok(Box::new(ClusterStage { features, prediction, distance, clusters }))
}

pub(in super::super) fn kmeans(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    let table = folder.table("data")?;
    let numbers = table.list("clusterIdx").to_vec();
    let centers = read_vectors(&table, "clusterCenter")?;
    if centers.is_empty() || centers.len() != numbers.len() {
        return Err(damaged("its clusters do not have a number and a center each"));
    }
    let mut leaves: Vec<(f64, Vec<f64>)> = numbers.into_iter().zip(centers).collect();
    leaves.sort_by(|a, b| a.0.total_cmp(&b.0));
    let width = leaves.first().map_or(0, |(_, center)| center.len());
    let children = (1..=leaves.len()).collect();
    let root = Cluster { center: Center::new(vec![0.0; width]), number: 0.0, children };
    let leaves = leaves.into_iter().map(|(number, center)| Cluster {
        center: Center::new(center),
        number,
        children: Vec::new(),
    });
    stage(folder, schema, std::iter::once(root).chain(leaves).collect())
}

pub(in super::super) fn bisecting_kmeans(
    folder: &StageFolder,
    schema: &mut Schema,
) -> Result<Box<dyn PipelineStage>> {
    // A model of MLlib, in a folder of its own.
    let inner = StageFolder::open(&folder.path.join("data"))?;
    let table = folder.table("data/data")?;
    let numbers = table.list("index");
    let centers = read_vectors(&table, "center")?;
    let children = table.column("children").filter(|children| children.depth() == 1);
    let children = children.ok_or_else(|| damaged("its clusters have no children"))?;
    if numbers.len() != centers.len() {
        return Err(damaged("its clusters do not have a number and a center each"));
    }
    let rows = numbers.iter().enumerate().map(|(row, number)| (number.to_bits(), row));
    let rows: HashMap<u64, usize> = rows.collect();
    let row_of = |number: f64| rows.get(&number.to_bits()).copied();
    let root = inner.field("rootId").and_then(serde_json::Value::as_f64);
    let root = root.and_then(row_of).ok_or_else(|| damaged("it has no root"))?;
    // Rows in the order of the tree: parents before children.
    let mut order = vec![root];
    let mut clusters: Vec<Cluster> = Vec::new();
    let mut centers: Vec<Option<Vec<f64>>> = centers.into_iter().map(Some).collect();
    let mut at = 0;
    while let Some(row) = order.get(at).copied() {
        let center = centers.get_mut(row).and_then(Option::take);
        let center = center.ok_or_else(|| damaged("a cluster is in two others"))?;
        let mut own = Vec::new();
        for child in children.row(row) {
            let child = row_of(*child).ok_or_else(|| damaged("a cluster is missing"))?;
            own.push(order.len());
            order.push(child);
        }
        let number = numbers.get(row).copied().unwrap_or(f64::NAN);
        clusters.push(Cluster { center: Center::new(center), number, children: own });
        at += 1;
    }
    if clusters.iter().any(|cluster| float(index_of(cluster.number.abs())) != cluster.number.abs())
    {
        return Err(damaged("the numbers of its clusters are not integers"));
    }
    stage(folder, schema, clusters)
}
