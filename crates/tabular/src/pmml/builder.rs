//! What all parts of a file share while it is read.

use std::collections::{HashMap, HashSet};

use super::field::{PmmlType, StringTable};
use super::xml::XmlElement;
use tensorserve_tensor::error::Result;

/// The most values of a row, intermediate ones included: 8 MiB of memory for each request.
const MAX_SLOTS: u32 = 1 << 20;

/// The most probabilities in the nodes of all trees: 1 GiB of memory.
const MAX_PROBABILITIES: usize = 1 << 27;

/// What all parts of a file share while it is read.
pub(super) struct PmmlBuilder<'d> {
    pub(super) strings: StringTable,
    /// The number of values of a row, so far.
    slots: u32,
    /// The number of probabilities in the nodes of trees, so far.
    probabilities: usize,
    /// The names that occur as values of attributes, other than as the name of a declared field.
    /// Derived fields that are not among them are not used.
    referenced: HashSet<&'d str>,
    dictionary: HashMap<&'d str, XmlElement<'d>>,
    /// Whether an output is the id of the node, segment or cluster that determined the prediction.
    pub(super) needs_entity_ids: bool,
}

impl<'d> PmmlBuilder<'d> {
    pub(super) fn new(root: XmlElement<'d>) -> Result<Self> {
        let mut referenced = HashSet::new();
        let mut needs_entity_ids = false;
        for element in root.descendants() {
            needs_entity_ids |=
                matches!(element.attribute("feature"), Some("entityId" | "clusterId"));
            match element.name() {
                // These declare names; all other elements refer to them.
                "DataField" | "DerivedField" | "OutputField" => {
                    referenced.extend(element.attribute("targetField"));
                }
                _ => {
                    let attributes = element.attributes().filter(|(name, _)| *name != "value");
                    referenced.extend(attributes.map(|(_, value)| value));
                }
            }
        }
        let mut dictionary = HashMap::new();
        for field in root.required_child("DataDictionary")?.children_named("DataField") {
            if dictionary.insert(field.required("name")?, field).is_some() {
                return Err(field.damaged("is declared twice"));
            }
        }
        Ok(PmmlBuilder {
            strings: StringTable::default(),
            slots: 0,
            probabilities: 0,
            referenced,
            dictionary,
            needs_entity_ids,
        })
    }

    /// Allocates a value of a row.
    pub(super) fn allocate_slot(&mut self, element: XmlElement) -> Result<u32> {
        self.allocate_slots(element, 1)
    }

    /// Allocates `count` adjacent values of a row, and returns the first.
    pub(super) fn allocate_slots(&mut self, element: XmlElement, count: usize) -> Result<u32> {
        let first = self.slots;
        let end = u32::try_from(count).ok().and_then(|count| first.checked_add(count));
        match end.filter(|end| *end <= MAX_SLOTS) {
            Some(end) => self.slots = end,
            None => {
                let message = format!("a model with more than {MAX_SLOTS} fields and classes");
                return Err(element.unsupported(message));
            }
        }
        Ok(first)
    }

    /// The number of values of a row.
    pub(super) fn slot_count(&self) -> usize {
        self.slots as usize
    }

    /// Counts probabilities that are about to be stored.
    pub(super) fn count_probabilities(&mut self, element: XmlElement, count: usize) -> Result<()> {
        self.probabilities = self.probabilities.saturating_add(count);
        if self.probabilities > MAX_PROBABILITIES {
            let message = format!("a model with more than {MAX_PROBABILITIES} probabilities");
            return Err(element.unsupported(message));
        }
        Ok(())
    }

    /// Whether anything refers to the field `name`.
    pub(super) fn is_referenced(&self, name: &str) -> bool {
        self.referenced.contains(name)
    }

    /// The declaration of the field `name` in the data dictionary.
    pub(super) fn data_field(&self, name: &str) -> Option<XmlElement<'d>> {
        self.dictionary.get(name).copied()
    }

    /// The type of the field that `element` declares.
    pub(super) fn type_of(&self, element: XmlElement) -> Result<PmmlType> {
        PmmlType::named(element, element.required("dataType")?)
    }
}
