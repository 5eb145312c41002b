//! `grpc.health.v1.Health`: readiness, for gRPC health probes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

use crate::api::ServedApi;
use crate::drain::ListenerActivity;

/// How often readiness is checked for clients that watch.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The most clients that watch at a time.
const MOST_WATCHERS: usize = 1024;

/// The service. All service names have the readiness of the whole server.
pub(super) struct HealthService {
    api: ServedApi,
    activity: ListenerActivity,
    watchers: Arc<Semaphore>,
}

impl HealthService {
    pub(super) fn new(api: ServedApi, activity: ListenerActivity) -> Self {
        HealthService { api, activity, watchers: Arc::new(Semaphore::new(MOST_WATCHERS)) }
    }
}

/// Whether `name` is the name of a service: with its package, without it as in TensorFlow Serving,
/// or empty for the whole server.
fn is_service(api: &ServedApi, name: &str) -> bool {
    name.is_empty()
        || api.protocol_methods().iter().any(|(path, _)| {
            let service = path.trim_start_matches('/').split('/').next().unwrap_or_default();
            service == name || service.rsplit('.').next() == Some(name)
        })
}

fn status_of(api: &ServedApi, name: &str) -> ServingStatus {
    if !is_service(api, name) {
        return ServingStatus::ServiceUnknown;
    }
    match api.engine().readiness() {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for HealthService {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = status_of(&self.api, &request.get_ref().service);
        if status == ServingStatus::ServiceUnknown {
            return Err(Status::not_found("service not registered"));
        }
        Ok(Response::new(response(status)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Sends the state at once, and then whenever it changes.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let Ok(place) = Arc::clone(&self.watchers).try_acquire_owned() else {
            let message = format!("{MOST_WATCHERS} clients already watch; call Check instead");
            return Err(Status::resource_exhausted(message));
        };
        let (api, activity) = (self.api.clone(), self.activity.clone());
        let watched = (request.into_inner().service, None);
        let changes = unfold(watched, move |(name, told)| {
            // The closure holds it until the stream is dropped.
            let _ = &place;
            let (api, activity) = (api.clone(), activity.clone());
            async move {
                loop {
                    let status = status_of(&api, &name);
                    if told != Some(status) {
                        return Some((Ok(response(status)), (name, Some(status))));
                    }
                    if activity.is_ending() {
                        return None;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
