//! The commands that talk to servers, against both transports in this process over a service in memory.

use std::{
    fs,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use oip_grpc::GrpcConfig;
use oip_http::HttpConfig;
use oip_listen::{Limits, Protocol, Shutdown, listen, serve};
use oip_service::{BoxFuture, InferenceService, Readiness, RequestContext, testing::TestService};
use oip_types::{InferRequest, InferResponse, ModelMetadata, ModelRef, ServerMetadata, ServiceError};
use serde_json::Value;
use tensor_core::{Shape, Tensor};

use crate::support::{Place, Run, matrix};

/// Both transports; they go with the test's process.
struct Server {
    http: String,
    grpc: String,
}

impl Server {
    fn new() -> Self {
        Self::of(Arc::new(TestService::default()))
    }

    fn of(service: Arc<dyn InferenceService>) -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let sockets = [0, 0].map(|_| listen("127.0.0.1:0".parse().unwrap()).unwrap());
                tell.send(sockets.each_ref().map(|socket| socket.local_addr().unwrap()))
                    .unwrap();
                let [http, grpc] = sockets;
                let router = oip_http::router(service.clone(), HttpConfig::default());
                let (limits, shutdown) = (Limits::default(), Shutdown::new());
                tokio::spawn(serve(
                    http,
                    Protocol::Http1,
                    router,
                    limits.clone(),
                    shutdown.clone(),
                ));
                let service = oip_grpc::service(service, GrpcConfig::default());
                serve(grpc, Protocol::Http2, service, limits, shutdown).await
            })
        });
        let [http, grpc] = told.recv().unwrap();
        Self {
            http: format!("http://{http}"),
            grpc: format!("grpc://{grpc}"),
        }
    }

    fn urls(&self) -> [&str; 2] {
        [&self.http, &self.grpc]
    }
}

fn infer<'a>(url: &'a str, model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["infer", "--url", url, "--model", model], more].concat()
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
}

/// The fields of the table's rows, by one or more blanks.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn outputs_are_printed_as_a_table() {
    let (place, server) = (Place::new(), Server::new());
    place.write(
        "x.npy",
        &[],
        &[("0", &vector(&[1.5, -2.0, 0.1, 4.0, 5.0, 6.0, 7.0]))],
    );
    place.write(
        "one.npy",
        &[],
        &[("0", &Tensor::from_vec(Shape::vector(1), vec![7i64]).unwrap())],
    );
    place.write("ab.zt", &[], &[("a", &matrix()), ("other", &vector(&[1.0]))]);
    for url in server.urls() {
        for form in ["--binary", "--json-form"] {
            let table = place.good(&infer(url, "identity_fp32", &["--input", "x=x.npy", form]));
            assert_eq!(
                rows(&table),
                [
                    vec!["NAME", "DATATYPE", "SHAPE", "VALUES"],
                    vec!["y", "FP32", "[7]", "1.5", "-2.", "0.1", "4.", "5.", "6.", "..."],
                ]
            );
        }
        let both = ["-i", "a=ab.zt#a", "-i", "b=one.npy", "--version", "1"];
        let table = place.good(&infer(url, "matrix", &both));
        assert_eq!(
            rows(&table)[1..],
            [
                vec!["sum", "FP32", "[3]", "1.", "-2.5", "4."],
                vec!["b", "INT64", "[1]", "7"]
            ]
        );
        let only = [&both[..], &["--outputs", "b"]].concat();
        assert_eq!(rows(&place.good(&infer(url, "matrix", &only))).len(), 2);
    }
}

#[test]
fn outputs_go_into_files_of_every_format() {
    let (place, server) = (Place::new(), Server::new());
    place.write("x.npy", &[], &[("0", &vector(&[1.5, -2.0]))]);
    let sha256 = place.inspect("x.npy")["tensors"][0]["sha256"].clone();
    for url in server.urls() {
        for file in ["y.zt", "y.tbuf", "y.safetensors", "y.npz", "y.npy", "y.btf"] {
            for output in [file.to_owned(), format!("y={file}")] {
                let out = place.good(&infer(url, "identity_fp32", &["-i", "x=x.npy", "-o", &output]));
                assert_eq!(out, "");
                let tensor = place.inspect(file)["tensors"][0].clone();
                assert_eq!(tensor["sha256"], sha256, "{output}");
                let has_names = !file.ends_with(".npy") && !file.ends_with(".btf");
                assert!(!has_names || tensor["name"] == "y", "{tensor}");
                fs::remove_file(place.path(file)).unwrap();
            }
        }
    }
    // Several outputs, some of them wanted.
    place.write("a.npy", &[], &[("0", &matrix())]);
    place.write(
        "b.npy",
        &[],
        &[("0", &Tensor::from_vec(Shape::vector(1), vec![7i64]).unwrap())],
    );
    let inputs = ["-i", "a=a.npy", "-i", "b=b.npy"];
    let all = [&inputs[..], &["-o", "all.zt", "-o", "b=only.npy"]].concat();
    place.good(&infer(&server.http, "matrix", &all));
    assert_eq!(place.inspect("all.zt")["tensors"].as_array().unwrap().len(), 2);
    assert_eq!(place.inspect("only.npy")["tensors"][0]["dtype"], "int64");
    let two = [&inputs[..], &["-o", "both.npy"]].concat();
    let refused = place.bad(&infer(&server.http, "matrix", &two));
    assert!(
        refused.starts_with("error[Unsupported]: both.npy: the number of tensors: expected 1"),
        "{refused}"
    );
}

#[test]
fn byte_strings_come_from_lines_and_become_lines() {
    let (place, server) = (Place::new(), Server::new());
    fs::write(place.path("words.txt"), "größe\r\n\nlast").unwrap();
    for url in server.urls() {
        place.good(&infer(
            url,
            "identity_bytes",
            &["-i", "x=@words.txt", "-o", "y=@out.txt"],
        ));
        assert_eq!(
            fs::read_to_string(place.path("out.txt")).unwrap(),
            "größe\n\nlast\n"
        );
        let table = place.good(&infer(url, "identity_bytes", &["-i", "x=@words.txt"]));
        assert_eq!(
            rows(&table)[1],
            ["y", "BYTES", "[3]", "\"größe\"", "\"\"", "\"last\""]
        );
        let refused = place.bad(&infer(
            url,
            "identity_bytes",
            &["-i", "x=@words.txt", "-o", "y.zt"],
        ));
        assert!(
            refused.contains("output 'y' is BYTES, which files of tensors cannot hold; --output y=@FILE"),
            "{refused}"
        );
        let refused = place.bad(&infer(url, "identity_fp32", &["-i", "x=@words.txt"]));
        assert!(refused.contains("takes FP32, words.txt holds BYTES"), "{refused}");
        place.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
        let refused = place.bad(&infer(url, "identity_fp32", &["-i", "x=x.npy", "-o", "y=@y.txt"]));
        assert!(
            refused.contains("output 'y' is FP32, and only BYTES become lines"),
            "{refused}"
        );
    }
    // An element of two lines would come back as two.
    fs::write(place.path("y.txt"), "precious").unwrap();
    let bytes = oip_types::BytesTensor::from_elements(Shape::vector(1), ["a\nb"]).unwrap();
    assert_eq!(bytes.iter().count(), 1);
    assert_eq!(fs::read_to_string(place.path("y.txt")).unwrap(), "precious");
}

#[test]
fn what_does_not_fit_is_told_before_anything_is_sent() {
    let (place, server) = (Place::new(), Server::new());
    let doubles = Tensor::from_vec(Shape::vector(2), vec![1.0f64, 1e300]).unwrap();
    place.write("d.npy", &[], &[("0", &doubles)]);
    place.write("two.zt", &[], &[("a", &matrix()), ("b", &doubles)]);
    place.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
    let x = |file: &str| format!("x={file}");
    for (model, input, message) in [
        (
            "identity_fp32",
            "d.npy",
            "error[Mismatch]: input 'x' of model 'identity_fp32' takes FP32, d.npy holds FP64; --cast converts it",
        ),
        (
            "identity_fp32",
            "two.zt#a",
            "error[Mismatch]: input 'x' of model 'identity_fp32' takes shape [-1], two.zt#a holds [3, 2]",
        ),
        (
            "identity_fp32",
            "two.zt",
            "error[OutOfBounds]: two.zt: the file holds 2 tensors: expected one, or the name of one behind a #, found a, b",
        ),
        (
            "identity_fp32",
            "two.zt#c",
            "error[OutOfBounds]: two.zt: tensor 'c': there is no such tensor",
        ),
        (
            "identity_fp32",
            "none.npy",
            "error[Io]: none.npy: the file cannot be opened",
        ),
        (
            "identity_bytes",
            "x.npy",
            "error[Mismatch]: input 'x' of model 'identity_bytes' takes BYTES, x.npy holds FP32; a text file of its elements is given as NAME=@FILE",
        ),
    ] {
        let refused = place.bad(&infer(&server.http, model, &["-i", &x(input)]));
        assert!(refused.starts_with(message), "{refused}");
    }
    let refused = place.bad(&infer(&server.grpc, "identity_fp32", &["-i", "q=x.npy"]));
    assert_eq!(
        refused,
        "error[Mismatch]: model 'identity_fp32' has no input 'q'; it takes 'x' (FP32[-1])"
    );
    let refused = place.bad(&infer(
        &server.grpc,
        "identity_fp32",
        &["-i", "x=x.npy", "--outputs", "y,z"],
    ));
    assert_eq!(
        refused,
        "error[Mismatch]: model 'identity_fp32' has no output 'z'; it gives 'y' (FP32[-1])"
    );
    let refused = place.bad(&infer(
        &server.grpc,
        "identity_fp32",
        &["-i", "x=x.npy", "-i", "x=x.npy"],
    ));
    assert_eq!(refused, "error[Mismatch]: input 'x' is given more than once");
    let refused = place.bad(&infer(&server.grpc, "identity_bool", &["-o", "y.tbuf"]));
    assert!(
        refused.starts_with("error[Unsupported]: y.tbuf: tbuf cannot hold tensor 'y'"),
        "{refused}"
    );
    let refused = place.bad(&infer(&server.grpc, "identity_bool", &["-o", "y.xyz"]));
    assert!(
        refused.starts_with("error[Unsupported]: y.xyz: the format is not told by the extension"),
        "{refused}"
    );

    let cast = place.bad(&infer(
        &server.http,
        "identity_fp32",
        &["-i", "x=d.npy", "--cast"],
    ));
    assert!(cast.contains("input 'x': d.npy: element 1: 1000000"), "{cast}");
    assert!(cast.ends_with(" does not fit FP32"), "{cast}");
    let table = place.good(&infer(
        &server.http,
        "identity_int64",
        &["-i", "x=x.npy", "--cast"],
    ));
    assert_eq!(rows(&table)[1], ["y", "INT64", "[1]", "1"]);
}

#[test]
fn failures_of_servers_are_told_and_leave_the_target_alone() {
    let (place, server) = (Place::new(), Server::new());
    place.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
    fs::write(place.path("y.zt"), "precious").unwrap();
    for (url, status) in server.urls().into_iter().zip(["HTTP 404", "gRPC NOT_FOUND"]) {
        let refused = place.bad(&infer(url, "zz", &["-i", "x=x.npy", "-o", "y.zt"]));
        assert_eq!(
            refused,
            format!("error[Refused]: {url}: model 'zz' does not exist ({status})")
        );
        let refused = place.bad(&infer(url, "failing", &["-i", "x=x.npy", "-o", "y.zt"]));
        assert!(refused.contains("model 'failing': it failed"), "{refused}");
        let late = place.bad(&infer(
            url,
            "slow",
            &["-i", "x=x.npy", "-o", "y.zt", "--parameter", "timeout=50000"],
        ));
        assert!(late.contains("the deadline passed"), "{late}");
        let late = place.bad(&infer(
            url,
            "slow",
            &["-i", "x=x.npy", "-o", "y.zt", "--timeout", "50ms"],
        ));
        assert!(late.starts_with("error["), "{late}");
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let refused = place.bad(&infer(&format!("http://{closed}"), "m", &[]));
    assert_eq!(
        refused,
        format!("error[Connect]: http://{closed}: connection refused: nothing listens there")
    );
    let refused = place.bad(&infer("https://localhost", "m", &[]));
    assert!(
        refused.starts_with("error[Usage]: https://localhost: TLS is not supported"),
        "{refused}"
    );
    let refused = place.bad(&infer(&server.http, "../etc", &[]));
    assert!(
        refused.starts_with("error[Usage]: model name '../etc' must not contain"),
        "{refused}"
    );
    assert_eq!(fs::read(place.path("y.zt")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 2);
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt(child: &std::process::Child) {
    let killed = Command::new("kill")
        .args(["-s", "INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
}

#[test]
fn ctrl_c_ends_a_request_and_leaves_the_target_alone() {
    let service = Arc::new(TestService::default());
    let (place, server) = (Place::new(), Server::of(service.clone()));
    place.write("x.npy", &[], &[("0", &vector(&[1.0]))]);
    fs::write(place.path("y.zt"), "precious").unwrap();
    for url in server.urls() {
        let mut child = place.spawn(&infer(url, "slow", &["-i", "x=x.npy", "-o", "y.zt"]));
        wait_for("it is sent", || service.waiting() == 1);
        interrupt(&child);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        wait_for("the server gives up as well", || service.waiting() == 0);
    }
    assert_eq!(fs::read(place.path("y.zt")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 2);
}

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
    let (place, server) = (Place::new(), Server::new());
    for url in server.urls() {
        for threads in ["1", "2"] {
            let report = place.run(&bench(
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
            let latency = |name: &str| report["latency"][name].as_f64().unwrap();
            let ordered = ["min", "p50", "p90", "p99", "p99.9", "max"].map(latency);
            assert!(ordered[0] > 0.0 && ordered.is_sorted(), "{ordered:?}");
        }
    }
    let table = place.good(&bench(
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
    let (place, server) = (Place::new(), Server::new());
    place.write("a.npy", &[], &[("0", &matrix())]);
    let few = ["--requests", "5", "--json"];
    let report = place.run(&bench(
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
            "error[Mismatch]: --shape c: model 'matrix' has no such input to make up",
        ),
    ] {
        assert_eq!(place.bad(&bench(&server.grpc, "matrix", &more)), message);
    }
}

#[test]
fn errors_are_counted_by_kind_and_tell() {
    let (place, server) = (Place::new(), Server::new());
    // What never works is told at once.
    let refused = place.bad(&bench(&server.http, "busy", &[]));
    assert!(
        refused.ends_with("its queue is full; try again later (HTTP 429)"),
        "{refused}"
    );

    for (scheme, kind) in ["Refused (HTTP 503)", "Refused (gRPC UNAVAILABLE)"]
        .into_iter()
        .enumerate()
    {
        // The first request is the client's trial.
        let mood = |number: usize| match number % 2 {
            0 => Mood::Fails,
            _ => Mood::Good,
        };
        let server = Server::of(Arc::new(Moody::new(mood)));
        let url = server.urls()[scheme];
        let report = place.run(&bench(url, "identity_fp32", &["--requests", "100", "--json"]));
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

/// A service in memory that is not always at its best.
struct Moody {
    inner: TestService,
    count: AtomicUsize,
    mood: fn(usize) -> Mood,
}

impl Moody {
    /// `mood` is told the number of the request, from 1.
    fn new(mood: fn(usize) -> Mood) -> Self {
        Self {
            inner: TestService::default(),
            count: AtomicUsize::new(0),
            mood,
        }
    }
}

enum Mood {
    Good,
    Fails,
    Sleeps(Duration),
}

impl InferenceService for Moody {
    fn server_metadata(&self) -> ServerMetadata {
        self.inner.server_metadata()
    }

    fn readiness(&self) -> Readiness {
        self.inner.readiness()
    }

    fn model_metadata(&self, model: ModelRef<'_>) -> Result<Arc<ModelMetadata>, ServiceError> {
        self.inner.model_metadata(model)
    }

    fn infer(
        &self,
        request: InferRequest,
        cx: RequestContext,
    ) -> BoxFuture<'_, Result<InferResponse, ServiceError>> {
        match (self.mood)(self.count.fetch_add(1, Ordering::SeqCst) + 1) {
            Mood::Fails => {
                let error = ServiceError::new(oip_types::ErrorCode::Unavailable, "not now");
                Box::pin(async { Err(error) })
            }
            // All of the server stands still.
            Mood::Sleeps(time) => {
                thread::sleep(time);
                self.inner.infer(request, cx)
            }
            Mood::Good => self.inner.infer(request, cx),
        }
    }
}

/// A server that stands still for half a second delays all requests that were due in that time, not only the one that it
/// had: coordinated omission would hide them.
#[test]
fn an_open_loop_counts_from_when_requests_were_due() {
    let place = Place::new();
    let moody = || {
        Server::of(Arc::new(Moody::new(|number| {
            if number == 100 {
                Mood::Sleeps(Duration::from_millis(500))
            } else {
                Mood::Good
            }
        })))
    };
    for scheme in 0..2 {
        let of = |server: &Server| server.urls()[scheme].to_owned();
        let url = of(&moody());
        let report = place.run(&bench(
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
        let latency = |name: &str| report["latency"][name].as_f64().unwrap() / 1e3;
        // A hundred of four hundred were due while it stood still; the first of them waited longest.
        assert!((400.0..1500.0).contains(&latency("max")), "{report}");
        assert!(latency("p90") > 150.0, "{report}");
        let rate = report["requests_per_second"].as_f64().unwrap();
        assert!((150.0..250.0).contains(&rate), "{report}");

        // One after the other, the same pause is seen by a single request.
        let url = of(&moody());
        let closed = json(&place.run(&bench(&url, "identity_fp32", &["--requests", "400", "--json"])));
        assert!(
            closed["latency"]["p90"].as_f64().unwrap() / 1e3 < 150.0,
            "{closed}"
        );
    }
}

/// More is asked for than the server can do: what was not sent is said.
#[test]
fn a_rate_that_cannot_be_kept_is_told() {
    let place = Place::new();
    let server = Server::of(Arc::new(Moody::new(|_| Mood::Sleeps(Duration::from_millis(10)))));
    let report = place.run(&bench(
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
    assert!(report["latency"]["max"].as_f64().unwrap() > 300_000.0, "{report}");
}

#[test]
fn ctrl_c_prints_what_was_measured() {
    let (place, server) = (Place::new(), Server::new());
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
            .current_dir(place.path(""))
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(700));
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
    let place = Place::new();
    for arguments in [
        &["infer", "--model", "m"][..],
        &["infer", "--url", "http://a", "--model", "m", "--input", "x"],
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
        let run = place.run(arguments);
        assert_eq!((run.code, &*run.out), (2, ""), "{arguments:?}: {}", run.err);
    }
}
