//! Receipts of inferences: the header of an answer, over HTTP and over gRPC, which says which version made it.

use tonic::body::Body;
use tonic::codegen::http::{self, HeaderName, HeaderValue};

use tensorserve_protocol::Reply;
use tensorserve_tensor::budget::RequestBudget;

/// The header. Over gRPC, it is the initial metadata of this name.
const RECEIPT: &str = "x-tensorserve-receipt";

/// The first status of an error.
const FIRST_ERROR: u16 = 400;

/// Adds the receipt of the inference to its response, unless it is an error.
pub(super) fn add_to_reply(reply: &mut Reply, budget: &RequestBudget) {
    let Some(receipt) = budget.receipt() else { return };
    if reply.status < FIRST_ERROR && reply.error.is_none() {
        reply.headers.push((RECEIPT, receipt.to_owned()));
    }
}

/// Adds the receipt of the inference to its response over gRPC, unless it is an error.
pub(super) fn add_to_response(response: &mut http::Response<Body>, budget: &RequestBudget) {
    let Some(receipt) = budget.receipt() else { return };
    // The status of an error is in the head, that of other answers in the trailers.
    let is_error = response.headers().contains_key(tonic::Status::GRPC_STATUS);
    if let Ok(receipt) = HeaderValue::from_str(receipt)
        && !is_error
    {
        response.headers_mut().insert(HeaderName::from_static(RECEIPT), receipt);
    }
}
