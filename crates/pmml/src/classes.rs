//! The classes of a classification model.

use std::collections::HashMap;
use std::sync::Arc;

use super::builder::PmmlBuilder;
use super::field::PmmlType;
use super::prediction::{NO_CLASS, PmmlPrediction};
use super::row::PmmlRow;
use super::schema;
use tensorserve_codec::xml::{XmlElement, local_name};
use tensorserve_tensor::error::Result;

/// The classes that a model distinguishes, and the location of their probabilities in a row.
#[derive(Clone)]
pub(super) struct TargetClasses {
    /// The probability of the first class; those of the others follow.
    pub(super) slot: u32,
    /// The classes as values of the target.
    pub(super) labels: Arc<[f64]>,
    pub(super) names: Arc<[String]>,
    pub(super) data_type: PmmlType,
    /// The index of each label, by the bits of the label.
    indices: Arc<HashMap<u64, u32>>,
    target: Option<String>,
}

impl TargetClasses {
    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The index of the class that an attribute of `element` names.
    pub(super) fn index_of(
        &self,
        builder: &mut PmmlBuilder,
        element: XmlElement,
        name: &str,
    ) -> Result<u32> {
        let label = builder.strings.constant(element, self.data_type, name)?;
        let index = self.indices.get(&label.to_bits()).copied();
        index.ok_or_else(|| element.damaged(format!("{name:?} is not a class of the target")))
    }

    /// These classes, with probabilities elsewhere in the row.
    pub(super) fn with_own_slots(
        &self,
        builder: &mut PmmlBuilder,
        element: XmlElement,
    ) -> Result<TargetClasses> {
        Ok(TargetClasses { slot: builder.allocate_slots(element, self.len())?, ..self.clone() })
    }

    /// The prediction of the class with this index.
    pub(super) fn prediction(&self, class: u32) -> PmmlPrediction {
        match self.labels.get(class as usize) {
            Some(label) => PmmlPrediction { value: *label, class, ..PmmlPrediction::MISSING },
            None => PmmlPrediction::MISSING,
        }
    }

    /// The prediction of the class with the largest probability; of equal ones, of the first.
    pub(super) fn most_probable(&self, row: &PmmlRow) -> PmmlPrediction {
        self.most_probable_of((0u32..).take(self.len()), row)
    }

    /// As [`TargetClasses::most_probable`], of these classes.
    pub(super) fn most_probable_of(
        &self,
        classes: impl IntoIterator<Item = u32>,
        row: &PmmlRow,
    ) -> PmmlPrediction {
        let mut best: Option<(u32, f64)> = None;
        for class in classes {
            let probability = row.get(self.slot.saturating_add(class));
            if best.is_none_or(|(_, largest)| probability > largest) && !probability.is_nan() {
                best = Some((class, probability));
            }
        }
        best.map_or(PmmlPrediction::MISSING, |(class, _)| self.prediction(class))
    }

    /// Reads the classes of the model `element`: those of the model around it, `outer`, if it has the
    /// same target; else those that the data dictionary lists, and then those that the model mentions.
    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        outer: Option<&TargetClasses>,
    ) -> Result<TargetClasses> {
        let target = schema::target_of(element);
        if let Some(classes) = outer
            && target.is_none_or(|target| classes.target.as_deref() == Some(target))
        {
            return Ok(classes.clone());
        }
        let declared = target.and_then(|target| builder.data_field(target));
        let data_type = match declared {
            Some(field) => builder.type_of(field)?,
            None => PmmlType::TEXT,
        };
        let mut names: Vec<String> = Vec::new();
        let mut labels: Vec<f64> = Vec::new();
        let mut indices = HashMap::new();
        let listed = declared.into_iter().flat_map(listed_values);
        let mentioned = MentionedClasses { open: vec![element], target, column: None, next: None };
        for (source, name) in listed.chain(mentioned) {
            let label = builder.strings.constant(source, data_type, name)?;
            let next = u32::try_from(labels.len()).unwrap_or(NO_CLASS);
            indices.entry(label.to_bits()).or_insert_with(|| {
                labels.push(label);
                names.push(name.trim().to_owned());
                next
            });
        }
        if labels.is_empty() {
            return Err(element.damaged("has no classes"));
        }
        Ok(TargetClasses {
            slot: builder.allocate_slots(element, labels.len())?,
            labels: labels.into(),
            names: names.into(),
            data_type,
            indices: Arc::new(indices),
            target: target.map(str::to_owned),
        })
    }
}

/// The valid values that a `DataField` lists, with the elements that list them.
fn listed_values<'d>(field: XmlElement<'d>) -> impl Iterator<Item = (XmlElement<'d>, &'d str)> {
    let values = field.children_named("Value");
    let valid = values.filter(|value| value.attribute("property").is_none_or(|p| p == "valid"));
    valid.filter_map(|value| Some((value, value.attribute("value")?)))
}

/// The classes that the parts of a model mention in document order, with the elements that do. Models
/// within the model are searched, too, unless they predict something else.
struct MentionedClasses<'d> {
    /// Elements that are still to be visited, the next one last.
    open: Vec<XmlElement<'d>>,
    target: Option<&'d str>,
    /// The column of the target in the instances of nearest neighbors.
    column: Option<&'d str>,
    /// A second class that an element mentions.
    next: Option<(XmlElement<'d>, &'d str)>,
}

impl<'d> MentionedClasses<'d> {
    /// Whether `element` is a model with another target.
    fn has_other_target(&self, element: XmlElement<'d>) -> bool {
        if !schema::is_model(element) {
            return false;
        }
        let is_regression = element.attribute("functionName") == Some("regression");
        let target = schema::target_of(element);
        is_regression || (target.is_some() && target != self.target)
    }

    /// The class that an attribute of `element` names.
    fn class_in(&self, element: XmlElement<'d>) -> Option<&'d str> {
        match element.name() {
            "ScoreDistribution" => element.attribute("value"),
            "GeneralRegressionModel" => element.attribute("targetReferenceCategory"),
            "RegressionTable" | "PCell" | "SupportVectorMachine" => {
                element.attribute("targetCategory")
            }
            "Node" | "SimpleRule" => element.attribute("score"),
            "RuleSet" => element.attribute("defaultScore"),
            "TargetValueCount" | "TargetValueStat" => element.attribute("value"),
            name if Some(name) == self.column => Some(element.text()),
            "NormDiscrete" if element.attribute("field") == self.target => {
                element.attribute("value")
            }
            _ => None,
        }
    }
}

impl<'d> Iterator for MentionedClasses<'d> {
    type Item = (XmlElement<'d>, &'d str);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        while let Some(element) = self.open.pop() {
            if self.has_other_target(element) {
                continue;
            }
            let first = self.open.len();
            self.open.extend(element.children());
            if let Some(children) = self.open.get_mut(first..) {
                children.reverse();
            }
            if element.name() == "InstanceField" && element.attribute("field") == self.target {
                self.column = element.attribute("column").map(local_name);
            }
            let alternate = element.attribute("alternateTargetCategory");
            let alternate = alternate.map(|name| (element, name));
            if let Some(name) = self.class_in(element) {
                self.next = alternate;
                return Some((element, name));
            }
            if alternate.is_some() {
                return alternate;
            }
        }
        None
    }
}
