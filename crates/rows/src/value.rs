//! What is known of a tensor before a request: from which rows of the batch it comes, its shape, and
//! the elements of small integer tensors.

use std::rc::Rc;

use tensorserve_tensor::{DeclaredShape, RowFinding, TensorSpec};

use crate::size::{Size, Symbols};

/// Why an analysis cannot go on at an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The operation mixes rows, or its result depends on their number or order. What it does, as a
    /// predicate.
    Mixed(String),
    /// It is not known whether the operation mixes rows. Why, as a predicate.
    Unknown(String),
}

/// Shorthand for [`Stop::Mixed`].
pub fn mixed<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Mixed(why.into()))
}

/// Shorthand for [`Stop::Unknown`].
pub fn unknown<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Unknown(why.into()))
}

/// The result of an operation.
pub type Outcome = Result<Value, Stop>;

/// The results of an operation.
pub type OperationResults = Result<Vec<Value>, Stop>;

/// From what a tensor is computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Flow {
    /// Values that are the same whatever the batch is, as long as the sizes of its other dimensions are.
    Constant,
    /// The size of the dimension `axis` is a multiple of the number of rows, and each block of that multiple along it
    /// comes from its own row alone. Nothing else, no other size either, depends on the batch.
    Rows {
        /// The dimension.
        axis: usize,
    },
    /// A value that depends on the number of rows, and on nothing else of the batch.
    RowCount,
    /// In a loop over rows: it comes from the row of this iteration alone.
    Item,
    /// The counter of a loop plus `offset`, while it is unknown how often the loop runs; in a loop over
    /// rows, the number of its row.
    Counter {
        /// What has been added to it.
        offset: i64,
    },
    /// Whether the counter of a loop is below the number of rows.
    BelowRows,
    /// An integer that is not less than this, and depends on the batch in a way that is not known.
    AtLeast(Size),
    /// Several batches behind each other along dimension 0: as many as this, of as many rows as the batch
    /// has, or a multiple of them.
    Batches(Size),
    /// Elements of rows of various lengths: along dimension 0, all elements of the first row, then those of
    /// the second, … Each comes from its own row alone.
    Ragged {
        /// The number of the lengths of the rows: tensors whose rows have the same lengths have the same number.
        partition: u32,
    },
    /// For each element of rows of various lengths, its place: the number of its row, and its number in the row.
    RowPlaces {
        /// The number of the lengths of the rows, as in [`Flow::Ragged`].
        partition: u32,
    },
    /// For each element of such rows, the number of its row.
    RowNumbers {
        /// The number of the lengths of the rows, as in [`Flow::Ragged`].
        partition: u32,
    },
    /// The ends of such rows: a 0, then for each row the number of elements up to its end.
    RowSplits {
        /// The number of the lengths of the rows, as in [`Flow::Ragged`].
        partition: u32,
    },
    /// For each row of the batch its number of elements.
    RowLengths {
        /// The number of the lengths of the rows, as in [`Flow::Ragged`].
        partition: u32,
    },
    /// The ends of rows without the leading 0.
    RowEnds {
        /// The number of the lengths of the rows, as in [`Flow::Ragged`].
        partition: u32,
    },
    /// A list of tensors.
    List(Rc<TensorList>),
    /// On a path that is never taken.
    Dead,
    /// An operation before it mixes rows.
    Mixed(Rc<RowFinding>),
    /// An operation before it is not known.
    Unknown(Rc<RowFinding>),
}

/// A list of tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorList {
    /// Its length.
    pub length: Size,
    /// What its elements have in common; `None` before there is one. In a list of one element for each
    /// row, an element comes from its row alone.
    pub element: Option<Value>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// From what it is computed.
    pub flow: Flow,
    /// Its shape; `None` if its rank is unknown.
    pub dims: Option<Vec<Size>>,
    /// Its elements, if it is a scalar or vector of few integers that are known.
    pub elements: Option<Vec<Size>>,
    /// Set in the body of a loop while the value is the one that the iteration began with.
    pub origin: Option<usize>,
}

/// The most elements that are kept.
pub const MAX_ELEMENTS: usize = 64;

impl Value {
    /// A tensor without known elements.
    #[must_use]
    pub fn new(flow: Flow, dims: Option<Vec<Size>>) -> Self {
        Value { flow, dims, elements: None, origin: None }
    }

    /// A constant of unknown shape.
    #[must_use]
    pub fn constant() -> Self {
        Value::new(Flow::Constant, None)
    }

    /// A constant of this shape, with -1 for sizes that are not known.
    #[must_use]
    pub fn constant_of(sizes: &[i64], symbols: &Symbols) -> Self {
        Value::new(Flow::Constant, Some(sizes_of(sizes, symbols)))
    }

    /// A vector of small integers.
    #[must_use]
    pub fn vector(elements: Vec<Size>) -> Self {
        let length = i64::try_from(elements.len()).unwrap_or(i64::MAX);
        Value::of_elements(elements, vec![Size::number(length)])
    }

    /// A small integer.
    #[must_use]
    pub fn scalar(element: Size) -> Self {
        Value::of_elements(vec![element], Vec::new())
    }

    /// A tensor of small integers. They depend on the number of rows at most.
    #[must_use]
    pub fn of_elements(elements: Vec<Size>, dims: Vec<Size>) -> Self {
        let flow = match elements.iter().all(Size::is_fixed) {
            true => Flow::Constant,
            false => Flow::RowCount,
        };
        let elements = (elements.len() <= MAX_ELEMENTS).then_some(elements);
        Value { flow, dims: Some(dims), elements, origin: None }
    }

    /// Rows along `axis`.
    #[must_use]
    pub fn rows(axis: usize, dims: Vec<Size>) -> Self {
        Value::new(Flow::Rows { axis }, Some(dims))
    }

    /// The value of an input of a signature: one row for each row of the batch.
    ///
    /// # Errors
    /// If it does not declare that.
    pub fn input(spec: &TensorSpec, symbols: &Symbols) -> Outcome {
        let alias = &spec.alias;
        let DeclaredShape::Dims(declared) = &spec.shape else {
            return unknown(format!("has the input {alias:?} of unknown rank"));
        };
        if !spec.shape.is_batched() {
            return mixed(format!("has the input {alias:?}, which has no dimension for rows"));
        }
        let sizes: Vec<i64> = declared.iter().map(|(size, _)| *size).collect();
        let mut dims = sizes_of(&sizes, symbols);
        if let Some(first) = dims.first_mut() {
            *first = Size::rows();
        }
        Ok(Value::rows(0, dims))
    }

    /// Its rank, if it is known.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.dims.as_ref().map(Vec::len)
    }

    /// Its shape.
    ///
    /// # Errors
    /// If its rank is unknown.
    pub fn known_dims(&self) -> Result<&[Size], Stop> {
        match &self.dims {
            Some(dims) => Ok(dims),
            None => unknown("takes a tensor whose rank is not known"),
        }
    }

    /// The elements, if they are known.
    ///
    /// # Errors
    /// If they are not.
    pub fn known_elements(&self, what: &str) -> Result<&[Size], Stop> {
        match &self.elements {
            Some(elements) => Ok(elements),
            None => unknown(format!("has {what} that are not known before a request")),
        }
    }

    /// The elements as numbers.
    ///
    /// # Errors
    /// If they are not known.
    pub fn numbers(&self, what: &str) -> Result<Vec<i64>, Stop> {
        let elements = self.known_elements(what)?;
        let numbers: Option<Vec<i64>> = elements.iter().map(Size::as_number).collect();
        numbers
            .map_or_else(|| unknown(format!("has {what} that are not known before a request")), Ok)
    }

    /// Its only element as a number.
    ///
    /// # Errors
    /// If it is not known.
    pub fn number(&self, what: &str) -> Result<i64, Stop> {
        match self.numbers(what)?.as_slice() {
            [number] => Ok(*number),
            _ => unknown(format!("has {what} that are not known before a request")),
        }
    }

    /// Whether it is the same for every batch.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.flow == Flow::Constant
    }

    /// Whether nothing of it is known, or it is never computed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.flow, Flow::Mixed(_) | Flow::Unknown(_) | Flow::Dead)
    }

    /// What both have in common, for two paths on which a value may come.
    #[must_use]
    pub fn joined(&self, other: &Self, symbols: &Symbols) -> Option<Value> {
        let flow = match (&self.flow, &other.flow) {
            (Flow::Dead, _) | (_, Flow::Mixed(_) | Flow::Unknown(_)) => return Some(other.clone()),
            (_, Flow::Dead) | (Flow::Mixed(_) | Flow::Unknown(_), _) => return Some(self.clone()),
            (a, b) if a == b => a.clone(),
            (Flow::List(a), Flow::List(b)) => Flow::List(Rc::new(a.joined(b, symbols)?)),
            // A constant that takes the place of the value of a row is the same for every row.
            (Flow::Item, Flow::Constant) | (Flow::Constant, Flow::Item) => Flow::Item,
            _ => return None,
        };
        let elements = if self.elements == other.elements { self.elements.clone() } else { None };
        let dims = joined_dims(self.dims.as_deref(), other.dims.as_deref(), symbols)?;
        let origin = if self.origin == other.origin { self.origin } else { None };
        Some(Value { flow, dims, elements, origin })
    }
}

impl TensorList {
    fn joined(&self, other: &Self, symbols: &Symbols) -> Option<TensorList> {
        let element = match (&self.element, &other.element) {
            (Some(a), Some(b)) => Some(a.joined(b, symbols)?),
            (Some(one), None) | (None, Some(one)) => Some(one.clone()),
            (None, None) => None,
        };
        let length = match self.length == other.length {
            true => self.length.clone(),
            false if self.length.is_fixed() && other.length.is_fixed() => symbols.fresh(),
            false => return None,
        };
        Some(TensorList { length, element })
    }
}

/// What two shapes have in common; `None` if one has rows where the other has none.
fn joined_dims(
    a: Option<&[Size]>,
    b: Option<&[Size]>,
    symbols: &Symbols,
) -> Option<Option<Vec<Size>>> {
    let (Some(a), Some(b)) = (a, b) else {
        return Some(None);
    };
    if a.len() != b.len() {
        return Some(None);
    }
    let size = |(a, b): (&Size, &Size)| match a == b {
        true => Some(a.clone()),
        false if a.is_fixed() && b.is_fixed() => Some(symbols.fresh()),
        false => None,
    };
    let dims: Option<Vec<Size>> = a.iter().zip(b).map(size).collect();
    dims.map(Some)
}

/// Sizes, with -1 for those that are not known.
fn sizes_of(sizes: &[i64], symbols: &Symbols) -> Vec<Size> {
    let size = |&size: &i64| if size < 0 { symbols.fresh() } else { Size::number(size) };
    sizes.iter().map(size).collect()
}
