//! Calls without tensors, in a transport-independent form.

use axum::{
    Router,
    body::Body,
    http::{Method, Request},
};
use oip_grpc::{
    GrpcService,
    proto::{
        CudaSharedMemoryRegisterRequest, CudaSharedMemoryStatusRequest, CudaSharedMemoryUnregisterRequest,
        LogSettingsRequest, ModelConfigRequest, ModelMetadataRequest, ModelReadyRequest,
        ModelRepositoryParameter, ModelStatisticsRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
        RepositoryModelUnloadRequest, SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusRequest,
        SystemSharedMemoryUnregisterRequest, TraceSettingRequest,
        grpc_inference_service_client::GrpcInferenceServiceClient,
        log_settings_request::{SettingValue, setting_value::ParameterChoice as LogChoice},
        model_repository_parameter::ParameterChoice,
    },
};
use oip_types::ErrorCode::{self, *};
use serde_json::{Value, json};
use tonic::{Response, Status};

use super::{
    answered,
    neutral::{Parameter, encode, parameters, to_json},
};

type Parameters = Vec<(String, Parameter)>;

/// A call. Strings name models, versions, repositories or regions; an empty string means none.
#[derive(Clone)]
pub(super) enum Call {
    Metadata(&'static str, &'static str),
    Ready(&'static str, &'static str),
    Config(&'static str, &'static str),
    Statistics(&'static str, &'static str),
    Index {
        repository: &'static str,
    },
    Load(&'static str, Parameters),
    Unload(&'static str, Parameters),
    LogSettings(Parameters),
    Status(&'static str),
    Register {
        name: &'static str,
        key: &'static str,
        byte_size: u64,
    },
    Unregister(&'static str),
    CudaStatus,
    CudaRegister,
    CudaUnregister,
    Trace,
}

/// A call, its outcome (`None` for success), and the message.
pub(super) type Row = (Call, Option<ErrorCode>, &'static str);

/// Returns calls to a service with every extension, in order: some depend on the effects of earlier ones.
pub(super) fn calls() -> Vec<Row> {
    use Call::*;
    let refused = |call, code, message| (call, Some(code), message);
    let fine = |call| (call, None, "");
    let with = |name: &str, value: Parameter| parameters(&[(name, value)]);
    vec![
        fine(Metadata("matrix", "2")),
        refused(Metadata("zz", ""), NotFound, "model 'zz' does not exist"),
        refused(
            Metadata("matrix", "99"),
            NotFound,
            "model 'matrix' version '99' does not exist",
        ),
        refused(
            Metadata("matrix", "../1"),
            InvalidArgument,
            "model version '../1' must not contain a path separator",
        ),
        refused(
            Metadata("..", ""),
            InvalidArgument,
            "model name '..' must not be a path or a hidden file's name",
        ),
        refused(
            Metadata("loading", ""),
            Unavailable,
            "model 'loading' is not ready: it is being loaded",
        ),
        refused(Ready("zz", ""), NotFound, "model 'zz' does not exist"),
        refused(
            Ready("matrix", "99"),
            NotFound,
            "model 'matrix' version '99' does not exist",
        ),
        fine(Config("matrix", "")),
        refused(Config("zz", ""), NotFound, "model 'zz' does not exist"),
        refused(
            Config("matrix", "99"),
            NotFound,
            "model 'matrix' version '99' does not exist",
        ),
        refused(
            Config("a/b", ""),
            InvalidArgument,
            "model name 'a/b' must not contain a path separator",
        ),
        fine(Statistics("", "")),
        fine(Statistics("matrix", "1")),
        refused(Statistics("zz", ""), NotFound, "model 'zz' does not exist"),
        refused(
            Statistics("matrix", "99"),
            NotFound,
            "model 'matrix' version '99' does not exist",
        ),
        refused(
            Statistics("..", ""),
            InvalidArgument,
            "model name '..' must not be a path or a hidden file's name",
        ),
        fine(Index { repository: "" }),
        refused(
            Index { repository: "other" },
            Unimplemented,
            "'repository_name' specification is not supported",
        ),
        fine(Load("nan", vec![])),
        fine(Load("nan", with("config", Parameter::String("{}")))),
        refused(Load("zz", vec![]), NotFound, "model 'zz' does not exist"),
        refused(
            Load("locked", vec![]),
            Unavailable,
            "loading and unloading by request is not allowed",
        ),
        refused(
            Load("../etc", vec![]),
            InvalidArgument,
            "model name '../etc' must not contain a path separator",
        ),
        refused(
            Load("..", vec![]),
            InvalidArgument,
            "model name '..' must not be a path or a hidden file's name",
        ),
        refused(
            Load("nan", with("config", Parameter::Int(1))),
            InvalidArgument,
            "model 'nan': parameter 'config': expected a string, found 1",
        ),
        refused(
            Load("nan", with("file:1/m", Parameter::String("AA=="))),
            InvalidArgument,
            "model 'nan': parameter 'file:1/m': models cannot be uploaded in requests; put the file into \
             the repository",
        ),
        refused(
            Load("nan", with("x", Parameter::Bool(true))),
            InvalidArgument,
            "model 'nan': unexpected parameter 'x'; expected config or none",
        ),
        fine(Unload("nan", with("unload_dependents", Parameter::Bool(true)))),
        refused(Unload("zz", vec![]), NotFound, "model 'zz' does not exist"),
        refused(
            Unload("nan", with("unload_dependents", Parameter::String("no"))),
            InvalidArgument,
            "model 'nan': parameter 'unload_dependents': expected true or false, found 'no'",
        ),
        refused(
            Unload("nan", with("x", Parameter::Bool(true))),
            InvalidArgument,
            "model 'nan': unexpected parameter 'x'; expected unload_dependents or none",
        ),
        fine(LogSettings(with("log_info", Parameter::Bool(false)))),
        refused(
            LogSettings(with("log_x", Parameter::Bool(false))),
            InvalidArgument,
            "log setting 'log_x': unexpected value false",
        ),
        refused(
            LogSettings(with("log_info", Parameter::String("yes"))),
            InvalidArgument,
            "log setting 'log_info': unexpected value 'yes'",
        ),
        fine(register("r", "/k", 8)),
        refused(
            register("r", "/k", 8),
            InvalidArgument,
            "shared memory region 'r' is registered already",
        ),
        refused(
            register("q", "/k", 9),
            InvalidArgument,
            "shared memory region 'q': there is no such memory",
        ),
        refused(
            register("q", "/none", 8),
            InvalidArgument,
            "shared memory region 'q': there is no such memory",
        ),
        refused(
            register("", "/k", 8),
            InvalidArgument,
            "shared memory region '' must have a name",
        ),
        fine(Status("r")),
        fine(Status("")),
        refused(
            Status("none"),
            NotFound,
            "shared memory region 'none' does not exist",
        ),
        fine(Unregister("r")),
        fine(Unregister("none")),
        refused(Status("r"), NotFound, "shared memory region 'r' does not exist"),
        fine(Unregister("")),
        refused(
            CudaStatus,
            Unimplemented,
            "the extension 'cuda_shared_memory' is not offered by this server",
        ),
        refused(
            CudaRegister,
            Unimplemented,
            "the extension 'cuda_shared_memory' is not offered by this server",
        ),
        refused(
            CudaUnregister,
            Unimplemented,
            "the extension 'cuda_shared_memory' is not offered by this server",
        ),
        refused(
            Trace,
            Unimplemented,
            "the extension 'trace' is not offered by this server",
        ),
    ]
}

/// Returns every extension call, with the extension's name.
pub(super) fn calls_of_extensions() -> Vec<(Call, &'static str)> {
    use Call::*;
    vec![
        (Config("nan", ""), "model_configuration"),
        (Statistics("", ""), "statistics"),
        (Statistics("nan", ""), "statistics"),
        (Index { repository: "" }, "model_repository"),
        (Load("nan", vec![]), "model_repository"),
        (Unload("nan", vec![]), "model_repository"),
        (LogSettings(vec![]), "logging"),
        (
            LogSettings(parameters(&[("log_info", Parameter::Bool(true))])),
            "logging",
        ),
        (Status(""), "system_shared_memory"),
        (Status("r"), "system_shared_memory"),
        (register("r", "/k", 8), "system_shared_memory"),
        (Unregister(""), "system_shared_memory"),
        (Unregister("r"), "system_shared_memory"),
        (CudaStatus, "cuda_shared_memory"),
        (CudaRegister, "cuda_shared_memory"),
        (CudaUnregister, "cuda_shared_memory"),
        (Trace, "trace"),
    ]
}

fn register(name: &'static str, key: &'static str, byte_size: u64) -> Call {
    Call::Register { name, key, byte_size }
}

impl Call {
    /// Returns the call's name for test failures.
    pub(super) fn name(&self) -> String {
        let request = self.http();
        format!("{} {}", request.method(), request.uri())
    }

    pub(super) fn http(&self) -> Request<Body> {
        let model = |name: &str, version: &str, rest: &str| match version {
            "" => format!("models/{}{rest}", encode(name)),
            version => format!("models/{}/versions/{}{rest}", encode(name), encode(version)),
        };
        let body = |parameters: &Parameters| Some(json!({ "parameters": to_json(parameters) }));
        let get = |path: String| (Method::GET, path, None);
        let post = |path: String| (Method::POST, path, None);
        let (method, path, body): (Method, String, Option<Value>) = match self {
            Self::Metadata(name, version) => get(model(name, version, "")),
            Self::Ready(name, version) => get(model(name, version, "/ready")),
            Self::Config(name, version) => get(model(name, version, "/config")),
            Self::Statistics("", _) => get("models/stats".into()),
            Self::Statistics(name, version) => get(model(name, version, "/stats")),
            Self::Index { repository: "" } => post("repository/index".into()),
            Self::Index { repository } => post(format!("repository/{repository}/index")),
            Self::Load(name, parameters) => {
                let path = format!("repository/models/{}/load", encode(name));
                (Method::POST, path, body(parameters))
            }
            Self::Unload(name, parameters) => {
                let path = format!("repository/models/{}/unload", encode(name));
                (Method::POST, path, body(parameters))
            }
            Self::LogSettings(settings) if settings.is_empty() => get("logging".into()),
            Self::LogSettings(settings) => (Method::POST, "logging".into(), Some(to_json(settings).into())),
            Self::Status("") => get("systemsharedmemory/status".into()),
            Self::Status(name) => get(format!("systemsharedmemory/region/{name}/status")),
            Self::Register { name, key, byte_size } => {
                let path = format!("systemsharedmemory/region/{name}/register");
                (
                    Method::POST,
                    path,
                    Some(json!({"key": key, "byte_size": byte_size})),
                )
            }
            Self::Unregister("") => post("systemsharedmemory/unregister".into()),
            Self::Unregister(name) => post(format!("systemsharedmemory/region/{name}/unregister")),
            Self::CudaStatus => get("cudasharedmemory/status".into()),
            Self::CudaRegister => post("cudasharedmemory/region/r/register".into()),
            Self::CudaUnregister => post("cudasharedmemory/unregister".into()),
            Self::Trace => get("trace/setting".into()),
        };
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder().method(method).uri(format!("/v2/{path}"));
        request.header("host", "x").body(body).unwrap()
    }

    async fn grpc(&self, grpc: &mut GrpcInferenceServiceClient<GrpcService>) -> (i32, String) {
        let owned = |name: &&str| (*name).to_owned();
        match self {
            Self::Metadata(name, version) => {
                let request = ModelMetadataRequest {
                    name: owned(name),
                    version: owned(version),
                };
                said(grpc.model_metadata(request).await)
            }
            Self::Ready(name, version) => {
                let request = ModelReadyRequest {
                    name: owned(name),
                    version: owned(version),
                };
                said(grpc.model_ready(request).await)
            }
            Self::Config(name, version) => {
                let request = ModelConfigRequest {
                    name: owned(name),
                    version: owned(version),
                };
                said(grpc.model_config(request).await)
            }
            Self::Statistics(name, version) => {
                let request = ModelStatisticsRequest {
                    name: owned(name),
                    version: owned(version),
                };
                said(grpc.model_statistics(request).await)
            }
            Self::Index { repository } => {
                let request = RepositoryIndexRequest {
                    repository_name: owned(repository),
                    ready: false,
                };
                said(grpc.repository_index(request).await)
            }
            Self::Load(name, parameters) => {
                let request = RepositoryModelLoadRequest {
                    model_name: owned(name),
                    parameters: to_repository_parameters(parameters),
                    ..Default::default()
                };
                said(grpc.repository_model_load(request).await)
            }
            Self::Unload(name, parameters) => {
                let request = RepositoryModelUnloadRequest {
                    model_name: owned(name),
                    parameters: to_repository_parameters(parameters),
                    ..Default::default()
                };
                said(grpc.repository_model_unload(request).await)
            }
            Self::LogSettings(settings) => {
                let request = LogSettingsRequest {
                    settings: settings.iter().map(to_log_setting).collect(),
                };
                said(grpc.log_settings(request).await)
            }
            Self::Status(name) => {
                let request = SystemSharedMemoryStatusRequest { name: owned(name) };
                said(grpc.system_shared_memory_status(request).await)
            }
            Self::Register { name, key, byte_size } => {
                let request = SystemSharedMemoryRegisterRequest {
                    name: owned(name),
                    key: owned(key),
                    offset: 0,
                    byte_size: *byte_size,
                };
                said(grpc.system_shared_memory_register(request).await)
            }
            Self::Unregister(name) => {
                let request = SystemSharedMemoryUnregisterRequest { name: owned(name) };
                said(grpc.system_shared_memory_unregister(request).await)
            }
            Self::CudaStatus => {
                let request = CudaSharedMemoryStatusRequest::default();
                said(grpc.cuda_shared_memory_status(request).await)
            }
            Self::CudaRegister => {
                let request = CudaSharedMemoryRegisterRequest::default();
                said(grpc.cuda_shared_memory_register(request).await)
            }
            Self::CudaUnregister => {
                let request = CudaSharedMemoryUnregisterRequest::default();
                said(grpc.cuda_shared_memory_unregister(request).await)
            }
            Self::Trace => said(grpc.trace_setting(TraceSettingRequest::default()).await),
        }
    }

    /// Sends the call over each transport; returns status and message.
    pub(super) async fn send(
        &self,
        http: &Router,
        grpc: &mut GrpcInferenceServiceClient<GrpcService>,
    ) -> [(i32, String); 2] {
        [answered(http, self.http()).await, self.grpc(grpc).await]
    }
}

fn said<T>(result: Result<Response<T>, Status>) -> (i32, String) {
    match result {
        Ok(_) => (0, String::new()),
        Err(status) => (status.code() as i32, status.message().to_owned()),
    }
}

fn to_repository_parameters<M: FromIterator<(String, ModelRepositoryParameter)>>(
    parameters: &Parameters,
) -> M {
    let parameter = |(name, value): &(String, Parameter)| {
        let choice = match value {
            Parameter::Bool(value) => ParameterChoice::BoolParam(*value),
            Parameter::Int(value) => ParameterChoice::Int64Param(*value),
            Parameter::String(value) => ParameterChoice::StringParam((*value).to_owned()),
        };
        let parameter = ModelRepositoryParameter {
            parameter_choice: Some(choice),
        };
        (name.clone(), parameter)
    };
    parameters.iter().map(parameter).collect()
}

fn to_log_setting((name, value): &(String, Parameter)) -> (String, SettingValue) {
    let choice = match value {
        Parameter::Bool(value) => LogChoice::BoolParam(*value),
        Parameter::Int(value) => LogChoice::Uint32Param(*value as u32),
        Parameter::String(value) => LogChoice::StringParam((*value).to_owned()),
    };
    let value = SettingValue {
        parameter_choice: Some(choice),
    };
    (name.clone(), value)
}
