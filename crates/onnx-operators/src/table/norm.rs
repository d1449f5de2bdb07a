//! Rows of the operator table for normalizations and losses.

use crate::{
    operator::{Operator, Outputs, op},
    types::Types,
};

const AXIS: &[&str] = &["axis"];

pub(super) const ROWS: &[Operator] = &[
    op("BatchNormalization")
        .gives(Outputs::Optional)
        .takes(&["epsilon", "is_test", "momentum", "spatial", "training_mode"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("GroupNormalization")
        .since(18)
        .takes(&["epsilon", "num_groups", "stash_type"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("Hardmax").takes(AXIS),
    op("InstanceNormalization")
        .takes(&["epsilon"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("LRN")
        .takes(&["alpha", "beta", "bias", "size"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("LayerNormalization")
        .since(17)
        .written_earlier()
        .gives(Outputs::Optional)
        .takes(&["axis", "epsilon", "stash_type"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("LogSoftmax").takes(AXIS).of(Types::FLOATS).in_fp32(),
    op("LpNormalization")
        .takes(&["axis", "p"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("MeanVarianceNormalization")
        .since(9)
        .takes(&["axes"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("NegativeLogLikelihoodLoss")
        .since(12)
        .takes(&["ignore_index", "reduction"])
        .mixing(),
    op("RMSNormalization")
        .since(23)
        .written_earlier()
        .takes(&["axis", "epsilon", "stash_type"])
        .of(Types::FLOATS)
        .in_fp32(),
    op("Softmax").takes(AXIS).of(Types::FLOATS).in_fp32(),
    op("SoftmaxCrossEntropyLoss")
        .since(12)
        .gives(Outputs::Optional)
        .takes(&["ignore_index", "reduction"])
        .mixing(),
];
