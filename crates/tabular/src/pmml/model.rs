//! A model with what surrounds it: its fields are preprocessed, it is scored, and its targets and
//! outputs are computed. Models within models are the same again.

use super::builder::PmmlBuilder;
use super::classes::TargetClasses;
use super::clustering::ClusteringModel;
use super::context::{ExposedOutput, ModelContext};
use super::field::{FieldScope, PmmlRow, ValueKind};
use super::general::GeneralRegression;
use super::mining::MiningModel;
use super::network::NeuralNetwork;
use super::output::{self, OutputField, PredictionType};
use super::prediction::PmmlPrediction;
use super::regression::RegressionModel;
use super::schema::{self, PmmlInput, PreprocessingStep};
use super::scorecard::Scorecard;
use super::target::TargetTransform;
use super::tree::TreeModel;
use super::xml::{MAX_DEPTH, XmlElement};
use tensorserve_tensor::error::Result;

/// What a model predicts: its `functionName`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MiningFunction {
    Regression,
    Classification,
    Clustering,
}

impl MiningFunction {
    fn read(element: XmlElement) -> Result<Self> {
        match element.required("functionName")? {
            "regression" => Ok(MiningFunction::Regression),
            "classification" => Ok(MiningFunction::Classification),
            "clustering" => Ok(MiningFunction::Clustering),
            other => Err(element.unsupported(format!("functionName={other:?}"))),
        }
    }

    /// The kind of predictions.
    fn kind(self, classes: Option<&TargetClasses>) -> ValueKind {
        match self {
            MiningFunction::Regression => ValueKind::Number,
            MiningFunction::Classification => {
                classes.map_or(ValueKind::Text, |classes| classes.data_type.kind)
            }
            MiningFunction::Clustering => ValueKind::Text,
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
        if (name == "ClusteringModel") != (function == MiningFunction::Clustering) {
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
    /// The kind of predictions.
    pub(super) kind: ValueKind,
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
    let context = ModelContext { scope: &scope, classes: None, has_outputs: true, depth: 0 };
    let (model, outputs) = read_body(builder, element, &context, steps)?;
    let target = schema::target_of(element).map(str::to_owned);
    let kind = model.function.kind(model.classes.as_ref());
    Ok(RootModel { model, inputs, outputs, target, kind })
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
    let function = MiningFunction::read(element)?;
    let classes = match function {
        MiningFunction::Classification => {
            Some(TargetClasses::read(builder, element, context.classes.as_ref())?)
        }
        MiningFunction::Regression | MiningFunction::Clustering => None,
    };
    let inside = ModelContext { scope: &scope, classes: classes.clone(), ..*context };
    let (algorithm, mut exposed) = Algorithm::read(builder, element, function, &inside)?;
    let target = TargetTransform::read(builder, element, classes.as_ref())?;
    let mut outputs = Vec::new();
    if context.has_outputs {
        let classes = classes.as_ref();
        let predictions = PredictionType { kind: function.kind(classes), classes };
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
