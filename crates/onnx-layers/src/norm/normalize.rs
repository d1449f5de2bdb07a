//! Normalization of groups of elements to mean 0 and variance 1. The variance is computed as the mean squared
//! distance from the mean, since the difference between the mean square and the squared mean is inaccurate
//! for values far from zero (cancellation).

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::least_work::ELEMENTS;

use onnx_tensor::{
    axis,
    elements::{Real, copied, elements, tensor, with_real},
    node::Attributes,
    operator::Fact,
    split,
};
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{Limit, ensure_input},
    node::Node,
    operator::Compute,
    size,
};

/// Builds the operator `LayerNormalization`, `RMSNormalization`, `InstanceNormalization`,
/// `GroupNormalization` or `MeanVarianceNormalization` for FP32 and FP64.
pub fn normalize(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let groups = match node.op_type.as_str() {
        "LayerNormalization" | "RMSNormalization" => Groups::From(attributes.int("axis", -1)),
        "InstanceNormalization" => Groups::Channels,
        "GroupNormalization" => Groups::OfChannels {
            count: attributes.int("num_groups", 0).try_into()?,
            scales_groups: node.opset < 21,
        },
        "MeanVarianceNormalization" if attributes.has("axes") => {
            Groups::Over(attributes.ints("axes").to_vec())
        }
        "MeanVarianceNormalization" => Groups::Over(vec![0, 2, 3]),
        other => bail!("{other} is not a normalization"),
    };
    let epsilon = match &groups {
        // MeanVarianceNormalization adds epsilon to the standard deviation, not to the variance.
        Groups::Over(_) => 1e-9,
        _ => attributes.float("epsilon", 1e-5),
    };
    let keeps_mean = node.op_type == "RMSNormalization";
    let is_layer = matches!(groups, Groups::From(_)) && !keeps_mean;
    Ok(Box::new(Normalize {
        groups,
        keeps_mean,
        epsilon: f64::from(epsilon),
        outputs: match is_layer {
            true => node.output.len().clamp(1, 3),
            false => 1,
        },
    }))
}

/// The elements that are normalized together as a group.
#[derive(Debug)]
enum Groups {
    /// A group consists of the elements along this axis and all later axes.
    From(i64),
    /// Each channel (axis 1) is a group.
    Channels,
    /// The channels are divided into `count` groups of consecutive channels.
    OfChannels {
        count: usize,
        /// Whether scale and bias are per group rather than per channel.
        scales_groups: bool,
    },
    /// A group consists of the elements along these axes.
    Over(Vec<i64>),
}

/// Cost per element, relative to a loop that reads and writes one element. Each element is part of two sums
/// in FP64.
const COST: u64 = 8;

#[derive(Debug)]
struct Normalize {
    groups: Groups,
    /// Whether to divide by the root mean square, without subtracting the mean.
    keeps_mean: bool,
    epsilon: f64,
    /// Number of outputs: the result and, for layer normalization, mean and inverse standard deviation.
    outputs: usize,
}

impl Compute for Normalize {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = &inputs[0];
        let rank = input.rank();
        for other in &inputs[1..] {
            ensure!(
                other.element_type == input.element_type,
                "inputs of different types"
            );
        }
        match &self.groups {
            Groups::From(axis) => {
                let axis = axis::axis(*axis, rank)?;
                if inputs[1..].iter().any(|other| other.rank() > rank) {
                    return Err(Limit("has a scale of more dimensions than its input".to_owned()).into());
                }
                let reduced = input.shape.iter().enumerate();
                let reduced = reduced.map(|(at, dim)| if at < axis { *dim } else { 1.into() });
                let statistic = Fact::new(ElementType::F32, reduced);
                let mut facts = vec![input.with(input.element_type)];
                facts.resize(self.outputs, statistic);
                return Ok(Some(facts));
            }
            Groups::Channels | Groups::OfChannels { .. } => {
                ensure!(
                    rank >= 2 && inputs.len() == 3,
                    "expected channels, a scale and a bias"
                );
            }
            Groups::Over(axes) => {
                for &axis in axes {
                    axis::axis(axis, rank)?;
                }
            }
        }
        Ok(Some(vec![input.with(input.element_type)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let mut others = std::mem::take(inputs);
        let input = others.remove(0);
        with_real!(input.element_type(), T => self.normalized::<T>(input, &others))
    }
}

impl Normalize {
    /// Normalizes `input`, in place if nothing else uses it. `others` are the scale and the bias.
    fn normalized<T: Real>(
        &self,
        input: Arc<Tensor>,
        others: &[Arc<Tensor>],
    ) -> Result<ShortVec<Arc<Tensor>>> {
        let other = |index: usize| others.get(index).map(|other| elements::<T>(other)).transpose();
        let (scale, bias) = (other(0)?, other(1)?);
        let channels = input.shape().get(1).copied().unwrap_or(1);
        match &self.groups {
            Groups::From(axis) => self.trailing_axes::<T>(*axis, input, others),
            Groups::Channels => {
                are_as_many([scale, bias], channels)?;
                self.by_channels(input, channels, |_, channel| channel, (scale, bias))
            }
            Groups::OfChannels { count, scales_groups } => {
                ensure_input!(
                    *count > 0 && channels % count == 0,
                    "{channels} channels in {count} groups, expected a multiple"
                );
                let scales_groups = *scales_groups;
                are_as_many([scale, bias], if scales_groups { *count } else { channels })?;
                self.by_channels(
                    input,
                    *count,
                    move |group, channel| if scales_groups { group } else { channel },
                    (scale, bias),
                )
            }
            Groups::Over(axes) => self.over(elements::<T>(&input)?, input.shape(), axes),
        }
    }

    /// Normalizes the groups of elements from an axis on. Also returns their statistics, if they are outputs.
    fn trailing_axes<T: Real>(
        &self,
        axis: i64,
        input: Arc<Tensor>,
        others: &[Arc<Tensor>],
    ) -> Result<ShortVec<Arc<Tensor>>> {
        let shape = input.shape();
        let axis = axis::axis(axis, shape.len())?;
        let count: usize = shape[axis..].iter().product();
        let wide = |index: usize| {
            let tensor = others.get(index)?;
            // The scale or bias is the same for all groups, or different for each group.
            let is_shared = tensor.rank() <= shape.len() - axis;
            Some(stretched::<T>(
                tensor,
                if is_shared { &shape[axis..] } else { shape },
            ))
        };
        let (scale, bias) = (wide(0).transpose()?, wide(1).transpose()?);
        let of_group = |numbers: &[T], index: usize| -> std::ops::Range<usize> {
            let start = if numbers.len() == count { 0 } else { index * count };
            start..start + count
        };
        let normalize = |index: usize, group: &mut [T], pace: &mut Pace| {
            let statistics = self.center(group, pace)?;
            if let Some(scale) = &scale {
                pace.pairs(&scale[of_group(scale, index)], group, |scale, group| {
                    let pairs = group.iter_mut().zip(scale);
                    pairs.for_each(|(y, &scale)| *y = *y * scale);
                })?;
            }
            if let Some(bias) = &bias {
                pace.pairs(&bias[of_group(bias, index)], group, |bias, group| {
                    let pairs = group.iter_mut().zip(bias);
                    pairs.for_each(|(y, &bias)| *y = *y + bias);
                })?;
            }
            Ok::<_, Error>(statistics)
        };
        let line = Ord::max(count, 1);
        if self.outputs == 1 {
            let work = [input.len() as u64 * COST, ELEMENTS];
            let made = split::replaced(input, line, work, |first, y, pace| {
                let mut groups = (first..).zip(y.chunks_exact_mut(line));
                groups.try_for_each(|(index, group)| normalize(index, group, pace).map(|_| ()))
            })?;
            return Ok(smallvec![made]);
        }
        let mut pace = Pace::default();
        let mut y = pace.copy(elements::<T>(&input)?)?;
        let mut means = Vec::new();
        let mut inverses = Vec::new();
        for (index, group) in y.chunks_exact_mut(line).enumerate() {
            let (mean, inverse) = normalize(index, group, &mut pace)?;
            means.push(mean as f32);
            inverses.push(inverse as f32);
        }
        let mut reduced = shape.to_vec();
        reduced[axis..].fill(1);
        let mut outputs = smallvec![tensor(shape, y)?.into_arc()];
        for statistic in [means, inverses].into_iter().take(self.outputs - 1) {
            outputs.push(tensor(&reduced, statistic)?.into_arc());
        }
        Ok(outputs)
    }

    /// Normalizes `group`; returns its mean, and the factor by which its elements were multiplied.
    fn center<T: Real>(&self, group: &mut [T], pace: &mut Pace) -> Result<(f64, f64)> {
        pulp::Arch::new().dispatch(|| {
            let count = group.len() as f64;
            let mean = if self.keeps_mean {
                0.0
            } else {
                sum(group, |x| x, pace)? / count
            };
            let variance = sum(group, |x| (x - mean) * (x - mean), pace)? / count;
            let inverse = 1.0 / (variance + self.epsilon).sqrt();
            for part in group.chunks_mut(PART) {
                pace.spend(part.len() as u64)?;
                for x in part {
                    *x = T::of(((*x).into() - mean) * inverse);
                }
            }
            Ok((mean, inverse))
        })
    }

    /// Normalizes `parts` groups per example, with a scale and a bias per group or channel.
    fn by_channels<T: Real>(
        &self,
        input: Arc<Tensor>,
        parts: usize,
        index: impl Fn(usize, usize) -> usize + Sync,
        (scale, bias): (Option<&[T]>, Option<&[T]>),
    ) -> Result<ShortVec<Arc<Tensor>>> {
        let channels = input.shape()[1];
        let inner: usize = input.shape()[2..].iter().product();
        if input.is_empty() {
            return Ok(smallvec![input]);
        }
        let (size, work) = (channels / parts * inner, [input.len() as u64, ELEMENTS]);
        let centered = split::replaced(input, size, [work[0] * COST, ELEMENTS], |_, y: &mut [T], pace| {
            let mut groups = y.chunks_exact_mut(size);
            groups.try_for_each(|group| self.center(group, pace).map(|_| ()))
        })?;
        let of = |values: Option<&[T]>, index: usize, default: f64| match values {
            None => Ok(T::of(default)),
            Some(values) => values.get(index).copied().context("a scale or bias is too short"),
        };
        let made = split::replaced(centered, inner, work, |first, y: &mut [T], pace| {
            for (line, y) in (first..).zip(y.chunks_exact_mut(inner)) {
                let channel = line % channels;
                let place = index(channel / (channels / parts), channel);
                let (scale, bias) = (of(scale, place, 1.0)?, of(bias, place, 0.0)?);
                pace.over(y, |y| y.iter_mut().for_each(|y| *y = *y * scale + bias))?;
            }
            Ok(())
        })?;
        Ok(smallvec![made])
    }

    fn over<T: Real>(&self, x: &[T], shape: &[usize], axes: &[i64]) -> Result<ShortVec<Arc<Tensor>>> {
        let mut reduced = vec![false; shape.len()];
        for &axis in axes {
            reduced[axis::axis(axis, shape.len())?] = true;
        }
        let kept = shape.iter().zip(&reduced).filter(|(_, reduced)| !**reduced);
        let groups: usize = kept.map(|(&dim, _)| dim).product();
        // Checks that there is enough memory for a group index per element, and for two sums per group.
        size::admit_now(8 * x.len() as u64 + 16 * groups as u64)?;
        let count = x.len().checked_div(groups).unwrap_or(0) as f64;
        let mut pace = Pace::default();
        let mut each = onnx_kernels::reduce::groups(shape, &reduced);
        let mut places = vec![0; x.len()];
        pace.over(&mut places, |places| {
            places
                .iter_mut()
                .zip(&mut each)
                .for_each(|(place, group)| *place = group);
        })?;
        let mut means = vec![0.0; groups];
        for (x, places) in parts(x, &places) {
            pace.spend(x.len() as u64)?;
            for (&x, &group) in x.iter().zip(places) {
                means[group] += x.into();
            }
        }
        pace.over(&mut means, |means| {
            means.iter_mut().for_each(|mean| *mean /= count);
        })?;
        let mut deviations = vec![0.0; groups];
        for (x, places) in parts(x, &places) {
            pace.spend(x.len() as u64)?;
            for (&x, &group) in x.iter().zip(places) {
                deviations[group] += (x.into() - means[group]).powi(2);
            }
        }
        pace.over(&mut deviations, |sums: &mut [f64]| {
            let sums = sums.iter_mut();
            sums.for_each(|sum| *sum = (*sum / count).sqrt() + self.epsilon);
        })?;
        let mut y = Vec::with_capacity(x.len());
        for (x, places) in parts(x, &places) {
            pace.spend(x.len() as u64)?;
            let pairs = x.iter().zip(places);
            y.extend(pairs.map(|(&x, &group)| T::of((x.into() - means[group]) / deviations[group])));
        }
        Ok(smallvec![tensor(shape, y)?.into_arc()])
    }
}

/// Iterates over `x` and its group indices in chunks of `PART` elements.
fn parts<'p, T>(x: &'p [T], places: &'p [usize]) -> impl Iterator<Item = (&'p [T], &'p [usize])> {
    x.chunks(PART).zip(places.chunks(PART))
}

/// Checks that scale and bias have one value per channel or group.
fn are_as_many<T>(given: [Option<&[T]>; 2], expected: usize) -> Result<()> {
    for values in given.into_iter().flatten() {
        let found = values.len();
        ensure_input!(
            found == expected,
            "a scale or bias of {found} numbers, expected {expected}"
        );
    }
    Ok(())
}

/// Returns the sum of the terms in FP64. The lanes let the loop vectorize, with several sums in flight.
#[inline(always)]
fn sum<T: Real>(values: &[T], term: impl Fn(f64) -> f64, pace: &mut Pace) -> Result<f64> {
    const LANES: usize = 32;
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunks in chunks.chunks(PART / LANES) {
        pace.spend((chunks.len() * LANES) as u64)?;
        for chunk in chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += term(x.into());
            }
        }
    }
    let mut sum: f64 = lanes.iter().sum();
    for &x in rest {
        sum += term(x.into());
    }
    Ok(sum)
}

/// Broadcasts a scale or bias to the elements of a group.
fn stretched<T: Real>(tensor: &Tensor, shape: &[usize]) -> Result<Vec<T>> {
    if tensor.shape() == shape {
        return copied(tensor);
    }
    let fits = shape.len().checked_sub(tensor.rank()).is_some_and(|missing| {
        let mut pairs = tensor.shape().iter().zip(&shape[missing..]);
        pairs.all(|(&from, &to)| from == 1 || from == to)
    });
    ensure_input!(
        fits,
        "a scale or bias of {:?} for {shape:?}, expected equal sizes or 1",
        tensor.shape()
    );
    tensor.broadcast_to(shape)?.into_vec()
}
