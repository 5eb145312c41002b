//! Parts of tensors, as `Slice` and `StridedSlice` take them.

use tensorserve_rows::compute::{self};
use tensorserve_rows::plain::{deterministic, elementwise};
use tensorserve_rows::slices::{self, SliceOf};
use tensorserve_rows::{Flow, Outcome, Size, Stop, Value, mixed, ragged, unknown};

use super::call::Call;

type Outcomes = Result<Vec<Value>, Stop>;

pub(super) fn unpack(call: &Call) -> Outcomes {
    let count = usize::try_from(call.int("num").unwrap_or(0)).unwrap_or(0);
    let (value, axis) = (call.input(0)?, call.int("axis").unwrap_or(0));
    if let (Some(elements), Some(1)) = (&value.elements, value.rank()) {
        return Ok(elements.iter().map(|element| Value::scalar(element.clone())).collect());
    }
    let part = slices::unpack(value, axis)?;
    Ok(vec![part; count.min(1 << 16)])
}

pub(super) fn split(call: &Call) -> Outcomes {
    let count = usize::try_from(call.int("num_split").unwrap_or(0)).unwrap_or(0).min(1 << 16);
    let axis = call.input(0)?.number("a dimension")?;
    slices::split(call.input(1)?, axis, count, None, call.symbols())
}

pub(super) fn split_sizes(call: &Call) -> Outcomes {
    let sizes = call.input(1)?.numbers("sizes of parts")?;
    let axis = call.input(2)?.number("a dimension")?;
    slices::split(call.input(0)?, axis, sizes.len(), Some(&sizes), call.symbols())
}

/// `Slice`: from `begin`, of the sizes `size`, -1 for all that follow.
pub(super) fn slice(call: &Call) -> Outcome {
    let (value, begin, size) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (Some(begins), Some(lengths)) = (&begin.elements, &size.elements) else {
        return deterministic(&call.all(), || {
            unknown("has limits that are not known before a request")
        });
    };
    if let (Some(elements), [start], [length]) =
        (&value.elements, begins.as_slice(), lengths.as_slice())
        && value.rank() == Some(1)
        && let (Some(start), Some(length)) = (start.as_number(), length.as_number())
    {
        let end = (length >= 0).then(|| start.saturating_add(length));
        if let Some(part) = slices::slice_elements(elements, Some(start), end, 1, false) {
            return Ok(part);
        }
    }
    let dims = value.known_dims()?;
    let mut parts = Vec::with_capacity(dims.len());
    for ((start, length), whole) in begins.iter().zip(lengths).zip(dims) {
        parts.push(match (start.is(0), length.as_number()) {
            (true, Some(-1)) => SliceOf::All,
            (true, _) if length == whole && *whole != Size::Other => SliceOf::All,
            (_, Some(length)) if start.is_fixed() => SliceOf::Part((length >= 0).then_some(length)),
            (_, None) if start.is_fixed() && length.is_fixed() => SliceOf::Part(None),
            _ => return mixed("takes a part whose limits depend on the number of rows"),
        });
    }
    slices::slice(value, &parts, call.symbols())
}

/// `StridedSlice`: begin, end and step for each dimension, and bits that change their meaning.
pub(super) fn strided_slice(call: &Call) -> Outcome {
    let [value, begin, end, strides] = call.inputs.as_slice() else {
        return unknown("has another number of inputs than expected");
    };
    let mask = |name: &str| call.int(name).unwrap_or(0);
    let spec = SliceSpec {
        begin,
        end,
        strides,
        begin_mask: mask("begin_mask"),
        end_mask: mask("end_mask"),
        ellipsis_mask: mask("ellipsis_mask"),
        new_axis_mask: mask("new_axis_mask"),
        shrink_mask: mask("shrink_axis_mask"),
    };
    if let (Flow::Rows { axis: 0 }, Flow::Counter { offset: 0 }) = (&value.flow, &begin.flow)
        && spec.shrink_mask & 1 == 1
    {
        return compute::item_of(value);
    }
    if let Some(part) = spec.of_elements(value) {
        return Ok(part);
    }
    if let (Flow::RowPlaces { partition }, Some(column)) = (&value.flow, spec.column()) {
        return Ok(ragged::column_of_places(*partition, column));
    }
    let is_known = [begin, end, strides].iter().all(|limit| limit.elements.is_some());
    if !is_known && [begin, end, strides].iter().any(|limit| !limit.is_constant()) {
        return deterministic(&call.all(), || {
            mixed("takes a part whose limits depend on the batch")
        });
    }
    let parts = spec.parts(value)?;
    slices::slice(value, &parts, call.symbols())
}

struct SliceSpec<'v> {
    begin: &'v Value,
    end: &'v Value,
    strides: &'v Value,
    begin_mask: i64,
    end_mask: i64,
    ellipsis_mask: i64,
    new_axis_mask: i64,
    shrink_mask: i64,
}

fn has_bit(mask: i64, index: usize) -> bool {
    index < 63 && mask >> index & 1 == 1
}

impl SliceSpec<'_> {
    fn len(&self) -> Option<usize> {
        let length = self.begin.dims.as_deref()?.first()?.as_number()?;
        usize::try_from(length).ok().filter(|length| *length <= 32)
    }

    fn element(limit: &Value, index: usize) -> Option<&Size> {
        limit.elements.as_ref()?.get(index)
    }

    fn number(limit: &Value, index: usize) -> Option<i64> {
        Self::element(limit, index)?.as_number()
    }

    /// A part of a small vector.
    fn of_elements(&self, value: &Value) -> Option<Value> {
        let elements = value.elements.as_ref().filter(|_| value.rank() == Some(1))?;
        if self.len() != Some(1) || self.ellipsis_mask != 0 || self.new_axis_mask != 0 {
            return None;
        }
        let limit = |limit: &Value, mask: i64| match has_bit(mask, 0) {
            true => Some(None),
            false => Self::number(limit, 0).map(Some),
        };
        let (begin, end) = (limit(self.begin, self.begin_mask)?, limit(self.end, self.end_mask)?);
        let is_element = has_bit(self.shrink_mask, 0);
        let begin = if is_element { Some(Self::number(self.begin, 0)?) } else { begin };
        slices::slice_elements(elements, begin, end, Self::number(self.strides, 0)?, is_element)
    }

    /// The column that `[:, column]` takes.
    fn column(&self) -> Option<i64> {
        let takes_all = has_bit(self.begin_mask, 0) && has_bit(self.end_mask, 0);
        let takes_one = has_bit(self.shrink_mask, 1) && !has_bit(self.shrink_mask, 0);
        let is_simple = self.ellipsis_mask == 0 && self.new_axis_mask == 0;
        (self.len() == Some(2) && takes_all && takes_one && is_simple)
            .then(|| Self::number(self.begin, 1))?
    }

    fn parts(&self, value: &Value) -> Result<Vec<SliceOf>, Stop> {
        let Some(length) = self.len() else {
            return unknown("has limits that are not known before a request");
        };
        let dims = value.known_dims()?;
        let ellipsis = (0..length).find(|index| has_bit(self.ellipsis_mask, *index));
        let taking = (0..length)
            .filter(|index| Some(*index) != ellipsis && !has_bit(self.new_axis_mask, *index));
        let skipped = dims.len().saturating_sub(taking.count());
        let mut parts = Vec::new();
        let mut dimension = 0;
        for index in 0..length {
            if Some(index) == ellipsis {
                parts.extend((0..skipped).map(|_| SliceOf::All));
                dimension += skipped;
                continue;
            }
            if has_bit(self.new_axis_mask, index) {
                parts.push(SliceOf::New);
                continue;
            }
            let Some(whole) = dims.get(dimension) else {
                return unknown("takes more dimensions than its input declares");
            };
            parts.push(self.part(index, whole)?);
            dimension += 1;
        }
        Ok(parts)
    }

    fn part(&self, index: usize, whole: &Size) -> Result<SliceOf, Stop> {
        let (begin, end) = (Self::element(self.begin, index), Self::element(self.end, index));
        let is_free =
            |size: Option<&Size>, mask| has_bit(mask, index) || size.is_none_or(Size::is_fixed);
        if has_bit(self.shrink_mask, index) {
            return match is_free(begin, 0) {
                true => Ok(SliceOf::Element),
                false => mixed("takes a part whose limits depend on the number of rows"),
            };
        }
        let step = Self::number(self.strides, index);
        let from_start = has_bit(self.begin_mask, index) || begin.is_some_and(|size| size.is(0));
        let reaches = end == Some(whole) && *whole != Size::Other;
        let to_end = has_bit(self.end_mask, index) || reaches;
        if from_start && to_end && step == Some(1) {
            return Ok(SliceOf::All);
        }
        if !is_free(begin, self.begin_mask) || !is_free(end, self.end_mask) {
            return mixed("takes a part whose limits depend on the number of rows");
        }
        let first =
            if has_bit(self.begin_mask, index) { Some(0) } else { Self::number(self.begin, index) };
        let last = match has_bit(self.end_mask, index) {
            true => whole.as_number(),
            false => Self::number(self.end, index),
        };
        Ok(SliceOf::Part(part_size(first, last, step, whole.as_number())))
    }
}

/// The number of elements from `first` to `last` in steps of one.
fn part_size(
    first: Option<i64>,
    last: Option<i64>,
    step: Option<i64>,
    whole: Option<i64>,
) -> Option<i64> {
    let (first, last, whole) = (first?, last?, whole?);
    let absolute = |index: i64| (if index < 0 { index + whole } else { index }).clamp(0, whole);
    (step? == 1).then(|| (absolute(last) - absolute(first)).max(0))
}

pub(super) fn pad(call: &Call) -> Outcome {
    let value = slices::pad(call.input(0)?, call.input(1)?, call.symbols())?;
    match call.inputs.get(2) {
        Some(filler) => elementwise(&[&value, filler], call.symbols()),
        None => Ok(value),
    }
}
