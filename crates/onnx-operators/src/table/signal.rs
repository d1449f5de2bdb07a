//! Transforms and windows of signals.

use crate::{
    operator::{Operator, op},
    types::Types,
};

const WINDOW: &[&str] = &["output_datatype", "periodic"];

pub(super) const ROWS: &[Operator] = &[
    op("BlackmanWindow")
        .since(17)
        .takes(WINDOW)
        .of(Types::ALL)
        .scalars(&[0])
        .sized_by(&[0])
        .sizes_from(0, 8)
        .mixing(),
    op("DFT")
        .since(17)
        .takes(&["axis", "inverse", "onesided"])
        .of(Types::FLOATS)
        .sized_by(&[1, 2])
        .sizes_from(1, 8),
    op("HammingWindow")
        .since(17)
        .takes(WINDOW)
        .of(Types::ALL)
        .scalars(&[0])
        .sized_by(&[0])
        .sizes_from(0, 8)
        .mixing(),
    op("HannWindow")
        .since(17)
        .takes(WINDOW)
        .of(Types::ALL)
        .scalars(&[0])
        .sized_by(&[0])
        .sizes_from(0, 8)
        .mixing(),
    op("MelWeightMatrix")
        .since(17)
        .takes(&["output_datatype"])
        .of(Types::ALL)
        .scalars(&[0, 1, 2, 3, 4])
        .sized_by(&[0, 1, 2])
        .sizes_from(0, 8)
        .mixing(),
    op("STFT")
        .since(17)
        .takes(&["onesided"])
        .sized_by(&[1, 3])
        .sizes_from(1, 8),
];
