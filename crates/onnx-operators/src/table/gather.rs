//! Rows of the operator table for gathering by index, scattering and sorting.

use crate::{
    operator::{Operator, Outputs, op},
    types::Types,
};

const AXIS: &[&str] = &["axis"];

pub(super) const ROWS: &[Operator] = &[
    op("Compress")
        .with_inputs(&[(1, Types::BOOL)])
        .since(9)
        .takes(AXIS)
        .sizes_unknown(),
    op("GatherElements")
        .with_inputs(&[(1, Types::NUMBERS)])
        .since(11)
        .takes(AXIS)
        .of(Types::ALL),
    op("GatherND")
        .with_inputs(&[(1, Types::NUMBERS)])
        .since(11)
        .takes(&["batch_dims"])
        .of(Types::ALL),
    op("NonZero").since(9).of(Types::FIXED).sizes_unknown(),
    op("OneHot")
        .with_inputs(&[(0, Types::NUMBERS), (1, Types::NUMBERS)])
        .since(9)
        .takes(AXIS)
        .sized_by(&[1])
        .sizes_from(1, 2),
    op("ReverseSequence")
        .with_inputs(&[(1, Types::NUMBERS)])
        .since(10)
        .takes(&["batch_axis", "time_axis"])
        .sized_by(&[1]),
    op("Scatter")
        .with_inputs(&[(1, Types::NUMBERS)])
        .takes(AXIS)
        .of(Types::ALL)
        .in_bytes(),
    op("ScatterElements")
        .with_inputs(&[(1, Types::NUMBERS)])
        .since(11)
        .takes(&["axis", "reduction"])
        .of(Types::ALL)
        .in_bytes(),
    op("ScatterND")
        .with_inputs(&[(1, Types::NUMBERS)])
        .since(11)
        .takes(&["reduction"])
        .of(Types::ALL)
        .in_bytes(),
    op("TopK")
        .with_inputs(&[(1, Types::NUMBERS)])
        .gives(Outputs::Exactly(2))
        .takes(&["axis", "k", "largest", "sorted"])
        .of(Types::NUMBERS)
        .in_fp32()
        .scalars(&[1])
        .sized_by(&[1])
        .sizes_from(1, 8),
    op("Unique")
        .since(11)
        .gives(Outputs::Exactly(4))
        .takes(&["axis", "sorted"])
        .sizes_unknown()
        .mixing(),
];
