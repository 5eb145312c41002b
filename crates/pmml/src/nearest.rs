//! `NearestNeighborModel`: the votes or the mean of the training instances that are nearest.

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::features::{ModelFeatures, SlotRange};
use super::field::{MISSING, PmmlType};
use super::measure::{ComparisonField, ComparisonMeasure};
use super::numeric::{median, normalize};
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::row::PmmlRow;
use super::schema;
use super::strings::{RowStrings, UnknownStrings};
use tensorserve_codec::xml::{XmlElement, local_name};
use tensorserve_tensor::error::{Error, Result};

/// The most numbers in the training instances of a model: 1 GiB of memory.
const MAX_VALUES: usize = 1 << 27;

pub(super) struct NearestNeighbors {
    fields: Box<[ComparisonField]>,
    measure: ComparisonMeasure,
    /// The inputs of each training instance in turn.
    points: Box<[f64]>,
    /// The target of each training instance: a number, or the index of a class; empty for a model that
    /// only finds neighbors.
    targets: Box<[f64]>,
    /// The codes of the ids of the instances.
    ids: Box<[f64]>,
    neighbors: usize,
    scoring: ScoringMethod,
    /// Added to the distance in the weight of a neighbor.
    threshold: f64,
    classes: Option<TargetClasses>,
    /// The classes, those with the most instances first and then in alphabetical order: of classes with
    /// equal votes, the first wins.
    preference: Box<[u32]>,
    ranked_ids: SlotRange,
    ranked_affinities: SlotRange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScoringMethod {
    /// `average` of numbers, `majorityVote` of classes.
    Equal,
    /// `weightedAverage`, `weightedMajorityVote`.
    Weighted,
    Median,
}

impl NearestNeighbors {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        if self.fields.iter().all(|field| row.get(field.slot).is_nan()) {
            return PmmlPrediction::MISSING;
        }
        let nearest = self.find(row);
        for (rank, (affinity, instance)) in (0u32..).zip(&nearest) {
            let id = self.ids.get(*instance).copied().unwrap_or(MISSING);
            row.set(self.ranked_ids.first.saturating_add(rank), id);
            row.set(self.ranked_affinities.first.saturating_add(rank), *affinity);
        }
        let entity = row.get(self.ranked_ids.first);
        let prediction = match &self.classes {
            _ if self.targets.is_empty() => {
                PmmlPrediction { value: entity, class: NO_CLASS, ..PmmlPrediction::MISSING }
            }
            None => PmmlPrediction::number(self.mean(&nearest)),
            Some(classes) => {
                let votes = row.range(classes.slot, classes.len());
                votes.fill(0.0);
                for (affinity, instance) in &nearest {
                    let class = self.target(*instance);
                    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // An index.
                    if let Some(vote) = votes.get_mut(class as usize) {
                        *vote += self.weight(*affinity);
                    }
                }
                normalize(votes);
                classes.most_probable_of(self.preference.iter().copied(), row)
            }
        };
        PmmlPrediction { entity, ..prediction }
    }

    /// The affinity and the index of the nearest instances, the nearest first; of equally near ones,
    /// the first.
    fn find(&self, row: &PmmlRow) -> Vec<(f64, usize)> {
        let mut nearest: Vec<(f64, usize)> = Vec::with_capacity(self.neighbors + 1);
        let present = self.fields.iter().filter(|field| !row.get(field.slot).is_nan()).count();
        #[allow(clippy::cast_precision_loss)]
        let adjustment = self.fields.len() as f64 / present.max(1) as f64;
        let points = self.points.chunks_exact(self.fields.len().max(1));
        for (instance, point) in points.enumerate() {
            let affinity = self.measure.compare(&self.fields, row, point, adjustment);
            if affinity.is_nan() {
                continue;
            }
            let is_full = nearest.len() == self.neighbors;
            if is_full
                && nearest.last().is_some_and(|(last, _)| !self.measure.is_nearer(affinity, *last))
            {
                continue;
            }
            let place =
                nearest.partition_point(|(other, _)| !self.measure.is_nearer(affinity, *other));
            nearest.insert(place, (affinity, instance));
            nearest.truncate(self.neighbors);
        }
        nearest
    }

    fn target(&self, instance: usize) -> f64 {
        self.targets.get(instance).copied().unwrap_or(MISSING)
    }

    fn weight(&self, affinity: f64) -> f64 {
        match (self.scoring, self.measure.is_similarity) {
            (ScoringMethod::Weighted, true) => affinity,
            (ScoringMethod::Weighted, false) => 1.0 / (affinity + self.threshold),
            (ScoringMethod::Equal | ScoringMethod::Median, _) => 1.0,
        }
    }

    fn mean(&self, nearest: &[(f64, usize)]) -> f64 {
        if self.scoring == ScoringMethod::Median {
            let mut values: Vec<f64> = nearest.iter().map(|(_, one)| self.target(*one)).collect();
            return median(&mut values);
        }
        let (mut sum, mut total) = (0.0, 0.0);
        for (affinity, instance) in nearest {
            let weight = self.weight(*affinity);
            sum += weight * self.target(*instance);
            total += weight;
        }
        sum / total
    }

    pub(super) fn features(&self) -> ModelFeatures {
        ModelFeatures {
            entities: Some(self.ranked_ids),
            affinities: Some(self.ranked_affinities),
            ..ModelFeatures::default()
        }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let measure = ComparisonMeasure::read(element)?;
        let table = InstanceTable::read(element)?;
        let mut fields = Vec::new();
        let mut columns = Vec::new();
        for input in element.required_child("KNNInputs")?.children_named("KNNInput") {
            fields.push(measure.read_field(element, input, "field", context)?);
            let name = input.required("field")?;
            let field = context.scope.field(input, "field")?;
            let data_type = field.data_type;
            columns.push((table.column(name), field.slot, data_type));
        }
        if fields.is_empty() {
            return Err(element.damaged("has no KNNInput"));
        }
        let target = match schema::target_of(element) {
            Some(name) => table.column(name),
            None => None,
        };
        let id_column = element.attribute("instanceIdVariable").and_then(|name| table.column(name));
        let (mut points, mut targets, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let mut values = Vec::new();
        for (index, instance) in table.rows.children_named("row").enumerate() {
            if columns.iter().any(|(column, ..)| column.is_none()) {
                builder.count_probabilities(instance, builder.slot_count())?;
                values = table.derive(builder, instance, context)?;
            }
            for (column, slot, data_type) in &columns {
                points.push(match column {
                    Some(column) => cell_value(builder, instance, column, *data_type)?,
                    None => values.get(*slot as usize).copied().unwrap_or(MISSING),
                });
            }
            if points.len() > MAX_VALUES {
                return Err(table.rows.unsupported(format!("more than {MAX_VALUES} numbers")));
            }
            if let Some(column) = target {
                targets.push(target_value(builder, instance, column, context)?);
            }
            let id = match id_column {
                Some(column) => cell(instance, column).unwrap_or_default().to_owned(),
                None => (index + 1).to_string(),
            };
            ids.push(if builder.needs_entity_ids || target.is_none() {
                builder.strings.intern(&id)
            } else {
                MISSING
            });
        }
        if ids.is_empty() {
            return Err(table.rows.damaged("has no row"));
        }
        let neighbors = neighbor_count(element, ids.len())?;
        let preference = match &context.classes {
            Some(classes) => preference(classes, &targets),
            None => Box::default(),
        };
        Ok(NearestNeighbors {
            fields: fields.into(),
            measure,
            points: points.into(),
            targets: targets.into(),
            ids: ids.into(),
            neighbors,
            scoring: read_scoring(element, context.classes.is_some())?,
            threshold: element.number_or("threshold", 0.001)?,
            classes: context.classes.clone(),
            preference,
            ranked_ids: builder.allocate_range(element, neighbors)?,
            ranked_affinities: builder.allocate_range(element, neighbors)?,
        })
    }
}

/// The classes in the order in which they win ties.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Indices.
fn preference(classes: &TargetClasses, targets: &[f64]) -> Box<[u32]> {
    let mut counts = vec![0usize; classes.len()];
    for target in targets {
        if let Some(count) = counts.get_mut(*target as usize) {
            *count += 1;
        }
    }
    let named = (0u32..).zip(classes.names.iter()).zip(counts);
    let mut all: Vec<_> = named.map(|((class, name), count)| (class, name, count)).collect();
    all.sort_by(|(_, a, more), (_, b, less)| less.cmp(more).then(a.cmp(b)));
    all.into_iter().map(|(class, ..)| class).collect()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Checked.
fn neighbor_count(element: XmlElement, instances: usize) -> Result<usize> {
    let count = element.required_number("numberOfNeighbors")?;
    if !(count >= 1.0 && count.fract() == 0.0) {
        return Err(element.damaged("numberOfNeighbors is not a positive integer"));
    }
    Ok((count as usize).min(instances))
}

fn read_scoring(element: XmlElement, is_classification: bool) -> Result<ScoringMethod> {
    let (name, default) = match is_classification {
        true => ("categoricalScoringMethod", "majorityVote"),
        false => ("continuousScoringMethod", "average"),
    };
    match (is_classification, element.attribute(name).unwrap_or(default)) {
        (false, "average") | (true, "majorityVote") => Ok(ScoringMethod::Equal),
        (false, "weightedAverage") | (true, "weightedMajorityVote") => Ok(ScoringMethod::Weighted),
        (false, "median") => Ok(ScoringMethod::Median),
        (_, other) => Err(element.unsupported(format!("{name}={other:?}"))),
    }
}

/// The strings of a request, of which there is none; with the first code that is not in use.
struct NoStrings(f64);

impl UnknownStrings for NoStrings {
    fn text(&self, _: f64) -> Option<&[u8]> {
        None
    }

    fn end(&self) -> f64 {
        self.0
    }
}

/// The training instances of a model.
struct InstanceTable<'d> {
    /// The name of each field, and that of its column.
    columns: Vec<(&'d str, &'d str)>,
    rows: XmlElement<'d>,
}

impl<'d> InstanceTable<'d> {
    fn read(element: XmlElement<'d>) -> Result<Self> {
        let instances = element.required_child("TrainingInstances")?;
        let mut columns = Vec::new();
        for field in instances.required_child("InstanceFields")?.children_named("InstanceField") {
            let name = field.required("field")?;
            columns.push((name, local_name(field.attribute("column").unwrap_or(name))));
        }
        let rows = instances
            .child("InlineTable")
            .ok_or_else(|| instances.unsupported("a table outside of the file"))?;
        Ok(InstanceTable { columns, rows })
    }

    /// The values of a row that has the fields of an instance, and those derived from them.
    fn derive(
        &self,
        builder: &mut PmmlBuilder,
        instance: XmlElement,
        context: &ModelContext,
    ) -> Result<Vec<f64>> {
        let mut values = vec![MISSING; builder.slot_count()];
        for (name, column) in &self.columns {
            let Some(field) = context.scope.get(name) else { continue };
            let value = cell_value(builder, instance, column, field.data_type)?;
            if let Some(place) = values.get_mut(field.slot as usize) {
                *place = value;
            }
        }
        let unknown = NoStrings(builder.strings.end());
        let strings = RowStrings::new(&builder.strings, &unknown);
        let mut row = PmmlRow { values: &mut values, strings: &strings };
        for step in context.steps {
            step.derive(&mut row);
        }
        Ok(values)
    }

    /// The column of the field `name`.
    fn column(&self, name: &str) -> Option<&'d str> {
        self.columns.iter().find(|(field, _)| *field == name).map(|(_, column)| *column)
    }
}

/// The text of the cell in `column` of an instance.
fn cell<'d>(instance: XmlElement<'d>, column: &str) -> Option<&'d str> {
    instance.children().find(|cell| cell.name() == column).map(XmlElement::text)
}

/// The value of a cell; missing if there is none.
fn cell_value(
    builder: &mut PmmlBuilder,
    instance: XmlElement,
    column: &str,
    data_type: PmmlType,
) -> Result<f64> {
    match cell(instance, column) {
        None => Ok(MISSING),
        Some("") => Ok(MISSING),
        // Integers may be written as other numbers.
        Some(text) if data_type.is_number() => {
            builder.strings.constant(instance, PmmlType::NUMBER, text)
        }
        Some(text) => builder.strings.constant(instance, data_type, text),
    }
}

/// The number that an instance has as its target, or the index of its class.
fn target_value(
    builder: &mut PmmlBuilder,
    instance: XmlElement,
    column: &str,
    context: &ModelContext,
) -> Result<f64> {
    let missing = || -> Error { instance.damaged(format!("has no column {column:?}")) };
    let text = cell(instance, column).ok_or_else(missing)?;
    match &context.classes {
        Some(classes) => Ok(f64::from(classes.index_of(builder, instance, text)?)),
        None => builder.strings.constant(instance, PmmlType::NUMBER, text),
    }
}
