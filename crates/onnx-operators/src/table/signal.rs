//! Rows of the operator table for signal transforms and window functions.

use crate::{
    operator::{Operator, op},
    types::Types,
};

const WINDOW: &[&str] = &["output_datatype", "periodic"];

pub(super) const ROWS: &[Operator] = &[
    op("BlackmanWindow")
        .with_inputs(&[(0, Types::NUMBERS)])
        .since(17)
        .takes(WINDOW)
        .of(Types::ALL)
        .scalars(&[0])
        .sized_by(&[0])
        .sizes_from(0, 8)
        .mixing(),
    op("DFT")
        .with_inputs(&[(1, Types::NUMBERS), (2, Types::NUMBERS)])
        .since(17)
        .takes(&["axis", "inverse", "onesided"])
        .of(Types::FLOATS)
        .sized_by(&[1, 2])
        .sizes_from(1, 8),
    op("HammingWindow")
        .with_inputs(&[(0, Types::NUMBERS)])
        .since(17)
        .takes(WINDOW)
        .of(Types::ALL)
        .scalars(&[0])
        .sized_by(&[0])
        .sizes_from(0, 8)
        .mixing(),
    op("HannWindow")
        .with_inputs(&[(0, Types::NUMBERS)])
        .since(17)
        .takes(WINDOW)
        .of(Types::ALL)
        .scalars(&[0])
        .sized_by(&[0])
        .sizes_from(0, 8)
        .mixing(),
    op("MelWeightMatrix")
        .with_inputs(&[(0, Types::NUMBERS), (1, Types::NUMBERS), (2, Types::NUMBERS)])
        .since(17)
        .takes(&["output_datatype"])
        .of(Types::ALL)
        .scalars(&[0, 1, 2, 3, 4])
        .sized_by(&[0, 1, 2])
        .sizes_from(0, 8)
        .mixing(),
    op("STFT")
        .with_inputs(&[(1, Types::NUMBERS), (2, Types::NUMBERS), (3, Types::NUMBERS)])
        .since(17)
        .takes(&["onesided"])
        .sized_by(&[1, 3])
        .sizes_from(1, 8),
];
