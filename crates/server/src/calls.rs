//! What each gRPC method asks of whoever calls it, and the layer that holds to it. It also sees to
//! it that messages and answers come in time.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Either;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tower_layer::Layer;

use super::arriving::Arriving;
use super::deadline::Deadline;
use super::gate::Gate;
use tensorserve_auth::{Access, Asked, Refusal};

/// Every method there is. One that is missing here is for admins only.
pub(super) const CALLS: [(&str, Access); 11] = [
    ("/tensorflow.serving.PredictionService/Predict", Access::Infer),
    ("/tensorflow.serving.PredictionService/Classify", Access::Infer),
    ("/tensorflow.serving.PredictionService/Regress", Access::Infer),
    ("/tensorflow.serving.PredictionService/MultiInference", Access::Infer),
    ("/tensorflow.serving.PredictionService/GetModelMetadata", Access::Look),
    ("/tensorflow.serving.ModelService/GetModelStatus", Access::Look),
    ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", Access::Admin),
    // For probes, which have no credentials. It says of the whole server whether it serves.
    ("/grpc.health.v1.Health/Check", Access::Open),
    ("/grpc.health.v1.Health/Watch", Access::Open),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Access::Look),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Access::Look),
];

/// What a call of the method at `path` asks for.
fn access(path: &str) -> Access {
    let listed = CALLS.iter().find(|(listed, _)| *listed == path);
    listed.map_or(Access::Admin, |(_, access)| *access)
}

/// Puts the gate before services.
#[derive(Clone)]
pub(super) struct GateLayer {
    pub(super) gate: Gate,
    /// How long the message of a call may take to arrive.
    pub(super) body_timeout: Duration,
}

impl<S> Layer<S> for GateLayer {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { inner, gate: self.gate.clone(), body_timeout: self.body_timeout }
    }
}

/// Services behind the gate.
#[derive(Clone)]
pub(super) struct Gated<S> {
    inner: S,
    gate: Gate,
    body_timeout: Duration,
}

type Response = http::Response<Body>;
type Checked = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;
/// The service's own answer, or a refusal, or either when credentials have been checked.
type Passed<F> = Either<F, Either<Ready<Result<Response, Infallible>>, Checked>>;

impl<S> Service<http::Request<Body>> for Gated<S>
where
    S: Service<http::Request<Body>, Response = Response, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Passed<S::Future>, Checked>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Some(deadline) = Deadline::of(request.headers()) else {
            return Either::Left(self.pass(request));
        };
        request.extensions_mut().insert(deadline);
        Either::Right(deadline.end(self.pass(request)).boxed())
    }
}

impl<S> Gated<S>
where
    S: Service<http::Request<Body>, Response = Response, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    /// Asks the gate, and passes the request on to the service if it may.
    fn pass(&mut self, request: http::Request<Body>) -> Passed<S::Future> {
        // Reflection is a conversation, which may take as long as it likes.
        let request = match request.uri().path().starts_with("/tensorflow.serving.") {
            true => request.map(|body| Body::new(Arriving::new(body, self.body_timeout))),
            false => request,
        };
        let path = request.uri().path();
        let authorization = request.headers().get(http::header::AUTHORIZATION);
        match self.gate.ask(access(path), authorization.map(http::HeaderValue::as_bytes)) {
            Asked::Answered(Ok(_)) => Either::Left(self.inner.call(request)),
            Asked::Answered(Err(refusal)) => {
                Either::Right(Either::Left(ready(Ok(refuse(path, refusal)))))
            }
            Asked::Unknown(checking) => {
                // The clone may not be ready, what was asked whether it is ready is.
                let clone = self.inner.clone();
                let mut inner = std::mem::replace(&mut self.inner, clone);
                let checked = async move {
                    match checking.answer().await {
                        Ok(_) => inner.call(request).await,
                        Err(refusal) => Ok(refuse(request.uri().path(), refusal)),
                    }
                };
                Either::Right(Either::Right(checked.boxed()))
            }
        }
    }
}

fn refuse(path: &str, refusal: Refusal) -> Response {
    let error = refusal.error();
    log::debug!("{path}: {error}");
    let code = tonic::Code::from(i32::from(error.code().grpc()));
    Status::new(code, error.message()).into_http()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_types::FileDescriptorSet;
    use tensorserve_proto::DESCRIPTORS;

    #[test]
    fn every_method_is_listed_and_every_listed_method_is_there() {
        let sets = [
            DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut methods = Vec::new();
        for set in sets {
            for file in FileDescriptorSet::decode(set).unwrap().file {
                for service in &file.service {
                    let name = format!("/{}.{}/", file.package(), service.name());
                    methods.extend(service.method.iter().map(|m| format!("{name}{}", m.name())));
                }
            }
        }
        let mut listed: Vec<_> = CALLS.iter().map(|(path, _)| (*path).to_owned()).collect();
        methods.sort();
        methods.dedup();
        listed.sort();
        assert_eq!(methods, listed);
    }

    #[test]
    fn what_is_not_listed_is_for_admins() {
        assert_eq!(access("/tensorflow.serving.PredictionService/Predict"), Access::Infer);
        for path in ["", "/", "/tensorflow.serving.SessionService/SessionRun", "/grpc.health.v1/x"]
        {
            assert_eq!(access(path), Access::Admin, "{path}");
        }
    }
}
