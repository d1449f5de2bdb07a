//! ONNX's `Attention`: scaled dot-product attention with masks, past keys and values, and score outputs.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    attention::{
        query_block::{self, QueryBlock},
        score_mask::Mask,
    },
    least_work::PRODUCTS,
    split_products::products,
};
use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Limit, Unsupported, below_limit, ensure_input},
    node::Node,
    operator::Compute,
    size, split,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `Attention`.
pub fn attention(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let heads = |name: &str| -> Result<Option<usize>> {
        match attributes.int(name, 0) {
            0 => Ok(None),
            heads => below_limit(name, heads).map(Some),
        }
    };
    let mode = attributes.int("qk_matmul_output_mode", 0);
    if !matches!(attributes.int("softmax_precision", 1), 1 | 10 | 16) {
        bail!(Unsupported::Here(
            "the softmax_precision is not FLOAT, FLOAT16 or BFLOAT16, which are supported".to_owned()
        ));
    }
    let scores = match mode {
        0 => Scores::Products,
        1 => Scores::Capped,
        2 => Scores::Masked,
        3 => Scores::Weights,
        other => bail!(Unsupported::Anywhere(format!(
            "the qk_matmul_output_mode is {other}, expected 0 to 3"
        ))),
    };
    ensure!(
        attributes.has_input(4) == attributes.has_input(5),
        "past_key and past_value must both be given"
    );
    // Implementations disagree about the position of the last query if lengths are combined with causality or
    // past keys.
    if attributes.has_input(6) && (attributes.int("is_causal", 0) != 0 || attributes.has_input(4)) {
        bail!(Unsupported::Here(
            "nonpad_kv_seqlen together with is_causal or past_key is not supported".to_owned()
        ));
    }
    Ok(kernel(Attention {
        heads: [heads("q_num_heads")?, heads("kv_num_heads")?],
        is_causal: attributes.int("is_causal", 0) != 0,
        scale: attributes.get("scale").map(|scale| scale.f),
        cap: attributes.float("softcap", 0.0),
        scores,
        outputs: (0..4)
            .rposition(|output| attributes.has_output(output))
            .map_or(1, |last| last + 1),
        mask: attributes.position(3),
        past: attributes.position(4).zip(attributes.position(5)),
        lengths: attributes.position(6),
    }))
}

/// The stage of the computation after which the scores are returned as an output (`qk_matmul_output_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scores {
    Products,
    Capped,
    Masked,
    Weights,
}

#[derive(Debug)]
struct Attention {
    /// Numbers of query heads and of key-value heads, for inputs whose rows contain all heads.
    heads: [Option<usize>; 2],
    is_causal: bool,
    scale: Option<f32>,
    /// `softcap`: the limit that scores approach; 0 means no limit.
    cap: f32,
    scores: Scores,
    outputs: usize,
    mask: Option<usize>,
    past: Option<(usize, usize)>,
    /// Input index of the number of valid keys per batch entry.
    lengths: Option<usize>,
}

/// Batch, heads, rows, head size.
type Dims = [Dim; 4];

impl Attention {
    /// Returns the number of valid keys of each batch entry, if it is given.
    fn lengths(&self, inputs: &[Arc<Tensor>], batch: usize, total: usize) -> Result<Option<Vec<i64>>> {
        let Some(place) = self.lengths else {
            return Ok(None);
        };
        let lengths = inputs[place].cast_to::<i64>()?;
        let lengths = elements::<i64>(&lengths)?;
        let is_length = |&length: &i64| (0..=total as i64).contains(&length);
        ensure_input!(
            lengths.len() == batch && lengths.iter().all(is_length),
            "the numbers of keys {lengths:?} of {batch} batches with {total}"
        );
        Ok(Some(lengths.to_vec()))
    }

    /// Returns queries, keys and values, and the number of past keys. Past keys and values precede the new
    /// ones.
    fn parts(&self, inputs: &[Arc<Tensor>]) -> Result<([Part; 3], usize)> {
        let queries = Part::of(&inputs[0], self.heads[0])?;
        let mut keys = Part::of(&inputs[1], self.heads[1])?;
        let mut values = Part::of(&inputs[2], self.heads[1])?;
        let mut past = 0;
        if let Some((key, value)) = self.past {
            (past, keys, values) = (
                inputs[key].shape()[2],
                keys.behind(&inputs[key])?,
                values.behind(&inputs[value])?,
            );
        }
        let [batch, heads, _, depth] = queries.dims;
        let [_, shared, total, _] = values.dims;
        ensure_input!(
            keys.dims == [batch, shared, total, depth]
                && values.dims[0] == batch
                && shared > 0
                && heads % shared == 0,
            "queries of {:?}, keys of {:?} and values of {:?} do not fit together",
            queries.dims,
            keys.dims,
            values.dims
        );
        ensure_input!(depth > 0, "queries of heads without numbers");
        Ok(([queries, keys, values], past))
    }

    fn dims(&self, fact: &Fact, heads: Option<usize>) -> Result<Dims> {
        match (&*fact.shape, heads) {
            ([batch, heads, rows, width], _) => Ok([*batch, *heads, *rows, *width]),
            ([batch, rows, numbers], Some(heads)) => {
                let numbers = numbers.to_usize().filter(|numbers| numbers % heads == 0);
                let Some(numbers) = numbers else {
                    bail!(Limit(
                        "needs rows whose length is known and fits its heads".to_owned()
                    ));
                };
                Ok([*batch, heads.to_dim(), *rows, (numbers / heads).to_dim()])
            }
            (shape, _) => bail!("a value of {} dimensions", shape.len()),
        }
    }
}

impl Kernel for Attention {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let [queries, keys, values, ..] = inputs else {
            bail!("expected 3 inputs or more, found {}", inputs.len());
        };
        let floats = [queries, keys, values].into_iter().chain(
            self.past
                .iter()
                .flat_map(|&(key, value)| [&inputs[key], &inputs[value]]),
        );
        let mut others = floats
            .into_iter()
            .filter(|fact| fact.element_type != ElementType::F32);
        if let Some(other) = others.next() {
            bail!(Unsupported::but_for_fp64(
                other.element_type,
                "is supported for FP32 only"
            ));
        }
        if let Some(mask) = self.mask.map(|place| &inputs[place]) {
            let is_known = matches!(mask.element_type, ElementType::F32 | ElementType::Bool);
            ensure!(
                is_known && (2..=4).contains(&mask.rank()),
                "attn_mask must be FP32 or BOOL with 2 to 4 dimensions"
            );
        }
        if let Some((key, value)) = self.past
            && [key, value].iter().any(|&place| inputs[place].rank() != 4)
        {
            bail!(Limit("needs past_key and past_value of 4 dimensions".to_owned()));
        }
        let is_in_rows = queries.rank() == 3;
        let [batch, heads, rows, _] = self.dims(queries, self.heads[0])?;
        let [_, shared, added, key_width] = self.dims(keys, self.heads[1])?;
        let [.., width] = self.dims(values, self.heads[1])?;
        let past = match self.past {
            Some((key, _)) => *inputs[key]
                .shape
                .get(2)
                .context("earlier keys of fewer dimensions")?,
            None => 0.to_dim(),
        };
        let total = past + added;
        let output: ShortVec<Dim> = match is_in_rows {
            true => smallvec![batch, rows, heads * width],
            false => smallvec![batch, heads, rows, width],
        };
        let kept = |width: Dim| [batch, shared, total, width];
        let mut facts = vec![
            Fact::new(ElementType::F32, output),
            Fact::new(ElementType::F32, kept(key_width)),
            Fact::new(ElementType::F32, kept(width)),
            Fact::new(ElementType::F32, [batch, heads, rows, total]),
        ];
        facts.truncate(self.outputs);
        Ok(facts)
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let ([queries, keys, values], past) = self.parts(inputs)?;
        let [batch, heads, rows, depth] = queries.dims;
        let [_, shared, total, width] = values.dims;
        let mask = match self.mask {
            Some(place) => Some(Mask::of(&inputs[place], [batch, heads, rows, total])?),
            None => None,
        };
        let lengths = self.lengths(inputs, batch, total)?;
        let wants_scores = self.outputs > 3;
        if wants_scores {
            size::admit_shape(ElementType::F32, &[batch, heads, rows, total])?;
        }
        query_block::ask(batch * heads, rows, [depth, total, width])?;
        let mut scores_made: Vec<f32> = Vec::new();
        let mut made = vec![0.0; batch * heads * rows * width];
        let scale = self.scale.unwrap_or_else(|| 1.0 / (depth as f32).sqrt());
        let size = (rows * width).max(1);
        // Computes the results of consecutive heads from `first_head` on. Heads are numbered over all
        // batches.
        let attend = |first_head: usize, made: &mut [f32], mut given: Option<&mut Vec<f32>>| {
            let mut work = QueryBlock::new(rows, total, width, depth);
            for (index, made) in (first_head..).zip(made.chunks_exact_mut(size)) {
                let (batch, head) = (index / heads, index % heads);
                let from = batch * shared + head / (heads / shared);
                let limit = lengths.as_ref().map_or(total, |lengths| lengths[batch] as usize);
                let mut give = |step: Scores, work: &mut QueryBlock<'_>| match &mut given {
                    Some(given) if self.scores == step => work.pace.append(&work.scores, given),
                    _ => Ok(()),
                };
                work.take_head(from, keys.head(from), values.head(from))?;
                for first in (0..rows).step_by(work.rows) {
                    let count = work.rows.min(rows - first);
                    let queries = &queries.head(index)[first * depth..][..count * depth];
                    work.products(queries, scale)?;
                    give(Scores::Products, &mut work)?;
                    work.cap(self.cap)?;
                    give(Scores::Capped, &mut work)?;
                    if let Some(mask) = &mask {
                        work.add(mask, [batch, head, first])?;
                    }
                    work.hide(|row| match self.is_causal {
                        true => 0..limit.min(past + first + row + 1).min(total),
                        false => 0..limit.min(total),
                    })?;
                    give(Scores::Masked, &mut work)?;
                    work.weigh(None)?;
                    give(Scores::Weights, &mut work)?;
                    work.sums(&mut made[first * width..][..count * width])?;
                }
            }
            Ok(())
        };
        if wants_scores {
            attend(0, &mut made, Some(&mut scores_made))?;
        } else {
            let work = [products([batch * heads * rows, total, depth + width]), PRODUCTS];
            split::lines(&mut made, size, work, |first, made, _| attend(first, made, None))?;
        }
        let output = match inputs[0].rank() {
            3 => tensor(
                &[batch, rows, heads * width],
                swapped(&made, [batch, heads, rows, width])?,
            )?,
            _ => tensor(&[batch, heads, rows, width], made)?,
        };
        let scores = || tensor(&[batch, heads, rows, total], scores_made);
        self.with_kept(output, keys, values, scores)
    }
}

impl Attention {
    /// Returns the outputs that the node has: the results, all keys and values, and the scores.
    fn with_kept(
        &self,
        output: Tensor,
        keys: Part,
        values: Part,
        scores: impl FnOnce() -> Result<Tensor>,
    ) -> Result<ShortVec<Tensor>> {
        let mut outputs = smallvec![output];
        if self.outputs > 1 {
            outputs.push(tensor(&keys.dims, keys.numbers)?);
        }
        if self.outputs > 2 {
            outputs.push(tensor(&values.dims, values.numbers)?);
        }
        if self.outputs > 3 {
            outputs.push(scores()?);
        }
        Ok(outputs)
    }
}

/// Queries, keys or values, split into heads.
pub(crate) struct Part {
    /// Batch, heads, rows, head size.
    pub(crate) dims: [usize; 4],
    pub(crate) numbers: Vec<f32>,
}

impl Part {
    fn of(given: &Tensor, heads: Option<usize>) -> Result<Self> {
        let numbers = elements::<f32>(given)?;
        match (given.shape(), heads) {
            (&[batch, heads, rows, width], _) => Ok(Self {
                dims: [batch, heads, rows, width],
                numbers: Pace::default().copy(numbers)?,
            }),
            (&[batch, rows, length], Some(heads)) => {
                ensure_input!(length % heads == 0, "rows of {length} numbers for {heads} heads");
                let width = length / heads;
                Ok(Self {
                    dims: [batch, heads, rows, width],
                    numbers: swapped(numbers, [batch, rows, heads, width])?,
                })
            }
            (shape, _) => bail!("a value of {} dimensions", shape.len()),
        }
    }

    /// Appends the rows to those of `past`, for each head.
    fn behind(self, past: &Tensor) -> Result<Self> {
        let [batch, heads, rows, width] = self.dims;
        let before = match past.shape() {
            &[b, h, before, w] if [b, h, w] == [batch, heads, width] => before,
            shape => bail!(BadInput(format!(
                "earlier keys or values of {shape:?} before {:?}",
                self.dims
            ))),
        };
        let past = elements::<f32>(past)?;
        let mut numbers = Vec::with_capacity(past.len() + self.numbers.len());
        let mut pace = Pace::default();
        for index in 0..batch * heads {
            pace.append(&past[index * before * width..][..before * width], &mut numbers)?;
            pace.append(
                &self.numbers[index * rows * width..][..rows * width],
                &mut numbers,
            )?;
        }
        Ok(Self {
            dims: [batch, heads, before + rows, width],
            numbers,
        })
    }

    /// Returns the rows of head `index`. Heads are numbered over all batches.
    pub(crate) fn head(&self, index: usize) -> &[f32] {
        let size = self.dims[2] * self.dims[3];
        &self.numbers[index * size..][..size]
    }
}

/// Swaps the second and the third of four dimensions.
pub(crate) fn swapped(numbers: &[f32], [batch, second, third, width]: [usize; 4]) -> Result<Vec<f32>> {
    let mut made = Vec::with_capacity(numbers.len());
    let mut pace = Pace::default();
    for batch in 0..batch {
        for at in 0..third {
            for row in 0..second {
                pace.append(
                    &numbers[((batch * second + row) * third + at) * width..][..width],
                    &mut made,
                )?;
            }
        }
    }
    Ok(made)
}
