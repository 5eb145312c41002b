//! A pipeline: its stages, the columns that they take, and what is answered.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::folder::{DATA, DATA_ENDING, PART, STAGES, StageFolder, part_files};
use super::registry;
use super::schema::{ColumnKind, Schema};
use super::stage::PipelineStage;
use super::{MAX_CLASSES, MAX_WIDTH, damaged, unsupported};
use tensorserve_tensor::NumberTexts;
use tensorserve_tensor::error::{Error, Result};

/// The classes that hold stages. Spark has them in Scala and in Python.
const PIPELINE: &str = "PipelineModel";
const FORMULA: &str = "RFormulaModel";

/// The classes of the models that a search has found, and the folder of the best.
const SEARCHES: [&str; 2] = ["CrossValidatorModel", "TrainValidationSplitModel"];
const BEST: &str = "bestModel";

/// The folder of the first model of a `OneVsRestModel`.
const FIRST_MODEL: &str = "model_0";

/// The packages of classes that hold stages.
const PACKAGES: [&str; 2] = ["org.apache.spark.ml.", "pyspark.ml."];

/// The folder of the pipeline in a formula.
const FORMULA_STAGES: &str = "pipelineModel";

/// How deep pipelines may be in pipelines, and how many stages they may have.
const MAX_DEPTH: usize = 4;
const MAX_STAGES: usize = 1000;

/// The most elements of a vector that is an output.
const MAX_OUTPUT: usize = 1 << 16;

/// The classifiers that have single numbers as outputs if they are alone: rows of scalars, as clients of
/// Simple TensorFlow Serving expect them.
const SCALAR_CLASSES: [&str; 2] = [
    "org.apache.spark.ml.classification.LogisticRegressionModel",
    "org.apache.spark.ml.classification.LinearSVCModel",
];

/// A pipeline that is loaded.
pub(super) struct SparkPipeline {
    pub(super) stages: Vec<Box<dyn PipelineStage>>,
    /// The number of columns of its tables.
    pub(super) columns: usize,
    pub(super) inputs: Vec<PipelineInput>,
    pub(super) outputs: Vec<PipelineOutput>,
    /// The size of the largest vector.
    pub(super) width: usize,
    /// The version of Spark that wrote it; empty if it is not recorded.
    pub(super) written_by: String,
}

/// The values of an input, and the number of its column.
pub(super) struct PipelineInput {
    pub(super) name: String,
    pub(super) column: usize,
    pub(super) kind: InputKind,
    /// How numbers in place of texts are written.
    pub(super) number_texts: Option<NumberTexts>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InputKind {
    Number,
    Text,
    Vector(usize),
}

/// An output, and the number of the column that it has.
pub(super) struct PipelineOutput {
    pub(super) name: String,
    pub(super) column: usize,
    pub(super) kind: OutputKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputKind {
    Number,
    Integer,
    Text,
    Vector(usize),
    /// An element of the vectors.
    Element(usize),
}

/// A stage with the columns that it reads and makes.
struct UsedStage {
    stage: Box<dyn PipelineStage>,
    reads: Vec<usize>,
    makes: Vec<usize>,
}

/// The folders of the stages of the pipeline in `folder`, in their order.
fn stage_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder.join(STAGES)).into_iter().flatten().flatten();
    let mut numbered = Vec::new();
    for path in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let number = name.as_deref().and_then(|name| name.split('_').next()?.parse::<usize>().ok());
        let number = number.ok_or_else(|| {
            damaged(format!(
                "{STAGES} has the folder {:?}, whose name has no number",
                name.unwrap_or_default()
            ))
        })?;
        numbered.push((number, path));
    }
    numbered.sort();
    if numbered.len() > MAX_STAGES {
        return Err(unsupported(format!("a pipeline of more than {MAX_STAGES} stages")));
    }
    if numbered.iter().enumerate().any(|(at, (number, _))| at != *number) {
        return Err(missing_stage(folder));
    }
    Ok(numbered.into_iter().map(|(_, path)| path).collect())
}

fn missing_stage(folder: &Path) -> Error {
    Error::not_found(format!("a folder in {} is missing", folder.join(STAGES).display()))
}

/// Whether all files are there, as far as that can be seen without reading tables: a folder may still be
/// being written.
///
/// # Errors
/// [`Code::NotFound`](tensorserve_tensor::error::Code::NotFound) for what is missing.
pub(super) fn check_files(folder: &Path) -> Result<()> {
    let mut stages = Vec::new();
    collect(folder, 0, &mut stages)?;
    for stage in stages {
        // Models have a table, but for those of several models.
        let has_table = [DATA, "data/data"]
            .iter()
            .any(|inner| !part_files(&stage.path.join(inner), DATA_ENDING).is_empty());
        let is_whole = has_table || stage.path.join(FIRST_MODEL).is_dir();
        if stage.class()?.ends_with("Model") && !is_whole {
            let path = stage.path.join(DATA);
            return Err(Error::not_found(format!(
                "a file {}/{PART}*{DATA_ENDING}",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Adds the stages in `folder` to `stages`; those in containers in turn.
fn collect(folder: &Path, depth: usize, stages: &mut Vec<StageFolder>) -> Result<()> {
    let stage = StageFolder::open(folder).map_err(|error| error.context(folder.display()))?;
    let class = stage.class()?;
    let name = PACKAGES.iter().find_map(|package| class.strip_prefix(package));
    let class = name.and_then(|name| name.rsplit('.').next()).unwrap_or_default().to_owned();
    if SEARCHES.contains(&&*class) && depth <= MAX_DEPTH {
        return collect(&folder.join(BEST), depth + 1, stages);
    }
    if (class != PIPELINE && class != FORMULA) || depth > MAX_DEPTH || stages.len() >= MAX_STAGES {
        stages.push(stage);
        return Ok(());
    }
    let inner = if class == FORMULA { folder.join(FORMULA_STAGES) } else { folder.to_owned() };
    let declared = stage.texts("stageUids")?.map(|uids| uids.len());
    let folders = stage_folders(&inner)?;
    if declared.is_some_and(|declared| declared != folders.len()) {
        return Err(missing_stage(&inner));
    }
    folders.iter().try_for_each(|inner| collect(inner, depth + 1, stages))
}

impl SparkPipeline {
    /// Loads the pipeline or the single stage in `folder`.
    pub(super) fn load(folder: &Path) -> Result<Self> {
        let mut folders = Vec::new();
        collect(folder, 0, &mut folders)?;
        let mut schema = Schema::default();
        let mut stages = Vec::new();
        for stage in &folders {
            let context = |error: Error| match folders.len() {
                1 => error,
                _ => error.context(stage.path.file_name().unwrap_or_default().display()),
            };
            let loaded = registry::load(stage, &mut schema).map_err(context)?;
            let (reads, makes) = schema.take_uses();
            stages.push(UsedStage { stage: loaded, reads, makes });
        }
        let has_scalars = matches!(&folders[..], [only] if SCALAR_CLASSES.contains(&only.class()?));
        let written_by = folders.first().map(StageFolder::version).unwrap_or_default();
        let written_by = match written_by {
            "" => String::new(),
            version => format!("Spark {version}"),
        };
        SparkPipeline::assemble(schema, stages, has_scalars, written_by)
    }

    fn assemble(
        schema: Schema,
        stages: Vec<UsedStage>,
        has_scalars: bool,
        written_by: String,
    ) -> Result<Self> {
        let mut outputs = outputs(&schema, &stages)?;
        // Stages that nothing depends on are left out, such as the indexer of the labels.
        let mut needed: HashSet<usize> = outputs.iter().map(|output| output.column).collect();
        let mut kept = Vec::new();
        for used in stages.into_iter().rev() {
            // A stage that makes nothing says something about its input.
            if used.makes.iter().any(|column| needed.contains(column)) {
                needed.extend(used.reads);
                kept.push(used.stage);
            }
        }
        kept.reverse();
        let mut inputs = Vec::new();
        for column in (0..schema.len()).filter(|column| schema.is_input(*column)) {
            if needed.contains(&column) {
                inputs.push(input(&schema, column)?);
            }
        }
        if has_scalars {
            split_probabilities(&mut outputs);
        }
        inputs.sort_by(|a, b| a.name.cmp(&b.name));
        outputs.sort_by(|a, b| a.name.cmp(&b.name));
        let is_same = |pair: &[PipelineOutput]| matches!(pair, [a, b] if a.name == b.name);
        if inputs.is_empty() || outputs.windows(2).any(is_same) {
            return Err(damaged("it takes no column, or two outputs have the same name"));
        }
        let widths = (0..schema.len()).filter_map(|column| schema.size(column));
        let width = widths.max().unwrap_or(1);
        Ok(SparkPipeline {
            stages: kept,
            columns: schema.len(),
            inputs,
            outputs,
            width,
            written_by,
        })
    }
}

/// The columns that are answered: what models predict, and texts of `IndexToString`. A pipeline without
/// a model answers the columns that none of its stages reads.
fn outputs(schema: &Schema, stages: &[UsedStage]) -> Result<Vec<PipelineOutput>> {
    let mut columns: Vec<usize> = schema.outputs().to_vec();
    let made = || stages.iter().flat_map(|used| used.makes.iter().copied());
    if columns.is_empty() {
        let read: HashSet<usize> =
            stages.iter().flat_map(|used| used.reads.iter().copied()).collect();
        let is_text = |column: usize| schema.kind(column) == Some(ColumnKind::Text);
        columns.extend(made().filter(|column| !read.contains(column) || is_text(*column)));
    } else {
        let answered: HashSet<usize> = columns.iter().copied().collect();
        let texts = made().filter(|column| {
            schema.kind(*column) == Some(ColumnKind::Text) && !answered.contains(column)
        });
        columns.extend(texts);
    }
    let mut outputs = Vec::new();
    for column in columns {
        let name = schema.name(column).to_owned();
        let kind = match schema.kind(column) {
            Some(ColumnKind::Integer) => OutputKind::Integer,
            Some(ColumnKind::Text | ColumnKind::Category) => OutputKind::Text,
            Some(ColumnKind::Vector(_)) => match schema.known_size(column)? {
                0 => continue,
                size if size > MAX_OUTPUT => {
                    return Err(unsupported(format!(
                        "the output {name:?} of vectors of {size} elements (at most {MAX_OUTPUT}; \
                         save the pipeline with a model behind it)"
                    )));
                }
                size => OutputKind::Vector(size),
            },
            // Lists of words have no shape of a tensor.
            Some(ColumnKind::Words) => continue,
            Some(ColumnKind::Number) | None => OutputKind::Number,
        };
        outputs.push(PipelineOutput { name, column, kind });
    }
    match outputs.is_empty() {
        true => Err(unsupported(
            "a pipeline that makes neither numbers, texts nor vectors (lists of words are no tensor)",
        )),
        false => Ok(outputs),
    }
}

/// Puts a probability for each class in the place of vectors.
fn split_probabilities(outputs: &mut Vec<PipelineOutput>) {
    let found = outputs.iter().find_map(|output| match output.kind {
        OutputKind::Vector(size) if output.name == "probability" => Some((output.column, size)),
        OutputKind::Number
        | OutputKind::Integer
        | OutputKind::Text
        | OutputKind::Vector(_)
        | OutputKind::Element(_) => None,
    });
    outputs.retain(|output| !matches!(output.kind, OutputKind::Vector(_)));
    let Some((column, size)) = found.filter(|(_, size)| *size <= MAX_CLASSES) else { return };
    for class in 0..size {
        let name = format!("probability_of_{class}");
        outputs.push(PipelineOutput { name, column, kind: OutputKind::Element(class) });
    }
}

fn input(schema: &Schema, column: usize) -> Result<PipelineInput> {
    let name = schema.name(column).to_owned();
    let kind = match schema.kind(column) {
        Some(ColumnKind::Text | ColumnKind::Category) => InputKind::Text,
        Some(ColumnKind::Vector(_)) => {
            let size = schema.known_size(column)?;
            if size == 0 || size > MAX_WIDTH {
                return Err(damaged(format!("column {name:?} has vectors of {size} elements")));
            }
            InputKind::Vector(size)
        }
        _ => InputKind::Number,
    };
    Ok(PipelineInput { name, column, kind, number_texts: schema.number_texts(column) })
}
