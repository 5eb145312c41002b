//! `CountVectorizer`, `TfidfVectorizer` and `HashingVectorizer`: count the terms of documents.

use std::collections::HashMap;

use super::super::accepted::AcceptedValues;
use super::super::columns::ColumnUse;
use super::super::estimator::Estimator;
use super::super::model::{FeatureRows, StepFacts, Transformer};
use super::super::scaler::Norm;
use super::super::sparse::SparseMatrix;
use super::analyzer::{Analyzer, AnalyzerScratch};
use super::murmur;
use super::tfidf::{TfIdf, read_norm};
use tensorserve_tensor::error::{Error, Result};

/// Which column a term is counted in.
enum TermColumns {
    /// The columns of the terms that are known. Others are not counted.
    Vocabulary(HashMap<Box<str>, u32>),
    /// One of `count` columns, by the hash of the term, which also determines the sign.
    Hashed { count: u32, alternates_sign: bool },
}

/// What becomes of counts.
enum Weights {
    Counts,
    TfIdf(TfIdf),
    Normalized(Norm),
}

struct Vectorizer {
    analyzer: Analyzer,
    columns: TermColumns,
    count: usize,
    /// Whether a term counts once only.
    is_binary: bool,
    weights: Weights,
}

impl Vectorizer {
    /// Adds the counts of `document` to `to`, as one row.
    fn count(&self, document: &str, scratch: &mut AnalyzerScratch, to: &mut SparseMatrix) {
        self.analyzer.analyze(document, scratch, |term| match &self.columns {
            TermColumns::Vocabulary(columns) => {
                if let Some(column) = columns.get(term) {
                    to.push(*column, 1.0);
                }
            }
            TermColumns::Hashed { count, alternates_sign } => {
                let hash = murmur::hash(term.as_bytes());
                // `abs` of the lowest number is undefined in scikit-learn, which takes this instead.
                let column = match hash {
                    i32::MIN => (i32::MAX.unsigned_abs() - (count - 1)) % count,
                    hash => hash.unsigned_abs() % count,
                };
                let sign = if *alternates_sign && hash < 0 { -1.0 } else { 1.0 };
                to.push(column, sign);
            }
        });
        to.end_unordered_row();
        if self.is_binary {
            let row = to.row_mut(to.len().saturating_sub(1));
            row.iter_mut().for_each(|(_, count)| *count = 1.0);
        }
    }
}

impl Transformer for Vectorizer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(1).accepting(AcceptedValues::Any)
    }

    fn output(&self) -> usize {
        self.count
    }

    fn uses(&self, _: &[ColumnUse]) -> Vec<ColumnUse> {
        vec![ColumnUse::Document]
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        true
    }

    fn makes_sparse(&self, _: bool) -> bool {
        true
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let matrix = self.apply_sparse(rows)?;
        to.copy_from_slice(&matrix.to_dense(0..matrix.len()));
        Ok(())
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut matrix = SparseMatrix::new(self.count);
        let mut scratch = AnalyzerScratch::default();
        for (number, index) in rows.values.iter().enumerate() {
            let document = rows.documents.get(*index as usize).copied().unwrap_or_default();
            let document = std::str::from_utf8(document).map_err(|error| {
                let (row, at) = (rows.first_row + number, error.valid_up_to());
                Error::invalid(format!(
                    "the text of row {row} is not valid UTF-8 from byte {at} on"
                ))
            })?;
            self.count(document, &mut scratch, &mut matrix);
        }
        match &self.weights {
            Weights::Counts => {}
            Weights::TfIdf(weights) => weights.apply(&mut matrix),
            Weights::Normalized(norm) => {
                (0..matrix.len()).for_each(|row| norm.divide_sparse(matrix.row_mut(row)));
            }
        }
        Ok(matrix)
    }
}

/// Reads a `CountVectorizer` or a `TfidfVectorizer`.
pub(in super::super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let analyzer = Analyzer::read(estimator)?;
    check_dtype(estimator)?;
    let columns = read_vocabulary(estimator)?;
    let count = columns.len();
    let weights = match estimator.class() {
        "TfidfVectorizer" => {
            let inner = estimator.child(estimator.attribute(&["_tfidf"])?)?;
            Weights::TfIdf(TfIdf::read(&inner, Some(count))?)
        }
        _ => Weights::Counts,
    };
    let is_binary = estimator.flag("binary", false)?;
    let columns = TermColumns::Vocabulary(columns);
    Ok(Box::new(Vectorizer { analyzer, columns, count, is_binary, weights }))
}

/// Reads a `HashingVectorizer`.
pub(in super::super) fn hashing(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let analyzer = Analyzer::read(estimator)?;
    check_dtype(estimator)?;
    let count = estimator.count(&["n_features"])?;
    let columns = u32::try_from(count).ok().filter(|count| (1..1 << 31).contains(count));
    let columns = columns.ok_or_else(|| {
        estimator.damaged(format_args!("n_features={count} is not a positive 32-bit number"))
    })?;
    let alternates_sign = estimator.flag("alternate_sign", true)?;
    if estimator.flag("non_negative", false)? {
        return Err(estimator.unsupported("non_negative"));
    }
    let columns = TermColumns::Hashed { count: columns, alternates_sign };
    let weights = read_norm(estimator)?.map_or(Weights::Counts, Weights::Normalized);
    let is_binary = estimator.flag("binary", false)?;
    Ok(Box::new(Vectorizer { analyzer, columns, count, is_binary, weights }))
}

/// Refuses types whose rounding the results would have.
fn check_dtype(estimator: &Estimator) -> Result<()> {
    let class = estimator.find(&["dtype"]).and_then(|dtype| dtype.class_name());
    match class {
        None | Some("int64" | "float64" | "int" | "float" | "int32" | "long") => Ok(()),
        Some(other) => Err(estimator.unsupported(format_args!("dtype={other}"))),
    }
}

/// The column of each term.
fn read_vocabulary(estimator: &Estimator) -> Result<HashMap<Box<str>, u32>> {
    let wrong = || estimator.damaged("vocabulary_ does not give each term a column of its own");
    let value = estimator.attribute(&["vocabulary_"])?;
    let mut columns = HashMap::new();
    for (term, column) in value.entries() {
        let term = term.text().ok_or_else(wrong)?;
        estimator.charge(1 + term.len() / size_of::<f64>())?;
        let column = column.int().and_then(|column| u32::try_from(column).ok());
        columns.insert(Box::from(term), column.ok_or_else(wrong)?);
    }
    let count = columns.len();
    let are_columns = columns.values().all(|column| (*column as usize) < count);
    if columns.is_empty() || !are_columns {
        return Err(wrong());
    }
    Ok(columns)
}
