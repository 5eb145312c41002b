//! Operations that change a shape, and the shapes that are computed for them.

use crate::plain::{axis_of, deterministic, dimension, elementwise, plain_flow, with_rows};
use crate::size::{Size, Symbols, product};
use crate::value::{Flow, MAX_ELEMENTS, Outcome, Stop, Value, mixed, unknown};

/// The shape of `value`, a vector.
///
/// # Errors
/// If nothing is known of it.
pub fn shape_of(value: &Value) -> Outcome {
    let Some(dims) = &value.dims else {
        let flow = plain_flow(&[value])?;
        return match flow {
            Some(flow) => Ok(Value::new(flow, None)),
            None => unknown("takes the shape of a tensor whose rank is not known"),
        };
    };
    match value.flow {
        // The sizes of an item may come from the item.
        Flow::Item => {
            let length = i64::try_from(dims.len()).unwrap_or(i64::MAX);
            Ok(Value::new(Flow::Item, Some(vec![Size::number(length)])))
        }
        _ => Ok(Value::vector(dims.clone())),
    }
}

/// The number of dimensions of `value`.
///
/// # Errors
/// If it is not known.
pub fn rank_of(value: &Value) -> Outcome {
    let rank = i64::try_from(value.known_dims()?.len()).unwrap_or(i64::MAX);
    Ok(Value::scalar(Size::number(rank)))
}

/// The number of elements of `value`.
///
/// # Errors
/// If nothing is known of it.
pub fn size_of(value: &Value) -> Outcome {
    match (&value.flow, &value.dims) {
        (Flow::Item, _) => Ok(Value::new(Flow::Item, Some(Vec::new()))),
        (_, Some(dims)) => Ok(Value::scalar(product(dims))),
        _ => deterministic(&[value], || {
            unknown("takes the size of a tensor whose rank is not known")
        }),
    }
}

/// The elements of `value` in the shape `shape`.
///
/// # Errors
/// If a row does not keep a place of its own.
pub fn reshape(value: &Value, shape: &Value, symbols: &Symbols) -> Outcome {
    if matches!(value.flow, Flow::RowNumbers { .. } | Flow::Ragged { .. }) {
        return reshape_ragged(value, shape);
    }
    with_sizes(value, shape, || {
        let new = shape.known_elements("sizes of a shape")?;
        reshape_to(value, new, symbols)
    })
}

/// [`deterministic`] for an operation on `value` whose other input is `sizes`. Known sizes have no part in
/// where the elements of rows come from.
fn with_sizes(value: &Value, sizes: &Value, compute: impl FnOnce() -> Outcome) -> Outcome {
    match axis_of(value).is_some() && sizes.elements.is_some() {
        true => compute(),
        false => deterministic(&[value, sizes], compute),
    }
}

/// Of elements of rows of various lengths, dimension 0 stays.
fn reshape_ragged(value: &Value, shape: &Value) -> Outcome {
    let dims = value.known_dims()?;
    let new = shape.known_elements("sizes of a shape")?;
    match (dims, new) {
        ([_], [only]) if only.is(-1) => Ok(value.clone()),
        _ => mixed("changes the shape of elements of rows of various lengths"),
    }
}

fn reshape_to(value: &Value, new: &[Size], symbols: &Symbols) -> Outcome {
    let Some(axis) = axis_of(value) else {
        return reshape_plain(value, new, symbols);
    };
    let dims = value.known_dims()?;
    let (before, from) = dims.split_at_checked(axis).unwrap_or((dims, &[]));
    let Some(target) = place_of_rows(new) else {
        return mixed("has a fixed size in the place of the rows");
    };
    let (new_before, rest) = new.split_at_checked(target).unwrap_or((new, &[]));
    if has_wildcard(new_before) || product(before) != product(new_before) {
        return mixed("moves the rows to another dimension by a change of shape");
    }
    let all = product(from);
    let mut sizes = new.to_vec();
    let (first, others) = match rest {
        [first, others @ ..] => (first, others),
        [] => return mixed("has a fixed size in the place of the rows"),
    };
    if first.is_rows() {
        if others.iter().any(|size| !size.is_fixed()) {
            return mixed("has a size that depends on the number of rows");
        }
        fill_wildcard(&mut sizes, &all, rest, symbols);
        return Ok(Value::rows(target, sizes));
    }
    // The size of the rows is -1.
    let Some(rows) = all.divided_by(&product(others)).filter(Size::is_rows) else {
        return unknown("has a shape that may divide a row into parts of two rows");
    };
    if let Some(size) = sizes.get_mut(target) {
        *size = rows;
    }
    Ok(Value::rows(target, sizes))
}

/// The only dimension whose size is a multiple of the number of rows, or else the one whose size is -1.
fn place_of_rows(new: &[Size]) -> Option<usize> {
    let rows = new.iter().position(Size::is_rows);
    rows.or_else(|| new.iter().position(|size| size.is(-1)))
}

fn has_wildcard(sizes: &[Size]) -> bool {
    sizes.iter().any(|size| size.is(-1))
}

/// Replaces -1 by what the other sizes leave.
fn fill_wildcard(sizes: &mut [Size], all: &Size, rest: &[Size], symbols: &Symbols) {
    let known = product(rest.iter().filter(|size| !size.is(-1)));
    let left = all.divided_by(&known).filter(Size::is_fixed).unwrap_or_else(|| symbols.fresh());
    for size in sizes.iter_mut().filter(|size| size.is(-1)) {
        *size = left.clone();
    }
}

fn reshape_plain(value: &Value, new: &[Size], symbols: &Symbols) -> Outcome {
    let mut sizes = new.to_vec();
    let all = value.dims.as_ref().map_or(Size::Other, product);
    fill_wildcard(&mut sizes, &all, new, symbols);
    let keeps = sizes.len() <= 1;
    match &value.elements {
        Some(elements) if keeps => Ok(Value::of_elements(elements.clone(), sizes)),
        _ => Ok(Value::new(Flow::Constant, Some(sizes))),
    }
}

/// The dimensions of `value` in the order of `perm`.
///
/// # Errors
/// If the order is not known.
pub fn transpose(value: &Value, perm: &Value) -> Outcome {
    deterministic(&[value, perm], || {
        let dims = value.known_dims()?;
        let perm = perm.numbers("an order of dimensions")?;
        let mut sizes = Vec::with_capacity(dims.len());
        let mut rows = None;
        for (to, from) in perm.iter().enumerate() {
            let from = dimension(*from, dims.len())?;
            sizes.extend(dims.get(from).cloned());
            if axis_of(value) == Some(from) {
                rows = Some(to);
            }
        }
        if axis_of(value).is_some() && rows.is_none() {
            return unknown("leaves out the dimension of the rows");
        }
        Ok(with_rows(rows, sizes))
    })
}

/// A dimension of size 1 at `axis`.
///
/// # Errors
/// If the place is not known.
pub fn expand_dims(value: &Value, axis: i64) -> Outcome {
    if let (Some(elements), Some([])) = (&value.elements, value.dims.as_deref())
        && !matches!(value.flow, Flow::Item)
        && matches!(value.flow, Flow::Constant | Flow::RowCount)
    {
        return Ok(Value::vector(elements.clone()));
    }
    if let Flow::Ragged { .. } | Flow::RowNumbers { .. } = value.flow {
        let mut dims = value.known_dims()?.to_vec();
        let at = dimension(axis, dims.len() + 1)?;
        if at == 0 {
            return mixed("works across the elements of rows of various lengths");
        }
        dims.insert(at, Size::number(1));
        return Ok(Value::new(value.flow.clone(), Some(dims)));
    }
    deterministic(&[value], || {
        let mut dims = value.known_dims()?.to_vec();
        let at = dimension(axis, dims.len() + 1)?;
        dims.insert(at, Size::number(1));
        Ok(with_rows(axis_of(value).map(|rows| rows + usize::from(at <= rows)), dims))
    })
}

/// Without the dimensions `axes`, whose size is 1; without all of that size if there are no `axes`.
///
/// # Errors
/// If the rows may be among them.
pub fn squeeze(value: &Value, axes: &[i64]) -> Outcome {
    if let (Some(elements), Flow::Constant | Flow::RowCount) = (&value.elements, &value.flow)
        && elements.len() == 1
        && value.rank() == Some(1)
    {
        return Ok(Value::of_elements(elements.clone(), Vec::new()));
    }
    deterministic(&[value], || {
        let dims = value.known_dims()?;
        let rows = axis_of(value);
        let mut removed = Vec::new();
        for axis in axes {
            removed.push(dimension(*axis, dims.len())?);
        }
        if axes.is_empty() {
            if rows.is_some() {
                return mixed("removes the dimension of the rows where there is one row");
            }
            if dims.iter().any(|size| size.as_number().is_none()) {
                return unknown("removes dimensions whose size is not known");
            }
            removed = (0..dims.len()).filter(|&i| dims.get(i).is_some_and(|d| d.is(1))).collect();
        }
        without(dims, rows, &removed, "removes the dimension of the rows")
    })
}

/// `dims` without those that are `removed`.
pub(crate) fn without(dims: &[Size], rows: Option<usize>, removed: &[usize], why: &str) -> Outcome {
    if rows.is_some_and(|rows| removed.contains(&rows)) {
        return mixed(why);
    }
    let kept = dims.iter().enumerate().filter(|(index, _)| !removed.contains(index));
    let sizes = kept.map(|(_, size)| size.clone()).collect();
    let axis = rows.map(|rows| rows - removed.iter().filter(|&&it| it < rows).count());
    Ok(with_rows(axis, sizes))
}

/// A reduction (sum, mean, maximum, …) over `axes`; `None` for all.
///
/// # Errors
/// If it reduces over the rows.
pub fn reduce(value: &Value, axes: Option<&[i64]>, keep_dims: bool, does: &str) -> Outcome {
    deterministic(&[value], || {
        let Some(axes) = axes else {
            return match axis_of(value) {
                Some(_) => mixed(does),
                None => Ok(Value::new(Flow::Constant, Some(Vec::new()))),
            };
        };
        let dims = value.known_dims()?;
        let mut reduced = Vec::new();
        for axis in axes {
            reduced.push(dimension(*axis, dims.len())?);
        }
        let rows = axis_of(value);
        if !keep_dims {
            return without(dims, rows, &reduced, does);
        }
        if rows.is_some_and(|rows| reduced.contains(&rows)) {
            return mixed(does);
        }
        let size = |(index, size): (usize, &Size)| match reduced.contains(&index) {
            true => Size::number(1),
            false => size.clone(),
        };
        Ok(with_rows(rows, dims.iter().enumerate().map(size).collect()))
    })
}

/// The product or sum of a small vector of sizes, or a reduction of anything else.
///
/// # Errors
/// As [`reduce`].
pub fn reduce_sizes(
    value: &Value,
    axes: Option<&[i64]>,
    keep_dims: bool,
    does: &str,
    fold: impl Fn(&Size, &Size) -> Size,
) -> Outcome {
    let is_vector = value.rank() == Some(1) && axes != Some(&[]);
    if let (Some(elements), Flow::Constant | Flow::RowCount, true) =
        (&value.elements, &value.flow, is_vector)
        && let [first, rest @ ..] = elements.as_slice()
    {
        let result = rest.iter().fold(first.clone(), |all, size| fold(&all, size));
        return Ok(match keep_dims {
            true => Value::vector(vec![result]),
            false => Value::scalar(result),
        });
    }
    reduce(value, axes, keep_dims, does)
}

/// Tensors behind each other along `axis`.
///
/// # Errors
/// If that is the dimension of rows, or they have their rows in different dimensions.
pub fn concat(values: &[&Value], axis: i64, symbols: &Symbols) -> Outcome {
    if let Some(value) = concat_ragged(values) {
        return value;
    }
    deterministic(values, || {
        let all_known = values.iter().all(|value| value.elements.is_some());
        if all_known && values.iter().all(|value| value.rank() == Some(1)) {
            let elements = values.iter().filter_map(|value| value.elements.as_ref());
            return Ok(Value::vector(elements.flatten().cloned().collect()));
        }
        let rows = common_axis(values)?;
        let Some(first) = values.first() else {
            return unknown("has no inputs");
        };
        let mut dims = first.known_dims()?.to_vec();
        let at = dimension(axis, dims.len())?;
        if rows == Some(at) {
            return mixed("puts the rows of one tensor behind those of another");
        }
        let mut size = Size::number(0);
        for value in values {
            let its = value.known_dims()?.get(at).cloned().unwrap_or(Size::Other);
            size = size.plus(&its, symbols);
            let rows_of_it = rows.and_then(|rows| value.dims.as_ref()?.get(rows).cloned());
            if let (Some(rows), Some(found)) = (rows, rows_of_it) {
                set(&mut dims, rows, found);
            }
        }
        set(&mut dims, at, size);
        Ok(with_rows(rows, dims))
    })
}

pub(crate) fn set(dims: &mut [Size], index: usize, size: Size) {
    if let Some(place) = dims.get_mut(index) {
        *place = size;
    }
}

/// 0, and then the ends of rows of various lengths.
fn concat_ragged(values: &[&Value]) -> Option<Outcome> {
    if values
        .iter()
        .any(|value| matches!(value.flow, Flow::Ragged { .. } | Flow::RowNumbers { .. }))
    {
        return Some(concat_elements(values));
    }
    let [zero, ends] = values else { return None };
    let Flow::RowEnds { partition } = ends.flow else { return None };
    let is_zero = matches!(zero.elements.as_deref(), Some([only]) if only.is(0));
    is_zero.then(|| Ok(Value::new(Flow::RowSplits { partition }, Some(vec![Size::Other]))))
}

/// Elements of the same rows of various lengths behind each other, not along dimension 0: not known.
fn concat_elements(_values: &[&Value]) -> Outcome {
    mixed("works across the elements of rows of various lengths")
}

/// The dimension of the rows of all of `values`.
fn common_axis(values: &[&Value]) -> Result<Option<usize>, Stop> {
    let mut found = None;
    let mut has_plain = false;
    for value in values {
        match axis_of(value) {
            None => has_plain = true,
            Some(axis) if found.is_some_and(|found| found != axis) => {
                return mixed("combines rows with other rows of the batch");
            }
            Some(axis) => found = Some(axis),
        }
    }
    if found.is_some() && has_plain {
        return mixed("combines rows with a constant by their number in the batch");
    }
    Ok(found)
}

/// Small vectors of equal length as a matrix.
fn pack_vectors(values: &[&Value]) -> Option<Value> {
    let length = values.first()?.elements.as_ref()?.len();
    let mut elements = Vec::new();
    for value in values {
        let its = value.elements.as_ref().filter(|its| its.len() == length)?;
        elements.extend(its.iter().cloned());
    }
    let is_small = values.iter().all(|value| value.rank() == Some(1));
    let size = |count: usize| i64::try_from(count).ok().map(Size::number);
    let dims = vec![size(values.len())?, size(length)?];
    (is_small && elements.len() <= MAX_ELEMENTS).then(|| Value::of_elements(elements, dims))
}

/// Tensors of equal shape along a new dimension `axis`.
///
/// # Errors
/// If they have their rows in different dimensions.
pub fn pack(values: &[&Value], axis: i64) -> Outcome {
    deterministic(values, || {
        let scalars = values.iter().all(|value| value.rank() == Some(0));
        if scalars && values.iter().all(|value| value.elements.is_some()) {
            let elements = values.iter().filter_map(|value| value.elements.as_ref());
            return Ok(Value::vector(elements.flatten().cloned().collect()));
        }
        if let (0, Some(matrix)) = (axis, pack_vectors(values)) {
            return Ok(matrix);
        }
        let rows = common_axis(values)?;
        let Some(first) = values.first() else {
            return unknown("has no inputs");
        };
        let mut dims = first.known_dims()?.to_vec();
        let at = dimension(axis, dims.len() + 1)?;
        dims.insert(at, Size::number(i64::try_from(values.len()).unwrap_or(i64::MAX)));
        Ok(with_rows(rows.map(|rows| rows + usize::from(at <= rows)), dims))
    })
}

/// `value` repeated along each dimension.
///
/// # Errors
/// If its rows are repeated.
pub fn tile(value: &Value, multiples: &Value) -> Outcome {
    with_sizes(value, multiples, || {
        let dims = value.known_dims()?;
        let multiples = multiples.known_elements("numbers of repetitions")?;
        let mut rows = axis_of(value);
        let mut sizes = Vec::with_capacity(dims.len());
        for (index, (size, times)) in dims.iter().zip(multiples).enumerate() {
            sizes.push(size.times(times));
            if axis_of(value) == Some(index) && !times.is(1) {
                return mixed("repeats the rows of the batch");
            }
            if times.is_rows() {
                if rows.is_some() || !size.is_fixed() {
                    return mixed("repeats the rows of the batch");
                }
                rows = Some(index);
            }
        }
        if sizes.contains(&Size::Other) {
            return mixed("has a size that depends on the number of rows");
        }
        Ok(with_rows(rows, sizes))
    })
}

/// `value` in a larger shape, as NumPy broadcasts it.
///
/// # Errors
/// If its rows would be repeated.
pub fn broadcast_to(value: &Value, shape: &Value, symbols: &Symbols) -> Outcome {
    elementwise(&[value, &fill(shape)?], symbols)
}

/// A tensor of one value in the shape `shape`: as many rows as that has.
///
/// # Errors
/// If the shape depends on the number of rows in another way.
pub fn fill(shape: &Value) -> Outcome {
    let Some(elements) = &shape.elements else {
        return match plain_flow(&[shape])? {
            Some(Flow::Constant) => Ok(Value::constant()),
            Some(Flow::Item) => Ok(Value::new(Flow::Item, None)),
            _ => mixed("has a shape that depends on the batch"),
        };
    };
    let mut rows = None;
    for (index, size) in elements.iter().enumerate() {
        if size.is_fixed() {
            continue;
        }
        if rows.is_some() || !size.is_rows() {
            return mixed("has a shape that depends on the batch");
        }
        rows = Some(index);
    }
    Ok(with_rows(rows, elements.clone()))
}

/// Numbers from a start to a limit.
///
/// # Errors
/// If nothing is known of them.
pub fn range(start: &Value, limit: &Value, step: &Value, symbols: &Symbols) -> Outcome {
    deterministic(&[start, limit, step], || {
        let whole = (start.number("a start"), limit.number("a limit"), step.number("a step"));
        if let (Ok(start), Ok(limit), Ok(step)) = whole
            && step > 0
            && limit.saturating_sub(start).checked_div(step).is_some_and(|count| count <= 64)
        {
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            return Ok(Value::vector((start..limit).step_by(step).map(Size::number).collect()));
        }
        let length =
            match (limit.elements.as_deref(), start.number("a start"), step.number("a step")) {
                (Some([limit]), Ok(0), Ok(1)) => limit.clone(),
                _ if limit.is_constant() && start.is_constant() && step.is_constant() => {
                    symbols.fresh()
                }
                _ => return unknown("has a length that is not known before a request"),
            };
        Ok(Value::new(Flow::Constant, Some(vec![length])))
    })
}
