//! `AveragePool`: tract goes through the elements of each window one by one.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    tract_core::ops::cnn::{PaddingSpec, PoolSpec, SumPool},
};

use super::{
    elements::{Real, elements, tensor, with_real},
    kernel::{Fact, Kernel, typed},
    pooling::{self, Axis},
};
use crate::size;

/// Takes the place of tract's in a plan.
pub(super) fn replace(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes.len() {
        let node = &model.nodes[id];
        let Some(pool) = node.op_as::<SumPool>() else {
            continue;
        };
        let datum_type = model.outlet_fact(node.inputs[0])?.datum_type;
        if pool.normalize && matches!(datum_type, DatumType::F32 | DatumType::F64) {
            let op = op(pool.pool_spec.clone(), pool.count_include_pad);
            model.nodes[id].op = Box::new(op);
        }
    }
    Ok(())
}

/// A pool of FP32 or FP64.
pub(super) fn op(spec: PoolSpec, counts_padding: bool) -> impl TypedOp {
    typed(AveragePool { spec, counts_padding })
}

#[derive(Debug)]
struct AveragePool {
    spec: PoolSpec,
    /// Whether what stands before and behind an image counts, as zeros.
    counts_padding: bool,
}

impl Kernel for AveragePool {
    fn name(&self) -> &'static str {
        "AveragePool"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let shape = self.spec.output_shape(&inputs[0].shape)?.shape;
        Ok(vec![Fact::new(inputs[0].datum_type, shape)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (axes, depth) = Axis::of(&self.spec, inputs[0].shape())?;
        let shape = self.spec.output_shape(inputs[0].shape())?.shape;
        let counted = |index: usize, axis: &Axis, at: usize| self.counted(index, axis, at);
        Ok(tvec![averages(&inputs[0], &axes, depth, &shape, counted)?])
    }
}

/// The averages of windows, with `depth` numbers at each position of an image. `counted` says, for an axis and a window, by how many
/// elements along it the sum is divided.
pub(super) fn averages(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    counted: impl Fn(usize, &Axis, usize) -> usize,
) -> TractResult<Tensor> {
    with_real!(input.datum_type(), T => averages_of::<T>(input, axes, depth, shape, counted))
}

fn averages_of<T: Real + Default + std::ops::DivAssign>(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    counted: impl Fn(usize, &Axis, usize) -> usize,
) -> TractResult<Tensor> {
    let mut averages = vec![T::default(); shape.iter().product()];
    if averages.is_empty() {
        return tensor(shape, averages);
    }
    pooling::fold(axes, depth, elements::<T>(input)?, &mut averages, |sum, x| {
        sum + x
    })?;
    // How many elements each of an image's windows has.
    let windows: usize = axes.iter().map(|axis| axis.count).product();
    size::admit_now(windows as u64 * 16)?;
    let mut counts = vec![1];
    for (index, axis) in axes.iter().enumerate() {
        let along: Vec<usize> = (0..axis.count).map(|at| counted(index, axis, at)).collect();
        let all = counts
            .iter()
            .flat_map(|count| along.iter().map(move |along| count * along));
        counts = all.collect();
    }
    // Of nothing, the average is 0.
    let counts: Vec<T> = counts
        .into_iter()
        .map(|count| T::of(count.max(1) as f64))
        .collect();
    pulp::Arch::new().dispatch(|| {
        for averages in averages.chunks_exact_mut((counts.len() * depth).max(1)) {
            match depth {
                1 => averages
                    .iter_mut()
                    .zip(&counts)
                    .for_each(|(sum, count)| *sum /= *count),
                _ => {
                    let positions = averages.chunks_exact_mut(depth).zip(&counts);
                    positions.for_each(|(sums, count)| sums.iter_mut().for_each(|sum| *sum /= *count));
                }
            }
        }
    });
    tensor(shape, averages)
}

impl AveragePool {
    /// Elements of a window along an axis by which its sum is divided.
    fn counted(&self, index: usize, axis: &Axis, at: usize) -> usize {
        match &self.spec.padding {
            _ if !self.counts_padding => axis.taken(at).len(),
            // The last window may reach beyond what is padded.
            PaddingSpec::ExplicitOnnxPool(_, after, true) => {
                let padded = axis.pad + axis.size + after[index];
                let room = padded.saturating_sub(at * axis.stride);
                room.div_ceil(axis.dilation).min(axis.kernel)
            }
            _ => axis.kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tract_hir::tract_core::ops::nn::DataFormat;

    use super::*;

    #[test]
    fn averages_are_those_of_tract() {
        let shapes: [(DataFormat, &[usize], &[usize]); 5] = [
            (DataFormat::NCHW, &[2, 3], &[2, 2, 7, 19]),
            (DataFormat::NCHW, &[3], &[2, 2, 9]),
            (DataFormat::NCHW, &[2, 3, 2], &[1, 2, 5, 4, 6]),
            (DataFormat::NHWC, &[2, 3], &[2, 7, 9, 2]),
            (DataFormat::HWC, &[2, 2], &[5, 6, 2]),
        ];
        for (format, kernel, shape) in shapes {
            for stride in 1..4 {
                for dilation in 1..3 {
                    for pad in 0..2 {
                        for (is_rounded_up, counts_padding) in
                            [(false, false), (false, true), (true, false), (true, true)]
                        {
                            let pads = tvec![pad; kernel.len()];
                            let spec = PoolSpec {
                                data_format: format,
                                kernel_shape: kernel.into(),
                                padding: PaddingSpec::ExplicitOnnxPool(pads.clone(), pads, is_rounded_up),
                                dilations: Some(tvec![dilation; kernel.len()]),
                                strides: Some(tvec![stride; kernel.len()]),
                                input_channels: 2,
                                output_channels: 2,
                            };
                            let count: usize = shape.iter().product();
                            let numbers: Vec<f64> = (0..count).map(|at| (at * 67 % 211) as f64).collect();
                            let input = tensor(shape, numbers).unwrap().into_arc_tensor();
                            let tract = SumPool::new(spec.clone(), counts_padding, true);
                            let context = EvalContext::out_of_plan();
                            let expected = tract.eval(&context, tvec![input.clone().into_tvalue()]);
                            let found = AveragePool { spec, counts_padding }.run(&[input]).unwrap();
                            let close = Approximation::Close;
                            let expected = expected.unwrap()[0].clone().into_tensor();
                            found[0].close_enough(&expected, close).unwrap();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn images_of_nothing_have_no_averages() {
        let spec = PoolSpec::new(
            DataFormat::NCHW,
            tvec![3, 1],
            PaddingSpec::Valid,
            None,
            None,
            2,
            2,
        );
        let pool = AveragePool {
            spec,
            counts_padding: false,
        };
        // A count for each window would take terabytes.
        let input = Tensor::zero::<f32>(&[0, 2, 1 << 36, 1]).unwrap();
        let outputs = pool.run(&[input.into_arc_tensor()]).unwrap();
        assert_eq!(outputs[0].shape(), [0, 2, (1 << 36) - 2, 1]);
    }
}
