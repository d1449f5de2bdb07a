//! Tests the memory budget, which a model's outputs count against.

use std::{
    task::{Context, Waker},
    time::Duration,
};

use futures_executor::block_on;
use oip_engine::FailureReason;
use oip_resources::{ByteBudget, Lease, TimeLimits};
use oip_service::{InferenceService, RequestContext};
use oip_types::{ErrorCode, InferRequest, InferResponse, ServiceError};

use crate::{
    functions::{ResponseFuture, double, engine, gated, one_instance, out},
    support::request,
};

fn ask<'e>(engine: &'e oip_engine::Engine, budget: &ByteBudget, request: InferRequest) -> ResponseFuture<'e> {
    let lease = Lease::new(budget, &TimeLimits::default());
    let time = TimeLimits::default().with(|time| time.default = Duration::from_secs(60));
    let cx = RequestContext::for_request(&request, &lease, None, &time).unwrap();
    engine.infer(request, cx)
}

fn code(answer: Result<InferResponse, ServiceError>) -> Result<(), ErrorCode> {
    answer.map(drop).map_err(|error| error.code())
}

#[test]
fn outputs_count_until_they_are_dropped_and_refusals_say_which_kind() {
    let (engine, _folder) = engine(one_instance(), |_, _| out(vec![7; 1000]));
    let budget = ByteBudget::new(9000);
    let first = block_on(ask(&engine, &budget, request("m", None, 1))).unwrap();
    assert_eq!(budget.used(), 4000);
    let second = block_on(ask(&engine, &budget, request("m", None, 1))).unwrap();
    assert_eq!(budget.used(), 8000);
    let refused = block_on(ask(&engine, &budget, request("m", None, 1)));
    assert_eq!(code(refused), Err(ErrorCode::Overloaded));
    let slice = first.outputs[0].value.raw().slice(..4);
    drop((first, second));
    assert_eq!(budget.used(), 4000, "a slice keeps all of it");
    drop(slice);
    assert_eq!(budget.used(), 0);
    let never = ask(&engine, &ByteBudget::new(3000), request("m", None, 1));
    assert_eq!(code(block_on(never)), Err(ErrorCode::TooLarge));
    // The model ran these requests, so they do not count as rejected.
    let metrics = &engine.metrics()[0];
    assert_eq!(metrics.failures, [(FailureReason::Other, 2)]);
    assert_eq!(metrics.statistics.execution_count, 4);
}

/// If there is no memory for concatenating a batch, its requests run alone, and only these runs are counted
/// as executions.
#[test]
fn a_batch_that_could_not_be_joined_was_not_run() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    // Four rows of four bytes exceed the budget; one row fits.
    let budget = ByteBudget::new(15);
    let held = gate.hold(&engine);
    let mut answers: Vec<ResponseFuture<'_>> = (0..4)
        .map(|value| ask(&engine, &budget, request("m", None, value)))
        .collect();
    for answer in &mut answers {
        let polled = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    gate.open();
    block_on(held).unwrap();
    for answer in answers {
        // Reads one response at a time, so that each output fits the budget.
        let _ = block_on(answer);
    }
    let runs = batches.lock().unwrap().len() as u64;
    assert_eq!(runs, 5);
    let metrics = &engine.metrics()[0];
    assert_eq!(metrics.statistics.execution_count, runs);
    assert!(
        metrics
            .failures
            .iter()
            .all(|(reason, _)| *reason != FailureReason::Rejected)
    );
}

/// The responses of a batch are slices of one buffer, which counts once toward the budget until the last
/// response is dropped.
#[test]
fn a_batch_counts_once_until_its_last_answer_is_dropped() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let budget = ByteBudget::new(1 << 20);
    for _ in 0..2 {
        let held = gate.hold(&engine);
        let mut answers: Vec<ResponseFuture<'_>> = (0..4)
            .map(|value| ask(&engine, &budget, request("m", None, value)))
            .collect();
        for answer in &mut answers {
            assert!(
                answer
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
        gate.open();
        block_on(held).unwrap();
        let mut answers: Vec<InferResponse> = answers
            .into_iter()
            .map(|answer| block_on(answer).unwrap())
            .collect();
        assert_eq!(batches.lock().unwrap().last().unwrap().len(), 4);
        let last = answers.pop().unwrap();
        assert_eq!(budget.used(), 16, "four rows of four bytes");
        drop(answers);
        assert_eq!(budget.used(), 16);
        drop(last);
        assert_eq!(budget.used(), 0);
    }
}
