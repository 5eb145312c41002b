//! The layer before all gRPC services: it takes calls through [`admission`], and limits how long
//! messages and responses take.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tower_layer::Layer;

use super::admission::{self, Admission, AdmissionRefusal, Admitted, ArrivedRequest, Asked, Ended};
use super::caught::CaughtCall;
use super::deadline;
use super::gate::Gate;
use super::held_call::HeldBody;
use super::incoming::ConnectedClient;
use super::priority;
use super::receipt;
use super::recorded::RecordedCall;
use super::silent::SilentCalls;
use super::timed_body::{Arrival, TimedBody};
use crate::api::{OWN_METHODS, ServedApi};
use tensorserve_auth::Permission;
use tensorserve_protocol::grpc::{ClientDeadline, FollowingFields};
use tensorserve_tensor::budget::RequestBudget;
use tensorserve_tensor::error::Result;
use tensorserve_trace::{Observer, RequestTrace};

/// The permission that the method at `path` requires. A method that is not listed is for admins
/// only.
fn permission(methods: &[(&str, Permission)], path: &str) -> Permission {
    let mut all = methods.iter().chain(&OWN_METHODS);
    let listed = all.find(|(listed, _)| *listed == path);
    listed.map_or(Permission::Admin, |(_, permission)| *permission)
}

/// Puts the admission before services.
#[derive(Clone)]
pub(super) struct GateLayer(Arc<CallLimits>);

/// What all calls share.
struct CallLimits {
    admission: Admission,
    api: ServedApi,
    /// How long the message of a call may take to arrive.
    body_timeout: Duration,
    silent_calls: SilentCalls,
}

impl GateLayer {
    pub(super) fn new(
        gate: Gate,
        api: &ServedApi,
        body_timeout: Duration,
        silent_calls: SilentCalls,
    ) -> Self {
        let (admission, api) = (Admission::new(gate, api), api.clone());
        GateLayer(Arc::new(CallLimits { admission, api, body_timeout, silent_calls }))
    }
}

impl<S> Layer<S> for GateLayer {
    type Service = GatedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        GatedService { inner, limits: Arc::clone(&self.0) }
    }
}

/// Services after the admission.
#[derive(Clone)]
pub(super) struct GatedService<S> {
    inner: S,
    limits: Arc<CallLimits>,
}

type GrpcResponse = http::Response<Body>;

impl<S> Service<http::Request<Body>> for GatedService<S>
where
    S: Service<http::Request<Body>, Response = GrpcResponse, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    type Response = GrpcResponse;
    type Error = Infallible;
    type Future = BoxFuture<GrpcResponse, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // Only the service that was polled is ready; its clone may not be.
        let clone = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, clone);
        let call = GrpcArrival::new(service, Arc::clone(&self.limits), request);
        Box::pin(async move { Ok(answer(call).await) })
    }
}

/// The response to a call.
async fn answer<S>(mut call: GrpcArrival<S>) -> GrpcResponse
where
    S: Service<http::Request<Body>, Response = GrpcResponse, Error = Infallible> + Send,
    S::Future: Send,
{
    let limits = Arc::clone(&call.limits);
    let (record, answer) = limits.admission.pass(&mut call).await;
    let response = answer.unwrap_or_else(|ended| match ended {
        Ended::Panicked => call.caught.status().into_http(),
        Ended::Late => deadline::passed().into_http(),
    });
    match record {
        Some(record) => record.answered(response),
        None => response,
    }
}

/// A call whose head has arrived, and the service that answers it.
struct GrpcArrival<S> {
    service: S,
    limits: Arc<CallLimits>,
    request: http::Request<Body>,
    deadline: Option<Instant>,
    permission: Permission,
    /// Its panics.
    caught: CaughtCall,
}

impl<S> GrpcArrival<S> {
    fn new(service: S, limits: Arc<CallLimits>, mut request: http::Request<Body>) -> Self {
        let deadline = deadline::of(request.headers());
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(ClientDeadline(deadline));
        }
        let metrics = limits.api.engine().metrics().clone();
        let caught = CaughtCall::new(request.uri().path_and_query().cloned(), metrics);
        let permission = Permission::Admin;
        GrpcArrival { service, limits, request, deadline, permission, caught }
    }

    /// The client's address, if it is known.
    fn address(&self) -> Option<IpAddr> {
        let client: &ConnectedClient = self.request.extensions().get()?;
        client.address
    }

    /// What the client of the method sends.
    fn arrival(&self, budget: &RequestBudget) -> Arrival {
        let path = self.request.uri().path();
        if path.starts_with("/grpc.reflection.") {
            return Arrival::SmallMessages;
        }
        if !self.limits.api.takes_stream(path) {
            let is_probe = self.permission == Permission::Public;
            return Arrival::Message { budget: budget.clone(), is_probe };
        }
        let gate = self.limits.admission.gate();
        let authorization = self.request.headers().get(http::header::AUTHORIZATION);
        Arrival::Messages(authorization.and_then(|value| gate.revocation(value.as_bytes())))
    }

    /// The call for the service, with a body that arrives within limits.
    fn take_request(&mut self, arrival: Arrival) -> http::Request<Body> {
        let request = std::mem::take(&mut self.request);
        let client = request.extensions().get().cloned().unwrap_or_default();
        let silence = (client, self.limits.silent_calls.clone());
        let metrics = self.limits.api.engine().metrics().clone();
        let records = (metrics, request.extensions().get().cloned());
        let limit = self.limits.body_timeout;
        request.map(|body| Body::new(TimedBody::new(body, limit, arrival, records, silence)))
    }
}

impl<S> ArrivedRequest for GrpcArrival<S>
where
    S: Service<http::Request<Body>, Response = GrpcResponse, Error = Infallible> + Send,
    S::Future: Send,
{
    type Record = RecordedCall;
    type Answer = GrpcResponse;

    fn record(&mut self, observer: &Observer) -> Option<RecordedCall> {
        let recorded = RecordedCall::begin(observer, &self.request, self.address())?;
        self.request.extensions_mut().insert(recorded.trace().clone());
        Some(recorded)
    }

    fn trace(record: &RecordedCall) -> &Arc<RequestTrace> {
        record.trace()
    }

    /// The gRPC library has a timer for it.
    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn ask(&mut self, _gate: &Gate, trace: Option<&Arc<RequestTrace>>) -> Result<Asked<'_>> {
        let path = self.request.uri().path();
        if let Some(trace) = trace
            && let Some(method) = self.limits.api.method_name(path)
        {
            trace.note(|facts| facts.route = Some(method.to_owned()));
        }
        self.permission = permission(self.limits.api.protocol_methods(), path);
        let headers = self.request.headers();
        let bytes = |name| headers.get(name).map(http::HeaderValue::as_bytes);
        Ok(Asked {
            permission: self.permission,
            authorization: bytes(http::header::AUTHORIZATION),
            address: self.address(),
            priority: bytes(PRIORITY),
        })
    }

    fn refuse(&mut self, refusal: AdmissionRefusal) -> GrpcResponse {
        let error = match refusal {
            AdmissionRefusal::Request(error) => error,
            AdmissionRefusal::Client(refusal) => refusal.error(),
        };
        log::debug!("{}: {error}", self.request.uri().path());
        let code = tonic::Code::from(i32::from(error.code().grpc()));
        Status::new(code, error.message()).into_http()
    }

    async fn handle(&mut self, admitted: Admitted<'_>) -> GrpcResponse {
        let Admitted { budget, trace, .. } = admitted;
        let arrival = self.arrival(&budget);
        let request = self.take_request(arrival);
        let answering = pin!(self.service.call(request));
        let Ok(mut response) = admission::run(&budget, trace, answering).await;
        receipt::add_to_response(&mut response, &budget);
        held(self.caught.within(response), budget)
    }
}

/// The metadata that asks for a priority.
const PRIORITY: http::HeaderName = http::HeaderName::from_static(priority::PRIORITY);

/// A message of up to this size fits the buffers of its connection.
const SMALL_RESPONSE: usize = 32 << 10;

/// The response, which holds the memory of its request until it is sent.
fn held(mut response: GrpcResponse, budget: RequestBudget) -> GrpcResponse {
    let following = response.extensions_mut().remove::<FollowingFields>();
    if following.is_none() && budget.held() <= SMALL_RESPONSE {
        return response;
    }
    response.map(|body| Body::new(HeldBody::new(body, following, budget)))
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
