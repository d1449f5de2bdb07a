//! The operators `LRN` (over neighboring channels) and `LpNormalization` (along an axis).

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    axis,
    elements::{Real, copied, elements, tensor, with_real},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::Refusal,
    node::Node,
    operator::Compute,
};

/// Builds the operator `LRN` for FP32 and FP64.
pub fn lrn(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let size = usize::try_from(attributes.int("size", 0)).unwrap_or(0);
    if size == 0 {
        bail!(Refusal("needs a 'size' of at least 1".to_owned()));
    }
    Ok(kernel(Lrn {
        alpha: f64::from(attributes.float("alpha", 1e-4)) / size as f64,
        beta: attributes.float("beta", 0.75).into(),
        bias: attributes.float("bias", 1.0).into(),
        before: (size - 1) / 2,
        after: size / 2,
    }))
}

#[derive(Debug)]
struct Lrn {
    /// `alpha` divided by the window size.
    alpha: f64,
    beta: f64,
    bias: f64,
    /// Number of channels in the window before the current channel (`before`) and after it (`after`). A
    /// window of even size has one more channel after the current channel.
    before: usize,
    after: usize,
}

impl Kernel for Lrn {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        ensure!(input.rank() >= 2, "expected channels");
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        with_real!(inputs[0].element_type(), T => self.normalized::<T>(&inputs[0]))
    }
}

/// Cost of computing one power, in steps of [`Pace`].
const POWER: u64 = 8;

impl Lrn {
    fn normalized<T: Real>(&self, input: &Tensor) -> Result<ShortVec<Tensor>> {
        let shape = input.shape();
        let channels = shape[1];
        let width: usize = shape[2..].iter().product();
        let x = elements::<T>(input)?;
        let mut made: Vec<T> = Vec::with_capacity(x.len());
        let mut sums = vec![0.0f64; width];
        let mut pace = Pace::default();
        for image in x.chunks_exact((channels * width).max(1)) {
            for channel in 0..channels {
                let nearby = channel.saturating_sub(self.before)..(channel + self.after + 1).min(channels);
                pace.over(&mut sums, |sums| sums.fill(0.0))?;
                for line in image[nearby.start * width..nearby.end * width].chunks_exact(width) {
                    pace.pairs(line, &mut sums, |line, sums| {
                        for (sum, &x) in sums.iter_mut().zip(line) {
                            let x: f64 = x.into();
                            *sum += x * x;
                        }
                    })?;
                }
                let line = &image[channel * width..][..width];
                for (line, sums) in line.chunks(PART).zip(sums.chunks(PART)) {
                    pace.spend(POWER * line.len() as u64)?;
                    let pairs = line.iter().zip(sums);
                    made.extend(
                        pairs.map(|(&x, sum)| {
                            T::of(x.into() * (self.bias + self.alpha * sum).powf(-self.beta))
                        }),
                    );
                }
            }
        }
        Ok(smallvec![tensor(shape, made)?])
    }
}

/// Builds the operator `LpNormalization` for FP32 and FP64.
pub fn lp(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let is_sum = match attributes.int("p", 2) {
        1 => true,
        2 => false,
        other => bail!(Refusal(format!("has p = {other}, expected 1 or 2"))),
    };
    Ok(kernel(LpNormalization {
        axis: attributes.int("axis", -1),
        is_sum,
    }))
}

#[derive(Debug)]
struct LpNormalization {
    axis: i64,
    /// Whether the norm is the sum of absolute values (p = 1) instead of the root of the sum of squares.
    is_sum: bool,
}

impl LpNormalization {
    fn axis(&self, rank: usize) -> Result<usize> {
        axis::axis(self.axis, rank)
    }
}

impl Kernel for LpNormalization {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        self.axis(input.rank())?;
        Ok(vec![input.with(input.element_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        with_real!(inputs[0].element_type(), T => self.normalized::<T>(&inputs[0]))
    }
}

impl LpNormalization {
    fn normalized<T: Real>(&self, input: &Tensor) -> Result<ShortVec<Tensor>> {
        let shape = input.shape();
        let axis = self.axis(shape.len())?;
        let inner: usize = shape[axis + 1..].iter().product();
        let mut x = copied::<T>(input)?;
        let mut norms = vec![0.0f64; inner];
        let mut pace = Pace::default();
        for block in x.chunks_exact_mut((shape[axis] * inner).max(1)) {
            pace.over(&mut norms, |norms| norms.fill(0.0))?;
            for line in block.chunks_exact(inner) {
                pace.pairs(line, &mut norms, |line, norms| {
                    for (norm, &x) in norms.iter_mut().zip(line) {
                        // Squares and norms are rounded to the element type, as in ONNX Runtime.
                        *norm += if self.is_sum {
                            x.into().abs()
                        } else {
                            (x * x).into()
                        };
                    }
                })?;
            }
            pace.over(&mut norms, |norms| {
                for norm in norms {
                    let sum = T::of(*norm).into();
                    *norm = if self.is_sum { sum } else { sum.sqrt() };
                }
            })?;
            for line in block.chunks_exact_mut(inner) {
                pace.pairs(&norms, line, |norms, line| {
                    for (x, &norm) in line.iter_mut().zip(norms) {
                        // A line of zeros, whose norm is 0, stays zero.
                        *x = T::of(if norm == 0.0 { 0.0 } else { (*x).into() / norm });
                    }
                })?;
            }
        }
        Ok(smallvec![tensor(shape, x)?])
    }
}
