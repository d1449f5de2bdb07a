//! The Open Inference Protocol (KServe V2) without a transport: its types, its rules and its REST encodings.
//!
//! Servers and clients of both transports share this crate, so a request means the same over HTTP and gRPC:
//!
//! - **Types**: [`InferRequest`], [`InferResponse`], [`ModelMetadata`], [`Parameters`]. A tensor is a
//!   [`TensorValue`]: fixed-width elements ([`tensor_core::Tensor`]) or byte strings ([`BytesTensor`]), in
//!   both cases a shape and shared bytes that match it.
//! - **Rules**: [`ModelMetadata::check_request`] checks a request against a model,
//!   [`ModelMetadata::pick_outputs`] a model's outputs against its metadata; [`RequestLimits`] and
//!   [`ModelRef`] check what clients send.
//! - **Extensions**: types for the repository index, model configuration, statistics, logging and shared
//!   memory; and [`classify`].
//! - **Errors**: [`ServiceError`] with an [`ErrorCode`] from one closed list, mapped to HTTP and gRPC status.
//! - **Options**: [`ByteSize`] and, with the feature `durations`, `HumanDuration`: sizes and durations in
//!   human-readable form.
//! - **Encodings** (feature `rest`, on by default): [`rest`] decodes JSON bodies into typed buffers and
//!   encodes from them, and handles the binary tensor data extension without copying.
//!
//! In the repository, `docs/oip.md` lists how this crate resolves the ambiguities of the specification.
//!
//! ```
//! use oip_types::{DataType, InferRequest, ModelMetadata, ModelRef, TensorMetadata};
//! use tensor_core::{Shape, Tensor};
//!
//! let inputs = vec![TensorMetadata::new("X", DataType::FP32, &[-1, 64])];
//! let outputs = vec![TensorMetadata::new("label", DataType::INT64, &[-1])];
//! let metadata = ModelMetadata::new("digits", "onnx_onnxv1", inputs, outputs).with_versions(["1"]);
//! let pixels = Tensor::from_vec(Shape::new(&[1, 63])?, vec![0.0f32; 63])?;
//! let request = InferRequest::new(ModelRef::new("digits", None).unwrap()).with_input("X", pixels);
//! let error = metadata.check_request(&request).unwrap_err();
//! assert_eq!(error.to_string(), "input 'X': expected shape [-1, 64], found [1, 63]");
//! # Ok::<(), tensor_core::SpecError>(())
//! ```

mod byte_size;
mod bytes_tensor;
mod check;
mod classification;
mod datatype;
mod elements;
mod error;
mod example;
#[cfg(feature = "durations")]
mod human_duration;
mod infer;
mod joining;
#[cfg(feature = "rest")]
mod json;
mod limits;
mod log_settings;
mod memory;
mod metadata;
pub mod model_config;
mod name;
mod parameters;
mod placement;
mod repository;
#[cfg(feature = "rest")]
pub mod rest;
mod rows;
mod shared_memory;
mod statistics;
mod trace_settings;
mod value;

pub use byte_size::{ByteSize, ByteSizeError};
pub use bytes_tensor::BytesTensor;
pub use classification::{class_count_parameter, classify, take_class_count};
pub use datatype::DataType;
pub use elements::Elements;
pub use error::{ErrorCode, ServiceError, causes};
pub use example::ExampleInput;
#[cfg(feature = "durations")]
pub use human_duration::{HumanDuration, HumanDurationError};
pub use infer::{InferInput, InferOutput, InferRequest, InferResponse, RequestedOutput};
pub use joining::Joining;
pub use limits::RequestLimits;
pub use log_settings::{LogSetting, LogSettings};
pub use memory::{Memory, Reservation, UnlimitedMemory};
pub use metadata::{ModelMetadata, ServerMetadata, ShapePattern, TensorMetadata};
pub use model_config::ModelConfig;
pub use name::{ModelRef, check_name};
pub use parameters::{ParameterValue, Parameters, check_parameter_name, take_bool};
pub use placement::Placement;
pub use repository::{LoadOptions, ModelIndexEntry, ModelState, UnloadOptions};
pub use shared_memory::{
    CONNECTION_REGION, CudaMemoryRegion, NoSharedMemory, ReadSharedMemory, SharedMemoryRegion,
    SharedMemorySlice,
};
pub use statistics::{
    BatchStatistics, InferStatistics, MemoryUsage, ModelStatistics, ResponseStatistics, StatisticDuration,
};
pub use trace_settings::TraceSettings;
pub use value::TensorValue;

#[cfg(feature = "rest")]
pub(crate) use rest::NonFinite;
