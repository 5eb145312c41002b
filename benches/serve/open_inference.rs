//! `make bench ARGS=v2`: the Open Inference Protocol. Raw bytes over REST and gRPC against bare echoes of the
//! same bytes, and a small JSON request against the same one as `:predict`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::{ModelInferRequest, ModelInferResponse};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::process::Process;
use crate::{client, grpc};

const IMAGE: [i64; 4] = [1, 224, 224, 3];

/// Connections, or concurrent calls, of the large requests and of the small ones.
const FEW: usize = 4;
const MANY: usize = 64;

/// The CPU time of one request in microseconds: medians by name.
pub fn run(rounds: usize, time: Duration) {
    let (server, echo, grpc_echo) = (Process::server(), Process::echo(), Process::grpc_echo());
    let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let raw = [raw_request()];
    let (v1, v2) = (
        small("/v1/models/half_plus_two:predict", V1),
        small("/v2/models/half_plus_two/infer", V2),
    );
    for round in 0..=rounds {
        let mut figures = [
            ("raw, server", http(&server, &raw, FEW, time)),
            ("raw, echo", http(&echo, &raw, FEW, time)),
            ("JSON, v2", http(&server, &v2, MANY, time)),
            ("JSON, :predict", http(&server, &v1, MANY, time)),
            ("gRPC, server", calls(&server, time)),
            ("gRPC, echo", calls(&grpc_echo, time)),
        ];
        // The first round is for the server to measure its models.
        if round == 0 {
            continue;
        }
        figures.reverse();
        for (name, micros) in figures {
            all.entry(name).or_default().push(micros);
        }
    }
    let median = |name: &str| {
        let mut values = all[name].clone();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("CPU time of a request in us, medians of {rounds} rounds of {time:?}");
    for (what, ours, bound) in [
        ("224x224x3 floats, raw bytes over REST, against a bare echo", "raw, server", "raw, echo"),
        (
            "224x224x3 floats, raw bytes over gRPC, against a bare echo",
            "gRPC, server",
            "gRPC, echo",
        ),
        ("half_plus_two as JSON, against :predict", "JSON, v2", "JSON, :predict"),
    ] {
        let (ours, bound) = (median(ours), median(bound));
        println!("{what:<62}{ours:>9.1}{bound:>9.1}{:>8.2}", ours / bound);
    }
}

const V1: &str = r#"{"instances": [1.0, 2.0, 5.0]}"#;
const V2: &str = r#"{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[1.0,2.0,5.0]}]}"#;

fn small(path: &str, body: &str) -> [Vec<u8>; 1] {
    let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    [[head.as_bytes(), body.as_bytes()].concat()]
}

fn image() -> Vec<u8> {
    let count: i64 = IMAGE.iter().product();
    (0..count).flat_map(|n| (n as f32 / 7.0).to_le_bytes()).collect()
}

/// An image in, the same image out.
fn raw_request() -> Vec<u8> {
    let image = image();
    let document = format!(
        r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"x","shape":[1,224,224,3],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}]}}"#,
        image.len()
    );
    let head = format!(
        "POST /v2/models/echo_float32/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\
         Inference-Header-Content-Length: {}\r\n\r\n",
        document.len() + image.len(),
        document.len()
    );
    [head.as_bytes(), document.as_bytes(), &image].concat()
}

fn http(process: &Process, requests: &[Vec<u8>], connections: usize, time: Duration) -> f64 {
    let before = process.cpu();
    let load = client::run(process.address, requests, connections, time);
    assert_eq!(load.failed, 0, "requests failed");
    per_request(process.cpu() - before, load.latency.len())
}

fn calls(process: &Process, time: Duration) -> f64 {
    let before = process.cpu();
    let answered = ask(process.grpc, time);
    per_request(process.cpu() - before, answered)
}

fn per_request(used: Duration, requests: u64) -> f64 {
    used.as_secs_f64() * 1e6 / requests as f64
}

/// Calls answered in `time`.
fn ask(address: SocketAddr, time: Duration) -> u64 {
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: IMAGE.to_vec(),
        ..InferInputTensor::default()
    };
    let message = ModelInferRequest {
        model_name: "echo_float32".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from(image())],
        ..ModelInferRequest::default()
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("address");
        let endpoint = endpoint.tcp_nodelay(true).initial_stream_window_size(1 << 20);
        let endpoint = endpoint.initial_connection_window_size(8 << 20);
        let end = Instant::now() + time;
        let mut tasks = Vec::new();
        for _ in 0..FEW {
            let (channel, message) = (endpoint.connect().await.expect("connects"), message.clone());
            tasks.push(tokio::spawn(async move {
                let path = PathAndQuery::from_static(grpc::MODEL_INFER);
                let mut client = Grpc::new(channel).max_decoding_message_size(1 << 30);
                let mut answered = 0;
                while Instant::now() < end {
                    client.ready().await.expect("ready");
                    let codec = ProstCodec::<ModelInferRequest, ModelInferResponse>::default();
                    let answer = client.unary(Request::new(message.clone()), path.clone(), codec);
                    let answer: Result<_, Status> = answer.await;
                    assert_eq!(
                        answer.expect("an answer").into_inner().raw_output_contents.len(),
                        1
                    );
                    answered += 1;
                }
                answered
            }));
        }
        let mut answered = 0;
        for task in tasks {
            answered += task.await.expect("no panic");
        }
        answered
    })
}
