//! Tests of the reader and of the search for varying sizes. Those with libexecutorch are in
//! `tests/clients/pytorch`, which installs it.

use std::cell::Cell;

use super::program::{MethodPort, ProgramMethod};
use super::*;
use crate::package::DimCheck;

fn content(name: &str) -> Vec<u8> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/platforms/executorch");
    std::fs::read(data.join(name)).expect("test data")
}

fn methods(name: &str) -> Vec<ProgramMethod> {
    program::read(&content(name)).expect("a program")
}

fn only(name: &str) -> ProgramMethod {
    let mut methods = methods(name);
    assert_eq!(methods.len(), 1);
    methods.remove(0)
}

fn names(ports: &[MethodPort]) -> Vec<&str> {
    ports.iter().map(|port| port.name.as_str()).collect()
}

#[test]
fn methods_have_the_tensors_of_the_call_that_was_exported() {
    let encoder = only("encoder.pte");
    assert_eq!(
        (names(&encoder.inputs), names(&encoder.outputs)),
        (vec!["input"], vec!["logits", "pooled"])
    );
    assert_eq!(encoder.inputs[0].sizes, [64, 12]);
    assert_eq!(encoder.inputs[0].dtype, DType::Int64);
    assert!(encoder.inputs[0].varies && !encoder.writes_state && !encoder.is_random);
    // A number in between is that of the export.
    let several = only("several.pte");
    assert_eq!(names(&several.inputs), ["input_0", "input_2"]);
    assert_eq!(several.inputs[1].place, 2);
    assert_eq!(names(&several.outputs), ["output_0", "output_1_0"]);
    assert!(only("counter.pte").writes_state);
}

#[test]
fn methods_without_tensors_are_not_served_and_forward_is_the_default() {
    let methods = methods("methods.pte");
    let names: Vec<&str> = methods.iter().map(|method| method.name.as_str()).collect();
    assert_eq!(names, ["forward", "scores"]);
    assert_eq!(default_method(&methods).as_deref(), Some("forward"));
    assert_eq!(default_method(&methods[1..]).as_deref(), Some("scores"));
}

#[test]
fn damaged_programs_are_errors() {
    let whole = content("methods.pte");
    for end in 0..whole.len() {
        // The library verifies what is behind the declarations.
        let _ = program::read(&whole[..end]);
    }
    assert!(program::read(&whole[..200]).is_err());
    for place in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[place] = value;
            let _ = program::read(&changed);
        }
    }
}

#[test]
fn other_backends_are_refused_by_name() {
    let mut program = content("phone.pte");
    let name = b"XnnpackBackend";
    while let Some(at) = program.windows(name.len()).position(|window| window == name) {
        program[at..at + name.len()].copy_from_slice(b"OtherOne_Chips");
    }
    let error = program::read(&program).expect_err("refused");
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains("compiled for OtherOne_Chips"), "{error}");
}

fn port(sizes: &[i64], varies: bool) -> MethodPort {
    let sizes = sizes.to_vec();
    MethodPort { name: "x".into(), place: 0, dtype: DType::Float, sizes, varies }
}

fn method(inputs: Vec<MethodPort>, outputs: Vec<MethodPort>) -> ProgramMethod {
    ProgramMethod {
        name: "forward".into(),
        inputs,
        outputs,
        writes_state: false,
        is_random: false,
        planned: 0,
    }
}

fn sizes(found: &[Vec<DimCheck>]) -> Vec<Vec<i64>> {
    found.iter().map(|dims| dims.iter().map(|dim| dim.size()).collect()).collect()
}

#[test]
fn sizes_vary_together_where_runs_with_smaller_ones_work() {
    let inputs = vec![port(&[8, 32, 3], true), port(&[8, 32], true), port(&[8], false)];
    let method = method(inputs, vec![port(&[8, 5], true)]);
    let runs = Cell::new(0);
    let found = shapes::dims(&method, |inputs| {
        runs.set(runs.get() + 1);
        let [first, second, third] = inputs else { panic!("three inputs") };
        assert_eq!(first.shape().dims()[..2], second.shape().dims()[..2]);
        assert_eq!(third.shape().dims(), [8]);
        first.shape().dims()[2] == 3
    });
    assert_eq!(runs.get(), 3);
    assert_eq!(sizes(&found), [vec![-1, -1, 3], vec![-1, -1], vec![8]]);
    assert_eq!(found[0][1].most(), Some(32));
}

#[test]
fn programs_for_one_row_take_any_number_of_them() {
    let one = || method(vec![port(&[1, 4], false)], vec![port(&[1, 2], false)]);
    let nothing = |_: &[Tensor]| panic!("nothing varies");
    assert_eq!(sizes(&shapes::dims(&one(), nothing)), [[-1, 4]]);
    for other in [
        ProgramMethod { writes_state: true, ..one() },
        method(vec![port(&[1, 4], false)], vec![port(&[4], false)]),
        method(vec![port(&[1, 4], false), port(&[], false)], vec![port(&[1], false)]),
    ] {
        assert_eq!(sizes(&shapes::dims(&other, nothing))[0], [1, 4]);
    }
}

/// Prints the time of a run through the platform:
///
/// ```sh
/// EXECUTORCH_MODEL=resnet18.pte TENSORSERVE_LIB_DIR=$PWD/lib \
///     cargo test --release -p tensorserve-torch -- --ignored --nocapture measure_a_program
/// ```
#[test]
#[ignore = "a measurement, which needs libexecutorch"]
#[allow(clippy::print_stdout)]
fn measure_a_program() {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let model = variable("EXECUTORCH_MODEL").expect("EXECUTORCH_MODEL names a file");
    let search = variable("TENSORSERVE_LIB_DIR").into_iter().map(Into::into).collect();
    let platform = ExecuTorch::new(TorchConfig { library: None, search });
    for threads in [1, 2] {
        let options = LoadOptions { threads, ..LoadOptions::default() };
        let program = platform.open_program(&model, &options).expect("a program");
        let call = &program.calls[0];
        for rows in [1, 100] {
            let inputs = tensorserve_platform::synthetic_inputs(&call.signature, rows);
            let inputs = inputs.expect("inputs");
            let mut times: Vec<_> = (0..60)
                .map(|_| {
                    let start = std::time::Instant::now();
                    parts::run(&inputs, call.most_rows, |it| call.run_once(it, None))
                        .expect("a run");
                    start.elapsed()
                })
                .collect();
            times.sort();
            println!("{threads} threads, {rows} rows: {:?}", times[times.len() / 2]);
        }
    }
}
