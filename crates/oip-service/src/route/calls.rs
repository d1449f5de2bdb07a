//! The gRPC methods and their actions.

use super::Action;

/// The methods of the protocol's service.
pub(super) const CALLS: &[(&str, Action)] = &[
    ("ModelInfer", Action::Infer),
    ("ModelStreamInfer", Action::StreamInfer),
    ("ServerLive", Action::ServerLive),
    ("ServerReady", Action::ServerReady),
    ("ModelReady", Action::ModelReady),
    ("ServerMetadata", Action::ServerMetadata),
    ("ModelMetadata", Action::ModelMetadata),
    ("ModelConfig", Action::ModelConfig),
    ("ModelStatistics", Action::ModelStatistics),
    ("RepositoryIndex", Action::RepositoryIndex),
    ("RepositoryModelLoad", Action::RepositoryLoad),
    ("RepositoryModelUnload", Action::RepositoryUnload),
    ("ConnectionSharedMemoryRegister", Action::ConnectionMemoryRegister),
    ("SystemSharedMemoryStatus", Action::SystemMemoryStatus),
    ("SystemSharedMemoryRegister", Action::SystemMemoryRegister),
    ("SystemSharedMemoryUnregister", Action::SystemMemoryUnregister),
    ("CudaSharedMemoryStatus", Action::CudaMemoryStatus),
    ("CudaSharedMemoryRegister", Action::CudaMemoryRegister),
    ("CudaSharedMemoryUnregister", Action::CudaMemoryUnregister),
    ("TraceSetting", Action::TraceSettings),
    ("LogSettings", Action::LogSettings),
];

/// Finds a method by its path. Returns its name in metrics, and its action.
pub(super) fn find(path: &str) -> Option<(&'static str, Action)> {
    if let Some(method) = path.strip_prefix("/inference.GRPCInferenceService/") {
        return CALLS.iter().find(|(name, _)| *name == method).copied();
    }
    match path {
        "/grpc.health.v1.Health/Check" => Some(("Health/Check", Action::GrpcHealth)),
        "/grpc.health.v1.Health/Watch" => Some(("Health/Watch", Action::GrpcHealth)),
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
            Some(("ServerReflection", Action::GrpcReflection))
        }
        _ => None,
    }
}
