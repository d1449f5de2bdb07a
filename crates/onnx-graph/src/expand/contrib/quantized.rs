//! Rewrites 8-bit operators as float operators between `DequantizeLinear` and `QuantizeLinear`.

use super::{RewriteResult, Unsupported};
use crate::{
    expand::{
        graph::{int, ints},
        replacement::Replacement,
    },
    proto::AttributeProto,
};

impl Replacement<'_> {
    pub(super) fn quantized_one(&mut self, op_type: &str, attributes: Vec<AttributeProto>) -> RewriteResult {
        let x = self.dequantized([0, 1, 2])?;
        let y = self.op(op_type, &[x], attributes);
        self.give_quantized(y, [3, 4])
    }

    /// Emits nodes for `QLinearSoftmax`, whose `opset` attribute determines the meaning of `axis`.
    pub(super) fn quantized_softmax(&mut self) -> RewriteResult {
        let attributes = vec![int("axis", self.int("axis", -1))];
        let opset = self.int("opset", self.opset);
        let x = self.dequantized([0, 1, 2])?;
        let y = match (opset < 13, self.opset < 13) {
            (false, _) => self.newer("Softmax", &[x], attributes),
            (true, true) => self.op("Softmax", &[x], attributes),
            (true, false) => {
                return Err(format!(
                    "the attribute 'opset' is {opset}, only 13 and newer are supported in operator set {} of ONNX",
                    self.opset
                )
                .into());
            }
        };
        self.give_quantized(y, [3, 4])
    }

    pub(super) fn quantized_where(&mut self) -> RewriteResult {
        let (a, b) = (self.dequantized([1, 2, 3])?, self.dequantized([4, 5, 6])?);
        let y = self.op("Where", &[self.given(0)?, a, b], vec![]);
        self.give_quantized(y, [7, 8])
    }

    pub(super) fn quantized_global_pool(&mut self) -> RewriteResult {
        self.with_default("channels_last", 0)?;
        self.quantized_one("GlobalAveragePool", vec![])
    }

    pub(super) fn quantized_pool(&mut self) -> RewriteResult {
        let is_own = |attribute: &&AttributeProto| attribute.name == "channels_last";
        let attributes = self.node.attribute.iter().filter(|attribute| !is_own(attribute));
        let attributes: Vec<AttributeProto> = attributes.cloned().collect();
        let x = self.dequantized([0, 1, 2])?;
        let y = match self.int("channels_last", 0) {
            0 => self.op("AveragePool", &[x], attributes),
            _ => self.of_channels_last(x, |new, x| new.op("AveragePool", &[x], attributes))?,
        };
        self.give_quantized(y, [3, 4])
    }

    /// Emits nodes for a pool over channels-last images.
    pub(super) fn channels_last_pool(&mut self) -> RewriteResult {
        let (x, attributes) = (self.given(0)?, self.node.attribute.clone());
        let y = self.of_channels_last(x, |new, x| new.newer("MaxPool", &[x], attributes))?;
        self.give(0, y);
        Ok(())
    }

    /// Emits a pool between two transpositions, for channels-last images.
    fn of_channels_last(
        &mut self,
        x: String,
        pool: impl FnOnce(&mut Self, String) -> String,
    ) -> Result<String, Unsupported> {
        let kernel = self.attribute("kernel_shape");
        let kernel = kernel.ok_or_else(|| "the attribute 'kernel_shape' is not given".to_owned())?;
        let spatial = kernel.ints.len() as i64;
        let to_front: Vec<i64> = [0, spatial + 1].into_iter().chain(1..=spatial).collect();
        let to_back: Vec<i64> = std::iter::once(0).chain(2..=spatial + 1).chain([1]).collect();
        let x = self.op("Transpose", &[x], vec![ints("perm", &to_front)]);
        let y = pool(self, x);
        Ok(self.op("Transpose", &[y], vec![ints("perm", &to_back)]))
    }

    pub(super) fn quantized_concat(&mut self) -> RewriteResult {
        let mut parts = Vec::new();
        for first in (2..self.node.input.len()).step_by(3) {
            parts.push(self.dequantized([first, first + 1, first + 2])?);
        }
        let axis = self.int("axis", 0);
        let y = self.op("Concat", &parts, vec![int("axis", axis)]);
        self.give_quantized(y, [0, 1])
    }

    pub(super) fn dequantized(&mut self, [x, scale, zero_point]: [usize; 3]) -> Result<String, Unsupported> {
        let mut inputs = vec![self.given(x)?, self.given(scale)?];
        inputs.extend(self.input(zero_point));
        Ok(self.newer("DequantizeLinear", &inputs, vec![]))
    }

    pub(super) fn give_quantized(&mut self, y: String, [scale, zero_point]: [usize; 2]) -> RewriteResult {
        let mut inputs = vec![y, self.given(scale)?];
        inputs.extend(self.input(zero_point));
        let y = self.newer("QuantizeLinear", &inputs, vec![]);
        self.give(0, y);
        Ok(())
    }
}
