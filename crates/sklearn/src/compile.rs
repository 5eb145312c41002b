//! Compiles a pickled estimator.

use super::columns::ColumnUse;
use super::estimator::Estimator;
use super::model::{Predictor, SklearnModel, Transformer};
use super::{
    bayes, boosters, boosting, calibrated, centroid, clusters, dummy, ensemble, forest,
    gaussian_process, histogram, isolation, least_squares, linear, mixture, multi, neighbors,
    network, one_against, outliers, propagation, stacking, svm, transform, wrapper,
};
use tensorserve_tensor::error::{Error, Result};

/// The prefix of scikit-learn's modules.
const SKLEARN: &str = "sklearn.";

/// The most columns that a model without a predictor may make: all are sent, also those of 0.
const MAX_OUTPUT_COLUMNS: usize = 1 << 16;

/// Estimators that search for parameters, and then delegate to the best estimator.
const SEARCHES: [&str; 4] =
    ["GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV"];

/// Classifiers with `coef_` and `intercept_`.
const LINEAR_CLASSIFIERS: [&str; 9] = [
    "LogisticRegression",
    "LogisticRegressionCV",
    "SGDClassifier",
    "LinearSVC",
    "RidgeClassifier",
    "RidgeClassifierCV",
    "Perceptron",
    "PassiveAggressiveClassifier",
    "LinearDiscriminantAnalysis",
];

/// Regressors with `coef_` and `intercept_`.
const LINEAR_REGRESSORS: [&str; 29] = [
    "LinearRegression",
    "Ridge",
    "RidgeCV",
    "Lasso",
    "LassoCV",
    "ElasticNet",
    "ElasticNetCV",
    "Lars",
    "LarsCV",
    "LassoLars",
    "LassoLarsCV",
    "LassoLarsIC",
    "MultiTaskLasso",
    "MultiTaskLassoCV",
    "MultiTaskElasticNet",
    "MultiTaskElasticNetCV",
    "OrthogonalMatchingPursuit",
    "OrthogonalMatchingPursuitCV",
    "SGDRegressor",
    "PassiveAggressiveRegressor",
    "BayesianRidge",
    "ARDRegression",
    "HuberRegressor",
    "TheilSenRegressor",
    "LinearSVR",
    "QuantileRegressor",
    "PoissonRegressor",
    "GammaRegressor",
    "TweedieRegressor",
];

/// Other libraries whose pickles have platforms: the module, the name, and the platform.
const PICKLED_BY: [(&str, &str, &str); 2] =
    [("xgboost", "XGBoost", "xgboost"), ("lightgbm", "LightGBM", "lightgbm")];

/// Compiles the root of a pickle: a pipeline or an estimator.
pub(super) fn compile(root: &Estimator) -> Result<SklearnModel> {
    check_library(root)?;
    compile_part(root)
}

/// Compiles an estimator that is a model, or a member of an ensemble.
pub(super) fn compile_part(estimator: &Estimator) -> Result<SklearnModel> {
    let mut steps = Vec::new();
    let predictor = compile_predictor(estimator, &mut steps)?;
    let mut model = SklearnModel { steps, predictor };
    let mut taken = model.predictor.facts().features;
    for step in model.steps.iter_mut().rev() {
        step.set_output(taken);
        taken = step.facts().features;
    }
    check_widths(estimator, &model)?;
    Ok(model)
}

/// Refuses objects of other libraries.
fn check_library(estimator: &Estimator) -> Result<()> {
    let found = estimator.value.description();
    let Some(class) = estimator.value.class() else {
        let message = format!("the pickle holds {found}, not a scikit-learn estimator");
        return Err(Error::damaged(message));
    };
    if class.starts_with(SKLEARN) {
        return Ok(());
    }
    let library = class.split('.').next().unwrap_or_default();
    let instead = match PICKLED_BY.iter().find(|(module, ..)| *module == library) {
        Some((_, title, platform)) => format!(
            "it is a model of {title}: name its platform with --platform {platform} \
             (platform = \"{platform}\" in a configuration)"
        ),
        None => {
            "serve a model of another library in its own format, or convert it to ONNX".to_owned()
        }
    };
    Err(Error::unsupported(format!(
        "the pickle holds {found}, not a scikit-learn estimator; {instead}"
    )))
}

/// Adds the transformers before the predictor to `steps`, and returns the predictor.
fn compile_predictor(
    estimator: &Estimator,
    steps: &mut Vec<Box<dyn Transformer>>,
) -> Result<Predictor> {
    if estimator.class() == "Pipeline" {
        let mut last = None;
        for step in pipeline_steps(estimator)? {
            if let Some(before) = last.replace(step) {
                add_transformer(&before, steps)?;
            }
        }
        let last = last.ok_or_else(|| estimator.unsupported("a pipeline without a predictor"))?;
        return compile_predictor(&last, steps);
    }
    if let Some(inner) = delegate(estimator)? {
        return compile_predictor(&inner, steps);
    }
    if SEARCHES.contains(&estimator.class()) {
        let best = estimator.child(estimator.attribute(&["best_estimator_"])?)?;
        return compile_predictor(&best, steps);
    }
    if matches!(estimator.class(), "StackingClassifier" | "StackingRegressor") {
        steps.push(stacking::members(estimator)?);
        let last = estimator.child(estimator.attribute(&["final_estimator_"])?)?;
        return stacking::with_labels(estimator, compile_predictor(&last, steps)?);
    }
    // It encodes the categories of histogram boosting since 1.4.
    if let Some(preprocessor) = estimator.find(&["_preprocessor"]) {
        add_transformer(&estimator.child(preprocessor)?, steps)?;
    }
    // Their `predict` is that of the estimator, for the columns that are left.
    if matches!(estimator.class(), "RFE" | "RFECV") {
        add_transformer(estimator, steps)?;
        let inner = estimator.child(estimator.attribute(&["estimator_"])?)?;
        return compile_predictor(&inner, steps);
    }
    if transform::is_transformer(estimator) {
        add_transformer(estimator, steps)?;
        let columns = steps.last().map_or(0, |step| step.output());
        output_width(estimator, steps.first().map_or(0, |step| step.facts().features), steps)?;
        if columns > MAX_OUTPUT_COLUMNS {
            return Err(estimator.unsupported(format_args!(
                "a transformer that makes {columns} columns, more than {MAX_OUTPUT_COLUMNS}, without a \
                 predictor behind it"
            )));
        }
        return Ok(Predictor::Features(columns));
    }
    predictor(estimator)
}

/// The estimator that another one predicts with, after it has chosen or labelled the rows of the training.
fn delegate<'a>(estimator: &Estimator<'a>) -> Result<Option<Estimator<'a>>> {
    let names: &[&str] = match estimator.class() {
        "RANSACRegressor" => &["estimator_"],
        // Until 1.5 its name was `base_estimator_`.
        "SelfTrainingClassifier" => &["estimator_", "base_estimator_"],
        _ => return Ok(None),
    };
    estimator.child(estimator.attribute(names)?).map(Some)
}

/// The steps of a pipeline, without those that do nothing.
fn pipeline_steps<'a>(pipeline: &Estimator<'a>) -> Result<Vec<Estimator<'a>>> {
    let mut steps = Vec::new();
    for step in pipeline.children(&["steps"])? {
        let parts = step.value.items().unwrap_or_default();
        let [_, estimator] = *parts else {
            return Err(pipeline.damaged("a step is not a pair of a name and an estimator"));
        };
        if !estimator.is_none() && estimator.text() != Some("passthrough") {
            steps.push(pipeline.child(estimator)?);
        }
    }
    Ok(steps)
}

/// Compiles a transformer or a pipeline of transformers, and adds it to `steps`.
pub(super) fn add_transformer(
    estimator: &Estimator,
    steps: &mut Vec<Box<dyn Transformer>>,
) -> Result<()> {
    if estimator.class() == "Pipeline" {
        for step in pipeline_steps(estimator)? {
            add_transformer(&step, steps)?;
        }
        return Ok(());
    }
    let columns = steps.last().filter(|step| !step.is_open()).map(|step| step.output());
    steps.push(transform::read(estimator, columns)?);
    Ok(())
}

/// Compiles a predictor.
fn predictor(estimator: &Estimator) -> Result<Predictor> {
    let class = estimator.class();
    if LINEAR_CLASSIFIERS.contains(&class) {
        return linear::classifier(estimator);
    }
    if LINEAR_REGRESSORS.contains(&class) {
        return linear::regressor(estimator);
    }
    if let Some(predictor) = boosters::read(estimator) {
        return predictor;
    }
    match class {
        "GaussianNB" => bayes::gaussian(estimator),
        "MultinomialNB" | "BernoulliNB" | "ComplementNB" => bayes::counting(estimator),
        "QuadraticDiscriminantAnalysis" => bayes::quadratic(estimator),
        "DecisionTreeClassifier"
        | "ExtraTreeClassifier"
        | "RandomForestClassifier"
        | "ExtraTreesClassifier" => forest::classifier(estimator),
        "DecisionTreeRegressor"
        | "ExtraTreeRegressor"
        | "RandomForestRegressor"
        | "ExtraTreesRegressor" => forest::regressor(estimator),
        "GradientBoostingClassifier" | "GradientBoostingRegressor" => boosting::read(estimator),
        "HistGradientBoostingClassifier" | "HistGradientBoostingRegressor" => {
            histogram::read(estimator)
        }
        "IsolationForest" => isolation::read(estimator),
        "SVC" | "NuSVC" => svm::classifier(estimator),
        "SVR" | "NuSVR" => svm::regressor(estimator),
        "MLPClassifier" => network::classifier(estimator),
        "MLPRegressor" => network::regressor(estimator),
        "KNeighborsClassifier" => neighbors::classifier(estimator),
        "KNeighborsRegressor" => neighbors::regressor(estimator),
        "RadiusNeighborsClassifier" => neighbors::radius_classifier(estimator),
        "RadiusNeighborsRegressor" => neighbors::regressor(estimator),
        "KMeans" | "MiniBatchKMeans" | "MeanShift" | "AffinityPropagation" => {
            clusters::read(estimator)
        }
        "Birch" => clusters::birch(estimator),
        "BisectingKMeans" => clusters::bisecting(estimator),
        "LocalOutlierFactor" => outliers::local(estimator),
        "EllipticEnvelope" => outliers::envelope(estimator),
        "SGDOneClassSVM" => outliers::half_space(estimator),
        "GaussianProcessRegressor" => gaussian_process::regressor(estimator),
        "GaussianProcessClassifier" => gaussian_process::classifier(estimator),
        "_BinaryGaussianProcessClassifierLaplace" => gaussian_process::binary(estimator),
        "PLSRegression" | "PLSCanonical" | "CCA" => least_squares::regressor(estimator),
        "LabelPropagation" | "LabelSpreading" => propagation::read(estimator),
        "BaggingClassifier" => ensemble::bagging_classifier(estimator),
        "AdaBoostClassifier" => ensemble::ada_boost_classifier(estimator),
        "VotingClassifier" => ensemble::voting_classifier(estimator),
        "BaggingRegressor" | "AdaBoostRegressor" | "VotingRegressor" => {
            ensemble::regressor(estimator)
        }
        "CalibratedClassifierCV" => calibrated::read(estimator),
        "IsotonicRegression" => calibrated::isotonic(estimator),
        "OneVsRestClassifier" => one_against::one_against_rest(estimator),
        "OneVsOneClassifier" => one_against::one_against_one(estimator),
        "OutputCodeClassifier" => one_against::output_code(estimator),
        "MultiOutputClassifier" => multi::classifier(estimator),
        "MultiOutputRegressor" => multi::regressor(estimator),
        "ClassifierChain" => multi::classifier_chain(estimator),
        "RegressorChain" => multi::regressor_chain(estimator),
        "FixedThresholdClassifier" | "TunedThresholdClassifierCV" => wrapper::threshold(estimator),
        "TransformedTargetRegressor" => wrapper::transformed_target(estimator),
        "GaussianMixture" | "BayesianGaussianMixture" => mixture::read(estimator),
        "OneClassSVM" => svm::one_class(estimator),
        "NearestCentroid" => centroid::nearest(estimator),
        "KernelRidge" => centroid::ridge(estimator),
        "DummyClassifier" => dummy::classifier(estimator),
        "DummyRegressor" => dummy::regressor(estimator),
        _ => Err(estimator.unsupported("this estimator")),
    }
}

/// How `models` use the columns that all of them take, `features`.
pub(super) fn uses_of_all<'m>(
    features: usize,
    models: impl Iterator<Item = &'m SklearnModel>,
) -> Vec<ColumnUse> {
    let mut uses = vec![ColumnUse::Unused; features];
    for model in models {
        uses.iter_mut().zip(model.uses()).for_each(|(used, own)| used.add(own));
    }
    uses
}

/// The number of features that `models`, of which there must be one, take; all of them the same.
pub(super) fn same_features<'m>(
    estimator: &Estimator,
    mut models: impl Iterator<Item = &'m SklearnModel>,
) -> Result<usize> {
    let first = models.next().ok_or_else(|| estimator.damaged("it has no members"))?;
    let features = first.features();
    match models.all(|model| model.features() == features) {
        true => Ok(features),
        false => Err(estimator.damaged("its members take different numbers of features")),
    }
}

/// Checks that each step takes the number of features that the one before makes.
fn check_widths(estimator: &Estimator, model: &SklearnModel) -> Result<()> {
    let given = output_width(estimator, model.features(), &model.steps)?;
    let features = model.predictor.facts().features;
    if features != given || features == 0 {
        return Err(estimator.damaged(format_args!(
            "the predictor takes {features} features, and is given {given}"
        )));
    }
    Ok(())
}

/// The number of features that `steps` make in turn of `columns` features.
pub(super) fn output_width(
    estimator: &Estimator,
    mut columns: usize,
    steps: &[Box<dyn Transformer>],
) -> Result<usize> {
    for (number, step) in steps.iter().enumerate() {
        let input = step.facts().features;
        if step.is_open() {
            return Err(estimator.unsupported(
                "OneHotEncoder(categorical_features=…) with indices where no step tells the number of columns",
            ));
        }
        if input != columns || input == 0 {
            return Err(estimator.damaged(format_args!(
                "step {number} takes {input} features, and is given {columns}"
            )));
        }
        columns = step.output();
    }
    Ok(columns)
}
