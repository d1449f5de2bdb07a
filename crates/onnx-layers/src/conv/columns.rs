//! The operator `Col2Im`: sums columns into an image where their windows overlap.

use std::{
    ops::{AddAssign, Range},
    sync::Arc,
};

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Limit, Unsupported, ensure_input},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{copied, elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// One axis of an image with `positions` windows, `stride` apart. The first window starts `pad` before the
/// image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) positions: usize,
    pub(crate) size: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    pub(crate) pad: i64,
}

impl Axis {
    /// Returns the image index of `element` of the window at `position`; `None` in the padding.
    fn place(self, position: usize, element: usize) -> Option<usize> {
        let place = (position * self.stride + element * self.dilation) as i64 - self.pad;
        usize::try_from(place).ok().filter(|&place| place < self.size)
    }

    /// Returns the window positions at which `element` is inside the image.
    fn inside(self, element: usize) -> Range<usize> {
        let ahead = (element * self.dilation) as i64 - self.pad;
        let beyond = |place: i64| (place.max(0) as usize).div_ceil(self.stride);
        let first = beyond(-ahead);
        first..beyond(self.size as i64 - ahead).clamp(first, self.positions.max(first))
    }
}

/// Adds an im2col matrix to an image. A row of the matrix has the values of one window element at all window
/// positions.
pub(crate) struct Scatter {
    outer: Vec<Axis>,
    last: Axis,
    /// Number of elements in the window (`window`) and in the image (`image`).
    pub(crate) window: usize,
    pub(crate) image: usize,
}

impl Scatter {
    /// Creates a scatter for an image with these axes.
    ///
    /// # Errors
    /// Returns an error if there are no axes, or if a size overflows.
    pub(crate) fn new(mut axes: Vec<Axis>) -> Result<Self> {
        let window = count(axes.iter().map(|axis| axis.kernel))?;
        let image = count(axes.iter().map(|axis| axis.size))?;
        Ok(Self {
            last: axes.pop().context("an image without axes")?,
            outer: axes,
            window,
            image,
        })
    }

    /// Returns the number of window positions over all axes.
    pub(crate) fn positions(&self) -> Result<usize> {
        let axes = self.outer.iter().chain([&self.last]);
        count(axes.map(|axis| axis.positions))
    }

    /// Adds the values `numbers` of one window element to the image, for consecutive positions starting at
    /// `first`.
    pub(crate) fn add<T: Copy + AddAssign>(
        &self,
        element: usize,
        mut first: usize,
        mut numbers: &[T],
        image: &mut [T],
    ) {
        let last = self.last;
        let inside = last.inside(element % last.kernel);
        while !numbers.is_empty() {
            let (line, at) = (first / last.positions, first % last.positions);
            let (now, rest) = numbers.split_at(numbers.len().min(last.positions - at));
            let (from, end) = (inside.start.max(at), inside.end.min(at + now.len()));
            if from < end
                && let Some(line) = self.line(element / last.kernel, line)
                && let Some(place) = last.place(from, element % last.kernel)
            {
                let sums = image[line + place..].iter_mut();
                let numbers = &now[from - at..end - at];
                match last.stride {
                    1 => sums.zip(numbers).for_each(|(sum, number)| *sum += *number),
                    stride => sums
                        .step_by(stride)
                        .zip(numbers)
                        .for_each(|(sum, number)| *sum += *number),
                }
            }
            first += now.len();
            numbers = rest;
        }
    }

    /// Returns the offset in the image of the row that window element `element` covers at row `line` of
    /// window positions; `None` if it is in the padding. Both indices run over all axes except the last.
    fn line(&self, mut element: usize, mut line: usize) -> Option<usize> {
        let (mut place, mut stride) = (0, self.last.size);
        for axis in self.outer.iter().rev() {
            place += stride * axis.place(line % axis.positions, element % axis.kernel)?;
            stride *= axis.size;
            line /= axis.positions;
            element /= axis.kernel;
        }
        Some(place)
    }
}

/// Returns the product of sizes.
pub(crate) fn count(sizes: impl IntoIterator<Item = usize>) -> Result<usize> {
    let mut sizes = sizes.into_iter();
    let count = sizes.try_fold(1, usize::checked_mul);
    count
        .filter(|&count| count <= 1 << 40)
        .context("the sizes are too large")
}

/// Returns the list attribute `name`, which has one number per axis.
fn each(attributes: Attributes<'_>, name: &str, axes: usize, default: i64) -> Result<Vec<usize>> {
    let given = attributes.ints(name);
    let values = match given.len() {
        0 => vec![default; axes],
        other if other == axes => given.to_vec(),
        other => bail!("{other} {name} for {axes} axes"),
    };
    let fitting = |&value: &i64| usize::try_from(value).ok().filter(|&value| value <= MAX_NUMBER);
    let fitting: Option<Vec<usize>> = values.iter().map(fitting).collect();
    fitting.with_context(|| format!("{name} must be from 0 to {MAX_NUMBER}"))
}

/// Larger strides, pads and dilations are refused, so that their products cannot overflow.
const MAX_NUMBER: usize = 1 << 24;

/// Builds the operator `Col2Im`, the inverse of im2col; overlapping elements are summed.
pub fn col_2_im(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(kernel(ColumnsToImage { node: node.clone() }))
}

#[derive(Debug)]
struct ColumnsToImage {
    node: Node,
}

impl ColumnsToImage {
    fn axes(&self, image: &[i64], window: &[i64]) -> Result<Vec<Axis>> {
        let (attributes, rank) = (Attributes(&self.node), image.len());
        ensure!(
            rank > 0 && window.len() == rank,
            "an image of {rank} axes and windows of {}",
            window.len()
        );
        let strides = each(attributes, "strides", rank, 1)?;
        let dilations = each(attributes, "dilations", rank, 1)?;
        let pads = each(attributes, "pads", 2 * rank, 0)?;
        let fitting = |number: i64| {
            let number = usize::try_from(number)
                .ok()
                .filter(|&number| number <= MAX_NUMBER);
            number.with_context(|| format!("sizes must be from 0 to {MAX_NUMBER}"))
        };
        (0..rank)
            .map(|at| {
                let (size, kernel) = (fitting(image[at])?, fitting(window[at])?);
                let (stride, dilation) = (strides[at], dilations[at]);
                ensure!(stride > 0 && kernel > 0, "strides and windows must not be 0");
                let padded = size + pads[at] + pads[rank + at];
                let reach = dilation * (kernel - 1) + 1;
                ensure!(padded >= reach, "a window of {reach} in an image of {padded}");
                Ok(Axis {
                    positions: (padded - reach) / stride + 1,
                    size,
                    kernel,
                    stride,
                    dilation,
                    pad: pads[at] as i64,
                })
            })
            .collect()
    }
}

impl Kernel for ColumnsToImage {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [columns, image, window] = inputs else {
            bail!("expected 3 inputs, found {}", inputs.len());
        };
        if columns.element_type != ElementType::F32 {
            bail!(Unsupported::Anywhere("is supported for FP32 only".to_owned()));
        }
        ensure!(columns.rank() == 3, "columns of {} dimensions", columns.rank());
        let (Some(image), Some(window)) = (image.integers(), window.integers()) else {
            let Some(axes) = image.shape.first().and_then(Size::to_usize) else {
                bail!(Limit("needs sizes of a known number of dimensions".to_owned()));
            };
            let mut shape: ShortVec<Dim> = smallvec![columns.shape[0]];
            shape.extend((0..=axes).map(|_| Dim::unknown()));
            return Ok(vec![Fact::new(ElementType::F32, shape)]);
        };
        let axes = self.axes(&image, &window)?;
        let window = count(axes.iter().map(|axis| axis.kernel))?;
        let mut shape: ShortVec<Dim> = smallvec![columns.shape[0], columns.shape[1] / window as u64];
        shape.extend(axes.iter().map(|axis| axis.size.to_dim()));
        Ok(vec![Fact::new(ElementType::F32, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let integers =
            |index: usize| -> Result<Vec<i64>> { copied::<i64>(&*inputs[index].cast_to::<i64>()?) };
        let scatter = Scatter::new(self.axes(&integers(1)?, &integers(2)?)?)?;
        let (window, positions) = (scatter.window, scatter.positions()?);
        let [batch, rows, found] = *inputs[0].shape() else {
            bail!("expected columns of three dimensions");
        };
        ensure_input!(
            rows % window == 0 && found == positions,
            "columns of {rows} by {found} where windows have {window} numbers at {positions} positions"
        );
        let mut shape = vec![batch, rows / window];
        shape.extend(scatter.outer.iter().chain([&scatter.last]).map(|axis| axis.size));
        let mut images = vec![0f32; count(shape.iter().copied())?];
        if !images.is_empty() && positions > 0 {
            let mut pace = Pace::default();
            for (columns, image) in elements::<f32>(&inputs[0])?
                .chunks_exact(window * positions)
                .zip(images.chunks_exact_mut(scatter.image))
            {
                for (element, numbers) in columns.chunks_exact(positions).enumerate() {
                    for (first, numbers) in (0..).step_by(PART).zip(numbers.chunks(PART)) {
                        pace.spend(numbers.len() as u64)?;
                        scatter.add(element, first, numbers, image);
                    }
                }
            }
        }
        Ok(smallvec![tensor(&shape, images)?])
    }
}
