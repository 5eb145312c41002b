//! Calls, conditions and loops.

use tensorserve_rows::{Flow, Stop, Symbols, Value, loops, mixed, unknown};

use super::call::TensorFlowCall;
use super::counted::is_counted;

/// A call of a function.
pub(super) fn call(call: &TensorFlowCall) -> Result<Vec<Value>, Stop> {
    call.interpreter.call(call.function("f")?, &call.inputs)
}

/// `If`: one of two functions.
pub(super) fn choose(call: &TensorFlowCall) -> Result<Vec<Value>, Stop> {
    let branches = [call.function("else_branch")?, call.function("then_branch")?];
    branch(call, &branches, |index| usize::from(index != 0))
}

/// `Case`: one of several functions; the last one for a number out of range.
pub(super) fn case(call: &TensorFlowCall) -> Result<Vec<Value>, Stop> {
    let branches = call.functions("branches");
    let last = branches.len().saturating_sub(1);
    branch(call, &branches, |index| usize::try_from(index).map_or(last, |index| index.min(last)))
}

fn branch(
    call: &TensorFlowCall,
    branches: &[&str],
    place: impl Fn(i64) -> usize,
) -> Result<Vec<Value>, Stop> {
    let Some((condition, arguments)) = call.inputs.split_first() else {
        return unknown("has no condition");
    };
    let known = condition.number("a condition").ok().map(place);
    if let Some(function) = known.and_then(|index| branches.get(index)) {
        return call.interpreter.call(function, arguments);
    }
    match &condition.flow {
        Flow::Constant | Flow::Item => {}
        Flow::Mixed(_) | Flow::Unknown(_) | Flow::Dead => return Ok(vec![condition.clone()]),
        _ => {
            return mixed("takes one of several branches by a condition that depends on the batch");
        }
    }
    let results = branches.iter().map(|function| call.interpreter.call(function, arguments));
    let results = joined(results.collect::<Result<_, _>>()?, call.symbols())?;
    match condition.flow {
        Flow::Item => Ok(results.into_iter().map(of_item).collect::<Result<_, _>>()?),
        _ => Ok(results),
    }
}

/// A value that was chosen by a row.
fn of_item(value: Value) -> Result<Value, Stop> {
    match value.flow {
        Flow::Constant | Flow::Item => Ok(Value::new(Flow::Item, value.dims)),
        Flow::Mixed(_) | Flow::Unknown(_) => Ok(value),
        _ => unknown("takes one of several branches by a row"),
    }
}

/// `While`: as long as a function says so.
pub(super) fn repeat(call: &TensorFlowCall) -> Result<Vec<Value>, Stop> {
    let (condition, body) = (call.function("cond")?, call.function("body")?);
    let interpreter = call.interpreter;
    let initial = &call.inputs;
    let functions = interpreter.function(condition).zip(interpreter.function(body));
    let counts = functions.is_some_and(|(condition, body)| is_counted(condition, body, initial));
    interpreter.note_loop(call.node, counts);
    let holds = |state: &[Value]| -> Result<Value, Stop> {
        match interpreter.call(condition, state)?.into_iter().next() {
            Some(value) => Ok(value),
            None => unknown("has a condition without a result"),
        }
    };
    let counters = loops::counters(initial);
    let first = holds(&loops::with_counters(initial, &counters))?;
    if first.flow == Flow::BelowRows {
        if interpreter.set_in_rows(true) {
            return mixed("goes through all rows for each row of the batch");
        }
        let result = loops::over_rows(initial, &counters, call.symbols(), |state| {
            interpreter.call(body, state)
        });
        interpreter.set_in_rows(false);
        return result;
    }
    let state = loops::repeated(initial, call.symbols(), |state| interpreter.call(body, state))?;
    let end = holds(&state)?;
    match &end.flow {
        Flow::Constant => Ok(state),
        Flow::Item => {
            loops::of_item(initial, call.symbols(), |state| interpreter.call(body, state))
        }
        Flow::Mixed(_) | Flow::Unknown(_) | Flow::Dead => Ok(vec![end]),
        _ => mixed("runs a loop whose end depends on the batch"),
    }
}

/// `Switch` of TensorFlow 1: its input on one of two paths.
pub(super) fn switch(call: &TensorFlowCall) -> Result<Vec<Value>, Stop> {
    let (value, condition) = (call.input(0)?, call.input(1)?);
    let dead = || Value::new(Flow::Dead, None);
    match (&condition.flow, condition.number("a condition")) {
        (Flow::Constant, Ok(0)) => Ok(vec![value.clone(), dead()]),
        (Flow::Constant, Ok(_)) => Ok(vec![dead(), value.clone()]),
        (Flow::Constant, Err(_)) => Ok(vec![value.clone(), value.clone()]),
        (Flow::Mixed(_) | Flow::Unknown(_) | Flow::Dead, _) => Ok(vec![condition.clone()]),
        _ => mixed("takes one of two branches by a condition that depends on the batch"),
    }
}

/// `Merge` of TensorFlow 1: the input that comes.
pub(super) fn merge(call: &TensorFlowCall) -> Result<Vec<Value>, Stop> {
    let branches = call.inputs.iter().map(|value| vec![value.clone()]).collect();
    let mut value = joined(branches, call.symbols())?;
    value.push(Value::constant_of(&[], call.symbols()));
    Ok(value)
}

/// The results of a branch, of which it is not known whether it is taken, joined with those of others.
fn joined(branches: Vec<Vec<Value>>, symbols: &Symbols) -> Result<Vec<Value>, Stop> {
    let mut branches = branches.into_iter();
    let Some(mut all) = branches.next() else {
        return unknown("has no branches");
    };
    for branch in branches {
        if branch.len() != all.len() {
            return unknown("has branches of different numbers of results");
        }
        for (value, other) in all.iter_mut().zip(&branch) {
            *value = match value.joined(other, symbols) {
                Some(joined) => joined,
                None => return mixed("has branches whose results come from different rows"),
            };
        }
    }
    Ok(all)
}
