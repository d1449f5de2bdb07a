//! ONNX's operators as data: operator sets, attributes, types, and whether they keep rows apart.
//!
//! One row describes an operator ([`Operator`]); [`operator`] finds it by domain and name. The built-in runtime binds a kernel
//! to each row that it computes, tools say with the table whether a model will run, and the proof that rows of a batch are
//! independent takes from it which operators keep rows and which mix them.
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
//! [`schema_of`] has what ONNX itself says of an operator in each operator set: numbers of inputs and outputs, and attributes that came
//! or left. [`attribute_type`] has the types of attributes.
//!
//! A new operator of the built-in runtime is a row in a file of `src/table/` and a kernel that `onnx-run` binds to it. Of an operator of
//! ONNX's own sets, `python xtask/zoo/schemas.py crates/onnx-operators/src` writes the schema.

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

/// The versions of ONNX's operator set (domain `""`) that the table is about.
pub const ONNX_VERSIONS: std::ops::RangeInclusive<i64> = 1..=25;

/// The versions of the operator set `ai.onnx.ml` that the table is about.
pub const ML_VERSIONS: std::ops::RangeInclusive<i64> = 1..=5;

/// The versions of the file format (`ir_version`) that are read.
pub const IR_VERSIONS: std::ops::RangeInclusive<i64> = 3..=13;

/// The domain of operators that only a rewritten graph has: a runtime's own where the table has one of that name, else ONNX's in the newest
/// version. Files may not use it.
pub const NEWEST: &str = "tensorferry";
