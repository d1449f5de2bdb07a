//! Internal operators into which `onnx_graph::expand` rewrites ONNX Runtime's attention operators.

use std::{ops::RangeInclusive, sync::Arc};

use onnx_tensor::prelude::*;

use onnx_kernels::shape::Transpose;
use onnx_tensor::{
    cancelling::Pace,
    elements::{Real, elements, filled, with_real},
    faults::{Unsupported, ensure_input},
    node::Attributes,
    node::Node,
    operator::{Compute, Fact},
};

/// Builds the operator `Ranked`.
pub fn ranked(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(RankCheck::of(Attributes(node))))
}

/// Builds the operator `SameShape`.
pub fn same_shape(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(SameShape))
}

/// Builds the operator `SplitHeads`.
pub fn split_heads(node: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(SplitHeads::of(Attributes(node))))
}

/// Builds the operator `TransposeLast`.
pub fn transpose_last(_: &Node) -> Result<Box<dyn Compute>> {
    Ok(Box::new(TransposeLast))
}

/// The operator `TransposeLast`: swaps the last two dimensions of a value of any rank.
#[derive(Debug)]
pub(crate) struct TransposeLast;

impl Compute for TransposeLast {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let mut output = inputs[0].with(inputs[0].element_type);
        let rank = output.rank();
        ensure_input!(rank >= 2, "a matrix of {rank} dimensions");
        output.shape.swap(rank - 2, rank - 1);
        Ok(Some(vec![output]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        let rank = inputs[0].rank() as i64;
        let order = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        Transpose(order).run(inputs)
    }
}

/// Splits rows into heads: `batch` x rows x elements becomes `batch` x heads x rows x head size. An input
/// that is already split keeps its shape. The attribute `part` is 0 for queries, 1 for keys and 2 for values.
/// Queries are multiplied by `scale`, by default the inverse square root of the head size.
///
/// A second input is the concatenated bias of queries, keys and values, of which each part uses its own
/// slice. Keys and values that are already split get no bias, as in ONNX Runtime.
#[derive(Debug)]
pub(crate) struct SplitHeads {
    heads: usize,
    part: Part,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Queries { scale: f32 },
    Keys,
    Values,
}

impl SplitHeads {
    pub(crate) fn of(attributes: Attributes<'_>) -> Self {
        Self {
            heads: usize::try_from(attributes.int("num_heads", 1)).unwrap_or(0),
            part: match attributes.int("part", 0) {
                0 => Part::Queries {
                    scale: attributes.float("scale", 0.0),
                },
                1 => Part::Keys,
                _ => Part::Values,
            },
        }
    }

    /// Returns the head size for rows of `numbers` elements.
    fn width(&self, numbers: usize) -> Result<usize> {
        ensure_input!(
            self.heads > 0 && numbers.is_multiple_of(self.heads),
            "rows of {numbers} numbers for {} heads",
            self.heads
        );
        Ok(numbers / self.heads)
    }

    /// Returns the slice of `bias` that this part adds to rows of `numbers` elements.
    fn part_of<'b, T>(&self, bias: &'b [T], numbers: usize) -> Result<&'b [T]> {
        let start = match self.part {
            Part::Queries { .. } => Some(0),
            Part::Keys => Some(numbers),
            Part::Values => bias.len().checked_sub(numbers),
        };
        let part = start.and_then(|start| bias.get(start..start.checked_add(numbers)?));
        ensure_input!(
            part.is_some(),
            "the bias has {} numbers, too few for rows of {numbers}",
            bias.len()
        );
        Ok(part.unwrap_or(&[]))
    }

    /// Returns the factor for the elements of a head of size `width`; `None` for keys and values.
    fn scale(&self, width: usize) -> Option<f32> {
        match self.part {
            Part::Queries { scale: 0.0 } => Some(1.0 / (width as f32).sqrt()),
            Part::Queries { scale } => Some(scale),
            Part::Keys | Part::Values => None,
        }
    }

    fn split<T: Real>(&self, input: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let &[batch, rows, numbers] = input.shape() else {
            bail!("rows of {} dimensions", input.rank());
        };
        let width = self.width(numbers)?;
        let bias = match bias {
            Some(bias) => Some(self.part_of(elements::<T>(bias)?, numbers)?),
            None => None,
        };
        let scale = self.scale(width).map(|scale| T::of(scale.into()));
        let values = elements::<T>(input)?;
        filled(&[batch, self.heads, rows, width], |made: &mut [T]| {
            if made.is_empty() {
                return Ok(());
            }
            let mut pace = Pace::default();
            for (index, to) in made.chunks_exact_mut(width).enumerate() {
                let (row, head, batch) = (index % rows, index / rows % self.heads, index / rows / self.heads);
                let from = &values[((batch * rows + row) * self.heads + head) * width..][..width];
                pace.pairs(from, to, |from, to| to.copy_from_slice(from))?;
                if let Some(bias) = bias {
                    pace.pairs(&bias[head * width..][..width], to, |bias, to| {
                        to.iter_mut().zip(bias).for_each(|(to, bias)| *to = *to + *bias);
                    })?;
                }
                if let Some(scale) = scale {
                    pace.over(to, |to| to.iter_mut().for_each(|to| *to = *to * scale))?;
                }
            }
            Ok(())
        })
    }
}

impl Compute for SplitHeads {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let input = &inputs[0];
        if let Some(bias) = inputs.get(1) {
            ensure_input!(
                bias.rank() == 1,
                "the bias has {} dimensions, expected 1",
                bias.rank()
            );
        }
        let shape: ShortVec<Dim> = match &*input.shape {
            [batch, rows, numbers] => {
                let width = match numbers.to_usize() {
                    Some(numbers) => self.width(numbers)?.to_dim(),
                    None => Dim::unknown(),
                };
                smallvec![*batch, self.heads.to_dim(), *rows, width]
            }
            [_, heads, _, _] => {
                let is_known = heads.to_usize().is_some();
                ensure_input!(
                    !is_known || *heads == self.heads.to_dim(),
                    "{heads} heads where num_heads is {}",
                    self.heads
                );
                input.shape.clone()
            }
            other => bail!(Unsupported::Here(format!(
                "is not supported with inputs of {} dimensions",
                other.len()
            ))),
        };
        Ok(Some(vec![Fact::new(input.element_type, shape)]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        if inputs[0].rank() == 3 {
            let (input, bias) = (&inputs[0], inputs.get(1).map(|bias| &**bias));
            let made = with_real!(input.element_type(), T => self.split::<T>(input, bias)?);
            return Ok(smallvec![Arc::new(made)]);
        }
        let mut made = inputs.swap_remove(0).own()?;
        if let Some(scale) = self.scale(made.shape()[3]) {
            with_real!(made.element_type(), T => {
                let scale = <T as Real>::of(scale.into());
                Pace::default().over(made.as_slice_mut::<T>()?, |numbers| {
                    numbers.iter_mut().for_each(|number| *number *= scale);
                })?;
            });
        }
        Ok(smallvec![Arc::new(made)])
    }
}

/// The operator `Ranked`: checks the rank of a value, and returns the value unchanged. The error names
/// `input`.
#[derive(Debug)]
pub(crate) struct RankCheck {
    input: String,
    ranks: RangeInclusive<usize>,
}

impl RankCheck {
    pub(crate) fn of(attributes: Attributes<'_>) -> Self {
        let bound = |name: &str| usize::try_from(attributes.int(name, 0)).unwrap_or(usize::MAX);
        Self {
            input: attributes.text("input", "").to_owned(),
            ranks: bound("least")..=bound("most"),
        }
    }
}

impl Compute for RankCheck {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let rank = inputs[0].rank();
        if !self.ranks.contains(&rank) {
            let expected = match (self.ranks.start(), self.ranks.end()) {
                (least, &usize::MAX) => format!("{least} or more"),
                (least, most) if least == most => least.to_string(),
                (least, most) => format!("{least} to {most}"),
            };
            bail!(Unsupported::Here(format!(
                "the input {} has {rank} dimensions, only {expected} are supported",
                self.input
            )));
        }
        Ok(Some(vec![inputs[0].clone()]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        inputs.truncate(1);
        Ok(std::mem::take(inputs))
    }
}

/// Checks that a sum has the shape of its first term, since broadcasting could enlarge it. Returns the sum
/// unchanged.
#[derive(Debug)]
pub(crate) struct SameShape;

impl Compute for SameShape {
    fn outputs(&self, inputs: &[Fact]) -> Result<Option<Vec<Fact>>> {
        let (sum, input) = (&inputs[0].shape, &inputs[1].shape);
        let is_known = |dim: &Dim| dim.to_i64().is_some();
        let mut dims = sum.iter().zip(input);
        let is_same = sum.len() == input.len()
            && dims.all(|(sum, input)| sum == input || !is_known(sum) || !is_known(input));
        ensure_input!(
            is_same,
            "needs a skip that is not larger than its input, which has the shape {input:?} where the sum has {sum:?}"
        );
        Ok(Some(vec![inputs[0].clone()]))
    }

    fn run(&self, inputs: &mut ShortVec<Arc<Tensor>>) -> Result<ShortVec<Arc<Tensor>>> {
        inputs.truncate(1);
        Ok(std::mem::take(inputs))
    }
}
