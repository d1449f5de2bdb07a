//! Rows of the operator table for operators that move elements or compute shapes.

use crate::{
    operator::{Operator, Outputs, op},
    types::Types,
};

const AXIS: &[&str] = &["axis"];

pub(super) const ROWS: &[Operator] = &[
    op("CenterCropPad")
        .since(18)
        .takes(&["axes"])
        .shaped_by(&[1])
        .sizes_from(1, 8)
        .mixing(),
    op("Concat").takes(AXIS),
    op("ConstantOfShape")
        .since(9)
        .takes(&["value"])
        .of(Types::ALL)
        .shaped_by(&[0])
        .sizes_from(0, 8),
    op("DepthToSpace").takes(&["blocksize", "mode"]).of(Types::FIXED),
    op("Dropout")
        .gives(Outputs::Optional)
        .takes(&["is_test", "ratio", "seed"])
        .of(Types::ALL)
        .scalars(&[1, 2])
        .sizes_from(1, 8),
    op("Expand")
        .with_inputs(&[(1, Types::I64)])
        .since(8)
        .of(Types::ALL)
        .shaped_by(&[1])
        .sizes_from(1, 8),
    op("EyeLike")
        .since(9)
        .takes(&["dtype", "k"])
        .of(Types::ALL)
        .mixing(),
    op("Flatten").takes(AXIS).of(Types::ALL),
    op("Gather").takes(AXIS).of(Types::ALL),
    op("Identity").of(Types::ALL),
    op("Pad")
        .with_inputs(&[(1, Types::NUMBERS)])
        .alike(&[2])
        .takes(&["mode", "pads", "paddings", "value"])
        .sized_by(&[1, 3])
        .sizes_from(1, 8),
    op("Range").since(11).sizes_from(0, 8),
    op("Reshape")
        .with_inputs(&[(1, Types::I64)])
        .since(5)
        .takes(&["allowzero"])
        .of(Types::ALL)
        .shaped_by(&[1])
        .sizes_from(1, 8),
    op("Shape").takes(&["end", "start"]).of(Types::ALL),
    op("Size").of(Types::ALL),
    op("Slice")
        .takes(&["axes", "ends", "starts"])
        .sized_by(&[3])
        .sizes_from(1, 8),
    op("SpaceToDepth").takes(&["blocksize"]).of(Types::FIXED),
    op("Split")
        .with_inputs(&[(1, Types::I64)])
        .gives(Outputs::AsNamed)
        .takes(&["axis", "num_outputs", "split"])
        .of(Types::ALL)
        .sized_by(&[1])
        .sizes_from(1, 8),
    op("Squeeze")
        .with_inputs(&[(1, Types::I64)])
        .takes(&["axes"])
        .of(Types::ALL)
        .sized_by(&[1])
        .sizes_from(1, 8),
    op("Tile")
        .with_inputs(&[(1, Types::I64)])
        .since(6)
        .of(Types::ALL)
        .shaped_by(&[1])
        .sizes_from(1, 8),
    op("Transpose").takes(&["perm"]).of(Types::ALL),
    op("Trilu")
        .with_inputs(&[(1, Types::I64)])
        .since(14)
        .takes(&["upper"])
        .sizes_from(1, 8),
    op("Unsqueeze")
        .with_inputs(&[(1, Types::I64)])
        .takes(&["axes"])
        .of(Types::ALL)
        .sized_by(&[1])
        .sizes_from(1, 8),
    op("Where").since(9).of(Types::ALL).typed_by(1).elementwise(),
];
