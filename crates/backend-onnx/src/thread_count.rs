//! The number of threads per run, from a model's configuration.

use oip_types::{ModelConfig, ServiceError};
use tensor_core::QuotedName;

/// Reads the number of threads per run from Triton's parameter; 0 means the number of cores, as for ONNX
/// Runtime.
pub(crate) fn thread_count(config: &ModelConfig) -> Result<Option<usize>, ServiceError> {
    const MAX_THREADS: usize = 1024;
    let Some(parameter) = config.parameters.get("intra_op_thread_count") else {
        return Ok(None);
    };
    let count = parameter.string_value.trim().parse().ok();
    let count = count.filter(|&count| count <= MAX_THREADS).ok_or_else(|| {
        ServiceError::invalid(format!(
            "the parameter 'intra_op_thread_count' is {}, expected a number from 0 to {MAX_THREADS}",
            QuotedName(&parameter.string_value)
        ))
    });
    count.map(Some)
}
