//! Tests models that hang or are flooded, and their effect on other models.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use oip_service::InferenceService;
use oip_types::{ErrorCode, ModelRef, ModelState};

use crate::{
    functions::{Gate, code, double, engine, one_instance, out, submit},
    support::request,
};

/// Each thread that never returns from the model counts as lost. The model is unavailable while all of its
/// threads are lost.
#[test]
fn threads_that_hang_are_lost_one_by_one_and_then_the_model_is_unavailable() {
    let gate = Gate::default();
    let config = one_instance().with(|config| {
        config.instances = 2;
    });
    let (engine, _folder) = engine(config, {
        let gate = gate.clone();
        move |x, _| {
            gate.pass(x);
            out(double(x))
        }
    });
    let model = ModelRef::new("m", None).unwrap();
    let patience = Duration::from_millis(150);
    for lost in 1..=2 {
        // The transport drops the request at its deadline.
        drop(gate.hold(&engine));
        thread::sleep(patience);
        assert_eq!(engine.model_ready(model).is_ok(), lost < 2, "{lost} lost");
        let start = Instant::now();
        let answer = code(block_on(submit(&engine, request("m", None, 1))));
        assert_eq!(
            answer,
            if lost < 2 {
                Ok(2)
            } else {
                Err(ErrorCode::Unavailable)
            }
        );
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
    let reason = "all of its 2 instances hang in abandoned requests";
    let error = engine.model_ready(model).unwrap_err();
    assert_eq!(error.to_string(), format!("model 'm' is not ready: {reason}"));
    assert!(!engine.readiness().is_ready());
    let status = engine
        .models()
        .into_iter()
        .find(|status| status.name == "m")
        .unwrap();
    assert_eq!(
        (status.state, status.reason.as_str()),
        (ModelState::Unavailable, reason)
    );
    // Other models still answer, and the shutdown is not delayed.
    assert_eq!(code(block_on(submit(&engine, request("other", None, 1)))), Ok(2));
    // Once the hanging threads return, the model is available again.
    gate.open();
    while engine.model_ready(model).is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(code(block_on(submit(&engine, request("m", None, 1)))), Ok(2));
    drop(gate.hold(&engine));
    let start = Instant::now();
    assert!(!engine.stop(start + patience));
    assert!(start.elapsed() < patience + Duration::from_secs(1));
    gate.open();
}

#[test]
fn requests_that_wait_for_a_model_that_hangs_are_answered() {
    let gate = Gate::default();
    let (engine, _folder) = engine(one_instance(), {
        let gate = gate.clone();
        move |x, _| {
            gate.pass(x);
            out(double(x))
        }
    });
    drop(gate.hold(&engine));
    let waiting = submit(&engine, request("m", None, 1));
    thread::sleep(Duration::from_millis(150));
    assert_eq!(
        code(block_on(submit(&engine, request("m", None, 2)))),
        Err(ErrorCode::Unavailable)
    );
    assert_eq!(code(block_on(waiting)), Err(ErrorCode::Unavailable));
    // Requests that are queued when the server stops are refused as well.
    gate.open();
    while engine.model_ready(ModelRef::new("m", None).unwrap()).is_err() {
        thread::sleep(Duration::from_millis(1));
    }
    let _held = gate.hold(&engine);
    let waiting = submit(&engine, request("m", None, 3));
    assert!(!engine.stop(Instant::now() + Duration::from_millis(50)));
    assert_eq!(code(block_on(waiting)), Err(ErrorCode::Unavailable));
    gate.open();
}

/// One model is flooded and slow; another one and the health endpoints are not affected.
#[test]
fn a_flooded_model_leaves_the_others_alone() {
    const SLOW: Duration = Duration::from_millis(30);
    let (engine, _folder) = engine(one_instance(), |x, _| {
        thread::sleep(SLOW);
        out(double(x))
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let flood = thread::spawn({
        let (engine, is_over) = (engine.clone(), is_over.clone());
        move || {
            let mut refused = 0;
            let mut waiting = Vec::new();
            while !is_over.load(Ordering::SeqCst) {
                waiting.push(submit(&engine, request("m", None, 1)));
                if waiting.len() > 1_000 {
                    refused += waiting.drain(..500).filter(|_| true).count();
                    thread::sleep(Duration::from_millis(1));
                }
            }
            refused
        }
    });
    let mut times = Vec::new();
    for x in 0..200 {
        let start = Instant::now();
        assert_eq!(
            code(block_on(submit(&engine, request("other", None, x)))),
            Ok(2 * x)
        );
        times.push(start.elapsed());
        let start = Instant::now();
        assert!(engine.readiness().is_ready());
        assert!(
            start.elapsed() < Duration::from_millis(50),
            "{:?}",
            start.elapsed()
        );
    }
    is_over.store(true, Ordering::SeqCst);
    flood.join().unwrap();
    times.sort_unstable();
    // If requests to the other model were queued behind those to the flooded model, they would take at least
    // as long as one run of the flooded model.
    assert!(times[197] < SLOW, "{:?}", times[197]);
}
