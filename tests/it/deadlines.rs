//! gRPC deadlines, tested with a client that does not enforce them itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_to_proto};
use tokio::net::TcpStream;
use tonic::codegen::http::{HeaderMap, Request};

use crate::support::fake::Model;
use crate::support::grpc::{PREDICT, body};
use crate::support::place::{Place, matrix};

/// The number of concurrent calls.
const CALLS: usize = 100;
/// The timeout of each call, as in the `grpc-timeout` header: 20 ms.
const TIMEOUT: &str = "20m";

/// Sends `message` in all calls and returns their gRPC status codes.
async fn statuses(address: SocketAddr, message: Vec<u8>) -> Vec<String> {
    let stream = TcpStream::connect(address).await.expect("connects");
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2 handshake");
    tokio::spawn(connection);
    let message = Bytes::from(body(&message));
    let call = || async {
        let mut client = client.clone().ready().await.expect("a connection");
        let request = Request::post(format!("http://{address}{PREDICT}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", TIMEOUT);
        let request = request.body(()).expect("a request");
        let (answer, mut sending) = client.send_request(request, false).expect("call started");
        sending.send_data(message.clone(), true).expect("sent");
        let answer = answer.await.expect("an answer");
        let status = |headers: &HeaderMap| headers.get("grpc-status").cloned();
        let mut found = status(answer.headers());
        let mut data = answer.into_body();
        while let Some(part) = data.data().await {
            part.expect("a part");
        }
        if let Some(trailers) = data.trailers().await.expect("trailers") {
            found = found.or(status(&trailers));
        }
        found.expect("a status").to_str().expect("text").to_owned()
    };
    futures_util::future::join_all((0..CALLS).map(|_| call())).await
}

#[test]
fn a_call_whose_time_is_up_is_told_so() {
    let slow = Model { run_millis: 300, ..Model::default() };
    let place = Place::of(&slow, |settings| settings.server.num_batch_threads = Some(1));
    let message = PredictRequest {
        model_spec: Some(ModelSpec { name: "m".to_owned(), ..ModelSpec::default() }),
        inputs: [("x".to_owned(), tensor_to_proto(&matrix(&[&[1.0]]), Form::Content))].into(),
        output_filter: Vec::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let start = Instant::now();
    let calls = statuses(place.server.grpc_address(), message.encode_to_vec());
    let statuses = runtime.expect("a runtime").block_on(calls);
    let deadline_exceeded = "4";
    assert_eq!(statuses, vec![deadline_exceeded; CALLS]);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
