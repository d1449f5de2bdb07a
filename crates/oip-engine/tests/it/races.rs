//! Tests a thousand concurrent loads, unloads and inferences.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures_executor::block_on;
use oip_engine::{Engine, EngineConfig, ModelControl, Repository};
use oip_service::InferenceService;
use oip_types::{ErrorCode, LoadOptions, ModelRef};

use crate::{
    control::{explicit, load, shown, unload, until},
    support::{WordBackend, infer, infer_within, repository, request, write, y},
};

/// Many clients load, unload and use one model. Each response is correct or reports that the model is
/// not loaded, and nothing leaks.
#[test]
fn loading_unloading_and_running_race() {
    let folder = repository(&[
        ("m/1/model.word", "adds 1000"),
        ("m/config.pbtxt", "instance_group { count: 2 }"),
    ]);
    let engine = explicit(folder.path(), &["m"]);
    let end = Instant::now() + Duration::from_secs(4);
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..32)
        .map(|client| {
            let (engine, answered) = (engine.clone(), answered.clone());
            thread::spawn(move || {
                let mut round = client;
                while Instant::now() < end {
                    round += 1;
                    match round % 8 {
                        0 => unload(&engine, "m").unwrap(),
                        1 | 4 => load(&engine, "m").unwrap(),
                        _ => match infer(&engine, request("m", None, round)) {
                            Ok(response) => {
                                assert_eq!(y(&response), round + 1000);
                                answered.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(error) => assert!(
                                matches!(error.code(), ErrorCode::NotFound | ErrorCode::Unavailable),
                                "{error}"
                            ),
                        },
                    }
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(answered.load(Ordering::SeqCst) > 10);
    load(&engine, "m").unwrap();
    assert_eq!(shown(&engine), ["m/1 READY"]);
    unload(&engine, "m").unwrap();
    until("it is unloaded", || {
        shown(&engine) == ["m/1 UNAVAILABLE unloaded"]
    });
    assert!(engine.stop(Instant::now() + Duration::from_secs(10)));
}

/// When a model is unloaded, requests in flight are answered and new ones refused; then its memory is
/// freed.
#[test]
fn unloading_lets_requests_in_flight_finish() {
    let folder = repository(&[
        ("m/1/model.word", "sleeps"),
        ("m/config.pbtxt", "instance_group { count: 10 }"),
    ]);
    let backend = WordBackend::default();
    let living = backend.living.clone();
    let config = EngineConfig::default().with(|config| {
        config.control = ModelControl::Explicit {
            load: vec!["m".into()],
        };
    });
    let repository = Repository::open(folder.path(), &[Arc::new(backend)], None).unwrap();
    let engine = Arc::new(Engine::start(repository, config));
    engine.wait_until_loaded();
    assert_eq!(living.load(Ordering::SeqCst), 1);
    let in_flight: Vec<_> = (0..100)
        .map(|_| {
            let engine = engine.clone();
            thread::spawn(move || infer(&engine, request("m", None, 50)))
        })
        .collect();
    thread::sleep(Duration::from_millis(100));
    unload(&engine, "m").unwrap();
    assert_eq!(shown(&engine), ["m/1 UNLOADING"]);
    let error = infer(&engine, request("m", None, 50)).unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (
            ErrorCode::Unavailable,
            "model 'm' is not ready: it is being unloaded"
        )
    );
    for request in in_flight {
        assert_eq!(y(&request.join().unwrap().unwrap()), 50);
    }
    until("it is unloaded", || {
        shown(&engine) == ["m/1 UNAVAILABLE unloaded"]
    });
    assert_eq!(living.load(Ordering::SeqCst), 0, "the model is still in memory");
}

/// A load that fails or hangs affects no other model. No load starts while the server drains.
#[test]
fn loads_are_isolated_and_end_with_the_server() {
    let folder = repository(&[
        ("bad/1/model.word", "panics while loading"),
        ("good/1/model.word", "loads slowly"),
        ("hangs/1/model.word", "never loads"),
        ("m/1/model.word", "echo"),
    ]);
    let engine = explicit(folder.path(), &["m"]);
    let loading: Vec<_> = ["good", "bad", "bad", "good"]
        .map(|name| {
            let engine = engine.clone();
            thread::spawn(move || load(&engine, name))
        })
        .into_iter()
        .map(|loading| loading.join().unwrap().is_ok())
        .collect();
    assert_eq!(loading, [true, false, false, true]);

    let hanging = thread::spawn({
        let engine = engine.clone();
        move || {
            infer_within(&engine, request("m", None, 1), Duration::from_secs(5)).and_then(|_| {
                block_on(
                    engine
                        .repository()
                        .unwrap()
                        .load(ModelRef::new("hangs", None)?, LoadOptions::default()),
                )
            })
        }
    });
    until("it is being loaded", || {
        shown(&engine).contains(&"hangs/1 LOADING".to_owned())
    });
    engine.start_draining();
    let error = load(&engine, "good").unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (ErrorCode::Unavailable, "the server is shutting down")
    );
    assert_eq!(y(&infer(&engine, request("m", None, 1)).unwrap()), 1);
    let start = Instant::now();
    assert!(engine.stop(Instant::now() + Duration::from_secs(5)));
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(!hanging.is_finished());
}

/// Loading and unloading a thousand times leaks nothing.
#[cfg(target_os = "linux")]
#[test]
fn loading_and_unloading_leaks_nothing() {
    let folder = repository(&[("m/1/model.word", "echo"), ("m/labels", "a\nb")]);
    write(
        folder.path(),
        "m/config.pbtxt",
        "output { name: \"y\" label_filename: \"labels\" } instance_group { count: 2 }",
    );
    // Other tests in this process use memory and files too, so this test runs in a child process.
    const VARIABLE: &str = "MR_24_REPOSITORY";
    if let Some(root) = std::env::var_os(VARIABLE) {
        load_and_unload(std::path::Path::new(&root));
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(this);
    let name = "races::loading_and_unloading_leaks_nothing";
    let output = command
        .args(["--exact", name, "--nocapture"])
        .env(VARIABLE, folder.path())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[cfg(target_os = "linux")]
fn load_and_unload(root: &std::path::Path) {
    let status = |field: &str| -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let open_files = || fs::read_dir("/proc/self/fd").unwrap().count();
    let engine = explicit(root, &[]);
    let rounds = |count| {
        for _ in 0..count {
            load(&engine, "m").unwrap();
            assert_eq!(y(&infer(&engine, request("m", None, 3)).unwrap()), 3);
            unload(&engine, "m").unwrap();
        }
        until("it is unloaded", || {
            shown(&engine) == ["m/1 UNAVAILABLE unloaded"]
        });
    };
    rounds(200);
    let before = (status("VmRSS:"), open_files());
    rounds(1000);
    let after = (status("VmRSS:"), open_files());
    assert!(
        after.0 <= before.0 + 5 * 1024,
        "{} kB, then {} kB",
        before.0,
        after.0
    );
    assert_eq!(after.1, before.1);
    until("the threads have ended", || status("Threads:") < 10);
}
