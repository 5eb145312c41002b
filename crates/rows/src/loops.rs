//! Loops: those that run equally often for every batch, and those that run once for each row.

use crate::size::{Size, Symbols};
use crate::value::{Flow, Stop, Value, mixed, unknown};

/// The most times that the body of a loop is looked at until what is known of its state stays the same.
const MAX_ROUNDS: usize = 12;

/// Which of `state` can be counters: integers that are 0 before the loop.
#[must_use]
pub fn counters(state: &[Value]) -> Vec<bool> {
    let is_zero = |value: &Value| {
        let zero = value.elements.as_deref().is_some_and(|its| matches!(its, [only] if only.is(0)));
        value.is_constant() && value.rank() == Some(0) && zero
    };
    state.iter().map(is_zero).collect()
}

/// `state` with counters in the place of those that may be some.
#[must_use]
pub fn with_counters(state: &[Value], counters: &[bool]) -> Vec<Value> {
    let value = |(value, is_counter): (&Value, &bool)| match is_counter {
        true => Value::new(Flow::Counter { offset: 0 }, Some(Vec::new())),
        false => value.clone(),
    };
    state.iter().zip(counters).map(value).collect()
}

/// The state after a loop that runs equally often for every batch.
///
/// # Errors
/// If a value of the state changes its kind from one iteration to the next, and those of `body`.
pub fn repeated(
    initial: &[Value],
    symbols: &Symbols,
    mut body: impl FnMut(&[Value]) -> Result<Vec<Value>, Stop>,
) -> Result<Vec<Value>, Stop> {
    let mut state = initial.to_vec();
    for round in 0..MAX_ROUNDS {
        let result = body(&tagged(&state))?;
        let next = joined(&state, &result, symbols, round + 4 >= MAX_ROUNDS)?;
        if next == state {
            return Ok(state);
        }
        state = next;
    }
    unknown("runs a loop whose state is not known")
}

/// `state` after one more iteration. Sizes that change are given up if `gives_up`.
fn joined(
    state: &[Value],
    result: &[Value],
    symbols: &Symbols,
    gives_up: bool,
) -> Result<Vec<Value>, Stop> {
    if state.len() != result.len() {
        return unknown("runs a loop whose state changes its length");
    }
    let mut next = Vec::with_capacity(state.len());
    for (index, (before, after)) in state.iter().zip(result).enumerate() {
        if after.origin == Some(index) {
            next.push(before.clone());
            continue;
        }
        let mut before = before.clone();
        before.elements = None;
        let mut after = after.clone();
        (after.elements, after.origin) = (None, None);
        if gives_up
            && before.dims != after.dims
            && matches!(before.flow, Flow::Constant | Flow::Item)
        {
            (before.dims, after.dims) = (None, None);
        }
        match before.joined(&after, symbols) {
            Some(value) => next.push(value),
            None => {
                return mixed("carries values of different rows from one iteration to the next");
            }
        }
    }
    Ok(next)
}

fn tagged(state: &[Value]) -> Vec<Value> {
    let tag = |(index, value): (usize, &Value)| Value { origin: Some(index), ..value.clone() };
    state.iter().enumerate().map(tag).collect()
}

/// The state after a loop that runs once for each row, as `map_fn` of TensorFlow does: a counter goes
/// through the rows, lists with an element for each row are read and written there, and nothing else
/// changes.
///
/// # Errors
/// If something else is carried from one row to the next, and those of `body`.
pub fn over_rows(
    initial: &[Value],
    is_counter: &[bool],
    symbols: &Symbols,
    mut body: impl FnMut(&[Value]) -> Result<Vec<Value>, Stop>,
) -> Result<Vec<Value>, Stop> {
    let mut state = with_counters(initial, is_counter);
    for _ in 0..MAX_ROUNDS {
        let result = body(&tagged(&state))?;
        if state.len() != result.len() {
            return unknown("runs a loop whose state changes its length");
        }
        let mut next = Vec::with_capacity(state.len());
        for (index, (before, after)) in state.iter().zip(&result).enumerate() {
            next.push(after_row(index, before, after, symbols)?);
        }
        if next == state {
            return Ok(state.into_iter().map(after_all_rows).collect());
        }
        state = next;
    }
    unknown("runs a loop whose state is not known")
}

fn after_row(
    index: usize,
    before: &Value,
    after: &Value,
    symbols: &Symbols,
) -> Result<Value, Stop> {
    if after.origin == Some(index) && !matches!(before.flow, Flow::Counter { .. }) {
        return Ok(before.clone());
    }
    match (&before.flow, &after.flow) {
        (_, Flow::Mixed(_) | Flow::Unknown(_)) => Ok(after.clone()),
        (Flow::Counter { offset: 0 }, Flow::Counter { offset: 1 }) => Ok(before.clone()),
        (Flow::List(_), Flow::List(_)) => match before.joined(after, symbols) {
            Some(list) => Ok(Value { origin: None, ..list }),
            None => unknown("puts tensors of different kinds into a list"),
        },
        _ => mixed("carries a value from one row to the next"),
    }
}

fn after_all_rows(value: Value) -> Value {
    match value.flow {
        Flow::Counter { .. } => Value::scalar(Size::rows()),
        _ => value,
    }
}

/// The state after a loop whose number of iterations depends on the row that an outer loop is at.
///
/// # Errors
/// If it depends on something else of the batch, too, and those of `body`.
pub fn of_item(
    initial: &[Value],
    symbols: &Symbols,
    body: impl FnMut(&[Value]) -> Result<Vec<Value>, Stop>,
) -> Result<Vec<Value>, Stop> {
    let state = repeated(initial, symbols, body)?;
    let changed = |(before, after): (&Value, Value)| match (&before.flow, &after.flow) {
        _ if *before == after => Ok(after),
        (_, Flow::Constant | Flow::Item) => Ok(Value::new(Flow::Item, after.dims)),
        (_, Flow::Mixed(_) | Flow::Unknown(_)) => Ok(after),
        (_, Flow::List(_)) => unknown("fills a list in a loop whose length depends on a row"),
        _ => mixed("runs a loop whose length depends on a row"),
    };
    initial.iter().zip(state).map(changed).collect()
}
