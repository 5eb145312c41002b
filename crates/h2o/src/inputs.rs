//! The inputs of a model: one for each column of the training data. Numbers become features as they
//! are, texts through the levels of their column.
//!
//! Source: `hex.genmodel.easy` of h2o-genmodel 3.46.0.6. A level that the training data did not have is
//! a missing value, as in H2O's own predictions.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::files::MojoFiles;
use super::head::MojoHead;
use super::info::MojoInfo;
use super::numeric::float;
use tensorserve_tensor::error::{Error, Result};

/// An input.
pub(super) struct MojoInput {
    pub(super) name: String,
    pub(super) target: InputTarget,
}

/// Where the values of an input go.
pub(super) enum InputTarget {
    /// Numbers, to the feature with this index.
    Number(usize),
    /// The numbers of levels, to the feature with this index.
    Levels(usize, Levels),
    /// A 1 among zeros, from the feature with this index on: one for each level, and the last for a
    /// missing one.
    OneHot(usize, Levels),
    /// What is added to the sum of a row.
    Offset,
}

/// The levels of a column.
pub(super) struct Levels {
    numbers: HashMap<Box<[u8]>, f64, BuildHasherDefault<LevelHasher>>,
    count: usize,
}

/// FNV-1a: levels are short.
pub(super) struct LevelHasher(u64);

impl Default for LevelHasher {
    fn default() -> Self {
        LevelHasher(0xCBF2_9CE4_8422_2325)
    }
}

impl Hasher for LevelHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        }
    }
}

impl Levels {
    fn new(levels: &[String]) -> Self {
        let pairs = levels.iter().enumerate();
        let numbers = pairs.map(|(number, level)| (level.as_bytes().into(), float(number)));
        Levels { numbers: numbers.collect(), count: levels.len() }
    }

    /// Levels that may also be written without the name of their column.
    fn of_column(name: &str, levels: &[String]) -> Self {
        let mut result = Levels::new(levels);
        for (number, level) in levels.iter().enumerate() {
            let short = level.strip_prefix(name).and_then(|level| level.strip_prefix('.'));
            if let Some(short) = short {
                result.numbers.entry(short.as_bytes().into()).or_insert(float(number));
            }
        }
        result
    }

    /// Levels that are the integers that they say, where they do.
    fn of_integers(levels: &[String]) -> Self {
        let mut result = Levels::new(levels);
        for level in levels {
            if let Ok(integer) = level.parse::<i32>() {
                result.numbers.insert(level.as_bytes().into(), f64::from(integer));
            }
        }
        result
    }

    /// The most frequent levels, and the one that stands for all others of the column.
    fn limited(kept: &[String], all: &[String]) -> Self {
        const OTHER: &[u8] = b"other";
        let mut result = Levels::new(kept);
        if let Some(other) = result.numbers.remove(OTHER) {
            for level in all {
                result.numbers.entry(level.as_bytes().into()).or_insert(other);
            }
        }
        result
    }

    /// The number of a level; NaN for one that is missing or unknown.
    pub(super) fn number(&self, level: &[u8]) -> f64 {
        self.numbers.get(level).copied().unwrap_or(f64::NAN)
    }

    /// How many levels there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// The columns of the training data, where features are made of them.
struct OriginalColumns {
    names: Vec<String>,
    domains: Vec<Option<Vec<String>>>,
}

impl OriginalColumns {
    fn read(files: &MojoFiles, info: &MojoInfo) -> Result<Self> {
        let count = info.size("_n_orig_names")?;
        let mut names = files.escaped_lines("_orig_names", count)?;
        names.iter_mut().for_each(|name| name.truncate(name.trim_end().len()));
        let mut domains = Vec::new();
        for column in 0..info.size("_n_orig_domain_values")?.min(count) {
            let levels = info.size_or(&format!("_m_orig_domain_values_{column}"), 0)?;
            let file = format!("_orig_domain_values_{column}");
            let read = |_| files.escaped_lines(&file, levels);
            domains.push((levels > 0).then_some(()).map(read).transpose()?);
        }
        domains.resize(count, None);
        // The response is among the columns of a supervised model.
        let response = info.columns.last().filter(|_| names.last() == info.columns.last());
        if response.is_some() && info.flag_or("supervised", true)? {
            names.pop();
            domains.pop();
        }
        Ok(OriginalColumns { names, domains })
    }
}

impl MojoInput {
    /// The inputs of a model, sorted by their names.
    pub(super) fn read(files: &MojoFiles, head: &MojoHead) -> Result<Vec<Self>> {
        let mut inputs = match head.info.text("_genmodel_encoding").unwrap_or("AUTO") {
            "AUTO" | "Enum" | "SortByResponse" | "OneHotInternal" => Self::of_columns(head),
            "LabelEncoder" => Self::of_labels(head, &OriginalColumns::read(files, &head.info)?),
            "EnumLimited" => Self::of_limited(head, &OriginalColumns::read(files, &head.info)?)?,
            "OneHotExplicit" => Self::of_one_hot(head, OriginalColumns::read(files, &head.info)?)?,
            other => {
                return Err(Error::unsupported(format!(
                    "the encoding of categories {other:?} is not supported: train the model with \
                     another categorical_encoding, such as enum or one_hot_explicit"
                )));
            }
        };
        // Models of other algorithms do not use their offsets when they predict.
        if let Some(name) = head.offset_column()
            && uses_offset(head)?
        {
            inputs.push(MojoInput { name: name.to_owned(), target: InputTarget::Offset });
        }
        inputs.sort_by(|a, b| a.name.cmp(&b.name));
        if inputs.windows(2).any(|pair| matches!(pair, [a, b] if a.name == b.name)) {
            return Err(Error::damaged("two columns of the model have the same name"));
        }
        Ok(inputs)
    }

    fn of_columns(head: &MojoHead) -> Vec<Self> {
        let columns = head.features().enumerate();
        let inputs = columns.map(|(index, (name, levels))| {
            let target = match levels {
                None => InputTarget::Number(index),
                Some(levels) => InputTarget::Levels(index, Levels::of_column(name, levels)),
            };
            MojoInput { name: name.to_owned(), target }
        });
        inputs.collect()
    }

    fn of_labels(head: &MojoHead, original: &OriginalColumns) -> Vec<Self> {
        let columns = head.features().enumerate();
        let inputs = columns.map(|(index, (name, _))| {
            let target = match original.domains.get(index) {
                Some(Some(levels)) => InputTarget::Levels(index, Levels::of_integers(levels)),
                _ => InputTarget::Number(index),
            };
            MojoInput { name: name.to_owned(), target }
        });
        inputs.collect()
    }

    fn of_limited(head: &MojoHead, original: &OriginalColumns) -> Result<Vec<Self>> {
        if original.names.len() != head.features {
            return Err(Error::damaged(format!(
                "model.ini: _n_orig_names is {}, and the model has {} features",
                original.names.len(),
                head.features
            )));
        }
        let columns = original.names.iter().zip(&original.domains).zip(head.features());
        let inputs = columns.enumerate().map(|(index, ((name, all), (_, kept)))| {
            let target = match (all, kept) {
                (Some(all), Some(kept)) => InputTarget::Levels(index, Levels::limited(kept, all)),
                _ => InputTarget::Number(index),
            };
            MojoInput { name: name.clone(), target }
        });
        Ok(inputs.collect())
    }

    /// The features are the columns of numbers, then those of levels.
    fn of_one_hot(head: &MojoHead, original: OriginalColumns) -> Result<Vec<Self>> {
        let columns = original.names.into_iter().zip(original.domains);
        let (numbers, levels): (Vec<_>, Vec<_>) = columns.partition(|(_, levels)| levels.is_none());
        let mut inputs = Vec::new();
        let mut next = 0;
        for (name, levels) in numbers.into_iter().chain(levels) {
            let (target, taken) = match levels {
                None => (InputTarget::Number(next), 1),
                Some(levels) => (InputTarget::OneHot(next, Levels::new(&levels)), levels.len() + 1),
            };
            inputs.push(MojoInput { name, target });
            next += taken;
        }
        if next != head.features {
            let features = head.features;
            return Err(Error::damaged(format!(
                "the original columns make {next} features, and the model has {features}"
            )));
        }
        Ok(inputs)
    }
}

/// Whether the predictions of a model depend on the offset of the row.
fn uses_offset(head: &MojoHead) -> Result<bool> {
    match head.algorithm()? {
        "gbm" => Ok(true),
        "glm" => Ok(head.category != "Multinomial"),
        "xgboost" => head.info.flag_or("has_offset", false),
        _ => Ok(false),
    }
}
