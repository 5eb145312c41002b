//! `make bench ARGS=v2`: the Open Inference Protocol. Raw bytes over REST and gRPC against bare echoes of the
//! same bytes, and a small JSON request against the same one as `:predict`.

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

use crate::cost::{Comparison, compare, http, per_request, post};
use crate::grpc;
use crate::process::Process;

const IMAGE: [i64; 4] = [1, 224, 224, 3];

/// Connections, or concurrent calls, of the large requests and of the small ones.
const FEW: usize = 4;
const MANY: usize = 64;

/// Runs the comparisons whose names contain `only`.
pub fn run(rounds: usize, time: Duration, only: &str) {
    let (server, echo, grpc_echo) = (Process::server(), Process::echo(), Process::grpc_echo());
    let raw = raw_request();
    let v1 = post("/v1/models/half_plus_two:predict", "", V1.as_bytes());
    let v2 = post("/v2/models/half_plus_two/infer", "", V2.as_bytes());
    let comparisons = [
        Comparison {
            name: "224x224x3 floats, raw bytes over REST, against a bare echo",
            ours: http(&server, &raw, FEW),
            bound: http(&echo, &raw, FEW),
        },
        Comparison {
            name: "224x224x3 floats, raw bytes over gRPC, against a bare echo",
            ours: Box::new(|time| calls(&server, time)),
            bound: Box::new(|time| calls(&grpc_echo, time)),
        },
        Comparison {
            name: "half_plus_two as JSON, against :predict",
            ours: http(&server, &v2, MANY),
            bound: http(&server, &v1, MANY),
        },
    ];
    let chosen = comparisons.into_iter().filter(|comparison| comparison.name.contains(only));
    compare(&chosen.collect::<Vec<_>>(), rounds, time);
}

const V1: &str = r#"{"instances": [1.0, 2.0, 5.0]}"#;
const V2: &str = r#"{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[1.0,2.0,5.0]}]}"#;

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
    let length = format!("Inference-Header-Content-Length: {}\r\n", document.len());
    let body = [document.as_bytes(), &image].concat();
    post("/v2/models/echo_float32/infer", &length, &body)
}

fn calls(process: &Process, time: Duration) -> f64 {
    let before = process.cpu();
    let answered = ask(process.grpc, time);
    per_request(process.cpu() - before, answered)
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
