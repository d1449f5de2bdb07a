//! Activation functions of recurrent layers.

use onnx_kernels::elementwise::{approximations, transcendental, vector::each};

/// An activation function of a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    Sigmoid,
    Tanh,
    /// The approximation of ONNX Runtime, bit for bit.
    CoarseSigmoid,
    CoarseTanh,
    Relu,
    Softplus,
    Softsign,
    Affine {
        alpha: f32,
        beta: f32,
    },
    Elu {
        alpha: f32,
    },
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    LeakyRelu {
        alpha: f32,
    },
    ScaledTanh {
        alpha: f32,
        beta: f32,
    },
    ThresholdedRelu {
        alpha: f32,
    },
}

impl Activation {
    /// Finds a function by its ONNX name, with default parameters.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "sigmoid" => Self::Sigmoid,
            "tanh" => Self::Tanh,
            "relu" => Self::Relu,
            "softplus" => Self::Softplus,
            "softsign" => Self::Softsign,
            "affine" => Self::Affine {
                alpha: 1.0,
                beta: 0.0,
            },
            "elu" => Self::Elu { alpha: 1.0 },
            "hardsigmoid" => Self::HardSigmoid {
                alpha: 0.2,
                beta: 0.5,
            },
            "leakyrelu" => Self::LeakyRelu { alpha: 0.01 },
            "scaledtanh" => Self::ScaledTanh {
                alpha: 1.0,
                beta: 1.0,
            },
            "thresholdedrelu" => Self::ThresholdedRelu { alpha: 1.0 },
            _ => return None,
        })
    }

    /// Sets each parameter of the function to the next value of `alphas` or `betas`, if there is one.
    pub(crate) fn with(
        mut self,
        alphas: &mut impl Iterator<Item = f32>,
        betas: &mut impl Iterator<Item = f32>,
    ) -> Self {
        match &mut self {
            Self::Sigmoid
            | Self::Tanh
            | Self::CoarseSigmoid
            | Self::CoarseTanh
            | Self::Relu
            | Self::Softplus
            | Self::Softsign => {}
            Self::Elu { alpha } | Self::LeakyRelu { alpha } | Self::ThresholdedRelu { alpha } => {
                *alpha = alphas.next().unwrap_or(*alpha);
            }
            Self::Affine { alpha, beta }
            | Self::HardSigmoid { alpha, beta }
            | Self::ScaledTanh { alpha, beta } => {
                *alpha = alphas.next().unwrap_or(*alpha);
                *beta = betas.next().unwrap_or(*beta);
            }
        }
        self
    }

    /// Returns the variant of the function with ONNX Runtime's approximation, for quantized layers.
    pub(crate) fn coarse(self) -> Self {
        match self {
            Self::Sigmoid => Self::CoarseSigmoid,
            Self::Tanh => Self::CoarseTanh,
            other => other,
        }
    }

    /// Applies the function to each value.
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Self::Sigmoid => each!(values, [] | x | transcendental::sigmoid::<false>(x)),
            Self::Tanh => each!(values, [] | x | transcendental::tanh::<false>(x)),
            Self::CoarseSigmoid => approximations::sigmoid(values),
            Self::CoarseTanh => approximations::tanh(values),
            Self::Relu => each!(values, [] | x | if x < 0.0 { 0.0 } else { x }),
            Self::Softplus => each!(values, [] | x | transcendental::softplus::<false>(x)),
            Self::Softsign => each!(values, [] | x | x / (1.0 + x.abs())),
            Self::Affine { alpha, beta } => each!(values, [alpha, beta] | x | alpha * x + beta),
            Self::Elu { alpha } => each!(
                values,
                [alpha] | x | {
                    let below = alpha * transcendental::expm1::<false>(x);
                    if x < 0.0 { below } else { x }
                }
            ),
            Self::HardSigmoid { alpha, beta } => {
                each!(values, [alpha, beta] | x | (alpha * x + beta).clamp(0.0, 1.0));
            }
            Self::LeakyRelu { alpha } => each!(values, [alpha] | x | if x < 0.0 { alpha * x } else { x }),
            Self::ScaledTanh { alpha, beta } => {
                each!(
                    values,
                    [alpha, beta] | x | alpha * transcendental::tanh::<false>(beta * x)
                );
            }
            Self::ThresholdedRelu { alpha } => {
                each!(values, [alpha] | x | if x > alpha { x } else { 0.0 });
            }
        }
    }
}
