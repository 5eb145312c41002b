//! Parts of tensors from a begin to an end, as `Slice` and `StridedSlice` of TensorFlow take them.

use crate::plain::deterministic;
use crate::size::{Size, Symbols};
use crate::slices::{self, SliceOf};
use crate::value::{Flow, Outcome, Stop, Value, mixed, unknown};
use crate::{compute, ragged};

/// The part of `value` from `begin`, of the sizes `size`, -1 for all that follow.
///
/// # Errors
/// If it takes some of the rows.
pub fn slice(value: &Value, begin: &Value, size: &Value, symbols: &Symbols) -> Outcome {
    let (Some(begins), Some(lengths)) = (&begin.elements, &size.elements) else {
        return deterministic(&[value, begin, size], || {
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
    slices::slice(value, &parts, symbols)
}

/// Bits, one for each dimension of a slice, that change what its begin and end mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masks {
    /// From the first element.
    pub begin: i64,
    /// To the last element.
    pub end: i64,
    /// All dimensions that are left, as they are.
    pub ellipsis: i64,
    /// A new dimension of size 1.
    pub new_axis: i64,
    /// One element, without its dimension.
    pub shrink_axis: i64,
}

/// The part of the first of `inputs` from the second to the third in steps of the fourth.
///
/// # Errors
/// If it takes some of the rows.
pub fn strided_slice(inputs: &[Value], masks: Masks, symbols: &Symbols) -> Outcome {
    let [value, begin, end, strides] = inputs else {
        return unknown("has another number of inputs than expected");
    };
    let spec = SliceSpec { begin, end, strides, masks };
    if let (Flow::Rows { axis: 0 }, Flow::Counter { offset: 0 }) = (&value.flow, &begin.flow)
        && spec.masks.shrink_axis & 1 == 1
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
        return deterministic(&[value, begin, end, strides], || {
            mixed("takes a part whose limits depend on the batch")
        });
    }
    let parts = spec.parts(value)?;
    slices::slice(value, &parts, symbols)
}

struct SliceSpec<'v> {
    begin: &'v Value,
    end: &'v Value,
    strides: &'v Value,
    masks: Masks,
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
        if self.len() != Some(1) || self.masks.ellipsis != 0 || self.masks.new_axis != 0 {
            return None;
        }
        let limit = |limit: &Value, mask: i64| match has_bit(mask, 0) {
            true => Some(None),
            false => Self::number(limit, 0).map(Some),
        };
        let (begin, end) = (limit(self.begin, self.masks.begin)?, limit(self.end, self.masks.end)?);
        let is_element = has_bit(self.masks.shrink_axis, 0);
        let begin = if is_element { Some(Self::number(self.begin, 0)?) } else { begin };
        slices::slice_elements(elements, begin, end, Self::number(self.strides, 0)?, is_element)
    }

    /// The column that `[:, column]` takes.
    fn column(&self) -> Option<i64> {
        let takes_all = has_bit(self.masks.begin, 0) && has_bit(self.masks.end, 0);
        let takes_one = has_bit(self.masks.shrink_axis, 1) && !has_bit(self.masks.shrink_axis, 0);
        let is_simple = self.masks.ellipsis == 0 && self.masks.new_axis == 0;
        (self.len() == Some(2) && takes_all && takes_one && is_simple)
            .then(|| Self::number(self.begin, 1))?
    }

    fn parts(&self, value: &Value) -> Result<Vec<SliceOf>, Stop> {
        let Some(length) = self.len() else {
            return unknown("has limits that are not known before a request");
        };
        let dims = value.known_dims()?;
        let ellipsis = (0..length).find(|index| has_bit(self.masks.ellipsis, *index));
        let taking = (0..length)
            .filter(|index| Some(*index) != ellipsis && !has_bit(self.masks.new_axis, *index));
        let skipped = dims.len().saturating_sub(taking.count());
        let mut parts = Vec::new();
        let mut dimension = 0;
        for index in 0..length {
            if Some(index) == ellipsis {
                parts.extend((0..skipped).map(|_| SliceOf::All));
                dimension += skipped;
                continue;
            }
            if has_bit(self.masks.new_axis, index) {
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
        if has_bit(self.masks.shrink_axis, index) {
            return match is_free(begin, 0) {
                true => Ok(SliceOf::Element),
                false => mixed("takes a part whose limits depend on the number of rows"),
            };
        }
        let step = Self::number(self.strides, index);
        let from_start = has_bit(self.masks.begin, index) || begin.is_some_and(|size| size.is(0));
        let reaches = end == Some(whole) && *whole != Size::Other;
        let to_end = has_bit(self.masks.end, index) || reaches;
        if from_start && to_end && step == Some(1) {
            return Ok(SliceOf::All);
        }
        if !is_free(begin, self.masks.begin) || !is_free(end, self.masks.end) {
            return mixed("takes a part whose limits depend on the number of rows");
        }
        let first = if has_bit(self.masks.begin, index) {
            Some(0)
        } else {
            Self::number(self.begin, index)
        };
        let last = match has_bit(self.masks.end, index) {
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
