//! Fuses attention, as exporters write it: two products with a softmax between them.

use onnx_tensor::node::{Attribute, Attributes, Node};

use crate::steps::{
    fusion_graph::{Fused, Graph},
    values::Slot,
};

/// Maximum number of functions between the first product and the softmax.
const MOST_STAGES: usize = 4;

/// The nodes before a softmax.
struct Scores {
    queries: Slot,
    keys: Slot,
    /// The operators after the product, each with its other input.
    stages: Vec<(&'static str, Slot)>,
    steps: Vec<usize>,
}

impl Graph<'_> {
    /// Fuses two products of computed factors, the `softmax` between them, and the nodes that scale or mask
    /// the scores.
    pub(super) fn attention(&self, softmax: usize) -> Option<Fused> {
        let node = self.node(softmax)?;
        let scores = self.scores(self.input(softmax, 0)?, softmax, MOST_STAGES)?;
        let mut steps = scores.steps;
        steps.push(softmax);
        let mut last = self.only_reader(softmax)?;
        let transposes = self.op_type(last) == "Transpose";
        if transposes {
            self.swaps_last_axes(last).then_some(())?;
            steps.push(last);
            last = self.only_reader(last)?;
        }
        let weights = self.output(*steps.last()?)?;
        let place = usize::from(transposes);
        let is_product = self.op_type(last) == "MatMul" && self.input(last, place) == Some(weights);
        let values = self
            .input(last, 1 - place)
            .filter(|&slot| is_product && slot != weights)?;
        self.is_computed(values).then_some(())?;
        steps.push(last);
        let operands = scores.stages.iter().map(|&(_, operand)| operand);
        let inputs = [scores.queries, scores.keys, values].into_iter().chain(operands);
        let fused = self.fused("tensorferry/FusedAttention", node.opset, inputs.collect(), steps)?;
        let names: Vec<&str> = scores.stages.iter().map(|&(name, _)| name).collect();
        let stages = Attribute {
            name: "stages".to_owned(),
            s: names.join(" ").into_bytes(),
            ..Attribute::default()
        };
        let transposes = Attribute {
            name: "transposes".to_owned(),
            i: transposes.into(),
            ..Attribute::default()
        };
        let axis = Attributes(node).get("axis").cloned();
        Some(Fused {
            node: Node {
                domain: "tensorferry".to_owned(),
                attribute: [stages, transposes].into_iter().chain(axis).collect(),
                ..fused.node
            },
            ..fused
        })
    }

    /// Returns the nodes that compute `slot`, which only `reader` reads, if they are a product and at most
    /// `stages` functions.
    fn scores(&self, slot: Slot, reader: usize, stages: usize) -> Option<Scores> {
        if let Some(product) = self.maker(slot, "MatMul") {
            let (queries, keys) = (self.input(product, 0)?, self.input(product, 1)?);
            let is_read_once = self.only_reader(product) == Some(reader);
            return (is_read_once && self.is_computed(keys)).then(|| Scores {
                queries,
                keys,
                stages: vec![],
                steps: vec![product],
            });
        }
        let stages = stages.checked_sub(1)?;
        for name in ["Add", "Div", "Mul"] {
            let Some(at) = self.maker(slot, name) else {
                continue;
            };
            let is_plain = self.node(at)?.attribute.is_empty() && self.only_reader(at) == Some(reader);
            let (first, second) = (self.input(at, 0)?, self.input(at, 1)?);
            (is_plain && first != second).then_some(())?;
            let mut found = self.scores(first, at, stages).map(|scores| (scores, second));
            if found.is_none() && name != "Div" {
                found = self.scores(second, at, stages).map(|scores| (scores, first));
            }
            let (mut scores, operand) = found?;
            scores.stages.push((name, operand));
            scores.steps.push(at);
            return Some(scores);
        }
        None
    }

    /// Returns whether a value is computed in a run. The factor of a product that is a constant is packed
    /// once instead.
    fn is_computed(&self, slot: Slot) -> bool {
        !self.constants.contains_key(&slot) && !self.dequantized.contains_key(&slot)
    }

    /// Returns whether a `Transpose` swaps the last two axes and no others.
    fn swaps_last_axes(&self, transpose: usize) -> bool {
        let order = self.node(transpose).map(|node| Attributes(node).ints("perm"));
        let Some([before @ .., second, first]) = order else {
            return false;
        };
        let rank = before.len() as i64 + 2;
        let are_kept = before.iter().enumerate().all(|(axis, &from)| from == axis as i64);
        are_kept && [*second, *first] == [rank - 1, rank - 2]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{NodeProto, TensorProto};
    use onnx_tensor::{elements::elements, prelude::*};

    use crate::{
        Session,
        steps::body::Step,
        test_models::{constant, int, ints, model, node, with},
    };

    /// Prepares a model whose queries, keys and values are computed from `x` of shape [rows, 4]. `inner`
    /// computes `y`.
    fn session(inner: &[NodeProto]) -> Session {
        let mut nodes = vec![
            node("Neg", &["x"], "queries"),
            with(node("Transpose", &["x"], "keys"), [ints("perm", &[1, 0])]),
            node("Abs", &["x"], "values"),
            with(node("Transpose", &["values"], "turned"), [ints("perm", &[1, 0])]),
        ];
        nodes.extend_from_slice(inner);
        let number = |name: &str, value: f32| TensorProto {
            dims: vec![],
            raw_data: value.to_le_bytes().to_vec().into(),
            ..constant(name, &[1])
        };
        let constants = vec![
            number("scale", 0.5),
            number("zero", 0.0),
            constant("weights", &[4, 9]),
        ];
        Session::prepare(&model(nodes, &[-1, 4], &[-1, -1], constants), |_| Ok(())).unwrap()
    }

    fn operators(session: &Session) -> Vec<&str> {
        let steps = session.body.steps.iter().map(|step| match step {
            Step::Node(node) => node.direct().op_type(),
            _ => "",
        });
        steps.collect()
    }

    fn is_fused(session: &Session) -> bool {
        operators(session).contains(&"tensorferry/FusedAttention")
    }

    fn answer(session: &Session) -> Vec<f32> {
        let numbers: Vec<f32> = (0..9 * 4).map(|at| (at * 7 % 23) as f32 / 4.0 - 2.0).collect();
        let made = session
            .run([Tensor::from_shape(&[9, 4], &numbers).unwrap()])
            .unwrap();
        elements::<f32>(&made[0]).unwrap().to_vec()
    }

    fn softmax(input: &str) -> NodeProto {
        with(node("Softmax", &[input], "weight"), [int("axis", -1)])
    }

    fn turned() -> NodeProto {
        with(node("Transpose", &["weight"], "across"), [ints("perm", &[1, 0])])
    }

    #[test]
    fn what_exporters_write_for_attention_is_one_node() {
        let product = || node("MatMul", &["queries", "keys"], "scores");
        let last = || node("MatMul", &["weight", "values"], "y");
        let cases = [
            vec![product(), softmax("scores"), last()],
            vec![
                product(),
                node("Mul", &["scale", "scores"], "a"),
                softmax("a"),
                last(),
            ],
            vec![
                product(),
                node("Div", &["scores", "scale"], "a"),
                node("ReduceMax", &["x"], "mask"),
                node("Add", &["mask", "a"], "b"),
                softmax("b"),
                last(),
            ],
            vec![
                product(),
                softmax("scores"),
                turned(),
                node("MatMul", &["turned", "across"], "y"),
            ],
        ];
        for nodes in cases {
            let one = session(&nodes);
            assert!(is_fused(&one), "{:?}", operators(&one));
            // Another node reads the scores, which keeps the nodes apart.
            let mut apart = nodes;
            let last = apart.last_mut().unwrap();
            last.output = vec!["made".to_owned()];
            apart.push(with(node("ReduceSum", &["scores"], "sum"), [int("keepdims", 0)]));
            apart.push(node("Mul", &["sum", "zero"], "nothing"));
            apart.push(node("Add", &["made", "nothing"], "y"));
            let apart = session(&apart);
            assert!(!is_fused(&apart), "{:?}", operators(&apart));
            assert_eq!(answer(&one), answer(&apart));
        }
    }

    #[test]
    fn what_only_resembles_attention_is_left() {
        let product = || node("MatMul", &["queries", "keys"], "scores");
        let cases = [
            // The weights of a product with a constant are packed once.
            vec![
                node("MatMul", &["x", "weights"], "scores"),
                softmax("scores"),
                turned(),
                { node("MatMul", &["across", "values"], "y") },
            ],
            // The scores divide, and the weights are the second factor.
            vec![product(), node("Div", &["scale", "scores"], "a"), softmax("a"), {
                node("MatMul", &["weight", "values"], "y")
            }],
            vec![
                product(),
                softmax("scores"),
                node("MatMul", &["turned", "weight"], "y"),
            ],
            vec![
                product(),
                softmax("scores"),
                node("MatMul", &["weight", "weight"], "y"),
            ],
        ];
        for nodes in cases {
            let session = session(&nodes);
            assert!(!is_fused(&session), "{:?}", operators(&session));
        }
    }
}
