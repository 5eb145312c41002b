//! Reads transformers, each in the file of its kind.

use super::estimator::Estimator;
use super::model::Transformer;
use super::passthrough::Passthrough;
use super::{
    column_transformer, dictionary, distribution, encoder, function, imputer, iterative_imputer,
    kernel_map, neighbor_imputer, polynomial, projection, scaler, select, spline, target_encoder,
    text,
};
use tensorserve_tensor::error::Result;

/// The classes of transformers, sorted.
const TRANSFORMERS: [&str; 49] = [
    "Binarizer",
    "ColumnTransformer",
    "CountVectorizer",
    "DictVectorizer",
    "FactorAnalysis",
    "FastICA",
    "FeatureUnion",
    "FunctionTransformer",
    "GaussianRandomProjection",
    "HashingVectorizer",
    "Imputer",
    "IncrementalPCA",
    "IterativeImputer",
    "KBinsDiscretizer",
    "KNNImputer",
    "KernelPCA",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MissingIndicator",
    "NeighborhoodComponentsAnalysis",
    "Normalizer",
    "Nystroem",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PCA",
    "PLSSVD",
    "PolynomialFeatures",
    "PowerTransformer",
    "QuantileTransformer",
    "RBFSampler",
    "RFE",
    "RFECV",
    "RobustScaler",
    "SelectFdr",
    "SelectFpr",
    "SelectFromModel",
    "SelectFwe",
    "SelectKBest",
    "SelectPercentile",
    "SequentialFeatureSelector",
    "SimpleImputer",
    "SparseRandomProjection",
    "SplineTransformer",
    "StandardScaler",
    "TargetEncoder",
    "TfidfTransformer",
    "TfidfVectorizer",
    "TruncatedSVD",
    "VarianceThreshold",
];

/// Whether it is a transformer, and not a predictor.
pub(super) fn is_transformer(estimator: &Estimator) -> bool {
    TRANSFORMERS.binary_search(&estimator.class()).is_ok()
}

/// Reads a transformer that is given `columns` columns, if their number is known.
pub(super) fn read(estimator: &Estimator, columns: Option<usize>) -> Result<Box<dyn Transformer>> {
    match estimator.class() {
        "StandardScaler" => scaler::standard(estimator),
        "MinMaxScaler" => scaler::min_max(estimator),
        "MaxAbsScaler" => scaler::max_abs(estimator),
        "RobustScaler" => scaler::robust(estimator),
        "Normalizer" => scaler::normalizer(estimator, count_columns(estimator, columns)?),
        "Binarizer" => scaler::binarizer(estimator, count_columns(estimator, columns)?),
        "PolynomialFeatures" => polynomial::read(estimator),
        "PCA" | "IncrementalPCA" | "TruncatedSVD" => projection::read(estimator),
        "SimpleImputer" | "Imputer" => imputer::read(estimator),
        "KNNImputer" => neighbor_imputer::read(estimator),
        "IterativeImputer" => iterative_imputer::read(estimator),
        "SplineTransformer" => spline::read(estimator),
        "DictVectorizer" => dictionary::read(estimator),
        "FastICA"
        | "GaussianRandomProjection"
        | "NeighborhoodComponentsAnalysis"
        | "SparseRandomProjection" => projection::plain(estimator),
        "FactorAnalysis" => projection::factors(estimator),
        "LinearDiscriminantAnalysis" => projection::discriminants(estimator),
        "PLSRegression" | "PLSCanonical" | "PLSSVD" | "CCA" => projection::least_squares(estimator),
        "KernelPCA" => kernel_map::components(estimator),
        "Nystroem" => kernel_map::nystroem(estimator),
        "RBFSampler" => kernel_map::cosines(estimator),
        "MissingIndicator" => imputer::missing_indicator(estimator),
        "OneHotEncoder" => encoder::one_hot(estimator, columns),
        "OrdinalEncoder" => encoder::ordinal(estimator),
        "CountVectorizer" | "TfidfVectorizer" => text::vectorizer(estimator),
        "HashingVectorizer" => text::hashing(estimator),
        "TfidfTransformer" => text::tfidf_transformer(estimator, columns),
        "TargetEncoder" => target_encoder::read(estimator),
        "FeatureUnion" => column_transformer::union(estimator, columns),
        "ColumnTransformer" => column_transformer::read(estimator),
        "PowerTransformer" => distribution::power(estimator),
        "QuantileTransformer" => distribution::quantile(estimator),
        "KBinsDiscretizer" => distribution::bins(estimator),
        "FunctionTransformer" if checks_only(estimator) => {
            Ok(Box::new(Passthrough(count_columns(estimator, columns)?)))
        }
        "FunctionTransformer" => {
            function::transformer(estimator, count_columns(estimator, columns)?)
        }
        "SelectKBest" => select::k_best(estimator),
        "SelectPercentile" => select::percentile(estimator),
        "SelectFpr" | "SelectFdr" | "SelectFwe" => select::by_p_value(estimator),
        "VarianceThreshold" => select::variance_threshold(estimator),
        "RFE" | "RFECV" | "SequentialFeatureSelector" => select::by_support(estimator),
        "SelectFromModel" => select::from_model(estimator),
        _ => Err(estimator.unsupported("this transformer")),
    }
}

/// The number of columns of a transformer that may not record it: scikit-learn does since 0.24.
fn count_columns(estimator: &Estimator, given: Option<usize>) -> Result<usize> {
    let columns = estimator.features().or(given).filter(|columns| *columns > 0);
    columns.ok_or_else(|| estimator.unsupported("one that does not record its number of columns"))
}

/// Whether a `FunctionTransformer` returns its columns as they are: without a function, or with the one
/// that checks the columns of a `HistGradientBoostingClassifier`.
fn checks_only(estimator: &Estimator) -> bool {
    let Some(function) = estimator.find(&["func"]) else { return true };
    let inner = function.arguments().first().and_then(|inner| inner.class());
    function.class() == Some("functools.partial")
        && inner == Some("sklearn.utils.validation.check_array")
}
