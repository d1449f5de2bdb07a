//! Remote files as byte sources, so that every tensor file reader works over the network with range requests.
//!
//! A [`RemoteSource`] is a [`ByteSource`](fmt_core::ByteSource). It fetches the requested parts of a file and
//! little more: the first request (two if the index is at the end) fetches the part that contains the index,
//! sequential reads share one response, and nothing large is buffered.
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
//! # Validation of responses
//!
//! Each response must match the requested range by its status, its `Content-Range` and its number of bytes. A
//! response for another version of the file, as identified by its `ETag`, `Last-Modified` or length, is an
//! error of the kind [`Changed`](fmt_core::ErrorKind::Changed). Memory grows with the bytes received, not
//! with the announced length. If a response breaks off or is too slow, the missing bytes are requested.
//!
//! # Features
//!
//! - `http` (default): [`open`] for `https://` and `hf://`, blocking, with TLS by rustls.
//! - `hub`: `HubFolder` lists the files of a Hub repository at a commit.
//! - `connector`: `RemoteConnector` lets the crate `object_store` use this crate's HTTP client.
//! - `s3`: `s3://` with signed requests.
//! - `async`: `AsyncByteSource` for asynchronous sources, and `RemoteSource::from_async` to adapt them.
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
