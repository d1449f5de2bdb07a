//! `RotaryEmbedding` (`RoPE`) of ONNX and of ONNX Runtime: rotates pairs of elements of each head by angles
//! that depend on the position.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Unsupported, below_limit, ensure_input},
    node::Node,
    operator::Compute,
};
use onnx_tensor::{
    elements::{copied, elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `RotaryEmbedding`.
pub fn rotary_embedding(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let is_own = !node.domain.is_empty();
    let size = |name: &str| -> Result<usize> {
        let size = attributes.int(name, 0);
        below_limit(name, size)
    };
    if attributes.int("is_packed_batching", 0) != 0 {
        bail!(Unsupported::Here(
            "is_packed_batching is not 0, only 0 is supported".to_owned()
        ));
    }
    if attributes.float("scale", 1.0) != 1.0 {
        bail!(Unsupported::Here(
            "the attribute 'scale' is not 1, only 1 is supported".to_owned()
        ));
    }
    let [cos, sin, places] = if is_own { [2, 3, 1] } else { [1, 2, 3] };
    let position = |index: usize| attributes.position(index).context("an input is not given");
    Ok(kernel(RotaryEmbedding {
        heads: size("num_heads")?,
        width: size("rotary_embedding_dim")?,
        is_interleaved: attributes.int("interleaved", 0) != 0,
        caches: [position(cos)?, position(sin)?],
        places: attributes.position(places),
    }))
}

#[derive(Debug)]
struct RotaryEmbedding {
    /// Number of heads; 0 to derive it from the caches.
    heads: usize,
    /// Number of rotated elements per head; 0 for all.
    width: usize,
    is_interleaved: bool,
    /// Input indices of the cosines and sines.
    caches: [usize; 2],
    /// Input index of the position ids, which index rows of the caches.
    places: Option<usize>,
}

impl RotaryEmbedding {
    /// Returns the batch size, the numbers of rows and heads, and the head size of an input, which is either
    /// split into heads, or has rows that contain all heads. The caches contain cosines and sines for
    /// `turned` elements of each head.
    fn sizes(&self, shape: &[usize], turned: usize) -> Result<[usize; 4]> {
        Ok(match *shape {
            [batch, heads, rows, width] => [batch, rows, heads, width],
            [batch, rows, numbers] => {
                let heads = match self.heads {
                    0 if self.width == 0 => numbers.checked_div(turned).unwrap_or(0),
                    heads => heads,
                };
                ensure_input!(
                    heads > 0 && numbers % heads == 0,
                    "rows of {numbers} numbers for {heads} heads"
                );
                [batch, rows, heads, numbers / heads]
            }
            _ => bail!("{} dimensions", shape.len()),
        })
    }
}

impl Kernel for RotaryEmbedding {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [cos, sin] = self.caches.map(|place| inputs.get(place));
        let (Some(cos), Some(sin)) = (cos, sin) else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        if [&inputs[0], cos, sin]
            .iter()
            .any(|fact| fact.element_type != ElementType::F32)
        {
            bail!(Unsupported::Anywhere("is supported for FP32 only".to_owned()));
        }
        let caches = if self.places.is_some() { 2 } else { 3 };
        ensure!(
            matches!(inputs[0].rank(), 3 | 4) && cos.rank() == caches && sin.rank() == caches,
            "expected a value of 3 or 4 dimensions, and caches of {caches}"
        );
        Ok(vec![inputs[0].with(ElementType::F32)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let shape = inputs[0].shape();
        let [cos, sin] = self.caches.map(|place| &inputs[place]);
        let half = cos.shape()[cos.rank() - 1];
        ensure_input!(
            cos.shape() == sin.shape(),
            "cosines of {:?} and sines of {:?}",
            cos.shape(),
            sin.shape()
        );
        let turned = 2 * half;
        ensure_input!(
            self.width == 0 || self.width == turned,
            "caches are for {turned} elements of a head, not {}",
            self.width
        );
        let [batch, rows, heads, width] = self.sizes(shape, turned)?;
        ensure_input!(
            turned == width || (turned < width && self.width > 0),
            "{turned} elements of a head of {width} cannot be rotated"
        );
        let lines = match self.places {
            Some(place) => places(&inputs[place], batch, rows, cos.shape()[0])?,
            None => {
                ensure_input!(
                    cos.shape() == [batch, rows, half],
                    "caches of {:?} for {batch} batches of {rows} rows",
                    cos.shape()
                );
                (0..batch * rows).collect()
            }
        };
        let (cos, sin) = (elements::<f32>(cos)?, elements::<f32>(sin)?);
        let mut made = copied::<f32>(&inputs[0])?;
        if made.is_empty() {
            return Ok(smallvec![tensor(shape, made)?]);
        }
        let by_head = shape.len() == 4;
        let mut pace = Pace::default();
        for (index, head) in made.chunks_exact_mut(width).enumerate() {
            pace.spend(width as u64)?;
            let line = match by_head {
                true => index / (heads * rows) * rows + index % rows,
                false => index / heads,
            };
            let line = lines[line];
            let caches = [cos, sin].map(|cache| &cache[line * half..(line + 1) * half]);
            turn(&mut head[..turned], caches, self.is_interleaved);
        }
        Ok(smallvec![tensor(shape, made)?])
    }
}

/// Returns the index of the cache row (below `count`) for each row of the batch. A single position applies to
/// the first row of each batch entry; the later rows have the next positions.
fn places(given: &Tensor, batch: usize, rows: usize, count: usize) -> Result<Vec<usize>> {
    let given_shape = given.shape();
    let given = given.cast_to::<i64>()?;
    let given = elements::<i64>(&given)?;
    let line = |place: i64| -> Result<usize> {
        let line = usize::try_from(place).ok().filter(|&line| line < count);
        line.ok_or_else(|| {
            BadInput(format!(
                "position {place} is out of range for caches of {count} positions"
            ))
            .into()
        })
    };
    if given_shape.len() <= 1 && given.len() == 1 {
        let each = (0..batch).flat_map(|_| 0..rows);
        return each
            .map(|row| line(given[0].saturating_add(row as i64)))
            .collect();
    }
    ensure_input!(
        given_shape == [batch, rows],
        "positions have the shape {given_shape:?}, expected one for each of {rows} rows in {batch} batches"
    );
    given.iter().map(|&place| line(place)).collect()
}

/// Rotates the pairs of elements of a head. A pair consists of two adjacent elements if `is_interleaved`,
/// otherwise of one element from each half of the head.
pub(crate) fn turn(head: &mut [f32], [cos, sin]: [&[f32]; 2], is_interleaved: bool) {
    let angles = cos.iter().zip(sin);
    if is_interleaved {
        for (pair, (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
            let [first, second] = *pair;
            *pair = [cos * first - sin * second, sin * first + cos * second];
        }
        return;
    }
    let (first, second) = head.split_at_mut(head.len() / 2);
    for ((first, second), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
        (*first, *second) = (cos * *first - sin * *second, sin * *first + cos * *second);
    }
}
