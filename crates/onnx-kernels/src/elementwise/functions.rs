//! Element-wise functions of one number.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    elementwise::{activation::Activation, integers, transcendental, trigonometry, vector::each},
    least_work::ELEMENTS,
};
use onnx_tensor::{
    cancelling::Pace,
    elements::{elements, filled},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
    split::{self, LINE},
};

/// Builds an element-wise function, such as `Abs`.
pub fn function(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Function::of(node)?))
}

/// Builds the operator `IsInf`, `IsNaN` or `Not`.
pub fn truth(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(Truth::of(node)?))
}

/// An element-wise function of floats, and of integers if the operator supports them.
#[derive(Debug)]
pub(crate) struct Function {
    of_floats: OfFloats,
    of_whole: Option<integers::Function>,
}

#[derive(Debug)]
enum OfFloats {
    Activation(Activation),
    Plain(Plain),
}

impl Function {
    /// Returns the [`Activation`] that computes the same function; `None` if there is none.
    pub(crate) fn activation(&self) -> Option<Activation> {
        match &self.of_floats {
            OfFloats::Activation(activation) => Some(activation.clone()),
            OfFloats::Plain(_) => None,
        }
    }

    pub(crate) fn of(node: &Node) -> Result<Self> {
        let name = node.op_type.as_str();
        Ok(Self {
            of_floats: match Plain::of(name) {
                Some(plain) => OfFloats::Plain(plain),
                None => OfFloats::Activation(Activation::of(node)?),
            },
            of_whole: match name {
                "Abs" | "Neg" | "Relu" | "Shrink" | "Sign" => Some(integers::Function::new(node)?),
                _ => None,
            },
        })
    }
}

impl Compute for Function {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        Ok(Some(vec![input.with(input.element_type)]))
    }

    fn gated(&self) -> Option<Box<dyn Compute>> {
        let gated = Self {
            of_floats: OfFloats::Activation(self.activation()?.gated()?),
            of_whole: None,
        };
        Some(Box::new(gated))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let values = inputs.pop().context("expected an input")?;
        Ok(smallvec![match (&self.of_floats, self.of_whole) {
            (_, Some(whole)) if values.element_type().is_integer() => whole.replaced(values)?,
            (OfFloats::Activation(activation), _) => activation.replaced(values)?,
            (OfFloats::Plain(plain), _) => plain.replaced(values)?,
        }])
    }
}

/// Functions of floats that are not fused into other nodes.
#[derive(Clone, Copy, Debug)]
enum Plain {
    Abs,
    Acos,
    Asin,
    Atan,
    Atanh,
    Cos,
    Cosh,
    Log,
    Neg,
    Reciprocal,
    Sin,
    Sinh,
    Sqrt,
    Tan,
}

impl Plain {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "Abs" => Self::Abs,
            "Acos" => Self::Acos,
            "Asin" => Self::Asin,
            "Atan" => Self::Atan,
            "Atanh" => Self::Atanh,
            "Cos" => Self::Cos,
            "Cosh" => Self::Cosh,
            "Log" => Self::Log,
            "Neg" => Self::Neg,
            "Reciprocal" => Self::Reciprocal,
            "Sin" => Self::Sin,
            "Sinh" => Self::Sinh,
            "Sqrt" => Self::Sqrt,
            "Tan" => Self::Tan,
            _ => return None,
        })
    }

    /// Number of elements between two checks for cancellation.
    const PART: usize = 1 << 13;

    /// Maximum cost of an element, relative to reading and writing it.
    const COST: u64 = 8;

    fn replaced(self, values: Arc<Tensor>) -> Result<Arc<Tensor>> {
        fn each<T: Element + Copy>(
            values: Arc<Tensor>,
            run: impl Fn(&mut [T]) -> Result<()> + Sync,
        ) -> Result<Arc<Tensor>> {
            let work = [values.len() as u64, ELEMENTS];
            split::replaced(values, LINE, work, |_, values: &mut [T], pace| {
                for part in values.chunks_mut(Plain::PART) {
                    pace.spend(Plain::COST * part.len() as u64)?;
                    run(part)?;
                }
                Ok(())
            })
        }
        match values.element_type() {
            ElementType::F16 => each(values, |part| self.halves(part)),
            ElementType::F32 => each(values, |part| {
                self.singles(part);
                Ok(())
            }),
            ElementType::F64 => each(values, |part| {
                self.doubles(part);
                Ok(())
            }),
            other => bail!("{self:?} of {other:?}"),
        }
    }

    /// Applies `Abs` or `Neg` to FP16 elements, by their sign bits.
    fn halves(self, values: &mut [f16]) -> Result<()> {
        const SIGN: u16 = 1 << 15;
        let bits: fn(u16) -> u16 = match self {
            Self::Abs => |bits| bits & !SIGN,
            Self::Neg => |bits| bits ^ SIGN,
            other => bail!("{other:?} of FP16"),
        };
        values
            .iter_mut()
            .for_each(|x| *x = f16::from_bits(bits(x.to_bits())));
        Ok(())
    }

    fn singles(self, values: &mut [f32]) {
        let function: fn(f32) -> f32 = match self {
            Self::Abs => return each!(values, [] | x | x.abs()),
            Self::Neg => return each!(values, [] | x | -x),
            Self::Reciprocal => return each!(values, [] | x | 1.0 / x),
            Self::Sqrt => return each!(values, [] | x | x.sqrt()),
            Self::Log => return each!(values, [] | x, FUSED | transcendental::ln::<FUSED>(x)),
            Self::Acos => return trigonometry::acos(values),
            Self::Asin => return trigonometry::asin(values),
            Self::Atan => return trigonometry::atan(values),
            Self::Cos => return trigonometry::cos(values),
            Self::Sin => return trigonometry::sin(values),
            Self::Atanh => f32::atanh,
            Self::Cosh => f32::cosh,
            Self::Sinh => f32::sinh,
            Self::Tan => f32::tan,
        };
        values.iter_mut().for_each(|x| *x = function(*x));
    }

    fn doubles(self, values: &mut [f64]) {
        let function: fn(f64) -> f64 = match self {
            Self::Abs => f64::abs,
            Self::Acos => f64::acos,
            Self::Asin => f64::asin,
            Self::Atan => f64::atan,
            Self::Atanh => f64::atanh,
            Self::Cos => f64::cos,
            Self::Cosh => f64::cosh,
            Self::Log => f64::ln,
            Self::Neg => |x| -x,
            Self::Reciprocal => f64::recip,
            Self::Sin => f64::sin,
            Self::Sinh => f64::sinh,
            Self::Sqrt => f64::sqrt,
            Self::Tan => f64::tan,
        };
        values.iter_mut().for_each(|x| *x = function(*x));
    }
}

/// The operators `IsInf`, `IsNaN` and `Not`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Truth {
    IsInf { positive: bool, negative: bool },
    IsNan,
    Not,
}

impl Truth {
    pub(crate) fn of(node: &Node) -> Result<Self> {
        let attributes = Attributes(node);
        Ok(match node.op_type.as_str() {
            "IsInf" => Self::IsInf {
                positive: attributes.int("detect_positive", 1) != 0,
                negative: attributes.int("detect_negative", 1) != 0,
            },
            "IsNaN" => Self::IsNan,
            "Not" => Self::Not,
            other => bail!("{other} gives no truths"),
        })
    }

    fn of_float(self, x: f64) -> bool {
        match self {
            Self::IsInf { positive, negative } => {
                positive && x == f64::INFINITY || negative && x == f64::NEG_INFINITY
            }
            _ => x.is_nan(),
        }
    }
}

impl Compute for Truth {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        Ok(Some(vec![input.with(ElementType::Bool)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let input = inputs.pop().context("expected an input")?;
        macro_rules! each {
            ($from:expr, $truth:expr) => {{
                let from = $from;
                filled(input.shape(), |truths: &mut [bool]| {
                    let truth = $truth;
                    Pace::default().pairs(from, truths, |from, truths| {
                        let pairs = truths.iter_mut().zip(from);
                        pairs.for_each(|(to, from)| *to = truth(*from));
                    })
                })
            }};
        }
        let made = match (self, input.element_type()) {
            (Self::Not, ElementType::Bool) => each!(input.as_units::<u8>()?, |x: u8| x == 0),
            (Self::Not, other) => bail!("Not of {other:?}"),
            (_, ElementType::F16) => each!(elements::<f16>(&input)?, |x: f16| self.of_float(x.to_f64())),
            (_, ElementType::F32) => each!(elements::<f32>(&input)?, |x: f32| self.of_float(x.into())),
            (_, _) => each!(elements::<f64>(&input)?, |x: f64| self.of_float(x)),
        }?;
        Ok(smallvec![Arc::new(made)])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::testing::while_cancelled;

    fn node(name: &str) -> Node {
        Node {
            op_type: name.to_owned(),
            opset: 18,
            ..Node::default()
        }
    }

    fn run(compute: &dyn Compute, input: Tensor) -> Result<Tensor> {
        let mut inputs: ShortVec<Arc<Tensor>> = smallvec![Arc::new(input)];
        let facts = compute.outputs(&Fact::of_values(&inputs))?.unwrap();
        let made = compute.run(&mut inputs)?;
        assert_eq!(facts[0].element_type, made[0].element_type());
        Ok((*made[0]).clone())
    }

    fn of(name: &str, input: Tensor) -> Tensor {
        run(&Function::of(&node(name)).unwrap(), input).unwrap()
    }

    #[test]
    fn functions_of_floats_are_those_of_mathematics() {
        let numbers = [0.3f32, -0.7, 0.0, 0.999, f32::NAN];
        for (name, function) in [
            ("Abs", f64::abs as fn(f64) -> f64),
            ("Acos", f64::acos),
            ("Asin", f64::asin),
            ("Atan", f64::atan),
            ("Atanh", f64::atanh),
            ("Cos", f64::cos),
            ("Cosh", f64::cosh),
            ("Exp", f64::exp),
            ("Floor", f64::floor),
            ("Log", f64::ln),
            ("Neg", |x| -x),
            ("Reciprocal", f64::recip),
            ("Sin", f64::sin),
            ("Sinh", f64::sinh),
            ("Sqrt", f64::sqrt),
            ("Tan", f64::tan),
            ("Tanh", f64::tanh),
        ] {
            let singles = of(name, Tensor::vector(&numbers));
            let doubles = of(name, Tensor::vector(&numbers.map(f64::from)));
            let singles = elements::<f32>(&singles).unwrap();
            let doubles = elements::<f64>(&doubles).unwrap();
            for ((&x, &single), &double) in numbers.iter().zip(singles).zip(doubles) {
                let expected = function(x.into());
                let is_close = |found: f64| {
                    let is_same = found == expected || (found.is_nan() && expected.is_nan());
                    is_same || (found - expected).abs() < 1e-5 * expected.abs().max(1.0)
                };
                assert!(
                    is_close(single.into()),
                    "{name} of {x}: {single}, expected {expected}"
                );
                assert!(is_close(double), "{name} of {x}: {double}, expected {expected}");
            }
        }
        let ends = of("Log", Tensor::vector(&[0.0f32, -1.0, f32::INFINITY]));
        let ends = elements::<f32>(&ends).unwrap();
        assert!(ends[0] == f32::NEG_INFINITY && ends[1].is_nan() && ends[2] == f32::INFINITY);
    }

    #[test]
    fn whole_numbers_and_halves_have_signs() {
        assert_eq!(
            of("Abs", Tensor::vector(&[i16::MIN, -3])),
            Tensor::vector(&[i16::MIN, 3])
        );
        assert_eq!(
            of("Abs", Tensor::vector(&[u64::MAX])),
            Tensor::vector(&[u64::MAX])
        );
        assert_eq!(
            of("Neg", Tensor::vector(&[i64::MIN, 3])),
            Tensor::vector(&[i64::MIN, -3])
        );
        assert_eq!(of("Relu", Tensor::vector(&[-5i8, 5])), Tensor::vector(&[0i8, 5]));
        assert_eq!(
            of("Sign", Tensor::vector(&[-5i32, 0, 7])),
            Tensor::vector(&[-1i32, 0, 1])
        );
        let half = |x: f32| f16::from_f32(x);
        assert_eq!(
            of("Abs", Tensor::vector(&[half(-2.5), half(1.0)])),
            Tensor::vector(&[half(2.5), half(1.0)])
        );
        let negated = of("Neg", Tensor::vector(&[half(0.0), half(f32::INFINITY)]));
        let negated = elements::<f16>(&negated).unwrap();
        assert!(negated[0].is_sign_negative() && negated[1] == half(f32::NEG_INFINITY));
    }

    #[test]
    fn special_numbers_are_found() {
        let numbers = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0, f64::MAX];
        for element_type in [ElementType::F32, ElementType::F64, ElementType::F16] {
            let input = Tensor::vector(&numbers)
                .cast_to_type(element_type)
                .unwrap()
                .into_owned();
            let overflows = element_type != ElementType::F64;
            let truth = |truth: Truth| run(&truth, input.clone()).unwrap();
            let infinities = |positive, negative| truth(Truth::IsInf { positive, negative });
            assert_eq!(
                truth(Truth::IsNan),
                Tensor::vector(&[false, false, true, false, false])
            );
            assert_eq!(
                infinities(true, true),
                Tensor::vector(&[true, true, false, false, overflows])
            );
            assert_eq!(
                infinities(false, true),
                Tensor::vector(&[false, true, false, false, false])
            );
            assert_eq!(
                infinities(true, false),
                Tensor::vector(&[true, false, false, false, overflows])
            );
        }
        assert_eq!(
            run(&Truth::Not, Tensor::vector(&[true, false])).unwrap(),
            Tensor::vector(&[false, true])
        );
    }

    #[test]
    fn many_numbers_end_with_their_run() {
        let function = Function::of(&node("Sin")).unwrap();
        let numbers = Tensor::vector(&vec![1.0f32; 1 << 17]);
        assert!(while_cancelled(|| run(&function, numbers.clone())).is_err());
        assert!(run(&function, numbers).is_ok());
    }
}
