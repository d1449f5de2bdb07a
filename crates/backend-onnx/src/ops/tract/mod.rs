//! How a node becomes an operator of tract's, for those that tract computes.

mod arithmetic;
mod axes;
mod einsum;
mod places;
mod products;
mod rewired;
mod sizes;
mod texts;
mod windows;

pub(super) use arithmetic::{condition, function, identity, list, pair};
pub(super) use axes::{
    argument, concat, depth_to_space, dropout, flatten, reduce, reshape, shape, size, space_to_depth, split,
    squeeze, transpose, unsqueeze,
};
pub(super) use einsum::einsum;
pub(super) use places::{expand_to, gather, tile};
pub(super) use products::{gemm, integer_product, product, q_linear_product};
pub(super) use sizes::to_sizes;
pub(super) use windows::{
    average_pool, convolution, global_pool, integer_convolution, max_pool, q_linear_convolution,
};

use tract_hir::internal::*;

/// An operator, or why there is none.
type Built = TractResult<Box<dyn InferenceOp>>;
