//! Tests runs that are started on a thread that has little time and finished by another thread.

use std::time::{Duration, Instant};

use oip_model::{Call, CancelToken, Model, NoOtherModels, Outcome, RestOfRun};
use oip_types::{ErrorCode, InferOutput, InferRequest, ServiceError};

use crate::{
    support::{ACT, PID, infer, is_alive, isolated, isolation, load, pid_of, request, until, vector},
    tensor_locations,
};

const LONG: Duration = Duration::from_secs(60);

fn begin(model: &dyn Model, request: InferRequest, patience: Duration) -> Result<Outcome, ServiceError> {
    assert!(model.capabilities().elsewhere);
    let cancel = CancelToken::new(None);
    model.run(Call::new(request, &cancel).with_patience(Some(patience)))
}

/// Returns the outputs of a run that finished in time.
fn done(begun: Result<Outcome, ServiceError>) -> Result<Vec<InferOutput>, ServiceError> {
    begun?.into_outputs()
}

fn rest(begun: Result<Outcome, ServiceError>) -> RestOfRun {
    match begun {
        Ok(Outcome::Unfinished(rest)) => rest,
        given => panic!("it is over: {given:?}"),
    }
}

fn finish(rest: RestOfRun) -> Result<Vec<InferOutput>, ServiceError> {
    let cancel = CancelToken::new(Some(Instant::now() + LONG));
    rest.finish(&cancel, &NoOtherModels)
}

fn first(outputs: &[InferOutput]) -> i32 {
    outputs[0].value.as_fixed().unwrap().to_vec::<i32>().unwrap()[0]
}

#[test]
fn an_answer_in_time_ends_the_run() {
    let model = isolated("panics");
    assert_eq!(first(&done(begin(&*model, request(7), LONG)).unwrap()), 7);
    let error = done(begin(&*model, request(ACT), LONG)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert_eq!(first(&done(begin(&*model, request(8), LONG)).unwrap()), 8);
}

#[test]
fn a_run_that_takes_longer_goes_on() {
    let model = isolated("sleeps");
    let start = Instant::now();
    let open = rest(begin(&*model, request(ACT), Duration::from_millis(20)));
    assert!(
        start.elapsed() < Duration::from_millis(250),
        "{:?}",
        start.elapsed()
    );
    // The worker is busy. The other request therefore waits for an idle worker, on a thread that may block.
    let other = rest(begin(&*model, request(7), LONG));
    assert_eq!(first(&finish(open).unwrap()), ACT);
    assert_eq!(first(&finish(other).unwrap()), 7);
    assert_eq!(first(&done(begin(&*model, request(9), LONG)).unwrap()), 9);
}

#[test]
fn a_worker_that_dies_meanwhile_is_found_and_replaced() {
    for deed in ["aborts", "exits"] {
        let model = isolated(deed);
        let before = pid_of(&*model);
        let error = finish(rest(begin(&*model, request(ACT), LONG))).unwrap_err();
        assert!(error.message().starts_with("its process died: it "), "{error}");
        assert_eq!(infer(&*model, 7).unwrap(), 7);
        assert_ne!(pid_of(&*model), before);
    }
}

/// A hanging run that was left to another thread is cancelled and its worker is killed, like any other
/// hanging run.
#[test]
fn a_model_that_hangs_is_killed_when_nobody_waits() {
    let grace = isolation("worker").grace(Duration::from_millis(50));
    let model = load("hangs", grace, &[("isolation", "process")]).unwrap();
    let before = pid_of(&*model);
    let open = rest(begin(&*model, request(ACT), Duration::from_millis(5)));
    let cancel = CancelToken::new(None);
    cancel.cancel();
    let error = open.finish(&cancel, &NoOtherModels).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Cancelled);
    assert!(!is_alive(before));
    assert_eq!(infer(&*model, 7).unwrap(), 7);
}

#[test]
fn a_rest_that_nobody_wants_takes_its_worker_with_it() {
    let model = isolated("hangs");
    let before = pid_of(&*model);
    drop(rest(begin(&*model, request(ACT), Duration::from_millis(5))));
    assert!(!is_alive(before));
    until("another worker", || infer(&*model, 7).is_ok());
}

/// Large requests and responses are written and read by a thread of the model.
#[test]
fn large_requests_and_answers_are_left() {
    let model = isolated("large 1000000");
    let large = rest(begin(&*model, request(ACT), LONG));
    assert_eq!(finish(large).unwrap()[0].value.shape().dims(), [250_000]);
    let mut many = request(0);
    many.inputs[0].value = vector(vec![5; 20_000]).into();
    assert_eq!(
        finish(rest(begin(&*model, many, LONG))).unwrap()[0]
            .value
            .shape()
            .dims(),
        [20_000]
    );
    let mut long = request(7);
    long.id = Some("i".repeat(100_000));
    assert_eq!(first(&finish(rest(begin(&*model, long, LONG))).unwrap()), 7);
    assert_ne!(first(&done(begin(&*model, request(PID), LONG)).unwrap()), 0);
}

#[test]
fn an_answer_that_is_the_request_shares_its_memory() {
    let model = tensor_locations::load("another program: hands back");
    let request = request(7);
    let place = request.inputs[0].value.raw().as_ptr();
    let outputs = done(begin(&*model, request, LONG)).unwrap();
    assert_eq!((first(&outputs), outputs[0].value.raw().as_ptr()), (7, place));
}
