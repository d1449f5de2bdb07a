//! Requests to an inference service and their answers, recorded while it serves, and read again to be sent to another one.
//!
//! [`Captured`] is a service around another one. Of the requests to some models it hands a part, with their answers, to a
//! [`Recorder`], whose thread writes them as safetensors files, each with the line of an index. Requests never wait for it: exchanges
//! that find no room in memory, or on the disk within the limit, are counted and not recorded. [`Recording`] reads recordings, also
//! after a crash: the index gets its line once both files are on the disk.
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
pub use service::Captured;
