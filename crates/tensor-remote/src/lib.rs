//! Files on servers as sources of bytes, so that every reader of tensor files works over the network by ranges.
//!
//! A [`RemoteSource`] is a [`ByteSource`](fmt_core::ByteSource). It fetches the parts of a file that a reader wants, and little
//! more: the first request (two if the index is at the end) brings the part of the file where its
//! format keeps the index, reads that follow each other share one answer, and nothing large is held in memory.
//!
//! ```no_run
//! use std::sync::Arc;
//! use fmt_core::{ReadOptions, TensorReader};
//! use fmt_safetensors::SafetensorsReader;
//! use tensor_remote::{RemoteOptions, open};
//!
//! # fn main() -> Result<(), fmt_core::Error> {
//! let source = open("hf://openai-community/gpt2/model.safetensors", &RemoteOptions::default())?;
//! let reader = SafetensorsReader::open(Arc::new(source), &ReadOptions::default())?;
//! let first_rows = reader.rows(reader.find("wte.weight").unwrap(), 0..16)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Checks of what servers send
//!
//! Responses are checked. Each answer must be the range that was asked for, by its status, its `Content-Range` and
//! its number of bytes. An answer that belongs to another version of the file, by its `ETag`, `Last-Modified` or length,
//! is an error of the kind [`Changed`](fmt_core::ErrorKind::Changed). Memory grows with what has arrived, not with what
//! was announced. Answers that stop or come too slowly are asked for again from where they stopped.
//!
//! # Features
//!
//! - `http` (default): [`open`] for `https://` and `hf://`, blocking, TLS by rustls.
//! - `hub`: `HubFolder`, the list of files of a repository on the Hub at one commit.
//! - `connector`: `RemoteConnector`, by which the crate `object_store` speaks to its servers with this crate's client.
//! - `s3`: `s3://` too, by requests that are signed.
//! - `async`: `AsyncByteSource` for what is read by futures, and `RemoteSource::from_async` to read it here.
//! - `object-store`: `StoredObject`, an object of the crate `object_store`.

#![cfg_attr(
    not(any(feature = "http", feature = "object-store")),
    allow(dead_code, reason = "nothing reads then: only types are left")
)]

#[cfg(feature = "async")]
mod asynchronous;
#[cfg(feature = "http")]
mod http;
mod index;
#[cfg(feature = "object-store")]
mod object;
mod source;

#[cfg(feature = "async")]
pub use asynchronous::{AsyncByteSource, ReadFuture};
#[cfg(feature = "connector")]
pub use http::RemoteConnector;
#[cfg(feature = "http")]
pub use http::{AwsKeys, AwsProfile, RemoteFile, RemoteOptions, is_remote, open};
#[cfg(feature = "hub")]
pub use http::{HubFile, HubFolder};
pub use index::IndexPlace;
#[cfg(feature = "object-store")]
pub use object::StoredObject;
pub use source::{RemoteSource, Traffic};
