//! Checks that an operator computes the same bits on any number of threads.

use crate::prelude::*;

use crate::{elements::tensor, operator::Compute, packs::Packs, threads::Threads};

/// Returns numbers whose sum depends on the order.
pub fn floats(shape: &[usize]) -> Arc<Tensor> {
    let count = shape.iter().product::<usize>();
    let number = |at: usize| (at * 7919 % 1009) as f32 / 97.0 - 5.0;
    tensor(shape, (0..count).map(number).collect())
        .unwrap()
        .into_arc()
}

/// Returns varied bytes.
pub fn bytes(shape: &[usize]) -> Arc<Tensor> {
    let count = shape.iter().product::<usize>();
    let number = |at: usize| (at * 7919 % 251) as u8;
    tensor(shape, (0..count).map(number).collect())
        .unwrap()
        .into_arc()
}

/// Returns the output bytes, and whether the run was split.
fn run(op: &dyn Compute, inputs: &[Arc<Tensor>], limit: usize) -> (Vec<Vec<u8>>, bool) {
    let threads: &'static Threads = Box::leak(Box::new(Threads::new(limit)));
    let _run = threads.start(0);
    let made = op.run(&mut inputs.iter().cloned().collect()).unwrap();
    let outputs = made.iter().map(|output| output.as_bytes().unwrap().to_vec());
    (outputs.collect(), threads.has_pool())
}

/// Checks that an operator computes the same bits on any number of threads, and that it splits its work.
#[track_caller]
pub fn expect_same(op: &dyn Compute, inputs: &[Arc<Tensor>]) {
    let (expected, _) = run(op, inputs, 1);
    for limit in [2, 3, 4] {
        let (found, is_split) = run(op, inputs, limit);
        assert!(is_split, "computed on one thread");
        assert!(found == expected, "on {limit} threads");
    }
}

/// Checks as [`expect_same`] does, first with all inputs given at run time, then with constant inputs, which
/// the operator that `make` builds may absorb.
#[track_caller]
pub fn expect_same_with(make: impl Fn() -> Box<dyn Compute>, inputs: &[Arc<Tensor>]) {
    expect_same(&*make(), inputs);
    let mut op = make();
    let constants = inputs.iter().enumerate();
    let constants = constants.map(|(at, input)| (at > 0).then(|| input.clone()));
    let constants: Vec<_> = constants.collect();
    op.take_over(&constants, &mut Packs::beside(1 << 20)).unwrap();
    expect_same(&*op, inputs);
}
