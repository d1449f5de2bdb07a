//! Rows of the operator table for convolutions.

use crate::{
    operator::{Operator, inner, op},
    types::Types,
};

const CONV: &[&str] = &[
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
];

pub(super) const ROWS: &[Operator] = &[
    op("Col2Im")
        .with_inputs(&[(1, Types::NUMBERS), (2, Types::NUMBERS)])
        .since(18)
        .takes(&["dilations", "pads", "strides"])
        .sized_by(&[1, 2]),
    op("Conv").takes(CONV).of(Types::FLOATS).in_fp32(),
    op("ConvInteger")
        .since(10)
        .takes(CONV)
        .of(Types::ALL)
        .sizes_from(2, 8),
    op("ConvTranspose")
        .takes(&[
            "auto_pad",
            "dilations",
            "group",
            "kernel_shape",
            "output_padding",
            "output_shape",
            "pads",
            "strides",
        ])
        .of(Types::FLOATS)
        .in_fp32(),
    op("DeformConv").since(19).takes(&[
        "dilations",
        "group",
        "kernel_shape",
        "offset_group",
        "pads",
        "strides",
    ]),
    op("QLinearConv")
        .since(10)
        .takes(CONV)
        .of(Types::ALL)
        .sizes_from(1, 8),
    inner("ChannelsLastConv").of(Types::F32).alike(&[1, 2]).takes(&[
        "auto_pad",
        "dilations",
        "from_first",
        "group",
        "kernel_shape",
        "pads",
        "strides",
    ]),
];
