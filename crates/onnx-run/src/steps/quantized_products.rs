//! Fuses matrix products of dequantized 8-bit integers into products of integers, as ONNX Runtime does.

use std::sync::Arc;

use onnx_tensor::{elements::elements, node::Node, prelude::*};

use crate::steps::{
    fusion_graph::{Fused, Graph},
    quantized::{LIMIT, SCALES},
    values::Slot,
};

/// A factor of a product, before its `DequantizeLinear`.
struct Factor {
    /// The value that a node computes; `None` for a constant.
    bytes: Option<Slot>,
    numbers: Option<Arc<Tensor>>,
    scales: Arc<Tensor>,
    zero_points: Arc<Tensor>,
}

impl Factor {
    /// Returns the constants among the inputs of a product from the input `place` on.
    fn constants(self, place: usize) -> impl Iterator<Item = (usize, Arc<Tensor>)> {
        let numbers = self.numbers.map(|numbers| (place, numbers));
        let others = [(place + 1, self.scales), (place + 2, self.zero_points)];
        numbers.into_iter().chain(others)
    }
}

impl Graph<'_> {
    /// Fuses a product of two dequantized values. If the result is quantized, the product becomes a
    /// `QLinearMatMul`, otherwise a product that returns FP32.
    ///
    /// Sums of more than 33025 terms could leave the range of INT32. Constant factors of that depth are not fused;
    /// the kernel computes products of other factors in FP32 then.
    pub(super) fn quantized_product(&self, product: usize) -> Option<Fused> {
        let [a, b] = [0, 1].map(|place| self.factor(product, place));
        let (a, b) = (a?, b?);
        let (op_type, domain, steps, of_result) = match self.quantized_result(product) {
            Some((steps, quantization)) => ("QLinearMatMul", "", steps, Some(quantization)),
            None => (
                "tensorferry/DequantizedMatMul",
                "tensorferry",
                vec![product],
                None,
            ),
        };
        let mut fused = self.fused(op_type, 21, vec![], steps)?;
        fused.wires.inputs = vec![a.bytes, None, None, b.bytes];
        let of_result = of_result.map(|one| [(6, one.scale), (7, one.zero_point)]);
        let factors = a.constants(0).chain(b.constants(3));
        fused.constants = factors.chain(of_result.into_iter().flatten()).collect();
        let count = fused.constants.len() + fused.wires.inputs.iter().flatten().count();
        fused.node = Node {
            domain: domain.to_owned(),
            // Kernels only check whether inputs are present, so the names are arbitrary.
            input: (0..count).map(|place| place.to_string()).collect(),
            ..fused.node
        };
        Some(fused)
    }

    /// Returns a factor of a product that a `DequantizeLinear` computes.
    fn factor(&self, product: usize, place: usize) -> Option<Factor> {
        let slot = self.input(product, place)?;
        let Some(constant) = self.dequantized(slot) else {
            let (bytes, quantization) = self.bytes(slot)?;
            return Some(Factor {
                bytes: Some(bytes),
                numbers: None,
                scales: quantization.scale,
                zero_points: quantization.zero_point,
            });
        };
        let &[.., rows, columns] = constant.numbers.shape() else {
            return None;
        };
        let (depth, [scales, zero_points]) = match place {
            0 => (columns, constant.of_all()?),
            _ => (rows, constant.of_columns(columns)?),
        };
        let are_usable = elements::<f32>(&scales)
            .ok()?
            .iter()
            .all(|scale| SCALES.contains(scale));
        // Differences of 8-bit numbers have 9 bits.
        let most = 255.0 * 255.0 * depth as f64;
        (are_usable && most < LIMIT).then_some(())?;
        Some(Factor {
            bytes: None,
            numbers: Some(constant.numbers.clone()),
            scales,
            zero_points,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::proto::{NodeProto, TensorProto, tensor_proto::DataType};

    use crate::{
        Session,
        steps::quantized::tests::{floats, operators, parameters, session, signed, steps},
        test_models::{int, ints, node, with},
    };

    /// Returns a model that quantizes `x`, and the nodes `inner`, which compute `y` or `made` from `a`. If
    /// `is_float`, `a` is computed without a `DequantizeLinear`, so that nothing is fused.
    fn model(inner: &[NodeProto], constants: &[TensorProto], is_float: bool) -> Session {
        let to_float = with(node("Cast", &["bytes"], "cast"), [int("to", 1)]);
        let mut nodes = vec![node("QuantizeLinear", &["x", "x_scale", "x_zero"], "bytes")];
        match is_float {
            true => nodes.extend([
                to_float,
                node("Sub", &["cast", "x_zero_float"], "shifted"),
                node("Mul", &["shifted", "x_scale"], "a"),
            ]),
            false => nodes.push(node("DequantizeLinear", &["bytes", "x_scale", "x_zero"], "a")),
        }
        nodes.extend_from_slice(inner);
        if inner.iter().any(|node| node.output[0] == "made") {
            nodes.push(node("QuantizeLinear", &["made", "y_scale", "y_zero"], "result"));
            nodes.push(node("DequantizeLinear", &["result", "y_scale", "y_zero"], "y"));
        }
        session(nodes, constants.to_vec())
    }

    /// Checks which operators multiply, and that the results are those of FP32 up to `most` steps of `step`.
    fn check(inner: &[NodeProto], constants: &[TensorProto], expected: &str, [step, most]: [f32; 2]) {
        let [one, other] = [false, true].map(|is_float| model(inner, constants, is_float));
        let products = ["MatMul", "QLinearMatMul", "tensorferry/DequantizedMatMul"];
        let found = operators(&one).into_iter().filter(|name| products.contains(name));
        assert_eq!(found.collect::<Vec<_>>(), [expected]);
        assert!(operators(&other).contains(&"MatMul"));
        let difference = steps([&one, &other], step);
        assert!(difference <= most, "{difference}");
    }

    /// Returns weights of 8 rows and 5 columns with the given scales.
    fn weights(scales: &[f32], element_type: DataType) -> Vec<TensorProto> {
        let dims = match scales.len() {
            1 => vec![],
            count => vec![count as i64],
        };
        let numbers = (0..8 * 5).map(|at: usize| (at * 7919 % 251) as u8 as i8);
        let w_zero = signed("w_zero", &dims, (0..scales.len()).map(|at| 3 * at as i8));
        let tensors = [signed("w", &[8, 5], numbers), w_zero].map(|tensor| TensorProto {
            data_type: element_type as i32,
            ..tensor
        });
        let scales = floats("w_scale", &dims, scales);
        tensors.into_iter().chain([scales]).collect()
    }

    fn product(axis: i64, output: &str) -> Vec<NodeProto> {
        let dequantize = node("DequantizeLinear", &["w", "w_scale", "w_zero"], "weights");
        vec![
            with(dequantize, [int("axis", axis)]),
            node("MatMul", &["a", "weights"], output),
        ]
    }

    fn all(weights: Vec<TensorProto>) -> Vec<TensorProto> {
        let zero = floats("x_zero_float", &[], &[120.0]);
        [parameters((0.0317, 120), (0.37, 100)), weights, vec![zero]].concat()
    }

    const SCALES: [f32; 5] = [0.011, 0.02, 0.004, 0.0079, 0.013];

    #[test]
    fn products_of_constants_between_quantizations_are_one_node_of_integers() {
        for element_type in [DataType::Int8, DataType::Uint8] {
            for (scales, axis) in [(&SCALES[..], 1), (&SCALES, -1), (&[0.0173], 1), (&[0.0173], 0)] {
                let constants = all(weights(scales, element_type));
                check(&product(axis, "made"), &constants, "QLinearMatMul", [0.37, 1.001]);
                let to_floats = "tensorferry/DequantizedMatMul";
                check(&product(axis, "y"), &constants, to_floats, [1e-4, 1.0]);
                let mut without_zero_point = product(axis, "made");
                without_zero_point[0].input.truncate(2);
                check(&without_zero_point, &constants, "QLinearMatMul", [0.37, 1.001]);
            }
        }
    }

    #[test]
    fn first_factors_may_be_constant() {
        let inner = |output: &str| {
            vec![
                node("DequantizeLinear", &["w", "w_scale", "w_zero"], "weights"),
                node("MatMul", &["weights", "a"], output),
            ]
        };
        let mut of_all = weights(&[0.0173], DataType::Int8);
        (of_all[0].dims, of_all[0].raw_data) = (vec![4, 9], of_all[0].raw_data.slice(..36));
        let to_floats = "tensorferry/DequantizedMatMul";
        check(
            &inner("made"),
            &all(of_all.clone()),
            "QLinearMatMul",
            [0.37, 1.001],
        );
        check(&inner("y"), &all(of_all), to_floats, [1e-4, 1.0]);
        // Rows with different scales are no columns of the first factor.
        let mut of_rows = weights(&SCALES, DataType::Int8);
        (of_rows[0].dims, of_rows[0].raw_data) = (vec![5, 9], vec![7; 45].into());
        let mut of_first_axis = inner("made");
        of_first_axis[0].attribute.push(int("axis", 0));
        check(&of_first_axis, &all(of_rows), "MatMul", [0.37, 1.001]);
    }

    /// Returns a product of `a` and its transpose.
    fn attention(output: &str) -> Vec<NodeProto> {
        let turned = with(
            node("Transpose", &["bytes"], "turned"),
            [ints("perm", &[0, 1, 3, 2])],
        );
        vec![
            turned,
            node("DequantizeLinear", &["turned", "x_scale", "x_zero"], "b"),
            node("MatMul", &["a", "b"], output),
        ]
    }

    #[test]
    fn products_of_two_values_between_quantizations_are_one_node_of_integers() {
        check(&attention("made"), &all(vec![]), "QLinearMatMul", [0.37, 1.001]);
        let to_floats = "tensorferry/DequantizedMatMul";
        check(&attention("y"), &all(vec![]), to_floats, [1e-4, 1.0]);
        // The scale of the second factor is too small.
        let mut inner = attention("made");
        inner[1].input[1] = "tiny".to_owned();
        let constants = [all(vec![]), vec![floats("tiny", &[], &[1e-10])]].concat();
        assert!(operators(&model(&inner, &constants, false)).contains(&"MatMul"));
    }

    #[test]
    fn scales_of_rows_and_zero_points_that_are_not_constant_stay_unfused() {
        let of_rows = [&SCALES[..], &[0.1, 0.2, 0.3]].concat();
        let of_rows = all(weights(&of_rows, DataType::Int8));
        check(&product(0, "made"), &of_rows, "MatMul", [0.37, 1.001]);
        let least = |name: &str, to: DataType| {
            vec![
                with(node("ReduceMin", &["bytes"], "least"), [int("keepdims", 0)]),
                with(node("Cast", &["least"], name), [int("to", to as i64)]),
            ]
        };
        for output in ["made", "y"] {
            let constants = all(weights(&[0.0173], DataType::Int8));
            let mut nodes = [least("zero", DataType::Int8), product(1, output)].concat();
            nodes[2].input[2] = "zero".to_owned();
            check(&nodes, &constants, "MatMul", [0.37, 1.001]);
            let mut nodes = [least("zero", DataType::Uint8), attention(output)].concat();
            nodes[3].input[2] = "zero".to_owned();
            check(&nodes, &constants, "MatMul", [0.37, 1.001]);
        }
    }

    #[test]
    fn sums_that_could_wrap_around_stay_in_fp32() {
        for (depth, expected) in [(33_025, "QLinearMatMul"), (33_026, "MatMul")] {
            let mut tensors = weights(&[0.0173], DataType::Int8);
            tensors[0] = signed("w", &[depth, 1], (0..depth).map(|at| at as i8));
            let session = model(&product(1, "made"), &all(tensors), false);
            assert!(operators(&session).contains(&expected), "{depth}");
        }
    }
}
