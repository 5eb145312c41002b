//! Products, gathers, and operations along dimensions.

use crate::plain::{axis_of, deterministic, dimension, plain_flow, with_rows};
use crate::size::{Size, Symbols, product};
use crate::value::{Flow, Outcome, Value, mixed, unknown};

const SUMS: &str = "adds up products of different rows";
const PAIRS: &str = "combines each row with each row of the batch";

/// A product of matrices in the last two dimensions of both; other dimensions are broadcast.
///
/// # Errors
/// If it sums over the rows, or combines rows with each other.
pub fn matmul(a: &Value, b: &Value, transposed: (bool, bool), symbols: &Symbols) -> Outcome {
    deterministic(&[a, b], || {
        let (x, y) = (a.known_dims()?, b.known_dims()?);
        let (Some(x_outer), Some(y_outer)) = (x.len().checked_sub(2), y.len().checked_sub(2))
        else {
            return unknown("multiplies tensors of fewer than two dimensions");
        };
        // Distances from the end: 2 are the rows of a matrix, 1 its columns.
        let place = |value: &Value, rank: usize, transposed: bool| -> Option<usize> {
            let distance = rank.checked_sub(axis_of(value)?)?;
            Some(if transposed && distance <= 2 { 3 - distance } else { distance })
        };
        let (left, right) = (place(a, x.len(), transposed.0), place(b, y.len(), transposed.1));
        if left == Some(1) || right == Some(2) {
            return mixed(SUMS);
        }
        let outer = crate::plain::broadcast_dims(
            x.get(..x_outer).unwrap_or_default(),
            y.get(..y_outer).unwrap_or_default(),
            symbols,
        );
        let row_dim = x.get(if transposed.0 { x_outer + 1 } else { x_outer });
        let column_dim = y.get(if transposed.1 { y_outer } else { y_outer + 1 });
        let mut dims = outer;
        dims.extend(row_dim.cloned());
        dims.extend(column_dim.cloned());
        let distance = match (left, right) {
            (None, None) => return Ok(with_rows(None, dims)),
            (Some(distance), None) => meets_one(y, distance, &[2, 1]).map(|()| distance)?,
            (None, Some(distance)) => meets_one(x, distance, &[2, 1]).map(|()| distance)?,
            (Some(left), Some(right)) if left == right && left > 2 => left,
            (Some(_), Some(_)) => return mixed(PAIRS),
        };
        Ok(Value::rows(dims.len().saturating_sub(distance), dims))
    })
}

/// Checks that a constant does not have elements of its own for each row, which are at the dimension
/// `distance` from its end; those in `apart` are no partners of it.
fn meets_one(dims: &[Size], distance: usize, apart: &[usize]) -> Result<(), crate::value::Stop> {
    if apart.contains(&distance) {
        return Ok(());
    }
    let partner = dims.len().checked_sub(distance).and_then(|index| dims.get(index));
    match partner {
        None => Ok(()),
        Some(size) if size.is(1) => Ok(()),
        Some(_) => mixed("combines rows with a constant by their number in the batch"),
    }
}

/// A sum of products, as Einstein writes it: `ij,jk->ik`.
///
/// # Errors
/// If it sums over the rows, or combines rows with each other.
pub fn einsum(values: &[&Value], equation: &str, symbols: &Symbols) -> Outcome {
    deterministic(values, || {
        let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let Some((inputs, output)) = equation.split_once("->") else {
            return unknown("has an equation without an output");
        };
        let terms: Vec<&str> = inputs.split(',').collect();
        if terms.len() != values.len() {
            return unknown("has an equation of another number of inputs");
        }
        let mut label = None;
        let mut sizes: Vec<(char, Size)> = Vec::new();
        let mut widest: Vec<Size> = Vec::new();
        for (value, term) in values.iter().zip(&terms) {
            let dims = value.known_dims()?;
            let labels = labels_of(term, dims.len())?;
            for (name, size) in labels.iter().zip(dims) {
                sizes.push((*name, size.clone()));
            }
            let dotted = labels.iter().filter(|name| is_dot(**name)).count();
            if dotted > widest.len() {
                widest = dims
                    .iter()
                    .zip(&labels)
                    .filter(|(_, l)| is_dot(**l))
                    .map(|(s, _)| s.clone())
                    .collect();
            }
            let Some(axis) = axis_of(value) else { continue };
            let its = labels.get(axis).copied();
            if label.is_some() && label != its {
                return mixed(PAIRS);
            }
            label = its;
        }
        for (value, term) in values.iter().zip(&terms) {
            let labels = labels_of(term, value.known_dims()?.len())?;
            let at = labels.iter().position(|name| Some(*name) == label);
            let size = at.and_then(|at| value.dims.as_ref()?.get(at));
            if axis_of(value).is_none() && size.is_some_and(|size| !size.is(1)) {
                return mixed("combines rows with a constant by their number in the batch");
            }
        }
        let labels =
            labels_of(output, output.chars().filter(|c| *c != '.').count() + widest.len())?;
        let rows = label.and_then(|label| labels.iter().position(|name| *name == label));
        if label.is_some() && rows.is_none() {
            return mixed(SUMS);
        }
        let size_of = |name: &char| {
            let of_rows = sizes.iter().find(|(its, size)| its == name && size.is_rows());
            let any = || sizes.iter().find(|(its, size)| its == name && !size.is(1));
            let one = || sizes.iter().find(|(its, _)| its == name);
            of_rows
                .or_else(any)
                .or_else(one)
                .map_or_else(|| symbols.fresh(), |(_, size)| size.clone())
        };
        Ok(with_rows(rows, labels.iter().map(size_of).collect()))
    })
}

/// A name for each dimension; those of an ellipsis count from its end, beyond letters.
fn labels_of(term: &str, rank: usize) -> Result<Vec<char>, crate::value::Stop> {
    let named = term.chars().filter(|c| *c != '.').count();
    let Some(dotted) = rank.checked_sub(named) else {
        return unknown("has an equation of more dimensions than an input declares");
    };
    let Some((before, behind)) = term.split_once("...") else {
        return match dotted {
            0 => Ok(term.chars().collect()),
            _ => unknown("has an equation of fewer dimensions than an input declares"),
        };
    };
    let dots = (0..dotted)
        .rev()
        .filter_map(|index| char::from_u32(DOTS.checked_add(u32::try_from(index).ok()?)?));
    Ok(before.chars().chain(dots).chain(behind.chars()).collect())
}

/// A private character: the name of the last dimension of an ellipsis.
const DOTS: u32 = 0xE000;

fn is_dot(name: char) -> bool {
    u32::from(name) >= DOTS
}

/// An operation along the dimension `axis` (softmax, cumulative sum, sort, …) that keeps the shape.
///
/// # Errors
/// If that is the dimension of the rows.
pub fn along(value: &Value, axis: i64, does: &str) -> Outcome {
    deterministic(&[value], || {
        let dims = value.known_dims()?;
        let at = dimension(axis, dims.len())?;
        if axis_of(value) == Some(at) {
            return mixed(does);
        }
        Ok(with_rows(axis_of(value), dims.to_vec()))
    })
}

/// An operation on the last `inner` dimensions of `value`, whose result has `to` in their place.
///
/// # Errors
/// If the rows are among these.
pub fn inner(value: &Value, inner: usize, to: Vec<Size>, does: &str) -> Outcome {
    deterministic(&[value], || {
        let dims = value.known_dims()?;
        let Some(outer) = dims.len().checked_sub(inner) else {
            return unknown("takes more dimensions than its input declares");
        };
        if axis_of(value).is_some_and(|axis| axis >= outer) {
            return mixed(does);
        }
        let mut sizes = dims.get(..outer).unwrap_or_default().to_vec();
        sizes.extend(to.iter().cloned());
        Ok(with_rows(axis_of(value), sizes))
    })
}

/// An operation on `value` that treats each element along dimension 0 by itself (a convolution, a pooling, a
/// change of size of images, …), with other inputs that are constant. `inner` are the other dimensions
/// of the result.
///
/// # Errors
/// If the rows are not along dimension 0, or another input is not constant.
pub fn examples(value: &Value, others: &[&Value], inner: Option<Vec<Size>>) -> Outcome {
    if let (Flow::Batches(_), true) = (&value.flow, others.iter().all(|other| other.is_constant()))
    {
        let first = value.dims.as_ref().and_then(|dims| dims.first()).cloned();
        let dims = first.zip(inner).map(|(first, inner)| [vec![first], inner].concat());
        return Ok(Value::new(value.flow.clone(), dims));
    }
    let mut all = vec![value];
    all.extend(others);
    deterministic(&all, || {
        if others.iter().any(|other| axis_of(other).is_some()) {
            return mixed("takes parameters that depend on the batch");
        }
        let axis = axis_of(value);
        if axis.is_some_and(|axis| axis != 0) {
            return mixed("takes the rows as one of the dimensions of its examples");
        }
        let first = value.dims.as_ref().and_then(|dims| dims.first()).cloned();
        let (Some(first), Some(inner)) = (first, inner) else {
            return match axis {
                Some(axis) => Ok(Value::new(Flow::Rows { axis }, None)),
                None => Ok(Value::constant()),
            };
        };
        let mut dims = vec![first];
        dims.extend(inner);
        Ok(with_rows(axis, dims))
    })
}

/// The elements of `params` along `axis` at `indices`; the first `batch` dimensions of both are the same.
///
/// # Errors
/// If rows are picked by their number in the batch.
pub fn gather(params: &Value, indices: &Value, axis: i64, batch: i64) -> Outcome {
    if let (Flow::Ragged { .. }, true) = (&indices.flow, params.is_constant()) {
        return gather_ragged(params, indices, axis);
    }
    if let Some(value) = gather_elements(params, indices) {
        return Ok(value);
    }
    if let (Flow::Rows { axis: 0 }, Flow::Counter { offset: 0 }) = (&params.flow, &indices.flow)
        && axis == 0
    {
        return item_of(params);
    }
    deterministic(&[params, indices], || {
        let (of, at) = (params.known_dims()?, indices.known_dims()?);
        let axis = dimension(axis, of.len())?;
        let batch = if batch == 0 { 0 } else { dimension(batch, at.len() + 1)? };
        let taken = at.get(batch..).unwrap_or_default();
        let mut dims = of.get(..axis).unwrap_or_default().to_vec();
        dims.extend(taken.iter().cloned());
        dims.extend(of.get(axis + 1..).unwrap_or_default().iter().cloned());
        let rows = match (axis_of(params), axis_of(indices)) {
            (None, None) => None,
            (Some(rows), Some(other)) if rows == other && rows < batch => Some(rows),
            (Some(_), Some(_)) => return mixed("takes rows of the batch by an index"),
            (Some(rows), None) if rows == axis => {
                return mixed("takes rows by their number in the batch");
            }
            (Some(rows), None) if batch > 0 && rows < batch => {
                return mixed("combines rows with a constant by their number in the batch");
            }
            (Some(rows), None) if rows < axis => Some(rows),
            (Some(rows), None) => Some(rows + taken.len() - 1),
            (None, Some(rows)) if rows < batch => {
                return mixed("combines rows with a constant by their number in the batch");
            }
            (None, Some(rows)) => Some(axis + rows - batch),
        };
        Ok(with_rows(rows, dims))
    })
}

/// Elements of a small vector.
fn gather_elements(params: &Value, indices: &Value) -> Option<Value> {
    let elements = params.elements.as_ref().filter(|_| params.rank() == Some(1))?;
    let dims = indices.dims.clone().filter(|dims| dims.len() <= 1)?;
    let element = |index: &Size| elements.get(usize::try_from(index.as_number()?).ok()?).cloned();
    let taken = indices.elements.as_ref()?.iter().map(element).collect::<Option<_>>()?;
    Some(Value::of_elements(taken, dims))
}

fn gather_ragged(params: &Value, indices: &Value, axis: i64) -> Outcome {
    let (of, at) = (params.known_dims()?, indices.known_dims()?);
    if axis != 0 {
        return mixed("works across the elements of rows of various lengths");
    }
    let mut dims = at.to_vec();
    dims.extend(of.get(1..).unwrap_or_default().iter().cloned());
    Ok(Value::new(indices.flow.clone(), Some(dims)))
}

/// The row of this iteration of a loop over rows.
///
/// # Errors
/// If `value` does not have one row for each row of the batch.
pub fn item_of(value: &Value) -> Outcome {
    let dims = value.known_dims()?;
    match dims {
        [first, rest @ ..] if *first == Size::rows() => {
            Ok(Value::new(Flow::Item, Some(rest.to_vec())))
        }
        _ => mixed("takes a part of a row by the number of a row"),
    }
}

/// The elements or slices of `params` at `indices`, whose last dimension is a place in `params`.
///
/// # Errors
/// If rows are picked by their number in the batch.
pub fn gather_nd(params: &Value, indices: &Value, batch: usize) -> Outcome {
    deterministic(&[params, indices], || {
        let (of, at) = (params.known_dims()?, indices.known_dims()?);
        let Some((depth, outer)) = at.split_last() else {
            return unknown("has a scalar as index");
        };
        let Some(depth) = depth.as_number().and_then(|depth| usize::try_from(depth).ok()) else {
            return unknown("has an index of unknown length");
        };
        let mut dims = outer.to_vec();
        dims.extend(of.get(batch + depth..).unwrap_or_default().iter().cloned());
        let rows = match (axis_of(params), axis_of(indices)) {
            (None, None) => None,
            (Some(rows), Some(other)) if rows == other && rows < batch => Some(rows),
            (None, Some(rows)) if rows < outer.len() && batch == 0 => Some(rows),
            (Some(rows), None) if batch == 0 && rows >= depth => Some(rows - depth + outer.len()),
            _ => return mixed("takes rows of the batch by an index"),
        };
        Ok(with_rows(rows, dims))
    })
}

/// For each element a vector of `depth` numbers, along a new dimension `axis`.
///
/// # Errors
/// If `depth` or the values depend on the batch.
pub fn one_hot(
    indices: &Value,
    depth: &Value,
    others: &[&Value],
    axis: i64,
    symbols: &Symbols,
) -> Outcome {
    let mut all = vec![indices, depth];
    all.extend(others);
    deterministic(&all, || {
        if !depth.is_constant() || others.iter().any(|other| !other.is_constant()) {
            return mixed("takes parameters that depend on the batch");
        }
        let mut dims = indices.known_dims()?.to_vec();
        let at = dimension(axis, dims.len() + 1)?;
        let size = depth.number("a depth").map_or_else(|_| symbols.fresh(), Size::number);
        dims.insert(at, size);
        Ok(with_rows(axis_of(indices).map(|rows| rows + usize::from(at <= rows)), dims))
    })
}

/// How the size of a dimension of images changes by a window that moves over it.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its size, with holes between its elements counted.
    pub size: i64,
    /// How far it moves.
    pub stride: i64,
    /// The padding on both sides together; `None` for as much as the result has `size / stride` elements.
    pub padding: Option<i64>,
}

impl Window {
    /// The number of places of the window.
    #[must_use]
    pub fn places(&self, size: &Size, symbols: &Symbols) -> Size {
        let (Some(size), true) = (size.as_number(), self.stride > 0) else {
            return symbols.fresh();
        };
        let places = match self.padding {
            None => size.saturating_add(self.stride - 1).checked_div(self.stride),
            Some(padding) => {
                let room = size.saturating_add(padding).saturating_sub(self.size);
                room.checked_div(self.stride).map(|more| more.saturating_add(1))
            }
        };
        places.filter(|places| *places >= 0).map_or_else(|| symbols.fresh(), Size::number)
    }
}

/// Blocks of images as images of their own, behind each other: first one of each row, then another of each.
///
/// # Errors
/// If the rows are not along dimension 0, or the blocks depend on the batch.
pub fn to_batches(value: &Value, blocks: &Value, others: &[&Value], symbols: &Symbols) -> Outcome {
    let mut all = vec![value, blocks];
    all.extend(others);
    deterministic(&all, || {
        let count = product(blocks.known_elements("sizes of blocks")?);
        let dims = value.known_dims()?;
        let is_fixed = count.is_fixed() && others.iter().all(|other| other.is_constant());
        match (axis_of(value), dims.split_first()) {
            (None, Some(_)) => Ok(Value::constant()),
            (Some(0), Some((first, rest))) if is_fixed => {
                let mut dims = vec![first.times(&count)];
                for (index, size) in rest.iter().enumerate() {
                    let around = around(others, index, symbols);
                    let whole = size.plus(&around, symbols);
                    dims.push(
                        match blocks.elements.as_ref().and_then(|blocks| blocks.get(index)) {
                            Some(block) => whole.floor_divided_by(block, symbols),
                            None => size.clone(),
                        },
                    );
                }
                Ok(Value::new(Flow::Batches(count), Some(dims)))
            }
            _ => mixed("takes blocks of rows"),
        }
    })
}

/// The padding before and behind dimension `index` of images together.
fn around(paddings: &[&Value], index: usize, symbols: &Symbols) -> Size {
    let elements = paddings.first().and_then(|paddings| paddings.elements.as_ref());
    let pair = elements.and_then(|elements| elements.get(2 * index..2 * index + 2));
    match pair {
        Some([before, behind]) => before.plus(behind, symbols),
        _ => symbols.fresh(),
    }
}

/// The images of which [`to_batches`] has made blocks.
///
/// # Errors
/// If there are other blocks.
pub fn from_batches(
    value: &Value,
    blocks: &Value,
    others: &[&Value],
    symbols: &Symbols,
) -> Outcome {
    if let Flow::Batches(count) = &value.flow {
        let is_same = product(blocks.known_elements("sizes of blocks")?) == *count;
        let dims = value.known_dims()?;
        let Some(first) = dims.first().and_then(|first| first.divided_by(count)) else {
            return unknown("takes blocks of images that are not known");
        };
        if !is_same || others.iter().any(|other| !other.is_constant()) {
            return mixed("takes blocks of rows");
        }
        let mut sizes = vec![first];
        for (index, size) in dims.iter().skip(1).enumerate() {
            sizes.push(match blocks.elements.as_ref().and_then(|blocks| blocks.get(index)) {
                Some(block) => size.times(block).minus(&around(others, index, symbols), symbols),
                None => size.clone(),
            });
        }
        return Ok(Value::rows(0, sizes));
    }
    let mut all = vec![value, blocks];
    all.extend(others);
    deterministic(&all, || mixed("takes blocks of rows"))
}

/// A result whose shape is not known: where an input has rows it must be proven otherwise.
///
/// # Errors
/// If an input has rows.
pub fn whole(inputs: &[&Value], does: &str) -> Outcome {
    match plain_flow(inputs)? {
        Some(flow) => Ok(Value::new(flow, None)),
        None => mixed(does),
    }
}
