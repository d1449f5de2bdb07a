//! The operator `CenterCropPad`: crops a value to its center, or pads it around the center.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    axis::axis,
    cancelling::Pace,
    faults::{Unsupported, ensure_input},
    integers::known_integers,
    node::{Attributes, Node},
    operator::{Compute, Fact, Kernel, kernel},
    shapes::{sizes, zeros},
};

/// Builds the operator `CenterCropPad`.
pub fn center_crop_pad(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let axes = attributes.get("axes").map(|axes| axes.ints.clone());
    Ok(kernel(CenterCropPad { axes }))
}

#[derive(Debug)]
struct CenterCropPad {
    /// The axes that are cropped or padded; `None` for all.
    axes: Option<Vec<i64>>,
}

impl Kernel for CenterCropPad {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [input, wanted] = inputs else {
            bail!("expected 2 inputs, found {}", inputs.len());
        };
        if input.element_type == ElementType::String {
            bail!(Unsupported::Anywhere("is not supported for strings".to_owned()));
        }
        let axes: Vec<usize> = match &self.axes {
            Some(axes) => axes
                .iter()
                .map(|&at| axis(at, input.rank()))
                .collect::<Result<_>>()?,
            None => (0..input.rank()).collect(),
        };
        let mut output = input.with(input.element_type);
        let wanted = match known_integers(wanted)? {
            Some(wanted) => sizes(&wanted)?.iter().map(ToDim::to_dim).collect(),
            None => vec![Dim::unknown(); axes.len()],
        };
        ensure_input!(
            wanted.len() == axes.len(),
            "{} sizes are given for {} axes",
            wanted.len(),
            axes.len()
        );
        for (at, wanted) in axes.into_iter().zip(wanted) {
            output.shape[at] = wanted;
        }
        Ok(vec![output])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let facts = self.outputs(&Fact::of_values(inputs))?;
        let wanted = facts[0].shape.iter().copied().map(Dim::to_usize);
        let shape: Vec<usize> = wanted
            .collect::<Option<_>>()
            .context("sizes are not known in a run")?;
        let input = &inputs[0];
        let mut made = zeros(input.element_type(), &shape)?;
        let bytes = input.element_type().size_of();
        let spans: Vec<Span> = input
            .shape()
            .iter()
            .zip(&shape)
            .map(|(&from, &to)| Span::of(from, to))
            .collect();
        if made.is_empty() || input.is_empty() {
            return Ok(smallvec![made]);
        }
        let (from, mut pace) = (input.as_bytes()?, Pace::default());
        let to = made.as_bytes_mut()?;
        let Some((last, outer)) = spans.split_last() else {
            to.copy_from_slice(from);
            return Ok(smallvec![made]);
        };
        let rows: usize = outer.iter().map(|span| span.count).product();
        let (width, copied) = (bytes * last.count, bytes as u64 * last.count as u64);
        for row in 0..rows {
            pace.spend(copied / 8 + 4 * spans.len() as u64)?;
            // Computes where the row starts in the input and in the result.
            let (mut rest, mut step) = (row, [1, 1]);
            let mut at = [last.start, last.offset];
            step[0] *= last.from;
            step[1] *= last.to;
            for span in outer.iter().rev() {
                let index = rest % span.count;
                rest /= span.count;
                at[0] += (span.start + index) * step[0];
                at[1] += (span.offset + index) * step[1];
                step[0] *= span.from;
                step[1] *= span.to;
            }
            let [start, offset] = at.map(|at| at * bytes);
            to[offset..offset + width].copy_from_slice(&from[start..start + width]);
        }
        Ok(smallvec![made])
    }
}

/// The range of an axis that is copied.
struct Span {
    /// Size of the axis in the input (`from`) and in the output (`to`).
    from: usize,
    to: usize,
    /// Start of the range in the input (`start`) and in the output (`offset`).
    start: usize,
    offset: usize,
    count: usize,
}

impl Span {
    fn of(from: usize, to: usize) -> Self {
        Self {
            from,
            to,
            start: from.saturating_sub(to) / 2,
            offset: to.saturating_sub(from) / 2,
            count: from.min(to),
        }
    }
}
