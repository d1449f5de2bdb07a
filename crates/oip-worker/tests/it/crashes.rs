//! Tests models that end their own process.

use std::{
    fs,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use oip_engine::{Engine, EngineConfig, Repository};
use oip_model::CancelToken;
use oip_service::{InferenceService, RequestContext};
use oip_types::{ErrorCode, InferRequest, ModelRef};
use oip_worker::IsolatedBackend;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    ACT, DeedBackend, infer, isolated, isolation, load, named, pid_of, request, until, vector, workers_of,
};

/// Each way to end a process fails one request, and the error says how the process ended. Another process
/// runs the next request.
#[test]
fn a_model_that_ends_its_process_loses_one_request() {
    for (deed, how) in [
        ("aborts", "it was terminated by SIGABRT"),
        (
            "overflows its stack",
            "it was terminated by SIGABRT, out of its stack",
        ),
        (
            "segfaults",
            "it was terminated by SIGSEGV (stack overflow, or out of memory?)",
        ),
        ("exits", "it ended with code 3"),
    ] {
        let model = isolated(deed);
        assert_eq!(infer(&*model, 7).unwrap(), 7);
        let before = pid_of(&*model);
        let error = infer(&*model, ACT).unwrap_err();
        assert_eq!(error.code(), ErrorCode::Internal);
        assert_eq!(
            error.to_string(),
            format!(
                "its process died: {how}. This request is lost, the next one will be tried by a new process"
            )
        );
        let start = Instant::now();
        assert_eq!(infer(&*model, 8).unwrap(), 8);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_ne!(pid_of(&*model), before);
    }
}

/// A new process is started before the next request needs it.
#[test]
fn a_worker_that_is_killed_from_outside_is_replaced_at_once() {
    let model = named("killed", "echo");
    let first = workers_of("killed");
    assert_eq!(first, [pid_of(&*model)]);
    let start = Instant::now();
    kill_process(Pid::from_raw(first[0] as i32).unwrap(), Signal::KILL).unwrap();
    let mut second = Vec::new();
    until("a new worker, without a request", || {
        second = workers_of("killed");
        !second.is_empty() && second != first
    });
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(pid_of(&*model), second[0]);
}

/// After five consecutive crashes, no process is started for a pause. After the pause the model works again.
#[test]
fn after_five_crashes_in_a_row_there_is_a_pause() {
    let model = isolated("aborts");
    for _ in 0..4 {
        assert_eq!(infer(&*model, ACT).unwrap_err().code(), ErrorCode::Internal);
    }
    // A response between crashes resets the count.
    assert_eq!(infer(&*model, 7).unwrap(), 7);
    for _ in 0..5 {
        assert_eq!(infer(&*model, ACT).unwrap_err().code(), ErrorCode::Internal);
    }
    let paused = Instant::now();
    let error = infer(&*model, 7).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert_eq!(
        error.to_string(),
        "its process died 5 times in a row, most recently: it was terminated by SIGABRT. The next attempt \
         is in 1 s"
    );
    assert_eq!(error.retry_delay(), Some(Duration::from_secs(1)));
    assert!(
        paused.elapsed() < Duration::from_millis(900),
        "it is told at once"
    );
    until("the end of the pause", || infer(&*model, 7).is_ok());
    assert!(paused.elapsed() > Duration::from_millis(500));
}

/// Other requests in a batch survive a crash, and other models are not affected.
#[test]
fn the_other_requests_and_the_other_models_are_unharmed() {
    let folder = tempfile::tempdir().unwrap();
    for (model, deed) in [("bad", "segfaults"), ("good", "echo")] {
        let version = folder.path().join(model).join("1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("model.deed"), deed).unwrap();
    }
    let config = "parameters { key: 'isolation' value { string_value: 'process' } }";
    fs::write(folder.path().join("bad/config.pbtxt"), config).unwrap();
    let backend = IsolatedBackend::new(Arc::new(DeedBackend), isolation("worker"));
    let repository = Repository::open(folder.path(), &[Arc::new(backend)], None).unwrap();
    let engine = Arc::new(Engine::start(repository, EngineConfig::default()));
    engine.wait_until_loaded();
    assert!(engine.readiness().is_ready(), "{:?}", engine.models());

    let infer = |model: &str, x: i32| {
        let request = InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("x", vector(vec![x]));
        let deadline = Instant::now() + Duration::from_secs(60);
        futures_executor::block_on(engine.infer(request, RequestContext::new(Some(deadline))))
    };
    // The good model runs in this process, and the bad one in a worker.
    let (ours, its) = (
        infer("good", crate::support::PID).unwrap(),
        infer("bad", crate::support::PID).unwrap(),
    );
    let number = |response: &oip_types::InferResponse| {
        response
            .output("y")
            .unwrap()
            .as_fixed()
            .unwrap()
            .to_vec::<i32>()
            .unwrap()[0]
    };
    assert_eq!(number(&ours), std::process::id() as i32);
    assert_ne!(number(&its), std::process::id() as i32);

    thread::scope(|scope| {
        let good = scope
            .spawn(|| (0..2000).for_each(|x| assert_eq!(number(&infer("good", x + 20).unwrap()), x + 20)));
        for round in 0..3 {
            // The requests likely form a batch; after the crash they are run one by one.
            let bad: Vec<_> = (0..4)
                .map(|index| {
                    let x = if index == 2 { ACT } else { 100 + index };
                    let infer = &infer;
                    scope.spawn(move || (x, infer("bad", x)))
                })
                .collect();
            for request in bad {
                let (x, answer) = request.join().unwrap();
                match x {
                    ACT => assert_eq!(answer.unwrap_err().code(), ErrorCode::Internal),
                    x => assert_eq!(
                        number(&answer.unwrap_or_else(|error| panic!("round {round}: {error}"))),
                        x
                    ),
                }
            }
        }
        good.join().unwrap();
    });
    assert!(engine.stop(Instant::now() + Duration::from_secs(10)));
}

/// A panic of the model does not end its process.
#[test]
fn a_panic_stays_what_it_is() {
    let model = isolated("panics");
    let before = pid_of(&*model);
    let error = infer(&*model, ACT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "it panicked; this request is lost, the next one will be tried"
    );
    assert_eq!(pid_of(&*model), before);
}

/// A crash during loading becomes the reason the model is unavailable.
#[test]
fn crashes_while_loading_are_why_a_model_is_not_loaded() {
    let parameters = [("isolation", "process")];
    for (deed, why) in [
        (
            "while loading: aborts",
            "a separate process was started, but while it loaded the model it was terminated by SIGABRT",
        ),
        (
            "while loading: overflows its stack",
            "a separate process was started, but while it loaded the model it was terminated by SIGABRT, \
             out of its stack",
        ),
        (
            "while loading: segfaults",
            "a separate process was started, but while it loaded the model it was terminated by SIGSEGV \
             (stack overflow, or out of memory?)",
        ),
        ("while loading: panics", "the backend panicked while loading it"),
        ("while loading: nothing", "it is broken"),
    ] {
        let error = load(deed, isolation("worker"), &parameters).err().unwrap();
        assert_eq!(error.to_string(), why, "{deed}");
    }
    let nothing = oip_worker::Isolation::new(|| std::process::Command::new("/nowhere/worker"));
    let error = load("echo", nothing, &parameters).err().unwrap();
    assert!(
        error.message().contains("it could not be started: No such file"),
        "{error}"
    );
}

/// Cancelled requests are not run when a worker becomes available.
#[test]
fn who_leaves_while_there_is_no_worker_is_let_go() {
    let model = isolated("aborts");
    for _ in 0..6 {
        let _ = infer(&*model, ACT);
    }
    let cancel = CancelToken::new(None);
    cancel.cancel();
    let error = model.infer(request(1), &cancel).unwrap_err();
    assert!(
        matches!(error.code(), ErrorCode::Unavailable | ErrorCode::Cancelled),
        "{error}"
    );
}
