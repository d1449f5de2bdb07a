//! The calls of the system shared memory extension.

use oip_service::{InferenceService, extensions};
use oip_types::{ServiceError, SharedMemoryRegion};

use crate::proto::{
    SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusRequest, SystemSharedMemoryStatusResponse,
    SystemSharedMemoryUnregisterRequest, system_shared_memory_status_response::RegionStatus,
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

/// The region that is meant; the empty name stands for all.
fn name(name: &str) -> Option<&str> {
    Some(name).filter(|name| !name.is_empty())
}
