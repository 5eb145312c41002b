//! From a pickled estimator to a compiled model.

use super::estimator::Estimator;
use super::model::{Model, Predictor, Transform};
use super::{ensemble, forest, histogram, linear, neighbors, network, svm, transform};
use tensorserve_tensor::error::{Code, Error, Result};

/// Compiles a pipeline or an estimator.
pub(super) fn model(of: &Estimator) -> Result<Model> {
    refuse_strangers(of)?;
    part(of)
}

/// Compiles a part of a model that is a model itself.
pub(super) fn part(of: &Estimator) -> Result<Model> {
    let mut steps = Vec::new();
    let predictor = end(of, &mut steps)?;
    let model = Model { steps, predictor };
    check(of, &model)?;
    Ok(model)
}

fn refuse_strangers(of: &Estimator) -> Result<()> {
    let Some(class) = of.value.class() else {
        let kind = of.value.type_name();
        let message = format!("the pickle holds {kind}, not an estimator of scikit-learn");
        return Err(Error::new(Code::DataLoss, message));
    };
    if class.starts_with("sklearn.") {
        return Ok(());
    }
    Err(Error::new(
        Code::Unimplemented,
        format!(
            "the pickle holds a {class}, not an estimator of scikit-learn; serve a model of \
             another library with its own platform, or convert it to ONNX"
        ),
    ))
}

/// Adds the steps of `of` up to its end, which it returns.
fn end(of: &Estimator, steps: &mut Vec<Box<dyn Transform>>) -> Result<Predictor> {
    if of.class() == "Pipeline" {
        let mut last = None;
        for step in pipeline(of)? {
            if let Some(before) = last.replace(step) {
                add(&before, steps)?;
            }
        }
        let last = last.ok_or_else(|| of.unsupported("a pipeline without a predictor"))?;
        return end(&last, steps);
    }
    if is_search(of.class()) {
        let best = of.child(of.attribute(&["best_estimator_"])?)?;
        return end(&best, steps);
    }
    predictor(of)
}

fn is_search(class: &str) -> bool {
    let searches =
        ["GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV"];
    searches.contains(&class)
}

/// The steps of a pipeline that do something.
fn pipeline<'a>(of: &Estimator<'a>) -> Result<Vec<Estimator<'a>>> {
    let mut steps = Vec::new();
    for step in of.children(&["steps"])? {
        let parts = step.value.items().unwrap_or_default();
        let [_, estimator] = *parts else {
            return Err(of.fault("a step of it is no pair of a name and an estimator"));
        };
        if !estimator.is_none() && estimator.text() != Some("passthrough") {
            steps.push(of.child(estimator)?);
        }
    }
    Ok(steps)
}

/// Adds what the transformer `of` does.
pub(super) fn add(of: &Estimator, steps: &mut Vec<Box<dyn Transform>>) -> Result<()> {
    if of.class() == "Pipeline" {
        return pipeline(of)?.iter().try_for_each(|step| add(step, steps));
    }
    let known = steps.last().map(|step| step.output());
    steps.push(transform::read(of, known)?);
    Ok(())
}

/// The predictor `of`.
pub(super) fn predictor(of: &Estimator) -> Result<Predictor> {
    match of.class() {
        "LogisticRegression"
        | "LogisticRegressionCV"
        | "SGDClassifier"
        | "LinearSVC"
        | "RidgeClassifier"
        | "RidgeClassifierCV"
        | "Perceptron"
        | "PassiveAggressiveClassifier"
        | "LinearDiscriminantAnalysis" => linear::classifier(of),
        "LinearRegression"
        | "Ridge"
        | "RidgeCV"
        | "Lasso"
        | "LassoCV"
        | "ElasticNet"
        | "ElasticNetCV"
        | "Lars"
        | "LarsCV"
        | "LassoLars"
        | "LassoLarsCV"
        | "LassoLarsIC"
        | "MultiTaskLasso"
        | "MultiTaskLassoCV"
        | "MultiTaskElasticNet"
        | "MultiTaskElasticNetCV"
        | "OrthogonalMatchingPursuit"
        | "OrthogonalMatchingPursuitCV"
        | "SGDRegressor"
        | "PassiveAggressiveRegressor"
        | "BayesianRidge"
        | "ARDRegression"
        | "HuberRegressor"
        | "TheilSenRegressor"
        | "LinearSVR"
        | "QuantileRegressor"
        | "PoissonRegressor"
        | "GammaRegressor"
        | "TweedieRegressor" => linear::regressor(of),
        "GaussianNB" => linear::gaussian(of),
        "MultinomialNB" | "BernoulliNB" | "ComplementNB" => linear::counting(of),
        "QuadraticDiscriminantAnalysis" => linear::quadratic(of),
        "DecisionTreeClassifier"
        | "ExtraTreeClassifier"
        | "RandomForestClassifier"
        | "ExtraTreesClassifier" => forest::classifier(of),
        "DecisionTreeRegressor"
        | "ExtraTreeRegressor"
        | "RandomForestRegressor"
        | "ExtraTreesRegressor" => forest::regressor(of),
        "GradientBoostingClassifier" | "GradientBoostingRegressor" => forest::boosting(of),
        "HistGradientBoostingClassifier" | "HistGradientBoostingRegressor" => histogram::read(of),
        "IsolationForest" => forest::isolation(of),
        "SVC" | "NuSVC" => svm::classifier(of),
        "SVR" | "NuSVR" => svm::regressor(of),
        "MLPClassifier" => network::classifier(of),
        "MLPRegressor" => network::regressor(of),
        "KNeighborsClassifier" => neighbors::classifier(of),
        "KNeighborsRegressor" => neighbors::regressor(of),
        "KMeans" | "MiniBatchKMeans" => neighbors::clusters(of),
        "BaggingClassifier" => ensemble::bagging_classifier(of),
        "AdaBoostClassifier" => ensemble::ada_boost_classifier(of),
        "VotingClassifier" => ensemble::voting_classifier(of),
        "BaggingRegressor" | "AdaBoostRegressor" | "VotingRegressor" => ensemble::regressor(of),
        "DummyClassifier" => ensemble::dummy_classifier(of),
        "DummyRegressor" => ensemble::dummy_regressor(of),
        _ => Err(of.unsupported("this estimator")),
    }
}

/// That each step takes as many columns as the one before makes.
fn check(of: &Estimator, model: &Model) -> Result<()> {
    let last = connected(of, model.features(), &model.steps)?;
    let features = model.predictor.features();
    if features != last || features == 0 {
        return Err(of.fault(format_args!("it predicts from {features} columns, of {last} given")));
    }
    Ok(())
}

/// How many columns come out of `steps` if `columns` go in, one after the other.
pub(super) fn connected(
    of: &Estimator,
    mut columns: usize,
    steps: &[Box<dyn Transform>],
) -> Result<usize> {
    for (number, step) in steps.iter().enumerate() {
        let input = step.input();
        if input != columns || input == 0 {
            return Err(of.fault(format_args!(
                "step {number} takes {input} columns, and is given {columns}"
            )));
        }
        columns = step.output();
    }
    Ok(columns)
}
