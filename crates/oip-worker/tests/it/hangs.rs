//! Tests models that hang or respond late.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use oip_model::{CancelToken, Model};
use oip_types::ErrorCode;

use crate::support::{
    ACT, infer, is_alive, isolated, isolation, load, load_as, pid_of, request, until, workers_of,
};

/// A model that spins forever is killed soon after its deadline, and its instance is free again.
#[test]
fn a_model_that_hangs_is_killed_when_nobody_waits() {
    let grace = Duration::from_millis(200);
    let model = load(
        "hangs",
        isolation("worker").grace(grace),
        &[("isolation", "process")],
    )
    .unwrap();
    let before = pid_of(&*model);
    for has_deadline in [true, false] {
        let start = Instant::now();
        let token = CancelToken::new(has_deadline.then(|| start + Duration::from_millis(100)));
        let error = thread::scope(|scope| {
            let running = scope.spawn(|| model.infer(request(ACT), &token).unwrap_err());
            thread::sleep(Duration::from_millis(100));
            if !has_deadline {
                token.cancel();
            }
            running.join().unwrap()
        });
        let expected = if has_deadline {
            ErrorCode::DeadlineExceeded
        } else {
            ErrorCode::Cancelled
        };
        assert_eq!(error.code(), expected);
        assert!(start.elapsed() >= grace && start.elapsed() < Duration::from_secs(10));
        assert_eq!(infer(&*model, 7).unwrap(), 7);
    }
    assert!(!is_alive(before));
}

/// A hang does not count as a crash, because a single impatient client could then make the model unavailable
/// to everyone else.
#[test]
fn impatience_makes_no_pause() {
    let model = load(
        "hangs",
        isolation("worker").grace(Duration::ZERO),
        &[("isolation", "process")],
    )
    .unwrap();
    for _ in 0..7 {
        let token = CancelToken::new(Some(Instant::now() + Duration::from_millis(20)));
        assert_eq!(
            model.infer(request(ACT), &token).unwrap_err().code(),
            ErrorCode::DeadlineExceeded
        );
    }
    assert_eq!(infer(&*model, 7).unwrap(), 7);
}

/// A model that stops when it is cancelled keeps its process.
#[test]
fn a_model_that_listens_is_told_and_lives() {
    let model = isolated("waits to be cancelled");
    let before = pid_of(&*model);
    let token = CancelToken::new(None);
    thread::scope(|scope| {
        let running = scope.spawn(|| model.infer(request(ACT), &token));
        thread::sleep(Duration::from_millis(50));
        token.cancel();
        assert!(running.join().unwrap().is_ok());
    });
    assert_eq!(pid_of(&*model), before);
}

/// There are as many processes as concurrent requests. Each process is started when it is needed.
#[test]
fn requests_at_once_have_a_process_each() {
    let model: Arc<dyn Model> = isolated("sleeps").into();
    let start = Instant::now();
    thread::scope(|scope| {
        let running: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| infer(&*model, ACT).unwrap()))
            .collect();
        running
            .into_iter()
            .for_each(|request| assert_eq!(request.join().unwrap(), ACT));
    });
    let first = start.elapsed();
    let start = Instant::now();
    thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(|| infer(&*model, ACT).unwrap())));
    });
    assert!(
        start.elapsed() < Duration::from_millis(4 * 300),
        "{:?}, first {first:?}",
        start.elapsed()
    );
}

/// The load timeout ends a model that never finishes loading, together with its process.
#[test]
fn loading_has_an_end() {
    let patience = Duration::from_millis(500);
    let parameters = [("isolation", "process")];
    let error = load_as(
        "endless",
        "while loading: hangs",
        isolation("worker"),
        &parameters,
        patience,
    );
    assert_eq!(
        error.err().unwrap().to_string(),
        "its process did not load it in the time for loading"
    );
    until("its end", || workers_of("endless").is_empty());
}
