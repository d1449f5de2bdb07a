//! Triton's model configuration: reads protobuf text, JSON or TOML, and returns a checked and completed
//! configuration.
//!
//! The crate needs no server, engine or repository, so tools can check configurations before they are
//! deployed. There are two steps:
//!
//! 1. [`WrittenConfig::read`] parses the text and checks that it is consistent: fields have the right form
//!    and do not contradict each other. Unknown fields and fields without effect are listed as
//!    [warnings](WrittenConfig::warnings); a field that cannot be ignored without changing responses is an
//!    error.
//! 2. [`complete`] checks the configuration against a model's metadata, and fills in missing fields, as
//!    Triton's auto-complete does. [`complete_pipeline`] does the same for a pipeline, which consists only of
//!    its configuration.
//!
//! ```
//! use model_config::{Defaults, Syntax, WrittenConfig, complete};
//! use oip_types::{DataType, ModelMetadata, TensorMetadata};
//!
//! let written = WrittenConfig::read("max_batch_size: 8  # rows", Syntax::Pbtxt)?;
//! let inputs = vec![TensorMetadata::new("x", DataType::FP32, &[-1, 784])];
//! let outputs = vec![TensorMetadata::new("y", DataType::FP32, &[-1, 10])];
//! let model = ModelMetadata::new("digits", "onnx_onnxv1", inputs, outputs).with_versions(["1"]);
//! let completed = complete(&written, &model, "onnx", &Defaults::default())?;
//! // Dimensions are written without the batch dimension.
//! assert_eq!(completed.config.input[0].dims, [784]);
//! assert_eq!(completed.config.instance_group[0].count, 1);
//! assert!(completed.config.dynamic_batching.is_some());
//!
//! let error = WrittenConfig::read("max_batch_size: many", Syntax::Pbtxt).unwrap_err();
//! assert!(error.to_string().starts_with("line 1, column 17: max_batch_size: expected an integer"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The page `docs/models.md` of the repository lists all fields and their effect.

mod batching;
mod complete;
mod defaults;
mod error;
mod fields;
mod hugging_face;
mod narrow;
mod normalize;
mod pbtxt;
mod pipeline;
mod reshape;
mod tree;
mod written;

pub use batching::batch_obstacle;
pub use complete::{CompletedConfig, complete};
pub use defaults::Defaults;
pub use error::{ConfigError, MismatchError, PipelineError, Position, Role};
pub use hugging_face::HuggingFaceConfig;
pub use pipeline::{complete_pipeline, steps};
pub use reshape::Axes;
pub use written::{Syntax, WrittenConfig, WrittenTensor};

/// Compiles the example in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
