//! Reads PyTorch checkpoints (`.pt`, `.pth`, `.bin`) behind the traits of `fmt-core`.
//!
//! A checkpoint is a pickle, which is a program: loading one in Python can run anything. This crate runs no
//! code. Its interpreter knows the opcodes and the few functions that `torch.save(model.state_dict())` needs,
//! and rejects all others by name. It reads both layouts: the current zip archive, and the legacy one from
//! before PyTorch 1.6.
//!
//! A tensor's name is the path of keys that leads to it, joined by dots. Numbers and strings next to tensors
//! become metadata. Row-major tensors are slices of the source; others are gathered.
//!
//! ```
//! use fmt_core::TensorReader;
//! use fmt_torch::TorchReader;
//!
//! let error = TorchReader::from_bytes(b"not a checkpoint".to_vec()).unwrap_err();
//! assert_eq!(error.kind(), fmt_core::ErrorKind::BadMagic);
//! ```
//!
//! docs/formats/torch.md specifies what is read, and lists the decisions.

mod checkpoint;
mod format;
mod globals;
mod input;
mod pickle;
mod reader;
mod tensors;

pub use format::Torch;
pub use reader::TorchReader;
