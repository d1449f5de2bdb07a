//! The operator `DeformConv`: a convolution whose taps are moved by offsets from an input, with bilinear
//! interpolation.

use std::sync::Arc;

use onnx_gemm::gemm;
use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::{PART, Pace},
    elements::elements,
    faults::{Unsupported, ensure_input},
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
    shapes::zeros,
    size,
};

/// Builds the operator `DeformConv` for images.
pub fn deform_conv(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let count = |name: &str| -> Result<usize> {
        let count = usize::try_from(attributes.int(name, 1)).ok();
        count
            .filter(|&count| count > 0)
            .with_context(|| format!("{name} must be a positive number"))
    };
    let pair = |name: &str, least: i64| -> Result<[usize; 2]> {
        match attributes.ints(name) {
            [] => Ok([1; 2]),
            &[a, b] if a >= least && b >= least => Ok([a as usize, b as usize]),
            other => bail!("{name} are {other:?}, expected 2 numbers of at least {least}"),
        }
    };
    let pads = match attributes.ints("pads") {
        [] => [0; 4],
        &[a, b, c, d] if [a, b, c, d].iter().all(|&pad| pad >= 0) => [a, b, c, d].map(|pad| pad as usize),
        other => bail!("pads are {other:?}, expected 4 numbers of at least 0"),
    };
    Ok(kernel(DeformConv {
        groups: count("group")?,
        offset_groups: count("offset_group")?,
        strides: pair("strides", 1)?,
        dilations: pair("dilations", 1)?,
        kernel: match attributes.has("kernel_shape") {
            true => Some(pair("kernel_shape", 1)?),
            false => None,
        },
        pads,
        bias: attributes.position(3),
        mask: attributes.position(4),
    }))
}

#[derive(Debug)]
struct DeformConv {
    groups: usize,
    /// Number of groups of channels that share offsets (`offset_group`).
    offset_groups: usize,
    strides: [usize; 2],
    dilations: [usize; 2],
    kernel: Option<[usize; 2]>,
    /// The begin pads of both axes, followed by the end pads.
    pads: [usize; 4],
    bias: Option<usize>,
    mask: Option<usize>,
}

impl DeformConv {
    /// Checks the shapes of the inputs, for results of `rows` lines of `columns` elements.
    fn expect_shapes(&self, inputs: &[Arc<Tensor>], [rows, columns]: [usize; 2]) -> Result<()> {
        let (shape, weights) = (inputs[0].shape(), inputs[1].shape());
        let taps = weights[2] * weights[3];
        let expected = |numbers: usize| {
            let all = self.offset_groups.saturating_mul(taps).saturating_mul(numbers);
            [shape[0], all, rows, columns]
        };
        let mask = self.mask.map(|place| &inputs[place]);
        let fits = weights[1].checked_mul(self.groups) == Some(shape[1])
            && weights[0].is_multiple_of(self.groups)
            && shape[1].is_multiple_of(self.offset_groups)
            && self.kernel.is_none_or(|kernel| kernel == weights[2..])
            && inputs[2].shape() == expected(2)
            && mask.is_none_or(|mask| mask.shape() == expected(1))
            && self.bias.is_none_or(|place| inputs[place].len() == weights[0]);
        ensure_input!(
            fits,
            "an input of {shape:?}, weights of {weights:?}, offsets of {:?} and a mask of {:?} for {} and {} groups, expected offsets of {:?}",
            inputs[2].shape(),
            mask.map(|mask| mask.shape()),
            self.groups,
            self.offset_groups,
            expected(2)
        );
        Ok(())
    }

    /// Returns the number of kernel positions along an axis.
    fn places(&self, axis: usize, size: usize, taps: usize) -> Result<usize> {
        let padded = size as u128 + self.pads[axis] as u128 + self.pads[axis + 2] as u128;
        let reach = (taps as u128).saturating_sub(1) * self.dilations[axis] as u128 + 1;
        ensure_input!(
            taps > 0 && padded >= reach,
            "an axis of {padded} with its padding, for a kernel that reaches over {reach}"
        );
        Ok(usize::try_from(
            (padded - reach) / self.strides[axis] as u128 + 1,
        )?)
    }
}

impl Kernel for DeformConv {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, weights, offsets, ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        if let Some(other) = inputs.iter().find(|fact| fact.element_type != ElementType::F32) {
            bail!(Unsupported::but_for_fp64(
                other.element_type,
                "is supported for FP32 only"
            ));
        }
        let has_rank =
            |place: Option<usize>, rank: usize| place.is_none_or(|place| inputs[place].rank() == rank);
        if input.rank() != 4 {
            bail!(Unsupported::Anywhere(format!(
                "is supported for images of 4 dimensions only, not for {}",
                input.rank()
            )));
        }
        ensure_input!(
            weights.rank() == 4 && offsets.rank() == 4 && has_rank(self.bias, 1) && has_rank(self.mask, 4),
            "needs weights, offsets and a mask of 4 dimensions, and a bias of 1"
        );
        let mut output = smallvec![input.shape[0], weights.shape[0]];
        for axis in 0..2 {
            let sizes = [input, weights].map(|fact| fact.shape[axis + 2].to_usize());
            output.push(match sizes {
                [Some(size), Some(taps)] => self.places(axis, size, taps)?.to_dim(),
                _ => Dim::unknown(),
            });
        }
        let output: ShortVec<Dim> = output;
        Ok(vec![Fact::new(ElementType::F32, output)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (shape, weights) = (inputs[0].shape(), inputs[1].shape());
        let [batch, channels, height, width] = [shape[0], shape[1], shape[2], shape[3]];
        let [filters, shared, tall, wide] = [weights[0], weights[1], weights[2], weights[3]];
        let [rows, columns] = [self.places(0, height, tall)?, self.places(1, width, wide)?];
        let (taps, places) = (tall * wide, rows.saturating_mul(columns));
        self.expect_shapes(inputs, [rows, columns])?;
        let (bias, mask) = (
            self.bias.map(|place| &inputs[place]),
            self.mask.map(|place| &inputs[place]),
        );
        let mut made = zeros(ElementType::F32, &[batch, filters, rows, columns])?;
        if made.is_empty() {
            return Ok(smallvec![made]);
        }
        size::admit_shape(ElementType::F32, &[channels, taps, places])?;
        let mut unfolded = vec![0.0; channels * taps * places];
        let (given, weights) = (elements::<f32>(&inputs[0])?, elements::<f32>(&inputs[1])?);
        let offsets = elements::<f32>(&inputs[2])?;
        let masks = mask.map(|mask| elements::<f32>(mask)).transpose()?;
        let bias = bias.map(|bias| elements::<f32>(bias)).transpose()?;
        let depth = shared * taps;
        let of_group = filters / self.groups;
        let mut pace = Pace::default();
        let images = made.as_slice_mut::<f32>()?.chunks_exact_mut(filters * places);
        for (index, to) in images.enumerate() {
            let image = Image {
                pixels: &given[index * channels * height * width..][..channels * height * width],
                size: [height, width],
            };
            for channel in 0..channels {
                let group = index * self.offset_groups + channel / (channels / self.offset_groups);
                for tap in 0..taps {
                    let at = (group * taps + tap) * places;
                    let moved = KernelTap {
                        offsets: &offsets[2 * at..][..2 * places],
                        mask: masks.map(|masks| &masks[at..][..places]),
                        tap: [tap / wide, tap % wide],
                    };
                    let to = &mut unfolded[(channel * taps + tap) * places..][..places];
                    self.sample(&image, channel, &moved, (to, columns), &mut pace)?;
                }
            }
            for (group, to) in to.chunks_exact_mut(of_group * places).enumerate() {
                let weights = &weights[group * of_group * depth..][..of_group * depth];
                let unfolded = &unfolded[group * depth * places..][..depth * places];
                gemm(weights, unfolded, [of_group, depth, places], to, &mut pace)?;
            }
            if let Some(bias) = bias {
                for (to, bias) in to.chunks_exact_mut(places).zip(bias) {
                    pace.over(to, |to| to.iter_mut().for_each(|to| *to += bias))?;
                }
            }
        }
        Ok(smallvec![made])
    }
}

/// The pixels of one image, channel by channel.
struct Image<'i> {
    pixels: &'i [f32],
    size: [usize; 2],
}

/// One tap of the kernel: its index along both axes, and its offsets and mask for all output positions.
struct KernelTap<'m> {
    offsets: &'m [f32],
    mask: Option<&'m [f32]>,
    tap: [usize; 2],
}

impl DeformConv {
    /// Samples one channel at one tap for all output positions.
    fn sample(
        &self,
        image: &Image<'_>,
        channel: usize,
        moved: &KernelTap<'_>,
        (to, columns): (&mut [f32], usize),
        pace: &mut Pace,
    ) -> Result<()> {
        let places = to.len();
        for (first, to) in (0..).step_by(PART).zip(to.chunks_mut(PART)) {
            pace.spend(16 * to.len() as u64)?;
            for (place, to) in (first..).zip(to) {
                let at = |axis: usize, step: usize| {
                    let start = (step * self.strides[axis] + moved.tap[axis] * self.dilations[axis]) as f32;
                    start - self.pads[axis] as f32 + moved.offsets[axis * places + place]
                };
                let pixel = image.between(channel, [at(0, place / columns), at(1, place % columns)]);
                *to = pixel * moved.mask.map_or(1.0, |mask| mask[place]);
            }
        }
        Ok(())
    }
}

impl Image<'_> {
    /// Returns the bilinear interpolation of a channel at a position. Pixels outside of the image count as 0.
    fn between(&self, channel: usize, [y, x]: [f32; 2]) -> f32 {
        let [height, width] = self.size;
        let is_near = |at: f32, size: usize| at > -1.0 && at < size as f32;
        if !is_near(y, height) || !is_near(x, width) {
            return 0.0;
        }
        let (top, left) = (y.floor(), x.floor());
        let (down, right) = (y - top, x - left);
        let pixel = |row: f32, column: f32| {
            let (row, column) = (row as i64, column as i64);
            let is_inside = |at: i64, size: usize| usize::try_from(at).is_ok_and(|at| at < size);
            if !is_inside(row, height) || !is_inside(column, width) {
                return 0.0;
            }
            self.pixels[(channel * height + row as usize) * width + column as usize]
        };
        (1.0 - down) * ((1.0 - right) * pixel(top, left) + right * pixel(top, left + 1.0))
            + down * ((1.0 - right) * pixel(top + 1.0, left) + right * pixel(top + 1.0, left + 1.0))
    }
}
