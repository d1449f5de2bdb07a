//! Packed weights of convolutions of channels-last images.

use std::ops::Range;

use onnx_gemm::{ChannelFilter, Order, PackedMatrix};
use onnx_tensor::{elements::elements, prelude::*};

/// Packed weights.
#[derive(Debug)]
pub(super) enum Filters {
    /// The weights of all output channels, a range of them after the other.
    Dense(Vec<Channels>),
    /// The filters of a depthwise convolution.
    Depthwise(ChannelFilter),
}

/// The weights of a range of output channels of one group.
#[derive(Debug)]
pub(super) struct Channels {
    pub(super) range: Range<usize>,
    /// The first input channel of the group.
    pub(super) first_input: usize,
    /// One row for each tap and input channel, one column for each output channel.
    pub(super) filters: PackedMatrix,
}

/// The number of output channels of a range, if the weights of a group have at least [`LARGE`] elements: several
/// threads can then read the weights.
const RANGE: usize = 96;

/// See [`RANGE`].
const LARGE: usize = 1 << 17;

/// Packed output channels are padded to a multiple of this number, as [`PackedMatrix`] and [`ChannelFilter`] do.
const PADDED: usize = 16;

impl Filters {
    /// Packs weights of the shape `[output channels, input channels of a group, height, width]`.
    pub(super) fn packed(weights: &Tensor, groups: usize, from_first: bool) -> Result<Self> {
        let (shape, numbers) = (weights.shape(), elements::<f32>(weights)?);
        let &[rows, channels, height, width] = shape else {
            bail!("weights of {} dimensions", shape.len());
        };
        let (taps, of_group) = (height * width, rows / groups);
        if [of_group, channels] == [1, 1] {
            return Ok(Self::Depthwise(ChannelFilter::new(numbers, [height, width])));
        }
        let depth = taps * channels;
        let together = match groups == 1 && numbers.len() >= LARGE {
            true => RANGE,
            false => of_group,
        };
        let mut turned = Vec::new();
        let mut packed = Vec::new();
        for group in 0..groups {
            let end = (group + 1) * of_group;
            for first in (group * of_group..end).step_by(together) {
                let range = first..end.min(first + together);
                let mut filters = &numbers[range.start * depth..range.end * depth];
                if !from_first {
                    turned.clear();
                    for filter in filters.chunks_exact(depth) {
                        let taps = (0..taps).flat_map(|tap| filter[tap..].iter().step_by(taps));
                        turned.extend(taps);
                    }
                    filters = &turned;
                }
                packed.push(Channels {
                    first_input: group * channels,
                    filters: PackedMatrix::new(filters, [depth, range.len()], Order::ColumnMajor),
                    range,
                });
            }
        }
        Ok(Self::Dense(packed))
    }

    /// Returns the bytes of packed weights of this shape, whose output channels are padded to whole columns.
    pub(super) fn bytes(shape: &[usize], groups: usize) -> u64 {
        let count: usize = shape.iter().product();
        let rows = shape.first().copied().unwrap_or(0);
        let of_group = (rows / groups).max(1);
        let padded = match (of_group, shape.get(1)) {
            (1, Some(1)) => rows,
            _ => of_group,
        };
        let padding = padded.next_multiple_of(PADDED) - padded;
        (size_of::<f32>() * (count + padding * (count / padded.max(1)))) as u64
    }
}
