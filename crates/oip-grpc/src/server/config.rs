//! What the gRPC side may be told.

#[cfg(unix)]
use std::sync::Arc;

#[cfg(unix)]
use oip_service::OpenConnectionMemory;
use oip_service::{ByteBudget, CpuPool, TimeLimits};
use oip_types::RequestLimits;

/// How the gRPC side works.
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
    /// Bytes that a message from a client may have, as it is sent and again once it is decompressed (64 MiB).
    pub max_message_bytes: usize,
    /// Bytes that an answer may have (2 GiB less one: clients count in 32 bits).
    pub max_answer_bytes: usize,
    /// Bytes that the metadata of a call may have together (32 KiB).
    pub max_header_bytes: usize,
    /// What a request may ask for.
    pub limits: RequestLimits,
    /// How long requests may take.
    pub time: TimeLimits,
    /// Bytes of messages in memory at once; share one budget between transports (512 MiB).
    pub budget: ByteBudget,
    /// Threads for work that takes long, such as decompressing; share one pool between transports.
    pub cpu: CpuPool,
    /// What opens the memory that clients share over their connection (`None`: they cannot). The server's listener must make a
    /// [`ConnectionRegion`](oip_service::ConnectionRegion) of descriptors that it receives.
    #[cfg(unix)]
    pub connection_memory: Option<Arc<dyn OpenConnectionMemory>>,
    /// In which form outputs are sent.
    pub output: GrpcOutput,
}

impl GrpcConfig {
    /// The same after some changes.
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

/// In which form outputs are sent. The request parameter `binary_data_output` (a boolean) overrides it.
///
/// FP16 and BF16 have no typed form: a response with such an output is always raw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrpcOutput {
    /// As the request's inputs came: raw for raw, typed for typed.
    #[default]
    Mirror,
    /// As raw contents, like Triton.
    Raw,
    /// As typed contents.
    Typed,
}
