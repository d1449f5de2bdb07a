//! Rewrites normalizations of rows, of sums with skip connections, and of embeddings.

use super::{RewriteResult, Unsupported};
use crate::expand::{
    graph::{float, int, ints},
    replacement::Replacement,
};

/// Default epsilon of the skip normalizations.
const SKIP_EPSILON: f32 = 1e-12;

impl Replacement<'_> {
    pub(super) fn layer_normalization(&mut self) -> RewriteResult {
        // The definition of `LayerNormalization` has not changed since the operator set that introduced it.
        self.without_output(1, "Mean")?;
        self.without_output(2, "InvStdDev")?;
        let attributes = self.node.attribute.clone();
        let y = self.newer("LayerNormalization", &self.node.input.clone(), attributes);
        self.give(0, y);
        Ok(())
    }

    pub(super) fn simplified_normalization(&mut self) -> RewriteResult {
        let (x, scale) = (self.given(0)?, self.given(1)?);
        self.without_output(1, "inv_std_var")?;
        let attributes = vec![
            int("axis", self.int("axis", -1)),
            float("epsilon", self.float("epsilon", 1e-5)),
        ];
        let y = self.newer("RMSNormalization", &[x, scale], attributes);
        self.give(0, y);
        Ok(())
    }

    pub(super) fn skip_layer_normalization(&mut self) -> RewriteResult {
        let sum = self.skip_sum(4)?;
        let mut inputs = vec![sum.clone(), self.given(2)?];
        inputs.extend(self.input(3));
        let epsilon = self.float("epsilon", SKIP_EPSILON);
        let y = self.newer(
            "LayerNormalization",
            &inputs,
            vec![int("axis", -1), float("epsilon", epsilon)],
        );
        self.give(3, sum);
        self.give(0, y);
        Ok(())
    }

    pub(super) fn skip_simplified_normalization(&mut self) -> RewriteResult {
        let sum = self.skip_sum(3)?;
        let epsilon = self.float("epsilon", SKIP_EPSILON);
        let y = self.root_mean_square(sum.clone(), self.given(2)?, epsilon);
        self.give(3, sum);
        self.give(0, y);
        Ok(())
    }

    /// Emits the sum of input 0, the skip connection in input 1, and the bias in input `bias`.
    fn skip_sum(&mut self, bias: usize) -> Result<String, Unsupported> {
        // ONNX Runtime does not compute these two outputs on CPUs.
        self.without_output(1, "mean")?;
        self.without_output(2, "inv_std_var")?;
        let (input, skip) = (self.given(0)?, self.given(1)?);
        let skip = self.ranked(skip, "skip", 2..=3);
        let sum = self.op("Add", &[input.clone(), skip], vec![]);
        let sum = self.newer("SameShape", &[sum, input], vec![]);
        Ok(self.with_bias(sum, bias))
    }

    /// Emits the normalized sum of word, position and segment embeddings.
    pub(super) fn embed_layer_normalization(&mut self) -> RewriteResult {
        if self.opset < 10 {
            return Err(format!(
                "is not supported in operator set {} of ONNX, only from 10 on",
                self.opset
            )
            .into());
        }
        let words = self.given(0)?;
        let mut sum = self.op("Gather", &[self.given(2)?, words.clone()], vec![]);
        let places = match self.input(8) {
            Some(places) => self.op("Gather", &[self.given(3)?, places], vec![]),
            None => {
                let count = self.newer(
                    "Shape",
                    std::slice::from_ref(&words),
                    vec![int("start", 1), int("end", 2)],
                );
                let (start, axis) = (self.indices(&[0]), self.indices(&[0]));
                self.newer("Slice", &[self.given(3)?, start, count, axis], vec![])
            }
        };
        sum = self.op("Add", &[sum, places], vec![]);
        if let Some(table) = self.input(4) {
            // Without segment ids, all words belong to segment 0.
            let segments = match self.input(1) {
                Some(segments) => segments,
                None => self.indices(&[0]),
            };
            let segments = self.op("Gather", &[table, segments], vec![]);
            sum = self.op("Add", &[sum, segments], vec![]);
        }
        let epsilon = self.float("epsilon", 1e-12);
        let y = self.newer(
            "LayerNormalization",
            &[sum.clone(), self.given(5)?, self.given(6)?],
            vec![int("axis", -1), float("epsilon", epsilon)],
        );
        if self.wants(1) {
            // The number of words that the mask keeps in each row; 0 if there is no mask.
            let mask = match self.input(7) {
                Some(mask) => mask,
                None => self.op("Sub", &[words.clone(), words], vec![]),
            };
            let lengths = self.sums_of_rows(mask);
            self.give(1, lengths);
        }
        self.give(2, sum);
        self.give(0, y);
        Ok(())
    }

    fn sums_of_rows(&mut self, mask: String) -> String {
        if self.opset < 13 {
            return self.op("ReduceSum", &[mask], vec![ints("axes", &[1]), int("keepdims", 0)]);
        }
        let axes = self.indices(&[1]);
        self.op("ReduceSum", &[mask, axes], vec![int("keepdims", 0)])
    }

    /// Emits `x / sqrt(mean(x * x) + epsilon) * scale` for each row.
    fn root_mean_square(&mut self, x: String, scale: String, epsilon: f32) -> String {
        let attributes = vec![int("axis", -1), float("epsilon", epsilon)];
        self.newer("RMSNormalization", &[x, scale], attributes)
    }
}
