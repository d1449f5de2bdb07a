//! Rows of the operator table for pools.

use crate::{
    operator::{Operator, Outputs, inner, op},
    types::Types,
};

pub(super) const ROWS: &[Operator] = &[
    op("AveragePool")
        .takes(&[
            "auto_pad",
            "ceil_mode",
            "count_include_pad",
            "dilations",
            "kernel_shape",
            "pads",
            "strides",
        ])
        .of(Types::FLOATS)
        .in_fp32(),
    op("GlobalLpPool").since(2).takes(&["p"]),
    op("LpPool").since(2).takes(&[
        "auto_pad",
        "ceil_mode",
        "dilations",
        "kernel_shape",
        "p",
        "pads",
        "strides",
    ]),
    op("MaxPool")
        .gives(Outputs::Optional)
        .takes(&[
            "auto_pad",
            "ceil_mode",
            "dilations",
            "kernel_shape",
            "pads",
            "storage_order",
            "strides",
        ])
        .of(Types::FLOATS.and(Types::I8).and(Types::U8)),
    op("MaxUnpool")
        .with_inputs(&[(1, Types::I64)])
        .since(9)
        .takes(&["kernel_shape", "pads", "strides"])
        .shaped_by(&[2])
        .sizes_from(2, 3),
    inner("ChannelsLastAveragePool").of(Types::F32).takes(&[
        "auto_pad",
        "ceil_mode",
        "count_include_pad",
        "dilations",
        "kernel_shape",
        "pads",
        "strides",
    ]),
    inner("ChannelsLastMaxPool").of(Types::F32).takes(&[
        "auto_pad",
        "ceil_mode",
        "dilations",
        "kernel_shape",
        "pads",
        "storage_order",
        "strides",
    ]),
];
