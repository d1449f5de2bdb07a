//! Rewrites operators with a fused activation, transposition or scale factor.

use super::RewriteResult;
use crate::{
    expand::{graph::float, replacement::Replacement},
    proto::{AttributeProto, attribute_proto::AttributeType},
};

impl Replacement<'_> {
    pub(super) fn fused_conv(&mut self) -> RewriteResult {
        let is_own = |attribute: &&AttributeProto| {
            matches!(attribute.name.as_str(), "activation" | "activation_params")
        };
        let attributes = self.node.attribute.iter().filter(|attribute| !is_own(attribute));
        let attributes = attributes.cloned().collect();
        let mut y = self.op("Conv", &self.inputs(&[0, 1, 2]), attributes);
        if let Some(z) = self.input(3) {
            y = self.op("Add", &[y, z], vec![]);
        }
        let parameters = self
            .attribute("activation_params")
            .map_or(vec![], |attribute| attribute.floats.clone());
        let y = self.activated(y, &parameters)?;
        self.give(0, y);
        Ok(())
    }

    pub(super) fn fused_gemm(&mut self) -> RewriteResult {
        let gemm = |attribute: &&AttributeProto| !attribute.name.starts_with("activation");
        let attributes = self.node.attribute.iter().filter(gemm).cloned().collect();
        let y = self.op("Gemm", &self.inputs(&[0, 1, 2]), attributes);
        let parameters: Vec<f32> = ["activation_alpha", "activation_beta", "activation_gamma"]
            .iter()
            .filter_map(|name| Some(self.attribute(name)?.f))
            .collect();
        let y = self.activated(y, &parameters)?;
        self.give(0, y);
        Ok(())
    }

    /// Applies the operator named by the attribute `activation`.
    fn activated(&mut self, x: String, parameters: &[f32]) -> Result<String, String> {
        let parameter = |index: usize, default: f32| parameters.get(index).copied().unwrap_or(default);
        let name = self.text("activation");
        Ok(match &*name {
            "" => x,
            "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" => self.op(&name, &[x], vec![]),
            "LeakyRelu" => self.op(&name, &[x], vec![float("alpha", parameter(0, 0.01))]),
            "Elu" => self.op(&name, &[x], vec![float("alpha", parameter(0, 1.0))]),
            "ThresholdedRelu" if self.opset >= 10 => {
                self.op(&name, &[x], vec![float("alpha", parameter(0, 1.0))])
            }
            "HardSigmoid" => {
                let attributes = vec![
                    float("alpha", parameter(0, 0.2)),
                    float("beta", parameter(1, 0.5)),
                ];
                self.op(&name, &[x], attributes)
            }
            "Clip" => {
                let (low, high) = (parameter(0, f32::MIN), parameter(1, f32::MAX));
                if self.opset < 11 {
                    self.op("Clip", &[x], vec![float("min", low), float("max", high)])
                } else {
                    let bounds = [self.constant(&[low], vec![]), self.constant(&[high], vec![])];
                    let [low, high] = bounds;
                    self.op("Clip", &[x, low, high], vec![])
                }
            }
            other => {
                return Err(format!(
                    "the attribute 'activation' is {}, which is not supported",
                    tensor_core::QuotedName(other)
                ));
            }
        })
    }

    pub(super) fn fused_mat_mul(&mut self) -> RewriteResult {
        self.with_default("transBatchA", 0)?;
        self.with_default("transBatchB", 0)?;
        let turns = ["transA", "transB"].map(|name| self.int(name, 0) != 0);
        let mut factors = [self.given(0)?, self.given(1)?];
        for (index, name) in ["A", "B"].iter().enumerate() {
            let factor = std::mem::take(&mut factors[index]);
            factors[index] = match (turns[index], turns.contains(&true)) {
                // `TransposeLast` transposes values of any rank, so the rank need not be checked.
                (true, _) => self.newer("TransposeLast", &[factor], vec![]),
                // ONNX Runtime uses the wrong rows for the product of a vector and a transposed matrix, so
                // vectors are refused.
                (false, true) => self.ranked(factor, name, 2..=i64::MAX),
                (false, false) => factor,
            };
        }
        let product = self.op("MatMul", &factors, vec![]);
        let y = self.scaled(product, self.float("alpha", 1.0));
        self.give(0, y);
        Ok(())
    }

    /// Emits nodes for GELU of an input plus an optional bias.
    pub(super) fn gelu(&mut self, by_tanh: bool) -> RewriteResult {
        let x = self.given(0)?;
        if self.node.op_type == "BiasGelu" {
            self.given(1)?;
        }
        let x = self.with_bias(x, 1);
        let approximate = AttributeProto {
            name: "approximate".to_owned(),
            r#type: AttributeType::String as i32,
            s: "tanh".into(),
            ..AttributeProto::default()
        };
        let attributes = if by_tanh { vec![approximate] } else { vec![] };
        let y = self.newer("Gelu", &[x], attributes);
        self.give(0, y);
        Ok(())
    }

    /// Emits nodes for `x * sigmoid(alpha * x)`.
    pub(super) fn swish(&mut self, alpha: f32) -> RewriteResult {
        let x = self.given(0)?;
        let scaled = self.scaled(x.clone(), self.float("alpha", alpha));
        let gate = self.op("Sigmoid", &[scaled], vec![]);
        let y = self.op("Mul", &[x, gate], vec![]);
        self.give(0, y);
        Ok(())
    }
}
