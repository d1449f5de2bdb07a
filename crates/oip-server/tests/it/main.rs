//! End-to-end tests of the server process: sockets, exit codes, and both transports.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "tensors")]
mod access;
mod addresses;
#[cfg(feature = "tensors")]
mod admin_address;
#[cfg(all(feature = "onnx", feature = "tensors"))]
mod attacks;
#[cfg(feature = "tensors")]
mod audit;
#[cfg(feature = "tensors")]
mod bodies;
#[cfg(feature = "forest")]
mod boosters;
#[cfg(feature = "tensors")]
mod capture;
mod check;
mod command_line;
#[cfg(feature = "onnx")]
#[cfg(target_os = "linux")]
mod connection_memory;
mod console;
mod control;
#[cfg(feature = "onnx")]
mod digits;
#[cfg(feature = "tensors")]
mod exposition;
#[cfg(all(feature = "onnx", target_os = "linux"))]
mod external_data;
mod file_options;
mod first_use;
mod fixed_sizes;
#[cfg(feature = "onnx")]
mod gpus;
mod grpc;
mod hanging;
#[cfg(feature = "onnx")]
mod isolation;
#[cfg(feature = "tensors")]
mod keys;
mod library_options;
mod life_cycle;
#[cfg(feature = "tensors")]
mod metrics;
#[cfg(all(feature = "stores", feature = "tensors"))]
mod opening;
mod parity;
#[cfg(all(feature = "onnx", feature = "tensors"))]
mod pipelines;
mod pressure;
#[cfg(all(feature = "otlp", feature = "tensors"))]
mod pushed;
#[cfg(all(feature = "stores", feature = "tensors"))]
mod stores;
mod streams;
mod support;
#[cfg(feature = "tensors")]
mod tensors;
mod texts;
mod tls;
#[cfg(all(feature = "onnx", feature = "otlp", feature = "tensors"))]
mod traces;
#[cfg(feature = "tensors")]
mod traffic;
