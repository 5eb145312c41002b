//! A model with what surrounds it: its fields are preprocessed, it is scored, and its targets and
//! outputs are computed. Models within models are the same again.

use super::anomaly::AnomalyModel;
use super::bayes::NaiveBayes;
use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::clustering::ClusteringModel;
use super::context::{ExposedOutput, ModelContext};
use super::features::ModelFeatures;
use super::field::{FieldScope, PmmlType};
use super::general::GeneralRegression;
use super::mining::MiningModel;
use super::nearest::NearestNeighbors;
use super::network::NeuralNetwork;
use super::output::{self, OutputField, PredictionType};
use super::prediction::PmmlPrediction;
use super::regression::RegressionModel;
use super::row::PmmlRow;
use super::ruleset::RuleSet;
use super::schema::{self, PmmlInput, PreprocessingStep};
use super::scorecard::Scorecard;
use super::target::TargetTransform;
use super::tree::TreeModel;
use super::vector::VectorMachines;
use tensorserve_codec::xml::{MAX_DEPTH, XmlElement};
use tensorserve_tensor::error::Result;

/// The models that are evaluated.
const KINDS: [&str; 12] = [
    "TreeModel",
    "RegressionModel",
    "MiningModel",
    "Scorecard",
    "ClusteringModel",
    "NeuralNetwork",
    "GeneralRegressionModel",
    "NaiveBayesModel",
    "NearestNeighborModel",
    "SupportVectorMachineModel",
    "RuleSetModel",
    "AnomalyDetectionModel",
];

/// What a model predicts: its `functionName`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MiningFunction {
    Regression,
    Classification,
    Clustering,
}

impl MiningFunction {
    fn read(builder: &PmmlBuilder, element: XmlElement) -> Result<Self> {
        match element.required("functionName")? {
            // Neighbors may predict several targets. The first one is served.
            "mixed" if element.name() == "NearestNeighborModel" => {
                let target = schema::target_of(element).and_then(|name| builder.data_field(name));
                match target.and_then(|target| target.attribute("optype")) {
                    Some("continuous") => Ok(MiningFunction::Regression),
                    _ => Ok(MiningFunction::Classification),
                }
            }
            "regression" => Ok(MiningFunction::Regression),
            "classification" => Ok(MiningFunction::Classification),
            "clustering" => Ok(MiningFunction::Clustering),
            other => Err(element.unsupported(format!("functionName={other:?}"))),
        }
    }

    /// The type of predictions.
    fn data_type(self, classes: Option<&TargetClasses>) -> PmmlType {
        match self {
            MiningFunction::Regression => PmmlType::NUMBER,
            MiningFunction::Classification => {
                classes.map_or(PmmlType::TEXT, |classes| classes.data_type)
            }
            MiningFunction::Clustering => PmmlType::TEXT,
        }
    }
}

enum Algorithm {
    Tree(TreeModel),
    Regression(RegressionModel),
    Mining(MiningModel),
    Scorecard(Scorecard),
    Clustering(ClusteringModel),
    Network(NeuralNetwork),
    General(GeneralRegression),
    Bayes(NaiveBayes),
    Nearest(NearestNeighbors),
    Vector(VectorMachines),
    Rules(RuleSet),
    Anomaly(AnomalyModel),
}

impl Algorithm {
    #[inline]
    fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        match self {
            Algorithm::Tree(tree) => tree.score(row),
            Algorithm::Regression(regression) => regression.score(row),
            Algorithm::Mining(mining) => mining.score(row),
            Algorithm::Scorecard(scorecard) => scorecard.score(row),
            Algorithm::Clustering(clustering) => clustering.score(row),
            Algorithm::Network(network) => network.score(row),
            Algorithm::General(general) => general.score(row),
            Algorithm::Bayes(bayes) => bayes.score(row),
            Algorithm::Nearest(nearest) => nearest.score(row),
            Algorithm::Vector(vector) => vector.score(row),
            Algorithm::Rules(rules) => rules.score(row),
            Algorithm::Anomaly(anomaly) => anomaly.score(row),
        }
    }

    /// What it computes besides its prediction.
    fn features(&self) -> ModelFeatures {
        match self {
            Algorithm::Scorecard(scorecard) => scorecard.features(),
            Algorithm::Clustering(clustering) => clustering.features(),
            Algorithm::Nearest(nearest) => nearest.features(),
            Algorithm::Rules(rules) => rules.features(),
            Algorithm::Tree(tree) => tree.features(),
            Algorithm::Regression(_)
            | Algorithm::Mining(_)
            | Algorithm::Network(_)
            | Algorithm::General(_)
            | Algorithm::Bayes(_)
            | Algorithm::Vector(_)
            | Algorithm::Anomaly(_) => ModelFeatures::default(),
        }
    }

    /// Reads the model `element`, and the outputs of its segments that are visible outside of it.
    fn read<'d>(
        builder: &mut PmmlBuilder<'d>,
        element: XmlElement<'d>,
        function: MiningFunction,
        context: &ModelContext,
    ) -> Result<(Self, Vec<ExposedOutput>)> {
        let name = element.name();
        let is_clustering = function == MiningFunction::Clustering;
        if (name == "ClusteringModel") != is_clustering
            && !(name == "NearestNeighborModel" && is_clustering)
        {
            return Err(element.unsupported("this functionName for a model of this kind"));
        }
        let algorithm = match name {
            "ClusteringModel" => {
                Algorithm::Clustering(ClusteringModel::read(builder, element, context)?)
            }
            "TreeModel" => Algorithm::Tree(TreeModel::read(builder, element, context)?),
            "RegressionModel" => {
                Algorithm::Regression(RegressionModel::read(builder, element, context)?)
            }
            "NeuralNetwork" => Algorithm::Network(NeuralNetwork::read(builder, element, context)?),
            "GeneralRegressionModel" => {
                Algorithm::General(GeneralRegression::read(builder, element, context)?)
            }
            "Scorecard" => Algorithm::Scorecard(Scorecard::read(builder, element, context)?),
            "NaiveBayesModel" => Algorithm::Bayes(NaiveBayes::read(builder, element, context)?),
            "NearestNeighborModel" => {
                Algorithm::Nearest(NearestNeighbors::read(builder, element, context)?)
            }
            "SupportVectorMachineModel" => {
                Algorithm::Vector(VectorMachines::read(builder, element, context)?)
            }
            "RuleSetModel" => Algorithm::Rules(RuleSet::read(builder, element, context)?),
            "AnomalyDetectionModel" => {
                Algorithm::Anomaly(AnomalyModel::read(builder, element, context)?)
            }
            "MiningModel" => {
                let (mining, exposed) = MiningModel::read(builder, element, context)?;
                return Ok((Algorithm::Mining(mining), exposed));
            }
            name => return Err(element.unsupported(format!("a model of the kind {name}"))),
        };
        Ok((algorithm, Vec::new()))
    }
}

/// A compiled model.
pub(super) struct PmmlModel {
    steps: Box<[PreprocessingStep]>,
    algorithm: Algorithm,
    target: Option<TargetTransform>,
    outputs: Box<[OutputField]>,
    pub(super) classes: Option<TargetClasses>,
    pub(super) function: MiningFunction,
}

impl PmmlModel {
    /// What it computes besides its prediction.
    pub(super) fn features(&self) -> ModelFeatures {
        self.algorithm.features()
    }

    pub(super) fn score(&self, row: &mut PmmlRow) -> PmmlPrediction {
        for step in &self.steps {
            if !step.run(row) {
                return PmmlPrediction::MISSING;
            }
        }
        let prediction = self.algorithm.score(row);
        let prediction = match &self.target {
            Some(target) => target.apply(prediction, self.classes.as_ref(), row),
            None => prediction,
        };
        for output in &self.outputs {
            output.write(prediction, row);
        }
        prediction
    }
}

/// The outermost model of a file.
pub(super) struct RootModel {
    pub(super) model: PmmlModel,
    pub(super) inputs: Vec<PmmlInput>,
    pub(super) outputs: Vec<ExposedOutput>,
    /// The name of the target field.
    pub(super) target: Option<String>,
    /// The type of predictions.
    pub(super) data_type: PmmlType,
}

/// Reads the outermost model of a file.
pub(super) fn read_root<'d>(
    builder: &mut PmmlBuilder<'d>,
    root: XmlElement<'d>,
) -> Result<RootModel> {
    let element = schema::find_model(root).ok_or_else(|| root.damaged("has no model"))?;
    let mut steps = Vec::new();
    let mut scope = FieldScope::root();
    let inputs = schema::read_inputs(builder, element, &mut scope, &mut steps)?;
    if let Some(dictionary) = root.child("TransformationDictionary") {
        schema::read_derived(builder, dictionary, &mut scope, &mut steps)?;
    }
    let context =
        ModelContext { scope: &scope, classes: None, steps: &[], has_outputs: true, depth: 0 };
    let (model, outputs) = read_body(builder, element, &context, steps)?;
    let target = schema::target_of(element).map(str::to_owned);
    let data_type = model.function.data_type(model.classes.as_ref());
    Ok(RootModel { model, inputs, outputs, target, data_type })
}

/// Reads a model within another, and its outputs.
pub(super) fn read_inner<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
) -> Result<(PmmlModel, Vec<ExposedOutput>)> {
    if context.depth >= MAX_DEPTH {
        return Err(element.damaged("is nested too deeply"));
    }
    let mut steps = Vec::new();
    let mut scope = FieldScope::within(context.scope);
    schema::read_inherited(builder, element, &mut scope, &mut steps)?;
    let classes = context.classes.clone();
    let context = ModelContext { scope: &scope, classes, ..*context };
    read_body(builder, element, &context, steps)
}

/// Reads what follows the mining schema of a model.
fn read_body<'d>(
    builder: &mut PmmlBuilder<'d>,
    element: XmlElement<'d>,
    context: &ModelContext,
    mut steps: Vec<PreprocessingStep>,
) -> Result<(PmmlModel, Vec<ExposedOutput>)> {
    let mut scope = FieldScope::within(context.scope);
    if let Some(local) = element.child("LocalTransformations") {
        schema::read_derived(builder, local, &mut scope, &mut steps)?;
    }
    if !KINDS.contains(&element.name()) {
        return Err(element.unsupported(format!("a model of the kind {}", element.name())));
    }
    let function = MiningFunction::read(builder, element)?;
    let classes = match function {
        MiningFunction::Classification => {
            Some(TargetClasses::read(builder, element, context.classes.as_ref())?)
        }
        MiningFunction::Regression | MiningFunction::Clustering => None,
    };
    let inside =
        ModelContext { scope: &scope, classes: classes.clone(), steps: &steps, ..*context };
    let (algorithm, mut exposed) = Algorithm::read(builder, element, function, &inside)?;
    let target = TargetTransform::read(builder, element, classes.as_ref())?;
    let mut outputs = Vec::new();
    if context.has_outputs {
        let classes = classes.as_ref();
        let features = algorithm.features();
        let data_type = function.data_type(classes);
        let predictions = PredictionType { data_type, classes, features: &features };
        outputs = output::read(builder, element, &mut scope, &predictions, &mut exposed)?;
    }
    let model = PmmlModel {
        steps: steps.into(),
        algorithm,
        target,
        outputs: outputs.into(),
        classes,
        function,
    };
    Ok((model, exposed))
}
