//! `SupportVectorMachineModel`: weighted sums of kernels, one for the number, or for each class or pair of
//! classes.

use std::collections::HashMap;

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::context::ModelContext;
use super::field::{ValueKind, indicator};
use super::numeric::normalize;
use super::prediction::PmmlPrediction;
use super::row::PmmlRow;
use tensorserve_codec::xml::{XmlElement, parse_number};
use tensorserve_tensor::error::Result;

pub(super) struct VectorMachines {
    fields: Box<[VectorField]>,
    /// The slot of the row's value of the first field; those of the others follow.
    first_field: u32,
    vectors: SparseVectors,
    kernel: PmmlKernel,
    machines: Box<[Machine]>,
    decision: MachineDecision,
}

/// A number of the vectors.
enum VectorField {
    Number(u32),
    /// This number if the field has this value, else 0.
    Category {
        slot: u32,
        value: f64,
        coefficient: f64,
    },
}

impl VectorField {
    #[allow(clippy::float_cmp)] // Categories.
    fn value(&self, row: &PmmlRow) -> f64 {
        match self {
            VectorField::Number(slot) => row.get(*slot),
            VectorField::Category { slot, value, coefficient } => match row.get(*slot) {
                missing if missing.is_nan() => missing,
                field => coefficient * indicator(field == *value),
            },
        }
    }
}

/// Vectors, most of whose numbers may be 0.
#[derive(Default)]
struct SparseVectors {
    /// The end of each vector in the lists that follow.
    ends: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f64>,
}

impl SparseVectors {
    fn len(&self) -> usize {
        self.ends.len()
    }

    /// The indices and values of vector number `index`.
    fn get(&self, index: usize) -> (&[u32], &[f64]) {
        let start = match index.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(0),
            None => 0,
        };
        let end = self.ends.get(index).copied().unwrap_or(start);
        let indices = self.indices.get(start..end).unwrap_or_default();
        (indices, self.values.get(start..end).unwrap_or_default())
    }
}

#[derive(Clone, Copy, Debug)]
enum PmmlKernel {
    Linear,
    Polynomial { gamma: f64, constant: f64, degree: f64 },
    RadialBasis { gamma: f64 },
    Sigmoid { gamma: f64, constant: f64 },
}

impl PmmlKernel {
    fn read(element: XmlElement) -> Result<Self> {
        for child in element.children() {
            let gamma = || child.number_or("gamma", 1.0);
            let constant = || child.number_or("coef0", 1.0);
            return Ok(match child.name() {
                "LinearKernelType" => PmmlKernel::Linear,
                "PolynomialKernelType" => PmmlKernel::Polynomial {
                    gamma: gamma()?,
                    constant: constant()?,
                    degree: child.number_or("degree", 1.0)?,
                },
                "RadialBasisKernelType" => PmmlKernel::RadialBasis { gamma: gamma()? },
                "SigmoidKernelType" => {
                    PmmlKernel::Sigmoid { gamma: gamma()?, constant: constant()? }
                }
                _ => continue,
            });
        }
        Err(element.damaged("has no kernel"))
    }

    /// The kernel of the row's vector and a sparse one.
    fn apply(self, row: &[f64], indices: &[u32], values: &[f64]) -> f64 {
        if let PmmlKernel::RadialBasis { gamma } = self {
            let mut pairs = indices.iter().zip(values).peekable();
            let mut sum = 0.0;
            for (index, a) in (0u32..).zip(row) {
                let b = match pairs.next_if(|(at, _)| **at == index) {
                    Some((_, value)) => *value,
                    None => 0.0,
                };
                sum += (a - b) * (a - b);
            }
            return (-gamma * sum).exp();
        }
        let mut product = 0.0;
        for (index, value) in indices.iter().zip(values) {
            product += row.get(*index as usize).copied().unwrap_or(0.0) * value;
        }
        match self {
            PmmlKernel::Linear | PmmlKernel::RadialBasis { .. } => product,
            PmmlKernel::Polynomial { gamma, constant, degree } => {
                (gamma * product + constant).powf(degree)
            }
            PmmlKernel::Sigmoid { gamma, constant } => (gamma * product + constant).tanh(),
        }
    }
}

/// A sum of kernels, or of fields in the representation as coefficients.
struct Machine {
    /// The slot of each value, and its coefficient.
    terms: Box<[(u32, f64)]>,
    constant: f64,
    /// The class of sums below the threshold, and that of others.
    classes: Option<(u32, Option<u32>)>,
    threshold: f64,
}

impl Machine {
    fn sum(&self, row: &PmmlRow) -> f64 {
        let terms = self.terms.iter().map(|(slot, factor)| factor * row.get(*slot));
        terms.sum::<f64>() + self.constant
    }
}

/// What the sums decide.
enum MachineDecision {
    Number,
    /// Each machine votes for one of two classes.
    Votes {
        classes: TargetClasses,
        largest_wins: bool,
    },
    /// Each class has a machine.
    Extreme {
        classes: TargetClasses,
        largest_wins: bool,
    },
}

impl VectorMachines {
    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        let mut slot = self.first_field;
        for field in &self.fields {
            let value = field.value(row);
            if value.is_nan() {
                return PmmlPrediction::MISSING;
            }
            row.set(slot, value);
            slot = slot.saturating_add(1);
        }
        self.compute_kernels(row);
        match &self.decision {
            MachineDecision::Number => {
                let sum = self.machines.first().map_or(f64::NAN, |machine| machine.sum(row));
                PmmlPrediction::number(sum)
            }
            MachineDecision::Votes { classes, largest_wins } => {
                row.range(classes.slot, classes.len()).fill(0.0);
                for machine in &self.machines {
                    let Some((below, Some(above))) = machine.classes else { continue };
                    let is_below = machine.sum(row) < machine.threshold;
                    let class = if is_below == *largest_wins { above } else { below };
                    let slot = classes.slot.saturating_add(class);
                    row.set(slot, row.get(slot) + 1.0);
                }
                normalize(row.range(classes.slot, classes.len()));
                classes.most_probable(row)
            }
            MachineDecision::Extreme { classes, largest_wins } => {
                let mut best: Option<(f64, u32)> = None;
                for machine in &self.machines {
                    let (sum, (class, _)) = (machine.sum(row), machine.classes.unwrap_or_default());
                    let is_better =
                        |other: f64| if *largest_wins { sum > other } else { sum < other };
                    if best.is_none_or(|(other, _)| is_better(other)) {
                        best = Some((sum, class));
                    }
                }
                row.range(classes.slot, classes.len()).fill(0.0);
                let Some((_, class)) = best else { return PmmlPrediction::MISSING };
                row.set(classes.slot.saturating_add(class), 1.0);
                classes.prediction(class)
            }
        }
    }

    fn compute_kernels(&self, row: &mut PmmlRow) {
        let count = self.vectors.len();
        if count == 0 {
            return;
        }
        // The fields come before the kernels.
        let width = self.fields.len();
        let both = row.range(self.first_field, width.saturating_add(count));
        let Some((fields, kernels)) = both.split_at_mut_checked(width) else { return };
        for (index, place) in kernels.iter_mut().enumerate() {
            let (indices, values) = self.vectors.get(index);
            *place = self.kernel.apply(fields, indices, values);
        }
    }

    pub(super) fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        context: &ModelContext,
    ) -> Result<Self> {
        let dictionary = element.required_child("VectorDictionary")?;
        let fields = read_fields(builder, dictionary, context)?;
        let uses_vectors = match element.attribute("svmRepresentation") {
            None | Some("SupportVectors") => true,
            Some("Coefficients") => false,
            Some(other) => {
                let message = format!("svmRepresentation={other:?} is not valid");
                return Err(element.damaged(message));
            }
        };
        let mut vectors = SparseVectors::default();
        let mut ids = HashMap::new();
        if uses_vectors {
            for instance in dictionary.children_named("VectorInstance") {
                let index = u32::try_from(vectors.len()).unwrap_or(u32::MAX);
                ids.insert(instance.required("id")?, index);
                read_vector(&mut vectors, instance, fields.len())?;
            }
        }
        let count = fields.len().saturating_add(vectors.len());
        let first_field = builder.allocate_slots(element, count)?;
        let width = u32::try_from(fields.len()).unwrap_or(u32::MAX);
        let first_kernel = first_field.saturating_add(width);
        let reader = MachineReader {
            ids: uses_vectors.then_some(ids),
            first: if uses_vectors { first_kernel } else { first_field },
            fields: fields.len(),
            threshold: element.number_or("threshold", 0.0)?,
        };
        let mut machines = Vec::new();
        for machine in element.children_named("SupportVectorMachine") {
            machines.push(reader.read(builder, machine, context)?);
        }
        let decision = read_decision(element, context, &machines)?;
        Ok(VectorMachines {
            fields,
            first_field,
            vectors,

            kernel: if uses_vectors { PmmlKernel::read(element)? } else { PmmlKernel::Linear },
            machines: machines.into(),
            decision,
        })
    }
}

fn read_fields(
    builder: &mut PmmlBuilder,
    dictionary: XmlElement,
    context: &ModelContext,
) -> Result<Box<[VectorField]>> {
    let mut fields = Vec::new();
    for child in dictionary.required_child("VectorFields")?.children() {
        match child.name() {
            "FieldRef" => {
                let field = context.scope.field(child, "field")?;
                if !matches!(field.data_type.kind, ValueKind::Number | ValueKind::Boolean) {
                    return Err(child.damaged("needs a field of numbers"));
                }
                fields.push(VectorField::Number(field.slot));
            }
            "CategoricalPredictor" => {
                let field = context.scope.field(child, "name")?;
                let text = child.required("value")?;
                fields.push(VectorField::Category {
                    slot: field.slot,
                    value: builder.strings.constant(child, field.data_type, text)?,
                    coefficient: child.number_or("coefficient", 1.0)?,
                });
            }
            _ => {}
        }
    }
    match fields.is_empty() {
        true => Err(dictionary.damaged("has no fields")),
        false => Ok(fields.into()),
    }
}

/// Reads the numbers of a vector, one for each of `width` fields.
fn read_vector(vectors: &mut SparseVectors, instance: XmlElement, width: usize) -> Result<()> {
    if let Some(sparse) = instance.child("REAL-SparseArray") {
        let indices = list(sparse, "Indices");
        let entries = list(sparse, "REAL-Entries");
        let mut pairs = Vec::new();
        for (index, value) in indices.iter().zip(&entries) {
            let index: usize = index
                .parse()
                .ok()
                .filter(|index| (1..=width).contains(index))
                .ok_or_else(|| sparse.damaged(format!("the index {index:?} is not valid")))?;
            let value = parse_number(value)
                .ok_or_else(|| sparse.damaged(format!("{value:?} is not a number")))?;
            pairs.push((u32::try_from(index - 1).unwrap_or(u32::MAX), value));
        }
        if indices.len() != entries.len() {
            return Err(sparse.damaged("has not as many indices as entries"));
        }
        pairs.sort_by_key(|(index, _)| *index);
        pairs.dedup_by_key(|(index, _)| *index);
        vectors.indices.extend(pairs.iter().map(|(index, _)| *index));
        vectors.values.extend(pairs.iter().map(|(_, value)| *value));
    } else {
        let numbers = instance.numbers()?;
        if numbers.len() != width {
            let have = numbers.len();
            return Err(instance.damaged(format!("has {have} numbers for {width} fields")));
        }
        vectors.indices.extend((0u32..).take(width));
        vectors.values.extend(numbers);
    }
    vectors.ends.push(vectors.indices.len());
    Ok(())
}

/// The parts of the text of the child `name`.
fn list<'d>(element: XmlElement<'d>, name: &'static str) -> Vec<&'d str> {
    let child = element.child(name);
    child.map(|child| child.text().split_ascii_whitespace().collect()).unwrap_or_default()
}

/// What machines have in common while they are read.
struct MachineReader<'d> {
    /// The index of each vector; `None` for the representation as coefficients.
    ids: Option<HashMap<&'d str, u32>>,
    /// The slot of the first kernel or field.
    first: u32,
    fields: usize,
    threshold: f64,
}

impl MachineReader<'_> {
    fn read(
        &self,
        builder: &mut PmmlBuilder,
        element: XmlElement,
        context: &ModelContext,
    ) -> Result<Machine> {
        let coefficients = element.required_child("Coefficients")?;
        let mut factors = Vec::new();
        for coefficient in coefficients.children_named("Coefficient") {
            factors.push(coefficient.number_or("value", 0.0)?);
        }
        let terms = match &self.ids {
            None if factors.len() == self.fields => (self.first..).zip(factors).collect(),
            None => return Err(coefficients.damaged("needs a Coefficient for each field")),
            Some(ids) => {
                let mut slots = Vec::new();
                let vectors = element.child("SupportVectors").into_iter();
                for vector in vectors.flat_map(|all| all.children_named("SupportVector")) {
                    let id = vector.required("vectorId")?;
                    let index = ids.get(id).copied();
                    let index = index
                        .ok_or_else(|| vector.damaged(format!("there is no vector {id:?}")))?;
                    slots.push(self.first.saturating_add(index));
                }
                if slots.len() != factors.len() {
                    return Err(coefficients.damaged("needs a Coefficient for each vector"));
                }
                slots.into_iter().zip(factors).collect()
            }
        };
        let mut classes = None;
        if let Some(all) = &context.classes {
            let class = all.index_of(builder, element, element.required("targetCategory")?)?;
            let alternate = match element.attribute("alternateTargetCategory") {
                Some(name) => Some(all.index_of(builder, element, name)?),
                None => None,
            };
            classes = Some((class, alternate));
        }
        let constant = coefficients.number_or("absoluteValue", 0.0)?;
        let threshold = element.number_or("threshold", self.threshold)?;
        Ok(Machine { terms, constant, classes, threshold })
    }
}

fn read_decision(
    element: XmlElement,
    context: &ModelContext,
    machines: &[Machine],
) -> Result<MachineDecision> {
    let Some(classes) = context.classes.clone() else {
        return match machines.len() {
            1 => Ok(MachineDecision::Number),
            count => Err(element.damaged(format!("has {count} machines instead of 1"))),
        };
    };
    let largest_wins = element.boolean_or("maxWins", false)?;
    let have_alternates = machines.iter().all(|one| matches!(one.classes, Some((_, Some(_)))));
    match element.attribute("classificationMethod") {
        _ if machines.is_empty() => Err(element.damaged("has no SupportVectorMachine")),
        None | Some("OneAgainstAll" | "OneAgainstOne") if have_alternates => {
            Ok(MachineDecision::Votes { classes, largest_wins })
        }
        Some("OneAgainstOne") => {
            Err(element.damaged("needs an alternateTargetCategory for each machine"))
        }
        None | Some("OneAgainstAll") => Ok(MachineDecision::Extreme { classes, largest_wins }),
        Some(other) => Err(element.damaged(format!("classificationMethod={other:?} is not valid"))),
    }
}
