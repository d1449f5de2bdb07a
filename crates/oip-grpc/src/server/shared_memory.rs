//! The system shared memory extension, and the registration of a connection's own memory.

use oip_service::{InferenceService, extensions};
use oip_types::{ServiceError, SharedMemoryRegion};
use tonic::Extensions;

use super::GrpcConfig;
use crate::proto::{
    ConnectionSharedMemoryRegisterResponse, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryStatusRequest, SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest,
    system_shared_memory_status_response::RegionStatus,
};

pub(crate) fn status(
    service: &dyn InferenceService,
    request: &SystemSharedMemoryStatusRequest,
) -> Result<SystemSharedMemoryStatusResponse, ServiceError> {
    let regions = extensions::shared_memory(service)?.status(name(&request.name))?;
    let status = |region: SharedMemoryRegion| RegionStatus {
        name: region.name,
        key: region.key,
        offset: region.offset,
        byte_size: region.byte_size,
    };
    Ok(SystemSharedMemoryStatusResponse {
        regions: regions
            .into_iter()
            .map(|region| (region.name.clone(), status(region)))
            .collect(),
    })
}

pub(crate) fn register(
    service: &dyn InferenceService,
    request: SystemSharedMemoryRegisterRequest,
) -> Result<(), ServiceError> {
    let region = SharedMemoryRegion {
        name: request.name,
        key: request.key,
        offset: request.offset,
        byte_size: request.byte_size,
    };
    extensions::register_region(service, region)
}

pub(crate) fn unregister(
    service: &dyn InferenceService,
    request: &SystemSharedMemoryUnregisterRequest,
) -> Result<(), ServiceError> {
    extensions::shared_memory(service)?.unregister(name(&request.name));
    Ok(())
}

/// Opens the shared memory of the call's connection, which is found in the call's `extensions`.
pub(crate) fn register_for_connection(
    config: &GrpcConfig,
    extensions: &Extensions,
) -> Result<ConnectionSharedMemoryRegisterResponse, ServiceError> {
    let not_offered = || oip_service::extensions::not_offered("connection_shared_memory");
    #[cfg(unix)]
    {
        let opener = config.connection_memory.as_deref().ok_or_else(not_offered)?;
        let region = extensions.get::<oip_resources::ConnectionRegion>();
        let byte_size = region.ok_or_else(oip_resources::not_passed)?.open(opener)?;
        Ok(ConnectionSharedMemoryRegisterResponse {
            region: oip_types::CONNECTION_REGION.to_owned(),
            byte_size,
        })
    }
    #[cfg(not(unix))]
    {
        let _ = (config, extensions);
        Err(not_offered())
    }
}

/// Returns the name of the region; an empty name means all.
fn name(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}
