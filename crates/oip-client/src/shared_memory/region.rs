//! The layout of a request's inputs and outputs in its connection's region.

use std::{cell::Cell, sync::Arc};

use bytes::Bytes;
use oip_types::{
    CONNECTION_REGION, InferInput, InferRequest, ReadSharedMemory, ServiceError, SharedMemorySlice,
};
use tensor_core::SpareBuffers;
use tensor_mmap::SharedMemory;

use crate::{ClientError, ErrorKind, Result, settings::Settings};

/// Minimum size of an input placed in the region, in bytes. Smaller inputs are sent in the body of the
/// request.
const LEAST: usize = 16 << 10;

/// Alignment of tensors in the region.
const ALIGNMENT: u64 = 64;

/// Memory that the server has also mapped. The memory must not be reused while a request that names it may
/// still be running.
#[derive(Clone, Debug)]
pub(crate) struct Region(Arc<SharedMemory>);

impl Region {
    pub(crate) fn new(memory: SharedMemory) -> Self {
        Self(Arc::new(memory))
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Copies the large inputs of a request into the region. The returned request names the rest of the
    /// region as the location of the outputs.
    pub(crate) fn place(&self, request: &InferRequest) -> Result<InferRequest> {
        let mut placed = request.clone();
        let mut end = 0;
        for input in &mut placed.inputs {
            if !is_placed(input) {
                continue;
            }
            let slice = slice(end, input.value.raw().len() as u64);
            self.0
                .write(slice.offset, input.value.raw())
                .map_err(|error| ClientError::new(ErrorKind::Request, error.to_string()).caused_by(error))?;
            end = aligned(slice.offset + slice.byte_size);
            input.parameters.extend(slice.to_parameters());
        }
        let rest = slice(end, self.len().saturating_sub(end));
        placed.parameters.extend(rest.to_parameters());
        Ok(placed)
    }

    /// Returns a reader for the outputs in the region.
    pub(crate) fn outputs<'r>(&'r self, settings: &'r Settings) -> Outputs<'r> {
        Outputs {
            memory: &self.0,
            spare: &settings.spare,
            limit: settings.max_answer_bytes as u64,
            read: Cell::new(0),
        }
    }
}

/// Returns how many bytes a request's inputs need in a region. Returns `None` if the request itself names
/// shared memory.
pub(crate) fn input_bytes(request: &InferRequest) -> Option<u64> {
    let is_shared = SharedMemorySlice::is_in(&request.parameters)
        || request
            .inputs
            .iter()
            .any(|input| SharedMemorySlice::is_in(&input.parameters))
        || request
            .outputs
            .iter()
            .any(|output| SharedMemorySlice::is_in(&output.parameters));
    let sizes = request.inputs.iter().filter(|input| is_placed(input));
    let sizes = sizes.map(|input| aligned(input.value.raw().len() as u64));
    (!is_shared).then(|| sizes.sum())
}

fn is_placed(input: &InferInput) -> bool {
    // Over HTTP, inputs that must be sent as JSON stay out of the region.
    input.value.raw().len() >= LEAST && !input.parameters.contains_key("binary_data")
}

fn aligned(end: u64) -> u64 {
    end.saturating_add(ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
}

fn slice(offset: u64, byte_size: u64) -> SharedMemorySlice {
    SharedMemorySlice {
        region: CONNECTION_REGION.to_owned(),
        offset,
        byte_size,
    }
}

/// Reads the outputs of one response from its region, up to the limit on the response size.
pub(crate) struct Outputs<'r> {
    memory: &'r SharedMemory,
    spare: &'r Arc<SpareBuffers>,
    limit: u64,
    read: Cell<u64>,
}

impl Outputs<'_> {
    /// Returns the error `TooLarge` instead of `result` if the outputs exceed the limit.
    pub(crate) fn checked<T>(&self, result: Result<T>) -> Result<T> {
        match self.read.get() > self.limit {
            true => Err(ClientError::too_large(self.limit as usize)),
            false => result,
        }
    }
}

impl ReadSharedMemory for Outputs<'_> {
    fn read(&self, slice: &SharedMemorySlice) -> std::result::Result<Bytes, ServiceError> {
        if slice.region != CONNECTION_REGION {
            return Err(ServiceError::invalid(
                "an output is in shared memory that was not requested",
            ));
        }
        self.read.set(self.read.get().saturating_add(slice.byte_size));
        if self.read.get() > self.limit {
            return Err(ServiceError::invalid("the response is too large"));
        }
        if !self.memory.has(slice.offset, slice.byte_size) {
            return Err(ServiceError::invalid("an output is not within the shared memory"));
        }
        let len = slice.byte_size as usize;
        let mut bytes = self.spare.take(len).unwrap_or_default();
        bytes.clear();
        self.memory
            .append_to(slice.offset, slice.byte_size, &mut bytes)
            .map_err(|error| ServiceError::invalid(error.to_string()))?;
        Ok(match len {
            SpareBuffers::LEAST_KEPT.. => self.spare.lend(bytes, len),
            _ => bytes.into(),
        })
    }
}
