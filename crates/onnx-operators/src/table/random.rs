//! Rows of the operator table for operators that generate random numbers.

use crate::operator::{Operator, op};

pub(super) const ROWS: &[Operator] = &[
    op("Bernoulli").since(15).takes(&["dtype", "seed"]).random(),
    op("RandomNormal")
        .takes(&["dtype", "mean", "scale", "seed", "shape"])
        .random(),
    op("RandomNormalLike")
        .takes(&["dtype", "mean", "scale", "seed"])
        .random(),
    op("RandomUniform")
        .takes(&["dtype", "high", "low", "seed", "shape"])
        .random(),
    op("RandomUniformLike")
        .takes(&["dtype", "high", "low", "seed"])
        .random(),
];
