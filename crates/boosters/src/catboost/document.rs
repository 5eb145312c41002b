//! A model as a file stores it, in either format.

use serde_json::Value as Json;

use tensorserve_tensor::error::{Error, Result};

/// A model as a file stores it.
#[derive(Default)]
pub(super) struct CatboostDocument {
    /// The sums of a row.
    pub(super) dimension: usize,
    pub(super) floats: Vec<FloatFeature>,
    pub(super) categories: Vec<CategoryFeature>,
    pub(super) one_hots: Vec<OneHotFeature>,
    pub(super) ctrs: Vec<CtrFeature>,
    pub(super) tables: Vec<CtrTable>,
    pub(super) trees: StoredTrees,
    pub(super) scale: f64,
    /// One for each sum, or none.
    pub(super) bias: Vec<f64>,
    pub(super) info: ModelInfo,
}

/// A feature of numbers.
#[derive(Default)]
pub(super) struct FloatFeature {
    /// Its number among the features of numbers.
    pub(super) index: i32,
    /// Its number among all features.
    pub(super) flat: i32,
    pub(super) name: String,
    /// Ascending. None if no tree uses the feature.
    pub(super) borders: Vec<f32>,
    pub(super) missing: MissingNumber,
}

/// What NaN counts as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MissingNumber {
    /// Smaller than all numbers, or not greater than any, which is the same.
    #[default]
    Smallest,
    Greatest,
}

/// A feature of categories.
#[derive(Default)]
pub(super) struct CategoryFeature {
    /// Its number among the features of categories.
    pub(super) index: i32,
    /// Its number among all features.
    pub(super) flat: i32,
    pub(super) name: String,
}

/// The values of a feature of categories with which it is compared.
pub(super) struct OneHotFeature {
    pub(super) category: i32,
    /// Their hashes.
    pub(super) values: Vec<i32>,
}

/// A statistic of a combination of features, as a feature of numbers.
pub(super) struct CtrFeature {
    pub(super) base: CtrBase,
    pub(super) target_border: i32,
    pub(super) prior_numerator: f32,
    pub(super) prior_denominator: f32,
    pub(super) shift: f32,
    pub(super) scale: f32,
    /// Ascending.
    pub(super) borders: Vec<f32>,
}

/// The table that a statistic is computed from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CtrBase {
    pub(super) kind: CtrKind,
    pub(super) combination: FeatureCombination,
    /// The number of the borders of the target, of which a model may have several.
    pub(super) classifier: i32,
}

/// The kind of a statistic: what its table has, and how it becomes a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CtrKind {
    Borders,
    Buckets,
    MeanValue,
    Counter,
}

/// Features whose values together are the key of a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FeatureCombination {
    /// The categories of these features,
    pub(super) categories: Vec<i32>,
    /// whether these features are greater than a border,
    pub(super) floats: Vec<(i32, f32)>,
    /// and whether these have a value.
    pub(super) one_hots: Vec<(i32, i32)>,
}

/// Values by the hash of a combination.
pub(super) struct CtrTable {
    pub(super) base: CtrBase,
    pub(super) denominator: i32,
    /// The number of values of each hash.
    pub(super) width: usize,
    /// Each with the index of its values.
    pub(super) hashes: Vec<(u64, u32)>,
    pub(super) values: CtrValues,
}

/// The values of a table.
pub(super) enum CtrValues {
    Counts(Vec<i32>),
    /// Sums of targets, and their number.
    Means(Vec<(f32, i32)>),
}

/// All trees. Splits are numbered through all borders of features of numbers, all values of one-hot
/// features, and all borders of statistics.
pub(super) enum StoredTrees {
    /// Each level of a tree has one split.
    Symmetric {
        sizes: Vec<usize>,
        splits: Vec<i32>,
        leaves: Vec<f64>,
    },
    Others {
        starts: Vec<usize>,
        nodes: Vec<NonSymmetricNode>,
        leaves: Vec<f64>,
    },
}

impl Default for StoredTrees {
    fn default() -> Self {
        StoredTrees::Symmetric { sizes: Vec::new(), splits: Vec::new(), leaves: Vec::new() }
    }
}

/// A node of a tree whose levels have several splits.
#[derive(Clone, Copy)]
pub(super) struct NonSymmetricNode {
    pub(super) split: i32,
    /// The distances to the children; 0 if the walk ends here.
    pub(super) left: u16,
    pub(super) right: u16,
    /// Where the values begin if the walk ends here.
    pub(super) leaf: u32,
}

/// What a file says about the training.
#[derive(Default)]
pub(super) struct ModelInfo {
    /// The loss function without its parameters; empty if not recorded.
    pub(super) loss: String,
    /// The labels of the classes; empty if not recorded.
    pub(super) classes: Vec<Json>,
    /// The type of the labels: `Integer`, `Float`, `String` or `Boolean`; empty if not recorded.
    pub(super) class_type: String,
    /// The probability from which on the second of two classes is predicted.
    pub(super) threshold: Option<f64>,
    /// The version of the library; empty if not recorded.
    pub(super) version: String,
}

impl ModelInfo {
    /// Adds an entry of the file's information, whose value is text or JSON.
    pub(super) fn add(&mut self, key: &str, value: &Json) -> Result<()> {
        match key {
            "params" => self.add_params(value),
            "class_params" => {
                if let Some(names) = value.get("class_names").and_then(Json::as_array) {
                    self.classes.clone_from(names);
                }
                if let Some(kind) = value.get("class_label_type").and_then(Json::as_str) {
                    kind.clone_into(&mut self.class_type);
                }
            }
            "multiclass_params" if self.classes.is_empty() => {
                let names = value.get("class_names").and_then(Json::as_array);
                let names = names.filter(|names| !names.is_empty());
                let labels = names.or_else(|| value.get("class_to_label").and_then(Json::as_array));
                self.classes.clone_from(labels.unwrap_or(&Vec::new()));
            }
            "binclass_probability_threshold" => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let number = text.parse().map_err(|_| {
                    Error::damaged(format!("\"binclass_probability_threshold\" is {text:?}"))
                })?;
                self.threshold = Some(number);
            }
            "catboost_version_info" => {
                let text = value.as_str().unwrap_or_default();
                let release = text.split("release ").nth(1).unwrap_or_default();
                let end = release.find(|c: char| !c.is_ascii_digit() && c != '.');
                let version = release.get(..end.unwrap_or(release.len())).unwrap_or_default();
                version.trim_end_matches('.').clone_into(&mut self.version);
            }
            _ => {}
        }
        Ok(())
    }

    fn add_params(&mut self, params: &Json) {
        let loss = params.get("loss_function").and_then(|loss| loss.get("type"));
        loss.and_then(Json::as_str).unwrap_or_default().clone_into(&mut self.loss);
        let names = params.get("data_processing_options").and_then(|all| all.get("class_names"));
        if let Some(names) = names.and_then(Json::as_array).filter(|_| self.classes.is_empty()) {
            self.classes.clone_from(names);
        }
    }
}
