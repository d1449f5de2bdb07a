//! PyTorch checkpoints (`.pt`, `.pth`, `.bin`) as one tensor file format among others, for reading.
//!
//! A checkpoint is a pickle, which is a program: loading one in Python can run anything. Here nothing is run. A machine of
//! our own knows the opcodes and the few functions that `torch.save(model.state_dict())` needs, and refuses all others by
//! name. Both layouts are read: the zip archive of today, and the one before PyTorch 1.6.
//!
//! Tensors get the names of the keys that lead to them, joined by dots. Numbers and texts beside them become metadata.
//! Tensors that are row-major in their storage are slices of the source; others are gathered.
//!
//! ```
//! use fmt_core::TensorReader;
//! use fmt_torch::TorchReader;
//!
//! let error = TorchReader::from_bytes(b"not a checkpoint".to_vec()).unwrap_err();
//! assert_eq!(error.kind(), fmt_core::ErrorKind::BadMagic);
//! ```
//!
//! docs/formats/torch.md says what is read, and lists the decisions.

mod checkpoint;
mod format;
mod globals;
mod input;
mod pickle;
mod reader;
mod tensors;

pub use format::Torch;
pub use reader::TorchReader;
