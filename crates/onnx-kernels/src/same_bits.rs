//! Checks that operators compute the same bits on any number of threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onnx_tensor::prelude::*;

use onnx_tensor::{
    cancelling::is_cancelled,
    node::Node,
    testing::{expect_same, floats, node, while_cancelled, with_text},
    threads::Threads,
};

use crate::{elementwise, image, reduce, shape};

fn named(name: &str) -> Node {
    Node {
        opset: 18,
        ..node(name, &[], &[], 1)
    }
}

#[test]
fn loops_have_the_same_bits_on_any_number_of_threads() {
    let image = floats(&[3, 8, 20, 20]);
    for name in ["Sigmoid", "Sin", "Erf", "Relu"] {
        expect_same(
            &*elementwise::function(&named(name)).unwrap(),
            std::slice::from_ref(&image),
        );
    }
    for other in [&[3, 8, 20, 20][..], &[20], &[8, 1, 1], &[3, 1, 20, 1], &[]] {
        for name in ["Add", "Div"] {
            let pair = elementwise::pair(&named(name)).unwrap();
            expect_same(&*pair, &[image.clone(), floats(other)]);
            expect_same(&*pair, &[floats(other), image.clone()]);
        }
    }
    for axes in [&[-1i64][..], &[1], &[0, 2]] {
        let op = reduce::reduce(&named("ReduceMean")).unwrap();
        expect_same(&*op, &[image.clone(), Tensor::vector(axes).into_arc()]);
    }
    for order in [[0, 2, 3, 1], [3, 2, 1, 0], [1, 0, 2, 3], [0, 1, 3, 2]] {
        let node = node("Transpose", &[("perm", order.to_vec())], &[], 1);
        expect_same(
            &*shape::transpose_of(&node).unwrap(),
            std::slice::from_ref(&image),
        );
    }
    let gelu = with_text(named("Gelu"), "approximate", "tanh");
    expect_same(&*elementwise::function(&gelu).unwrap(), &[image]);
}

#[test]
fn casts_have_the_same_bits_on_any_number_of_threads() {
    let numbers = floats(&[3, 8, 50, 50]);
    // ONNX's type codes for FP16 and INT32.
    for to in [10, 6] {
        let cast = node("Cast", &[], &[("to", to)], 1);
        expect_same(
            &*elementwise::cast(&cast).unwrap(),
            std::slice::from_ref(&numbers),
        );
    }
}

/// Resizes images with the channels first and last, of which the latter is a single block.
#[test]
fn images_are_resized_to_the_same_bits_on_any_number_of_threads() {
    let scales = Tensor::vector(&[1.7f32, 2.3]).into_arc();
    for mode in ["linear", "cubic"] {
        for (shape, axes) in [([2, 8, 20, 30], [2, 3]), ([1, 20, 30, 8], [1, 2])] {
            let resize = Node {
                input: ["x", "", "scales"].map(str::to_owned).to_vec(),
                opset: 18,
                ..with_text(node("Resize", &[("axes", axes.to_vec())], &[], 1), "mode", mode)
            };
            expect_same(
                &*image::resize(&resize).unwrap(),
                &[floats(&shape), scales.clone()],
            );
        }
    }
}

#[test]
fn all_parts_end_with_their_run() {
    let threads: &'static Threads = Box::leak(Box::new(Threads::new(3)));
    let _run = threads.start(0);
    let sine = elementwise::function(&named("Sin")).unwrap();
    let ended = while_cancelled(|| sine.run(&mut smallvec![floats(&[1 << 20])]));
    assert!(is_cancelled(&ended.unwrap_err()));
    assert!(threads.has_pool());
}
