//! Counts the tensors that the engine and its models allocate for a request toward the memory budget.

use bytes::Bytes;
use oip_resources::{Charge, Lease};
use oip_types::{InferInput, InferOutput, InferRequest, ServiceError, TensorValue};

use crate::batching::batch;

/// The memory of a request's inputs during a run. Outputs that share this memory already count toward the
/// budget.
pub(crate) struct Inputs(Vec<Bytes>);

impl Inputs {
    pub(crate) fn of(request: &InferRequest) -> Self {
        Self(
            request
                .inputs
                .iter()
                .map(|input| input.value.raw().clone())
                .collect(),
        )
    }

    fn hold(&self, bytes: &Bytes) -> bool {
        let range = bytes.as_ptr_range();
        self.0.iter().any(|input| {
            let input = input.as_ptr_range();
            input.start <= range.start && range.end <= input.end
        })
    }
}

/// Counts a model's outputs toward the memory budget until the last slice of each has been dropped. For
/// `lends_memory` see [`Capabilities::lends_memory`](oip_model::Capabilities::lends_memory).
///
/// # Errors
/// See [`Lease::charge`].
pub(crate) fn charge_outputs(
    lease: &Lease,
    inputs: &Inputs,
    lends_memory: bool,
    outputs: Vec<InferOutput>,
) -> Result<Vec<InferOutput>, ServiceError> {
    let charge = |mut output: InferOutput| {
        let raw = output.value.raw();
        let is_lent = lends_memory && !raw.is_unique();
        if !raw.is_empty() && !is_lent && !inputs.hold(raw) {
            output.value = charged(lease, output.value)?;
        }
        Ok(output)
    };
    outputs.into_iter().map(charge).collect()
}

/// Concatenates requests. Before copying their inputs, counts the copies toward the memory budget. `shared`
/// inputs are not copied.
///
/// # Errors
/// See [`Lease::charge`] and [`batch::join`].
pub(crate) fn join(
    lease: &Lease,
    requests: &[InferRequest],
    shared: &[String],
) -> Result<InferRequest, ServiceError> {
    let inputs = requests.iter().flat_map(|request| &request.inputs);
    let copied = inputs.filter(|input| !shared.contains(&input.name));
    let bytes = copied.map(|input| input.value.raw().len() as u64).sum();
    let mut charge = lease.charge(bytes)?;
    let mut joined = batch::join(requests, shared)?;
    for input in std::mem::take(&mut joined.inputs) {
        if shared.contains(&input.name) {
            joined.inputs.push(input);
            continue;
        }
        joined.inputs.push(InferInput {
            value: input
                .value
                .with_handle(|bytes| charge.split(bytes.len() as u64).own(bytes)),
            ..input
        });
    }
    Ok(joined)
}

/// Counts the strings that a model holds during a run toward the memory budget: each string is an allocation,
/// even an empty one.
///
/// # Errors
/// See [`Lease::charge`].
pub(crate) fn charge_strings(lease: &Lease, request: &InferRequest) -> Result<Option<Charge>, ServiceError> {
    const STRING: u64 = size_of::<String>() as u64;
    let counts = request.inputs.iter().map(|input| match &input.value {
        TensorValue::Bytes(strings) => strings.shape().element_count(),
        TensorValue::Fixed(_) => 0,
    });
    match counts.sum::<u64>() {
        0 => Ok(None),
        count => lease.charge(count.saturating_mul(STRING)).map(Some),
    }
}

fn charged(lease: &Lease, value: TensorValue) -> Result<TensorValue, ServiceError> {
    let charge = lease.charge(value.raw().len() as u64)?;
    Ok(value.with_handle(|bytes| charge.own(bytes)))
}

#[cfg(test)]
mod tests {
    use oip_resources::{ByteBudget, TimeLimits};
    use oip_types::{BytesTensor, ErrorCode, ModelRef};
    use tensor_core::{Shape, Tensor};

    use super::*;

    fn vector(len: usize) -> Tensor {
        Tensor::from_vec(Shape::vector(len as u64), vec![1u8; len]).unwrap()
    }

    fn lease(limit: u64) -> (ByteBudget, Lease) {
        let budget = ByteBudget::new(limit);
        let lease = Lease::new(&budget, &TimeLimits::default());
        (budget, lease)
    }

    #[test]
    fn strings_count_while_a_model_runs() {
        let (budget, lease) = lease(100);
        let request = |count: u64| {
            let strings = BytesTensor::from_elements(Shape::vector(count), vec![""; count as usize]).unwrap();
            InferRequest::new(ModelRef::new("m", None).unwrap())
                .with_input("x", vector(100))
                .with_input("s", strings)
        };
        let charge = charge_strings(&lease, &request(4)).unwrap().unwrap();
        assert_eq!(budget.used(), 4 * 24);
        drop(charge);
        assert!(charge_strings(&lease, &request(0)).unwrap().is_none());
        let error = charge_strings(&lease, &request(5)).err().unwrap();
        assert_eq!((error.code(), budget.used()), (ErrorCode::TooLarge, 0));
    }

    #[test]
    fn what_a_model_made_counts_and_what_it_got_does_not() {
        let (budget, lease) = lease(1000);
        let request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", vector(100));
        let inputs = Inputs::of(&request);
        let handed_on = request.inputs[0].value.clone();
        let part = handed_on.as_fixed().unwrap().rows(10..20).unwrap();
        let made = BytesTensor::from_elements(Shape::vector(2), ["a", "bc"]).unwrap();
        let outputs = vec![
            InferOutput::new("input", handed_on.clone()),
            InferOutput::new("part", part),
            InferOutput::new("made", vector(300)),
            InferOutput::new("text", made),
        ];
        let places: Vec<_> = outputs.iter().map(|output| output.value.raw().as_ptr()).collect();
        let charged = charge_outputs(&lease, &inputs, false, outputs.clone()).unwrap();
        assert_eq!(charged, outputs);
        assert_eq!(budget.used(), 300 + 11);
        let still: Vec<_> = charged.iter().map(|output| output.value.raw().as_ptr()).collect();
        assert_eq!(still, places, "copied");
        let slice = charged[2].value.raw().slice(299..);
        drop(charged);
        assert_eq!(budget.used(), 300);
        drop(slice);
        assert_eq!(budget.used(), 0);
        let error = charge_outputs(&lease, &inputs, false, vec![InferOutput::new("y", vector(1001))]);
        assert_eq!(error.unwrap_err().code(), ErrorCode::TooLarge);
        let error = charge_outputs(
            &lease,
            &inputs,
            false,
            vec![InferOutput::new("y", vector(500)); 3],
        );
        assert_eq!(error.unwrap_err().code(), ErrorCode::TooLarge);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_batch_counts_its_joined_inputs() {
        let (budget, lease) = lease(1000);
        let request = |len| InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", vector(len));
        let joined = join(&lease, &[request(100), request(200)], &[]).unwrap();
        assert_eq!((joined.inputs[0].value.raw().len(), budget.used()), (300, 300));
        // Inputs that a model returns as outputs still count toward the budget.
        let handed_through = joined.inputs[0].value.raw().slice(100..);
        drop(joined);
        assert_eq!(budget.used(), 300);
        drop(handed_through);
        assert_eq!(budget.used(), 0);
        assert!(join(&lease, &[request(600), request(600)], &[]).is_err());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_a_model_lends_does_not_count() {
        let (budget, lease) = lease(1000);
        let table = Bytes::from(vec![1u8; 100]);
        let of_table = |range| {
            let rows = Tensor::new(vector(50).spec().clone(), table.slice(range)).unwrap();
            InferOutput::new("y", rows)
        };
        let nothing = Inputs(Vec::new());
        let lent = charge_outputs(&lease, &nothing, true, vec![of_table(0..50)]).unwrap();
        assert_eq!(budget.used(), 0);
        let own = Tensor::new(vector(50).spec().clone(), Bytes::from(vec![2u8; 50])).unwrap();
        let own = charge_outputs(&lease, &nothing, true, vec![InferOutput::new("y", own)]).unwrap();
        assert_eq!(budget.used(), 50);
        drop((lent, own));
        assert_eq!(budget.used(), 0);
    }
}
