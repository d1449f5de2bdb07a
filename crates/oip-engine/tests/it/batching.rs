//! Tests batches, and how a bad, slow or cancelled request affects the other requests.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    thread,
    time::Duration,
};

use futures_executor::block_on;
use oip_engine::{EngineConfig, FailureReason};
use oip_service::InferenceService;
use oip_types::{ErrorCode, InferRequest, Joining, ModelRef, ServiceError};

use crate::{
    functions::{GATE, Gate, code, double, engine, gated, one_instance, out, submit, submit_within, vector},
    support::request,
};

#[test]
fn what_waits_runs_together() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let held = gate.hold(&engine);
    let answers: Vec<_> = (0..100).map(|x| submit(&engine, request("m", None, x))).collect();
    gate.open();
    assert_eq!(code(block_on(held)), Ok(-2));
    for (x, answer) in (0..).zip(answers) {
        assert_eq!(code(block_on(answer)), Ok(2 * x));
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 64, 36]);

    let statistics = engine.statistics().unwrap();
    let model = ModelRef::new("m", None).unwrap();
    let found = statistics.model_statistics(Some(model)).unwrap();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.name.as_str(), found.version.as_str()), ("m", "1"));
    assert_eq!((found.inference_count, found.execution_count), (101, 3));
    let stats = &found.inference_stats;
    let counts = [
        stats.success,
        stats.queue,
        stats.compute_input,
        stats.compute_infer,
        stats.compute_output,
    ];
    assert_eq!(counts.map(|duration| duration.count), [101; 5]);
    assert_eq!(
        [stats.fail, stats.cache_hit, stats.cache_miss].map(|duration| duration.count),
        [0; 3]
    );
    assert!(stats.success.ns >= stats.queue.ns + stats.compute_infer.ns);
    let by_size: Vec<(u64, u64)> = found
        .batch_stats
        .iter()
        .map(|batch| (batch.batch_size, batch.compute_infer.count))
        .collect();
    assert_eq!(by_size, [(1, 1), (36, 1), (64, 1)]);
    assert_eq!(statistics.model_statistics(None).unwrap().len(), 2);
    let unknown = statistics.model_statistics(Some(ModelRef::new("m", Some("2")).unwrap()));
    assert_eq!(unknown.unwrap_err().code(), ErrorCode::NotFound);
}

#[test]
fn requests_of_many_rows_run_too() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let held = gate.hold(&engine);
    let large = |rows| {
        let x = vector((0..rows).collect());
        InferRequest::new(ModelRef::new("m", None).unwrap()).with_input("x", x)
    };
    let answers: Vec<_> = [40, 100, 30, 20]
        .map(|rows| (rows, submit(&engine, large(rows))))
        .into();
    gate.open();
    block_on(held).unwrap();
    for (rows, answer) in answers {
        let response = block_on(answer).unwrap();
        let found: Vec<i32> = response.get("y").unwrap().into_vec();
        assert_eq!(found, double(&(0..rows).collect::<Vec<_>>()));
    }
    // 40 and 30 together exceed 64 rows; a request with 100 rows runs alone.
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 40, 100, 50]);
}

/// If a model panics on one value of a batch of 8, only the request with this value fails.
#[test]
fn a_panic_in_a_batch_is_one_requests_error() {
    let (engine, gate, _, _folder) = gated(|x| match x.contains(&13) {
        true => panic!("13 at src/secret.rs"),
        false => Ok(double(x)),
    });
    for _ in 0..100 {
        let held = gate.hold(&engine);
        let answers: Vec<_> = (10..18)
            .map(|x| (x, submit(&engine, request("m", None, x))))
            .collect();
        gate.open();
        block_on(held).unwrap();
        for (x, answer) in answers {
            let expected = if x == 13 {
                Err(ErrorCode::Internal)
            } else {
                Ok(2 * x)
            };
            assert_eq!(code(block_on(answer)), expected);
        }
    }
}

/// One bad request is batched with 31 good ones. After the batch has failed, each request runs once alone,
/// and only the bad one fails.
#[test]
fn a_bad_request_does_not_spoil_its_neighbours() {
    let (engine, gate, batches, _folder) = gated(|x| match x.contains(&13) {
        true => Err(ServiceError::invalid("13 is out of range")),
        false => Ok(double(x)),
    });
    let held = gate.hold(&engine);
    let answers: Vec<_> = (0..32).map(|x| submit(&engine, request("m", None, x))).collect();
    gate.open();
    block_on(held).unwrap();
    for (x, answer) in (0..).zip(answers) {
        let expected = if x == 13 {
            Err(ErrorCode::InvalidArgument)
        } else {
            Ok(2 * x)
        };
        assert_eq!(code(block_on(answer)), expected);
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(
        sizes,
        [&[1, 32][..], &[1; 32]].concat(),
        "each is tried once more, and no more"
    );
    let metrics = &engine.metrics()[0];
    assert_eq!(metrics.failures, [(FailureReason::Other, 1)]);
    assert_eq!(metrics.statistics.inference_count, 32);
}

/// If a model fails individual requests of a batch, only those fail, and no request is run again.
#[test]
fn some_of_joined_requests_fail_without_another_run() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let with_id = |x, refused: bool| {
        let mut request = request("m", None, x);
        request.id = Some(if refused { "refused" } else { "other" }.to_owned());
        request
    };
    // The requests with these values fail; in the last round all of them do.
    for refused in [&[3, 5][..], &[], &[0, 1, 2, 3, 4, 5, 6, 7]] {
        let held = gate.hold(&engine);
        let answers: Vec<_> = (0..8)
            .map(|x| submit(&engine, with_id(x, refused.contains(&x))))
            .collect();
        gate.open();
        block_on(held).unwrap();
        for (x, answer) in (0..).zip(answers) {
            let expected = match refused.contains(&x) {
                true => Err(ErrorCode::InvalidArgument),
                false => Ok(2 * x),
            };
            assert_eq!(code(block_on(answer)), expected, "{x} of {refused:?}");
        }
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 8, 1, 8, 1, 8]);
    assert_eq!(engine.metrics()[0].failures, [(FailureReason::Other, 10)]);
}

/// If a batch's outputs have a different number of rows than the batch, no request gets these rows, and the
/// model's requests are not batched any more.
#[test]
fn a_model_is_not_joined_any_more_whose_outputs_have_other_rows_than_its_inputs() {
    // The model drops values up to 10, so the first dimension of output `y` is not the batch dimension,
    // although the model declares it as such.
    let (engine, gate, batches, _folder) = gated(|x| Ok(x.iter().copied().filter(|x| *x > 10).collect()));
    let shown = || {
        let model = ModelRef::new("m", None).unwrap();
        let config = engine.configuration().unwrap().model_config(model).unwrap();
        (
            config.max_batch_size,
            config.dynamic_batching.is_some(),
            config.input[0].dims.clone(),
            Joining::shown_in(&config).unwrap().to_owned(),
        )
    };
    assert_eq!(shown(), (64, true, vec![], "proven".to_owned()));
    for _ in 0..2 {
        let held = gate.hold(&engine);
        let answers: Vec<_> = (8..16)
            .map(|x| (x, submit(&engine, request("m", None, x))))
            .collect();
        gate.open();
        block_on(held).unwrap();
        for (x, answer) in answers {
            let response = block_on(answer).unwrap();
            let found: Vec<i32> = response.get("y").unwrap().into_vec();
            assert_eq!(found, [x].into_iter().filter(|x| *x > 10).collect::<Vec<_>>());
        }
    }
    let sizes: Vec<usize> = batches.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(
        sizes,
        [&[1, 8][..], &[1; 8], &[1], &[1; 8]].concat(),
        "joined once, and never again"
    );
    let reason = "no (a batch's outputs had other rows than its inputs)";
    assert_eq!(shown(), (0, false, vec![-1], reason.to_owned()));
}

/// A client disconnects while its request is queued, and another while its request runs in a batch of four.
/// The queued request is not run, and the other clients get exactly their own rows.
#[test]
fn a_client_that_leaves_is_dropped_from_the_batch_and_the_others_are_exact() {
    let running = Gate::default();
    let (engine, gate, batches, _folder) = gated({
        let running = running.clone();
        move |x| {
            if x.len() > 1 {
                running.pass(&[GATE]);
            }
            Ok(double(x))
        }
    });
    let held = gate.hold(&engine);
    let mut answers: Vec<_> = (0..5)
        .map(|x| Some(submit(&engine, request("m", None, x))))
        .collect();
    drop(answers[1].take());
    gate.open();
    block_on(held).unwrap();
    while !running.is_reached.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(1));
    }
    drop(answers[3].take());
    running.open();
    for x in [0, 2, 4] {
        assert_eq!(code(block_on(answers[x as usize].take().unwrap())), Ok(2 * x));
    }
    assert_eq!(batches.lock().unwrap()[1..], [vec![0, 2, 3, 4]]);
    // Both requests count as cancelled, even the one whose rows were computed but not delivered.
    assert_eq!(engine.metrics()[0].failures, [(FailureReason::Canceled, 2)]);
    assert_eq!(engine.metrics()[0].statistics.inference_stats.success.count, 4);
}

#[test]
fn expired_requests_are_dropped_from_the_batch() {
    let (engine, gate, batches, _folder) = gated(|x| Ok(double(x)));
    let held = gate.hold(&engine);
    let late = submit_within(&engine, request("m", None, 1), Duration::from_millis(20));
    let patient = submit(&engine, request("m", None, 2));
    thread::sleep(Duration::from_millis(30));
    gate.open();
    block_on(held).unwrap();
    assert_eq!(code(block_on(late)), Err(ErrorCode::DeadlineExceeded));
    assert_eq!(code(block_on(patient)), Ok(4));
    assert_eq!(batches.lock().unwrap()[1..], [vec![2]]);
}

#[test]
fn a_client_that_leaves_makes_room_in_the_queue() {
    let gate = Gate::default();
    let config = one_instance().with(|config| {
        config.queue_capacity = 1;
    });
    let (engine, _folder) = engine(config, {
        let gate = gate.clone();
        move |x, _| {
            gate.pass(x);
            out(double(x))
        }
    });
    let held = gate.hold(&engine);
    let first = submit(&engine, request("m", None, 1));
    assert_eq!(
        code(block_on(submit(&engine, request("m", None, 2)))),
        Err(ErrorCode::Overloaded)
    );
    drop(first);
    let third = submit(&engine, request("m", None, 3));
    gate.open();
    block_on(held).unwrap();
    assert_eq!(code(block_on(third)), Ok(6));
}

/// 64 clients send unique values through the batcher; each must receive exactly its own rows.
///
/// Each client sends 10,000 requests in optimized builds, otherwise 3,000.
#[test]
fn no_row_astray() {
    const CLIENTS: i32 = 64;
    let rounds = if cfg!(debug_assertions) { 3_000 } else { 10_000 };
    let largest = Arc::new(Mutex::new(0));
    let config = EngineConfig::default().with(|config| {
        config.instances = 4;
    });
    let (engine, _folder) = engine(config, {
        let largest = largest.clone();
        move |x, _| {
            let mut largest = largest.lock().unwrap();
            *largest = x.len().max(*largest);
            out(x.iter().map(|x| x ^ 0x5555_5555).collect())
        }
    });
    // 8 threads with 8 clients each, to measure the engine rather than thread scheduling.
    let threads = (0..8).map(|thread| {
        let engine = engine.clone();
        thread::spawn(move || {
            for round in 0..rounds {
                let answers = (0..CLIENTS / 8).map(|client| {
                    let start = ((thread * CLIENTS / 8 + client) * rounds + round) * 4;
                    let x: Vec<i32> = (start..=start + round % 4).collect();
                    let request = InferRequest::new(ModelRef::new("m", None).unwrap());
                    (x.clone(), submit(&engine, request.with_input("x", vector(x))))
                });
                let answers: Vec<_> = answers.collect();
                for (x, answer) in answers {
                    let response = block_on(answer).unwrap();
                    let found: Vec<i32> = response.get("y").unwrap().into_vec();
                    assert!(found.iter().map(|y| y ^ 0x5555_5555).eq(x), "a row went astray");
                }
            }
        })
    });
    threads
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert!(*largest.lock().unwrap() > 4, "nothing was joined");
    let counted: u64 = engine.metrics()[0].statistics.inference_stats.success.count;
    assert_eq!(counted, CLIENTS as u64 * rounds as u64);
}
