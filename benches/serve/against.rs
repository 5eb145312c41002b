//! `make bench ARGS="against BINARY"`: this server against another binary of it, such as that of an earlier
//! commit, for every scenario, CSV and gRPC. The ratio is that of the CPU times of a request.

use std::time::Duration;

use crate::cost::{Comparison, Cost, compare, http_in_turn, per_request, post};
use crate::grpc;
use crate::process::Process;
use crate::scenario::{Scenario, project};

const CONNECTIONS: [usize; 3] = [1, 8, 64];

/// Rows of a request of CSV.
const ROWS: usize = 100;

pub fn run(other: &str, scenarios: &[Scenario], rounds: usize, time: Duration) {
    let csv = project("tests/data/platforms/xgboost/iris_softprob.json");
    let (ours, theirs) = (
        Process::server_of(env!("CARGO_BIN_EXE_tensorserve"), std::slice::from_ref(&csv)),
        Process::server_of(other, &[csv]),
    );
    let mut cases: Vec<(String, &[Vec<u8>])> =
        scenarios.iter().map(|s| (s.name.to_owned(), s.requests.as_slice())).collect();
    let lines = csv_requests();
    cases.push((format!("CSV of {ROWS} rows, XGBoost"), &lines));
    let named: Vec<(String, &[Vec<u8>], usize)> = cases
        .iter()
        .flat_map(|(name, requests)| {
            CONNECTIONS.map(|many| (format!("{name}, {many} connections"), *requests, many))
        })
        .collect();
    let calls: Vec<(String, grpc::Call)> =
        grpc::calls().into_iter().map(|call| (format!("{} over gRPC", call.name), call)).collect();
    let mut comparisons: Vec<Comparison> = named
        .iter()
        .map(|(name, requests, many)| Comparison {
            name,
            ours: http_in_turn(&ours, requests, *many),
            bound: http_in_turn(&theirs, requests, *many),
        })
        .collect();
    comparisons.extend(calls.iter().map(|(name, call)| Comparison {
        name,
        ours: grpc_call(&ours, call),
        bound: grpc_call(&theirs, call),
    }));
    compare(&comparisons, rounds, time);
}

/// The cost of a call of `Predict`.
fn grpc_call<'a>(process: &'a Process, call: &'a grpc::Call) -> Cost<'a> {
    Box::new(move |time| {
        let before = process.cpu();
        let answered = grpc::run(process.grpc, call, time);
        per_request(process.cpu() - before, answered)
    })
}

fn csv_requests() -> Vec<Vec<u8>> {
    let number = |i: usize| format!("{}.{}", i % 7, i % 10);
    let line = |row: usize| (0..4).map(|i| number(row * 4 + i)).collect::<Vec<_>>().join(",");
    let body = (0..ROWS).map(line).collect::<Vec<_>>().join("\n");
    let headers = "Content-Type: text/csv\r\n\
                   X-Amzn-SageMaker-Custom-Attributes: tfs-model-name=iris_softprob\r\n";
    vec![post("/invocations", headers, body.as_bytes())]
}
