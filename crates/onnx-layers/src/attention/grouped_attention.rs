//! ONNX Runtime's `GroupQueryAttention`: causal attention with a key-value cache, in which several query
//! heads share a key-value head. Exporters of language models write this operator.

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::{
    attention::{
        query_block::{self, QueryBlock},
        rotary::turn,
        scaled::swapped,
        score_mask::Mask,
    },
    least_work::PRODUCTS,
    split_products::products,
};
use onnx_tensor::{
    cancelling::Pace,
    faults::{BadInput, Limit, Unsupported, ensure_input},
    node::Node,
    operator::Compute,
    size, split,
};
use onnx_tensor::{
    elements::{elements, tensor},
    node::Attributes,
    operator::{Fact, Kernel, kernel},
};

/// Builds the operator `GroupQueryAttention`.
pub fn grouped_attention(node: &Node) -> Result<Box<dyn Compute>> {
    let attributes = Attributes(node);
    let heads = |name: &str| -> Result<usize> {
        let heads = usize::try_from(attributes.int(name, 0)).ok();
        let heads = heads.filter(|heads| (1..1 << 24).contains(heads));
        heads.with_context(|| format!("{name} must be a positive number"))
    };
    let (heads, shared) = (heads("num_heads")?, heads("kv_num_heads")?);
    ensure!(
        heads % shared == 0,
        "num_heads is {heads}, expected a multiple of kv_num_heads, {shared}"
    );
    check_supported(attributes)?;
    let position = |index: usize| attributes.position(index).context("an input is not given");
    let is_turned = attributes.int("do_rotary", 0) != 0;
    Ok(kernel(GroupedAttention {
        heads,
        shared,
        scale: attributes.float("scale", 0.0),
        cap: attributes.float("softcap", 0.0),
        window: usize::try_from(attributes.int("local_window_size", -1))
            .ok()
            .filter(|&window| window > 0),
        is_causal: attributes.int("causal", 1) != 0,
        is_smooth: attributes.int("smooth_softmax", 0) != 0,
        is_interleaved: attributes.int("rotary_interleaved", 0) != 0,
        keys: attributes.position(1).zip(attributes.position(2)),
        past: attributes.position(3).zip(attributes.position(4)),
        ends: position(5)?,
        total: position(6)?,
        caches: if is_turned {
            Some([position(7)?, position(8)?])
        } else {
            None
        },
        places: attributes.position(9),
        mask: attributes.position(10),
        sinks: attributes.position(11),
    }))
}

/// Checks that a node has only inputs, outputs and attributes that are supported together.
fn check_supported(attributes: Attributes<'_>) -> Result<()> {
    let is_quantized = ["k_quant_type", "v_quant_type"]
        .iter()
        .any(|name| !matches!(attributes.text(name, "NONE"), "" | "NONE"));
    if is_quantized || attributes.has_input(12) || attributes.has_input(13) {
        bail!(Unsupported::Here(
            "quantized keys and values (k_scale, v_scale) are not supported, only those of FP32".to_owned()
        ));
    }
    if attributes.int("qk_output", 0) != 0 || attributes.has_output(3) {
        bail!(Unsupported::Here(
            "the output output_qk is not supported".to_owned()
        ));
    }
    for (input, name) in [
        (14, "q_norm_weight"),
        (15, "k_norm_weight"),
        (16, "query_seqlens"),
    ] {
        if attributes.has_input(input) {
            bail!(Unsupported::Here(format!("the input {name} is not supported")));
        }
    }
    ensure!(
        attributes.has_input(3) == attributes.has_input(4)
            && attributes.has_input(1) == attributes.has_input(2),
        "key and value, past_key and past_value must each be given together"
    );
    if attributes.int("local_window_size", -1) == 0 {
        bail!(Unsupported::Here(
            "a local_window_size of 0 is not supported".to_owned()
        ));
    }
    Ok(())
}

#[derive(Debug)]
struct GroupedAttention {
    heads: usize,
    /// The number of key-value heads.
    shared: usize,
    /// The factor for scores; 0 stands for the inverse square root of the head size.
    scale: f32,
    cap: f32,
    /// Number of past tokens that are visible in a sliding window; `None` for all.
    window: Option<usize>,
    /// Whether later tokens are masked.
    is_causal: bool,
    is_smooth: bool,
    is_interleaved: bool,
    /// Input indices of keys and values; `None` if queries, keys and values are packed in one input.
    keys: Option<(usize, usize)>,
    past: Option<(usize, usize)>,
    ends: usize,
    total: usize,
    caches: Option<[usize; 2]>,
    places: Option<usize>,
    mask: Option<usize>,
    sinks: Option<usize>,
}

impl GroupedAttention {
    /// Returns the head size, for rows of `row` elements; `None` if the heads do not divide the row.
    fn width(&self, row: usize) -> Option<usize> {
        let heads = match self.keys {
            Some(_) => self.heads,
            None => self.heads + 2 * self.shared,
        };
        row.is_multiple_of(heads).then(|| row / heads)
    }

    /// Splits queries, keys and values into heads.
    fn parts(&self, inputs: &[Arc<Tensor>], width: usize) -> Result<[Vec<f32>; 3]> {
        let &[batch, rows, row] = inputs[0].shape() else {
            bail!("queries of {} dimensions", inputs[0].rank());
        };
        let given = elements::<f32>(&inputs[0])?;
        let Some((keys, values)) = self.keys else {
            let by_head = swapped(given, [batch, rows, row / width.max(1), width])?;
            let counts = [self.heads, self.shared, self.shared].map(|heads| heads * rows * width);
            let mut parts = [const { Vec::new() }; 3];
            let mut pace = Pace::default();
            for batch in by_head.chunks_exact((row * rows).max(1)) {
                let mut first = 0;
                for (part, count) in parts.iter_mut().zip(counts) {
                    pace.append(&batch[first..first + count], part)?;
                    first += count;
                }
            }
            return Ok(parts);
        };
        let shared = |place: usize| -> Result<Vec<f32>> {
            let given = &inputs[place];
            ensure_input!(
                given.shape() == [batch, rows, self.shared * width],
                "keys or values of {:?} for queries of {:?}",
                given.shape(),
                inputs[0].shape()
            );
            swapped(elements::<f32>(given)?, [batch, rows, self.shared, width])
        };
        Ok([
            swapped(given, [batch, rows, self.heads, width])?,
            shared(keys)?,
            shared(values)?,
        ])
    }
}

impl Kernel for GroupedAttention {
    fn outputs(&self, inputs: &[Fact]) -> Result<Vec<Fact>> {
        let queries = inputs.first().context("no input")?;
        let floats = [self.keys, self.past].into_iter().flatten();
        let mut floats = floats
            .flat_map(|(key, value)| [&inputs[key], &inputs[value]])
            .chain([queries]);
        if floats.any(|fact| fact.element_type != ElementType::F32) {
            bail!(Unsupported::Here("is supported for FP32 only".to_owned()));
        }
        let has_rank = |place: usize, rank: usize| inputs.get(place).is_some_and(|fact| fact.rank() == rank);
        let caches = self.caches.into_iter().flatten();
        let past = self.past.into_iter().flat_map(|(key, value)| [key, value]);
        let is_float = |place: usize| {
            inputs
                .get(place)
                .is_some_and(|fact| fact.element_type == ElementType::F32)
        };
        let others = [self.mask, self.sinks]
            .into_iter()
            .flatten()
            .chain(caches.clone());
        if !caches.clone().all(|place| has_rank(place, 2))
            || !past.clone().all(|place| has_rank(place, 4))
            || !others.clone().all(is_float)
            || self.mask.is_some_and(|place| !has_rank(place, 4))
            || self.sinks.is_some_and(|place| !has_rank(place, 1))
        {
            bail!(Limit(
                "needs caches of 2 dimensions, past_key, past_value and attention_bias of 4, head_sink of 1, all FP32".to_owned()
            ));
        }
        let [batch, rows, row] = &*queries.shape else {
            bail!("queries of {} dimensions", queries.rank());
        };
        let width = row.to_usize().and_then(|row| self.width(row));
        let Some(width) = width else {
            bail!(Limit(
                "needs rows whose length is known and fits its heads".to_owned()
            ));
        };
        let total = inputs[self.total].dims().and_then(|dims| dims.first().copied());
        let past = self.past.map(|(key, _)| inputs[key].shape.get(2).copied());
        let past = past.map_or(Some(0.to_dim()), |past| past);
        let kept = match (
            total.map(onnx_tensor::Dim::to_usize),
            past.map(onnx_tensor::Dim::to_usize),
        ) {
            (Some(Some(total)), Some(Some(past))) => total.max(past).to_dim(),
            _ => Dim::unknown(),
        };
        let kept = Fact::new(
            ElementType::F32,
            [*batch, self.shared.to_dim(), kept, width.to_dim()],
        );
        Ok(vec![
            Fact::new(ElementType::F32, [*batch, *rows, (self.heads * width).to_dim()]),
            kept.clone(),
            kept,
        ])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> Result<ShortVec<Tensor>> {
        let &[batch, rows, row] = inputs[0].shape() else {
            bail!("queries of {} dimensions", inputs[0].rank());
        };
        let width = self.width(row).context("rows that do not fit the heads")?;
        let tokens = self.tokens(inputs, batch, rows, width)?;
        let [mut queries, mut keys, values] = self.parts(inputs, width)?;
        if let Some(caches) = self.caches {
            let places = self.positions(inputs, &tokens)?;
            let caches = caches.map(|place| &inputs[place]);
            self.turned(&mut queries, self.heads, rows, width, &places, caches)?;
            self.turned(&mut keys, self.shared, rows, width, &places, caches)?;
        }
        let past = self.past.map(|(key, value)| [&inputs[key], &inputs[value]]);
        let [past_keys, past_values] = match past {
            Some([keys, values]) => [elements::<f32>(keys)?, elements::<f32>(values)?],
            None => [&[][..]; 2],
        };
        let keys = self.kept(&tokens, past_keys, &keys, width)?;
        let values = self.kept(&tokens, past_values, &values, width)?;
        let made = self.attend(inputs, &tokens, [&queries, &keys, &values], width)?;
        let shape = [batch, self.shared, tokens.kept(), width];
        Ok(smallvec![
            tensor(
                &[batch, rows, self.heads * width],
                swapped(&made, [batch, self.heads, rows, width])?
            )?,
            tensor(&shape, keys)?,
            tensor(&shape, values)?,
        ])
    }
}

/// Token counts of a run.
struct Tokens {
    /// New tokens of each batch entry.
    rows: usize,
    /// Past and new tokens of the longest batch entry.
    total: usize,
    /// Capacity of the given caches, in tokens.
    before: usize,
    /// For each batch entry, the position of its last token.
    ends: Vec<usize>,
    /// For each batch entry, the number of its past tokens.
    pasts: Vec<usize>,
}

impl Tokens {
    fn batch(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no past tokens.
    fn is_prompt(&self) -> bool {
        self.rows == self.total
    }

    /// Returns the number of tokens in the caches after the run.
    fn kept(&self) -> usize {
        self.total.max(self.before)
    }
}

impl GroupedAttention {
    /// Reads the token counts from the inputs and checks them.
    fn tokens(&self, inputs: &[Arc<Tensor>], batch: usize, rows: usize, width: usize) -> Result<Tokens> {
        let total = whole_numbers(&inputs[self.total])?;
        ensure_input!(
            !total.is_empty(),
            "total_sequence_length is empty, expected one number"
        );
        let total = total[0];
        let ends = whole_numbers(&inputs[self.ends])?;
        ensure_input!(
            ends.len() == batch && total >= rows && ends.iter().all(|&end| end < total),
            "seqlens_k is {ends:?}, which does not fit {batch} batches of {rows} of {total} words"
        );
        let is_prompt = rows == total;
        ensure_input!(
            is_prompt || rows == 1 || batch == 1,
            "several new tokens after earlier ones need a batch size of 1, found {batch}"
        );
        ensure_input!(
            is_prompt || ends.iter().all(|end| end + 1 >= rows),
            "seqlens_k is {ends:?}, which leaves no room for {rows} new words"
        );
        let before = match self.past {
            Some((key, value)) => {
                let shape = inputs[key].shape();
                let is_same = shape == inputs[value].shape();
                match *shape {
                    [b, s, before, w] if is_same && [b, s, w] == [batch, self.shared, width] => before,
                    _ => bail!(BadInput(format!("earlier keys of {shape:?}"))),
                }
            }
            None => 0,
        };
        ensure_input!(
            total == before + rows || total <= before,
            "a total_sequence_length of {total} for {before} words before {rows}, expected their sum, or as many as are kept"
        );
        size::admit_shape(ElementType::F32, &[batch, self.shared, total.max(before), width])?;
        let pasts: Vec<usize> = ends
            .iter()
            .map(|end| if is_prompt { 0 } else { end + 1 - rows })
            .collect();
        let longest = pasts.iter().max().copied().unwrap_or(0);
        ensure_input!(
            longest <= before,
            "seqlens_k counts {longest} earlier words, and past_key has {before}"
        );
        Ok(Tokens {
            rows,
            total,
            before,
            ends,
            pasts,
        })
    }

    /// Returns the position of each new token, by which its queries and keys are rotated.
    fn positions(&self, inputs: &[Arc<Tensor>], tokens: &Tokens) -> Result<Vec<usize>> {
        let (batch, rows) = (tokens.batch(), tokens.rows);
        let places: Vec<usize> = match self.places {
            // For a prompt, only the first position is read, as in ONNX Runtime. The rows of each batch entry
            // are numbered from this position on.
            Some(place) if tokens.is_prompt() => {
                let given = whole_numbers(&inputs[place])?;
                let first = given.first().copied().unwrap_or(0);
                (0..given.len()).map(|at| first + at % rows.max(1)).collect()
            }
            Some(place) => whole_numbers(&inputs[place])?,
            None => {
                let pasts = tokens.pasts.iter();
                pasts
                    .flat_map(|past| (0..rows).map(move |row| past + row))
                    .collect()
            }
        };
        ensure_input!(
            places.len() == batch * rows,
            "position_ids has {} positions for {} words",
            places.len(),
            batch * rows
        );
        Ok(places)
    }

    /// Returns the cache after the run: past keys or values, followed by the new ones.
    fn kept(&self, tokens: &Tokens, past: &[f32], new: &[f32], width: usize) -> Result<Vec<f32>> {
        let (rows, kept) = (tokens.rows, tokens.kept());
        let mut pace = Pace::default();
        let mut made = vec![0.0; tokens.batch() * self.shared * kept * width];
        for (index, made) in made.chunks_exact_mut((kept * width).max(1)).enumerate() {
            let end = tokens.pasts[index / self.shared] * width;
            let past = &past[index * tokens.before * width..][..end];
            pace.pairs(past, &mut made[..end], |from, to| to.copy_from_slice(from))?;
            let new = &new[index * rows * width..][..rows * width];
            pace.pairs(new, &mut made[end..], |from, to| to.copy_from_slice(from))?;
        }
        Ok(made)
    }

    /// Computes the weighted sums of values for all queries, by batch entry, head and row.
    fn attend(
        &self,
        inputs: &[Arc<Tensor>],
        tokens: &Tokens,
        [queries, keys, values]: [&[f32]; 3],
        width: usize,
    ) -> Result<Vec<f32>> {
        let (batch, kept) = (tokens.batch(), tokens.kept());
        let &Tokens { rows, total, .. } = tokens;
        let scale = match self.scale {
            0.0 => 1.0 / (width as f32).sqrt(),
            scale => scale,
        };
        let mask = match self.mask {
            Some(place) => Some(Mask::of(&inputs[place], [batch, self.heads, rows, total])?),
            None => None,
        };
        let sinks = self
            .sinks
            .map(|place| elements::<f32>(&inputs[place]))
            .transpose()?;
        ensure_input!(
            sinks.is_none_or(|sinks| sinks.len() == self.heads),
            "head_sink needs a number for each of {} heads",
            self.heads
        );
        query_block::ask(batch * self.heads, rows, [width, total, width])?;
        let mut made = vec![0.0; batch * self.heads * rows * width];
        let size = (rows * width).max(1);
        let work = [products([batch * self.heads * rows, total, 2 * width]), PRODUCTS];
        split::lines(&mut made, size, work, |first_head, made, _| {
            let mut work = QueryBlock::new(rows, total, width, width);
            for (index, made) in (first_head..).zip(made.chunks_exact_mut(size)) {
                let (batch, head) = (index / self.heads, index % self.heads);
                let from = batch * self.shared + head / (self.heads / self.shared);
                let [keys, values] =
                    [keys, values].map(|kept_rows| &kept_rows[from * kept * width..][..total * width]);
                let sink = match sinks {
                    Some(sinks) => Some(sinks[head]),
                    None => self.is_smooth.then_some(0.0),
                };
                work.take_head(from, keys, values)?;
                for first in (0..rows).step_by(work.rows) {
                    let count = work.rows.min(rows - first);
                    let at = (index * rows + first) * width;
                    work.products(&queries[at..at + count * width], scale)?;
                    work.cap(self.cap)?;
                    if let Some(mask) = &mask {
                        work.add(mask, [batch, head, first])?;
                    }
                    work.hide(|row| {
                        let next = match self.is_causal {
                            true => tokens.pasts[batch] + first + row + 1,
                            false => tokens.ends[batch] + 1,
                        };
                        // A padding row is past the end. Its window begins where the window of a token at its
                        // position would begin.
                        let end = next.min(tokens.ends[batch] + 1);
                        let start = self.window.map_or(0, |window| next.saturating_sub(window));
                        start.min(end)..end
                    })?;
                    work.weigh(sink)?;
                    work.sums(&mut made[first * width..][..count * width])?;
                }
            }
            Ok(())
        })?;
        Ok(made)
    }

    /// Rotates queries or keys by the positions of their tokens.
    fn turned(
        &self,
        numbers: &mut [f32],
        heads: usize,
        rows: usize,
        width: usize,
        places: &[usize],
        [cos, sin]: [&Arc<Tensor>; 2],
    ) -> Result<()> {
        let &[lines, half] = cos.shape() else {
            bail!("a cache of {} dimensions", cos.rank());
        };
        ensure_input!(
            sin.shape() == cos.shape() && 2 * half <= width && places.iter().all(|&place| place < lines),
            "caches of {:?} and {:?} for {width} elements of a head",
            cos.shape(),
            sin.shape()
        );
        let (cos, sin) = (elements::<f32>(cos)?, elements::<f32>(sin)?);
        let mut pace = Pace::default();
        for (index, head) in numbers.chunks_exact_mut(width.max(1)).enumerate() {
            pace.spend(width as u64)?;
            let line = places[index / (heads * rows) * rows + index % rows] * half;
            let caches = [cos, sin].map(|cache| &cache[line..line + half]);
            turn(&mut head[..2 * half], caches, self.is_interleaved);
        }
        Ok(())
    }
}

fn whole_numbers(given: &Tensor) -> Result<Vec<usize>> {
    let given = given.cast_to::<i64>()?;
    let numbers = elements::<i64>(&given)?.iter();
    numbers
        .map(|&number| {
            let number = usize::try_from(number).ok().filter(|&number| number < 1 << 31);
            number.ok_or_else(|| {
                BadInput("seqlens_k or total_sequence_length is below zero or too large".to_owned()).into()
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use onnx_tensor::testing::{cube, node};

    /// Checks a padding row: with a window of 2, row 2 of a prompt reads keys 1 and 2, and key 2 is padding
    /// in a sequence of 2 tokens.
    #[test]
    fn the_window_of_a_padding_row_begins_at_its_own_position() {
        let attributes = [("num_heads", 1), ("kv_num_heads", 1), ("local_window_size", 2)];
        let mut node = node("GroupQueryAttention", &[], &attributes, 3);
        let names = ["query", "key", "value", "", "", "seqlens_k", "total"];
        node.input = names.map(str::to_owned).to_vec();
        let rows = || cube(&[[[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]]).into_arc();
        let (ends, total) = (Tensor::vector(&[1i32]), Tensor::scalar(3i32));
        let mut inputs: ShortVec<Arc<Tensor>> =
            ShortVec::from_vec(vec![rows(), rows(), rows(), ends.into_arc(), total.into_arc()]);
        let outputs = grouped_attention(&node).unwrap().run(&mut inputs).unwrap();
        assert_eq!(elements::<f32>(&outputs[0]).unwrap()[4..], [3.0, 4.0]);
    }
}
