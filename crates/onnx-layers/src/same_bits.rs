//! Checks that operators compute the same bits on any number of threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onnx_kernels::elementwise;
use onnx_tensor::prelude::*;

use onnx_tensor::{
    node::{Attribute, Node},
    operator::Wiring,
    packs::Packs,
    testing::{bytes, expect_same, expect_same_with, floats, node},
};

use crate::{attention, conv, matmul, norm, pool, quant, split_products::LEAST_ROWS};

fn one<T: Element>(number: T) -> Arc<Tensor> {
    Tensor::scalar(number).into_arc()
}

fn named(name: &str) -> Node {
    Node {
        opset: 18,
        ..node(name, &[], &[], 1)
    }
}

#[test]
fn products_have_the_same_bits_on_any_number_of_threads() {
    // Factors with one row, few rows, more columns than rows, more rows than columns, and several
    // matrices.
    for (a, b) in [
        (vec![1, 64], vec![64, 200]),
        (vec![3, 64], vec![64, 200]),
        (vec![40, 33], vec![33, 150]),
        (vec![150, 33], vec![33, 50]),
        (vec![6, 40, 33], vec![6, 33, 20]),
        (vec![2, 6, 5, 33], vec![6, 33, 20]),
        (vec![64, 100], vec![100, 1]),
    ] {
        // A product with one or a few rows is not split across threads when neither factor is constant.
        if a[0] > 3 {
            expect_same(
                &*matmul::mat_mul(&named("MatMul")).unwrap(),
                &[floats(&a), floats(&b)],
            );
        }
        if b[b.len() - 1] > 1 {
            let mut op = matmul::mat_mul(&named("MatMul")).unwrap();
            op.take_over(&[None, Some(floats(&b))], &mut Packs::beside(1 << 20))
                .unwrap();
            expect_same(&*op, &[floats(&a), floats(&b)]);
        }
    }
    let turned = node("Gemm", &[], &[("transA", 1), ("transB", 1)], 1);
    let inputs = [floats(&[33, 80]), floats(&[90, 33]), floats(&[90])];
    expect_same_with(|| matmul::gemm_of(&turned).unwrap(), &inputs);
}

#[test]
fn products_of_integers_have_the_same_bits_on_any_number_of_threads() {
    // The product with 64 rows is split by rows, those with 3 and 20 rows by columns.
    for (rows, columns) in [(64, 40), (3, 200), (20, 100)] {
        products_of_integers(&bytes(&[rows, 33]), &bytes(&[33, columns]));
    }
    let bits = node_of_bits();
    let inputs = [floats(&[7, 64]), bytes(&[50, 4, 8]), floats(&[200])];
    expect_same(&*matmul::packed_product(&bits).unwrap(), &inputs);
    let inputs = [floats(&[1, 64]), bytes(&[50, 4, 8]), floats(&[200])];
    expect_same(&*matmul::packed_product(&bits).unwrap(), &inputs);
}

fn products_of_integers(a: &Arc<Tensor>, b: &Arc<Tensor>) {
    let node = Node {
        input: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
        ..named("MatMulInteger")
    };
    let inputs = [a.clone(), b.clone(), one(3u8), one(7u8)];
    let packed = [None, Some(b.clone()), None, Some(one(7u8))].to_vec();
    // Products with few rows are not split across threads when neither factor is constant.
    let is_plain = a.shape()[0] >= 2 * LEAST_ROWS;
    for constants in is_plain.then(Vec::new).into_iter().chain([packed]) {
        let mut product = matmul::mat_mul_integer(&node).unwrap();
        product
            .take_over(&constants, &mut onnx_tensor::packs::Packs::beside(1 << 20))
            .unwrap();
        expect_same(&*product, &inputs);
    }
    if !is_plain {
        return;
    }
    let (scale, zero) = (one(0.02f32), one(9u8));
    let inputs = [
        a.clone(),
        scale.clone(),
        zero.clone(),
        b.clone(),
        scale.clone(),
        zero.clone(),
        scale,
        zero,
    ];
    expect_same(
        &*matmul::q_linear_mat_mul(&named("QLinearMatMul")).unwrap(),
        &inputs,
    );
}

fn node_of_bits() -> Node {
    let sizes = [("K", 64), ("N", 50), ("bits", 4), ("block_size", 16)];
    node("MatMulNBits", &[], &sizes, 1)
}

#[test]
fn convolutions_have_the_same_bits_on_any_number_of_threads() {
    let cases: &[(&[usize], &[usize], i64)] = &[
        // Cases that are split by lines, by channels, by channels with a single one left over, by groups, by
        // images, and by lines of one pixel.
        (&[1, 4, 24, 24], &[6, 4, 3, 3], 1),
        (&[1, 16, 24, 24], &[8, 16, 1, 1], 1),
        (&[1, 16, 4, 4], &[64, 16, 3, 3], 1),
        (&[1, 16, 3, 4], &[33, 16, 1, 1], 1),
        (&[1, 8, 12, 12], &[8, 1, 3, 3], 8),
        (&[5, 8, 9, 9], &[6, 4, 3, 3], 2),
        (&[1, 8, 100], &[12, 8, 5], 1),
        (&[1, 8, 32, 32], &[1, 8, 3, 3], 1),
        (&[1, 64, 11, 1], &[8, 64, 3, 1], 1),
    ];
    for &(image, weights, groups) in cases {
        for (stride, pad) in [(1, 0), (1, 1), (2, 1)] {
            let axes = image.len() - 2;
            let lists = [("strides", vec![stride; axes]), ("pads", vec![pad; 2 * axes])];
            let node = node("Conv", &lists, &[("group", groups)], 1);
            let inputs = [floats(image), floats(weights), floats(&weights[..1])];
            expect_same_with(
                || {
                    let mut op = conv::conv(&node).unwrap();
                    let sigmoid = elementwise::function(&named("Sigmoid")).unwrap();
                    assert!(op.follow(&*sigmoid));
                    op
                },
                &inputs,
            );
        }
    }
    for (image, weights, groups, from_first) in [
        ([1, 24, 24, 4], [6, 4, 3, 3], 1, 0),
        // Few pixels and large weights, which are split by output channels.
        ([1, 3, 3, 256], [600, 256, 1, 1], 1, 0),
        ([3, 9, 7, 16], [33, 16, 1, 1], 1, 0),
        ([1, 24, 20, 20], [20, 1, 3, 3], 20, 0),
        ([1, 1, 500, 8], [8, 1, 1, 5], 8, 0),
        ([2, 3, 24, 24], [8, 3, 3, 3], 1, 1),
    ] {
        for (stride, pad) in [(1, 0), (1, 1), (2, 1)] {
            let lists = [("strides", vec![stride; 2]), ("pads", vec![pad; 4])];
            let integers = [("group", groups), ("from_first", from_first)];
            let node = node("ChannelsLastConv", &lists, &integers, 1);
            let inputs = [floats(&image), floats(&weights), floats(&weights[..1])];
            expect_same_with(
                || {
                    let mut op = conv::channels_last_conv(&node).unwrap();
                    let sigmoid = elementwise::function(&named("Sigmoid")).unwrap();
                    assert!(op.follow(&*sigmoid));
                    op
                },
                &inputs,
            );
        }
    }
    filters_and_products_have_the_same_bits();
    for weights in [[6, 4, 3, 3], [6, 4, 11, 11]] {
        let (image, weights) = (bytes(&[1, 4, 24, 24]), bytes(&weights));
        let (scale, zero) = (one(0.02f32), one(9u8));
        let inputs = [
            image,
            scale.clone(),
            zero.clone(),
            weights,
            scale.clone(),
            zero.clone(),
            scale,
            zero,
        ];
        expect_same(&*conv::q_linear_conv(&named("QLinearConv")).unwrap(), &inputs);
    }
}

#[test]
fn transposed_convolutions_have_the_same_bits_on_any_number_of_threads() {
    for (image, weights) in [
        ([1, 8, 9, 9], [8, 150, 3, 3]),
        ([2, 8, 9, 9], [8, 3, 2, 2]),
        ([1, 3, 6, 6], [3, 9, 17, 17]),
    ] {
        let node = node("ConvTranspose", &[("strides", vec![2, 2])], &[], 1);
        let inputs = [floats(&image), floats(&weights), floats(&weights[1..2])];
        expect_same_with(|| conv::conv_transpose(&node).unwrap(), &inputs);
    }
}

#[test]
fn pools_and_norms_have_the_same_bits_on_any_number_of_threads() {
    let image = floats(&[3, 8, 20, 20]);
    for axis in [-1, 1] {
        let node = Node {
            opset: 18,
            ..node("Softmax", &[], &[("axis", axis)], 1)
        };
        expect_same(&*norm::softmax(&node).unwrap(), std::slice::from_ref(&image));
    }
    let (scale, bias) = (floats(&[8]), floats(&[8]));
    let layer = norm::normalize(&named("LayerNormalization")).unwrap();
    expect_same(&*layer, &[image.clone(), floats(&[20]), floats(&[20])]);
    let instance = norm::normalize(&named("InstanceNormalization")).unwrap();
    expect_same(&*instance, &[image.clone(), scale.clone(), bias.clone()]);
    let variance = Tensor::vector(&[2.0f32; 8]).into_arc();
    let inputs = [image.clone(), scale.clone(), bias, scale, variance];
    expect_same(
        &*norm::batch_normalization(&named("BatchNormalization")).unwrap(),
        &inputs,
    );
    let window = [("kernel_shape", vec![3, 3]), ("strides", vec![2, 2])];
    expect_same(
        &*pool::averages(&node("AveragePool", &window, &[], 1)).unwrap(),
        std::slice::from_ref(&image),
    );
    expect_same(
        &*pool::maxima(&node("MaxPool", &window, &[], 1)).unwrap(),
        std::slice::from_ref(&image),
    );
    // A single image, whose lines are split.
    let image = floats(&[1, 60, 50, 20]);
    expect_same(
        &*pool::channels_last_averages(&node("AveragePool", &window, &[], 1)).unwrap(),
        std::slice::from_ref(&image),
    );
    expect_same(
        &*pool::channels_last_maxima(&node("MaxPool", &window, &[], 1)).unwrap(),
        std::slice::from_ref(&image),
    );
}

#[test]
fn quantization_has_the_same_bits_on_any_number_of_threads() {
    let numbers = floats(&[3, 8, 50, 50]);
    let (one_scale, scales) = (one(0.05f32), floats(&[8]));
    let dynamic = quant::quantize_dynamically(&named("DynamicQuantizeLinear")).unwrap();
    expect_same(&*dynamic, std::slice::from_ref(&numbers));
    for (scale, zero) in [(one_scale, one(9u8)), (scales, bytes(&[8]))] {
        let quantize = quant::quantize(&named("QuantizeLinear")).unwrap();
        expect_same(&*quantize, &[numbers.clone(), scale.clone(), zero.clone()]);
        let dequantize = quant::dequantize(&named("DequantizeLinear")).unwrap();
        expect_same(&*dequantize, &[bytes(&[3, 8, 50, 50]), scale.clone(), zero]);
        let requantize = quant::requantize(&named("Requantize")).unwrap();
        expect_same(&*requantize, &[numbers.clone(), scale, one(9u8)]);
    }
}

#[test]
fn attention_has_the_same_bits_on_any_number_of_threads() {
    let node = Node {
        input: ["q", "k", "v"].map(str::to_owned).to_vec(),
        ..named("Attention")
    };
    let inputs = [(); 3].map(|()| floats(&[2, 4, 10, 8]));
    expect_same(&*attention::attention(&node).unwrap(), &inputs);
    for transposes in [0, 1] {
        let mut node = Node {
            opset: 13,
            ..named("FusedAttention")
        };
        node.attribute.push(Attribute {
            name: "transposes".to_owned(),
            i: transposes,
            ..Attribute::default()
        });
        let values = if transposes == 1 {
            [3, 5, 6, 90]
        } else {
            [3, 5, 90, 6]
        };
        let inputs = [floats(&[3, 5, 70, 8]), floats(&[3, 5, 8, 90]), floats(&values)];
        expect_same(&*attention::fused_attention(&node).unwrap(), &inputs);
    }
}

/// Runs a depthwise convolution, the product of its pixels and a sum as one operator.
fn filters_and_products_have_the_same_bits() {
    let filter = node("ChannelsLastConv", &[("pads", vec![1; 4])], &[("group", 24)], 1);
    let product = node("ChannelsLastConv", &[], &[], 1);
    let [w, w2] = [floats(&[24, 1, 3, 3]), floats(&[20, 24, 1, 1])];
    let (bias, bias2) = (floats(&[24]), floats(&[20]));
    let inputs = [
        floats(&[2, 40, 41, 24]),
        w.clone(),
        bias,
        w2.clone(),
        bias2,
        floats(&[2, 40, 41, 20]),
    ];
    expect_same_with(
        || {
            let of = |node, weights: &Arc<Tensor>| {
                let mut op = conv::channels_last_conv(node).unwrap();
                op.take_over(&[None, Some(weights.clone())], &mut Packs::beside(1 << 20))
                    .unwrap();
                op
            };
            let mut op = of(&filter, &w);
            let wiring = |inputs, others| Wiring {
                inputs,
                place: 0,
                others,
                label: "",
            };
            assert!(op.chain(of(&product, &w2), wiring(3, 2)).is_none());
            let sum = elementwise::pair(&named("Add")).unwrap();
            assert!(op.chain(sum, wiring(5, 1)).is_none());
            op
        },
        &inputs,
    );
}
