//! `ModelStreamInfer`: a stream of requests, and a stream with one response for each, in their order.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, stream};
use prost::Message;
use tonic::{Status, Streaming};

use super::shared_memory::Regions;
use super::{GRPC, grpc};
use tensorserve_core::engine::{Engine, EntryPoint, Method};
use tensorserve_proto::inference::infer_parameter::ParameterChoice;
use tensorserve_proto::inference::{
    InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
};
use tensorserve_protocol::grpc::status;
use tensorserve_tensor::budget::{self, Budgeted, RequestBudget};
use tensorserve_tensor::error::Error;
use tensorserve_tensor::priority::PriorityGrant;

/// The responses of a stream.
pub(super) type Answers =
    Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

/// The requests of a stream that are processed at the same time.
const AT_ONCE: usize = 16;

/// The parameter of a response that has the receipt of its inference.
const RECEIPT: &str = "tensorserve_receipt";

/// How often a stream for whose next request there is no memory looks for some.
const MEMORY_POLL: Duration = Duration::from_millis(10);

/// The responses to a stream of requests.
pub(super) fn answers(
    engine: &Engine,
    regions: &Arc<Regions>,
    requests: Streaming<ModelInferRequest>,
) -> Answers {
    let source = RequestSource { engine: engine.clone(), requests, priority: budget::priority() };
    let (engine, regions) = (engine.clone(), Arc::clone(regions));
    let received = stream::unfold(Some(source), |source| async move {
        let mut source = source?;
        match source.next().await {
            Ok(Some(request)) => Some((Ok(request), Some(source))),
            Ok(None) => None,
            Err(status) => Some((Err(status), None)),
        }
    });
    let answered = received.map(move |received| {
        let (engine, regions) = (engine.clone(), Arc::clone(&regions));
        async move {
            let (budget, request) = received?;
            Ok(Budgeted::new(budget, Box::pin(answer(engine, regions, request))).await)
        }
    });
    Box::pin(answered.buffered(AT_ONCE))
}

struct RequestSource {
    engine: Engine,
    requests: Streaming<ModelInferRequest>,
    /// That of the call, for each of its requests.
    priority: PriorityGrant,
}

impl RequestSource {
    /// The next request, with the memory that it holds; `None` at the end of the stream.
    async fn next(&mut self) -> Result<Option<(RequestBudget, ModelInferRequest)>, Status> {
        // It holds nothing before a message arrives.
        let budget = self.engine.request_memory().silent_request();
        budget.set_priority(self.priority);
        let next = Box::pin(self.requests.message());
        let Some(request) = Budgeted::new(budget.clone(), next).await? else {
            return Ok(None);
        };
        // What arrived with the request before it is accounted for there.
        self.reserve(&budget, request.encoded_len()).await?;
        Ok(Some((budget, request)))
    }

    /// Reserves the memory of a request. While there is none for it, the client waits: it is told by the
    /// flow control of its stream.
    async fn reserve(&self, budget: &RequestBudget, bytes: usize) -> Result<(), Status> {
        loop {
            match budget.begin().and_then(|()| budget.reserve(bytes)) {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_overload() => {
                    return Err(status("ModelStreamInfer", &error));
                }
                Err(_) if self.engine.is_stopping() => {
                    return Err(Status::unavailable("the server is shutting down"));
                }
                Err(_) => tokio::time::sleep(MEMORY_POLL).await,
            }
        }
    }
}

/// The response to one request. Its errors do not end the stream.
async fn answer(
    engine: Engine,
    regions: Arc<Regions>,
    request: ModelInferRequest,
) -> ModelStreamInferResponse {
    let _in_flight = engine.metrics().in_flight();
    let entry = EntryPoint { protocol: GRPC, method: Method::Predict };
    let call = engine.call(entry, Instant::now());
    let id = request.id.clone();
    match grpc::infer(&engine, &regions, request, call).await {
        Ok(mut response) => {
            // The metadata of a stream is sent before its first request arrives.
            if let Some(receipt) = budget::receipt() {
                let receipt = ParameterChoice::StringParam(receipt);
                let receipt = InferParameter { parameter_choice: Some(receipt) };
                response.parameters.insert(RECEIPT.to_owned(), receipt);
            }
            answered(String::new(), response)
        }
        Err(error) => failed(&error, id),
    }
}

fn failed(error: &Error, id: String) -> ModelStreamInferResponse {
    let error_message = status("ModelStreamInfer", error).message().to_owned();
    // The client finds its request by it.
    answered(error_message, ModelInferResponse { id, ..ModelInferResponse::default() })
}

/// A response with the mark that clients of Triton wait for: there is no other one to its request.
fn answered(error_message: String, mut response: ModelInferResponse) -> ModelStreamInferResponse {
    let is_final = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    response.parameters.insert("triton_final_response".to_owned(), is_final);
    ModelStreamInferResponse { error_message, infer_response: Some(response) }
}
