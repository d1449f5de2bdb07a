//! `MaxPool`. tract starts at the least finite number, which is then its answer for infinities, loses NaN, and does not say where
//! the least of all integers stands.

use std::sync::Arc;

use tract_hir::{
    internal::*,
    tract_core::ops::cnn::{MaxPool as TractMaxPool, OptMaxPool, PoolSpec},
};

use super::{
    elements::{Element, elements, tensor},
    kernel::{Fact, Kernel, typed},
};

/// Takes the place of tract's in a plan.
pub(super) fn quicken(model: &mut TypedModel) -> TractResult<()> {
    for id in 0..model.nodes.len() {
        let node = &model.nodes[id];
        let pool = if let Some(pool) = node.op_as::<OptMaxPool>() {
            (&pool.pool_spec, pool.with_index_outputs)
        } else if let Some(pool) = node.op_as::<TractMaxPool>() {
            (&pool.pool_spec, pool.with_index_outputs)
        } else {
            continue;
        };
        let datum_type = model.outlet_fact(node.inputs[0])?.datum_type;
        if matches!(
            datum_type,
            DatumType::F32 | DatumType::F64 | DatumType::I8 | DatumType::U8
        ) {
            let (spec, places) = (pool.0.clone(), pool.1);
            model.nodes[id].op = Box::new(typed(MaxPool { spec, places }));
        }
    }
    Ok(())
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
        match inputs[0].datum_type() {
            DatumType::F64 => self.pool(&inputs[0], f64::NEG_INFINITY),
            DatumType::I8 => self.pool(&inputs[0], i8::MIN),
            DatumType::U8 => self.pool(&inputs[0], u8::MIN),
            _ => self.pool(&inputs[0], f32::NEG_INFINITY),
        }
    }
}

impl MaxPool {
    fn pool<T: Element + Copy + PartialOrd>(&self, input: &Tensor, least: T) -> TractResult<TVec<Tensor>> {
        let spec = &self.spec;
        let shape = spec.data_format.shape::<usize, _>(input.shape())?;
        let output_shape = spec.output_shape(input.shape())?.shape;
        // Elements that lie side by side at one position.
        let depth = if spec.data_format.c_is_last() {
            *shape.c()
        } else {
            1
        };
        let sizes = shape.hw_dims();
        let padding = spec.computed_padding(sizes).into_iter();
        let axes: Vec<Axis> = padding
            .enumerate()
            .map(|(axis, padded)| Axis {
                size: sizes[axis],
                count: padded.convoluted,
                kernel: spec.kernel_shape[axis],
                stride: spec.stride(axis),
                dilation: spec.dilation(axis),
                pad: padded.pad_before,
            })
            .collect();
        let Some((last, outer)) = axes.split_last() else {
            bail!("a pool without dimensions");
        };
        let windows = Windows {
            outer,
            spans: last.spans(),
            width: last.size * depth,
            result: last.count * depth,
            stride: last.stride,
            depth,
        };
        let input = elements::<T>(input)?;
        let count = output_shape.iter().product();
        let mut greatest = vec![least; count];
        let mut places = vec![-1; if self.places.is_some() { count } else { 0 }];
        let result_lines: usize = outer.iter().map(|axis| axis.count).product();
        let (image, result) = (
            sizes.iter().product::<usize>() * depth,
            result_lines * windows.result,
        );
        if image > 0 && result > 0 {
            let images = input.chunks_exact(image);
            if self.places.is_none() {
                let images = images.zip(greatest.chunks_exact_mut(result));
                images.for_each(|(image, greatest)| windows.values(image, greatest));
            } else {
                let results = greatest
                    .chunks_exact_mut(result)
                    .zip(places.chunks_exact_mut(result));
                images
                    .zip(results)
                    .for_each(|(image, (greatest, places))| windows.places(image, greatest, places));
            }
        }
        let mut outputs = tvec![tensor(&output_shape, greatest)?];
        if let Some(datum_type) = self.places {
            let places = tensor::<i64>(&output_shape, places)?;
            outputs.push(places.cast_to_dt(datum_type)?.into_owned());
        }
        Ok(outputs)
    }
}

/// The windows along one axis.
struct Axis {
    size: usize,
    /// How many there are.
    count: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pad: usize,
}

impl Axis {
    /// Places that the window at `at` takes in.
    fn taken(&self, at: usize) -> impl Iterator<Item = usize> {
        let start = at * self.stride;
        let first = self.pad.saturating_sub(start).div_ceil(self.dilation);
        let end = (self.size + self.pad)
            .saturating_sub(start)
            .div_ceil(self.dilation);
        (first..end.min(self.kernel)).map(move |tap| start + tap * self.dilation - self.pad)
    }

    /// The windows that have each of their places within the image.
    fn spans(&self) -> Vec<Span> {
        let furthest = self.count.saturating_sub(1) * self.stride;
        let first = self.pad.saturating_sub(furthest).div_ceil(self.dilation);
        let end = (self.size + self.pad).div_ceil(self.dilation).min(self.kernel);
        let spans = (first..end).map(|tap| {
            let ahead = tap * self.dilation;
            let first = self.pad.saturating_sub(ahead).div_ceil(self.stride);
            let end = (self.size + self.pad - ahead)
                .div_ceil(self.stride)
                .min(self.count);
            Span {
                first,
                end,
                start: (first * self.stride + ahead).saturating_sub(self.pad),
            }
        });
        spans.filter(|span| span.first < span.end).collect()
    }
}

/// Windows `first..end` have this place of theirs in the image, the first of them at `start`.
struct Span {
    first: usize,
    end: usize,
    start: usize,
}

/// Adds the lines of the image that the windows of a line of results take in. A list of them for all lines of results could
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

/// All windows of an image.
struct Windows<'a> {
    /// All axes but the last one.
    outer: &'a [Axis],
    spans: Vec<Span>,
    /// Elements in a line of the image and of the result.
    width: usize,
    result: usize,
    stride: usize,
    depth: usize,
}

impl Windows<'_> {
    /// The lines of the image that a line of results is made of, in the place of those that `lines` had.
    fn find_lines(&self, result_line: usize, lines: &mut Vec<usize>) {
        lines.clear();
        add_lines(self.outer, result_line, 0, lines);
    }

    fn values<T: Copy + PartialOrd>(&self, image: &[T], greatest: &mut [T]) {
        let mut lines = Vec::new();
        pulp::Arch::new().dispatch(|| {
            for (at, result) in greatest.chunks_exact_mut(self.result).enumerate() {
                self.find_lines(at, &mut lines);
                for line in &lines {
                    let line = &image[line * self.width..][..self.width];
                    for span in &self.spans {
                        let result = &mut result[span.first * self.depth..span.end * self.depth];
                        let taps = &line[span.start * self.depth..];
                        fold(result, taps, self.stride, self.depth);
                    }
                }
            }
        });
    }

    /// The first of the greatest, and where in its image it stands.
    fn places<T: Copy + PartialOrd>(&self, image: &[T], greatest: &mut [T], places: &mut [i64]) {
        let results = greatest
            .chunks_exact_mut(self.result)
            .zip(places.chunks_exact_mut(self.result));
        let mut lines = Vec::new();
        for (at, (result, places)) in results.enumerate() {
            self.find_lines(at, &mut lines);
            for (line, span) in lines
                .iter()
                .flat_map(|line| self.spans.iter().map(move |span| (line, span)))
            {
                for (index, window) in (span.first..span.end).enumerate() {
                    let tap = line * self.width / self.depth + span.start + index * self.stride;
                    for channel in 0..self.depth {
                        let at = window * self.depth + channel;
                        let value = image[tap * self.depth + channel];
                        if places[at] < 0 || !is_kept(result[at], value) {
                            (result[at], places[at]) = (value, tap as i64);
                        }
                    }
                }
            }
        }
    }
}

/// Folds what stands `stride` places apart into results.
#[inline(always)]
fn fold<T: Copy + PartialOrd>(results: &mut [T], taps: &[T], stride: usize, depth: usize) {
    let take = |result: &mut T, tap: &T| *result = if is_kept(*result, *tap) { *result } else { *tap };
    if stride == 1 {
        results
            .iter_mut()
            .zip(taps)
            .for_each(|(result, tap)| take(result, tap));
    } else if depth > 1 {
        let pixels = results.chunks_exact_mut(depth).zip(taps.chunks(stride * depth));
        for (results, taps) in pixels {
            results
                .iter_mut()
                .zip(taps)
                .for_each(|(result, tap)| take(result, tap));
        }
    } else if stride == 2 {
        let (pairs, rest) = taps.as_chunks::<2>();
        let count = results.len().min(pairs.len());
        let (results, last) = results.split_at_mut(count);
        results
            .iter_mut()
            .zip(pairs)
            .for_each(|(result, pair)| take(result, &pair[0]));
        last.iter_mut()
            .zip(rest)
            .for_each(|(result, tap)| take(result, tap));
    } else {
        let taps = taps.iter().step_by(stride);
        results
            .iter_mut()
            .zip(taps)
            .for_each(|(result, tap)| take(result, tap));
    }
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
