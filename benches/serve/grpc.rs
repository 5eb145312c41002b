//! gRPC: Predict against a bare tonic server that echoes the same messages.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::model_infer_response::InferOutputTensor;
use tensorserve_proto::inference::{ModelInferRequest, ModelInferResponse};
use tensorserve_proto::serving::prediction_service_server::{
    PredictionService, PredictionServiceServer,
};
use tensorserve_proto::serving::{
    ClassificationRequest, ClassificationResponse, GetModelMetadataRequest,
    GetModelMetadataResponse, ModelSpec, MultiInferenceRequest, MultiInferenceResponse,
    PredictRequest, PredictResponse, RegressionRequest, RegressionResponse,
};
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{Service, http};
use tonic::server::UnaryService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tracing::subscriber::{NoSubscriber, set_global_default};

pub const CHANNELS: usize = 8;

/// A call that is repeated.
pub struct Call {
    pub name: &'static str,
    /// Concurrent calls.
    pub concurrency: usize,
    message: PredictRequest,
}

pub fn calls() -> Vec<Call> {
    let call = |name, model: &str, concurrency, dims: &[i64]| {
        let shape = Shape::new(dims).expect("shape");
        let count = shape.elements().expect("small");
        let mut values = aligned_vec::<f32>(count);
        (0..count).for_each(|i| values.push(i as f32 / 7.0));
        let tensor = Tensor::from_vec(shape, values).expect("tensor");
        let spec = ModelSpec { name: model.to_owned(), ..ModelSpec::default() };
        let inputs = [("x".to_owned(), tensor_to_proto(&tensor, Form::Content))];
        let message = PredictRequest {
            model_spec: Some(spec),
            inputs: inputs.into(),
            output_filter: Vec::new(),
        };
        Call { name, concurrency, message }
    };
    vec![
        call("half_plus_two", "half_plus_two", 64, &[3]),
        call("224x224x3 floats", "echo_float32", 8, &[1, 224, 224, 3]),
    ]
}

/// Calls answered in `time`.
pub fn run(address: SocketAddr, call: &Call, time: Duration) -> u64 {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("address");
        let endpoint = endpoint.tcp_nodelay(true).initial_stream_window_size(1 << 20);
        let endpoint = endpoint.initial_connection_window_size(8 << 20);
        let mut channels = Vec::new();
        for _ in 0..CHANNELS.min(call.concurrency) {
            channels.push(endpoint.connect().await.expect("connects"));
        }
        let end = Instant::now() + time;
        let tasks: Vec<_> = (0..call.concurrency)
            .map(|number| {
                let channel = channels[number % channels.len()].clone();
                tokio::spawn(ask(channel, call.message.clone(), end))
            })
            .collect();
        let mut answered = 0;
        for task in tasks {
            answered += task.await.expect("no panic");
        }
        answered
    })
}

async fn ask(channel: Channel, message: PredictRequest, end: Instant) -> u64 {
    let path = PathAndQuery::from_static("/tensorflow.serving.PredictionService/Predict");
    let mut client = Grpc::new(channel).max_decoding_message_size(1 << 30);
    let mut answered = 0;
    while Instant::now() < end {
        client.ready().await.expect("ready");
        let codec = ProstCodec::<PredictRequest, PredictResponse>::default();
        let request = Request::new(message.clone());
        let answer = client.unary(request, path.clone(), codec).await.expect("an answer");
        assert_eq!(answer.into_inner().outputs.len(), 1);
        answered += 1;
    }
    answered
}

struct Echo;

#[tonic::async_trait]
impl PredictionService for Echo {
    async fn predict(
        &self,
        request: Request<PredictRequest>,
    ) -> Result<Response<PredictResponse>, Status> {
        let PredictRequest { model_spec, inputs, .. } = request.into_inner();
        Ok(Response::new(PredictResponse { model_spec, outputs: inputs }))
    }

    async fn classify(
        &self,
        _: Request<ClassificationRequest>,
    ) -> Result<Response<ClassificationResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn regress(
        &self,
        _: Request<RegressionRequest>,
    ) -> Result<Response<RegressionResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn multi_inference(
        &self,
        _: Request<MultiInferenceRequest>,
    ) -> Result<Response<MultiInferenceResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_model_metadata(
        &self,
        _: Request<GetModelMetadataRequest>,
    ) -> Result<Response<GetModelMetadataResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

pub const MODEL_INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Echoes what `ModelInfer` is called with: a service without the other methods.
#[derive(Clone)]
struct InferEcho;

impl tonic::server::NamedService for InferEcho {
    const NAME: &'static str = "inference.GRPCInferenceService";
}

impl Service<http::Request<Body>> for InferEcho {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let codec = ProstCodec::<ModelInferResponse, ModelInferRequest>::default();
            let mut server = tonic::server::Grpc::new(codec).max_decoding_message_size(1 << 30);
            Ok(server.unary(InferEcho, request).await)
        })
    }
}

impl UnaryService<ModelInferRequest> for InferEcho {
    type Response = ModelInferResponse;
    type Future = Ready<Result<Response<ModelInferResponse>, Status>>;

    fn call(&mut self, request: Request<ModelInferRequest>) -> Self::Future {
        let ModelInferRequest { model_name, inputs, raw_input_contents, .. } = request.into_inner();
        let output = |input: InferInputTensor| InferOutputTensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            ..InferOutputTensor::default()
        };
        ready(Ok(Response::new(ModelInferResponse {
            model_name,
            outputs: inputs.into_iter().map(output).collect(),
            raw_output_contents: raw_input_contents,
            ..ModelInferResponse::default()
        })))
    }
}

/// A bare tonic server with as many threads as the server.
pub fn echo_server() {
    // As in a program without the feature of `tracing` that another library of this one enables.
    let _ = set_global_default(NoSubscriber::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(threads).enable_all().build().expect("runtime");
    runtime.block_on(async {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("listening on grpc://{}", socket.local_addr().expect("address"));
        let incoming = tonic::transport::server::TcpIncoming::from(socket).with_nodelay(Some(true));
        let service = PredictionServiceServer::new(Echo).max_decoding_message_size(1 << 30);
        tonic::transport::Server::builder()
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(8 << 20)
            .add_service(service)
            .add_service(InferEcho)
            .serve_with_incoming(incoming)
            .await
            .expect("serves");
    });
}
