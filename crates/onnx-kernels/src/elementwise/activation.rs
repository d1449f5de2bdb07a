//! Activation functions. NaN propagates, and limits at infinity are exact.

use std::{
    fmt,
    ops::{Neg, Sub},
};

use onnx_tensor::prelude::*;

use crate::{
    elementwise::{
        transcendental,
        vector::{each, stored},
    },
    least_work::ELEMENTS,
};
use onnx_tensor::node::Node;
use onnx_tensor::{
    elements::Real,
    node::Attributes,
    split::{self, LINE},
};

fn function(node: &Node) -> Result<Function> {
    let attributes = Attributes(node);
    let float = |name: &str, default: f32| attributes.float(name, default);
    let old = node.opset < 6;
    Ok(match node.op_type.as_str() {
        "Relu" => Function::Relu,
        "Sigmoid" => Function::Sigmoid,
        "Tanh" => Function::Tanh,
        "Softplus" => Function::Softplus,
        "Erf" => Function::Erf,
        "Exp" => Function::Exp,
        "Mish" => Function::Mish,
        "Gelu" if attributes.text("approximate", "none") == "tanh" => Function::GeluByTanh,
        "Gelu" => Function::Gelu,
        "Elu" => Function::Elu {
            alpha: float("alpha", 1.0),
        },
        "Celu" => Function::Celu {
            alpha: float("alpha", 1.0),
        },
        "Selu" => Function::Selu {
            alpha: float("alpha", if old { 1.6732 } else { 1.673_263_2 }),
            gamma: float("gamma", if old { 1.0507 } else { 1.050_701 }),
        },
        "LeakyRelu" => Function::LeakyRelu {
            alpha: float("alpha", 0.01),
        },
        "HardSigmoid" => Function::HardSigmoid {
            alpha: float("alpha", 0.2),
            beta: float("beta", 0.5),
        },
        "HardSwish" => Function::HardSwish,
        "Round" => Function::Round,
        "Floor" => Function::Floor,
        "Ceil" => Function::Ceil,
        "Sign" => Function::Sign,
        "Asinh" => Function::Asinh,
        "Acosh" => Function::Acosh,
        "Softsign" => Function::Softsign,
        "ThresholdedRelu" => Function::ThresholdedRelu {
            alpha: float("alpha", 1.0),
        },
        "Shrink" => Function::Shrink {
            lambd: float("lambd", 0.5),
            bias: float("bias", 0.0),
        },
        "Clip" => Function::Clip {
            low: float("min", f32::MIN).into(),
            high: float("max", f32::MAX).into(),
        },
        other => bail!("{other} is not an activation"),
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Relu,
    Sigmoid,
    Tanh,
    Softplus,
    Erf,
    Exp,
    Mish,
    Gelu,
    GeluByTanh,
    Elu {
        alpha: f32,
    },
    Celu {
        alpha: f32,
    },
    Selu {
        alpha: f32,
        gamma: f32,
    },
    LeakyRelu {
        alpha: f32,
    },
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    HardSwish,
    Round,
    Floor,
    Ceil,
    Sign,
    Asinh,
    Acosh,
    Softsign,
    ThresholdedRelu {
        alpha: f32,
    },
    Shrink {
        lambd: f32,
        bias: f32,
    },
    Clip {
        low: f64,
        high: f64,
    },
    /// `x * Sigmoid(x)`.
    Silu,
    /// `x * HardSigmoid(x)`.
    GatedHardSigmoid {
        alpha: f32,
        beta: f32,
    },
}

impl Function {
    fn single(self, values: &mut [f32]) {
        match self {
            Self::Relu => each!(values, [] | x | if x < 0.0 { 0.0 } else { stored(x) }),
            Self::Sigmoid => each!(values, [] | x, FUSED | transcendental::sigmoid::<FUSED>(x)),
            Self::Tanh => each!(values, [] | x, FUSED | transcendental::tanh::<FUSED>(x)),
            Self::Softplus => each!(values, [] | x, FUSED | transcendental::softplus::<FUSED>(x)),
            Self::Erf => each!(values, [] | x, FUSED | transcendental::erf::<FUSED>(x)),
            Self::Exp => each!(values, [] | x, FUSED | transcendental::exp::<FUSED>(x)),
            Self::Mish => each!(values, [] | x, FUSED | transcendental::mish::<FUSED>(x)),
            Self::Gelu => each!(values, [] | x, FUSED | transcendental::gelu::<FUSED>(x)),
            Self::GeluByTanh => each!(values, [] | x, FUSED | transcendental::gelu_by_tanh::<FUSED>(x)),
            Self::Elu { alpha } => each!(
                values,
                [alpha] | x,
                FUSED | {
                    let below = alpha * transcendental::expm1::<FUSED>(x);
                    if x > 0.0 { stored(x) } else { below }
                }
            ),
            Self::Celu { alpha } => each!(
                values,
                [alpha] | x,
                FUSED | {
                    let below = alpha * transcendental::expm1::<FUSED>(x / alpha);
                    if x > 0.0 { stored(x) } else { below }
                }
            ),
            Self::Selu { alpha, gamma } => each!(
                values,
                [alpha, gamma] | x,
                FUSED | {
                    let below = alpha * transcendental::expm1::<FUSED>(x);
                    gamma * if x > 0.0 { stored(x) } else { below }
                }
            ),
            Self::LeakyRelu { alpha } => {
                each!(values, [alpha] | x | if x < 0.0 { alpha * x } else { stored(x) });
            }
            Self::HardSigmoid { alpha, beta } => {
                each!(values, [alpha, beta] | x | clamp(alpha * x + beta));
            }
            Self::HardSwish => each!(values, [] | x | x * clamp(x / 6.0 + 0.5)),
            Self::Silu => each!(values, [] | x, FUSED | x * transcendental::sigmoid::<FUSED>(x)),
            Self::GatedHardSigmoid { alpha, beta } => {
                each!(values, [alpha, beta] | x | x * clamp(alpha * x + beta));
            }
            // Computed in FP64: in FP32, intermediate values would overflow before the result does.
            Self::Asinh => each!(values, [] | x | f64::from(x).asinh() as f32),
            Self::Acosh => each!(values, [] | x | f64::from(x).acosh() as f32),
            Self::Softsign => each!(values, [] | x | x / (1.0 + x.abs())),
            Self::ThresholdedRelu { alpha } => {
                each!(values, [alpha] | x | if x > alpha { stored(x) } else { 0.0 });
            }
            Self::Shrink { lambd, bias } => each!(values, [lambd, bias] | x | shrink(x, lambd, bias)),
            Self::Clip { low, high } => {
                let (low, high) = (low as f32, high as f32);
                each!(
                    values,
                    [low, high] | x | {
                        let x = if x < low { low } else { stored(x) };
                        if x > high { high } else { x }
                    }
                );
            }
            Self::Round => each!(values, [] | x | x.round_ties_even()),
            Self::Floor => each!(values, [] | x | x.floor()),
            Self::Ceil => each!(values, [] | x | x.ceil()),
            Self::Sign => each!(
                values,
                [] | x | {
                    if x == 0.0 || x.is_nan() {
                        stored(x)
                    } else {
                        1.0f32.copysign(x)
                    }
                }
            ),
        }
    }

    fn double(self, values: &mut [f64]) {
        let function: &dyn Fn(f64) -> f64 = match self {
            Self::Relu => &|x| if x < 0.0 { 0.0 } else { x },
            Self::Sigmoid => &|x| 1.0 / (1.0 + (-x).exp()),
            Self::Tanh => &f64::tanh,
            Self::Softplus => &softplus,
            Self::Exp => &f64::exp,
            Self::Mish => &|x| x * softplus(x).tanh(),
            Self::GeluByTanh => &|x| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                x / (1.0 + (-2.0 * inner).exp())
            },
            Self::Elu { alpha } => &move |x| if x > 0.0 { x } else { f64::from(alpha) * x.exp_m1() },
            Self::Celu { alpha } => &move |x| {
                let alpha = f64::from(alpha);
                if x > 0.0 { x } else { alpha * (x / alpha).exp_m1() }
            },
            Self::Selu { alpha, gamma } => {
                &move |x| f64::from(gamma) * if x > 0.0 { x } else { f64::from(alpha) * x.exp_m1() }
            }
            Self::LeakyRelu { alpha } => &move |x| if x < 0.0 { f64::from(alpha) * x } else { x },
            Self::HardSigmoid { alpha, beta } => &move |x| clamp(f64::from(alpha) * x + f64::from(beta)),
            // ONNX Runtime rounds 1/6 to FP32.
            Self::HardSwish => &|x| x * clamp(x * f64::from(1.0f32 / 6.0) + 0.5),
            Self::Asinh => &f64::asinh,
            Self::Acosh => &f64::acosh,
            Self::Softsign => &|x| x / (1.0 + x.abs()),
            Self::ThresholdedRelu { alpha } => &move |x| if x > f64::from(alpha) { x } else { 0.0 },
            Self::Shrink { lambd, bias } => &move |x| shrink(x, lambd.into(), bias.into()),
            Self::Clip { low, high } => &move |x| {
                let x = if x < low { low } else { x };
                if x > high { high } else { x }
            },
            Self::Round => &f64::round_ties_even,
            Self::Floor => &f64::floor,
            Self::Ceil => &f64::ceil,
            Self::Sign => &|x| {
                if x == 0.0 || x.is_nan() {
                    x
                } else {
                    1.0f64.copysign(x)
                }
            },
            // The following functions have no FP64 operator, or are only created by fusion in FP32.
            Self::Silu => &|x| x / (1.0 + (-x).exp()),
            Self::GatedHardSigmoid { alpha, beta } => {
                &move |x| x * clamp(f64::from(alpha) * x + f64::from(beta))
            }
            Self::Erf | Self::Gelu => &|_| f64::NAN,
        };
        for value in values {
            *value = function(*value);
        }
    }
}

fn softplus(x: f64) -> f64 {
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + (-x.abs()).exp().ln_1p()
}

/// Computes `Shrink`: moves `x` towards 0 by `bias`, and returns 0 if the magnitude of `x` is at most
/// `lambd`.
#[inline(always)]
fn shrink<T: Real + Sub<Output = T> + Neg<Output = T>>(x: T, lambd: T, bias: T) -> T {
    if x < -lambd {
        x + bias
    } else if x > lambd {
        x - bias
    } else {
        T::of(0.0)
    }
}

/// Clamps `x` to 0..=1; NaN stays NaN.
#[inline(always)]
fn clamp<T: PartialOrd + From<u8>>(x: T) -> T {
    let (zero, one) = (T::from(0), T::from(1));
    if x < zero {
        zero
    } else if x > one {
        one
    } else {
        x
    }
}

/// An activation function, with its parameters.
///
/// ```
/// use onnx_kernels::elementwise::{self, activation_of};
/// use onnx_tensor::{node::Node, prelude::*};
///
/// let node = Node { op_type: "Relu".to_owned(), opset: 14, ..Node::default() };
/// let relu = elementwise::function(&node)?;
/// let activation = activation_of(&*relu).context("ReLU is an activation")?;
/// let mut values = [-1.0f32, 2.0];
/// activation.apply(&mut values);
/// assert_eq!(values, [0.0, 2.0]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Activation(Function);

impl Activation {
    /// Returns the function of the operator with this name. `Clip` is the variant whose bounds are
    /// attributes.
    pub(crate) fn of(node: &Node) -> Result<Self> {
        function(node).map(Self)
    }

    /// Returns the function that clamps to bounds.
    pub(crate) fn clip(low: f32, high: f32) -> Self {
        let (low, high) = (low.into(), high.into());
        Self(Function::Clip { low, high })
    }

    /// Applies the function to FP32 or FP64 elements, in place where the tensor owns them.
    ///
    /// # Errors
    /// Fails if the elements have another type, or if the request is cancelled.
    pub fn replaced(&self, tensor: Arc<Tensor>) -> Result<Arc<Tensor>> {
        /// Number of elements between two checks for cancellation.
        const PART: usize = 1 << 14;
        /// Maximum cost of an element, relative to reading and writing it.
        const COST: u64 = 4;
        fn each<T: Element + Copy>(
            tensor: Arc<Tensor>,
            run: impl Fn(&mut [T]) + Sync,
        ) -> Result<Arc<Tensor>> {
            let work = [tensor.len() as u64, ELEMENTS];
            split::replaced(tensor, LINE, work, |_, values: &mut [T], pace| {
                for part in values.chunks_mut(PART) {
                    pace.spend(COST * part.len() as u64)?;
                    run(part);
                }
                Ok(())
            })
        }
        match tensor.element_type() {
            ElementType::F32 => each(tensor, |part| self.0.single(part)),
            ElementType::F64 => each(tensor, |part| self.0.double(part)),
            other => bail!("{:?} of {other:?}", self.0),
        }
    }

    /// Applies the function to FP32 values in place.
    pub fn apply(&self, values: &mut [f32]) {
        self.0.single(values);
    }

    /// Returns the fused form of `x * f(x)`, if it exists.
    pub(crate) fn gated(&self) -> Option<Self> {
        match self.0 {
            Function::Sigmoid => Some(Self(Function::Silu)),
            Function::HardSigmoid { alpha, beta } => Some(Self(Function::GatedHardSigmoid { alpha, beta })),
            _ => None,
        }
    }
}

impl Eq for Activation {}

impl fmt::Debug for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
