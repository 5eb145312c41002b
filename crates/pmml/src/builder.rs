//! What all parts of a file share while it is read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::expression::FunctionBody;
use super::features::SlotRange;
use super::field::PmmlType;
use super::strings::StringTable;
use tensorserve_codec::xml::XmlElement;
use tensorserve_tensor::error::{Error, Result};

/// The most values of a row, intermediate ones included: 8 MiB of memory for each request.
const MAX_SLOTS: u32 = 1 << 20;

/// The most probabilities in the nodes of all trees: 1 GiB of memory.
const MAX_PROBABILITIES: usize = 1 << 27;

/// The most patterns of functions: 64 MiB of memory.
const MAX_PATTERNS: u32 = 512;

/// The most expressions that calls of a file's own functions evaluate for a row: a fraction of a second.
const MAX_COST: u32 = 1 << 20;

/// How many derived fields are read again for models within models.
const MAX_DERIVED: u32 = 1 << 16;

/// A function that the file defines, by its name and the types of its parameters.
type FunctionKey<'d> = (&'d str, Vec<PmmlType>);

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
    /// The functions that the file defines.
    definitions: HashMap<&'d str, XmlElement<'d>>,
    /// The derived fields of the transformation dictionary.
    dictionary_fields: Vec<XmlElement<'d>>,
    /// The indices of those that refer to a field.
    dependents: HashMap<&'d str, Vec<usize>>,
    /// How many of them were read again for models within models.
    derived: u32,
    functions: HashMap<FunctionKey<'d>, Arc<FunctionBody>>,
    /// The functions that are being read.
    open_functions: HashSet<&'d str>,
    patterns: u32,
    cost: u32,
    /// What of the file is not served, for the log.
    pub(super) warnings: Vec<String>,
    /// The names of the outputs that are not served.
    pub(super) dropped: HashSet<&'d str>,
    /// Whether an output is the id of the node, segment or cluster that determined the prediction.
    pub(super) needs_entity_ids: bool,
    /// Whether an output is not the first one of a ranking.
    pub(super) needs_ranking: bool,
    /// Whether an output is a confidence.
    pub(super) needs_confidence: bool,
    /// Whether an output is a reason code.
    pub(super) needs_reasons: bool,
}

impl<'d> PmmlBuilder<'d> {
    pub(super) fn new(root: XmlElement<'d>) -> Result<Self> {
        let mut referenced = HashSet::new();
        let mut needs_entity_ids = false;
        let (mut needs_ranking, mut needs_confidence, mut needs_reasons) = (false, false, false);
        for element in root.descendants() {
            needs_entity_ids |= matches!(
                element.attribute("feature"),
                Some("entityId" | "clusterId" | "ruleValue")
            );
            if element.name() == "OutputField" {
                needs_ranking |= element.attribute("rank").is_some();
                needs_reasons |= element.attribute("feature") == Some("reasonCode");
                needs_confidence |= element.attribute("feature") == Some("confidence");
            }
            match element.name() {
                // Elements that declare names; all others refer to them.
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
        let mut definitions = HashMap::new();
        let mut dictionary_fields: Vec<XmlElement> = Vec::new();
        if let Some(transformations) = root.child("TransformationDictionary") {
            for function in transformations.children_named("DefineFunction") {
                definitions.insert(function.required("name")?, function);
            }
            dictionary_fields.extend(transformations.children_named("DerivedField"));
        }
        let mut dependents: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, derived) in dictionary_fields.iter().enumerate() {
            for field in derived.descendants().filter_map(|inside| inside.attribute("field")) {
                dependents.entry(field).or_default().push(index);
            }
        }
        Ok(PmmlBuilder {
            strings: StringTable::default(),
            slots: 0,
            probabilities: 0,
            referenced,
            dictionary,
            definitions,
            dictionary_fields,
            dependents,
            derived: 0,
            functions: HashMap::new(),
            open_functions: HashSet::new(),
            patterns: 0,
            cost: 0,
            warnings: Vec::new(),
            dropped: HashSet::new(),
            needs_entity_ids,
            needs_ranking,
            needs_confidence,
            needs_reasons,
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

    /// As [`PmmlBuilder::allocate_slots`].
    pub(super) fn allocate_range(
        &mut self,
        element: XmlElement,
        count: usize,
    ) -> Result<SlotRange> {
        let first = self.allocate_slots(element, count)?;
        Ok(SlotRange { first, len: self.slots - first })
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

    /// The derived fields of the transformation dictionary that depend on `fields`, in their order.
    pub(super) fn derived_from(&mut self, mut fields: Vec<&'d str>) -> Result<Vec<XmlElement<'d>>> {
        let mut found = BTreeSet::new();
        while let Some(field) = fields.pop() {
            for index in self.dependents.get(field).into_iter().flatten() {
                let Some(derived) = self.dictionary_fields.get(*index).copied() else { continue };
                let name = derived.required("name")?;
                if !self.referenced.contains(name) || !found.insert(*index) {
                    continue;
                }
                self.derived = self.derived.saturating_add(1);
                if self.derived > MAX_DERIVED {
                    return Err(derived.unsupported("a field that so many models derive anew"));
                }
                fields.push(name);
            }
        }
        let all = found.into_iter().filter_map(|index| self.dictionary_fields.get(index).copied());
        Ok(all.collect())
    }

    /// Counts a pattern that is about to be compiled.
    pub(super) fn count_pattern(&mut self, element: XmlElement) -> Result<()> {
        self.patterns = self.patterns.saturating_add(1);
        match self.patterns > MAX_PATTERNS {
            true => {
                Err(element.unsupported(format!("a model with more than {MAX_PATTERNS} patterns")))
            }
            false => Ok(()),
        }
    }

    /// Counts the expressions that a call of a function evaluates.
    pub(super) fn count_cost(&mut self, element: XmlElement, cost: u32) -> Result<()> {
        self.cost = self.cost.saturating_add(cost);
        match self.cost > MAX_COST {
            true => Err(element.unsupported("a model with so many calls of its own functions")),
            false => Ok(()),
        }
    }

    /// The definition of the function `name` in the file.
    pub(super) fn function(&self, name: &str) -> Option<XmlElement<'d>> {
        self.definitions.get(name).copied()
    }

    /// The function `name` for parameters of these types, if it was read before.
    pub(super) fn compiled_function(
        &self,
        name: &'d str,
        types: &[PmmlType],
    ) -> Option<Arc<FunctionBody>> {
        self.functions.get(&(name, types.to_vec())).cloned()
    }

    /// Notes that the function `name` is being read, which it must not be already.
    pub(super) fn begin_function(&mut self, element: XmlElement, name: &'d str) -> Result<()> {
        match self.open_functions.insert(name) {
            true => Ok(()),
            false => Err(element.damaged("calls itself")),
        }
    }

    /// Notes that the function `name` is no longer being read.
    pub(super) fn end_function(&mut self, name: &str) {
        self.open_functions.remove(name);
    }

    /// Adds a function that was read.
    pub(super) fn add_function(
        &mut self,
        name: &'d str,
        types: &[PmmlType],
        function: FunctionBody,
    ) -> Arc<FunctionBody> {
        let function = Arc::new(function);
        self.functions.insert((name, types.to_vec()), Arc::clone(&function));
        function
    }

    /// Notes that the output `name` is not served, and why.
    pub(super) fn drop_output(&mut self, name: &'d str, why: &Error) {
        if self.dropped.insert(name) {
            self.warnings.push(format!("the output {name:?} is left out: {}", why.message()));
        }
    }

    /// Whether anything refers to the field `name`.
    pub(super) fn is_referenced(&self, name: &str) -> bool {
        self.referenced.contains(name)
    }

    /// The declaration of the field `name` in the data dictionary.
    pub(super) fn data_field(&self, name: &str) -> Option<XmlElement<'d>> {
        self.dictionary.get(name).copied()
    }

    /// The values of the field `name` in their order, if it is ordinal.
    pub(super) fn ordinal_values(&mut self, name: &str, data_type: PmmlType) -> Result<Vec<f64>> {
        let field = self.data_field(name);
        let field = field.filter(|field| field.attribute("optype") == Some("ordinal"));
        let mut values = Vec::new();
        for value in field.into_iter().flat_map(|field| field.children_named("Value")) {
            if value.attribute("property").is_none_or(|property| property == "valid") {
                let text = value.required("value")?;
                values.push(self.strings.constant(value, data_type, text)?);
            }
        }
        Ok(values)
    }

    /// The type of the field that `element` declares.
    pub(super) fn type_of(&self, element: XmlElement) -> Result<PmmlType> {
        PmmlType::named(element, element.required("dataType")?)
    }
}
