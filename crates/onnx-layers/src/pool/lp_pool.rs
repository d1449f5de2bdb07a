//! The operators `LpPool` and `GlobalLpPool`: the p-norm of each window.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::pool::{axis, pooling};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Misfit, Refusal, Unsupported, below_limit},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

fn power(attributes: Attributes<'_>) -> Result<f32> {
    let power = below_limit("p", attributes.int("p", 2))?;
    ensure!(power > 0, "the attribute 'p' is 0, expected a positive number");
    Ok(power as f32)
}

/// Builds the operator `GlobalLpPool`.
pub fn global_lp_pool(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(GlobalLpPool {
        power: power(Attributes(node))?,
    }))
}

fn expect_f32(facts: &[Fact]) -> Result<&Fact> {
    match facts {
        [input] if input.element_type == ElementType::F32 && input.rank() > 2 => Ok(input),
        [input] if input.rank() <= 2 => bail!("an image of {} dimensions", input.rank()),
        _ => bail!(Unsupported::Anywhere("is supported for FP32 only".to_owned())),
    }
}

#[derive(Debug)]
struct GlobalLpPool {
    power: f32,
}

impl Kernel for GlobalLpPool {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let mut output = expect_f32(inputs)?.with(ElementType::F32);
        output.shape[2..].fill(1.to_dim());
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let mut shape: ShortVec<usize> = inputs[0].shape().into();
        let size: usize = shape[2..].iter().product();
        shape[2..].fill(1);
        let images = elements::<f32>(&inputs[0])?;
        let mut made = vec![0.0; shape.iter().product()];
        let mut pace = Pace::default();
        for (made, image) in made.iter_mut().zip(images.chunks_exact(size.max(1))) {
            let mut sum = 0.0f32;
            for image in image.chunks(PART) {
                pace.spend(image.len() as u64)?;
                sum = image.iter().fold(sum, |sum, &x| sum + raised(x, self.power));
            }
            *made = root(sum, self.power);
        }
        Ok(smallvec![tensor(&shape, made)?])
    }
}

fn raised(x: f32, power: f32) -> f32 {
    match power {
        1.0 => x.abs(),
        2.0 => x * x,
        _ => x.abs().powf(power),
    }
}

fn root(sum: f32, power: f32) -> f32 {
    match power {
        1.0 => sum,
        2.0 => sum.sqrt(),
        _ => sum.powf(1.0 / power),
    }
}

/// Builds the operator `LpPool`.
pub fn lp_pool(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let sizes = attributes.ints("kernel_shape");
    let numbers = |name: &str, count: usize, default: i64, least: i64| -> Result<Vec<usize>> {
        let given = attributes.ints(name);
        let given = if given.is_empty() {
            vec![default; count]
        } else {
            given.to_vec()
        };
        let fits = given.len() == count && given.iter().all(|&number| number >= least);
        ensure!(
            fits,
            "the attribute '{name}' is {given:?}, expected {count} numbers of {least} or more"
        );
        given
            .into_iter()
            .map(|number| below_limit(name, number))
            .collect()
    };
    let rank = sizes.len();
    let kernels = numbers("kernel_shape", rank, 1, 1)?;
    let strides = numbers("strides", rank, 1, 1)?;
    let dilations = numbers("dilations", rank, 1, 1)?;
    let auto_pad = attributes.text("auto_pad", "NOTSET");
    let pads = match auto_pad {
        "VALID" => vec![0; 2 * rank],
        _ => numbers("pads", 2 * rank, 0, 0)?,
    };
    // Refuses pads with which a window could consist of padding only.
    if (0..rank).any(|axis| pads[axis].max(pads[rank + axis]) >= kernels[axis]) {
        bail!(Refusal(
            "has pads that are not smaller than its kernel_shape".to_owned()
        ));
    }
    let is_same = matches!(auto_pad, "SAME_UPPER" | "SAME_LOWER");
    // Implementations disagree on SAME with dilations, and ONNX does not define it with ceil_mode.
    if is_same && (dilations.iter().any(|&dilation| dilation > 1) || attributes.int("ceil_mode", 0) != 0) {
        bail!(Unsupported::Here(
            "'auto_pad' with dilations or 'ceil_mode' is not supported; export explicit 'pads'".to_owned()
        ));
    }
    let axes = (0..rank).map(|axis| Axis {
        kernel: kernels[axis],
        stride: strides[axis],
        dilation: dilations[axis],
        padding: match auto_pad {
            "SAME_UPPER" => Padding::Same { more_first: false },
            "SAME_LOWER" => Padding::Same { more_first: true },
            _ => Padding::Given([pads[axis], pads[rank + axis]]),
        },
    });
    Ok(kernel(LpPool {
        power: power(attributes)?,
        is_rounded_up: attributes.int("ceil_mode", 0) != 0,
        axes: axes.collect(),
    }))
}

/// The parameters of the windows along one axis.
#[derive(Debug)]
struct Axis {
    kernel: usize,
    stride: usize,
    dilation: usize,
    padding: Padding,
}

/// The padding at both ends of an axis.
#[derive(Clone, Copy, Debug)]
enum Padding {
    Given([usize; 2]),
    /// Padding such that there is one window per stride. An odd element of padding is at the beginning if
    /// `more_first`, otherwise at the end.
    Same {
        more_first: bool,
    },
}

impl Axis {
    fn window(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Returns the begin and end padding of an axis of `size`.
    fn pads(&self, size: usize) -> [usize; 2] {
        match self.padding {
            Padding::Given(pads) => pads,
            Padding::Same { more_first } => {
                let covered = (size.div_ceil(self.stride).max(1) - 1) * self.stride + self.window();
                let missing = covered.saturating_sub(size);
                let [less, more] = [missing / 2, missing - missing / 2];
                if more_first { [more, less] } else { [less, more] }
            }
        }
    }

    /// Returns the number of windows along an axis of `size`.
    fn count(&self, size: usize, is_rounded_up: bool) -> Result<usize> {
        let pads = self.pads(size);
        let padded = size + pads[0] + pads[1];
        let Some(room) = padded.checked_sub(self.window()) else {
            bail!(Misfit::Window((self.window() - padded) as i64));
        };
        if !is_rounded_up {
            return Ok(room / self.stride + 1);
        }
        let count = room.div_ceil(self.stride) + 1;
        // Drops a last window that would start after the image.
        let is_outside = (count - 1) * self.stride >= size + pads[0];
        Ok(count - usize::from(is_outside))
    }
}

#[derive(Debug)]
struct LpPool {
    power: f32,
    is_rounded_up: bool,
    axes: Vec<Axis>,
}

impl Kernel for LpPool {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let mut output = expect_f32(inputs)?.with(ElementType::F32);
        ensure!(
            output.rank() == self.axes.len() + 2,
            "windows of {} dimensions in an image of {}",
            self.axes.len(),
            output.rank()
        );
        for (dim, axis) in output.shape[2..].iter_mut().zip(&self.axes) {
            *dim = match dim.to_usize() {
                Some(size) => axis.count(size, self.is_rounded_up)?.to_dim(),
                None if self.is_rounded_up => Dim::unknown(),
                None => match axis.padding {
                    Padding::Given(pads) => {
                        let beyond = (pads[0] + pads[1]) as i64 - axis.window() as i64;
                        (*dim + beyond) / axis.stride as u64 + 1
                    }
                    Padding::Same { .. } => (*dim + (axis.stride - 1)) / axis.stride as u64,
                },
            };
        }
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let mut shape: Vec<usize> = inputs[0].shape().to_vec();
        let mut axes = Vec::with_capacity(self.axes.len());
        for (size, axis) in shape[2..].iter_mut().zip(&self.axes) {
            let count = axis.count(*size, self.is_rounded_up)?;
            axes.push(axis::Axis {
                size: *size,
                count,
                kernel: axis.kernel,
                stride: axis.stride,
                dilation: axis.dilation,
                pad: axis.pads(*size)[0],
            });
            *size = count;
        }
        let mut pace = Pace::default();
        let powers = pace.map(elements::<f32>(&inputs[0])?, |&x| raised(x, self.power))?;
        let mut values = vec![0.0; shape.iter().product()];
        pooling::fold(&axes, 1, &powers, &mut values, 0.0, |sum, power| sum + power)?;
        pace.over(&mut values, |sums| {
            sums.iter_mut().for_each(|sum| *sum = root(*sum, self.power));
        })?;
        Ok(smallvec![tensor(&shape, values)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_to_the_same_size_is_split_by_its_name() {
        let axis = |kernel: usize, stride: usize, more_first: bool| Axis {
            kernel,
            stride,
            dilation: 1,
            padding: Padding::Same { more_first },
        };
        assert_eq!(axis(3, 2, false).pads(8), [0, 1]);
        assert_eq!(axis(3, 2, true).pads(8), [1, 0]);
        assert_eq!(axis(2, 1, true).pads(7), [1, 0]);
        // With a stride larger than the window, no padding is needed.
        assert_eq!(axis(1, 3, false).pads(7), [0, 0]);
        for size in 1..20 {
            for (kernel, stride) in [(3, 2), (2, 1), (5, 3), (1, 4)] {
                assert_eq!(
                    axis(kernel, stride, false).count(size, false).ok(),
                    Some(size.div_ceil(stride))
                );
            }
        }
    }
}
