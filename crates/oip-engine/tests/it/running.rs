//! Tests requests in the queue and in the model.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use oip_engine::{Engine, EngineConfig};
use oip_service::{InferenceService, RequestContext};
use oip_types::{ErrorCode, InferRequest, ModelRef};
use tensor_core::{Shape, Tensor};

use crate::support::{engine, infer, infer_within, repository, request, small_engine, y};

#[test]
fn requests_are_checked_before_the_model_sees_them() {
    let (engine, runs, _folder) = small_engine(&[("m/1/model.word", "echo")]);
    let model = ModelRef::new("m", None).unwrap();
    let wrong_type = InferRequest::new(model).with_input("x", Tensor::scalar(1.0f32));
    let error = infer(&engine, wrong_type).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    assert_eq!(
        error.to_string(),
        "model 'm': input 'x': expected datatype INT32, found FP32"
    );
    let error = infer(&engine, InferRequest::new(model)).unwrap_err();
    assert!(
        error
            .message()
            .starts_with("model 'm': input 'x' (INT32[-1]) is missing"),
        "{error}"
    );
    let error = infer(&engine, request("m", None, 1).with_output("nope")).unwrap_err();
    assert!(
        error.message().starts_with("model 'm': unexpected output 'nope'"),
        "{error}"
    );
    assert_eq!(
        infer(&engine, request("zz", None, 1)).unwrap_err().code(),
        ErrorCode::NotFound
    );
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[test]
fn an_identity_model_passes_the_bytes_on() {
    let (engine, _, _folder) = small_engine(&[("m/1/model.word", "echo")]);
    let x = Tensor::from_vec(Shape::vector(1000), vec![7i32; 1000]).unwrap();
    let mut request = InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", x.clone());
    request.id = Some("42".into());
    let response = infer(&engine, request).unwrap();
    assert_eq!(
        response.output("y").unwrap().raw().as_ptr(),
        x.bytes().as_ptr(),
        "copied"
    );
    assert_eq!(
        (response.id.as_deref(), response.model_name.as_str()),
        (Some("42"), "m")
    );
}

/// A panic fails only its own request, even a thousand times in a row.
#[test]
fn panics_stay_with_their_request() {
    let (engine, _, _folder) = small_engine(&[("m/1/model.word", "panics on 13")]);
    for round in 0..1000 {
        let error = infer(&engine, request("m", None, 13)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(
            error.to_string(),
            "model 'm': it panicked; this request is lost, the next one will be tried"
        );
        assert_eq!(
            y(&infer(&engine, request("m", None, round + 14)).unwrap()),
            round + 14
        );
    }
}

/// Missing outputs, and outputs of the wrong type, are internal errors that name the output.
#[test]
fn broken_promises_are_internal_errors() {
    let files = [
        ("type/1/model.word", "gives another type"),
        ("nothing/1/model.word", "gives nothing"),
    ];
    let (engine, _, _folder) = small_engine(&files);
    for model in ["type", "nothing"] {
        let error = infer(&engine, request(model, None, 1)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert!(error.message().contains("output 'y'"), "{error}");
    }
}

#[test]
fn a_models_own_errors_keep_their_code() {
    let (engine, _, _folder) = small_engine(&[("m/1/model.word", "fails on 13")]);
    let error = infer(&engine, request("m", None, 13)).unwrap_err();
    assert_eq!(
        (error.code(), error.to_string()),
        (ErrorCode::InvalidArgument, "model 'm': 13 is out of range".into())
    );
}

#[test]
fn a_full_queue_refuses_at_once() {
    let (engine, _, _folder) = small_engine(&[("m/1/model.word", "sleeps")]);
    let engine = Arc::new(engine);
    let submit = |milliseconds| {
        let engine = engine.clone();
        thread::spawn(move || infer(&engine, request("m", None, milliseconds)))
    };
    let first = submit(500);
    thread::sleep(Duration::from_millis(100)); // one request runs,
    let waiting = [submit(1), submit(1)]; // two wait,
    thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    let error = infer(&engine, request("m", None, 1)).unwrap_err(); // and the queue is full.
    assert!(start.elapsed() < Duration::from_millis(100));
    assert_eq!(error.code(), ErrorCode::Overloaded);
    assert_eq!(error.to_string(), "model 'm': its queue is full; try again later");
    assert!(error.retry_delay().is_some());
    assert!(first.join().unwrap().is_ok());
    assert!(
        waiting
            .map(|waiting| waiting.join().unwrap().is_ok())
            .iter()
            .all(|ok| *ok)
    );
    assert!(infer(&engine, request("m", None, 1)).is_ok());
}

#[test]
fn expired_requests_are_not_run() {
    let (engine, runs, _folder) = small_engine(&[("m/1/model.word", "sleeps")]);
    let engine = Arc::new(engine);
    let busy = thread::spawn({
        let engine = engine.clone();
        move || infer(&engine, request("m", None, 300))
    });
    thread::sleep(Duration::from_millis(100));
    let error = infer_within(&engine, request("m", None, 1), Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    assert!(busy.join().unwrap().is_ok());
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// If a client disconnects, its queued request is not run; if its request is already running, the model is
/// notified.
#[test]
fn clients_that_leave_cost_nothing_more() {
    let files = [
        ("m/1/model.word", "sleeps"),
        ("c/1/model.word", "waits to be cancelled"),
    ];
    let (engine, runs, _folder) = small_engine(&files);
    let engine = Arc::new(engine);
    let busy = thread::spawn({
        let engine = engine.clone();
        move || infer(&engine, request("m", None, 300))
    });
    thread::sleep(Duration::from_millis(100));
    // The request is dropped while it is queued.
    poll_once_and_drop(&engine, request("m", None, 1));
    assert!(busy.join().unwrap().is_ok());
    assert!(infer(&engine, request("m", None, 1)).is_ok());
    assert_eq!(runs.load(Ordering::SeqCst), 2, "the abandoned request was run");

    // The request is dropped while it runs, so the model is notified.
    poll_once_and_drop(&engine, request("c", None, 1));
    assert!(
        engine.stop(Instant::now() + Duration::from_secs(30)),
        "the model was not told"
    );
}

fn poll_once_and_drop(engine: &Engine, request: InferRequest) {
    let mut future = engine.infer(request, RequestContext::new(None));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    thread::sleep(Duration::from_millis(50));
}

#[test]
fn stopping_finishes_what_is_queued() {
    let folder = repository(&[("m/1/model.word", "sleeps")]);
    let config = EngineConfig::default().with(|config| {
        config.instances = 1;
    });
    let (engine, _) = engine(folder.path(), config);
    let engine = Arc::new(engine);
    let queued: Vec<_> = (0..5)
        .map(|_| {
            let engine = engine.clone();
            thread::spawn(move || infer(&engine, request("m", None, 20)))
        })
        .collect();
    thread::sleep(Duration::from_millis(30));
    assert!(engine.stop(Instant::now() + Duration::from_secs(30)));
    for request in queued {
        assert!(request.join().unwrap().is_ok());
    }
    let error = infer(&engine, request("m", None, 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
}

#[test]
fn stopping_leaves_a_hanging_thread_behind() {
    let (engine, _, _folder) = small_engine(&[("m/1/model.word", "sleeps")]);
    let engine = Arc::new(engine);
    let _hanging = thread::spawn({
        let engine = engine.clone();
        move || infer(&engine, request("m", None, 100_000))
    });
    thread::sleep(Duration::from_millis(100));
    assert!(!engine.stop(Instant::now() + Duration::from_millis(100)));
}

#[test]
fn many_callers_get_their_own_answers() {
    let folder = repository(&[("m/1/model.word", "echo")]);
    let config = EngineConfig::default().with(|config| {
        config.instances = 4;
    });
    let engine = Arc::new(engine(folder.path(), config).0);
    let callers = (0..8).map(|caller| {
        let engine = engine.clone();
        thread::spawn(move || {
            for round in 0..500 {
                let x = caller * 1000 + round;
                assert_eq!(y(&infer(&engine, request("m", None, x)).unwrap()), x);
            }
        })
    });
    callers
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|caller| caller.join().unwrap());
}
