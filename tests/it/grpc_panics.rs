//! Panics in gRPC handlers: each costs its own call only, which ends with INTERNAL.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use h2::RecvStream;
use h2::client::SendRequest;
use prost::Message;
use tensorserve::{Server, platforms, protocols};
use tensorserve_auth::Permission;
use tensorserve_proto::serving::ModelSpec;
use tensorserve_protocol::grpc::{GrpcLimits, GrpcServices};
use tensorserve_protocol::{Host, Protocol, Routes};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::codegen::{BoxFuture, BoxStream, Service};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use crate::support::grpc::{PREDICT, body, half_plus_two};
use crate::support::project;
use crate::support::server::{config, settings};

/// A panic when the service takes the call, after the message has been read, in the handler of a stream
/// of messages, and when the second message of a response is written.
const METHODS: [&str; 4] =
    ["/test.Broken/Take", "/test.Broken/Answer", "/test.Broken/Receive", "/test.Broken/Send"];

/// A message of 64 KiB, which the request's budget holds.
fn message() -> ModelSpec {
    ModelSpec { name: "x".repeat(64 << 10), ..ModelSpec::default() }
}

/// A protocol whose handlers panic.
#[derive(Clone, Default)]
struct Broken {
    held: Arc<AtomicUsize>,
}

/// What a handler has taken, and must return.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Broken {
    fn hold(&self) -> Held {
        self.held.fetch_add(1, SeqCst);
        Held(Arc::clone(&self.held))
    }
}

impl Protocol for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn routes(&self, _host: &Host, _routes: &mut Routes) {}

    fn grpc(&self, _host: &Host, _limits: GrpcLimits, services: &mut GrpcServices) {
        services.services.add_service(self.clone());
        services.methods.extend(METHODS.map(|method| (method, Permission::Read)));
        services.streams.push(METHODS[2]);
    }
}

impl NamedService for Broken {
    const NAME: &'static str = "test.Broken";
}

impl Service<Request<Body>> for Broken {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let held = self.hold();
        let broken = self.clone();
        let mut grpc = Grpc::new(ProstCodec::<ModelSpec, ModelSpec>::default());
        match request.uri().path() {
            "/test.Broken/Take" => panic!("taken"),
            "/test.Broken/Answer" => Box::pin(async move {
                let _held = held;
                Ok(grpc.unary(broken, request).await)
            }),
            "/test.Broken/Receive" => Box::pin(async move {
                let _held = held;
                Ok(grpc.streaming(broken, request).await)
            }),
            _ => Box::pin(async move { Ok(grpc.server_streaming(broken, request).await) }),
        }
    }
}

impl UnaryService<ModelSpec> for Broken {
    type Response = ModelSpec;
    type Future = BoxFuture<tonic::Response<ModelSpec>, Status>;

    fn call(&mut self, request: tonic::Request<ModelSpec>) -> Self::Future {
        Box::pin(async move { panic!("{} bytes", request.into_inner().name.len()) })
    }
}

impl tonic::server::StreamingService<ModelSpec> for Broken {
    type Response = ModelSpec;
    type ResponseStream = BoxStream<ModelSpec>;
    type Future = BoxFuture<tonic::Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: tonic::Request<Streaming<ModelSpec>>) -> Self::Future {
        let answers = request.into_inner().map(|_| -> Result<_, Status> { panic!("received") });
        Box::pin(async move { Ok(tonic::Response::new(Box::pin(answers) as Self::ResponseStream)) })
    }
}

impl ServerStreamingService<ModelSpec> for Broken {
    type Response = ModelSpec;
    type ResponseStream = BoxStream<ModelSpec>;
    type Future = BoxFuture<tonic::Response<Self::ResponseStream>, Status>;

    fn call(&mut self, _request: tonic::Request<ModelSpec>) -> Self::Future {
        let held = self.hold();
        let answers = stream::unfold((0, held), |(number, held)| async move {
            // What was ready before is written meanwhile.
            tokio::task::yield_now().await;
            assert_eq!(number, 0, "sent");
            Some((Ok(ModelSpec::default()), (number + 1, held)))
        });
        Box::pin(async move { Ok(tonic::Response::new(Box::pin(answers) as Self::ResponseStream)) })
    }
}

/// Begins a call with one message.
async fn begin(client: &SendRequest<Bytes>, path: &str, message: &[u8]) -> Response<RecvStream> {
    let mut client = client.clone().ready().await.expect("the connection is open");
    let request = Request::post(format!("http://h{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let call = client.send_request(request.body(()).expect("a request"), false);
    let (answer, mut sending) = call.expect("call started");
    sending.send_data(body(message).into(), true).expect("sent");
    answer.await.expect("an answer")
}

/// The bytes of a response, its status and its message.
async fn end(answer: Response<RecvStream>) -> (usize, String, String) {
    let mut headers = answer.headers().clone();
    let (mut data, mut bytes) = (answer.into_body(), 0);
    while let Some(part) = data.data().await {
        bytes += part.expect("no reset").len();
    }
    headers.extend(data.trailers().await.expect("trailers").unwrap_or_default());
    let text = |headers: &HeaderMap, name| headers[name].to_str().expect("text").to_owned();
    let message = headers.get("grpc-message").map_or("", |text| text.to_str().expect("text"));
    (bytes, text(&headers, "grpc-status"), message.to_owned())
}

fn metric(server: &Server, name: &str) -> f64 {
    let page = server.engine().metrics_text().expect("metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).parse().expect("a number")
}

#[tokio::test]
async fn a_panic_in_a_handler_ends_its_call_with_an_error_and_no_other_one() {
    let mut settings = settings();
    settings.paths.push(project("models/half_plus_two"));
    let config = config(settings);
    let mut all = protocols::built_in(&config);
    let broken = Broken::default();
    all.push(Arc::new(broken.clone()));
    let server = Server::with_protocols(&config, platforms::built_in(&config), &all);
    let server = server.expect("starts");
    server.engine().wait_until_started(|_| ());
    let stream = TcpStream::connect(server.grpc_address().expect("gRPC is on")).await;
    let handshake = h2::client::handshake(stream.expect("connects")).await;
    let (client, connection) = handshake.expect("HTTP/2 handshake");
    let connection = tokio::spawn(connection);

    // A stream that stays open, and whose first message has arrived.
    let mut watch = begin(&client, "/grpc.health.v1.Health/Watch", b"").await;
    let first = watch.body_mut().data().await.expect("a message").expect("no reset");
    assert_eq!(first[..], [0, 0, 0, 0, 2, 8, 1], "SERVING");

    let panics = metric(&server, "tensorserve_panics_total");
    let message = message().encode_to_vec();
    for (count, method) in (1..).zip(METHODS) {
        let (bytes, status, text) = end(begin(&client, method, &message).await).await;
        assert_eq!(status, "13", "{method}");
        assert_eq!(text, "internal%20error;%20see%20the%20server%20log", "{method}");
        // What was written before is sent.
        assert_eq!(bytes, if method.ends_with("Send") { 5 } else { 0 }, "{method}");
        assert_eq!(metric(&server, "tensorserve_panics_total"), panics + f64::from(count));
    }

    let (_, status, _) = end(begin(&client, PREDICT, &half_plus_two().encode_to_vec()).await).await;
    assert_eq!(status, "0", "the connection serves on");
    assert!(!watch.body().is_end_stream(), "the stream is open");
    assert!(!connection.is_finished());
    assert_eq!(broken.held.load(SeqCst), 0, "what the handlers held is returned");
    assert_eq!(metric(&server, "tensorserve_in_flight_requests"), 0.0);
    assert_eq!(metric(&server, "tensorserve_request_memory_bytes"), 0.0);
    connection.abort();
    assert!(connection.await.expect_err("aborted").is_cancelled());
    server.stop();
}
