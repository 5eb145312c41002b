//! The gRPC service.

use std::sync::Arc;

use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status, Streaming};

use super::describe::{self, ModelMetadata, TensorMetadata};
use super::model_config::{TensorConfig, TritonModelConfig};
use super::request::NamedModel;
use super::settings::{self, LogSettings};
use super::shared_memory::{Region, Regions};
use super::statistics::{self, ModelStatistics};
use super::stream::{self, Answers};
use super::{GRPC, grpc, repository};
use tensorserve_auth::Permission;
use tensorserve_core::engine::{Engine, EntryPoint, Method, REQUEST, Statistics, Total};
use tensorserve_proto::OPEN_INFERENCE_DESCRIPTORS;
use tensorserve_proto::bounded::decode_message;
use tensorserve_proto::inference::grpc_inference_service_server::{
    GrpcInferenceService, GrpcInferenceServiceServer,
};
use tensorserve_proto::inference::log_settings_response::SettingValue as LogValue;
use tensorserve_proto::inference::log_settings_response::setting_value::ParameterChoice;
use tensorserve_proto::inference::model_metadata_response::TensorMetadata as TensorMetadataProto;
use tensorserve_proto::inference::repository_index_response::ModelIndex;
use tensorserve_proto::inference::system_shared_memory_status_response::RegionStatus;
use tensorserve_proto::inference::trace_setting_response::SettingValue as TraceValue;
use tensorserve_proto::inference::{self as proto, DataType};
use tensorserve_protocol::grpc::{GrpcLimits, GrpcServices, UnaryMethod, call, wrapped};
use tensorserve_tensor::error::{Code, Error, Result};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Every method, and the permission that it requires.
const METHODS: [(&str, Permission); 19] = [
    ("/inference.GRPCInferenceService/ServerLive", Permission::Public),
    ("/inference.GRPCInferenceService/ServerReady", Permission::Public),
    ("/inference.GRPCInferenceService/ModelReady", Permission::Read),
    ("/inference.GRPCInferenceService/ServerMetadata", Permission::Read),
    ("/inference.GRPCInferenceService/ModelMetadata", Permission::Read),
    (INFER, Permission::Infer),
    (STREAM, Permission::Infer),
    ("/inference.GRPCInferenceService/ModelConfig", Permission::Read),
    ("/inference.GRPCInferenceService/ModelStatistics", Permission::Read),
    ("/inference.GRPCInferenceService/RepositoryIndex", Permission::Read),
    ("/inference.GRPCInferenceService/RepositoryModelLoad", Permission::Admin),
    ("/inference.GRPCInferenceService/RepositoryModelUnload", Permission::Admin),
    ("/inference.GRPCInferenceService/SystemSharedMemoryStatus", Permission::Read),
    ("/inference.GRPCInferenceService/SystemSharedMemoryRegister", Permission::Admin),
    ("/inference.GRPCInferenceService/SystemSharedMemoryUnregister", Permission::Admin),
    ("/inference.GRPCInferenceService/CudaSharedMemoryStatus", Permission::Read),
    ("/inference.GRPCInferenceService/CudaSharedMemoryUnregister", Permission::Admin),
    ("/inference.GRPCInferenceService/TraceSetting", Permission::Read),
    ("/inference.GRPCInferenceService/LogSettings", Permission::Read),
];

/// Adds the service. `admin`: clients may load and unload models.
pub(super) fn add(
    engine: &Engine,
    admin: bool,
    regions: &Arc<Regions>,
    limits: GrpcLimits,
    services: &mut GrpcServices,
) {
    let most = limits.max_message_bytes;
    let service = Arc::new(InferenceService {
        engine: engine.clone(),
        admin,
        regions: Arc::clone(regions),
        max_message_bytes: most,
    });
    let infer = {
        let service = Arc::clone(&service);
        move |request| {
            let service = Arc::clone(&service);
            async move { service.model_infer(request).await }
        }
    };
    services.unary.push(UnaryMethod::new(INFER, limits, decode_message, infer));
    let service = GrpcInferenceServiceServer::from_arc(service)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .max_decoding_message_size(most)
        .max_encoding_message_size(most);
    services.services.add_service(service);
    services.methods.extend(METHODS);
    services.streams.push(STREAM);
    services.descriptors.push(OPEN_INFERENCE_DESCRIPTORS);
}

struct InferenceService {
    engine: Engine,
    admin: bool,
    regions: Arc<Regions>,
    max_message_bytes: usize,
}

impl InferenceService {
    /// Refuses changes by clients that no one has authenticated, as the gate does over HTTP.
    fn check_admin(&self) -> Result<()> {
        if self.admin {
            return Ok(());
        }
        let message = "this server is not changed on request: other machines can reach it, and clients do \
                       not authenticate; set auth_file to allow it";
        Err(Error::new(Code::PermissionDenied, message))
    }

    /// A model as a load or an unload names it: Triton's clients in the second field, KServe's in the
    /// first.
    fn changed_model(&self, first: &str, second: &str) -> Result<String> {
        self.check_admin()?;
        let name = if second.is_empty() { first } else { second };
        match name.is_empty() {
            true => Err(Error::invalid("the request lacks the name of a model")),
            false => Ok(name.to_owned()),
        }
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    async fn server_live(
        &self,
        _request: Request<proto::ServerLiveRequest>,
    ) -> Result<Response<proto::ServerLiveResponse>, Status> {
        Ok(Response::new(proto::ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _request: Request<proto::ServerReadyRequest>,
    ) -> Result<Response<proto::ServerReadyResponse>, Status> {
        let ready = self.engine.readiness().is_ok();
        Ok(Response::new(proto::ServerReadyResponse { ready }))
    }

    async fn model_ready(
        &self,
        request: Request<proto::ModelReadyRequest>,
    ) -> Result<Response<proto::ModelReadyResponse>, Status> {
        let proto::ModelReadyRequest { name, version } = request.into_inner();
        let named = NamedModel { name, version };
        let answer = match describe::ready_version(&self.engine, &named) {
            Ok(_) => Ok(true),
            // As in Triton, also for a model that the server does not have.
            Err(error) if matches!(error.code(), Code::NotFound | Code::Unavailable) => Ok(false),
            Err(error) => Err(error),
        };
        wrapped("ModelReady", answer.map(|ready| proto::ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _request: Request<proto::ServerMetadataRequest>,
    ) -> Result<Response<proto::ServerMetadataResponse>, Status> {
        Ok(Response::new(proto::ServerMetadataResponse {
            name: describe::NAME.to_owned(),
            version: describe::VERSION.to_owned(),
            extensions: describe::EXTENSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<proto::ModelMetadataRequest>,
    ) -> Result<Response<proto::ModelMetadataResponse>, Status> {
        let proto::ModelMetadataRequest { name, version } = request.into_inner();
        let metadata = ModelMetadata::of(&self.engine, &NamedModel { name, version });
        wrapped("ModelMetadata", metadata.map(metadata_proto))
    }

    async fn model_infer(
        &self,
        request: Request<proto::ModelInferRequest>,
    ) -> Result<Response<proto::ModelInferResponse>, Status> {
        let entry = EntryPoint { protocol: GRPC, method: Method::Predict };
        let call = call(&self.engine, entry, &request);
        let answer = grpc::infer(&self.engine, &self.regions, request.into_inner(), call).await;
        let mut response = wrapped("ModelInfer", answer)?;
        let most = self.max_message_bytes;
        if let Some(following) = grpc::take_raw_contents(response.get_mut(), most) {
            response.extensions_mut().insert(following);
        }
        Ok(response)
    }

    type ModelStreamInferStream = Answers;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<proto::ModelInferRequest>>,
    ) -> Result<Response<Answers>, Status> {
        Ok(Response::new(stream::answers(&self.engine, &self.regions, request.into_inner())))
    }

    async fn model_config(
        &self,
        request: Request<proto::ModelConfigRequest>,
    ) -> Result<Response<proto::ModelConfigResponse>, Status> {
        let proto::ModelConfigRequest { name, version } = request.into_inner();
        let config = TritonModelConfig::of(&self.engine, &NamedModel { name, version });
        let config = config.map(|config| Some(config_proto(&config)));
        wrapped("ModelConfig", config.map(|config| proto::ModelConfigResponse { config }))
    }

    async fn model_statistics(
        &self,
        request: Request<proto::ModelStatisticsRequest>,
    ) -> Result<Response<proto::ModelStatisticsResponse>, Status> {
        let proto::ModelStatisticsRequest { name, version } = request.into_inner();
        let found = statistics::of(&self.engine, &NamedModel { name, version });
        let found = found.map(|models| proto::ModelStatisticsResponse {
            model_stats: models.iter().map(statistics_proto).collect(),
        });
        wrapped("ModelStatistics", found)
    }

    async fn repository_index(
        &self,
        request: Request<proto::RepositoryIndexRequest>,
    ) -> Result<Response<proto::RepositoryIndexResponse>, Status> {
        let all = repository::index(&self.engine, request.get_ref().ready);
        let model = |entry: repository::IndexEntry| ModelIndex {
            name: entry.name,
            version: entry.version,
            state: entry.state.to_owned(),
            reason: entry.reason,
        };
        let models = all.into_iter().map(model).collect();
        Ok(Response::new(proto::RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<proto::RepositoryModelLoadRequest>,
    ) -> Result<Response<proto::RepositoryModelLoadResponse>, Status> {
        let proto::RepositoryModelLoadRequest { repository_name, model_name, parameters } =
            request.into_inner();
        let load = async {
            repository::check_parameters(parameters.keys().map(String::as_str))?;
            let name = self.changed_model(&repository_name, &model_name)?;
            repository::load(&self.engine, &name, REQUEST).await?;
            Ok(proto::RepositoryModelLoadResponse { model_name: name, is_loaded: true })
        };
        wrapped("RepositoryModelLoad", load.await)
    }

    async fn repository_model_unload(
        &self,
        request: Request<proto::RepositoryModelUnloadRequest>,
    ) -> Result<Response<proto::RepositoryModelUnloadResponse>, Status> {
        let proto::RepositoryModelUnloadRequest { repository_name, model_name, .. } =
            request.into_inner();
        let unload = async {
            let name = self.changed_model(&repository_name, &model_name)?;
            repository::unload(&self.engine, &name, REQUEST).await?;
            Ok(proto::RepositoryModelUnloadResponse { model_name: name, is_unloaded: true })
        };
        wrapped("RepositoryModelUnload", unload.await)
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<proto::SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<proto::SystemSharedMemoryStatusResponse>, Status> {
        let status = |region: Arc<Region>| {
            let Region { name, key, offset, byte_size, .. } = &*region;
            let (name, key) = (name.clone(), key.clone());
            (name.clone(), RegionStatus { name, key, offset: *offset, byte_size: *byte_size })
        };
        let found = self.regions.status(&request.get_ref().name);
        let found = found.map(|regions| proto::SystemSharedMemoryStatusResponse {
            regions: regions.into_iter().map(status).collect(),
        });
        wrapped("SystemSharedMemoryStatus", found)
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<proto::SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<proto::SystemSharedMemoryRegisterResponse>, Status> {
        let proto::SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } =
            request.into_inner();
        let registered = self.check_admin();
        let registered =
            registered.and_then(|()| self.regions.register(&name, &key, offset, byte_size));
        let done = registered.map(|()| proto::SystemSharedMemoryRegisterResponse {});
        wrapped("SystemSharedMemoryRegister", done)
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<proto::SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<proto::SystemSharedMemoryUnregisterResponse>, Status> {
        let done = self.regions.unregister(&request.get_ref().name);
        let done = done.map(|()| proto::SystemSharedMemoryUnregisterResponse {});
        wrapped("SystemSharedMemoryUnregister", done)
    }

    async fn cuda_shared_memory_status(
        &self,
        _request: Request<proto::CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<proto::CudaSharedMemoryStatusResponse>, Status> {
        Ok(Response::new(proto::CudaSharedMemoryStatusResponse {}))
    }

    /// Clients that use no CUDA memory call it as well, before they begin.
    async fn cuda_shared_memory_unregister(
        &self,
        _request: Request<proto::CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<proto::CudaSharedMemoryUnregisterResponse>, Status> {
        Ok(Response::new(proto::CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(
        &self,
        request: Request<proto::TraceSettingRequest>,
    ) -> Result<Response<proto::TraceSettingResponse>, Status> {
        if !request.get_ref().settings.is_empty() {
            return wrapped("TraceSetting", Err(settings::refusal()));
        }
        if let Err(error) = settings::check_model(&self.engine, &request.get_ref().model_name) {
            return wrapped("TraceSetting", Err(error));
        }
        let value = |text: &str| TraceValue { value: vec![text.to_owned()] };
        let settings = settings::TRACE.map(|(name, text)| (name.to_owned(), value(text))).into();
        Ok(Response::new(proto::TraceSettingResponse { settings }))
    }

    async fn log_settings(
        &self,
        request: Request<proto::LogSettingsRequest>,
    ) -> Result<Response<proto::LogSettingsResponse>, Status> {
        if !request.get_ref().settings.is_empty() {
            return wrapped("LogSettings", Err(settings::refusal()));
        }
        let LogSettings { info, warning, error, verbose_level } = LogSettings::now();
        let settings = [
            ("log_file", ParameterChoice::StringParam(String::new())),
            ("log_info", ParameterChoice::BoolParam(info)),
            ("log_warning", ParameterChoice::BoolParam(warning)),
            ("log_error", ParameterChoice::BoolParam(error)),
            ("log_verbose_level", ParameterChoice::Uint32Param(verbose_level)),
            ("log_format", ParameterChoice::StringParam("default".to_owned())),
        ];
        let value = |choice| LogValue { parameter_choice: Some(choice) };
        let settings = settings.map(|(name, choice)| (name.to_owned(), value(choice))).into();
        Ok(Response::new(proto::LogSettingsResponse { settings }))
    }
}

fn metadata_proto(metadata: ModelMetadata) -> proto::ModelMetadataResponse {
    let tensor = |tensor: TensorMetadata| TensorMetadataProto {
        name: tensor.name,
        datatype: tensor.datatype.to_owned(),
        shape: tensor.shape,
    };
    proto::ModelMetadataResponse {
        name: metadata.name,
        versions: metadata.versions,
        platform: metadata.platform,
        inputs: metadata.inputs.into_iter().map(tensor).collect(),
        outputs: metadata.outputs.into_iter().map(tensor).collect(),
    }
}

fn config_proto(config: &TritonModelConfig) -> proto::ModelConfig {
    let dtype = |tensor: &TensorConfig| {
        DataType::from_str_name(&tensor.type_name()).unwrap_or(DataType::TypeInvalid).into()
    };
    let input = |tensor: &TensorConfig| proto::ModelInput {
        name: tensor.name.clone(),
        data_type: dtype(tensor),
        dims: tensor.dims.clone(),
    };
    let output = |tensor: &TensorConfig| proto::ModelOutput {
        name: tensor.name.clone(),
        data_type: dtype(tensor),
        dims: tensor.dims.clone(),
    };
    proto::ModelConfig {
        name: config.name.clone(),
        platform: config.platform.clone(),
        max_batch_size: i32::try_from(config.max_batch_size).unwrap_or(i32::MAX),
        input: config.inputs.iter().map(input).collect(),
        output: config.outputs.iter().map(output).collect(),
        backend: config.backend().to_owned(),
    }
}

fn statistics_proto(model: &ModelStatistics) -> proto::ModelStatistics {
    let total =
        |total: Total| Some(proto::StatisticDuration { count: total.count, ns: total.nanoseconds });
    let Statistics { succeeded, failed, queued, runs, last_success, .. } = model.totals;
    proto::ModelStatistics {
        name: model.name.clone(),
        version: model.version.clone(),
        last_inference: last_success,
        inference_count: model.inference_count(),
        execution_count: runs.count,
        inference_stats: Some(proto::InferStatistics {
            success: total(succeeded),
            fail: total(failed),
            queue: total(queued),
            compute_input: total(Total::default()),
            compute_infer: total(runs),
            compute_output: total(Total::default()),
            cache_hit: total(Total::default()),
            cache_miss: total(Total::default()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tensorserve_proto::method_paths;

    use super::*;

    #[test]
    fn the_permissions_cover_exactly_the_methods() {
        let methods = method_paths(OPEN_INFERENCE_DESCRIPTORS).expect("descriptors");
        let mut listed: Vec<_> = METHODS.iter().map(|(path, _)| (*path).to_owned()).collect();
        listed.sort();
        assert_eq!(methods, listed);
    }
}
