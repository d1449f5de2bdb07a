//! The attributes that choose the interpolation of `Resize` and its coordinates.

use onnx_tensor::prelude::*;

use onnx_tensor::{faults::Unsupported, node::Attributes};

#[derive(Clone, Copy, Debug)]
pub(super) enum Method {
    Nearest(Rounding),
    Linear,
    Cubic { a: f32 },
}

impl Method {
    /// Reads the interpolation. `is_old` is true for operator sets without a choice of rounding.
    pub(super) fn of(attributes: Attributes<'_>, is_old: bool) -> Result<Self> {
        let unknown = |what: String| -> Error { Unsupported::Anywhere(what).into() };
        let rounding = match attributes.text("nearest_mode", "round_prefer_floor") {
            _ if is_old => Rounding::Simple,
            "round_prefer_floor" => Rounding::PreferFloor,
            "round_prefer_ceil" => Rounding::PreferCeil,
            "floor" => Rounding::Floor,
            "ceil" => Rounding::Ceil,
            other => {
                return Err(unknown(format!(
                    "the nearest_mode is '{other}', which is not supported"
                )));
            }
        };
        Ok(match attributes.text("mode", "nearest") {
            "nearest" => Self::Nearest(rounding),
            "linear" | "bilinear" | "trilinear" => Self::Linear,
            "cubic" => Self::Cubic {
                a: attributes.float("cubic_coeff_a", -0.75),
            },
            other => {
                return Err(unknown(format!(
                    "the attribute 'mode' is '{other}', expected nearest, linear or cubic"
                )));
            }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    PreferFloor,
    PreferCeil,
    Floor,
    Ceil,
    /// Rounds down for upsampling, and up for downsampling, as in operator set 10.
    Simple,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum CoordinateMode {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixel,
    /// `tf_crop_and_resize`. The number is `extrapolation_value`.
    Crop(f32),
}

impl CoordinateMode {
    /// Reads the coordinate transformation. `is_old` is true for operator sets without a choice of it.
    pub(super) fn of(attributes: Attributes<'_>, is_old: bool) -> Result<Self> {
        Ok(
            match attributes.text("coordinate_transformation_mode", "half_pixel") {
                _ if is_old => Self::Asymmetric,
                "half_pixel" => Self::HalfPixel,
                "half_pixel_symmetric" => Self::HalfPixelSymmetric,
                "pytorch_half_pixel" => Self::PytorchHalfPixel,
                "align_corners" => Self::AlignCorners,
                "asymmetric" => Self::Asymmetric,
                "tf_half_pixel_for_nn" => Self::TfHalfPixel,
                "tf_crop_and_resize" => Self::Crop(attributes.float("extrapolation_value", 0.0)),
                other => bail!(Unsupported::Anywhere(format!(
                    "the coordinate_transformation_mode is '{other}', which is not supported"
                ))),
            },
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    Stretch,
    NotLarger,
    NotSmaller,
}
