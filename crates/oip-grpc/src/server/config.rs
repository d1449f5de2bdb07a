//! Configuration of the gRPC side: limits, budgets and the form of outputs.

#[cfg(unix)]
use std::sync::Arc;

#[cfg(unix)]
use oip_resources::OpenConnectionMemory;
use oip_resources::{ByteBudget, CpuPool, TimeLimits};
use oip_types::RequestLimits;

/// Configuration of the gRPC side.
///
/// ```
/// use oip_grpc::{GrpcConfig, GrpcOutput};
///
/// let config = GrpcConfig::default().with(|config| config.output = GrpcOutput::Raw);
/// assert_eq!(config.max_message_bytes, 64 << 20);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GrpcConfig {
    /// Maximum size of a client's message in bytes, before and after decompression (default 64 MiB).
    pub max_message_bytes: usize,
    /// Maximum size of a response in bytes (default 2 GiB minus one, because clients use 32-bit lengths).
    pub max_answer_bytes: usize,
    /// Maximum size of a call's metadata in bytes (default 32 KiB).
    pub max_header_bytes: usize,
    /// Limits on the content of a request.
    pub limits: RequestLimits,
    /// How long requests may take.
    pub time: TimeLimits,
    /// Memory budget for messages; share one between transports (default 512 MiB).
    pub budget: ByteBudget,
    /// Thread pool for long work such as decompression; share one between transports.
    pub cpu: CpuPool,
    /// Opens memory that clients share over their connection (`None`: not supported). The server's listener
    /// must turn received descriptors into a [`ConnectionRegion`](oip_resources::ConnectionRegion).
    #[cfg(unix)]
    pub connection_memory: Option<Arc<dyn OpenConnectionMemory>>,
    /// Whether outputs are sent as raw or as typed contents.
    pub output: GrpcOutput,
}

impl GrpcConfig {
    /// Returns the configuration with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            max_message_bytes: 64 << 20,
            max_answer_bytes: i32::MAX as usize,
            max_header_bytes: 32 << 10,
            limits: RequestLimits::default(),
            time: TimeLimits::default(),
            budget: ByteBudget::new(512 << 20),
            cpu: CpuPool::default(),
            #[cfg(unix)]
            connection_memory: None,
            output: GrpcOutput::default(),
        }
    }
}

/// The form of outputs. The boolean request parameter `binary_data_output` overrides it.
///
/// FP16 and BF16 have no typed form: a response with such an output is always raw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrpcOutput {
    /// Respond in the same form as the request's inputs.
    #[default]
    Mirror,
    /// As raw contents, like Triton.
    Raw,
    /// As typed contents.
    Typed,
}
