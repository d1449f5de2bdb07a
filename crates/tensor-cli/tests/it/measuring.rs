//! `tensor bench` over both transports.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    server::{FlakyService, Reaction, Server, interrupt},
    support::{Run, TestDir, matrix},
};

fn bench<'a>(url: &'a str, model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [
        &["bench", "--url", url, "--model", model, "--warm-up", "0s"],
        more,
    ]
    .concat()
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {} {}", run.out, run.err))
}

#[test]
fn a_closed_loop_is_measured() {
    let (dir, server) = (TestDir::new(), Server::new());
    for url in server.urls() {
        for threads in ["1", "2"] {
            let report = dir.run(&bench(
                url,
                "matrix",
                &[
                    "--requests",
                    "200",
                    "--concurrency",
                    "4",
                    "--threads",
                    threads,
                    "--shape",
                    "a=3,2",
                    "--json",
                ],
            ));
            assert_eq!(report.code, 0, "{}", report.err);
            let report = json(&report);
            assert_eq!(
                (&report["requests"], &report["loop"], &report["concurrency"]),
                (&200.into(), &"closed".into(), &4.into())
            );
            assert_eq!(report["rows_per_request"], 3);
            let rate = report["requests_per_second"].as_f64().unwrap();
            assert!((rate * report["seconds"].as_f64().unwrap() - 200.0).abs() < 0.5);
            let latency = |name: &str| report["latency_us"][name].as_f64().unwrap();
            let ordered = ["min", "p50", "p90", "p99", "p99.9", "max"].map(latency);
            assert!(ordered[0] > 0.0 && ordered.is_sorted(), "{ordered:?}");
        }
    }
    let table = dir.good(&bench(
        &server.http,
        "identity_bytes",
        &["--duration", "200ms", "--zeros"],
    ));
    assert!(
        table.contains(" identity_bytes: 1 at once, raw tensors\n"),
        "{table}"
    );
    assert!(
        table
            .lines()
            .any(|line| line.starts_with("errors") && line.ends_with(" 0")),
        "{table}"
    );
    assert!(table.contains("p99.9"), "{table}");
}

#[test]
fn inputs_of_a_measurement_come_from_files_or_are_made_up() {
    let (dir, server) = (TestDir::new(), Server::new());
    dir.write("a.npy", &[], &[("0", &matrix())]);
    let few = ["--requests", "5", "--json"];
    let report = dir.run(&bench(
        &server.grpc,
        "matrix",
        &[&few[..], &["-i", "a=a.npy"]].concat(),
    ));
    assert_eq!((report.code, &json(&report)["rows_per_request"]), (0, &3.into()));
    for (more, message) in [
        (
            ["--shape", "a=3"],
            "error[Mismatch]: input 'a' of model 'matrix' takes shape [-1, 2], --shape says [3]",
        ),
        (
            ["--shape", "c=3"],
            "error[Mismatch]: --shape c: model 'matrix' has no such input to generate",
        ),
    ] {
        assert_eq!(dir.bad(&bench(&server.grpc, "matrix", &more)), message);
    }
}

#[test]
fn errors_are_counted_by_kind_and_tell() {
    let (dir, server) = (TestDir::new(), Server::new());
    // A request that always fails is reported immediately.
    let refused = dir.bad(&bench(&server.http, "busy", &[]));
    assert!(
        refused.ends_with("its queue is full; try again later (HTTP 429)"),
        "{refused}"
    );

    for (scheme, kind) in ["Refused (HTTP 503)", "Refused (gRPC UNAVAILABLE)"]
        .into_iter()
        .enumerate()
    {
        // Request 1, which `tensor bench` sends as a trial, succeeds. Of the following requests, every other
        // one fails.
        let mood = |number: usize| match number % 2 {
            0 => Reaction::Fails,
            _ => Reaction::Good,
        };
        let server = Server::of(Arc::new(FlakyService::new(mood)));
        let url = server.urls()[scheme];
        let report = dir.run(&bench(url, "identity_fp32", &["--requests", "100", "--json"]));
        assert_eq!(report.code, 1, "errors are not a success");
        let report = json(&report);
        assert_eq!(
            (&report["errors"][kind], &report["requests"]),
            (&50.into(), &50.into()),
            "{report}"
        );
        assert!(
            report["first_error"].as_str().unwrap().contains("not now"),
            "{report}"
        );
    }
}

/// A server that stalls for half a second delays all requests due in that time, not only one; a benchmark
/// with coordinated omission would hide these delays.
#[test]
fn an_open_loop_counts_from_when_requests_were_due() {
    let dir = TestDir::new();
    let moody = || {
        Server::of(Arc::new(FlakyService::new(|number| {
            if number == 100 {
                Reaction::Sleeps(Duration::from_millis(500))
            } else {
                Reaction::Good
            }
        })))
    };
    for scheme in 0..2 {
        let of = |server: &Server| server.urls()[scheme].to_owned();
        let url = of(&moody());
        let report = dir.run(&bench(
            &url,
            "identity_fp32",
            &["--rate", "200", "--requests", "400", "--json"],
        ));
        assert_eq!(report.code, 0, "{}", report.err);
        let report = json(&report);
        assert_eq!(
            (&report["loop"], &report["requests"], &report["unsent"]),
            (&"open".into(), &400.into(), &0.into())
        );
        let latency = |name: &str| report["latency_us"][name].as_f64().unwrap() / 1e3;
        // Of the four hundred requests, a hundred were due during the stall, and the first of those waited
        // longest.
        assert!(latency("max") > 400.0, "{report}");
        assert!(latency("p90") > 150.0, "{report}");

        // In a closed loop the stall affects a single request.
        let url = of(&moody());
        let closed = json(&dir.run(&bench(&url, "identity_fp32", &["--requests", "400", "--json"])));
        assert!(
            closed["latency_us"]["p90"].as_f64().unwrap() / 1e3 < 150.0,
            "{closed}"
        );
    }
}

/// A rate beyond the server's capacity is reported as unsent requests.
#[test]
fn a_rate_that_cannot_be_kept_is_told() {
    let dir = TestDir::new();
    let server = Server::of(Arc::new(FlakyService::new(|_| {
        Reaction::Sleeps(Duration::from_millis(10))
    })));
    let report = dir.run(&bench(
        &server.http,
        "identity_fp32",
        &[
            "--rate",
            "1000",
            "--concurrency",
            "1",
            "--duration",
            "500ms",
            "--json",
        ],
    ));
    let report = json(&report);
    let (sent, unsent) = (
        report["requests"].as_u64().unwrap(),
        report["unsent"].as_u64().unwrap(),
    );
    assert!(sent <= 60 && unsent >= 300, "{report}");
    assert!(
        report["latency_us"]["max"].as_f64().unwrap() > 300_000.0,
        "{report}"
    );
}

#[test]
fn ctrl_c_prints_what_was_measured() {
    let (dir, server) = (TestDir::new(), Server::new());
    for more in [&["--concurrency", "2"][..], &["--rate", "100"]] {
        let arguments = bench(
            &server.http,
            "identity_fp32",
            &[more, &["--duration", "60s", "--json"]].concat(),
        );
        let child = Command::new(env!("CARGO_BIN_EXE_tensor"))
            .args(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .current_dir(dir.path(""))
            .spawn()
            .unwrap();
        // Waits for the measurement to begin, because Ctrl-C before that ends the program without a report.
        thread::sleep(Duration::from_millis(3000));
        interrupt(&child);
        let output = child.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (output.status.code(), &report["is_interrupted"]),
            (Some(0), &true.into())
        );
        assert!(report["requests"].as_u64().unwrap() > 10, "{report}");
        assert!(report["seconds"].as_f64().unwrap() < 10.0, "{report}");
    }
}

#[test]
fn wrong_usage_is_told_with_code_2() {
    let dir = TestDir::new();
    for arguments in [
        &["infer", "--url", "http://a", "--model", "m", "--input", "x"][..],
        &[
            "infer",
            "--url",
            "http://a",
            "--model",
            "m",
            "--binary",
            "--json-form",
        ],
        &["infer", "--url", "http://a", "--model", "m", "--timeout", "soon"],
        &["bench", "--url", "http://a", "--model", "m", "--concurrency", "0"],
        &["bench", "--url", "http://a", "--model", "m", "--rate", "-1"],
        &[
            "bench",
            "--url",
            "http://a",
            "--model",
            "m",
            "--requests",
            "5",
            "--duration",
            "1s",
        ],
    ] {
        let run = dir.run(arguments);
        assert_eq!((run.code, &*run.out), (2, ""), "{arguments:?}: {}", run.err);
    }
}
