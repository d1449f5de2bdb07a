//! The calls of the system shared memory extension, and inputs that are there.

use bytes::Bytes;
use oip_service::{InferenceService, SystemSharedMemory, extensions};
use oip_types::{NoSharedMemory, ReadSharedMemory, ServiceError, SharedMemoryRegion, SharedMemorySlice};

use super::admission::Admission;
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

/// Reads inputs out of shared memory. The copies count against the budget, as if they had come in the message.
pub(crate) struct Inputs<'s> {
    pub(crate) memory: Option<&'s dyn SystemSharedMemory>,
    pub(crate) admission: Option<&'s Admission>,
}

impl ReadSharedMemory for Inputs<'_> {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        let Some(memory) = self.memory else {
            return NoSharedMemory.read(slice);
        };
        if let Some(admission) = self.admission {
            admission.grow(slice.byte_size)?;
        }
        memory.read(slice)
    }
}
