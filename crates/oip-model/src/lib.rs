//! The traits that models and backends of Open Inference Protocol servers implement.
//!
//! A model is a [`Model`]: it declares its inputs and outputs, and runs requests as plain blocking code. The
//! engine (`oip-engine`) does the rest: it checks requests, queues them, joins them to batches, limits their
//! time and memory, and survives panics. A [`Backend`] loads models from files.
//!
//! ```
//! use oip_model::{Call, Model, Outcome};
//! use oip_model::oip_types::{DataType, ModelMetadata, ServiceError, TensorMetadata};
//!
//! struct Double(ModelMetadata);
//!
//! impl Model for Double {
//!     fn metadata(&self) -> &ModelMetadata {
//!         &self.0
//!     }
//!
//!     fn run(&self, mut call: Call<'_>) -> Result<Outcome, ServiceError> {
//!         let x = call.request.take::<f32>("x")?;
//!         Ok(Outcome::output("y", x.map(|x| 2.0 * x)))
//!     }
//! }
//!
//! let tensor = |name| vec![TensorMetadata::new(name, DataType::FP32, &[-1])];
//! let model = Double(ModelMetadata::new("double", "example", tensor("x"), tensor("y")));
//! assert_eq!(model.metadata().name, "double");
//! ```

mod backend;
mod call;
mod cancel;
mod model;
mod model_calls;
mod responses;
mod row_independence;

pub use backend::{
    Backend, ConfiguredTensors, InputDims, LoadContext, ModelFiles, ModelSource, NeedsProcess,
};
pub use call::{Call, Outcome, Outputs, RequestPart, RestOfRun};
pub use cancel::{CancelGuard, CancelToken};
pub use machine_memory::{available_memory, memory_limit, private_memory};
pub use model::{Capabilities, Model};
pub use model_calls::{BoxFuture, ModelCall, NoOtherModels, OtherModels};
pub use oip_types;
pub use responses::{ResponseSink, ResponseStream, Responses, StreamedResponse};
pub use row_independence::{IndependentRows, RowIndependence};
