//! The layer before all gRPC services: it checks the permission that a method requires, limits how long
//! messages and responses take, and catches panics ([`caught`](super::caught)).

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, Join, Map, join};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tower_layer::Layer;

use super::caught::CaughtService;
use super::deadline;
use super::gate::Gate;
use super::held_call::HeldBody;
use super::incoming::ConnectedClient;
use super::priority;
use super::recorded::RecordedCall;
use super::silent::SilentCalls;
use super::timed_body::{Arrival, TimedBody};
use crate::api::{OWN_METHODS, ServedApi};
use tensorserve_auth::{AuthError, AuthOutcome, Permission};
use tensorserve_core::engine::InFlight;
use tensorserve_protocol::grpc::{ClientDeadline, FollowingFields};
use tensorserve_tensor::budget::{Budgeted, RequestBudget};
use tensorserve_trace::Traced;

/// The permission that the method at `path` requires. A method that is not listed is for admins
/// only.
fn permission(methods: &[(&str, Permission)], path: &str) -> Permission {
    let mut all = methods.iter().chain(&OWN_METHODS);
    let listed = all.find(|(listed, _)| *listed == path);
    listed.map_or(Permission::Admin, |(_, permission)| *permission)
}

/// Puts the gate before services.
#[derive(Clone)]
pub(super) struct GateLayer {
    pub(super) gate: Gate,
    pub(super) api: ServedApi,
    /// How long the message of a call may take to arrive.
    pub(super) body_timeout: Duration,
    pub(super) silent_calls: SilentCalls,
}

impl<S> Layer<S> for GateLayer {
    type Service = GatedService<CaughtService<S>>;

    fn layer(&self, inner: S) -> Self::Service {
        let inner = CaughtService::new(inner, self.api.engine().metrics().clone());
        let (gate, api) = (self.gate.clone(), self.api.clone());
        let (body_timeout, silent_calls) = (self.body_timeout, self.silent_calls.clone());
        GatedService { inner, gate, api, body_timeout, silent_calls }
    }
}

/// Services after the gate.
#[derive(Clone)]
pub(super) struct GatedService<S> {
    inner: S,
    gate: Gate,
    api: ServedApi,
    body_timeout: Duration,
    silent_calls: SilentCalls,
}

type Response = http::Response<Body>;
type CallResult = Result<Response, Infallible>;
/// The service's response, counted as in flight until it is complete.
type InFlightResponse<F> =
    Map<Join<BudgetedCall<F>, Ready<CallResources>>, fn((CallResult, CallResources)) -> CallResult>;
/// The service's response, within the memory of the request.
type BudgetedCall<F> = Budgeted<F>;
/// What a call holds until its response is there, or sent.
type CallResources = (InFlight, RequestBudget);
type Checked = Pin<Box<dyn Future<Output = CallResult> + Send>>;
/// The service's response, or a refusal, or one of them after credentials have been checked.
type Passed<F> = Either<InFlightResponse<F>, Either<Ready<CallResult>, Checked>>;

impl<S> Service<http::Request<Body>> for GatedService<S>
where
    S: Service<http::Request<Body>, Response = Response, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + Unpin,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Passed<S::Future>, Checked>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let recorded = self.record(&mut request);
        let Some(deadline) = deadline::of(request.headers()) else {
            return match recorded {
                None => Either::Left(self.pass(request)),
                Some(recorded) => Either::Right(answered(recorded, self.pass(request))),
            };
        };
        request.extensions_mut().insert(ClientDeadline(deadline));
        let call = deadline::end(deadline, self.pass(request)).boxed();
        Either::Right(match recorded {
            None => call,
            Some(recorded) => answered(recorded, call),
        })
    }
}

impl<S> GatedService<S>
where
    S: Service<http::Request<Body>, Response = Response, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + Unpin,
{
    /// The record of the call, if it is recorded.
    fn record(&self, request: &mut http::Request<Body>) -> Option<RecordedCall> {
        let client = request.extensions().get().and_then(|client: &ConnectedClient| client.address);
        let recorded = RecordedCall::begin(self.api.observer(), request, client)?;
        if let Some(method) = self.api.method_name(request.uri().path()) {
            recorded.trace().note(|facts| facts.route = Some(method.to_owned()));
        }
        request.extensions_mut().insert(recorded.trace().clone());
        Some(recorded)
    }

    /// What the client of the method sends.
    fn arrival(
        &self,
        request: &http::Request<Body>,
        permission: Permission,
        budget: &RequestBudget,
    ) -> Arrival {
        let path = request.uri().path();
        if path.starts_with("/grpc.reflection.") {
            return Arrival::SmallMessages;
        }
        if !self.api.takes_stream(path) {
            let is_probe = permission == Permission::Public;
            return Arrival::Message { budget: budget.clone(), is_probe };
        }
        let authorization = request.headers().get(http::header::AUTHORIZATION);
        Arrival::Messages(authorization.and_then(|value| self.gate.revocation(value.as_bytes())))
    }

    /// Passes the request to the service if the gate admits it.
    fn pass(&mut self, request: http::Request<Body>) -> Passed<S::Future> {
        let path = request.uri().path();
        let permission = permission(self.api.protocol_methods(), path);
        let budget = self.api.silent_budget();
        let (limit, arrival) = (self.body_timeout, self.arrival(&request, permission, &budget));
        let records = (self.api.engine().metrics().clone(), request.extensions().get().cloned());
        let client = request.extensions().get().cloned().unwrap_or_default();
        let ConnectedClient { address, .. } = client;
        let silence = (client, self.silent_calls.clone());
        let request =
            request.map(|body| Body::new(TimedBody::new(body, limit, arrival, records, silence)));
        let path = request.uri().path();
        let authorization = request.headers().get(http::header::AUTHORIZATION);
        let authorization = authorization.map(http::HeaderValue::as_bytes);
        match self.gate.ask(permission, authorization, address) {
            AuthOutcome::Decided(Ok(identity)) => {
                priority::grant(&budget, &identity, asked_priority(&request));
                let in_flight = self.api.engine().metrics().in_flight();
                let call = Budgeted::new(budget.clone(), self.inner.call(request));
                let response = join(call, ready((in_flight, budget)));
                Either::Left(
                    response.map(|(response, (_in_flight, budget))| held(response, budget)),
                )
            }
            AuthOutcome::Decided(Err(refusal)) => {
                self.gate.count(refusal);
                Either::Right(Either::Left(ready(Ok(refuse(path, refusal)))))
            }
            AuthOutcome::Pending(checking) => {
                // Only the service that was polled is ready; its clone may not be.
                let clone = self.inner.clone();
                let mut inner = std::mem::replace(&mut self.inner, clone);
                let (gate, in_flight) =
                    (self.gate.clone(), self.api.engine().metrics().in_flight());
                let checked = async move {
                    let _in_flight = in_flight;
                    match checking.result().await {
                        Ok(identity) => {
                            priority::grant(&budget, &identity, asked_priority(&request));
                            let call = inner.call(request);
                            held(Budgeted::new(budget.clone(), call).await, budget)
                        }
                        Err(refusal) => {
                            gate.count(refusal);
                            Ok(refuse(request.uri().path(), refusal))
                        }
                    }
                };
                Either::Right(Either::Right(checked.boxed()))
            }
        }
    }
}

/// The response of a call that is recorded.
fn answered(
    recorded: RecordedCall,
    call: impl Future<Output = CallResult> + Send + 'static,
) -> Checked {
    let call = Traced::new(Some(recorded.trace().clone()), Box::pin(call));
    call.map(|response| response.map(|response| recorded.answered(response))).boxed()
}

const PRIORITY: http::HeaderName = http::HeaderName::from_static(priority::PRIORITY);

/// What the metadata of a call says about its priority.
fn asked_priority(request: &http::Request<Body>) -> Option<&[u8]> {
    request.headers().get(PRIORITY).map(http::HeaderValue::as_bytes)
}

/// A message of up to this size fits the buffers of its connection.
const SMALL_RESPONSE: usize = 32 << 10;

/// The response, which holds the memory of its request until it is sent.
fn held(response: CallResult, budget: RequestBudget) -> CallResult {
    let Ok(mut response) = response;
    let following = response.extensions_mut().remove::<FollowingFields>();
    if following.is_none() && budget.held() <= SMALL_RESPONSE {
        return Ok(response);
    }
    Ok(response.map(|body| Body::new(HeldBody::new(body, following, budget))))
}

fn refuse(path: &str, refusal: AuthError) -> Response {
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

    #[test]
    fn every_own_method_is_listed_and_every_listed_method_is_there() {
        let sets = [
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
        let mut listed: Vec<_> = OWN_METHODS.iter().map(|(path, _)| (*path).to_owned()).collect();
        methods.sort();
        methods.dedup();
        listed.sort();
        assert_eq!(methods, listed);
    }

    #[test]
    fn what_is_not_listed_is_for_admins() {
        let methods = [("/x.Y/Z", Permission::Infer)];
        assert_eq!(permission(&methods, "/x.Y/Z"), Permission::Infer);
        let health = "/grpc.health.v1.Health/Check";
        assert_eq!(permission(&methods, health), Permission::Public);
        for path in ["", "/", "/tensorflow.serving.SessionService/SessionRun", "/grpc.health.v1/x"]
        {
            assert_eq!(permission(&methods, path), Permission::Admin, "{path}");
        }
    }
}
