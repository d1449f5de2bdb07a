//! Tensor files as models, for servers of the Open Inference Protocol: an embedding table or a feature store
//! without any code.
//!
//! A file in any format of [`tensor_files`], named `model.safetensors`, `model.zt`, `model.tbuf`,
//! `model.btf`, `model.npz`, `model.npy` or `model.gguf`, is a model whose outputs are its tensors:
//!
//! - A request names the outputs it wants and gets whole tensors: the file's own bytes, without a copy.
//! - With an input `<tensor>.rows` (INT64, any shape) it gets rows of `<tensor>`, indexed along axis 0. The
//!   shape of the output is that of the input followed by that of a row: rows `[32, 7]` of a tensor `[50000,
//!   256]` are `[32, 7, 256]`. Consecutive rows are copied as one block, or not at all if all rows are
//!   consecutive.
//! - A request that names no outputs gets the tensors for which it has rows, or else all tensors.
//!
//! Inputs are optional. The metadata shows rows as `[-1]` and outputs as `[-1, 256]`, since the protocol
//! cannot express an arbitrary rank: [`oip_types::ShapePattern::with_any_leading`].
//!
//! Everything is validated when a file is loaded. Compressed and big-endian tensors are decoded, and
//! checksums verified, once; sparse tensors, and those that the format's crate cannot read, are skipped with
//! a warning in the log.
//!
//! ```
//! use backend_tensors::TensorsBackend;
//! use oip_model::{Backend, CancelToken, LoadContext, ModelSource};
//! use oip_types::{InferRequest, ModelRef};
//! use tensor_core::{Shape, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = "models/words/1/model.safetensors"; // with one tensor, `embed`, FP32[3, 2]
//! # use fmt_core::{Plan, PlannedEntry};
//! # let table = Tensor::from_vec(Shape::new(&[3, 2])?, vec![0.0f32, 0.1, 1.0, 1.1, 2.0, 2.1])?;
//! # let plan = Plan { entries: vec![PlannedEntry::dense("embed", table.spec().clone())], ..Plan::default() };
//! # let mut file = Vec::new();
//! # let format = tensor_files::format("safetensors").ok_or("no such format")?;
//! # let mut writer = format.create(Box::new(&mut file), plan)?;
//! # writer.write(table.bytes())?;
//! # writer.finish()?;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! # std::fs::write(&path, file)?;
//! let source = ModelSource::new("words", "1", &path, std::fs::read(&path)?.into());
//! let model = TensorsBackend::new().load(&source, &LoadContext::default())?;
//!
//! let rows = Tensor::from_vec(Shape::vector(2), vec![2i64, 0])?;
//! let request = InferRequest::new(ModelRef::new("words", None)?).with_input("embed.rows", rows);
//! let outputs = model.infer(request, &CancelToken::new(None))?;
//! assert_eq!(outputs[0].value.as_fixed().unwrap().to_vec::<f32>()?, [2.0, 2.1, 0.0, 0.1]);
//! # Ok(())
//! # }
//! ```

mod backend;
mod load;
mod model;
mod table;

pub use backend::TensorsBackend;
