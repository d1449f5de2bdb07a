//! The operator `GridSample` of images and volumes, with ONNX Runtime's behavior at borders and for NaN.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{Unsupported, ensure_input},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{elements, of_type},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `GridSample`.
pub fn grid_sample(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let method = match attributes.text("mode", "linear") {
        "linear" | "bilinear" => Method::Linear,
        "nearest" => Method::Nearest,
        "cubic" | "bicubic" => Method::Cubic,
        other => bail!(Unsupported::Anywhere(format!(
            "the attribute 'mode' is '{other}', expected linear, nearest or cubic"
        ))),
    };
    let outside = match attributes.text("padding_mode", "zeros") {
        "zeros" => Outside::Zero,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => bail!(Unsupported::Anywhere(format!(
            "the padding_mode is '{other}', expected zeros, border or reflection"
        ))),
    };
    Ok(kernel(GridSample {
        method,
        outside,
        aligns_corners: attributes.int("align_corners", 0) != 0,
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Nearest,
    Linear,
    Cubic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outside {
    Zero,
    Border,
    Reflection,
}

#[derive(Debug)]
struct GridSample {
    method: Method,
    outside: Outside,
    aligns_corners: bool,
}

/// The indices and weights of the elements that a sample reads along an axis. An index is `None` for an
/// element outside of the image, which counts as zero.
type AxisWeights = SmallVec<[(Option<usize>, f32); 4]>;

/// The offsets and weights of the elements that a sample reads: at most four along each axis of an image, or
/// two along each axis of a volume.
type Weights = SmallVec<[(usize, f32); 16]>;

impl GridSample {
    /// Returns the coordinates at which an axis of `size` elements reflects.
    fn bounds(&self, size: usize) -> (f32, f32) {
        match self.aligns_corners {
            true => (0.0, size as f32 - 1.0),
            false => (-0.5, size as f32 - 0.5),
        }
    }

    /// Converts a coordinate in -1..=1 to a coordinate in elements of an axis of `size` elements.
    fn place(&self, x: f32, size: usize) -> f32 {
        let length = size as f32;
        let place = match self.aligns_corners {
            true => (x + 1.0) / 2.0 * (length - 1.0),
            false => ((x + 1.0) * length - 1.0) / 2.0,
        };
        // ONNX Runtime replaces coordinates beyond this limit, and NaN, with the lower bound.
        const BEYOND: f32 = i64::MAX as f32;
        if place > -BEYOND && place < BEYOND {
            place
        } else {
            self.bounds(size).0
        }
    }

    /// Returns the index of the element at coordinate `place`; `None` if it counts as zero.
    fn element(&self, place: f32, size: usize) -> Option<usize> {
        let last = size as f32 - 1.0;
        let inside = match self.outside {
            Outside::Zero if place < 0.0 || place > last => return None,
            Outside::Zero | Outside::Border => place,
            Outside::Reflection => reflected(place, self.bounds(size)),
        };
        // The size of a very long axis may be rounded up.
        Some((inside.clamp(0.0, last) as usize).min(size - 1))
    }

    /// Writes the elements that the sample at `places` reads, with their weights. Coordinates are in the order
    /// x, y, z, which is the reverse order of the axes.
    fn weigh(&self, places: &[f32], sizes: &[usize], weights: &mut Weights) {
        weights.clear();
        match (places, sizes) {
            (&[x, y], &[height, width]) => {
                let [y, x] = self.places([y, x], [height, width]);
                let inside = between_four(x, y, width, height).filter(|_| self.method == Method::Linear);
                if let Some(inside) = inside {
                    weights.extend(inside);
                    return;
                }
                let (lines, columns) = (self.along_axis(y, height), self.along_axis(x, width));
                weights.extend(crossed(present(&lines), &columns, width));
            }
            (&[x, y, z], &[depth, height, width]) => {
                let [z, y, x] = self.places([z, y, x], [depth, height, width]);
                let (layers, lines) = (self.along_axis(z, depth), self.along_axis(y, height));
                let columns = self.along_axis(x, width);
                let lines = crossed(present(&layers), &lines, height);
                weights.extend(crossed(lines, &columns, width));
            }
            _ => {}
        }
    }

    /// Returns the coordinates of a sample in elements.
    fn places<const AXES: usize>(&self, places: [f32; AXES], sizes: [usize; AXES]) -> [f32; AXES] {
        let mut places: [f32; AXES] = std::array::from_fn(|axis| self.place(places[axis], sizes[axis]));
        if self.method == Method::Nearest {
            places = places.map(f32::round_ties_even);
        }
        let is_outside = |(&place, &size): (&f32, &usize)| {
            let (low, high) = self.bounds(size);
            place < low || place > high
        };
        // If the coordinate of one axis is outside, the coordinates of all axes are reflected.
        if self.outside == Outside::Reflection && places.iter().zip(&sizes).any(is_outside) {
            for (place, size) in places.iter_mut().zip(sizes) {
                *place = reflected(*place, self.bounds(size));
            }
        }
        places
    }

    /// Returns the elements and weights along an axis of `size` elements, at coordinate `place`.
    fn along_axis(&self, place: f32, size: usize) -> AxisWeights {
        let floor = place.floor();
        let part = place - floor;
        match self.method {
            Method::Nearest => smallvec![(self.element(place, size), 1.0)],
            Method::Linear => smallvec![
                (self.element(floor, size), 1.0 - part),
                (self.element(floor + 1.0, size), part)
            ],
            Method::Cubic => {
                let weights = cubic(part).into_iter().zip([-1.0, 0.0, 1.0, 2.0]);
                weights
                    .map(|(weight, at)| (self.element(floor + at, size), weight))
                    .collect()
            }
        }
    }
}

/// Returns the elements along an axis that are not outside.
fn present(along: &AxisWeights) -> impl Iterator<Item = (usize, f32)> {
    along
        .iter()
        .filter_map(|&(element, weight)| Some((element?, weight)))
}

/// Returns the offsets and weights of the elements `inner` along an axis of `size` elements, for each of those along
/// the axes before.
fn crossed(
    outer: impl Iterator<Item = (usize, f32)>,
    inner: &AxisWeights,
    size: usize,
) -> impl Iterator<Item = (usize, f32)> {
    outer.flat_map(move |(offset, weight)| {
        present(inner).map(move |(element, part)| (offset * size + element, weight * part))
    })
}

/// Returns the offsets and weights of the four elements around a point of an image; `None` if one of them is
/// outside of the image.
fn between_four(x: f32, y: f32, width: usize, height: usize) -> Option<[(usize, f32); 4]> {
    if x < 0.0 || y < 0.0 {
        return None;
    }
    // Neither coordinate is negative, so the conversion rounds down.
    let (column, line) = (x as usize, y as usize);
    if column >= width - 1 || line >= height - 1 {
        return None;
    }
    let (right, below) = (x - column as f32, y - line as f32);
    let (left, above) = (1.0 - right, 1.0 - below);
    let first = line * width + column;
    Some([
        (first, above * left),
        (first + 1, above * right),
        (first + width, below * left),
        (first + width + 1, below * right),
    ])
}

/// Reflects a coordinate at the bounds until it is inside.
fn reflected(place: f32, (low, high): (f32, f32)) -> f32 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    let beyond = if place < low {
        low - place
    } else if place > high {
        place - high
    } else {
        return place;
    };
    let times = (beyond / range).trunc();
    let rest = beyond - times * range;
    match (place < low, times % 2.0 == 0.0) {
        (true, true) | (false, false) => low + rest,
        (true, false) | (false, true) => high - rest,
    }
}

/// Returns the cubic weights of four elements, for a point at distance `s` after the second one.
fn cubic(s: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let outer = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let inner = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    [outer(s + 1.0), inner(s), inner(1.0 - s), outer(2.0 - s)]
}

/// The number of points whose weights are computed at a time. Each channel then reads and writes a part of
/// its image that is near.
const POINTS: usize = 64;

impl Kernel for GridSample {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, grid] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let rank = input.rank();
        // A size that is unknown before the run is checked when the node runs.
        let may_fit = |dim: &Dim| dim.to_i64().is_none_or(|size| size == rank as i64 - 2);
        ensure!(
            rank == grid.rank() && grid.shape.last().is_some_and(may_fit),
            "the grid does not fit the input"
        );
        let is_float = |fact: &&Fact| matches!(fact.element_type, ElementType::F32 | ElementType::F16);
        if let Some(other) = [input, grid].into_iter().find(|fact| !is_float(fact)) {
            bail!(Unsupported::but_for_fp64(
                other.element_type,
                "is supported for FP32 only"
            ));
        }
        if !matches!(rank, 4 | 5) || (rank == 5 && self.method == Method::Cubic) {
            bail!(Unsupported::Here(
                "is supported for images and volumes, and cubic interpolation for images only".to_owned()
            ));
        }
        let mut output = input.with(input.element_type);
        output.shape[2..].clone_from_slice(&grid.shape[1..rank - 1]);
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let [input, grid] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        let element_type = input.element_type();
        let (input, grid) = (input.cast_to::<f32>()?, grid.cast_to::<f32>()?);
        let (shape, rank) = (input.shape(), input.rank());
        let (batch, channels, sizes) = (shape[0], shape[1], &shape[2..]);
        let grids = grid.shape()[0];
        ensure_input!(grids == batch, "{grids} grids for {batch} images");
        let coordinates = grid.shape()[rank - 1];
        ensure_input!(
            coordinates == rank - 2,
            "a grid of {coordinates} coordinates for images of {} dimensions",
            rank - 2
        );
        let mut output = shape[..2].to_vec();
        output.extend(&grid.shape()[1..rank - 1]);
        let (values, places) = (elements::<f32>(&input)?, elements::<f32>(&grid)?);
        let (inner, axes) = (sizes.iter().product::<usize>(), rank - 2);
        let outer: usize = output[2..].iter().product();
        let mut made = Tensor::zero::<f32>(&output)?;
        if inner == 0 {
            return Ok(smallvec![of_type(made, element_type)?]);
        }
        let sampled = made.as_slice_mut::<f32>()?;
        let mut pace = Pace::default();
        let mut weights = vec![Weights::new(); POINTS];
        for image in 0..batch {
            let values = &values[image * channels * inner..(image + 1) * channels * inner];
            let sampled = &mut sampled[image * channels * outer..(image + 1) * channels * outer];
            let places = &places[image * outer * axes..(image + 1) * outer * axes];
            for (block, places) in places.chunks(POINTS * axes).enumerate() {
                let points = block * POINTS..block * POINTS + places.len() / axes;
                for (weights, places) in weights.iter_mut().zip(places.chunks_exact(axes)) {
                    self.weigh(places, sizes, weights);
                }
                pace.spend(64 * points.len() as u64)?;
                let terms: usize = weights[..points.len()].iter().map(SmallVec::len).sum();
                let channels = values.chunks_exact(inner).zip(sampled.chunks_exact_mut(outer));
                for (values, sampled) in channels {
                    let sampled = &mut sampled[points.clone()];
                    pace.spend((terms + points.len()) as u64)?;
                    for (sum, weights) in sampled.iter_mut().zip(&weights) {
                        *sum = weighted_sum(values, weights);
                    }
                }
            }
        }
        Ok(smallvec![of_type(made, element_type)?])
    }
}

/// Returns the sum of `values` at the offsets, times the weights.
fn weighted_sum(values: &[f32], weights: &Weights) -> f32 {
    let product = |&(offset, weight): &(usize, f32)| weight * values[offset];
    match weights.as_slice() {
        // The usual number, without a loop.
        [a, b, c, d] => product(a) + product(b) + product(c) + product(d),
        others => others.iter().map(product).sum(),
    }
}
