//! Reads transformers, each in the file of its kind.

use super::estimator::Estimator;
use super::model::Transformer;
use super::passthrough::Passthrough;
use super::{column_transformer, encoder, imputer, polynomial, projection, scaler, select};
use tensorserve_tensor::error::Result;

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
        "OneHotEncoder" => encoder::one_hot(estimator),
        "OrdinalEncoder" => encoder::ordinal(estimator),
        "ColumnTransformer" => column_transformer::read(estimator),
        "FunctionTransformer" if estimator.find(&["func"]).is_none() => {
            Ok(Box::new(Passthrough(count_columns(estimator, columns)?)))
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
