//! A model and what surrounds it: its fields are prepared, it is scored, its targets and outputs
//! are computed. Models within models are the same again.

use std::collections::HashMap;
use std::sync::Arc;

use super::clustering::Clustering;
use super::field::{Field, Kind, MISSING, Row, Scope};
use super::general::General;
use super::mining::Mining;
use super::network::Network;
use super::output::{self, Output, Subject, Target};
use super::regression::Regression;
use super::schema::{self, Builder, Input, Step};
use super::scorecard::Scorecard;
use super::tree::Tree;
use super::xml::{Element, MAX_DEPTH};
use tensorserve_tensor::error::Result;

/// What a model says of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    /// The number it predicts, or the class as a value of the target.
    pub(super) value: f64,
    /// The number of the class; [`NO_CLASS`] without one.
    pub(super) class: u32,
    /// The code of the name of the node, segment or cluster that decided.
    pub(super) entity: f64,
}

pub(super) const NO_CLASS: u32 = u32::MAX;

impl Verdict {
    /// No result.
    pub(super) const MISSING: Verdict =
        Verdict { value: MISSING, class: NO_CLASS, entity: MISSING };

    /// That a model predicts this number.
    pub(super) fn number(value: f64) -> Self {
        Verdict { value, ..Verdict::MISSING }
    }

    pub(super) fn is_missing(&self) -> bool {
        self.value.is_nan()
    }
}

/// The classes that a model tells apart, and where it leaves their probabilities.
#[derive(Clone)]
pub(super) struct Classes {
    /// The probability of the first; those of the others come behind it.
    pub(super) slot: u32,
    /// As values of the target.
    pub(super) labels: Arc<[f64]>,
    pub(super) names: Arc<[String]>,
    pub(super) kind: Kind,
    /// The number of each label, by its bits.
    numbers: Arc<HashMap<u64, u32>>,
    target: Option<String>,
}

impl Classes {
    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    /// The number of the class that an attribute's value names.
    pub(super) fn number(
        &self,
        builder: &mut Builder,
        element: Element,
        text: &str,
    ) -> Result<u32> {
        let label = builder.symbols.constant(element, self.kind, false, text)?;
        let number = self.numbers.get(&label.to_bits()).copied();
        number.ok_or_else(|| element.damaged(format!("{text:?} is not a class of the target")))
    }

    /// The same with probabilities of its own.
    pub(super) fn elsewhere(&self, builder: &mut Builder, element: Element) -> Result<Classes> {
        Ok(Classes { slot: builder.slots(element, self.len())?, ..self.clone() })
    }

    /// That class `class` it is.
    pub(super) fn verdict(&self, class: u32) -> Verdict {
        match self.labels.get(class as usize) {
            Some(label) => Verdict { value: *label, class, entity: MISSING },
            None => Verdict::MISSING,
        }
    }

    /// That it is the class of the largest probability, of several the first.
    pub(super) fn likeliest(&self, row: &mut Row) -> Verdict {
        let mut best: Option<(u32, f64)> = None;
        for (class, probability) in (0u32..).zip(row.range(self.slot, self.len()).iter()) {
            if best.is_none_or(|(_, most)| *probability > most) && !probability.is_nan() {
                best = Some((class, *probability));
            }
        }
        best.map_or(Verdict::MISSING, |(class, _)| self.verdict(class))
    }
}

/// The kind of answer a model gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Regression,
    Classification,
    Clustering,
}

enum Algorithm {
    Tree(Tree),
    Regression(Regression),
    Mining(Mining),
    Scorecard(Scorecard),
    Clustering(Clustering),
    Network(Network),
    General(General),
}

/// A model, compiled.
pub(super) struct Model {
    steps: Box<[Step]>,
    algorithm: Algorithm,
    target: Option<Target>,
    outputs: Box<[Output]>,
    pub(super) classes: Option<Classes>,
    pub(super) function: Function,
}

impl Model {
    pub(super) fn score(&self, row: &mut Row) -> Verdict {
        for step in &self.steps {
            if !step.run(row) {
                return Verdict::MISSING;
            }
        }
        let verdict = match &self.algorithm {
            Algorithm::Tree(tree) => tree.score(row),
            Algorithm::Regression(regression) => regression.score(row),
            Algorithm::Mining(mining) => mining.score(row),
            Algorithm::Scorecard(scorecard) => scorecard.score(row),
            Algorithm::Clustering(clustering) => clustering.score(row),
            Algorithm::Network(network) => network.score(row),
            Algorithm::General(general) => general.score(row),
        };
        let verdict = match &self.target {
            Some(target) => target.apply(verdict, self.classes.as_ref(), row),
            None => verdict,
        };
        for output in &self.outputs {
            output.write(verdict, row);
        }
        verdict
    }
}

/// Where a model is: what it can see, and what is asked of it.
pub(super) struct Place<'a, 's> {
    pub(super) scope: &'a Scope<'s>,
    /// The classes that the model around it tells apart, and this one, too, unless it has a target
    /// of its own.
    pub(super) classes: Option<Classes>,
    /// Whether anybody sees its outputs.
    pub(super) has_outputs: bool,
    pub(super) depth: usize,
}

/// An output field that clients or later models see.
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) field: Field,
    /// Whether it is a result of the whole, and not only of a step on the way.
    pub(super) is_final: bool,
}

/// The elements that are models, whether or not we know how to score them.
const MODELS: [&str; 21] = [
    "TreeModel",
    "RegressionModel",
    "MiningModel",
    "Scorecard",
    "AnomalyDetectionModel",
    "AssociationModel",
    "BaselineModel",
    "BayesianNetworkModel",
    "ClusteringModel",
    "GaussianProcessModel",
    "GeneralRegressionModel",
    "NaiveBayesModel",
    "NearestNeighborModel",
    "NeuralNetwork",
    "RuleSetModel",
    "SequenceModel",
    "SupportVectorMachineModel",
    "TextModel",
    "TimeSeriesModel",
    "DecisionTree",
    "Regression",
];

/// The first model directly in `element`.
pub(super) fn find(element: Element<'_>) -> Option<Element<'_>> {
    element.children().find(|child| MODELS.contains(&child.name()))
}

/// The outermost model of a file.
pub(super) struct Whole {
    pub(super) model: Model,
    pub(super) inputs: Vec<Input>,
    pub(super) shown: Vec<Shown>,
    /// The name of what it predicts.
    pub(super) target: Option<String>,
    /// What that is.
    pub(super) kind: Kind,
}

/// Reads the model of a file.
pub(super) fn read<'d>(builder: &mut Builder<'d>, root: Element<'d>) -> Result<Whole> {
    let element = find(root).ok_or_else(|| root.damaged("holds no model"))?;
    let mut steps = Vec::new();
    let mut scope = Scope::outermost();
    let inputs = schema::inputs(builder, element, &mut scope, &mut steps)?;
    if let Some(dictionary) = root.child("TransformationDictionary") {
        schema::derived(builder, dictionary, &mut scope, &mut steps)?;
    }
    let place = Place { scope: &scope, classes: None, has_outputs: true, depth: 0 };
    let (model, shown) = finish(builder, element, &place, steps)?;
    let target = schema::target_of(element).map(str::to_owned);
    let kind = model.function.kind(model.classes.as_ref());
    Ok(Whole { model, inputs, shown, target, kind })
}

/// Reads a model within another.
pub(super) fn inner<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    place: &Place,
) -> Result<(Model, Vec<Shown>)> {
    if place.depth >= MAX_DEPTH {
        return Err(element.damaged("is nested too deeply"));
    }
    let mut steps = Vec::new();
    let mut scope = Scope::within(place.scope);
    schema::inherited(builder, element, &mut scope, &mut steps)?;
    let classes = place.classes.clone();
    let place = Place { scope: &scope, classes, ..*place };
    finish(builder, element, &place, steps)
}

fn finish<'d>(
    builder: &mut Builder<'d>,
    element: Element<'d>,
    place: &Place,
    mut steps: Vec<Step>,
) -> Result<(Model, Vec<Shown>)> {
    let mut scope = Scope::within(place.scope);
    if let Some(local) = element.child("LocalTransformations") {
        schema::derived(builder, local, &mut scope, &mut steps)?;
    }
    let function = function(element)?;
    let classes = match function {
        Function::Classification => Some(classes(builder, element, place)?),
        Function::Regression | Function::Clustering => None,
    };
    let mut shown = Vec::new();
    let around = Place {
        scope: &scope,
        classes: classes.clone(),
        has_outputs: place.has_outputs,
        depth: place.depth,
    };
    let algorithm = match element.name() {
        "ClusteringModel" if function == Function::Clustering => {
            Algorithm::Clustering(Clustering::read(builder, element, &around)?)
        }
        name if (name == "ClusteringModel") != (function == Function::Clustering) => {
            return Err(element.unsupported("this functionName for a model of this kind"));
        }
        "TreeModel" => Algorithm::Tree(Tree::read(builder, element, &around)?),
        "RegressionModel" => Algorithm::Regression(Regression::read(builder, element, &around)?),
        "NeuralNetwork" => Algorithm::Network(Network::read(builder, element, &around)?),
        "GeneralRegressionModel" => Algorithm::General(General::read(builder, element, &around)?),
        "Scorecard" => Algorithm::Scorecard(Scorecard::read(builder, element, &around)?),
        "MiningModel" => {
            let (mining, inner) = Mining::read(builder, element, &around)?;
            shown = inner;
            Algorithm::Mining(mining)
        }
        name => return Err(element.unsupported(format!("a model of the kind {name}"))),
    };
    let target = Target::read(builder, element, classes.as_ref())?;
    let mut outputs = Vec::new();
    if place.has_outputs {
        let classes = classes.as_ref();
        let subject = Subject { kind: function.kind(classes), classes };
        outputs = output::read(builder, element, &mut scope, &subject, &mut shown)?;
    }
    let model = Model {
        steps: steps.into(),
        algorithm,
        target,
        outputs: outputs.into(),
        classes,
        function,
    };
    Ok((model, shown))
}

fn function(element: Element) -> Result<Function> {
    match element.need("functionName")? {
        "regression" => Ok(Function::Regression),
        "classification" => Ok(Function::Classification),
        "clustering" => Ok(Function::Clustering),
        other => Err(element.unsupported(format!("functionName={other:?}"))),
    }
}

impl Function {
    /// What predictions are.
    fn kind(self, classes: Option<&Classes>) -> Kind {
        match self {
            Function::Regression => Kind::Number,
            Function::Classification => classes.map_or(Kind::Text, |classes| classes.kind),
            Function::Clustering => Kind::Text,
        }
    }
}

/// The classes that `element` tells apart.
fn classes<'d>(builder: &mut Builder<'d>, element: Element<'d>, place: &Place) -> Result<Classes> {
    let target = schema::target_of(element);
    if let Some(classes) = &place.classes
        && target.is_none_or(|target| classes.target.as_deref() == Some(target))
    {
        return Ok(classes.clone());
    }
    let declared = target.and_then(|target| builder.data_field(target));
    let kind = declared.map_or(Ok(Kind::Text), |field| Ok(builder.kind(field)?.0))?;
    let mut names: Vec<String> = Vec::new();
    let mut labels: Vec<f64> = Vec::new();
    let mut numbers = HashMap::new();
    let listed = declared.into_iter().flat_map(|field| field.all("Value"));
    let listed = listed.filter(|value| value.attribute("property").is_none_or(|p| p == "valid"));
    let listed = listed.filter_map(|value| Some((value, value.attribute("value")?)));
    for (place, text) in listed.chain(mentioned(element, target)) {
        let label = builder.symbols.constant(place, kind, false, text)?;
        let next = u32::try_from(labels.len()).unwrap_or(NO_CLASS);
        numbers.entry(label.to_bits()).or_insert_with(|| {
            labels.push(label);
            names.push(text.trim().to_owned());
            next
        });
    }
    if labels.is_empty() {
        return Err(element.damaged("names no class"));
    }
    Ok(Classes {
        slot: builder.slots(element, labels.len())?,
        labels: labels.into(),
        names: names.into(),
        kind,
        numbers: Arc::new(numbers),
        target: target.map(str::to_owned),
    })
}

/// Classes that the parts of a model name, those of models within it included where they predict
/// the same.
fn mentioned<'d>(
    model: Element<'d>,
    target: Option<&'d str>,
) -> impl Iterator<Item = (Element<'d>, &'d str)> {
    let mut waiting = vec![model];
    std::iter::from_fn(move || {
        while let Some(element) = waiting.pop() {
            let is_other = MODELS.contains(&element.name()) && {
                let own = schema::target_of(element);
                let regression = element.attribute("functionName") == Some("regression");
                regression || (own.is_some() && own != target)
            };
            if is_other {
                continue;
            }
            let first = waiting.len();
            waiting.extend(element.children());
            if let Some(added) = waiting.get_mut(first..) {
                added.reverse();
            }
            let name = match element.name() {
                "ScoreDistribution" => element.attribute("value"),
                "GeneralRegressionModel" => element.attribute("targetReferenceCategory"),
                "RegressionTable" | "PCell" => element.attribute("targetCategory"),
                "Node" => element.attribute("score"),
                "NormDiscrete" if element.attribute("field") == target => {
                    element.attribute("value")
                }
                _ => None,
            };
            if let Some(name) = name {
                return Some((element, name));
            }
        }
        None
    })
}
