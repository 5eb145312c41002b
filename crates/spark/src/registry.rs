//! The classes of Spark's stages, and what reads each.

use super::features::{
    assemble, discretize, encode, expand, index, scale, select, tokens, vector_index, words,
};
use super::folder::StageFolder;
use super::models::predict::{ClassModel, classification};
use super::models::{
    bayes, clusters, factors, general, isotonic, linear, mixture, network, one_vs_rest, trees,
};
use super::schema::Schema;
use super::stage::PipelineStage;
use super::unsupported;
use tensorserve_tensor::error::Result;

/// With which the classes of Spark ML start.
const PACKAGE: &str = "org.apache.spark.ml.";

/// Loads a stage, and adds its columns to `schema`.
pub(super) fn load(folder: &StageFolder, schema: &mut Schema) -> Result<Box<dyn PipelineStage>> {
    if let Some(model) = classifier(folder, true)? {
        return classification(folder, schema, model);
    }
    let class = folder.class()?;
    let load = match class.strip_prefix(PACKAGE).unwrap_or_default() {
        "feature.StringIndexerModel" => index::string_indexer,
        "feature.IndexToString" => index::index_to_string,
        "feature.OneHotEncoderModel" => encode::one_hot_encoder,
        "feature.OneHotEncoder" => encode::old_one_hot_encoder,
        "feature.VectorAssembler" => assemble::assembler,
        "feature.VectorSizeHint" => assemble::size_hint,
        "feature.Interaction" => assemble::interaction,
        // Names of elements, and columns that are not needed any more.
        "feature.VectorAttributeRewriter" | "feature.ColumnPruner" => assemble::unchanged,
        "feature.StandardScalerModel" => scale::standard,
        "feature.MinMaxScalerModel" => scale::min_max,
        "feature.MaxAbsScalerModel" => scale::max_abs,
        "feature.RobustScalerModel" => scale::robust,
        "feature.Normalizer" => scale::normalizer,
        "feature.IDFModel" => scale::idf,
        "feature.ElementwiseProduct" => scale::product,
        "feature.PCAModel" => select::principal_components,
        "feature.VectorSlicer" => select::slicer,
        "feature.ChiSqSelectorModel"
        | "feature.UnivariateFeatureSelectorModel"
        | "feature.VarianceThresholdSelectorModel" => select::selector,
        "feature.PolynomialExpansion" => expand::polynomial,
        "feature.VectorIndexerModel" => vector_index::vector_indexer,
        "feature.Bucketizer" => discretize::bucketizer,
        "feature.Binarizer" => discretize::binarizer,
        "feature.ImputerModel" => discretize::imputer,
        "feature.Tokenizer" => tokens::tokenizer,
        "feature.RegexTokenizer" => tokens::regex_tokenizer,
        "feature.StopWordsRemover" => tokens::stop_words_remover,
        "feature.NGram" => tokens::n_gram,
        "feature.CountVectorizerModel" => words::count_vectorizer,
        "feature.HashingTF" => words::hashing,
        "regression.LinearRegressionModel" => linear::linear,
        "regression.GeneralizedLinearRegressionModel" => general::generalized,
        "regression.AFTSurvivalRegressionModel" => general::survival,
        "regression.IsotonicRegressionModel" => isotonic::isotonic,
        "regression.DecisionTreeRegressionModel" => trees::tree_regressor,
        "regression.RandomForestRegressionModel" => trees::forest_regressor,
        "regression.GBTRegressionModel" => trees::boosted_regressor,
        "regression.FMRegressionModel" => factors::factor_regressor,
        "clustering.KMeansModel" => clusters::kmeans,
        "clustering.BisectingKMeansModel" => clusters::bisecting_kmeans,
        "clustering.GaussianMixtureModel" => mixture::mixture,
        _ => return Err(refusal(class)),
    };
    load(folder, schema)
}

/// Reads a classifier; `None` if `folder` has something else. Those within a `OneVsRestModel` are no
/// `OneVsRestModel`.
fn classifier(folder: &StageFolder, is_outer: bool) -> Result<Option<ClassModel>> {
    let class = folder.class()?.strip_prefix(PACKAGE).unwrap_or_default();
    let read = match class {
        "classification.LogisticRegressionModel" => linear::logistic_model,
        "classification.LinearSVCModel" => linear::svc_model,
        "classification.DecisionTreeClassificationModel" => trees::tree_classifier,
        "classification.RandomForestClassificationModel" => trees::forest_classifier,
        "classification.GBTClassificationModel" => trees::boosted_classifier,
        "classification.NaiveBayesModel" => bayes::bayes,
        "classification.MultilayerPerceptronClassificationModel" => network::network,
        "classification.FMClassificationModel" => factors::factor_classifier,
        "classification.OneVsRestModel" if is_outer => |folder: &StageFolder| {
            one_vs_rest::one_vs_rest(folder, |inner| classifier(inner, false))
        },
        _ => return Ok(None),
    };
    read(folder).map(Some)
}

/// The error for a class that is not supported, with the way on.
fn refusal(class: &str) -> tensorserve_tensor::error::Error {
    let name = class.rsplit('.').next().unwrap_or(class);
    let way_on = match name {
        "SQLTransformer" => {
            "it holds a program in SQL: compute these columns before the request, and save the \
             pipeline without it"
        }
        "FeatureHasher" => {
            "the model does not say which of its columns are texts and which numbers: hash the texts \
             with a Tokenizer and a HashingTF, or index them with a StringIndexer"
        }
        "ALSModel" | "FPGrowthModel" | "PrefixSpan" => {
            "it has a table in place of a function of its inputs: save its recommendations"
        }
        "PipelineModel" => "it is a pipeline in a pipeline that is too deep",
        _ if !class.starts_with(PACKAGE) => {
            "it is not a class of Spark ML: save the pipeline without it, or export its model in the \
             format of its library, such as save_model of XGBoost and LightGBM"
        }
        _ => "save the pipeline without it, or export the model to ONNX or PMML",
    };
    unsupported(format!("the stage {class} ({way_on})"))
}
