//! Rows of the operator table for image resizing and sampling, and for bounding boxes.

use crate::{
    operator::{Operator, op},
    types::Types,
};

pub(super) const ROWS: &[Operator] = &[
    op("AffineGrid")
        .with_inputs(&[(1, Types::NUMBERS)])
        .since(20)
        .takes(&["align_corners"])
        .shaped_by(&[1])
        .sizes_from(1, 2),
    op("GridSample")
        .since(16)
        .takes(&["align_corners", "mode", "padding_mode"]),
    op("NonMaxSuppression")
        .with_inputs(&[(2, Types::I64)])
        .since(10)
        .takes(&["center_point_box"])
        .sizes_from(2, 8)
        .sizes_unknown()
        .mixing(),
    op("Resize")
        .with_inputs(&[(1, Types::SHORT_FLOATS), (2, Types::SHORT_FLOATS)])
        .since(10)
        .takes(&[
            "antialias",
            "axes",
            "coordinate_transformation_mode",
            "cubic_coeff_a",
            "exclude_outside",
            "extrapolation_value",
            "keep_aspect_ratio_policy",
            "mode",
            "nearest_mode",
        ])
        .shaped_by(&[3])
        .sizes_from(1, 8),
    op("RoiAlign")
        .with_inputs(&[(2, Types::NUMBERS)])
        .since(10)
        .takes(&[
            "coordinate_transformation_mode",
            "mode",
            "output_height",
            "output_width",
            "sampling_ratio",
            "spatial_scale",
        ])
        .mixing(),
    op("Upsample")
        .with_inputs(&[(1, Types::SHORT_FLOATS)])
        .since(7)
        .takes(&["mode", "scales"])
        .sizes_from(1, 8),
];
