//! `ModelStreamInfer`: streams that idle, stay open while the server stops, or belong to clients whose
//! credentials are revoked.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tensorserve::config::Settings;
use tensorserve_auth::Role;
use tensorserve_auth::file::add_key;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::{
    InferTensorContents, ModelInferRequest, ModelStreamInferResponse,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::support::client::get;
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::process::Process;
use crate::support::project;
use crate::support::server::TestServer;

const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// A stream to a server.
struct Client {
    runtime: Runtime,
    requests: mpsc::UnboundedSender<ModelInferRequest>,
    responses: Streaming<ModelStreamInferResponse>,
}

impl Client {
    fn connect(address: SocketAddr, key: Option<&str>) -> Result<Self, Status> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (requests, receiver) = mpsc::unbounded_channel();
        let mut request = Request::new(UnboundedReceiverStream::new(receiver));
        if let Some(key) = key {
            let value = MetadataValue::try_from(format!("Bearer {key}")).expect("a header");
            request.metadata_mut().insert("authorization", value);
        }
        let responses = runtime.block_on(async {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
            let mut client = Grpc::new(endpoint.connect().await.expect("connects"));
            client.ready().await.expect("ready");
            let codec = ProstCodec::<ModelInferRequest, ModelStreamInferResponse>::default();
            client.streaming(request, PathAndQuery::from_static(STREAM), codec).await
        })?;
        Ok(Client { runtime, requests, responses: responses.into_inner() })
    }

    fn send(&self, id: &str, model: &str, value: f32) {
        self.send_as(id, model, value, &[1]);
    }

    fn send_as(&self, id: &str, model: &str, value: f32, shape: &[i64]) {
        let contents = InferTensorContents { fp32_contents: vec![value], ..Default::default() };
        let input = InferInputTensor {
            name: "x".to_owned(),
            datatype: "FP32".to_owned(),
            shape: shape.to_vec(),
            contents: Some(contents),
            ..InferInputTensor::default()
        };
        let request = ModelInferRequest {
            id: id.to_owned(),
            model_name: model.to_owned(),
            inputs: vec![input],
            ..ModelInferRequest::default()
        };
        self.requests.send(request).expect("the stream is open");
    }

    /// The next response; `None` at the end of the stream.
    fn receive(&mut self) -> Result<Option<ModelStreamInferResponse>, Status> {
        let next = self.responses.message();
        self.runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(20), next).await.expect("an answer in time")
        })
    }

    /// The output of the next response.
    fn output(&mut self) -> f32 {
        let response = self.receive().expect("no error").expect("a response");
        assert_eq!(response.error_message, "");
        let outputs = response.infer_response.expect("a response").outputs;
        outputs[0].contents.as_ref().expect("contents").fp32_contents[0]
    }
}

fn serve(change: impl FnOnce(&mut Settings)) -> TestServer {
    TestServer::with(&project("models/half_plus_two"), change)
}

#[test]
fn responses_have_the_order_of_the_requests_and_errors_end_no_stream() {
    let server = serve(|_| ());
    let mut client = Client::connect(server.grpc_address(), None).expect("a stream");
    for number in 0..100_u8 {
        let model = if number % 10 == 9 { "nothing" } else { "half_plus_two" };
        client.send(&number.to_string(), model, f32::from(number));
    }
    for number in 0..100_u8 {
        let response = client.receive().expect("no error").expect("a response");
        let found = response.infer_response.expect("a response");
        assert_eq!(found.id, number.to_string());
        if number % 10 == 9 {
            let message = response.error_message;
            assert!(message.starts_with("Request for unknown model: 'nothing'"), "{message}");
            continue;
        }
        let values = &found.outputs[0].contents.as_ref().expect("contents").fp32_contents;
        assert_eq!(values[..], [f32::from(number) / 2.0 + 2.0]);
    }
}

#[test]
fn a_stream_may_idle_between_its_requests() {
    let server = serve(|settings| {
        settings.server.body_timeout = Some("200ms".parse().expect("a duration"));
    });
    let mut client = Client::connect(server.grpc_address(), None).expect("a stream");
    for _ in 0..2 {
        client.send("", "half_plus_two", 4.0);
        assert!((client.output() - 4.0).abs() < f32::EPSILON);
        std::thread::sleep(Duration::from_millis(600));
    }
}

#[test]
fn an_open_stream_does_not_hold_up_the_shutdown() {
    let server = serve(|_| ());
    let mut client = Client::connect(server.grpc_address(), None).expect("a stream");
    client.send("", "half_plus_two", 4.0);
    assert!((client.output() - 4.0).abs() < f32::EPSILON);
    let stopping = std::thread::spawn(move || {
        let start = Instant::now();
        server.stop();
        start.elapsed()
    });
    let ended = client.receive();
    let status = ended.expect_err("the server is stopping");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    drop(client);
    let took = stopping.join().expect("no panic");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_request_that_has_begun_is_answered_before_its_stream_ends() {
    let place = Place::of(&Model::gated(), |settings| {
        settings.server.num_batch_threads = Some(1);
        settings.server.inline_budget_micros = Some(0);
    });
    let mut client = Client::connect(place.server.grpc_address(), None).expect("a stream");
    client.send_as("", "m", 4.0, &[1, 1]);
    while place.fake.runs_gate().waiting() == 0 {
        client.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }
    let Place { server, fake, .. } = place;
    let engine = server.engine.clone();
    let stopping = std::thread::spawn(move || server.stop());
    while !engine.is_stopping() {
        std::thread::sleep(Duration::from_millis(1));
    }
    fake.runs_gate().open();
    assert!((client.output() - 4.0).abs() < f32::EPSILON);
    let status = client.receive().expect_err("the server is stopping");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(status.message(), "the server is shutting down");
    drop(client);
    stopping.join().expect("no panic");
}

#[test]
fn streams_are_served_during_the_shutdown_delay() {
    let options = ["--shutdown-delay", "1h"];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let mut before = Client::connect(process.grpc(), None).expect("a stream");
    before.send("", "half_plus_two", 4.0);
    assert!((before.output() - 4.0).abs() < f32::EPSILON);
    process.signal("TERM");
    while get(process.address, "/readyz").status == 200 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut after = Client::connect(process.grpc(), None).expect("a stream");
    for client in [&mut before, &mut after] {
        client.send("", "half_plus_two", 4.0);
        assert!((client.output() - 4.0).abs() < f32::EPSILON);
    }
}

#[test]
fn a_stream_ends_when_its_credentials_are_revoked() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("auth.toml");
    for name in ["removed", "kept"] {
        add_key(&file, name, &format!("key-of-{name}"), &[Role::Infer]).expect("a key");
    }
    let server = serve(|settings| settings.server.auth_file = Some(file.clone()));
    assert!(Client::connect(server.grpc_address(), None).is_err());
    let stream = |key: &str| {
        let mut client = Client::connect(server.grpc_address(), Some(key)).expect("a stream");
        client.send("", "half_plus_two", 4.0);
        assert!((client.output() - 4.0).abs() < f32::EPSILON);
        client
    };
    let (mut removed, mut kept) = (stream("key-of-removed"), stream("key-of-kept"));
    let other = folder.path().join("other.toml");
    add_key(&other, "kept", "key-of-kept", &[Role::Infer]).expect("a key");
    std::fs::rename(other, file).expect("renamed");
    let status = removed.receive().expect_err("the key is gone");
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    kept.send("", "half_plus_two", 4.0);
    assert!((kept.output() - 4.0).abs() < f32::EPSILON);
}
