//! `Resize` and `Upsample`, with all of ONNX's coordinate transformations.

mod attributes;
mod integers;
mod sources;
mod taps;

use std::sync::Arc;

use onnx_tensor::prelude::*;

use self::{
    attributes::{CoordinateMode, Method, Policy},
    taps::Taps,
};
use crate::{
    gather::selection::{Places, picked, picked_rows},
    least_work::ELEMENTS,
};
use onnx_tensor::{
    axis,
    elements::{elements, of_type, tensor, written},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};
use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Unsupported, ensure_input},
    node::Node,
    operator::Compute,
    size, split, threads,
};

/// Builds the operator `Resize` or `Upsample`, for all operator sets.
pub fn resize(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let opset = node.opset;
    let is_old = node.op_type == "Upsample" || opset < 11;
    let unknown = |what: String| -> Error { Unsupported::Anywhere(what).into() };
    let text = |name: &str, default: &str| attributes.text(name, default).to_owned();
    let (coordinates, method) = (
        CoordinateMode::of(attributes, is_old)?,
        Method::of(attributes, is_old)?,
    );
    let is_smooth = attributes.int("antialias", 0) != 0;
    if is_smooth && matches!(method, Method::Nearest(_)) {
        return Err(unknown(
            "antialias is supported for linear and cubic interpolation only".to_owned(),
        ));
    }
    let policy = match text("keep_aspect_ratio_policy", "stretch").as_str() {
        "stretch" => Policy::Stretch,
        "not_larger" => Policy::NotLarger,
        "not_smaller" => Policy::NotSmaller,
        other => {
            return Err(unknown(format!(
                "the keep_aspect_ratio_policy is '{other}', which is not supported"
            )));
        }
    };
    let (roi, scales, sizes) = match is_old {
        true => (None, attributes.position(1), None),
        false => (
            attributes.position(1),
            attributes.position(2),
            attributes.position(3),
        ),
    };
    let fixed = match attributes.floats("scales") {
        [] => None,
        scales => Some(scales.to_vec()),
    };
    Ok(kernel(Resize {
        method,
        coordinates,
        policy,
        is_smooth,
        excludes: attributes.int("exclude_outside", 0) != 0,
        fixed,
        axes: attributes.has("axes").then(|| attributes.ints("axes").to_vec()),
        inputs: [roi, scales, sizes],
    }))
}

#[derive(Debug)]
struct Resize {
    method: Method,
    coordinates: CoordinateMode,
    policy: Policy,
    /// `antialias`: a downsampled element averages all source elements under its filter.
    is_smooth: bool,
    /// `exclude_outside`: outside elements have weight 0 instead of repeating the border.
    excludes: bool,
    /// The scales, if they are an attribute.
    fixed: Option<Vec<f32>>,
    /// The axes of scales, sizes and regions; `None` for all.
    axes: Option<Vec<i64>>,
    /// Input indices of region, scales and sizes.
    inputs: [Option<usize>; 3],
}

/// How one axis is resized: its sizes, its scale, and the resized region.
struct Axis {
    from: usize,
    to: usize,
    scale: f32,
    region: [f32; 2],
}

/// Refuses resizes that take too much memory. Axes are resized one after another, so intermediate results can
/// be larger than the input and the output. Each axis also has a list of taps.
fn admit(plan: &[Axis]) -> Result<()> {
    let longest = plan.iter().map(|axis| axis.to).max().unwrap_or(0);
    let sizes = plan.iter().map(|axis| axis.from.max(axis.to) as u64);
    let bytes = sizes.fold(size_of::<f32>() as u64, u64::saturating_mul);
    if longest > MAX_LENGTH || bytes > size::MAX_BYTES {
        bail!(BadInput(format!(
            "resizing takes {bytes} bytes, with at most {longest} elements per axis; the limits are {} and {MAX_LENGTH}",
            size::MAX_BYTES
        )));
    }
    size::admit_now(bytes)
}

/// Cost per element, relative to a loop that reads and writes one element.
const COST: u64 = 4;

/// Resizing along one axis of an image.
struct Pass {
    taps: Taps,
    /// Number of lines along the axis, each of `inner` elements at each index.
    outer: usize,
    /// The sizes of the axis before and after.
    sizes: [usize; 2],
    inner: usize,
}

impl Pass {
    /// Resizes on several threads.
    fn apply_in_parts(&self, from: &[f32], to: &mut [f32]) -> Result<()> {
        let ([before, after], work) = (self.sizes, [to.len() as u64 * COST, ELEMENTS]);
        if self.outer > 1 {
            return split::lines(to, after * self.inner, work, |first, to, pace| {
                self.apply(&from[first * before * self.inner..], to, pace)
            });
        }
        split::lines(to, self.inner, work, |first, to, pace| {
            self.taps.apply(from, to, [self.inner, first], pace)
        })
    }

    fn apply(&self, from: &[f32], to: &mut [f32], pace: &mut Pace) -> Result<()> {
        let [before, after] = self.sizes;
        if self.inner == 1 {
            return self.taps.apply_to_rows(from, to, self.sizes, pace);
        }
        let blocks = from.chunks_exact(before * self.inner);
        for (from, to) in blocks
            .zip(to.chunks_exact_mut(after * self.inner))
            .take(self.outer)
        {
            self.taps.apply(from, to, [self.inner, 0], pace)?;
        }
        Ok(())
    }
}

/// Maximum size of a resized axis.
const MAX_LENGTH: usize = 1 << 26;

impl Resize {
    fn axes(&self, rank: usize) -> Result<Vec<usize>> {
        let Some(axes) = &self.axes else {
            return Ok((0..rank).collect());
        };
        axes.iter().map(|&axis| axis::axis(axis, rank)).collect()
    }

    /// Returns the scales; `None` if the node has none. A scale that is unknown before the run is `None`.
    fn scales(&self, inputs: &[Fact], axes: usize) -> Option<Vec<Option<f32>>> {
        if let Some(fixed) = &self.fixed {
            return Some(fixed.iter().copied().map(Some).collect());
        }
        let fact = self.inputs[1].and_then(|place| inputs.get(place))?;
        if fact.shape.iter().any(|dim| *dim == 0.to_dim()) {
            return None;
        }
        Some(match fact.floats() {
            Some(scales) => scales.into_iter().map(Some).collect(),
            None => vec![None; axes],
        })
    }

    /// Returns how each axis is resized. All dimensions in `facts` must be known.
    fn plan(&self, facts: &[Fact]) -> Result<Vec<Axis>> {
        let shape = facts[0].shape.iter();
        let shape: Vec<usize> = shape
            .map(Size::to_usize)
            .collect::<Option<_>>()
            .context("a free size")?;
        let axes = self.axes(shape.len())?;
        let mut plan: Vec<Axis> = shape
            .iter()
            .map(|&size| Axis {
                from: size,
                to: size,
                scale: 1.0,
                region: [0.0, 1.0],
            })
            .collect();
        match self.scales(facts, axes.len()) {
            Some(scales) => {
                ensure!(
                    scales.len() == axes.len(),
                    "{} scales for {} axes",
                    scales.len(),
                    axes.len()
                );
                for (&axis, scale) in axes.iter().zip(scales) {
                    let scale = scale.context("no scales")?;
                    let axis = &mut plan[axis];
                    (axis.scale, axis.to) = (scale, scaled(axis.from, scale)?);
                }
            }
            None => self.plan_sizes(facts, &axes, &mut plan)?,
        }
        if let (CoordinateMode::Crop(_), Some(place)) = (self.coordinates, self.inputs[0]) {
            let region = facts[place]
                .constant
                .as_ref()
                .context("a region that is not known")?;
            let region = region.cast_to::<f32>()?;
            let region = elements::<f32>(&region)?;
            if region.len() == 2 * axes.len() {
                for (index, &axis) in axes.iter().enumerate() {
                    plan[axis].region = [region[index], region[axes.len() + index]];
                }
            }
        }
        Ok(plan)
    }

    /// Sets the sizes of the resized `axes` to the given ones, according to the policy for the aspect ratio.
    fn plan_sizes(&self, facts: &[Fact], axes: &[usize], plan: &mut [Axis]) -> Result<()> {
        let sizes = self.inputs[2].context("neither scales nor sizes are given")?;
        let sizes = facts.get(sizes).and_then(Fact::integers).context("no sizes")?;
        ensure!(
            sizes.len() == axes.len(),
            "{} sizes for {} axes",
            sizes.len(),
            axes.len()
        );
        let mut scales = Vec::with_capacity(sizes.len());
        for (&axis, &size) in axes.iter().zip(&sizes) {
            let axis = &mut plan[axis];
            axis.to = usize::try_from(size)?;
            axis.scale = axis.to as f32 / axis.from.max(1) as f32;
            scales.push(axis.scale);
        }
        let one = match self.policy {
            Policy::Stretch => None,
            Policy::NotLarger => scales.iter().copied().reduce(f32::min),
            Policy::NotSmaller => scales.iter().copied().reduce(f32::max),
        };
        if let Some(scale) = one {
            for &axis in axes {
                let axis = &mut plan[axis];
                axis.scale = scale;
                axis.to = (scale * axis.from as f32).round() as usize;
            }
        }
        Ok(())
    }

    fn is_unchanged(&self, axis: &Axis) -> bool {
        axis.scale == 1.0 && axis.from == axis.to && !matches!(self.coordinates, CoordinateMode::Crop(_))
    }

    fn interpolated(&self, input: &Tensor, plan: &[Axis]) -> Result<Tensor> {
        let shape: ShortVec<usize> = plan.iter().map(|axis| axis.to).collect();
        let values = elements::<f32>(input)?;
        let Some(first) = plan.iter().position(|axis| !self.is_unchanged(axis)) else {
            return tensor(&shape, Pace::default().copy(values)?);
        };
        // Resizes the last axis first, since the work is largest there, and values are contiguous.
        let mut passes = Vec::new();
        for index in (first..plan.len()).rev() {
            if !self.is_unchanged(&plan[index]) {
                passes.push(Pass {
                    taps: self.taps(&plan[index])?,
                    outer: plan[first..index].iter().map(|axis| axis.from).product(),
                    sizes: [plan[index].from, plan[index].to],
                    inner: shape[index + 1..].iter().product(),
                });
            }
        }
        let (last, passes) = passes.split_last().context("no axis is resized")?;
        let from_size: usize = plan[first..].iter().map(|axis| axis.from).product();
        let to_size: usize = shape[first..].iter().product();
        written(&shape, |made| {
            let work = [made.len() as u64 * COST, ELEMENTS];
            if values.len() < from_size * threads::parts(work[0], work[1]) {
                // There are fewer images than threads.
                let (mut now, mut next) = (Vec::new(), Vec::new());
                for (block, made) in values.chunks_exact(from_size).zip(made.chunks_exact_mut(to_size)) {
                    let mut from = block;
                    for pass in passes {
                        next.resize(pass.outer * pass.sizes[1] * pass.inner, 0.0);
                        pass.apply_in_parts(from, &mut next)?;
                        std::mem::swap(&mut now, &mut next);
                        from = &now;
                    }
                    last.apply_in_parts(from, made)?;
                }
                return Ok(());
            }
            split::lines(made, to_size, work, |first, made, pace| {
                let (mut now, mut next) = (Vec::new(), Vec::new());
                let blocks = values[first * from_size..].chunks_exact(from_size);
                for (block, made) in blocks.zip(made.chunks_exact_mut(to_size)) {
                    let mut from = block;
                    for pass in passes {
                        next.resize(pass.outer * pass.sizes[1] * pass.inner, 0.0);
                        pass.apply(from, &mut next, pace)?;
                        std::mem::swap(&mut now, &mut next);
                        from = &now;
                    }
                    last.apply(from, made, pace)?;
                }
                Ok(())
            })
        })
    }

    /// Writes `extrapolation_value` to the elements whose source coordinate is outside of the image.
    fn extrapolate(&self, output: &mut Tensor, plan: &[Axis]) -> Result<()> {
        let CoordinateMode::Crop(value) = self.coordinates else {
            return Ok(());
        };
        let is_outside = |axis: &Axis| -> Result<Vec<bool>> {
            let outside = |at| {
                let x = self.source_coordinate(axis, at);
                x < 0.0 || x > axis.from as f32 - 1.0
            };
            Pace::default().indices(axis.to, outside)
        };
        let outside = plan.iter().map(is_outside).collect::<Result<Vec<Vec<bool>>>>()?;
        // For each axis, splits `elements` into contiguous blocks, one per index, and fills the blocks whose
        // source coordinate is outside of the image.
        let mut pace = Pace::default();
        let elements = output.as_slice_mut::<f32>()?;
        let mut inner = elements.len();
        for (axis, outside) in plan.iter().zip(&outside) {
            inner /= axis.to.max(1);
            for (block, is_outside) in elements
                .chunks_exact_mut(inner.max(1))
                .zip(outside.iter().cycle())
            {
                pace.spend(1)?;
                if *is_outside {
                    pace.over(block, |block| block.fill(value))?;
                }
            }
        }
        Ok(())
    }
}

impl Resize {
    /// Checks that the operator is supported for the input's type and rank.
    fn check_input(&self, input: &Fact) -> Result<()> {
        let is_float = matches!(
            input.element_type,
            ElementType::F32 | ElementType::F16 | ElementType::F64
        );
        if is_float || matches!(self.method, Method::Nearest(_)) {
            return Ok(());
        }
        let is_integer = matches!(
            input.element_type,
            ElementType::U8 | ElementType::I8 | ElementType::I32
        );
        let is_computed = is_integer
            && matches!(self.method, Method::Linear)
            && !self.is_smooth
            && !matches!(self.coordinates, CoordinateMode::Crop(_))
            && matches!(input.rank(), 2 | 4);
        if !is_computed {
            bail!(Unsupported::Here(
                "interpolation of integers is supported for linear ones of two axes only".to_owned()
            ));
        }
        Ok(())
    }

    /// Sets the dimensions of the output, initially those of the input, from the input `sizes`.
    fn set_sizes(&self, output: &mut Fact, inputs: &[Fact], axes: &[usize]) -> Result<()> {
        let sizes = self.inputs[2]
            .and_then(|place| inputs.get(place))
            .context("neither scales nor sizes")?;
        let sizes = sizes.dims().unwrap_or_else(|| vec![Dim::unknown(); axes.len()]);
        ensure!(
            sizes.len() == axes.len(),
            "{} sizes for {} axes",
            sizes.len(),
            axes.len()
        );
        if self.policy == Policy::Stretch {
            for (&axis, size) in axes.iter().zip(&sizes) {
                output.shape[axis] = *size;
            }
            return Ok(());
        }
        let mut dims = output.shape.iter().chain(&sizes);
        if dims.all(|dim| dim.to_usize().is_some()) {
            for (dim, axis) in output.shape.iter_mut().zip(self.plan(inputs)?) {
                *dim = axis.to.to_dim();
            }
        } else {
            axes.iter().for_each(|&axis| output.shape[axis] = Dim::unknown());
        }
        Ok(())
    }
}

fn scaled(size: usize, scale: f32) -> Result<usize> {
    let scaled = (size as f32 * scale).floor();
    ensure!(scale > 0.0 && scaled < 1e12, "a scale of {scale}");
    Ok(scaled as usize)
}

/// Returns a scaled dimension. The dimension and the scale may be unknown.
fn scaled_dim(dim: Dim, scale: Option<f32>) -> Result<Dim> {
    Ok(match (dim.to_usize(), scale) {
        (Some(size), Some(scale)) => scaled(size, scale)?.to_dim(),
        (None, Some(1.0)) => dim,
        (None, Some(scale)) if scale > 0.0 && scale < 1e6 && scale.fract() == 0.0 => dim * scale as i64,
        (None, Some(scale)) if scale > 1e-6 && (1.0 / scale).fract() == 0.0 => dim / (1.0 / scale) as u64,
        _ => Dim::unknown(),
    })
}

impl Kernel for Resize {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let input = inputs.first().context("no input")?;
        self.check_input(input)?;
        let axes = self.axes(input.rank())?;
        let mut output = input.with(input.element_type);
        match self.scales(inputs, axes.len()) {
            Some(scales) => {
                ensure!(
                    scales.len() == axes.len(),
                    "{} scales for {} axes",
                    scales.len(),
                    axes.len()
                );
                for (&axis, &scale) in axes.iter().zip(&scales) {
                    let dim = &mut output.shape[axis];
                    *dim = scaled_dim(*dim, scale)?;
                }
            }
            None => self.set_sizes(&mut output, inputs, &axes)?,
        }
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let facts = Fact::of_values(inputs);
        let plan = self.plan(&facts)?;
        let input = &inputs[0];
        let element_type = input.element_type();
        if plan.iter().any(|axis| axis.to == 0 || axis.from == 0) {
            let shape: ShortVec<usize> = plan.iter().map(|axis| axis.to).collect();
            return Ok(smallvec![Tensor::zero_of(element_type, &shape)?]);
        }
        admit(&plan)?;
        if element_type.is_integer() && matches!(self.method, Method::Linear) && plan.len() == 4 {
            let resized: Vec<usize> = (0..4).filter(|&axis| !self.is_unchanged(&plan[axis])).collect();
            let is_image = matches!(*resized, [] | [2] | [3] | [2, 3] | [1] | [1, 2]);
            ensure_input!(
                is_image,
                "only lines and columns are resized of integers, not axes {resized:?}"
            );
        }
        let Method::Nearest(rounding) = self.method else {
            if element_type.is_integer() {
                return Ok(smallvec![self.interpolated_integers(input, &plan)?]);
            }
            let wide = input.cast_to::<f32>()?;
            let mut output = self.interpolated(&wide, &plan)?;
            self.extrapolate(&mut output, &plan)?;
            return Ok(smallvec![of_type(output, element_type)?]);
        };
        let mut output = input.clone();
        let mut left = plan.len();
        if let [.., rows, columns] = &plan[..]
            && element_type.is_copy()
            && ![rows, columns].iter().any(|axis| self.is_unchanged(axis))
        {
            let [rows, columns] = [rows, columns].map(|axis| self.nearest(axis, rounding));
            output = Arc::new(picked_rows(&output, &rows?, &columns?)?);
            left -= 2;
        }
        // Resizes the axes in reverse order, so that all but the last axis copy whole lines.
        for (index, axis) in plan[..left].iter().enumerate().rev() {
            if !self.is_unchanged(axis) {
                output = Arc::new(picked(
                    &output,
                    index,
                    Places::List(&self.nearest(axis, rounding)?),
                )?);
            }
        }
        if matches!(self.coordinates, CoordinateMode::Crop(_)) {
            let mut wide = match element_type {
                ElementType::F32 => output.own()?,
                _ => output.cast_to::<f32>()?.into_owned(),
            };
            self.extrapolate(&mut wide, &plan)?;
            return Ok(smallvec![of_type(wide, element_type)?]);
        }
        Ok(smallvec![output.own()?])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn regions_far_outside_have_the_value_for_what_lies_there() {
        let resize = Resize {
            method: Method::Cubic { a: -0.75 },
            coordinates: CoordinateMode::Crop(7.0),
            policy: Policy::Stretch,
            is_smooth: false,
            excludes: false,
            fixed: Some(vec![1.0]),
            axes: None,
            inputs: [Some(1), None, None],
        };
        for region in [[1e30f32, 2e30], [-2e30, -1e30]] {
            let inputs = [Tensor::vector(&[1f32, 2.0, 3.0, 4.0]), Tensor::vector(&region)];
            let made = resize.run(&inputs.map(Arc::new)).unwrap().remove(0);
            assert_eq!(elements::<f32>(&made).unwrap(), [7.0; 4]);
        }
    }

    #[test]
    fn sizes_on_the_way_are_refused_before_they_are_made() {
        let plan = |sizes: &[[usize; 2]]| {
            let axes = sizes.iter().map(|&[from, to]| Axis {
                from,
                to,
                scale: 1.0,
                region: [0.0, 1.0],
            });
            admit(&axes.collect::<Vec<_>>())
        };
        assert!(plan(&[[1, 1], [3, 3], [4000, 2000], [4000, 8000]]).is_ok());
        // The output is small, but the intermediate result of the first axis is not.
        for sizes in [[[1 << 20, 1], [1, 1 << 20]], [[1, 1], [1, 1 << 27]]] {
            let error = plan(&sizes).err();
            assert!(
                error.is_some_and(|error| error.downcast_ref::<BadInput>().is_some()),
                "{sizes:?}"
            );
        }
    }
}
