//! Rows of the operator table for reductions.

use crate::{
    operator::{Operator, inner, op},
    types::Types,
};

const REDUCE: &[&str] = &["axes", "keepdims", "noop_with_empty_axes"];
const ARG: &[&str] = &["axis", "keepdims", "select_last_index"];

pub(super) const ROWS: &[Operator] = &[
    op("ArgMax")
        .takes(ARG)
        .of(Types::FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16)),
    op("ArgMin")
        .takes(ARG)
        .of(Types::FLOATS.and(Types::SIGNED).and(Types::U8).and(Types::U16)),
    op("CumSum")
        .with_inputs(&[(1, Types::NUMBERS)])
        .since(11)
        .takes(&["exclusive", "reverse"])
        .sized_by(&[1])
        .sizes_from(1, 8),
    op("GlobalAveragePool").of(Types::FLOATS).in_fp32(),
    op("GlobalMaxPool").of(Types::FLOATS),
    op("ReduceL1")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceL2")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceLogSum")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceLogSumExp")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceMax")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::FIXED)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceMean")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceMin")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::FIXED)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceProd")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceSum")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReduceSumSquare")
        .with_inputs(&[(1, Types::I64)])
        .takes(REDUCE)
        .of(Types::NUMBERS)
        .in_fp32()
        .sized_by(&[1])
        .sizes_from(1, 2),
    inner("ChannelsLastGlobalAveragePool").of(Types::F32),
];
