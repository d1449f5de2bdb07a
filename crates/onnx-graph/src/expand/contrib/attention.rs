//! `Attention`, `QAttention`, `MultiHeadAttention` and `DecoderMaskedMultiHeadAttention`, expanded into
//! products and a softmax, with past keys and values.

use super::{RewriteResult, Unsupported};
use crate::expand::{
    graph::{float, int, ints},
    replacement::Replacement,
};

/// Names of the graph's values that contain queries, keys and values, split into heads. Past keys and values
/// come before the new ones.
struct Heads {
    queries: String,
    keys: String,
    values: String,
    /// Name of the past keys; `None` if there are none.
    past: Option<String>,
}

/// Indices of the inputs that are added to the scores: the mask and the bias.
struct ScoreTerms {
    mask: usize,
    bias: Option<usize>,
}

/// Names of the values that form the key-value cache.
struct Cache {
    /// Past keys and values, or shared buffers for past and present ones.
    past: [Option<String>; 2],
    /// The number of past rows in shared buffers; `None` if the buffers are not shared.
    length: Option<String>,
    /// For a beam search, the index of the beam that owns each row; otherwise `None`.
    beams: Option<String>,
}

impl Replacement<'_> {
    /// Emits nodes for self-attention whose queries, keys and values come from one product.
    pub(super) fn attention(&mut self) -> RewriteResult {
        self.without_input(6, "past_sequence_length")?;
        let product = self.op("MatMul", &[self.given(0)?, self.given(1)?], vec![]);
        let product = self.with_bias(product, 2);
        let added = ScoreTerms {
            mask: 3,
            bias: Some(5),
        };
        self.attended(product, 4, &added)
    }

    pub(super) fn quantized_attention(&mut self) -> RewriteResult {
        self.given(1)?;
        let product = self.op("MatMulInteger", &self.inputs(&[0, 1, 6, 7]), vec![]);
        let scale = self.op("Mul", &[self.given(3)?, self.given(4)?], vec![]);
        let product = self.rescaled(product, scale, 2);
        self.attended(product, 8, &ScoreTerms { mask: 5, bias: None })
    }

    /// Emits nodes for attention over the concatenated product of queries, keys and values. Input `past`
    /// contains past keys and values; output 1 receives the past and present ones.
    fn attended(&mut self, product: String, past: usize, added: &ScoreTerms) -> RewriteResult {
        self.with_default("do_rotary", 0)?;
        self.with_default("past_present_share_buffer", 0)?;
        let heads = self.heads()?;
        let parts = match self.attribute("qkv_hidden_sizes").map(|sizes| sizes.ints.clone()) {
            Some(sizes) => {
                let sizes = self.indices(&sizes);
                self.newer("Split", &[product, sizes], vec![int("axis", -1)])
            }
            None => self.newer("Split", &[product], vec![int("axis", -1), int("num_outputs", 3)]),
        };
        let [keys, values] = self.more_outputs();
        let earlier = self.input(past).map(|past| {
            let first = self.newer("Split", &[past], vec![int("axis", 0), int("num_outputs", 2)]);
            let [second] = self.more_outputs();
            [first, second].map(|part| {
                let axes = self.indices(&[0]);
                self.newer("Squeeze", &[part, axes], vec![])
            })
        });
        let queries = self.queries(parts, None, heads);
        let [past_keys, past_values] = match &earlier {
            Some([keys, values]) => [Some(keys.clone()), Some(values.clone())],
            None => [None, None],
        };
        let keys = self.split_heads(&[keys], heads, 1, past_keys.clone());
        let values = self.split_heads(&[values], heads, 2, past_values);
        if self.wants(1) {
            let both = [&keys, &values].map(|part| {
                let axes = self.indices(&[0]);
                self.newer("Unsqueeze", &[part.clone(), axes], vec![])
            });
            let present = self.op("Concat", &both, vec![int("axis", 0)]);
            self.give(1, present);
        }
        let all = Heads {
            queries,
            keys,
            values,
            past: past_keys,
        };
        let y = self.weighted(all, added);
        self.give(0, y);
        Ok(())
    }

    /// Emits nodes for attention with separate queries, keys and values, and optional past keys and values.
    pub(super) fn multi_head_attention(&mut self) -> RewriteResult {
        let query = self.given(0)?;
        let (Some(keys), Some(values)) = (self.input(1), self.input(2)) else {
            return Err(Unsupported::Anywhere(
                "needs the inputs key and value: packed queries, keys and values are not supported"
                    .to_owned(),
            ));
        };
        if self.input(6).is_some() != self.input(7).is_some() {
            return Err(Unsupported::Anywhere(
                "past_key and past_value must both be given, or none of them".to_owned(),
            ));
        }
        let cache = match (self.input(8), self.input(9)) {
            (None, Some(_)) => {
                return Err(
                    "the input cache_indirection without past_sequence_length is not supported"
                        .to_owned()
                        .into(),
                );
            }
            (length, beams) => Cache {
                past: [self.input(6), self.input(7)],
                length,
                beams,
            },
        };
        let inputs = [query, keys, values];
        let added = ScoreTerms {
            mask: 4,
            bias: Some(5),
        };
        self.cached_attention(inputs, self.input(3).as_ref(), cache, &added)
    }

    /// Emits nodes for attention of one query per batch entry, over a cache or over the keys of another
    /// sequence.
    pub(super) fn decoder_attention(&mut self) -> RewriteResult {
        let query = self.given(0)?;
        let (Some(keys), Some(values)) = (self.input(1), self.input(2)) else {
            return Err(Unsupported::Anywhere(
                "needs the inputs key and value: packed queries, keys and values are not supported"
                    .to_owned(),
            ));
        };
        if self.input(5).is_some() != self.input(6).is_some() {
            return Err(Unsupported::Anywhere(
                "past_key and past_value must both be given, or none of them".to_owned(),
            ));
        }
        let past = [self.input(5), self.input(6)];
        // If the buffer is not shared, new rows are appended to the past ones.
        let is_shared = past[0].is_some() && self.int("past_present_share_buffer", 0) != 0;
        let cache = Cache {
            past,
            length: match is_shared {
                true => Some(self.given(7)?),
                false => None,
            },
            beams: self.input(9).filter(|_| is_shared),
        };
        if !is_shared && self.input(5).is_some() && self.input(9).is_some() {
            return Err(Unsupported::Anywhere(
                "the input cache_indirection is supported with past_present_share_buffer only".to_owned(),
            ));
        }
        let added = ScoreTerms {
            mask: 3,
            bias: Some(4),
        };
        self.cached_attention([query, keys, values], self.input(10).as_ref(), cache, &added)
    }

    /// Emits the node's four outputs, computed from the queries, keys, values, their bias and the cache.
    fn cached_attention(
        &mut self,
        [query, keys, values]: [String; 3],
        bias: Option<&String>,
        cache: Cache,
        added: &ScoreTerms,
    ) -> RewriteResult {
        if cache.length.is_some() && self.int("unidirectional", 0) != 0 {
            return Err(
                "the attribute 'unidirectional' with past_sequence_length is not supported"
                    .to_owned()
                    .into(),
            );
        }
        let heads = self.heads()?;
        let query = self.ranked(query, "query", 3..=3);
        let keys = self.ranked(keys, "key", 3..=4);
        let values = self.ranked(values, "value", 3..=4);
        let with_bias =
            |part: &String| -> Vec<String> { std::iter::once(part).chain(bias).cloned().collect() };
        let queries = self.queries(query, bias.cloned(), heads);
        let Cache { past, length, beams } = cache;
        let mut kept = |inputs: &[String], part: i64, output: usize, past: Option<String>| -> String {
            let (Some(length), Some(buffer)) = (&length, &past) else {
                let all = self.split_heads(inputs, heads, part, past);
                self.give(output, all.clone());
                return all;
            };
            let new = self.split_heads(inputs, heads, part, None);
            let written = [buffer.clone(), new.clone(), length.clone()];
            let present = self.newer("TensorScatter", &written, vec![int("axis", 2)]);
            self.give(output, present.clone());
            let inputs: Vec<String> = [present, length.clone(), new]
                .into_iter()
                .chain(beams.clone())
                .collect();
            self.newer("CachedRows", &inputs, vec![])
        };
        let [past_keys, past_values] = past;
        let keys = kept(&with_bias(&keys), 1, 1, past_keys.clone());
        let values = kept(&with_bias(&values), 2, 2, past_values);
        let all = Heads {
            queries,
            keys,
            values,
            past: past_keys,
        };
        let y = self.weighted(all, added);
        self.give(0, y);
        Ok(())
    }

    fn heads(&self) -> Result<i64, String> {
        let heads = self.int("num_heads", 0);
        match (1..1 << 24).contains(&heads) {
            true => Ok(heads),
            false => Err(format!(
                "the attribute 'num_heads' is {heads}, expected a positive number"
            )),
        }
    }

    /// Adds `N` outputs to the node that was emitted last, and returns their names.
    fn more_outputs<const N: usize>(&mut self) -> [String; N] {
        let names = std::array::from_fn(|_| self.fresh());
        if let Some(made) = self.made.last_mut() {
            made.output.extend(names.clone());
        }
        names
    }

    /// Splits queries into heads and scales them.
    fn queries(&mut self, rows: String, bias: Option<String>, heads: i64) -> String {
        let inputs: Vec<String> = std::iter::once(rows).chain(bias).collect();
        let scale = float("scale", self.float("scale", 0.0));
        self.newer(
            "SplitHeads",
            &inputs,
            vec![int("num_heads", heads), int("part", 0), scale],
        )
    }

    /// Splits keys or values into heads, and appends them to the `past` ones. `part` selects the bias: the
    /// second part is for keys, the last one for values.
    fn split_heads(&mut self, inputs: &[String], heads: i64, part: i64, past: Option<String>) -> String {
        let attributes = vec![int("num_heads", heads), int("part", part)];
        let made = self.newer("SplitHeads", inputs, attributes);
        match past {
            Some(past) => self.op("Concat", &[past, made], vec![int("axis", 2)]),
            None => made,
        }
    }

    /// Weights values by scores and concatenates the heads.
    fn weighted(&mut self, heads: Heads, added: &ScoreTerms) -> String {
        let turned = self.newer("TransposeLast", &[heads.keys], vec![]);
        let mut scores = self.op("MatMul", &[heads.queries, turned], vec![]);
        if let Some(mask) = self.input(added.mask) {
            let filter = vec![float(
                "mask_filter_value",
                self.float("mask_filter_value", -10000.0),
            )];
            let mask = self.newer("AttentionMask", &[mask, scores.clone()], filter);
            scores = self.op("Add", &[scores, mask], vec![]);
        }
        if let Some(bias) = added.bias {
            scores = self.with_bias(scores, bias);
        }
        if self.int("unidirectional", 0) != 0 {
            let inputs: Vec<String> = std::iter::once(scores.clone()).chain(heads.past).collect();
            let mask = self.newer("CausalMask", &inputs, vec![]);
            scores = self.op("Add", &[scores, mask], vec![]);
        }
        // ONNX Runtime's qk output includes the mask and the bias.
        self.give(3, scores.clone());
        let weights = self.newer("Softmax", &[scores], vec![int("axis", -1)]);
        let y = self.op("MatMul", &[weights, heads.values], vec![]);
        let y = self.op("Transpose", &[y], vec![ints("perm", &[0, 2, 1, 3])]);
        let joined = self.indices(&[0, 0, -1]);
        self.newer("Reshape", &[y, joined], vec![])
    }
}
