//! Convolutions of lines and images by constant weights, with what follows them: factors and biases of channels, the sum with
//! another value, an activation.
//!
//! The image is copied once, with its padding, into one plane for each offset within a stride: all elements that a weight is
//! multiplied with then are in one row, and [`IndirectGemm`] multiplies them (implicit im2col).

use std::sync::Arc;

use onnx_gemm::{IndirectGemm, SLACK, copy_line, pack_rows, packed_len, unpack_rows};
use onnx_tensor::prelude::*;

use crate::elementwise::activation::Activation;
use onnx_tensor::cancelling::Pace;
use onnx_tensor::{
    elements::{elements, filled, tensor},
    operator::{Fact, Kernel},
};

/// Where the numbers of an image are, and which of them make one of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Of one group.
    pub(crate) channels: usize,
    /// Of the result, in one group.
    pub(crate) rows: usize,
    /// Height and width.
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) strides: [usize; 2],
    pub(crate) dilations: [usize; 2],
    /// Padding above and on the left; what is missing below and on the right is padding too.
    pub(crate) before: [usize; 2],
}

impl Geometry {
    /// Terms of one sum.
    pub(crate) fn depth(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Sizes of a plane; `None` where they are beyond counting.
    fn plane(&self) -> Option<[usize; 2]> {
        let size = |axis: usize| {
            let reach = (self.kernel[axis] - 1).checked_mul(self.dilations[axis])?;
            self.output[axis].checked_add(reach / self.strides[axis])
        };
        Some([size(0)?, size(1)?])
    }

    /// Whether the image can be read as it is.
    fn is_plain(&self, plane: [usize; 2]) -> bool {
        self.strides == [1, 1] && self.before == [0, 0] && plane == self.input
    }

    /// How the image is spread out. `None` where that would take far more memory than the image and the result.
    pub(crate) fn layout(&self) -> Option<Layout> {
        let plane = self.plane()?;
        // The places within a stride that any weight is multiplied with.
        let phases = |axis: usize| {
            let steps = (0..self.kernel[axis]).map(|step| step * self.dilations[axis]);
            let mut phases: Vec<usize> = steps.map(|place| place % self.strides[axis]).collect();
            phases.sort_unstable();
            phases.dedup();
            phases
        };
        let (rows, columns) = (phases(0), phases(1));
        let count = rows.len() * columns.len();
        let all = [plane[0], plane[1], count, self.channels];
        let all = all.into_iter().try_fold(1usize, usize::checked_mul)?;
        let image =
            |[height, width]: [usize; 2], channels: usize| height.checked_mul(width)?.checked_mul(channels);
        let [given, made] = [
            image(self.input, self.channels)?,
            image(self.output, self.rows.max(self.channels))?,
        ];
        if all > given.checked_add(made)?.checked_mul(4)?.checked_add(1 << 16)? {
            return None;
        }
        let is_plain = self.is_plain(plane) && self.rows > 1;
        let reach = plane[0] - self.output[0];
        let line = plane[1] * count * self.channels;
        let band = match is_plain {
            true => self.output[0],
            false => (BAND / line)
                .saturating_sub(reach)
                .max(4 * reach + 4)
                .min(self.output[0]),
        };
        let plane = [band + reach, plane[1]];
        let size = plane[0] * plane[1];
        let mut offsets = Vec::with_capacity(self.depth());
        for channel in 0..self.channels {
            for y in 0..self.kernel[0] {
                for x in 0..self.kernel[1] {
                    let (y, x) = (y * self.dilations[0], x * self.dilations[1]);
                    let row = rows.binary_search(&(y % self.strides[0])).ok()?;
                    let column = columns.binary_search(&(x % self.strides[1])).ok()?;
                    let phase = row * columns.len() + column;
                    let place = y / self.strides[0] * plane[1] + x / self.strides[1];
                    offsets.push((channel * count + phase) * size + place);
                }
            }
        }
        Some(Layout {
            is_plain,
            band,
            plane,
            phases: [rows, columns],
            offsets,
        })
    }
}

/// How an image is spread out for its products.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The image is read as it is.
    is_plain: bool,
    /// Lines of the result that are computed at a time, so that what they are made of is in the caches.
    band: usize,
    /// Height and width, for a band.
    plane: [usize; 2],
    phases: [Vec<usize>; 2],
    /// Where the values of each term begin.
    offsets: Vec<usize>,
}

impl Layout {
    /// Numbers of one channel.
    fn channel(&self) -> usize {
        self.plane[0] * self.plane[1] * self.phases[0].len() * self.phases[1].len()
    }

    /// Columns of the product for so many lines of the result. Those at the end of each line are of no use.
    fn columns(&self, lines: usize, width: usize) -> usize {
        (lines - 1) * self.plane[1] + width
    }

    /// Spreads the channels of a group out, for the lines of the result from this one on.
    fn spread(&self, geometry: &Geometry, first_line: usize, image: &[f32], planes: &mut [f32]) {
        let [height, width] = geometry.input;
        let [plane_height, plane_width] = self.plane;
        let mut planes = planes.chunks_exact_mut(plane_height * plane_width);
        for channel in image.chunks_exact(height * width) {
            for &first_row in &self.phases[0] {
                for &first_column in &self.phases[1] {
                    let Some(plane) = planes.next() else {
                        return;
                    };
                    for (row, line) in plane.chunks_exact_mut(plane_width).enumerate() {
                        let y = (first_line + row) * geometry.strides[0] + first_row;
                        match y.checked_sub(geometry.before[0]).filter(|&y| y < height) {
                            Some(y) => {
                                let from = &channel[y * width..(y + 1) * width];
                                let [_, stride] = geometry.strides;
                                fill(from, line, first_column, stride, geometry.before[1]);
                            }
                            None => line.fill(0.0),
                        }
                    }
                }
            }
        }
    }
}

/// Numbers of an image that are spread out at a time.
const BAND: usize = 1 << 18;

/// Writes those numbers of a line that are `stride` apart behind the padding. The padding is zero before, and stays so.
fn fill(from: &[f32], line: &mut [f32], first: usize, stride: usize, before: usize) {
    // The first place of the line that is no padding, and where it is in the image.
    let skipped = before.saturating_sub(first).div_ceil(stride);
    let start = skipped * stride + first - before;
    let (Some(line), Some(from)) = (line.get_mut(skipped..), from.get(start..)) else {
        return;
    };
    if stride == 1 {
        copy_line(from, line);
    } else {
        let from = from.iter().step_by(stride);
        line.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// A convolution. Its inputs are the image, the weights as [`packed`] gives them, and what is added, if something is.
#[derive(Debug)]
pub(crate) struct Convolution {
    geometry: Geometry,
    layout: Layout,
    /// Of all channels of the result.
    bias: Vec<f32>,
    activation: Option<Activation>,
    /// Of the result.
    shape: ShortVec<usize>,
}

impl Convolution {
    pub(crate) fn new(
        geometry: Geometry,
        layout: Layout,
        bias: Vec<f32>,
        activation: Option<Activation>,
        shape: &[usize],
    ) -> Self {
        Self {
            geometry,
            layout,
            bias,
            activation,
            shape: shape.into(),
        }
    }
}

/// Packs the weights of all groups.
pub(crate) fn packed(geometry: &Geometry, weights: &[f32]) -> Result<Tensor> {
    let groups = weights.chunks_exact(geometry.rows * geometry.depth());
    let packed: Vec<f32> = groups.flat_map(|group| pack_rows(geometry.rows, group)).collect();
    tensor(&[packed.len()], packed)
}

/// The weights that [`packed`] was given, of so many rows of a group.
pub(crate) fn unpacked(rows: usize, depth: usize, packed: &Tensor) -> Result<Vec<f32>> {
    let groups = elements::<f32>(packed)?.chunks_exact(packed_len(rows, depth).max(1));
    Ok(groups.flat_map(|group| unpack_rows(rows, group)).collect())
}

impl Kernel for Convolution {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(
            inputs[0].element_type,
            self.shape.iter().map(ToDim::to_dim),
        )])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let Self { geometry, layout, .. } = self;
        let image = elements::<f32>(&inputs[0])?;
        let weights = elements::<f32>(&inputs[1])?;
        let added = inputs.get(2).map(|added| elements::<f32>(added)).transpose()?;
        let rows = geometry.rows;
        let given = geometry.channels * geometry.input[0] * geometry.input[1];
        let made = rows * geometry.output[0] * geometry.output[1];
        let group_weights = packed_len(rows, geometry.depth());
        let count = geometry.batch * geometry.groups;
        ensure!(
            image.len() == count * given
                && weights.len() == geometry.groups * group_weights
                && added.is_none_or(|added| added.len() == count * made),
            "a convolution of {} numbers, not {}",
            image.len(),
            count * given
        );
        let spread = match layout.is_plain {
            true => 0,
            false => geometry.channels * layout.channel() + SLACK,
        };
        let mut planes = vec![0.0; spread];
        let mut lines = Vec::new();
        let mut pace = Pace::default();
        let compute = |output: &mut [f32]| {
            for (index, output) in output.chunks_exact_mut(made).enumerate() {
                let group = index % geometry.groups;
                let image = &image[index * given..(index + 1) * given];
                let added = added.map(|added| &added[index * made..(index + 1) * made]);
                let [height, width] = geometry.output;
                for first_line in (0..height).step_by(layout.band) {
                    if !layout.is_plain {
                        layout.spread(geometry, first_line, image, &mut planes);
                    }
                    IndirectGemm {
                        rows,
                        weights: &weights[group * group_weights..(group + 1) * group_weights],
                        bias: &self.bias[group * rows..(group + 1) * rows],
                        values: if layout.is_plain { image } else { &planes },
                        offsets: &layout.offsets,
                        columns: layout.columns(layout.band.min(height - first_line), width),
                        pace: &mut pace,
                        take: |first, count, sums: &mut [f32], stride| {
                            self.find_lines(first, count, first_line * width, &mut lines);
                            self.take(sums, stride, &lines, added, output);
                        },
                    }
                    .run()?;
                }
            }
            Ok(())
        };
        Ok(smallvec![filled(&self.shape, compute)?])
    }
}

/// Columns of a panel that are of use: the first, where it is in its channel of the result, and their number.
type Line = [usize; 3];

impl Convolution {
    /// Finds the columns of a panel that are of use, in a band that begins at this place of each channel of the result.
    fn find_lines(&self, first: usize, count: usize, band: usize, lines: &mut Vec<Line>) {
        lines.clear();
        let ([_, width], [_, useful]) = (self.layout.plane, self.geometry.output);
        if width == useful {
            lines.push([0, band + first, count]);
            return;
        }
        let mut column = first;
        while column < first + count {
            let (y, x) = (column / width, column % width);
            let end = (first + count).min((y + 1) * width);
            if x < useful {
                lines.push([
                    column - first,
                    band + y * useful + x,
                    (useful - x).min(end - column),
                ]);
            }
            column = end;
        }
    }

    /// Does what follows the sums, and writes them to their places.
    fn take(
        &self,
        sums: &mut [f32],
        stride: usize,
        lines: &[Line],
        added: Option<&[f32]>,
        output: &mut [f32],
    ) {
        let channel = self.geometry.output[0] * self.geometry.output[1];
        if let Some(added) = added {
            for (sums, added) in sums.chunks_exact_mut(stride).zip(added.chunks_exact(channel)) {
                for &[from, to, count] in lines {
                    let pairs = sums[from..from + count].iter_mut().zip(&added[to..to + count]);
                    pairs.for_each(|(sum, added)| *sum += *added);
                }
            }
        }
        if let Some(activation) = &self.activation {
            let used = lines.last().map_or(0, |[from, _, count]| from + count);
            activation.apply(&mut sums[..(self.geometry.rows - 1) * stride + used]);
        }
        for (sums, output) in sums.chunks_exact(stride).zip(output.chunks_exact_mut(channel)) {
            for &[from, to, count] in lines {
                copy_line(&sums[from..from + count], &mut output[to..to + count]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn geometry(input: [usize; 2], kernel: [usize; 2]) -> Geometry {
        Geometry {
            batch: 1,
            groups: 1,
            channels: 2,
            rows: 3,
            input,
            output: input,
            kernel,
            strides: [1, 1],
            dilations: [1, 1],
            before: [kernel[0] / 2, kernel[1] / 2],
        }
    }

    #[test]
    fn lines_are_filled_behind_their_padding() {
        let from: Vec<f32> = (1..=7u8).map(f32::from).collect();
        let filled = |first: usize, stride: usize, before: usize| {
            let mut line = [0.0; 6];
            fill(&from, &mut line, first, stride, before);
            line
        };
        assert_eq!(filled(0, 1, 0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(filled(0, 1, 2), [0.0, 0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(filled(0, 2, 0), [1.0, 3.0, 5.0, 7.0, 0.0, 0.0]);
        assert_eq!(filled(1, 2, 0), [2.0, 4.0, 6.0, 0.0, 0.0, 0.0]);
        assert_eq!(filled(0, 2, 1), [0.0, 2.0, 4.0, 6.0, 0.0, 0.0]);
        assert_eq!(filled(1, 2, 1), [1.0, 3.0, 5.0, 7.0, 0.0, 0.0]);
        assert_eq!(filled(0, 3, 4), [0.0, 0.0, 3.0, 6.0, 0.0, 0.0]);
        assert_eq!(filled(0, 1, 9), [0.0; 6]);
        assert_eq!(filled(8, 9, 0), [0.0; 6]);
    }

    #[test]
    fn only_phases_that_are_used_are_spread_out() {
        let mut single = geometry([8, 8], [1, 1]);
        single.strides = [4, 4];
        single.output = [2, 2];
        let layout = single.layout().unwrap();
        assert_eq!((layout.channel(), layout.columns(2, 2)), (4, 4));
        assert!(geometry([8, 8], [1, 1]).layout().unwrap().is_plain);
        assert!(!geometry([8, 8], [3, 3]).layout().unwrap().is_plain);
    }

    #[test]
    fn padding_that_is_far_larger_than_the_image_is_left_alone() {
        let mut wide = geometry([1, 1], [3, 3]);
        wide.dilations = [1 << 20, 1 << 20];
        wide.before = wide.dilations;
        assert!(wide.layout().is_none());
        wide.dilations = [usize::MAX / 2, 4];
        assert!(wide.layout().is_none());
    }
}
