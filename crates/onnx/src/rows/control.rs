//! Branches and loops.

use tensorserve_rows::plain::dimension;
use tensorserve_rows::{Flow, Size, Stop, Value, loops, mixed, unknown};

use super::call::OnnxCall;
use crate::proto::GraphProto;

const END: &str = "runs a loop whose end depends on the batch";

/// `If`: one of two graphs.
pub(super) fn choose(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let condition = call.input(0)?;
    let run = |name| Ok(call.subgraphs.run(call.graph(name)?, Vec::new()));
    match condition.number("a condition") {
        Ok(0) => return run("else_branch"),
        Ok(_) => return run("then_branch"),
        Err(_) => {}
    }
    if !matches!(condition.flow, Flow::Constant | Flow::Item) {
        return mixed("takes one of two branches by a condition that depends on the batch");
    }
    let (one, other): (Vec<Value>, Vec<Value>) = (run("then_branch")?, run("else_branch")?);
    let joined = |(one, other): (&Value, &Value)| {
        let value = match one.joined(other, call.symbols) {
            Some(value) => value,
            None => return mixed("has branches whose results come from different rows"),
        };
        match (&condition.flow, &value.flow) {
            (Flow::Item, Flow::Constant | Flow::Item) => Ok(Value::new(Flow::Item, value.dims)),
            (Flow::Constant, _) | (_, Flow::Mixed(_) | Flow::Unknown(_)) => Ok(value),
            _ => unknown("takes one of two branches by a row"),
        }
    };
    one.iter().zip(&other).map(joined).collect()
}

/// `Loop`: a number of times, or as long as a condition holds. Outputs are its state, and values of all
/// iterations behind each other.
pub(super) fn repeat(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    let body = call.graph("body")?;
    let initial: Vec<Value> = call.from(2).into_iter().cloned().collect();
    let count = initial.len();
    if body.input.len() != count + 2 || body.output.len() <= count {
        return unknown("has a body of another number of inputs or outputs");
    }
    if call.optional(1).is_some_and(|condition| !condition.is_constant()) {
        return mixed(END);
    }
    match call.optional(0) {
        Some(times) if times.elements.as_deref() == Some(&[Size::rows()]) => {
            repeat_for_rows(call, body, &initial)
        }
        Some(times) if !times.is_constant() => mixed(END),
        _ => repeat_equally(call, body, &initial),
    }
}

/// A loop that runs equally often for every batch.
fn repeat_equally(
    call: &OnnxCall,
    body: &GraphProto,
    initial: &[Value],
) -> Result<Vec<Value>, Stop> {
    let mut scanned = Vec::new();
    let scalar = || Value::constant_of(&[], call.symbols);
    let mut state = loops::repeated(initial, call.symbols, |state| {
        let inputs = [&[scalar(), scalar()], state].concat();
        let mut results = call.subgraphs.run(body, inputs).into_iter();
        match results.next().map(|condition| condition.flow) {
            Some(Flow::Constant) => {}
            Some(Flow::Unknown(_)) => return unknown("runs a loop whose end is not known"),
            _ => return mixed(END),
        }
        let next = results.by_ref().take(state.len()).collect();
        scanned = results.collect();
        Ok(next)
    })?;
    let times = call.symbols.fresh();
    for value in &scanned {
        state.push(stacked(value, 0, &times)?);
    }
    Ok(state)
}

/// A loop that runs once for each row.
fn repeat_for_rows(
    call: &OnnxCall,
    body: &GraphProto,
    initial: &[Value],
) -> Result<Vec<Value>, Stop> {
    let is_true = |value: &Value| value.number("a condition").is_ok_and(|number| number != 0);
    if !call.optional(1).is_none_or(is_true) {
        return mixed(END);
    }
    let mut scanned = Vec::new();
    let first = Value::scalar(Size::number(0));
    let all = [&[first], initial].concat();
    let is_counter: Vec<bool> = (0..all.len()).map(|index| index == 0).collect();
    let state = in_rows(call, || {
        loops::over_rows(&all, &is_counter, call.symbols, |state| {
            let (counter, state) = match state.split_first() {
                Some((counter, state)) => (counter.clone(), state),
                None => return unknown("runs a loop whose state is not known"),
            };
            let inputs = [&[counter, Value::scalar(Size::number(1))], state].concat();
            let mut results = call.subgraphs.run(body, inputs).into_iter();
            if !results.next().is_some_and(|condition| is_true(&condition)) {
                return mixed(END);
            }
            let mut next = vec![Value::new(Flow::Counter { offset: 1 }, Some(Vec::new()))];
            next.extend(results.by_ref().take(state.len()));
            scanned = results.collect();
            Ok(next)
        })
    })?;
    let mut outputs: Vec<Value> = state.into_iter().skip(1).collect();
    for value in &scanned {
        outputs.push(rows_of(value)?);
    }
    Ok(outputs)
}

/// What `run` returns, in a loop over rows. There is no such loop in another one.
fn in_rows<T>(call: &OnnxCall, run: impl FnOnce() -> Result<T, Stop>) -> Result<T, Stop> {
    if call.subgraphs.set_in_rows(true) {
        return mixed("goes through all rows for each row of the batch");
    }
    let result = run();
    call.subgraphs.set_in_rows(false);
    result
}

/// The values of a number of iterations, along a new dimension `axis`.
fn stacked(value: &Value, axis: i64, times: &Size) -> Result<Value, Stop> {
    let rows = match value.flow {
        Flow::Mixed(_) | Flow::Unknown(_) => return Ok(value.clone()),
        Flow::Rows { axis } => Some(axis),
        Flow::Constant | Flow::Item => None,
        _ => return unknown("returns values of iterations of which nothing is known"),
    };
    let mut dims = value.known_dims()?.to_vec();
    let at = dimension(axis, dims.len() + 1)?;
    dims.insert(at, times.clone());
    Ok(match rows {
        Some(rows) => Value::rows(rows + usize::from(at <= rows), dims),
        None => Value::new(value.flow.clone(), Some(dims)),
    })
}

/// The values of a loop over rows.
fn rows_of(value: &Value) -> Result<Value, Stop> {
    match value.flow {
        Flow::Mixed(_) | Flow::Unknown(_) => Ok(value.clone()),
        Flow::Item | Flow::Constant => {
            let mut dims = vec![Size::rows()];
            dims.extend(value.known_dims()?.iter().cloned());
            Ok(Value::rows(0, dims))
        }
        _ => mixed("returns a value that is not computed from one row alone"),
    }
}

/// `Scan`: over the slices of tensors.
pub(super) fn scan(call: &OnnxCall) -> Result<Vec<Value>, Stop> {
    if call.version < 9 {
        return unknown("is a loop of an old version");
    }
    let body = call.graph("body")?;
    let scanned = usize::try_from(call.int("num_scan_inputs", 0)).unwrap_or(0);
    let all: Vec<Value> = call.from(0).into_iter().cloned().collect();
    let Some(count) = all.len().checked_sub(scanned).filter(|_| scanned > 0) else {
        return unknown("has fewer inputs than expected");
    };
    if body.input.len() != all.len() || body.output.len() < count {
        return unknown("has a body of another number of inputs or outputs");
    }
    let (initial, inputs) = all.split_at_checked(count).unwrap_or_default();
    let axis = |name: &str, index: usize| {
        call.ints(name).and_then(|axes| axes.get(index)).copied().unwrap_or(0)
    };
    let mut slices = Vec::new();
    for (index, value) in inputs.iter().enumerate() {
        slices.push(Slices::of(value, axis("scan_input_axes", index))?);
    }
    let run = |state: &[Value]| {
        let slices: Vec<Value> = slices.iter().map(|its| its.slice.clone()).collect();
        call.subgraphs.run(body, [state, &slices].concat())
    };
    let mut scanned = Vec::new();
    let mut next = |state: &[Value]| {
        let mut results = run(state).into_iter();
        let next = results.by_ref().take(count).collect();
        scanned = results.collect();
        Ok(next)
    };
    if slices.iter().any(|its| its.is_of_rows) {
        let directions = ["scan_input_directions", "scan_output_directions"];
        let mut backwards = directions.iter().filter_map(|name| call.ints(name)).flatten();
        if !slices.iter().all(|its| its.is_of_rows) || backwards.any(|its| *its != 0) {
            return mixed("combines rows with slices by their number in the batch");
        }
        let none = vec![false; count];
        let mut outputs =
            in_rows(call, || loops::over_rows(initial, &none, call.symbols, |state| next(state)))?;
        for (index, value) in scanned.iter().enumerate() {
            if axis("scan_output_axes", index) != 0 {
                return unknown("returns rows along another dimension");
            }
            outputs.push(rows_of(value)?);
        }
        return Ok(outputs);
    }
    let times = slices.first().map_or(Size::Other, |its| its.length.clone());
    let mut outputs = loops::repeated(initial, call.symbols, |state| next(state))?;
    for (index, value) in scanned.iter().enumerate() {
        outputs.push(stacked(value, axis("scan_output_axes", index), &times)?);
    }
    Ok(outputs)
}

/// The slices of a tensor along a dimension.
struct Slices {
    slice: Value,
    length: Size,
    is_of_rows: bool,
}

impl Slices {
    fn of(value: &Value, axis: i64) -> Result<Self, Stop> {
        let mut dims = value.known_dims()?.to_vec();
        let at = dimension(axis, dims.len())?;
        let length = dims.remove(at);
        let is_of_rows = value.flow == Flow::Rows { axis: at };
        let slice = match value.flow {
            Flow::Rows { .. } if is_of_rows && length == Size::rows() => {
                Value::new(Flow::Item, Some(dims))
            }
            Flow::Rows { .. } if is_of_rows => {
                return mixed("takes a part of a row by the number of a row");
            }
            Flow::Rows { axis } => Value::rows(axis - usize::from(at < axis), dims),
            Flow::Constant | Flow::Item => Value::new(value.flow.clone(), Some(dims)),
            _ => return mixed(END),
        };
        if !is_of_rows && !length.is_fixed() {
            return mixed(END);
        }
        Ok(Slices { slice, length, is_of_rows })
    }
}
