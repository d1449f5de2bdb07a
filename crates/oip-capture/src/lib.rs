//! Records requests to an inference service with their responses while it serves, and reads them back to
//! replay them.
//!
//! [`CapturingService`] wraps a service. The wrapper samples the requests to the configured models and passes
//! each exchange, a request with its response, to a [`Recorder`], whose thread writes exchanges as
//! safetensors files and adds a line to an index. Requests never wait for the recorder: exchanges that exceed
//! the memory or disk limit are counted and not recorded. [`Recording`] reads recordings, also after a crash:
//! an exchange is listed in the index only after both files are on disk.
//!
//! ```
//! use oip_capture::{Recorder, RecorderConfig, Recording};
//! use oip_types::{InferOutput, InferRequest, InferResponse, ModelRef};
//! use tensor_core::Tensor;
//!
//! let folder = std::path::Path::new("captured");
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path().join("captured");
//! let recorder = Recorder::start(RecorderConfig::new(&folder))?;
//! let request = InferRequest::new(ModelRef::new("double", None)?).with_input("x", Tensor::scalar(1.5_f32));
//! let response = InferResponse::new("double", vec![InferOutput::new("y", Tensor::scalar(3.0_f32))]);
//! recorder.record(request.clone(), response);
//! recorder.finish(std::time::Duration::from_secs(10));
//!
//! let recording = Recording::open(&folder)?;
//! let entry = &recording.entries()[0];
//! assert_eq!(entry.model(), "double");
//! assert_eq!(recording.request(entry)?, request);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod file;
mod index;
mod leftovers;
mod recorder;
mod recording;
mod service;

pub use error::CaptureError;
pub use file::answer_file;
pub use recorder::{Recorder, RecorderConfig};
pub use recording::{Entry, Recording};
pub use service::CapturingService;
