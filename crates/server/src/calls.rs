//! What stands before all gRPC services: it takes calls through [`admission`], and limits how long messages and
//! responses take.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tensorserve_http2::RequestBody;
use tokio::time::sleep_until;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::service::Routes;

use super::admission::{self, Admission, AdmissionRefusal, Admitted, ArrivedRequest, Asked, Ended};
use super::caught::CaughtCall;
use super::connected::ConnectedClient;
use super::deadline;
use super::gate::Gate;
use super::held_call::HeldBody;
use super::priority;
use super::receipt;
use super::recorded::RecordedCall;
use super::silent::SilentCalls;
use super::timed_body::{Arrival, TimedBody};
use super::unary::{self, PlainOrOther};
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

/// The services behind the admission. Cheap to clone.
#[derive(Clone)]
pub(super) struct GatedCalls {
    routes: Routes,
    limits: Arc<CallLimits>,
}

/// What all calls share.
struct CallLimits {
    admission: Admission,
    api: ServedApi,
    /// How long the message of a call may take to arrive.
    body_timeout: Duration,
    silent_calls: SilentCalls,
}

type GrpcResponse = http::Response<Body>;

impl GatedCalls {
    pub(super) fn new(
        routes: Routes,
        gate: Gate,
        api: &ServedApi,
        body_timeout: Duration,
        silent_calls: SilentCalls,
    ) -> Self {
        let (admission, api) = (Admission::new(gate, api), api.clone());
        let limits = CallLimits { admission, api, body_timeout, silent_calls };
        GatedCalls { routes: routes.prepare(), limits: Arc::new(limits) }
    }

    /// The response to a call.
    pub(super) fn answer(
        &self,
        request: http::Request<RequestBody>,
        client: ConnectedClient,
    ) -> Pin<Box<impl Future<Output = GrpcResponse> + Send + use<>>> {
        let GatedCalls { routes, limits } = self.clone();
        boxed(async move {
            let mut call = GrpcArrival::new(routes, Arc::clone(&limits), request, client);
            let deadline = call.deadline;
            let (record, answer) = {
                let passing = pin!(limits.admission.pass(&mut call));
                match deadline {
                    None => passing.await,
                    Some(deadline) => woken_at(deadline, passing).await,
                }
            };
            let response = answer.unwrap_or_else(|ended| match ended {
                Ended::Panicked => call.caught.status().into_http(),
                Ended::Late => deadline::passed().into_http(),
            });
            match record {
                Some(record) => record.answered(response),
                None => response,
            }
        })
    }
}

/// The future of a call in a box: what holds it moves it, and it is written anew for each call.
fn boxed<F: Future>(call: F) -> Pin<Box<F>> {
    const { assert!(size_of::<F>() <= 4 << 10, "what few calls need belongs into boxes of its own") };
    Box::pin(call)
}

/// `work`, which is woken at `deadline`: it looks at the time itself.
async fn woken_at<F: Future + Unpin>(deadline: Instant, mut work: F) -> F::Output {
    let mut alarm = pin!(sleep_until(deadline.into()));
    poll_fn(|context| {
        let polled = work.poll_unpin(context);
        if polled.is_pending() && alarm.as_mut().poll(context).is_ready() {
            return work.poll_unpin(context);
        }
        polled
    })
    .await
}

/// A call whose head has arrived, and the services that answer it.
struct GrpcArrival {
    routes: Routes,
    limits: Arc<CallLimits>,
    /// Its head.
    request: http::Request<()>,
    /// `None` once it is handed on.
    body: Option<RequestBody>,
    client: ConnectedClient,
    deadline: Option<Instant>,
    permission: Permission,
    /// Its panics.
    caught: CaughtCall,
}

impl GrpcArrival {
    fn new(
        routes: Routes,
        limits: Arc<CallLimits>,
        request: http::Request<RequestBody>,
        client: ConnectedClient,
    ) -> Self {
        let (head, body) = request.into_parts();
        let mut request = http::Request::from_parts(head, ());
        let deadline = deadline::of(request.headers());
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(ClientDeadline(deadline));
        }
        let metrics = limits.api.engine().metrics().clone();
        let caught = CaughtCall::new(request.uri().path_and_query().cloned(), metrics);
        let (body, permission) = (Some(body), Permission::Admin);
        GrpcArrival { routes, limits, request, body, client, deadline, permission, caught }
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

    /// The call for the services, with a body that arrives within limits.
    fn take_request(&mut self, body: RequestBody, arrival: Arrival) -> http::Request<TimedBody> {
        let request = std::mem::take(&mut self.request);
        let silence = (self.client.clone(), self.limits.silent_calls.clone());
        let metrics = self.limits.api.engine().metrics().clone();
        let records = (metrics, request.extensions().get().cloned());
        let limit = self.limits.body_timeout;
        request.map(|()| TimedBody::new(body, limit, arrival, records, silence))
    }

    /// The response of the method.
    async fn respond(&mut self, request: http::Request<TimedBody>) -> GrpcResponse {
        let method = self.limits.api.unary_method(request.uri().path());
        let request = match method.filter(|_| unary::is_plain(&request)) {
            Some(method) => match unary::arrived(request, method.max_message_bytes).await {
                PlainOrOther::Plain(request) => return unary::respond(method, request).await,
                PlainOrOther::Other(request) => request,
            },
            None => request.map(Body::new),
        };
        // Routes are always ready. Their future is large, and most calls do not need it.
        let Ok(response) = Box::pin(self.routes.call(request)).await;
        self.caught.within(response)
    }
}

impl ArrivedRequest for GrpcArrival {
    type Record = RecordedCall;
    type Answer = GrpcResponse;

    fn record(&mut self, observer: &Observer) -> Option<RecordedCall> {
        let recorded = RecordedCall::begin(observer, &self.request, self.client.address)?;
        self.request.extensions_mut().insert(recorded.trace().clone());
        Some(recorded)
    }

    fn trace(record: &RecordedCall) -> &Arc<RequestTrace> {
        record.trace()
    }

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
            address: self.client.address,
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
        let Some(body) = self.body.take() else {
            return Status::internal("the request was handed on before").into_http();
        };
        let arrival = self.arrival(&budget);
        let request = self.take_request(body, arrival);
        let responding = pin!(self.respond(request));
        let mut response = admission::run(&budget, trace, responding).await;
        receipt::add_to_response(&mut response, &budget);
        held(response, budget)
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
