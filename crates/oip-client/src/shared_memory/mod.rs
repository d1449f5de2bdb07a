//! Large tensors in memory that a server on this machine maps too: each connection over a Unix socket that is made for them has a
//! region of its own, which lives as long as it does. Servers that do not know it get bytes.

pub(crate) mod descriptor;
pub(crate) mod pool;
pub(crate) mod refused;
pub(crate) mod region;

use oip_types::InferResponse;

/// Bytes above which tensors are copied into a region or out of it where that disturbs nobody: it takes longer than reading or
/// writing a socket at once.
pub(crate) const LARGE: usize = 1 << 20;

/// Bytes of all outputs.
pub(crate) fn output_bytes(response: &InferResponse) -> u64 {
    let outputs = response.outputs.iter();
    outputs.map(|output| output.value.raw().len() as u64).sum()
}
