//! Types of the shared memory extensions.

use bytes::Bytes;
use tensor_core::QuotedName;

use crate::{ParameterValue, Parameters, ServiceError};

/// Parameter of an input or requested output: the region that holds the tensor's bytes.
const REGION: &str = "shared_memory_region";
/// Parameter: the number of the tensor's bytes.
const BYTE_SIZE: &str = "shared_memory_byte_size";
/// Parameter: the offset of the tensor in the region.
const OFFSET: &str = "shared_memory_offset";

/// The name of the region that belongs to a connection over a Unix socket. Other connections have no region
/// of this name, and clients cannot register one.
pub const CONNECTION_REGION: &str = "$connection";

/// A region of system shared memory that a client registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct SharedMemoryRegion {
    /// The name of the region in requests.
    pub name: String,
    /// The system's name for the memory, as passed to `shm_open`.
    pub key: String,
    /// The offset of the region in the memory that `key` names, in bytes.
    pub offset: u64,
    /// The region's length in bytes.
    pub byte_size: u64,
}

/// A region of GPU memory that a client registered (CUDA shared memory extension).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct CudaMemoryRegion {
    /// The name of the region in requests.
    pub name: String,
    /// The index of the GPU that holds the memory.
    pub device_id: u64,
    /// The region's length in bytes.
    pub byte_size: u64,
}

/// A range of bytes in a registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemorySlice {
    /// The region's name.
    pub region: String,
    /// The offset in the region, in bytes.
    pub offset: u64,
    /// The length of the slice in bytes.
    pub byte_size: u64,
}

impl SharedMemorySlice {
    /// Takes the slice out of the parameters of an input or output; returns `None` if the parameters name no
    /// slice.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when a parameter is missing or invalid.
    pub fn take(parameters: &mut Parameters) -> Result<Option<Self>, ServiceError> {
        let Some(region) = parameters.remove(REGION) else {
            return match [BYTE_SIZE, OFFSET]
                .into_iter()
                .find(|name| parameters.contains_key(*name))
            {
                None => Ok(None),
                Some(name) => Err(ServiceError::invalid(format!(
                    "parameter '{name}' needs '{REGION}'"
                ))),
            };
        };
        let wrong = |name: &str, expected: &str, found: Option<&ParameterValue>| {
            let found = found.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            ServiceError::invalid(format!("parameter '{name}': expected {expected}, found {found}"))
        };
        let name = region
            .as_str()
            .ok_or_else(|| wrong(REGION, "a region's name", Some(&region)))?;
        let byte_size = parameters.remove(BYTE_SIZE);
        let byte_size = byte_size
            .as_ref()
            .and_then(ParameterValue::as_u64)
            .ok_or_else(|| wrong(BYTE_SIZE, "a number of bytes", byte_size.as_ref()))?;
        let offset = parameters.remove(OFFSET);
        let offset = match &offset {
            None => 0,
            Some(value) => value
                .as_u64()
                .ok_or_else(|| wrong(OFFSET, "a number of bytes", Some(value)))?,
        };
        Ok(Some(Self {
            region: name.to_owned(),
            offset,
            byte_size,
        }))
    }

    /// Returns whether the parameters name a slice of the connection's own region.
    #[must_use]
    pub fn is_of_connection(parameters: &Parameters) -> bool {
        let region = parameters.get(REGION).and_then(ParameterValue::as_str);
        region == Some(CONNECTION_REGION)
    }

    /// Returns whether the parameters of an input or output name a slice.
    #[must_use]
    pub fn is_in(parameters: &Parameters) -> bool {
        parameters.contains_key(REGION)
    }

    /// Returns the parameters that [`SharedMemorySlice::take`] reads.
    #[must_use]
    pub fn to_parameters(&self) -> Parameters {
        let number = |value: u64| ParameterValue::Int64(i64::try_from(value).unwrap_or(i64::MAX));
        let mut parameters = Parameters::from([
            (REGION.to_owned(), ParameterValue::String(self.region.clone())),
            (BYTE_SIZE.to_owned(), number(self.byte_size)),
        ]);
        if self.offset > 0 {
            parameters.insert(OFFSET.to_owned(), number(self.offset));
        }
        parameters
    }
}

/// Reads inputs from shared memory.
pub trait ReadSharedMemory {
    /// Copies the bytes of a slice, because clients may change the original at any time.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the region does not exist or does not
    /// contain the slice.
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError>;
}

/// Rejects every read: there is no shared memory.
///
/// ```
/// use oip_types::{NoSharedMemory, ReadSharedMemory, SharedMemorySlice};
///
/// let slice = SharedMemorySlice { region: "r".into(), offset: 0, byte_size: 4 };
/// assert!(NoSharedMemory.read(&slice).is_err());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoSharedMemory;

impl ReadSharedMemory for NoSharedMemory {
    fn read(&self, slice: &SharedMemorySlice) -> Result<Bytes, ServiceError> {
        Err(ServiceError::invalid(format!(
            "shared memory region {}: shared memory is not offered by this server; send the data itself",
            QuotedName(&slice.region)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(values: &[(&str, ParameterValue)]) -> Parameters {
        values
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect()
    }

    #[test]
    fn slices_come_back_from_their_parameters() {
        for offset in [0, 7] {
            let slice = SharedMemorySlice {
                region: "r".into(),
                offset,
                byte_size: 4,
            };
            let mut parameters = slice.to_parameters();
            assert_eq!(SharedMemorySlice::take(&mut parameters).unwrap(), Some(slice));
            assert!(parameters.is_empty());
        }
        assert_eq!(SharedMemorySlice::take(&mut Parameters::new()).unwrap(), None);
    }

    #[test]
    fn incomplete_and_wrong_parameters_are_named() {
        let string = |text: &str| ParameterValue::String(text.to_owned());
        for (values, message) in [
            (
                parameters(&[(REGION, string("r"))]),
                "parameter 'shared_memory_byte_size': expected a number of bytes, found nothing",
            ),
            (
                parameters(&[(REGION, ParameterValue::Bool(true))]),
                "parameter 'shared_memory_region': expected a region's name, found true",
            ),
            (
                parameters(&[(OFFSET, ParameterValue::Int64(1))]),
                "parameter 'shared_memory_offset' needs 'shared_memory_region'",
            ),
            (
                parameters(&[(REGION, string("r")), (BYTE_SIZE, ParameterValue::Int64(-1))]),
                "parameter 'shared_memory_byte_size': expected a number of bytes, found -1",
            ),
            (
                parameters(&[
                    (REGION, string("r")),
                    (BYTE_SIZE, ParameterValue::Int64(1)),
                    (OFFSET, string("x")),
                ]),
                "parameter 'shared_memory_offset': expected a number of bytes, found 'x'",
            ),
        ] {
            let mut values = values;
            assert_eq!(
                SharedMemorySlice::take(&mut values).unwrap_err().message(),
                message
            );
        }
    }
}
