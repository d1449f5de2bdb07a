//! Window arithmetic of convolutions and pools: computes result sizes from kernels, strides, dilations and
//! padding.

use onnx_tensor::prelude::*;

use crate::pool::axis::Axis;
use onnx_tensor::faults::{Misfit, Refusal, ensure_input};
use onnx_tensor::node::Attributes;

/// Larger kernels, strides, pads and dilations are refused, so that their products cannot overflow.
pub(crate) const MAX_NUMBER: usize = 1 << 24;

/// The attributes of a node with windows. A list is empty if its attribute is absent.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) kernel: ShortVec<usize>,
    strides: ShortVec<usize>,
    dilations: ShortVec<usize>,
    padding: Padding,
    /// Whether a last window that extends beyond the end padding is kept (`ceil_mode`).
    rounds_up: bool,
}

#[derive(Clone, Debug)]
enum Padding {
    /// The begin pads of all axes, followed by the end pads; empty if there is no padding.
    Given(ShortVec<usize>),
    /// Padding such that the size of the result is the size of the image divided by the stride, rounded up.
    /// An odd element of padding is at the end.
    SameUpper,
    /// Padding like [`Self::SameUpper`], with the odd element at the beginning.
    SameLower,
}

/// Reads a list attribute with one number per axis.
fn numbers(attributes: Attributes<'_>, name: &str, least: usize) -> Result<ShortVec<usize>> {
    let fits = |&number: &i64| {
        let number = usize::try_from(number).ok();
        number.filter(|number| (least..=MAX_NUMBER).contains(number))
    };
    let numbers: Option<ShortVec<usize>> = attributes.ints(name).iter().map(fits).collect();
    numbers.ok_or_else(|| {
        Refusal(format!(
            "has {name} that are not all from {least} to {MAX_NUMBER}"
        ))
        .into()
    })
}

/// Returns `list[axis]`, or 1 if the list is empty.
fn at(list: &[usize], axis: usize) -> usize {
    list.get(axis).copied().unwrap_or(1)
}

impl Window {
    /// Reads the attributes of a convolution, except the kernel size, which follows from the shape of the
    /// weights.
    pub(crate) fn of_convolution(attributes: Attributes<'_>) -> Result<Self> {
        if attributes.text("auto_pad", "NOTSET") != "NOTSET" && attributes.has("pads") {
            bail!(Refusal("has both 'auto_pad' and 'pads'".to_owned()));
        }
        Self::of(attributes)
    }

    /// Reads the attributes of a pool, including `kernel_shape`.
    pub(crate) fn of_pool(attributes: Attributes<'_>) -> Result<Self> {
        let window = Self::of(attributes)?;
        if window.kernel.is_empty() {
            bail!(Refusal("has no kernel_shape".to_owned()));
        }
        Ok(Self {
            rounds_up: attributes.int("ceil_mode", 0) != 0,
            ..window
        })
    }

    fn of(attributes: Attributes<'_>) -> Result<Self> {
        let kernel = numbers(attributes, "kernel_shape", 1)?;
        let strides = numbers(attributes, "strides", 1)?;
        let dilations = numbers(attributes, "dilations", 1)?;
        let pads = numbers(attributes, "pads", 0)?;
        let counts = [kernel.len(), strides.len(), dilations.len(), pads.len() / 2];
        let mut counts = counts.into_iter().filter(|&count| count > 0);
        let first = counts.next();
        if counts.any(|count| Some(count) != first) || pads.len() % 2 != 0 {
            bail!(Refusal(
                "has a kernel_shape, strides, dilations and pads for different numbers of axes".to_owned()
            ));
        }
        let padding = match attributes.text("auto_pad", "NOTSET") {
            "NOTSET" => Padding::Given(pads),
            "VALID" => Padding::Given(smallvec![]),
            "SAME_UPPER" => Padding::SameUpper,
            "SAME_LOWER" => Padding::SameLower,
            other => bail!(Refusal(format!(
                "has the auto_pad {}, which is not one of ONNX's",
                tensor_core::QuotedName(other)
            ))),
        };
        Ok(Self {
            kernel,
            strides,
            dilations,
            padding,
            rounds_up: false,
        })
    }

    /// Refuses images and kernels whose rank does not match the attributes.
    pub(crate) fn expect_axes(&self, axes: usize) -> Result<()> {
        let pads = match &self.padding {
            Padding::Given(pads) => pads.len() / 2,
            _ => 0,
        };
        let counts = [self.kernel.len(), self.strides.len(), self.dilations.len(), pads];
        match counts.into_iter().find(|&count| count > 0 && count != axes) {
            Some(count) => Err(Refusal(format!(
                "has windows of {count} axes for images of {axes}, batch and channels not counted"
            ))
            .into()),
            None if axes == 0 => {
                Err(Refusal("has an image without axes besides batch and channels".to_owned()).into())
            }
            None => Ok(()),
        }
    }

    /// Returns the extent of a dilated kernel along an axis.
    fn reach(&self, axis: usize, kernel: usize) -> Result<usize> {
        let reach = kernel
            .checked_sub(1)
            .and_then(|steps| steps.checked_mul(at(&self.dilations, axis))?.checked_add(1));
        reach
            .filter(|&reach| reach < 1 << 48)
            .ok_or_else(|| Refusal(format!("has a window of {kernel} elements along an axis")).into())
    }

    /// Returns the windows along each axis of an image.
    pub(crate) fn axes(&self, sizes: &[usize], kernel: &[usize]) -> Result<Vec<Axis>> {
        let axes = sizes.iter().zip(kernel).enumerate();
        axes.map(|(axis, (&size, &kernel))| self.axis(axis, size, kernel))
            .collect()
    }

    fn axis(&self, axis: usize, size: usize, kernel: usize) -> Result<Axis> {
        ensure_input!(size < 1 << 48, "an image of {size} elements along an axis");
        let (stride, dilation) = (at(&self.strides, axis), at(&self.dilations, axis));
        let reach = self.reach(axis, kernel)?;
        let [before, after] = self.pads(axis, size, reach);
        let padded = before + size + after;
        let count = match padded.checked_sub(reach) {
            Some(rest) if self.rounds_up => rest.div_ceil(stride) + 1,
            Some(rest) => rest / stride + 1,
            None if self.rounds_up && reach - padded < stride => 1,
            None => bail!(Misfit::Window((reach - padded) as i64)),
        };
        // ONNX drops a last window that would start in the end padding.
        let is_beyond = self.rounds_up && count > 1 && (count - 1) * stride >= size + before;
        Ok(Axis {
            size,
            count: count - usize::from(is_beyond),
            kernel,
            stride,
            dilation,
            pad: before,
        })
    }

    /// Returns the begin and end padding of an axis.
    fn pads(&self, axis: usize, size: usize, reach: usize) -> [usize; 2] {
        let stride = at(&self.strides, axis);
        let same = || (size.div_ceil(stride).saturating_sub(1) * stride + reach).saturating_sub(size);
        match &self.padding {
            Padding::Given(pads) if pads.is_empty() => [0, 0],
            Padding::Given(pads) => [pads[axis], pads[pads.len() / 2 + axis]],
            Padding::SameUpper => [same() / 2, same().div_ceil(2)],
            Padding::SameLower => [same().div_ceil(2), same() / 2],
        }
    }

    /// Returns the sizes of the result along all axes of an image, whose own sizes may be unknown.
    pub(crate) fn dims(&self, sizes: &[Dim], kernel: &[usize]) -> Result<ShortVec<Dim>> {
        let axes = sizes.iter().zip(kernel).enumerate();
        axes.map(|(axis, (size, &kernel))| {
            if let Some(size) = size.to_i64() {
                let size = usize::try_from(size).map_err(|_| Misfit::Dimension(size))?;
                return Ok(self.axis(axis, size, kernel)?.count.to_dim());
            }
            let (stride, reach) = (at(&self.strides, axis), self.reach(axis, kernel)?);
            let Padding::Given(_) = &self.padding else {
                return Ok((*size).div_ceil(stride));
            };
            let [before, after] = self.pads(axis, 0, reach);
            let rest = *size + before + after - reach;
            Ok(match self.rounds_up {
                true => (rest.div_ceil(stride) + 1).min((*size + before).div_ceil(stride)),
                false => rest / stride + 1,
            })
        })
        .collect()
    }

    /// Returns the number of elements of window `at` that count toward its average. Elements in the padding
    /// count; elements beyond the padding do not.
    pub(crate) fn counted(&self, index: usize, axis: &Axis, at: usize) -> usize {
        let after = match &self.padding {
            Padding::Given(pads) if pads.is_empty() => 0,
            Padding::Given(pads) => pads[pads.len() / 2 + index],
            _ => return axis.kernel,
        };
        let room = (axis.pad + axis.size + after).saturating_sub(at * axis.stride);
        room.div_ceil(axis.dilation).min(axis.kernel)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn window(stride: usize, dilation: usize, padding: Padding, rounds_up: bool) -> Window {
        Window {
            kernel: smallvec![],
            strides: smallvec![stride],
            dilations: smallvec![dilation],
            padding,
            rounds_up,
        }
    }

    /// Checks that a last window counts only if it begins in the image or in the begin padding, as in ONNX
    /// Runtime.
    #[test]
    fn a_last_window_counts_where_it_begins_in_the_image() {
        let up = |pads: [usize; 2]| window(2, 1, Padding::Given(pads.into_iter().collect()), true);
        let count = |window: &Window, size: usize, kernel: usize| window.axis(0, size, kernel).unwrap().count;
        assert_eq!(count(&up([0, 0]), 4, 3), 2);
        assert_eq!(count(&up([0, 0]), 5, 2), 3);
        // A fourth window would start in the end padding.
        assert_eq!(count(&up([1, 1]), 5, 2), 3);
        assert_eq!(count(&up([0, 0]), 2, 3), 1);
        let error = up([0, 0]).axis(0, 1, 3).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Misfit::Window(2))));
    }

    #[test]
    fn automatic_padding_is_larger_on_one_side() {
        let pads = |padding: Padding, size: usize| window(2, 1, padding, false).pads(0, size, 3);
        assert_eq!(pads(Padding::SameUpper, 4), [0, 1]);
        assert_eq!(pads(Padding::SameLower, 4), [1, 0]);
        assert_eq!(pads(Padding::SameUpper, 5), [1, 1]);
    }

    #[test]
    fn sizes_that_cannot_be_counted_are_refused() {
        let window = window(1, MAX_NUMBER, Padding::Given(smallvec![]), false);
        assert!(window.reach(0, usize::MAX).unwrap_err().is::<Refusal>());
        assert!(window.reach(0, 0).unwrap_err().is::<Refusal>());
        assert!(window.expect_axes(2).unwrap_err().is::<Refusal>());
        assert!(window.expect_axes(1).is_ok());
    }
}
