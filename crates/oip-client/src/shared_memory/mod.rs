//! Large tensors in memory shared with a server on the same machine. Each connection that uses shared memory
//! has its own region, which is freed with the connection. Servers without support receive the tensors' bytes
//! over the socket.

pub(crate) mod descriptor;
pub(crate) mod pool;
pub(crate) mod refusal;
pub(crate) mod region;

use oip_types::InferResponse;

/// Tensors of at least this size are copied to and from a region off the reactor thread, because copying
/// blocks longer than a socket operation.
pub(crate) const LARGE: usize = 1 << 20;

/// Returns the total size of all outputs in bytes.
pub(crate) fn output_bytes(response: &InferResponse) -> u64 {
    let outputs = response.outputs.iter();
    outputs.map(|output| output.value.raw().len() as u64).sum()
}
