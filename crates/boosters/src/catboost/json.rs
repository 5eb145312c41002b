//! Reads models in JSON, as `save_model(format="json")` writes them.

use serde_json::Value as Json;

use super::document::{
    CatboostDocument, CategoryFeature, CtrBase, CtrFeature, CtrKind, CtrTable, CtrValues,
    FeatureCombination, FloatFeature, MissingNumber, NonSymmetricNode, OneHotFeature, StoredTrees,
};
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::error::{Error, Result};

/// The names of the members of a document that come first, as members are sorted.
const FIRST_MEMBERS: [&str; 2] = ["ctr_data", "features_info"];

/// The text of the hash of an empty bucket.
const EMPTY_BUCKET: u64 = u64::MAX;

/// Whether a file with these first bytes is a model.
pub(super) fn is_model(start: &[u8]) -> bool {
    let text = start.trim_ascii_start();
    let Some(rest) = text.strip_prefix(b"{") else { return false };
    let Some(name) = rest.trim_ascii_start().strip_prefix(b"\"") else { return false };
    FIRST_MEMBERS.iter().any(|known| {
        let rest = name.strip_prefix(known.as_bytes());
        rest.is_some_and(|rest| rest.starts_with(b"\""))
    })
}

/// Reads a file.
pub(super) fn read(bytes: &[u8]) -> Result<CatboostDocument> {
    let json = parse(bytes)?;
    let mut document = CatboostDocument { scale: 1.0, ..CatboostDocument::default() };
    if let Some(information) = json.get("model_info").and_then(Json::as_object) {
        for (key, value) in information {
            document.info.add(key, value)?;
        }
    }
    let features = json.get("features_info").ok_or_else(|| missing("features_info"))?;
    for unsupported_kind in ["text_features", "embedding_features", "estimated_features"] {
        if !list(features, unsupported_kind).is_empty() {
            return Err(Error::unsupported(format!(
                "the model has {unsupported_kind:?}, which are not supported; train it without them"
            )));
        }
    }
    for feature in list(features, "float_features") {
        document.floats.push(float(feature)?);
    }
    for feature in list(features, "categorical_features") {
        let index = int(feature, "feature_index")?;
        if feature.get("values").is_some() {
            let values = ints(feature, "values")?;
            document.one_hots.push(OneHotFeature { category: index, values });
        }
        let flat = int(feature, "flat_feature_index")?;
        document.categories.push(CategoryFeature {
            index,
            flat,
            name: text(feature, "feature_id"),
        });
    }
    for ctr in list(features, "ctrs") {
        document.ctrs.push(ctr_feature(ctr)?);
    }
    read_tables(&json, &mut document)?;
    read_bias(&json, &mut document)?;
    read_trees(&json, &mut document)?;
    Ok(document)
}

/// The most containers within each other; a tree has up to 16 levels.
const MAX_DEPTH: usize = 64;

/// Parses a document. Numbers are rounded correctly, which `serde_json` does not do.
fn parse(bytes: &[u8]) -> Result<Json> {
    let mut cursor = Cursor::new(bytes);
    cursor.open_document().map_err(syntax_error)?;
    value(&mut cursor, 0)
}

fn syntax_error(error: SyntaxError) -> Error {
    Error::damaged(format!("invalid JSON: {} (at byte {})", error.kind.text(), error.offset))
}

fn value(cursor: &mut Cursor, depth: usize) -> Result<Json> {
    if depth > MAX_DEPTH {
        return Err(Error::damaged(format!("values are nested more than {MAX_DEPTH} levels deep")));
    }
    let is_literal = |cursor: &mut Cursor, word: &[u8]| cursor.literal(word).map_err(syntax_error);
    match cursor.peek() {
        b'{' => {
            let mut members = serde_json::Map::new();
            let mut more = cursor.open_object().map_err(syntax_error)?;
            while more {
                let name = cursor.name().map_err(syntax_error)?;
                let name = String::from_utf8_lossy(&name).into_owned();
                members.insert(name, value(cursor, depth + 1)?);
                more = cursor.next_member().map_err(syntax_error)?;
            }
            Ok(Json::Object(members))
        }
        b'[' => {
            let mut elements = Vec::new();
            let mut more = cursor.open_array();
            while more {
                elements.push(value(cursor, depth + 1)?);
                more = cursor.next_element().map_err(syntax_error)?;
            }
            Ok(Json::Array(elements))
        }
        b'"' => {
            let text = cursor.string().map_err(syntax_error)?;
            Ok(Json::String(String::from_utf8_lossy(&text).into_owned()))
        }
        b'n' => is_literal(cursor, b"null").map(|()| Json::Null),
        b't' => is_literal(cursor, b"true").map(|()| Json::Bool(true)),
        b'f' => is_literal(cursor, b"false").map(|()| Json::Bool(false)),
        _ => Ok(match cursor.number().map_err(syntax_error)? {
            Number::Unsigned(number) => number.into(),
            Number::Negative(number) => number.into(),
            Number::Float(number) => number.into(),
        }),
    }
}

fn missing(name: &str) -> Error {
    Error::damaged(format!("{name:?} is missing, or is not of its type"))
}

/// The elements of the array `name`; none if there is no such array.
fn list<'a>(json: &'a Json, name: &str) -> &'a [Json] {
    json.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn text(json: &Json, name: &str) -> String {
    json.get(name).and_then(Json::as_str).unwrap_or_default().to_owned()
}

fn int(json: &Json, name: &str) -> Result<i32> {
    let number = json.get(name).and_then(Json::as_i64);
    number.and_then(|number| i32::try_from(number).ok()).ok_or_else(|| missing(name))
}

/// A number in single precision; the library writes enough digits of it.
fn single(json: &Json, name: &str) -> Result<f32> {
    let number = json.get(name).and_then(Json::as_f64);
    number.map(narrow).ok_or_else(|| missing(name))
}

#[allow(clippy::cast_possible_truncation)]
fn narrow(x: f64) -> f32 {
    x as f32
}

fn numbers(json: &Json, name: &str) -> Result<Vec<f64>> {
    list(json, name).iter().map(|x| x.as_f64().ok_or_else(|| missing(name))).collect()
}

fn borders(json: &Json) -> Result<Vec<f32>> {
    Ok(numbers(json, "borders")?.into_iter().map(narrow).collect())
}

fn ints(json: &Json, name: &str) -> Result<Vec<i32>> {
    let read = |x: &Json| x.as_i64().and_then(|x| i32::try_from(x).ok());
    list(json, name).iter().map(|x| read(x).ok_or_else(|| missing(name))).collect()
}

fn float(feature: &Json) -> Result<FloatFeature> {
    let has_nans = feature.get("has_nans").and_then(Json::as_bool).unwrap_or(false);
    let treatment = text(feature, "nan_value_treatment");
    Ok(FloatFeature {
        index: int(feature, "feature_index")?,
        flat: int(feature, "flat_feature_index")?,
        name: text(feature, "feature_id"),
        borders: borders(feature)?,
        missing: match has_nans && treatment == "AsTrue" {
            true => MissingNumber::Greatest,
            false => MissingNumber::Smallest,
        },
    })
}

fn ctr_feature(ctr: &Json) -> Result<CtrFeature> {
    Ok(CtrFeature {
        base: CtrBase {
            kind: ctr_kind(&text(ctr, "ctr_type"))?,
            combination: combination(list(ctr, "elements"))?,
            classifier: 0,
        },
        target_border: int(ctr, "target_border_idx")?,
        prior_numerator: single(ctr, "prior_numerator")?,
        prior_denominator: single(ctr, "prior_denomerator")?,
        shift: single(ctr, "shift")?,
        scale: single(ctr, "scale")?,
        borders: borders(ctr)?,
    })
}

fn ctr_kind(name: &str) -> Result<CtrKind> {
    match name {
        "Borders" => Ok(CtrKind::Borders),
        "Buckets" => Ok(CtrKind::Buckets),
        "BinarizedTargetMeanValue" | "FloatTargetMeanValue" => Ok(CtrKind::MeanValue),
        "Counter" | "FeatureFreq" => Ok(CtrKind::Counter),
        _ => Err(Error::unsupported(format!("statistics of type {name:?} are not supported"))),
    }
}

fn combination(elements: &[Json]) -> Result<FeatureCombination> {
    let mut combination = FeatureCombination::default();
    for element in elements {
        match &*text(element, "combination_element") {
            "cat_feature_value" => {
                combination.categories.push(int(element, "cat_feature_index")?);
            }
            "float_feature" => {
                let border = single(element, "border")?;
                combination.floats.push((int(element, "float_feature_index")?, border));
            }
            "cat_feature_exact_value" => {
                let value = int(element, "value")?;
                combination.one_hots.push((int(element, "cat_feature_index")?, value));
            }
            other => {
                return Err(Error::unsupported(format!(
                    "statistics of the element {other:?} are not supported"
                )));
            }
        }
    }
    Ok(combination)
}

/// The tables, whose names are JSON documents that describe them.
fn read_tables(json: &Json, document: &mut CatboostDocument) -> Result<()> {
    let Some(tables) = json.get("ctr_data").and_then(Json::as_object) else { return Ok(()) };
    for (name, table) in tables {
        let described: Json = serde_json::from_str(name).map_err(|error| {
            Error::damaged(format!("the table {name:?} has no valid name: {error}"))
        })?;
        let base = CtrBase {
            kind: ctr_kind(&text(&described, "type"))?,
            combination: combination(list(&described, "identifier"))?,
            classifier: 0,
        };
        document.tables.push(read_table(base, table)?);
    }
    Ok(())
}

/// A table: a flat list of buckets, each with its hash as text and its values.
fn read_table(base: CtrBase, table: &Json) -> Result<CtrTable> {
    let stride = usize::try_from(int(table, "hash_stride")?).unwrap_or(0);
    let width = stride.checked_sub(1).filter(|width| *width > 0);
    let width = width.ok_or_else(|| missing("hash_stride"))?;
    let (mut hashes, mut counts, mut means) = (Vec::new(), Vec::new(), Vec::new());
    for bucket in list(table, "hash_map").chunks_exact(stride) {
        let [hash, values @ ..] = bucket else { continue };
        let hash: Option<u64> = hash.as_str().and_then(|text| text.parse().ok());
        let hash = hash.ok_or_else(|| missing("hash_map"))?;
        if hash == EMPTY_BUCKET {
            continue;
        }
        hashes.push((hash, u32::try_from(hashes.len()).unwrap_or(u32::MAX)));
        if let (CtrKind::MeanValue, [sum, count]) = (base.kind, values) {
            let sum = narrow(sum.as_f64().ok_or_else(|| missing("hash_map"))?);
            let count = count.as_i64().and_then(|count| i32::try_from(count).ok());
            means.push((sum, count.ok_or_else(|| missing("hash_map"))?));
            continue;
        }
        for value in values {
            let count = value.as_i64().and_then(|count| i32::try_from(count).ok());
            counts.push(count.ok_or_else(|| missing("hash_map"))?);
        }
    }
    let (width, values) = match base.kind {
        CtrKind::MeanValue => (1, CtrValues::Means(means)),
        CtrKind::Borders | CtrKind::Buckets | CtrKind::Counter => {
            (width, CtrValues::Counts(counts))
        }
    };
    Ok(CtrTable { base, denominator: int(table, "counter_denominator")?, width, hashes, values })
}

fn read_bias(json: &Json, document: &mut CatboostDocument) -> Result<()> {
    match list(json, "scale_and_bias") {
        [] => {}
        [scale, bias] => {
            document.scale = scale.as_f64().ok_or_else(|| missing("scale_and_bias"))?;
            // Before 0.25 there is one for all outputs.
            let all = bias.as_array().map_or(std::slice::from_ref(bias), Vec::as_slice);
            let all = all.iter().map(Json::as_f64).collect::<Option<_>>();
            document.bias = all.ok_or_else(|| missing("scale_and_bias"))?;
        }
        _ => return Err(missing("scale_and_bias")),
    }
    Ok(())
}

fn read_trees(json: &Json, document: &mut CatboostDocument) -> Result<()> {
    let trees = list(json, "oblivious_trees");
    if json.get("oblivious_trees").is_none() && json.get("trees").is_some() {
        return read_other_trees(list(json, "trees"), document);
    }
    let (mut sizes, mut splits, mut leaves) = (Vec::new(), Vec::new(), Vec::new());
    for (number, tree) in trees.iter().enumerate() {
        let levels = list(tree, "splits");
        for level in levels {
            splits.push(int(level, "split_index")?);
        }
        let values = numbers(tree, "leaf_values")?;
        let count = 1_usize.checked_shl(u32::try_from(levels.len()).unwrap_or(u32::MAX));
        let dimension = count.map_or(0, |count| values.len() / count);
        if number == 0 {
            document.dimension = dimension;
        }
        if dimension != document.dimension || values.len() != dimension * count.unwrap_or(0) {
            return Err(Error::damaged(format!("tree {number} has {} leaf values", values.len())));
        }
        sizes.push(levels.len());
        leaves.extend(values);
    }
    document.trees = StoredTrees::Symmetric { sizes, splits, leaves };
    Ok(())
}

/// Trees as nested nodes.
fn read_other_trees(trees: &[Json], document: &mut CatboostDocument) -> Result<()> {
    let (mut starts, mut nodes, mut leaves) = (Vec::new(), Vec::new(), Vec::new());
    for tree in trees {
        starts.push(nodes.len());
        read_node(tree, &mut nodes, &mut leaves, &mut document.dimension)?;
    }
    document.trees = StoredTrees::Others { starts, nodes, leaves };
    Ok(())
}

/// Adds a node and those below it; returns its index. The depth is bounded by that of the JSON.
fn read_node(
    json: &Json,
    nodes: &mut Vec<NonSymmetricNode>,
    leaves: &mut Vec<f64>,
    dimension: &mut usize,
) -> Result<usize> {
    let index = nodes.len();
    nodes.push(NonSymmetricNode { split: -1, left: 0, right: 0, leaf: 0 });
    let node = match json.get("value") {
        Some(value) => {
            let first = leaves.len();
            for value in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
                leaves.push(value.as_f64().ok_or_else(|| missing("value"))?);
            }
            let count = leaves.len() - first;
            if *dimension == 0 {
                *dimension = count;
            }
            if count != *dimension {
                return Err(Error::damaged(format!(
                    "a leaf has {count} values and needs {dimension}"
                )));
            }
            let leaf = u32::try_from(first).map_err(|_| Error::damaged("too many leaves"))?;
            NonSymmetricNode { split: -1, left: 0, right: 0, leaf }
        }
        None => {
            let split = json.get("split").ok_or_else(|| missing("split"))?;
            let mut child = |name: &str| {
                let child = json.get(name).ok_or_else(|| missing(name))?;
                let child = read_node(child, nodes, leaves, dimension)?;
                u16::try_from(child - index)
                    .map_err(|_| Error::unsupported("a tree has too many nodes"))
            };
            let (left, right) = (child("left")?, child("right")?);
            NonSymmetricNode { split: int(split, "split_index")?, left, right, leaf: 0 }
        }
    };
    if let Some(slot) = nodes.get_mut(index) {
        *slot = node;
    }
    Ok(index)
}
