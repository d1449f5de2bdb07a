//! Rewrites 8-bit matrix products.

use super::{RewriteResult, Unsupported};
use crate::{
    expand::{
        graph::{float, int, node},
        replacement::Replacement,
    },
    proto::tensor_proto::DataType,
};

impl Replacement<'_> {
    pub(super) fn dynamic_quantize_mat_mul(&mut self) -> RewriteResult {
        let base = self.fresh();
        let [quantized, scale, zero_point] = ["q", "s", "z"].map(|suffix| format!("{base}{suffix}"));
        let a = self.given(0)?;
        let a = self.ranked(a, "A", 2..=i64::MAX);
        let mut quantize = node(
            "DynamicQuantizeLinear",
            &self.node.name,
            vec![a],
            quantized.clone(),
            vec![],
        );
        quantize.output.extend([scale.clone(), zero_point.clone()]);
        self.made.push(quantize);
        let b = self.weights()?;
        let mut factors = vec![quantized, b, zero_point];
        factors.extend(self.input(3));
        let product = self.op("MatMulInteger", &factors, vec![]);
        let scale = self.op("Mul", &[scale, self.given(2)?], vec![]);
        let y = self.rescaled(product, scale, 4);
        self.give(0, y);
        Ok(())
    }

    pub(super) fn mat_mul_integer_to_float(&mut self) -> RewriteResult {
        let a = self.given(0)?;
        let a = self.ranked(a, "A", 2..=i64::MAX);
        let mut factors = vec![a, self.weights()?];
        factors.extend(self.inputs(&[4, 5]));
        let product = self.op("MatMulInteger", &factors, vec![]);
        let scale = self.op("Mul", &[self.given(2)?, self.given(3)?], vec![]);
        let y = self.rescaled(product, scale, 6);
        self.give(0, y);
        Ok(())
    }

    /// Returns the second factor: a matrix or a batch of matrices.
    fn weights(&mut self) -> Result<String, Unsupported> {
        let b = self.given(1)?;
        // The runtime packs a constant only if it is a direct input of the product, so no check node may
        // precede it.
        match self.dims(&b).map(<[i64]>::len) {
            Some(rank @ ..2) => Err(format!("the input B has {rank} dimensions, expected 2 or more").into()),
            Some(_) => Ok(b),
            None => Ok(self.ranked(b, "B", 2..=i64::MAX)),
        }
    }

    /// Emits nodes that convert an integer product to scaled floats and add an optional bias.
    pub(super) fn rescaled(&mut self, product: String, scale: String, bias: usize) -> String {
        let product = self.op("Cast", &[product], vec![int("to", DataType::Float as i64)]);
        let y = self.op("Mul", &[product, scale], vec![]);
        self.with_bias(y, bias)
    }

    /// Emits nodes for `QGemm`, whose bias is in units of the product of both scales.
    pub(super) fn quantized_gemm(&mut self) -> RewriteResult {
        if self.input(7).is_some() != self.input(8).is_some() {
            return Err("y_scale and y_zero_point must both be given, or none of them"
                .to_owned()
                .into());
        }
        let a = self.dequantized([0, 1, 2])?;
        let b = self.dequantized([3, 4, 5])?;
        let alpha = self.float("alpha", 1.0);
        let attributes = vec![
            float("alpha", alpha),
            int("transA", self.int("transA", 0)),
            int("transB", self.int("transB", 0)),
        ];
        let mut y = self.op("Gemm", &[a, b], attributes);
        if let Some(bias) = self.input(6) {
            let bias = self.op("Cast", &[bias], vec![int("to", DataType::Float as i64)]);
            let scale = self.op("Mul", &[self.given(1)?, self.given(4)?], vec![]);
            let bias = self.op("Mul", &[bias, scale], vec![]);
            let bias = self.scaled(bias, alpha);
            y = self.op("Add", &[y, bias], vec![]);
        }
        match self.input(7) {
            Some(_) => self.give_quantized(y, [7, 8]),
            None => {
                self.give(0, y);
                Ok(())
            }
        }
    }
}
