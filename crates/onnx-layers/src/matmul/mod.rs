//! Operators for matrix products of floats, integers and low-bit weights, `Einsum`, and determinants.

pub(crate) mod contraction;
pub(crate) mod determinant;
pub(crate) mod einsum;
pub(crate) mod expert_layers;
pub(crate) mod experts;
pub(crate) mod four_bit_floats;
pub(crate) mod integer_factors;
pub(crate) mod integer_products;
pub(crate) mod matrices;
pub(crate) mod packed_columns;
pub(crate) mod packed_product;
pub(crate) mod products;
pub(crate) mod quantized_products;
pub(crate) mod zero_points;

pub use determinant::determinant;
pub use einsum::{einsum, einsum_output};
pub use experts::{experts, packed_experts};
pub use four_bit_floats::four_bit_floats;
pub use integer_products::mat_mul_integer;
pub use packed_product::packed_product;
pub use products::{gemm_of, mat_mul};
pub use quantized_products::{dequantized_mat_mul, q_linear_mat_mul};
