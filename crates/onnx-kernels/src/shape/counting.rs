//! The operators `Range` and `Trilu`.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Refusal, Unsupported},
    input_check::{self, LongRange},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, written},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
    size,
};

/// Builds the operator `Range`, which returns `start`, `start + delta`, ... up to `limit`, exclusive.
pub fn range(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Range {}))
}

#[derive(Debug)]
struct Range {}

impl Kernel for Range {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [start, limit, step] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        let element_type = start.element_type;
        ensure!(
            limit.element_type == element_type && step.element_type == element_type,
            "a start, a limit and a step of different types"
        );
        if !element_type.is_number() || matches!(element_type, ElementType::F16 | ElementType::Bool) {
            bail!(Unsupported::Anywhere(
                "is supported for numbers of FP32, FP64 and integers only".to_owned()
            ));
        }
        let length = match (known(start), known(limit), known(step)) {
            (Some(start), Some(limit), Some(step)) => {
                // If all bounds are constant, the size is known before a run.
                length(start, limit, step).map_err(Refusal::from)?.to_dim()
            }
            _ => match (start.dims().as_deref(), limit.dims().as_deref(), known(step)) {
                (Some([start]), Some([limit]), Some(Number::Whole(1) | Number::Real(1.0)))
                    if *start == 0.to_dim() =>
                {
                    *limit
                }
                _ => Dim::unknown(),
            },
        };
        Ok(vec![Fact::new(element_type, [length])])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let bounds: ShortVec<Fact> = Fact::of_values(inputs).into();
        let (Some(start), Some(limit), Some(step)) =
            (known(&bounds[0]), known(&bounds[1]), known(&bounds[2]))
        else {
            bail!(BadInput(
                "an input has no elements, expected one number".to_owned()
            ));
        };
        let length = length(start, limit, step).map_err(BadInput::from)?;
        let numbers = with_number!(inputs[0].element_type(), T => {
            let (start, step) = (scalar::<T>(&inputs[0])?, scalar::<T>(&inputs[2])?);
            size::admit_shape(T::ELEMENT_TYPE, &[length])?;
            let mut next = start;
            written(&[length], |numbers: &mut [T]| {
                Pace::default().over(numbers, |numbers| next = Sum::steps(next, step, numbers))
            })?
        });
        Ok(smallvec![numbers])
    }
}

/// A bound or step. Integers are kept as integers, since FP64 cannot represent all of INT64.
#[derive(Clone, Copy, Debug)]
enum Number {
    Whole(i128),
    Real(f64),
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }
}

/// Returns the value of a constant; `None` for other facts, such as symbolic sizes.
fn known(fact: &Fact) -> Option<Number> {
    let constant = fact.constant.as_ref()?;
    match fact.element_type {
        ElementType::U64 => Some(Number::Whole((*elements::<u64>(constant).ok()?.first()?).into())),
        other if other.is_integer() => Some(Number::Whole(constant.cast_to_scalar::<i64>().ok()?.into())),
        _ => Some(Number::Real(fact.number()?)),
    }
}

/// Returns the number of elements in a range.
fn length(start: Number, limit: Number, step: Number) -> Result<usize, LongRange> {
    if let (Number::Whole(start), Number::Whole(limit), Number::Whole(step)) = (start, limit, step)
        && step != 0
    {
        let distance = if step > 0 { limit - start } else { start - limit };
        let count = u128::try_from(distance)
            .unwrap_or(0)
            .div_ceil(step.unsigned_abs());
        input_check::range_fits(0.0, count as f64, 1.0)?;
        return Ok(count as usize);
    }
    let (start, limit, step) = (start.real(), limit.real(), step.real());
    input_check::range_fits(start, limit, step)?;
    // The cast saturates at 0, so the range is empty if the step points away from the limit.
    Ok(((limit - start) / step).ceil() as usize)
}

fn scalar<T: Element + Copy>(value: &Tensor) -> Result<T> {
    elements::<T>(value)?.first().copied().context("no number")
}

/// Numbers at equal distances. Integers wrap.
trait Sum: Copy {
    /// Writes numbers that are `step` apart, beginning with `start`, and returns the number after the last one.
    fn steps(start: Self, step: Self, to: &mut [Self]) -> Self;
}

macro_rules! sums {
    ($($T:ty),* ; $($F:ty),*) => {
        $(impl Sum for $T {
            fn steps(start: Self, step: Self, to: &mut [Self]) -> Self {
                // Products instead of sums do not depend on each other. Their low bits are the same.
                let at = |index: usize| start.wrapping_add(step.wrapping_mul(index as Self));
                for (index, number) in to.iter_mut().enumerate() {
                    *number = at(index);
                }
                at(to.len())
            }
        })*
        $(impl Sum for $F {
            fn steps(start: Self, step: Self, to: &mut [Self]) -> Self {
                let mut next = start;
                for number in to {
                    *number = next;
                    next += step;
                }
                next
            }
        })*
    };
}

sums!(u8, u16, u32, u64, i8, i16, i32, i64; f16, f32, f64);

/// Builds the operator `Trilu`, which keeps the upper or lower triangle of matrices and sets all other
/// elements to zero.
pub fn trilu(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(Trilu {
        upper: Attributes(node).int("upper", 1) != 0,
    }))
}

#[derive(Debug)]
struct Trilu {
    upper: bool,
}

impl Kernel for Trilu {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let input = inputs.first().context("no input")?;
        ensure!(input.rank() >= 2, "a matrix of {} dimensions", input.rank());
        if input.element_type == ElementType::String {
            bail!(Unsupported::Anywhere("is not supported for BYTES".to_owned()));
        }
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let diagonal = match inputs.get(1) {
            Some(diagonal) => onnx_tensor::elements::scalar::<i64>(diagonal)?,
            None => 0,
        };
        let made =
            with_unit!(inputs[0].element_type(), U => triangles::<U>(&inputs[0], diagonal, self.upper));
        Ok(smallvec![made?])
    }
}

fn triangles<U: Unit>(input: &Tensor, diagonal: i64, upper: bool) -> Result<Tensor> {
    let shape = input.shape();
    let (rows, columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let mut made = input.as_units::<U>()?.to_vec();
    let mut pace = Pace::default();
    for (index, line) in made.chunks_exact_mut(columns.max(1)).enumerate() {
        pace.spend(columns as u64)?;
        // The first column outside of the lower triangle, or the first column inside of the upper triangle.
        let reach = diagonal.saturating_add((index % rows) as i64 + i64::from(!upper));
        let reach = usize::try_from(reach.max(0)).map_or(columns, |reach| reach.min(columns));
        match upper {
            true => line[..reach].fill(U::default()),
            false => line[reach..].fill(U::default()),
        }
    }
    Tensor::from_units(input.element_type(), shape, made)
}
