//! ONNX's operators as data: operator sets, attributes, types, and whether an operator keeps rows
//! independent.
//!
//! One row describes an operator ([`Operator`]); [`operator`] finds it by domain and name. The built-in
//! runtime binds a kernel to each row that it supports, tools use the table to predict whether a model will
//! run, and the proof of row independence uses it to see which operators process rows independently and which
//! mix them.
//!
//! ```
//! use onnx_operators::{Outputs, Rows, Runs, Types, operator};
//!
//! let softplus = operator("", "Softplus").ok_or("no row")?;
//! assert_eq!((softplus.since, softplus.outputs), (1, Outputs::Exactly(1)));
//! assert_eq!((softplus.runs, softplus.rows), (Runs::Kernel, Rows::Elementwise));
//! assert_eq!(softplus.types, Some(Types::FLOATS));
//! # Ok::<(), &str>(())
//! ```
//!
//! [`schema_of`] returns ONNX's definition of an operator per operator set: numbers of inputs and outputs,
//! and attributes that were added or removed. [`attribute_type`] returns the types of attributes.
//!
//! To add an operator to the built-in runtime, add a row to a file of `src/table/`, and a kernel that
//! `onnx-run` binds to it. For an operator of ONNX's own sets, `python xtask/zoo/schemas.py
//! crates/onnx-operators/src` writes the schema.

mod attributes;
mod operator;
mod schema;
mod schema_by_name;
mod schemas;
mod table;
mod types;

pub use attributes::{AttributeType, attribute_type, holds_any_number};
pub use operator::{Computed, Operator, Outputs, Rows, Runs};
pub use schema::{ANY, LATEST, Schema};
pub use schema_by_name::schema_of;
pub use table::{operator, operators};
pub use types::Types;

/// The versions of ONNX's operator set (domain `""`) that the table covers.
pub const ONNX_VERSIONS: std::ops::RangeInclusive<i64> = 1..=25;

/// The versions of the operator set `ai.onnx.ml` that the table covers.
pub const ML_VERSIONS: std::ops::RangeInclusive<i64> = 1..=5;

/// The supported versions of the file format (`ir_version`).
pub const IR_VERSIONS: std::ops::RangeInclusive<i64> = 3..=13;

/// The domain of operators in rewritten graphs. An operator of this domain is the one that the table lists,
/// or otherwise ONNX's operator of that name in its newest version. Files may not use the domain.
pub const NEWEST: &str = "tensorferry";
