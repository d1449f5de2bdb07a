//! `MaxPool`. tract starts at the least finite number, which is then its answer for infinities, loses NaN, and does not say where
//! the least of all integers stands.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    tract_core::ops::cnn::{MaxPool as TractMaxPool, PoolSpec},
};

use super::{
    elements::{Element, elements, of_type, tensor},
    kernel::{Fact, Kernel, typed},
    pooling::{self, Axis},
};
use crate::cancelling::Pace;

/// Takes the place of tract's in a plan.
pub(super) fn replace(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes.len() {
        let node = &model.nodes[id];
        let Some(pool) = node.op_as::<TractMaxPool>() else {
            continue;
        };
        let datum_type = model.outlet_fact(node.inputs[0])?.datum_type;
        if matches!(
            datum_type,
            DatumType::F32 | DatumType::F64 | DatumType::I8 | DatumType::U8
        ) {
            let op = op(pool.pool_spec.clone(), pool.with_index_outputs);
            model.nodes[id].op = Box::new(op);
        }
    }
    Ok(())
}

/// A pool of FP32, FP64, INT8 or UINT8; with a second output of this type, if there is one.
pub(super) fn op(spec: PoolSpec, places: Option<DatumType>) -> impl TypedOp {
    typed(MaxPool { spec, places })
}

#[derive(Debug)]
struct MaxPool {
    spec: PoolSpec,
    /// The type of the second output: where in its image each of the greatest numbers stands.
    places: Option<DatumType>,
}

impl Kernel for MaxPool {
    fn name(&self) -> &'static str {
        "MaxPool"
    }

    fn output_count(&self) -> usize {
        1 + usize::from(self.places.is_some())
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let shape = self.spec.output_shape(&inputs[0].shape)?.shape;
        let types = [Some(inputs[0].datum_type), self.places];
        let facts = types.into_iter().flatten();
        Ok(facts
            .map(|datum_type| Fact::new(datum_type, shape.iter().cloned()))
            .collect())
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let (axes, depth) = Axis::of(&self.spec, inputs[0].shape())?;
        let shape = self.spec.output_shape(inputs[0].shape())?.shape;
        let (greatest, places) = pooled(&inputs[0], &axes, depth, &shape, self.places.is_some())?;
        let mut made = tvec![greatest];
        if let (Some(places), Some(datum_type)) = (places, self.places) {
            made.push(of_type(tensor::<i64>(&shape, places)?, datum_type)?);
        }
        Ok(made)
    }
}

/// The greatest numbers of windows, and where in its image each of them stands, if that is wanted. `depth` numbers stand at
/// each position of an image.
pub(super) fn pooled(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    wants_places: bool,
) -> TractResult<(Tensor, Option<Vec<i64>>)> {
    macro_rules! pooled {
        ($least:expr) => {
            pooled_from(input, axes, depth, shape, wants_places, $least)
        };
    }
    match input.datum_type() {
        DatumType::F32 => pooled!(f32::NEG_INFINITY),
        DatumType::F64 => pooled!(f64::NEG_INFINITY),
        DatumType::I8 => pooled!(i8::MIN),
        DatumType::U8 => pooled!(u8::MIN),
        other => bail!("a pool of {other:?}"),
    }
}

fn pooled_from<T: Element + Copy + PartialOrd>(
    input: &Tensor,
    axes: &[Axis],
    depth: usize,
    shape: &[usize],
    wants_places: bool,
    least: T,
) -> TractResult<(Tensor, Option<Vec<i64>>)> {
    let numbers = elements::<T>(input)?;
    let mut greatest = vec![least; shape.iter().product()];
    if !wants_places {
        let take = |greatest: T, number: T| match is_kept(greatest, number) {
            true => greatest,
            false => number,
        };
        pooling::fold(axes, depth, numbers, &mut greatest, take)?;
        return Ok((tensor(shape, greatest)?, None));
    }
    let mut places = vec![-1; greatest.len()];
    find_places(axes, depth, numbers, &mut greatest, &mut places)?;
    Ok((tensor(shape, greatest)?, Some(places)))
}

/// The first of the greatest numbers of each window, and where in its image it stands.
fn find_places<T: Copy + PartialOrd>(
    axes: &[Axis],
    depth: usize,
    images: &[T],
    greatest: &mut [T],
    places: &mut [i64],
) -> TractResult<()> {
    let image = axes.iter().map(|axis| axis.size).product::<usize>() * depth;
    let result = axes.iter().map(|axis| axis.count).product::<usize>() * depth;
    let (Some((last, outer)), true) = (axes.split_last(), image > 0 && result > 0) else {
        return Ok(());
    };
    let results = greatest
        .chunks_exact_mut(result)
        .zip(places.chunks_exact_mut(result));
    // Of each window along the last axis: the first place in the image, and how many there are.
    let taken: Vec<(usize, usize)> = (0..last.count)
        .map(|window| {
            let mut places = last.taken(window);
            let count = places.len();
            (places.next().unwrap_or(0), count)
        })
        .collect();
    let mut lines = Vec::new();
    let mut pace = Pace::default();
    for (image, (greatest, places)) in images.chunks_exact(image).zip(results) {
        let results = greatest
            .chunks_exact_mut(last.count * depth)
            .zip(places.chunks_exact_mut(last.count * depth));
        for (at, (greatest, places)) in results.enumerate() {
            lines.clear();
            add_lines(outer, at, 0, &mut lines);
            let windows = greatest
                .chunks_exact_mut(depth)
                .zip(places.chunks_exact_mut(depth));
            for ((greatest, places), &(first, count)) in windows.zip(&taken) {
                pace.spend(((count * lines.len() + 1) * depth) as u64)?;
                for line in &lines {
                    for step in 0..count {
                        let place = line * last.size + first + step * last.dilation;
                        let numbers = &image[place * depth..][..depth];
                        for ((greatest, at), &number) in greatest.iter_mut().zip(&mut *places).zip(numbers) {
                            if *at < 0 || !is_kept(*greatest, number) {
                                (*greatest, *at) = (number, place as i64);
                            }
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Adds the lines of the image that the windows of a line of results cover. A list of them for all lines of results could
/// be larger than the image.
fn add_lines(axes: &[Axis], result_line: usize, line: usize, lines: &mut Vec<usize>) {
    let Some((axis, inner)) = axes.split_first() else {
        lines.push(line);
        return;
    };
    let below: usize = inner.iter().map(|axis| axis.count).product();
    for place in axis.taken(result_line / below) {
        add_lines(inner, result_line % below, line * axis.size + place, lines);
    }
}

/// The number of a place when the first axis is counted first, from that when the last one is.
pub(super) fn by_columns(mut place: usize, sizes: &[usize]) -> usize {
    let mut result = 0;
    for (axis, &size) in sizes.iter().enumerate().rev() {
        let before: usize = sizes[..axis].iter().product();
        result += place % size.max(1) * before;
        place /= size.max(1);
    }
    result
}

/// Whether a value stays the greatest beside another one. A NaN does.
#[inline(always)]
#[expect(clippy::eq_op, reason = "NaN")]
fn is_kept<T: Copy + PartialOrd>(greatest: T, value: T) -> bool {
    greatest >= value || greatest != greatest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tract_hir::tract_core::ops::{cnn::PaddingSpec, nn::DataFormat};

    use super::*;

    fn spec(
        data_format: DataFormat,
        kernel: &[usize],
        stride: usize,
        dilation: usize,
        pad: usize,
    ) -> PoolSpec {
        PoolSpec {
            data_format,
            kernel_shape: kernel.into(),
            padding: PaddingSpec::ExplicitOnnxPool(tvec![pad; kernel.len()], tvec![pad; kernel.len()], false),
            dilations: Some(tvec![dilation; kernel.len()]),
            strides: Some(tvec![stride; kernel.len()]),
            input_channels: 2,
            output_channels: 2,
        }
    }

    /// Values and places as tract has them, and as they are computed here.
    fn both(spec: &PoolSpec, shape: &[usize]) -> [TVec<Tensor>; 2] {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|at| (at * 67 % 211) as f32 - 99.0).collect();
        let input = Tensor::from_shape(shape, &values).unwrap().into_arc_tensor();
        let places = Some(DatumType::I64);
        let tract = TractMaxPool::new(spec.clone(), places);
        let found = tract.eval(&EvalContext::out_of_plan(), tvec![input.clone().into_tvalue()]);
        let found = found.unwrap().into_iter().map(TValue::into_tensor).collect();
        let spec = spec.clone();
        let ours = MaxPool { spec, places }.run(&[input]).unwrap();
        [found, ours]
    }

    #[test]
    fn finite_numbers_and_their_places_are_those_of_tract() {
        for stride in 1..4 {
            for dilation in 1..3 {
                for pad in 0..2 {
                    let cases: [(DataFormat, &[usize], &[usize]); 6] = [
                        (DataFormat::NCHW, &[2, 3], &[2, 2, 7, 9]),
                        (DataFormat::NCHW, &[3], &[2, 2, 9]),
                        (DataFormat::NCHW, &[2, 2, 2], &[1, 2, 5, 4, 6]),
                        (DataFormat::NHWC, &[2, 3], &[2, 7, 9, 2]),
                        (DataFormat::CHW, &[2, 2], &[2, 5, 6]),
                        (DataFormat::HWC, &[2, 2], &[5, 6, 2]),
                    ];
                    for (format, kernel, shape) in cases {
                        let spec = spec(format, kernel, stride, dilation, pad);
                        let [tract, ours] = both(&spec, shape);
                        assert_eq!(tract, ours, "{spec:?}");
                        let alone = MaxPool { spec, places: None };
                        let count: usize = shape.iter().product();
                        let values: Vec<f32> = (0..count).map(|at| (at * 67 % 211) as f32 - 99.0).collect();
                        let input = Tensor::from_shape(shape, &values).unwrap();
                        assert_eq!(alone.run(&[input.into_arc_tensor()]).unwrap()[0], ours[0]);
                    }
                }
            }
        }
    }

    #[test]
    fn places_are_counted_by_columns() {
        for row in 0..2 {
            for column in 0..3 {
                assert_eq!(by_columns(row * 3 + column, &[2, 3]), row + column * 2);
            }
        }
        let (a, b, c) = (1, 2, 3);
        assert_eq!(by_columns((a * 3 + b) * 4 + c, &[2, 3, 4]), a + b * 2 + c * 6);
    }

    #[test]
    fn infinities_and_nan_are_kept() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let line = [-inf, -inf, -inf, 1.0, nan, 2.0, 3.0, nan];
        let mut spec = spec(DataFormat::NCHW, &[2], 2, 1, 0);
        (spec.input_channels, spec.output_channels) = (1, 1);
        for places in [None, Some(DatumType::I64)] {
            let pool = MaxPool {
                spec: spec.clone(),
                places,
            };
            let input = Tensor::from_shape(&[1, 1, 8], &line).unwrap().into_arc_tensor();
            let outputs = pool.run(&[input]).unwrap();
            let found = elements::<f32>(&outputs[0]).unwrap();
            assert_eq!(found[..2], [-inf, 1.0]);
            assert!(found[2].is_nan() && found[3].is_nan());
            if let Some(places) = outputs.get(1) {
                assert_eq!(elements::<i64>(places).unwrap(), [0, 3, 4, 7]);
            }
        }
    }

    #[test]
    fn nothing_gives_nothing() {
        let spec = spec(DataFormat::NCHW, &[2], 1, 1, 0);
        let input = Tensor::zero::<f32>(&[0, 2, 4]).unwrap().into_arc_tensor();
        let outputs = MaxPool { spec, places: None }.run(&[input]).unwrap();
        assert_eq!(outputs[0].shape(), [0, 2, 3]);
        // A list of the lines of each window would take terabytes.
        let spec = self::spec(DataFormat::NCHW, &[3, 1], 1, 1, 0);
        let input = Tensor::zero::<f32>(&[0, 2, 1 << 36, 1])
            .unwrap()
            .into_arc_tensor();
        let outputs = MaxPool { spec, places: None }.run(&[input]).unwrap();
        assert_eq!(outputs[0].shape(), [0, 2, (1 << 36) - 2, 1]);
    }
}
