//! Operators: which are known, how tract's are held to what ONNX means, and those that are computed here.

mod activation;
mod affine_grid;
mod attention;
mod attention_mask;
mod attributes;
mod average_pool;
pub(crate) mod axis;
mod batch_normalization;
mod binary;
mod branch;
mod cast;
mod cells;
mod coarse;
mod columns;
mod computed_product;
mod conditions;
mod constants;
mod contraction;
mod contrib;
mod conv_transpose;
mod convolution;
mod counted;
mod counting;
mod cum_sum;
mod determinant;
mod dft;
pub(crate) mod direct;
pub(crate) mod elements;
mod elementwise;
#[cfg(test)]
mod extreme_numbers;
mod eye_like;
mod fuse;
mod gate_functions;
mod gemm;
mod grid_sample;
mod grouped_attention;
mod guard;
mod hardmax;
mod indexed;
mod integer_factors;
#[cfg(target_arch = "x86_64")]
mod integer_product;
mod kernel;
mod local_normalization;
mod lookup;
mod lp_pool;
mod matrices;
mod matrix_product;
mod max_pool;
mod max_unpool;
mod mel;
mod moved_axis;
mod non_max_suppression;
mod non_zero;
mod normalize;
mod numbers;
mod output;
mod packed_product;
mod packed_rows;
mod packs;
mod pad;
mod picked;
mod pieces_of_text;
mod pooling;
mod power;
mod prelu;
mod quantize;
mod quantized_pair;
mod random;
mod recurrent;
mod reduce;
mod registry;
mod repeated;
mod resize;
mod roi_align;
mod rotary;
mod rule;
mod sequences;
mod shapes;
mod slice;
mod softmax;
mod sorting;
mod steps;
mod stft;
mod sums;
mod table;
mod taps;
mod text;
mod tokenizer;
mod top_k;
mod tract;
mod types;
mod unfolded;
mod unique;
mod vector;
mod whole;
mod window;
mod wiring;
mod zero_points;

pub(crate) use attributes::Attributes;
pub(crate) use batch_normalization::channels as batch_channels;
pub(crate) use branch::inner_graphs;
pub(crate) use constants::value as constant;
pub(crate) use counted::count_all;
pub(crate) use elementwise::has_zero;
pub(crate) use kernel::{Fact, Kernel, kept, kernel, named_in, unknown};
pub(crate) use packs::Packs;
pub(crate) use registry::{OUTPUT, check, context, has_attribute, outputs, registered_name, resolved};
pub(crate) use rule::Outputs;
pub(crate) use steps::{gives_unknown_sizes, is_stepwise, shaping_inputs};

/// Takes away from tract what it would simplify wrongly.
pub(crate) fn keep_order(model: &mut tract_hir::prelude::TypedModel) -> tract_hir::prelude::TractResult<()> {
    repeated::keep(model)?;
    binary::keep_order(model)
}

/// Puts our own products in the place of those whose weights and sizes are known, and our own pools, before tract makes a plan. For
/// pools of known sizes it would make lists of all places of their windows.
pub(crate) fn pack(model: &mut tract_hir::prelude::TypedModel) -> tract_hir::prelude::TractResult<()> {
    let mut packs = packs::Packs::of(model);
    average_pool::replace(model)?;
    max_pool::replace(model)?;
    kernel::pack(model, &mut packs)?;
    computed_product::pack(model)?;
    fuse::convolutions(model, &mut packs)
}

/// Puts faster operators in the place of tract's, after it has made a plan.
pub(crate) fn quicken(model: &mut tract_hir::prelude::TypedModel) -> tract_hir::prelude::TractResult<()> {
    pad::quicken(model);
    moved_axis::quicken(model)?;
    sums::quicken(model)?;
    binary::quicken(model)
}

/// Whether products of 8-bit numbers are computed sooner in FP32 than by tract's kernels for them.
pub(crate) fn are_floats_quicker() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has_kernels = !integer_product::is_quicker();
    #[cfg(not(target_arch = "x86_64"))]
    let has_kernels = false;
    onnx_gemm::has_wide_vectors() && !has_kernels
}
