//! `grpc.health.v1.Health`: readiness as gRPC's own probes ask for it.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

use tensorserve_core::engine::Engine;

/// The names that can be asked for: as TensorFlow Serving has them, and in full.
const NAMES: [&str; 5] = [
    "",
    "PredictionService",
    "ModelService",
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
];

/// How often readiness is looked at for those who watch.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The service. All names have the state of the whole server.
pub(super) struct Health {
    pub(super) engine: Engine,
    /// True once calls have to end.
    pub(super) ends: watch::Receiver<bool>,
}

fn status_of(engine: &Engine, name: &str) -> ServingStatus {
    if !NAMES.contains(&name) {
        return ServingStatus::ServiceUnknown;
    }
    match engine.readiness() {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let status = status_of(&self.engine, &request.get_ref().service);
        if status == ServingStatus::ServiceUnknown {
            return Err(Status::not_found("service not registered"));
        }
        Ok(Response::new(response(status)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    /// Tells the state at once, and then each time it changes.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (engine, ends) = (self.engine.clone(), self.ends.clone());
        let watched = (request.into_inner().service, None);
        let changes = unfold(watched, move |(name, told)| {
            let (engine, ends) = (engine.clone(), ends.clone());
            async move {
                loop {
                    let status = status_of(&engine, &name);
                    if told != Some(status) {
                        return Some((Ok(response(status)), (name, Some(status))));
                    }
                    if *ends.borrow() {
                        return None;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
