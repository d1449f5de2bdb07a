//! The operators of `ai.onnx.ml`, which exporters of scikit-learn's models write, and string operators.
//!
//! Functions such as [`tree_classifier`] create an operator, a [`Compute`](onnx_tensor::operator::Compute),
//! from a node's attributes. Scores and labels equal those of ONNX Runtime.
//!
//! ```
//! use onnx_tensor::{
//!     node::{Attribute, Node},
//!     prelude::*,
//! };
//!
//! let threshold = Attribute { name: "threshold".to_owned(), f: 0.5, ..Attribute::default() };
//! let node = Node { op_type: "ai.onnx.ml/Binarizer".to_owned(), attribute: vec![threshold], ..Node::default() };
//! let binarizer = onnx_ml::binarizer(&node)?;
//! let outputs = binarizer.run(&mut smallvec![Tensor::matrix(&[[0.2f32, 0.9]]).into_arc()])?;
//! assert_eq!(*outputs[0], Tensor::matrix(&[[0.0f32, 1.0]]));
//! # Ok::<(), Error>(())
//! ```
#![allow(
    clippy::missing_errors_doc,
    reason = "makers of operators fail alike: with what is wrong with the node"
)]

mod encode;
mod ensemble;
mod label_encoder;
mod linear;
mod post;
mod rows;
mod scale;
mod svm;
pub mod text;

pub use encode::{extractor, one_hot, vectorizer};
pub use ensemble::{classifier as tree_classifier, ensemble as tree_ensemble, regressor as tree_regressor};
pub use label_encoder::label_encoder;
pub use linear::{classifier as linear_classifier, regressor as linear_regressor};
pub use scale::{binarizer, imputer, normalizer, scaler};
pub use svm::{classifier as svm_classifier, regressor as svm_regressor};

/// Returns the dot product, summed in several lanes.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Returns the index of the greatest score, the first one on ties.
fn greatest(scores: &[f32]) -> usize {
    let mut best = 0;
    for (index, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = index;
        }
    }
    best
}
