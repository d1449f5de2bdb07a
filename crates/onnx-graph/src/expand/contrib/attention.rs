//! `Attention`, `QAttention` and `MultiHeadAttention`: products and a softmax, with the keys and values of earlier steps before those of
//! this one.

use super::{Unsupported, Written};
use crate::expand::{
    graph::{float, int, ints},
    replacement::Replacement,
};

/// Queries by head, and keys and values with those of earlier steps before them.
struct Heads {
    queries: String,
    keys: String,
    values: String,
    /// Keys of earlier steps, if there are any.
    past: Option<String>,
}

/// The inputs that a mask and what else is added to the scores are.
struct Added {
    mask: usize,
    bias: Option<usize>,
}

impl Replacement<'_> {
    /// Attention of a sequence to itself, by one product that gives queries, keys and values.
    pub(super) fn attention(&mut self) -> Written {
        self.without_input(6, "past_sequence_length")?;
        let product = self.op("MatMul", &[self.given(0)?, self.given(1)?], vec![]);
        let product = self.with_bias(product, 2);
        let added = Added {
            mask: 3,
            bias: Some(5),
        };
        self.attended(product, 4, &added)
    }

    pub(super) fn quantized_attention(&mut self) -> Written {
        self.given(1)?;
        let product = self.op("MatMulInteger", &self.inputs(&[0, 1, 6, 7]), vec![]);
        let scale = self.op("Mul", &[self.given(3)?, self.given(4)?], vec![]);
        let product = self.rescaled(product, scale, 2);
        self.attended(product, 8, &Added { mask: 5, bias: None })
    }

    /// From queries, keys and values beside each other to what attention makes of them. The input `past` has the keys and values of
    /// earlier steps, output 1 those of all.
    fn attended(&mut self, product: String, past: usize, added: &Added) -> Written {
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

    /// Attention of queries to keys and values that come apart from each other, with those of earlier steps before them.
    pub(super) fn multi_head_attention(&mut self) -> Written {
        let query = self.given(0)?;
        let (Some(keys), Some(values)) = (self.input(1), self.input(2)) else {
            return Err(Unsupported::Anywhere(
                "needs the inputs key and value: packed queries, keys and values are not supported"
                    .to_owned(),
            ));
        };
        self.without_input(8, "past_sequence_length")?;
        self.without_input(9, "cache_indirection")?;
        self.without_output(3, "qk")?;
        if self.input(6).is_some() != self.input(7).is_some() {
            return Err("past_key and past_value must both be given, or none of them"
                .to_owned()
                .into());
        }
        let heads = self.heads()?;
        let query = self.ranked(query, "query", 3..=3);
        let keys = self.ranked(keys, "key", 3..=4);
        let values = self.ranked(values, "value", 3..=4);
        let bias = self.input(3);
        let with_bias =
            |part: &String| -> Vec<String> { std::iter::once(part).chain(&bias).cloned().collect() };
        let queries = self.queries(query.clone(), bias.clone(), heads);
        let keys = self.split_heads(&with_bias(&keys), heads, 1, self.input(6));
        let values = self.split_heads(&with_bias(&values), heads, 2, self.input(7));
        self.give(1, keys.clone());
        self.give(2, values.clone());
        let all = Heads {
            queries,
            keys,
            values,
            past: self.input(6),
        };
        let added = Added {
            mask: 4,
            bias: Some(5),
        };
        let y = self.weighted(all, &added);
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

    /// Names for the further outputs of the node that was written last.
    fn more_outputs<const N: usize>(&mut self) -> [String; N] {
        let names = std::array::from_fn(|_| self.fresh());
        if let Some(made) = self.made.last_mut() {
            made.output.extend(names.clone());
        }
        names
    }

    /// Queries by head and scaled, given their rows and a bias of all parts.
    fn queries(&mut self, rows: String, bias: Option<String>, heads: i64) -> String {
        let inputs: Vec<String> = std::iter::once(rows).chain(bias).collect();
        let scale = float("scale", self.float("scale", 0.0));
        self.newer(
            "SplitHeads",
            &inputs,
            vec![int("num_heads", heads), int("part", 0), scale],
        )
    }

    /// Keys or values by head, given their rows and a bias of all parts, behind those of earlier steps. Of the bias the second part is
    /// for keys and the last one for values.
    fn split_heads(&mut self, inputs: &[String], heads: i64, part: i64, past: Option<String>) -> String {
        let attributes = vec![int("num_heads", heads), int("part", part)];
        let made = self.newer("SplitHeads", inputs, attributes);
        match past {
            Some(past) => self.op("Concat", &[past, made], vec![int("axis", 2)]),
            None => made,
        }
    }

    /// Values weighted by scores, the heads beside each other.
    fn weighted(&mut self, heads: Heads, added: &Added) -> String {
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
        let weights = self.newer("Softmax", &[scores], vec![int("axis", -1)]);
        let y = self.op("MatMul", &[weights, heads.values], vec![]);
        let y = self.op("Transpose", &[y], vec![ints("perm", &[0, 2, 1, 3])]);
        let joined = self.indices(&[0, 0, -1]);
        self.newer("Reshape", &[y, joined], vec![])
    }
}
