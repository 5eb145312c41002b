//! Reads `.cbm` files: four magic bytes, the size of the core, the core as a FlatBuffers file, and the
//! parts that the core names.

use serde_json::Value as Json;

use super::document::{
    CatboostDocument, CategoryFeature, CtrBase, CtrFeature, CtrKind, CtrTable, CtrValues,
    FeatureCombination, FloatFeature, MissingNumber, NonSymmetricNode, OneHotFeature, StoredTrees,
};
use tensorserve_codec::flatbuffer::{FlatFile, Table};
use tensorserve_tensor::error::{Error, Result};

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"CBM1";

/// The only version of the format.
const FORMAT: &str = "FlabuffersModel_v1";

/// The part that has the tables of statistics.
const TABLES_PART: &str = "static_provider_v1";

/// The hash of an empty bucket of a table.
const EMPTY_BUCKET: u64 = u64::MAX;

/// The size of a part that takes 8 more bytes.
const LONG_SIZE: u32 = u32::MAX;

// The fields of `TModelCore`.
const CORE_FORMAT: usize = 0;
const CORE_TREES: usize = 1;
const CORE_INFO: usize = 2;
const CORE_PARTS: usize = 3;

// The fields of `TModelTrees`.
const DIMENSION: usize = 0;
const SPLITS: usize = 1;
const SIZES: usize = 2;
const STARTS: usize = 3;
const CATEGORIES: usize = 4;
const FLOATS: usize = 5;
const ONE_HOTS: usize = 6;
const CTRS: usize = 7;
const LEAVES: usize = 8;
const STEPS: usize = 10;
const LEAF_IDS: usize = 11;
const TEXTS: usize = 12;
const ESTIMATED: usize = 13;
const SCALE: usize = 14;
const BIAS: usize = 15;
const MULTI_BIAS: usize = 16;
const EMBEDDINGS: usize = 18;
const INTERPOLATION: usize = 19;

/// Reads a file.
pub(super) fn read(bytes: &[u8]) -> Result<CatboostDocument> {
    let rest =
        bytes.strip_prefix(MAGIC).ok_or_else(|| Error::damaged("the first bytes are not CBM1"))?;
    let mut rest = CbmParts { rest };
    let size = rest.u32()? as usize;
    let core = FlatFile::new(rest.take(size)?);
    let core = Table::root(&core)?;
    let format = core.text(CORE_FORMAT)?;
    if format != FORMAT {
        return Err(Error::unsupported(format!("the format {format:?} is not supported")));
    }
    let trees = core.table(CORE_TREES)?.ok_or_else(|| Error::damaged("the file has no trees"))?;
    let mut document = read_trees(&trees)?;
    for entry in core.vector(CORE_INFO)?.tables()? {
        let text = entry.text(1)?;
        let value = serde_json::from_str(&text).unwrap_or(Json::String(text));
        document.info.add(&entry.text(0)?, &value)?;
    }
    for part in core.vector(CORE_PARTS)?.texts()? {
        if part != TABLES_PART {
            return Err(Error::unsupported(format!(
                "the part {part:?} is not supported: text and embedding features cannot be computed"
            )));
        }
        document.tables = read_tables(&mut rest)?;
    }
    Ok(document)
}

/// What follows the core.
struct CbmParts<'a> {
    rest: &'a [u8],
}

impl<'a> CbmParts<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        let split = self.rest.split_at_checked(size);
        let (part, rest) = split.ok_or_else(|| Error::damaged("the file was cut short"))?;
        self.rest = rest;
        Ok(part)
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(size_of::<u32>())?.first_chunk();
        Ok(bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    /// A size, of 4 or 12 bytes.
    fn size(&mut self) -> Result<usize> {
        let size = self.u32()?;
        if size != LONG_SIZE {
            return Ok(size as usize);
        }
        let bytes = self.take(size_of::<u64>())?.first_chunk();
        let size = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        usize::try_from(size).map_err(|_| Error::damaged("the size of a part is too large"))
    }
}

fn read_trees(trees: &Table) -> Result<CatboostDocument> {
    for (field, what) in [(TEXTS, "text"), (ESTIMATED, "estimated"), (EMBEDDINGS, "embedding")] {
        if !trees.vector(field)?.is_empty() {
            return Err(Error::unsupported(format!(
                "the model has {what} features, which are not supported; train it without them"
            )));
        }
    }
    if trees.byte(INTERPOLATION, 0)? != 0 {
        return Err(Error::unsupported("the interpolation of float features is not supported"));
    }
    let dimension = usize::try_from(trees.int(DIMENSION, 0)?).unwrap_or(0);
    let mut bias = trees.doubles(MULTI_BIAS)?;
    if bias.is_empty() {
        // Before 0.25 there is one for all.
        bias = vec![trees.double(BIAS, 0.0)?];
    }
    Ok(CatboostDocument {
        dimension,
        floats: trees.vector(FLOATS)?.tables()?.iter().map(float).collect::<Result<_>>()?,
        categories: trees
            .vector(CATEGORIES)?
            .tables()?
            .iter()
            .map(category)
            .collect::<Result<_>>()?,
        one_hots: trees.vector(ONE_HOTS)?.tables()?.iter().map(one_hot).collect::<Result<_>>()?,
        ctrs: trees.vector(CTRS)?.tables()?.iter().map(ctr_feature).collect::<Result<_>>()?,
        tables: Vec::new(),
        trees: stored_trees(trees)?,
        scale: trees.double(SCALE, 1.0)?,
        bias,
        info: super::document::ModelInfo::default(),
    })
}

fn stored_trees(trees: &Table) -> Result<StoredTrees> {
    let (splits, leaves) = (trees.ints(SPLITS)?, trees.doubles(LEAVES)?);
    let steps = trees.vector(STEPS)?;
    if steps.is_empty() {
        return Ok(StoredTrees::Symmetric { sizes: indices(trees.ints(SIZES)?)?, splits, leaves });
    }
    let steps = steps.numbers(u32::from_le_bytes)?;
    let leaf_ids = trees.vector(LEAF_IDS)?.numbers(u32::from_le_bytes)?;
    if splits.len() != steps.len() || leaf_ids.len() != steps.len() {
        let lengths = (splits.len(), steps.len(), leaf_ids.len());
        return Err(Error::damaged(format!(
            "the lists of nodes have different lengths: {lengths:?}"
        )));
    }
    #[allow(clippy::cast_possible_truncation)] // Two halves.
    let nodes = splits.into_iter().zip(steps).zip(leaf_ids).map(|((split, step), leaf)| {
        NonSymmetricNode { split, left: step as u16, right: (step >> u16::BITS) as u16, leaf }
    });
    let nodes = nodes.collect();
    Ok(StoredTrees::Others { starts: indices(trees.ints(STARTS)?)?, nodes, leaves })
}

fn indices(numbers: Vec<i32>) -> Result<Vec<usize>> {
    let wrong = |_| Error::damaged("a size or a start of a tree is negative");
    numbers.into_iter().map(|number| usize::try_from(number).map_err(wrong)).collect()
}

fn float(feature: &Table) -> Result<FloatFeature> {
    let has_nans = feature.byte(0, 0)? != 0;
    Ok(FloatFeature {
        index: feature.int(1, -1)?,
        flat: feature.int(2, -1)?,
        borders: feature.floats(3)?,
        name: feature.text(4)?,
        missing: match feature.byte(5, 0)? {
            2 if has_nans => MissingNumber::Greatest,
            _ => MissingNumber::Smallest,
        },
    })
}

fn category(feature: &Table) -> Result<CategoryFeature> {
    Ok(CategoryFeature {
        index: feature.int(0, -1)?,
        flat: feature.int(1, -1)?,
        name: feature.text(2)?,
    })
}

fn one_hot(feature: &Table) -> Result<OneHotFeature> {
    Ok(OneHotFeature { category: feature.int(0, -1)?, values: feature.ints(1)? })
}

fn missing_ctr() -> Error {
    Error::damaged("a statistic of categories is incomplete")
}

fn ctr_feature(feature: &Table) -> Result<CtrFeature> {
    let ctr = feature.table(0)?.ok_or_else(missing_ctr)?;
    Ok(CtrFeature {
        base: ctr_base(&ctr.table(0)?.ok_or_else(missing_ctr)?)?,
        target_border: ctr.int(1, 0)?,
        prior_numerator: ctr.float(2, 0.0)?,
        prior_denominator: ctr.float(3, 1.0)?,
        shift: ctr.float(4, 0.0)?,
        scale: ctr.float(5, 1.0)?,
        borders: feature.floats(1)?,
    })
}

fn ctr_base(base: &Table) -> Result<CtrBase> {
    let combination = base.table(0)?.ok_or_else(missing_ctr)?;
    let pairs = |bytes: [u8; 8]| {
        let (a, b) = bytes.split_at(4);
        let read = |half: &[u8]| i32::from_le_bytes(half.first_chunk().copied().unwrap_or([0; 4]));
        (read(a), read(b))
    };
    #[allow(clippy::cast_sign_loss)] // The bits of a float.
    let floats = |bytes| {
        let (index, border) = pairs(bytes);
        (index, f32::from_bits(border as u32))
    };
    Ok(CtrBase {
        kind: match base.byte(1, 0)? {
            0 => CtrKind::Borders,
            1 => CtrKind::Buckets,
            2 | 3 => CtrKind::MeanValue,
            4 | 5 => CtrKind::Counter,
            other => {
                return Err(Error::unsupported(format!(
                    "statistics of type {other} are not supported"
                )));
            }
        },
        combination: FeatureCombination {
            categories: combination.ints(0)?,
            floats: combination.vector(1)?.numbers(floats)?,
            one_hots: combination.vector(2)?.numbers(pairs)?,
        },
        classifier: base.int(2, 0)?,
    })
}

fn read_tables(parts: &mut CbmParts) -> Result<Vec<CtrTable>> {
    let count = parts.size()?;
    let mut tables = Vec::new();
    for _ in 0..count {
        let size = parts.size()?;
        let file = FlatFile::new(parts.take(size)?);
        tables.push(read_table(&Table::root(&file)?)?);
    }
    Ok(tables)
}

fn read_table(table: &Table) -> Result<CtrTable> {
    let base = ctr_base(&table.table(0)?.ok_or_else(missing_ctr)?)?;
    let bucket = |bytes: [u8; 12]| {
        let (hash, index) = bytes.split_at(8);
        let hash = u64::from_le_bytes(hash.first_chunk().copied().unwrap_or_default());
        (hash, u32::from_le_bytes(index.first_chunk().copied().unwrap_or_default()))
    };
    let buckets = table.packed(1, bucket)?;
    let hashes = buckets.into_iter().filter(|(hash, _)| *hash != EMPTY_BUCKET).collect();
    let values = match base.kind {
        CtrKind::MeanValue => {
            let mean = |bytes: [u8; 8]| {
                let (sum, count) = bytes.split_at(4);
                let sum = f32::from_le_bytes(sum.first_chunk().copied().unwrap_or_default());
                (sum, i32::from_le_bytes(count.first_chunk().copied().unwrap_or_default()))
            };
            CtrValues::Means(table.packed(2, mean)?)
        }
        CtrKind::Borders | CtrKind::Buckets | CtrKind::Counter => {
            CtrValues::Counts(table.packed(2, i32::from_le_bytes)?)
        }
    };
    let classes = usize::try_from(table.int(4, 0)?).unwrap_or(0);
    let width = match base.kind {
        CtrKind::Counter | CtrKind::MeanValue => 1,
        CtrKind::Borders => classes.max(2),
        CtrKind::Buckets => classes.max(1),
    };
    Ok(CtrTable { base, denominator: table.int(3, 0)?, width, hashes, values })
}
