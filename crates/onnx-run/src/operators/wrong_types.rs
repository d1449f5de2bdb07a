//! Tests that inputs of a type that a kernel does not support are refused before the kernel runs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onnx_tensor::prelude::*;

use crate::operators::{
    cases::{Ready, case},
    node::Stop,
    registry::rows,
};
use onnx_tensor::{
    cancelling::is_cancelled,
    faults::{BadInput, Misfit},
    operator::Fact,
    room::Room,
    testing::while_cancelled,
};

const TYPES: [ElementType; 7] = [
    ElementType::Bool,
    ElementType::U8,
    ElementType::I32,
    ElementType::I64,
    ElementType::F32,
    ElementType::F64,
    ElementType::String,
];

/// Returns a message if a run with `element_type` for input `index` fails with an internal error.
fn fault(ready: &Ready, index: usize, element_type: ElementType) -> Option<String> {
    let mut facts = Fact::of_values(&ready.inputs);
    facts[index] = Fact::new(element_type, facts[index].shape.iter().copied());
    if ready.direct.outputs(&facts).is_err() {
        return None;
    }
    let mut inputs = ready.inputs.clone();
    inputs[index] = Arc::new(Tensor::zero_of(element_type, inputs[index].shape()).unwrap());
    match while_cancelled(|| ready.direct.run(&mut inputs, &mut Room::new())) {
        Err(Stop::Failed(error)) if !is_cancelled(&error) && !is_of_request(&error) => {
            Some(format!("input {index} of {}: {error:#}", element_type.name()))
        }
        _ => None,
    }
}

fn is_of_request(error: &Error) -> bool {
    error
        .chain()
        .any(|cause| cause.is::<BadInput>() || cause.is::<Misfit>())
}

#[test]
fn inputs_of_types_that_are_not_read_are_the_models_fault() {
    let mut faults = Vec::new();
    for row in rows() {
        let Some(ready) = case(row).map(|case| case.ready().unwrap()) else {
            continue;
        };
        for index in 0..ready.inputs.len() {
            let found = ready.inputs[index].element_type();
            let others = TYPES.into_iter().filter(|&other| other != found);
            let of_input = others.filter_map(|other| fault(&ready, index, other));
            faults.extend(of_input.map(|fault| format!("{}, {fault}", row.full_name())));
        }
    }
    assert!(faults.is_empty(), "{}:\n{}", faults.len(), faults.join("\n"));
}
