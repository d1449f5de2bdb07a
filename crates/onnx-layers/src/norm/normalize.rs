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
        let (mean, inverse) = self.statistics(group, pace)?;
        adjust(group, |x| (x - mean) * inverse, pace)?;
        Ok((mean, inverse))
    }

    /// Returns the mean of `group`, and the inverse of its standard deviation.
    fn statistics<T: Real>(&self, group: &[T], pace: &mut Pace) -> Result<(f64, f64)> {
        let count = group.len() as f64;
        if self.keeps_mean {
            let [_, squares] = sums(group, 0.0, pace)?;
            return Ok((0.0, 1.0 / (squares / count + self.epsilon).sqrt()));
        }
        // Distances are measured from an element instead of the mean, so that one pass computes both sums. The
        // square of the element's own distance is at most `count` times the variance, so the difference
        // below loses no more digits than the sums do.
        let origin = group.first().map_or(0.0, |&first| first.into());
        let [sum, squares] = sums(group, origin, pace)?;
        let distance = sum / count;
        let variance = match squares == f64::INFINITY {
            true => squares,
            false => squares / count - distance * distance,
        };
        // Rounding must not make the variance negative. `max` would replace NaN.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        Ok((origin + distance, 1.0 / (variance + self.epsilon).sqrt()))
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
        let (of_group, work) = (channels / parts, [input.len() as u64 * COST, ELEMENTS]);
        let of = |values: Option<&[T]>, index: usize, default: f64| match values {
            None => Ok(default),
            Some(values) => match values.get(index) {
                Some(&value) => Ok(value.into()),
                None => bail!("a scale or bias is too short"),
            },
        };
        let size = of_group * inner;
        let made = split::replaced(input, size, work, |first, y: &mut [T], pace| {
            for (group, y) in (first..).zip(y.chunks_exact_mut(size)) {
                let (mean, inverse) = self.statistics(y, pace)?;
                let group = group % parts;
                for (channel, y) in (group * of_group..).zip(y.chunks_exact_mut(inner)) {
                    let place = index(group, channel);
                    let factor = inverse * of(scale, place, 1.0)?;
                    let bias = of(bias, place, 0.0)?;
                    adjust(y, |x| (x - mean) * factor + bias, pace)?;
                }
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
        // Checks that there is enough memory for two sums per group.
        size::admit_now(16 * groups as u64)?;
        let mut made = Tensor::unset_of(T::ELEMENT_TYPE, shape)?;
        if made.is_empty() {
            return Ok(smallvec![made.into_arc()]);
        }
        let count = (x.len() / groups) as f64;
        // Lines of `inner` consecutive elements belong to one group, or to one group each.
        let is_reduced = reduced.last() == Some(&true);
        let outer = reduced.iter().rposition(|&reduced| reduced != is_reduced);
        let outer = outer.map_or(0, |last| last + 1);
        let inner: usize = shape[outer..].iter().product();
        let width = if is_reduced { 1 } else { inner };
        let groups_of_lines = || {
            let groups = onnx_kernels::reduce::groups(&shape[..outer], &reduced[..outer]);
            groups.map(|group| group * width..(group + 1) * width)
        };
        let mut pace = Pace::default();
        let mut means = vec![0.0; groups];
        for (line, of) in x.chunks_exact(inner).zip(groups_of_lines()) {
            add(line, &mut means[of], &mut pace)?;
        }
        pace.over(&mut means, |means| {
            means.iter_mut().for_each(|mean| *mean /= count);
        })?;
        let mut deviations = vec![0.0; groups];
        for (line, of) in x.chunks_exact(inner).zip(groups_of_lines()) {
            add_squares(line, &means[of.clone()], &mut deviations[of], &mut pace)?;
        }
        pace.over(&mut deviations, |sums: &mut [f64]| {
            let sums = sums.iter_mut();
            sums.for_each(|sum| *sum = 1.0 / ((*sum / count).sqrt() + self.epsilon));
        })?;
        let y = made.as_slice_mut::<T>()?;
        let lines = x.chunks_exact(inner).zip(y.chunks_exact_mut(inner));
        for ((x, y), of) in lines.zip(groups_of_lines()) {
            standardize(x, y, [&means[of.clone()], &deviations[of]], &mut pace)?;
        }
        Ok(smallvec![made.into_arc()])
    }
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

/// Replaces each element with a function of it that is computed in FP64.
fn adjust<T: Real>(values: &mut [T], function: impl Fn(f64) -> f64 + Copy, pace: &mut Pace) -> Result<()> {
    pace.over(values, |values| {
        pulp::Arch::new().dispatch(Adjusted { values, function });
    })
}

struct Adjusted<'v, T, F> {
    values: &'v mut [T],
    function: F,
}

impl<T: Real, F: Fn(f64) -> f64> pulp::WithSimd for Adjusted<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for x in self.values {
            *x = T::of((self.function)((*x).into()));
        }
    }
}

/// Returns the sum of the distances from `origin`, and the sum of their squares, in FP64.
fn sums<T: Real>(values: &[T], origin: f64, pace: &mut Pace) -> Result<[f64; 2]> {
    let mut sums = [0.0; 2];
    for values in values.chunks(PART) {
        pace.spend(values.len() as u64)?;
        let found = pulp::Arch::new().dispatch(Sums { values, origin });
        sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
    }
    Ok(sums)
}

struct Sums<'v, T> {
    values: &'v [T],
    origin: f64,
}

impl<T: Real> pulp::WithSimd for Sums<'_, T> {
    type Output = [f64; 2];

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> [f64; 2] {
        /// Number of sums that are in flight, so that the loop vectorizes.
        const LANES: usize = 16;
        let (chunks, rest) = self.values.as_chunks::<LANES>();
        let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
        for chunk in chunks {
            for lane in 0..LANES {
                let distance = chunk[lane].into() - self.origin;
                sums[lane] += distance;
                squares[lane] += distance * distance;
            }
        }
        for (lane, &x) in rest.iter().enumerate() {
            let distance = x.into() - self.origin;
            sums[lane] += distance;
            squares[lane] += distance * distance;
        }
        [sums, squares].map(|lanes| lanes.iter().sum())
    }
}

/// Adds the elements of a line to the sum of their group, or to one sum each.
fn add<T: Real>(line: &[T], totals: &mut [f64], pace: &mut Pace) -> Result<()> {
    if let [total] = totals {
        *total += sums(line, 0.0, pace)?[0];
        return Ok(());
    }
    pace.pairs(line, totals, |line, totals| {
        let pairs = totals.iter_mut().zip(line);
        pairs.for_each(|(total, &x)| *total += x.into());
    })
}

/// Adds the squared distances of a line's elements from their means like [`add`].
fn add_squares<T: Real>(line: &[T], means: &[f64], totals: &mut [f64], pace: &mut Pace) -> Result<()> {
    if let ([mean], [total]) = (means, &mut *totals) {
        *total += sums(line, *mean, pace)?[1];
        return Ok(());
    }
    for ((line, means), totals) in line
        .chunks(PART)
        .zip(means.chunks(PART))
        .zip(totals.chunks_mut(PART))
    {
        pace.spend(line.len() as u64)?;
        for ((&x, mean), total) in line.iter().zip(means).zip(totals) {
            *total += (x.into() - mean).powi(2);
        }
    }
    Ok(())
}

/// Multiplies the distances of a line's elements from their means by the inverses of their standard
/// deviations. There is one of each for all elements, or one for each element.
fn standardize<T: Real>(
    from: &[T],
    to: &mut [T],
    [means, inverses]: [&[f64]; 2],
    pace: &mut Pace,
) -> Result<()> {
    if let ([mean], [inverse]) = (means, inverses) {
        for (from, to) in from.chunks(PART).zip(to.chunks_mut(PART)) {
            to.copy_from_slice(from);
            adjust(to, |x| (x - mean) * inverse, pace)?;
        }
        return Ok(());
    }
    let lines = from.chunks(PART).zip(to.chunks_mut(PART));
    let statistics = means.chunks(PART).zip(inverses.chunks(PART));
    for ((from, to), (means, inverses)) in lines.zip(statistics) {
        pace.spend(from.len() as u64)?;
        let pairs = to.iter_mut().zip(from);
        for ((y, &x), (mean, inverse)) in pairs.zip(means.iter().zip(inverses)) {
            *y = T::of((x.into() - mean) * inverse);
        }
    }
    Ok(())
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
