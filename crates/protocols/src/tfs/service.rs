//! TensorFlow Serving's gRPC services.

use std::sync::Arc;

use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status};

use super::config::TensorContent;
use super::reload::{self, ReloadPolicy};
use super::{GRPC, TfsConfig, grpc, inference};
use tensorserve_auth::Permission;
use tensorserve_core::engine::{Engine, EntryPoint, InferenceCall, Method};
use tensorserve_proto::DESCRIPTORS;
use tensorserve_proto::bounded::decode_message;
use tensorserve_proto::serving::model_service_server::{ModelService, ModelServiceServer};
use tensorserve_proto::serving::prediction_service_server::{
    PredictionService, PredictionServiceServer,
};
use tensorserve_proto::serving::{
    ClassificationRequest, ClassificationResponse, GetModelMetadataRequest,
    GetModelMetadataResponse, GetModelStatusRequest, GetModelStatusResponse, MultiInferenceRequest,
    MultiInferenceResponse, PredictRequest, PredictResponse, RegressionRequest, RegressionResponse,
    ReloadConfigRequest, ReloadConfigResponse, StatusProto,
};
use tensorserve_protocol::grpc::{GrpcLimits, GrpcServices, UnaryMethod, call, wrapped};
use tensorserve_tensor::error::{Error, Result};

const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";

/// Every method, and the permission that it requires.
const METHODS: [(&str, Permission); 7] = [
    (PREDICT, Permission::Infer),
    ("/tensorflow.serving.PredictionService/Classify", Permission::Infer),
    ("/tensorflow.serving.PredictionService/Regress", Permission::Infer),
    ("/tensorflow.serving.PredictionService/MultiInference", Permission::Infer),
    ("/tensorflow.serving.PredictionService/GetModelMetadata", Permission::Read),
    ("/tensorflow.serving.ModelService/GetModelStatus", Permission::Read),
    ("/tensorflow.serving.ModelService/HandleReloadConfigRequest", Permission::Admin),
];

/// Adds the services.
pub(super) fn add(
    config: &TfsConfig,
    engine: &Engine,
    limits: GrpcLimits,
    services: &mut GrpcServices,
) {
    let most = limits.max_message_bytes;
    let reload = config.reload.then(|| Arc::new(ReloadPolicy::new(engine.repository_config())));
    let service =
        TfsGrpcService { engine: engine.clone(), tensor_content: config.tensor_content, reload };
    let predict = {
        let service = service.clone();
        move |request| {
            let service = service.clone();
            async move { service.predict(request).await }
        }
    };
    services.unary.push(UnaryMethod::new(PREDICT, limits, decode_message, predict));
    let predictions = PredictionServiceServer::new(service.clone())
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(most)
        .max_encoding_message_size(most);
    let models = ModelServiceServer::new(service)
        .max_decoding_message_size(most)
        .max_encoding_message_size(most);
    services.services.add_service(predictions).add_service(models);
    services.methods.extend(METHODS);
    services.descriptors.push(DESCRIPTORS);
}

#[derive(Clone)]
struct TfsGrpcService {
    engine: Engine,
    tensor_content: TensorContent,
    /// Present if clients may change the list of models.
    reload: Option<Arc<ReloadPolicy>>,
}

impl TfsGrpcService {
    fn call<Q>(&self, method: Method, request: &Request<Q>) -> InferenceCall {
        call(&self.engine, EntryPoint { protocol: GRPC, method }, request)
    }
}

#[tonic::async_trait]
impl PredictionService for TfsGrpcService {
    async fn predict(
        &self,
        request: Request<PredictRequest>,
    ) -> Result<Response<PredictResponse>, Status> {
        let call = self.call(Method::Predict, &request);
        let request = request.into_inner();
        let form = self.tensor_content.form(&request);
        let answer = grpc::predict(&self.engine, request, form, call).await;
        wrapped("Predict", answer)
    }

    async fn classify(
        &self,
        request: Request<ClassificationRequest>,
    ) -> Result<Response<ClassificationResponse>, Status> {
        let call = self.call(Method::Classify, &request);
        let answer = inference::classify(&self.engine, request.into_inner(), call).await;
        wrapped("Classify", answer)
    }

    async fn regress(
        &self,
        request: Request<RegressionRequest>,
    ) -> Result<Response<RegressionResponse>, Status> {
        let call = self.call(Method::Regress, &request);
        let answer = inference::regress(&self.engine, request.into_inner(), call).await;
        wrapped("Regress", answer)
    }

    async fn multi_inference(
        &self,
        request: Request<MultiInferenceRequest>,
    ) -> Result<Response<MultiInferenceResponse>, Status> {
        let call = self.call(Method::MultiInference, &request);
        let answer = inference::multi_inference(&self.engine, request.into_inner(), call).await;
        wrapped("MultiInference", answer)
    }

    async fn get_model_metadata(
        &self,
        request: Request<GetModelMetadataRequest>,
    ) -> Result<Response<GetModelMetadataResponse>, Status> {
        wrapped("GetModelMetadata", grpc::metadata(&self.engine, request.get_ref()))
    }
}

#[tonic::async_trait]
impl ModelService for TfsGrpcService {
    async fn get_model_status(
        &self,
        request: Request<GetModelStatusRequest>,
    ) -> Result<Response<GetModelStatusResponse>, Status> {
        wrapped("GetModelStatus", grpc::status(&self.engine, request.get_ref()))
    }

    /// Returns when the models are ready. The response has no metrics.
    async fn handle_reload_config_request(
        &self,
        request: Request<ReloadConfigRequest>,
    ) -> Result<Response<ReloadConfigResponse>, Status> {
        let config = request.get_ref().config.as_ref();
        let changed: Result<(), Error> = match &self.reload {
            Some(reload) => reload.apply(&self.engine, config).await,
            None => Err(reload::refusal()),
        };
        let ok = StatusProto { error_code: 0, error_message: String::new() };
        let response = ReloadConfigResponse { status: Some(ok), metric: Vec::new() };
        wrapped("HandleReloadConfigRequest", changed.map(|()| response))
    }
}

#[cfg(test)]
mod tests {
    use tensorserve_proto::method_paths;

    use super::*;

    #[test]
    fn the_permissions_cover_exactly_the_methods() {
        let methods = method_paths(DESCRIPTORS).expect("descriptors");
        let mut listed: Vec<_> = METHODS.iter().map(|(path, _)| (*path).to_owned()).collect();
        listed.sort();
        assert_eq!(methods, listed);
    }
}
