//! The operator `NonMaxSuppression`. A `max_output_boxes_per_class` of 0 selects no boxes. NaN is the lowest
//! score.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::gather::sorting::sort_by;
use onnx_tensor::{
    cancelling::{PART, Pace},
    faults::{BadInput, Unsupported},
    node::Node,
    operator::Compute,
    size,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `NonMaxSuppression`.
pub fn non_max_suppression(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    Ok(kernel(NonMaxSuppression {
        has_centers: attributes.int("center_point_box", 0) != 0,
        optional: [2, 3, 4].map(|index| attributes.position(index)),
    }))
}

#[derive(Debug)]
struct NonMaxSuppression {
    /// Whether boxes are given by center, width and height instead of two corners.
    has_centers: bool,
    /// Input indices of the limit per class, the overlap threshold and the score threshold.
    optional: [Option<usize>; 3],
}

impl Kernel for NonMaxSuppression {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [boxes, scores, ..] = inputs else {
            bail!("expected boxes and scores, found {} inputs", inputs.len());
        };
        for input in [boxes, scores] {
            if input.element_type != ElementType::F32 {
                bail!(Unsupported::Anywhere("is supported for FP32 only".to_owned()));
            }
            ensure!(input.rank() == 3, "expected three dimensions");
        }
        let count = Dim::unknown();
        Ok(vec![Fact::new(ElementType::I64, [count.to_dim(), 3.into()])])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let (&[batch, count, corners], &[images, classes, scored]) = (inputs[0].shape(), inputs[1].shape())
        else {
            bail!("expected three dimensions");
        };
        if corners != 4 || batch != images || count != scored {
            bail!(BadInput(format!(
                "boxes of the shape {:?} do not match scores of the shape {:?}",
                inputs[0].shape(),
                inputs[1].shape()
            )));
        }
        let given = |index: usize| self.optional[index].map(|place| &inputs[place]);
        let most = match given(0) {
            Some(limit) => first::<i64>(limit)?,
            None => 0,
        };
        let most = usize::try_from(most).unwrap_or(0).min(count);
        let overlap = given(1).map_or(Ok(0.0), |value| first::<f32>(value))?;
        let least = given(2).map(|value| first::<f32>(value)).transpose()?;
        // Checks that there is enough memory for the areas of all boxes, and for the order of the boxes of a
        // class.
        size::admit_now((batch + 2) as u64 * count as u64 * 16)?;
        let (corners, _) = elements::<f32>(&inputs[0])?.as_chunks::<4>();
        let mut pace = Pace::default();
        let boxes = pace.map(corners, |corners| self.area(*corners))?;
        let scores = elements::<f32>(&inputs[1])?;
        let mut chosen = Vec::new();
        for (group, scores) in scores.chunks_exact(count.max(1)).enumerate() {
            let (image, class) = (group / classes, group % classes);
            let boxes = &boxes[image * count..][..count];
            let order = by_score(scores, least, &mut pace)?;
            // Checks that there is enough memory for the list of selected boxes, which grows by doubling.
            size::admit_now((2 * size_of_val(&*chosen)) as u64)?;
            let kept = visible(boxes, &order, most, overlap, &mut pace)?;
            size::admit_shape(ElementType::I64, &[kept.len(), 3])?;
            let selected = kept
                .iter()
                .flat_map(|&index| [image, class, index].map(|index| index as i64));
            chosen.extend(selected);
        }
        Ok(smallvec![tensor(&[chosen.len() / 3, 3], chosen)?])
    }
}

/// Returns the indices of at most `most` boxes that no better one hides. `order` lists the boxes by score.
fn visible(
    boxes: &[Area],
    order: &[(usize, f32)],
    most: usize,
    overlap: f32,
    pace: &mut Pace,
) -> Result<Vec<usize>> {
    let mut kept: Vec<usize> = Vec::new();
    for &(index, _) in order {
        if kept.len() >= most {
            break;
        }
        pace.spend(1)?;
        let mut is_hidden = false;
        for kept in kept.chunks(PART) {
            pace.spend(kept.len() as u64)?;
            let mut kept = kept.iter();
            is_hidden |= kept.any(|&other| boxes[index].hides(&boxes[other], overlap));
            if is_hidden {
                break;
            }
        }
        if !is_hidden {
            kept.push(index);
        }
    }
    Ok(kept)
}

/// Returns the indices and scores of the boxes whose score is above `least`, the highest score first.
fn by_score(scores: &[f32], least: Option<f32>, pace: &mut Pace) -> Result<Vec<(usize, f32)>> {
    let is_enough = |&(_, score): &(usize, &f32)| least.is_none_or(|least| *score > least);
    let mut order: Vec<(usize, f32)> = Vec::new();
    for (first, scores) in (0..).step_by(PART).zip(scores.chunks(PART)) {
        pace.spend(scores.len() as u64)?;
        let scores = (first..).zip(scores).filter(is_enough);
        order.extend(scores.map(|(index, &score)| match score.is_nan() {
            true => (index, f32::NEG_INFINITY),
            false => (index, score + 0.0),
        }));
    }
    sort_by(&mut order, |(_, a), (_, b)| b.total_cmp(a))?;
    Ok(order)
}

/// Returns the only element of a scalar or of a one-element vector.
fn first<T: Element + Copy>(value: &Tensor) -> Result<T> {
    let element = elements::<T>(value)?.first().copied();
    element.with_context(|| "a limit without a value")
}

impl NonMaxSuppression {
    fn area(&self, [first, second, third, fourth]: [f32; 4]) -> Area {
        let sorted = |a: f32, b: f32| if a >= b { [b, a] } else { [a, b] };
        let around = |center: f32, size: f32| [center - size / 2.0, center + size / 2.0];
        match self.has_centers {
            true => Area([around(first, third), around(second, fourth)]),
            false => Area([sorted(second, fourth), sorted(first, third)]),
        }
    }
}

/// The start and end of a box along both axes.
#[derive(Clone, Copy)]
struct Area([[f32; 2]; 2]);

impl Area {
    fn size(&self) -> f32 {
        self.0.iter().map(|[start, end]| end - start).product()
    }

    /// Returns whether the area of the boxes' intersection, divided by the area of their union, exceeds
    /// `part`.
    fn hides(&self, other: &Self, part: f32) -> bool {
        let mut shared = 1.0;
        for ([start, end], [other_start, other_end]) in self.0.iter().zip(&other.0) {
            let (start, end) = (start.max(*other_start), end.min(*other_end));
            if end <= start {
                return false;
            }
            shared *= end - start;
        }
        let (size, other) = (self.size(), other.size());
        let together = size + other - shared;
        shared > 0.0 && size > 0.0 && other > 0.0 && together > 0.0 && shared / together > part
    }
}
