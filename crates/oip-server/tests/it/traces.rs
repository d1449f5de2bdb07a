//! Request traces as a collector receives them, over both transports; and an unreachable collector.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use oip_telemetry::testing::Collector;
use oip_types::{InferRequest, ModelRef};
use rustls::{ServerConnection, StreamOwned};
use tensor_core::{Shape, Tensor};

use crate::{
    metrics::{Page, until},
    support::{ConfigFile, Server, command, failing, receive},
    tls::Certificates,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Starts a server with the example repository.
fn server(arguments: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    for path in [
        "digits/1/model.onnx",
        "digit_means/1/model.safetensors",
        "digit_portrait/config.pbtxt",
    ] {
        let copy = folder.path().join(path);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(models.join(path), copy).unwrap();
    }
    let mut command = command(folder.path(), arguments);
    command
        .env(
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=test,service.name=lost",
        )
        .env("OTEL_SERVICE_NAME", "digits%20shop")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one%20of%20two");
    let mut server = Server::spawn(&mut command);
    server.wait_until_loaded();
    (server, folder)
}

/// Returns a request with one black image.
fn body() -> String {
    let data = vec![0; 64];
    serde_json::json!({"inputs": [{"name": "X", "shape": [1, 64], "datatype": "FP32", "data": data}]})
        .to_string()
}

#[test]
fn a_request_over_http_is_a_trace_with_its_phases() {
    let collector = Collector::start(vec![]);
    let config = ConfigFile::new(&format!(
        "otlp-endpoint = {:?}\notlp-sample-ratio = 0.0\notlp-attribute = [\"team=a=b\"]",
        collector.url
    ));
    let (server, _folder) = server(&[&config.option]);
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let headers = [("traceparent", parent.as_str()), ("x-request-id", "first")];
    let infer = "/v2/models/digits/infer";
    // The ratio samples none; the caller's decision samples one; health checks are never traced.
    assert_eq!(server.request("POST", infer, &[], body().as_bytes()).status, 200);
    assert_eq!(server.get("/v2/health/ready").status, 200);
    assert_eq!(server.request("GET", "/v2/models", &headers, b"").status, 200);
    let answer = server.request("POST", infer, &headers, body().as_bytes());
    assert_eq!(answer.status, 200);
    let posted = collector.message();
    assert!(
        posted.head.contains("x-tenant: one of two\r\n"),
        "{}",
        posted.head
    );
    let resource: Vec<_> = [
        "service.name",
        "deployment.environment.name",
        "team",
        "service.version",
    ]
    .iter()
    .map(|name| posted.resource[*name].as_str())
    .collect();
    assert_eq!(
        resource,
        ["digits%20shop", "test", "a=b", env!("CARGO_PKG_VERSION")]
    );
    let names: Vec<_> = posted.spans.iter().map(|span| span.name.as_str()).collect();
    let infer_span = "POST /v2/models/{model}/infer";
    assert_eq!(
        names,
        [
            infer_span, "read", "decode", "queue", "batch", "run", "split", "encode"
        ]
    );
    let root = &posted.spans[0];
    assert_eq!((&*root.trace, &*root.parent, root.kind), (TRACE, CALLER, 2));
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/v2/models/{model}/infer"),
        ("http.response.status_code", "200"),
        ("client.address", "127.0.0.1"),
        ("oip.model.name", "digits"),
        ("oip.model.version", "1"),
        ("oip.request.id", "first"),
        ("http.request.body.size", &body().len().to_string()),
        ("http.response.body.size", &answer.body.len().to_string()),
    ] {
        assert_eq!(root.attributes[name], value, "{name}");
    }
    assert_eq!(root.failure, None);
    for span in &posted.spans[1..] {
        assert_eq!((&*span.trace, &span.parent), (TRACE, &root.id), "{span:?}");
        assert!(
            root.start <= span.start && span.start <= span.end && span.end <= root.end,
            "{span:?} in {root:?}"
        );
    }
    // Each span starts when the previous span has ended.
    for pair in posted.spans[1..].windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?}");
    }
    assert_eq!(posted.spans[5].attributes["oip.batch.rows"], "1");
    until("they are counted", || {
        Page::of(&server).value("oip_trace_spans_sent_total", &[]) >= 8.0
    });
    assert_eq!(Page::of(&server).value("oip_trace_spans_dropped_total", &[]), 0.0);
}

#[test]
fn steps_of_a_pipeline_have_their_own_spans() {
    let collector = Collector::start(vec![]);
    let config = ConfigFile::new(&format!("otlp-endpoint = {:?}", collector.url));
    let (server, _folder) = server(&[&config.option]);
    let answer = server.request("POST", "/v2/models/digit_portrait/infer", &[], body().as_bytes());
    assert_eq!(answer.status, 200);
    let spans = collector.message().spans;
    let root = &spans[0];
    assert_eq!(
        (&*root.parent, &*root.attributes["oip.model.name"]),
        ("", "digit_portrait")
    );
    let steps: Vec<_> = spans.iter().filter(|span| span.name == "step").collect();
    let models: Vec<_> = steps
        .iter()
        .map(|step| &*step.attributes["oip.model.name"])
        .collect();
    assert_eq!(models, ["digits", "digit_means"]);
    for step in &steps {
        assert_eq!(step.parent, root.id);
        let children = spans.iter().filter(|span| span.parent == step.id);
        let names: Vec<_> = children.clone().map(|span| &*span.name).collect();
        assert_eq!(names, ["queue", "batch", "run", "split"]);
        for child in children {
            assert!(
                step.start <= child.start && child.end <= step.end,
                "{child:?} in {step:?}"
            );
        }
    }
    // A span is marked as failed only if the server caused the failure.
    assert_eq!(
        server
            .request("POST", "/v2/models/none/infer", &[], body().as_bytes())
            .status,
        404
    );
    let failed = &collector.message().spans[0];
    assert_eq!(failed.attributes["http.response.status_code"], "404");
    assert_eq!(failed.failure, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_over_grpc_is_a_trace_too_and_the_end_sends_what_is_there() {
    let collector = Collector::start(vec![]);
    let config = ConfigFile::new(&format!("otlp-endpoint = {:?}", collector.url));
    let (mut server, _folder) = server(&[&config.option]);
    let client = oip_client::builder(format!("grpc://{}", server.grpc))
        .header("traceparent", format!("00-{TRACE}-{CALLER}-01"))
        .build()
        .unwrap();
    let x = Tensor::from_vec(Shape::new(&[1, 64]).unwrap(), vec![0_f32; 64]).unwrap();
    let request = |model| InferRequest::new(ModelRef::new(model, None).unwrap()).with_input("X", x.clone());
    client.infer(&request("digits")).await.unwrap();
    client.infer(&request("none")).await.unwrap_err();
    drop(client);
    // Spans are collected for a second before they are sent; a shutdown sends them without waiting for the
    // second to end.
    server.signal("TERM");
    assert!(server.wait(Duration::from_secs(30)).success());
    let mut all = collector.message().spans;
    if all.iter().filter(|span| span.kind == 2).count() < 2 {
        all.extend(collector.message().spans);
    }
    // A span is recorded after its response was sent, and the client does not wait for the recording.
    let mut roots: Vec<_> = all.iter().filter(|span| span.kind == 2).collect();
    roots.sort_by_key(|root| &root.attributes["rpc.grpc.status_code"]);
    let [good, missing] = roots[..] else {
        panic!("{all:?}")
    };
    // Both spans belong to the caller's trace.
    for root in [good, missing] {
        assert_eq!((&*root.trace, &*root.parent), (TRACE, CALLER));
    }
    assert_ne!(good.id, missing.id);
    assert_eq!(
        (
            &*good.attributes["rpc.system"],
            &*good.attributes["rpc.grpc.status_code"]
        ),
        ("grpc", "0")
    );
    assert_eq!(missing.attributes["rpc.grpc.status_code"], "5");
    assert!(
        all.iter()
            .any(|span| span.name == "run" && span.parent == good.id)
    );
}

/// Checks that an unreachable collector causes one log line per signal, and that requests still succeed.
#[test]
fn requests_do_not_wait_for_a_collector() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("server.log");
    let (server, _folder) = {
        let models = tempfile::tempdir().unwrap();
        let copy = models.path().join("digit_means/1/model.safetensors");
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
        fs::copy(examples.join("digit_means/1/model.safetensors"), copy).unwrap();
        // The endpoint applies to traces and metrics.
        let mut command = command(models.path(), &[]);
        command
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{nowhere}"))
            .env("OTEL_METRIC_EXPORT_INTERVAL", "1000")
            .stderr(fs::File::create(&log).unwrap());
        let mut server = Server::spawn(&mut command);
        server.wait_until_loaded();
        (server, models)
    };
    let infer = || {
        let body = crate::metrics::rows(&[1]).to_string();
        server
            .request("POST", "/v2/models/digit_means/infer", &[], body.as_bytes())
            .status
    };
    assert_eq!(infer(), 200);
    let lines = |what: &str| {
        let text = fs::read_to_string(&log).unwrap();
        let said = format!("the collector accepts no {what}");
        text.lines().filter(|line| line.contains(&said)).count()
    };
    until("it is said", || (lines("traces"), lines("metrics")) == (1, 1));
    until("pushing is tried again", || {
        Page::of(&server).value("oip_metric_push_failures_total", &[]) >= 2.0
    });
    for _ in 0..20 {
        assert_eq!(infer(), 200);
    }
    assert_eq!((lines("traces"), lines("metrics")), (1, 1));
}

/// Starts a TLS proxy to a collector; returns its URL.
fn encrypted(collector: &Collector, certificates: &Certificates) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let config = certificates.server_config();
    let (config, to) = (
        Arc::new(config),
        collector.url.trim_start_matches("http://").to_owned(),
    );
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, to) = (config.clone(), to.clone());
            thread::spawn(move || {
                let session = ServerConnection::new(config).unwrap();
                let mut stream = BufReader::new(StreamOwned::new(session, stream.unwrap()));
                let mut collector = TcpStream::connect(to).unwrap();
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if stream.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let length = head.lines().find_map(|line| {
                        let (name, value) = line.split_once(": ")?;
                        name.eq_ignore_ascii_case("content-length")
                            .then(|| value.parse().unwrap())
                    });
                    let mut body = vec![0; length.unwrap()];
                    stream.read_exact(&mut body).unwrap();
                    collector.write_all(&[head.into_bytes(), body].concat()).unwrap();
                    let answer = receive(&mut collector);
                    let answer = [answer.head.into_bytes(), answer.body].concat();
                    if stream.get_mut().write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// A collector with a private CA works through the configuration file, and through OpenTelemetry's variable.
#[test]
fn a_collector_may_have_an_authority_of_its_own() {
    let certificates = Certificates::new();
    let authority = certificates.path("ca.pem");
    // One collector per signal, because each serves one connection at a time.
    let start = |collectors: &[Collector; 2], by_file: bool, change: &dyn Fn(&mut Command)| {
        let [traces, metrics] = collectors
            .each_ref()
            .map(|collector| encrypted(collector, &certificates));
        let models = digit_means();
        let option = match by_file {
            false => String::new(),
            true => format!("otlp-ca = {authority:?}\n"),
        };
        let config = ConfigFile::new(&format!(
            "{option}otlp-endpoint = {traces:?}\notlp-metrics-endpoint = {metrics:?}\notlp-metrics-interval = \"1s\""
        ));
        let mut command = command(models.path(), &[&config.option]);
        command.stderr(fs::File::create(certificates.path("server.log")).unwrap());
        change(&mut command);
        let mut server = Server::spawn(&mut command);
        server.wait_until_loaded();
        let body = crate::metrics::rows(&[1]).to_string();
        let answer = server.request("POST", "/v2/models/digit_means/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200);
        (server, models)
    };
    let nowhere = PathBuf::from("/nowhere.pem");
    for variables in [
        // Without a variable, the setting applies.
        &[][..],
        &[("OTEL_EXPORTER_OTLP_CERTIFICATE", &authority)],
        // Each signal's own variable takes precedence.
        &[
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", &nowhere),
            ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", &authority),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", &authority),
        ],
    ] {
        let collectors = [(); 2].map(|()| Collector::start(vec![]));
        let _running = start(&collectors, variables.is_empty(), &|command| {
            command.envs(variables.iter().copied());
        });
        assert!(!collectors[0].message().spans.is_empty());
        assert!(!collectors[1].message().metrics.is_empty());
    }
    let collectors = [(); 2].map(|()| Collector::start(vec![]));
    let _running = start(&collectors, false, &|_| {});
    until("it is said that nobody known has signed the certificate", || {
        let log = fs::read_to_string(certificates.path("server.log")).unwrap();
        ["traces", "metrics"].iter().all(|what| {
            let said = format!("the collector accepts no {what}");
            log.lines().any(|line| {
                line.contains(&said) && line.contains("or by one of those that are named for collectors")
            })
        })
    });
}

#[test]
fn wrong_settings_for_traces_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let no_certificate = folder.path().join("no-certificate.pem");
    fs::write(&no_certificate, "nothing").unwrap();
    let no_certificate = no_certificate.to_str().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (settings, message) in [
        (
            "otlp-endpoint = \"collector:4318\"",
            "otlp-endpoint: expected the URL of a collector, such as http://127.0.0.1:4318; found 'collector:4318'",
        ),
        (
            "otlp-endpoint = \"http://c\"\notlp-sample-ratio = 1.5",
            "otlp-sample-ratio: expected a number from 0 to 1, found 1.5",
        ),
        (
            "otlp-endpoint = \"http://c\"\notlp-attribute = [\"team\"]",
            "otlp-attribute: expected NAME=VALUE, found 'team'",
        ),
        ("otlp-sample-ratio = 0.5", "otlp-sample-ratio needs otlp-endpoint"),
        ("otlp-attribute = [\"a=b\"]", "otlp-attribute needs otlp-endpoint"),
        ("otlp-ca = \"ca.pem\"", "otlp-ca needs otlp-endpoint"),
        (
            "otlp-endpoint = \"https://c\"\notlp-ca = \"/nowhere.pem\"",
            "otlp-ca: /nowhere.pem: cannot be read: No such file",
        ),
        (
            &format!("otlp-metrics-endpoint = \"https://c\"\notlp-ca = {no_certificate:?}"),
            &format!("otlp-ca: {no_certificate}: expected certificates in PEM, found none"),
        ),
    ] {
        let config = ConfigFile::new(settings);
        let (code, line) = failing(&[folder, &config.option]);
        let message = format!("the configuration file: {message}");
        assert!(code == 2 && line.starts_with(&message), "{code}: {line}");
    }
}

#[test]
fn variables_of_opentelemetry_that_cannot_be_followed_are_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let collector = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c");
    let (traces_off, metrics_off) = ("traces are not sent", "metrics are not sent");
    for (variables, message, consequences) in [
        (
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318")][..],
            "OTEL_EXPORTER_OTLP_ENDPOINT: expected the URL of a collector, such as http://127.0.0.1:4318; found 'c:4318', \
             without http:// or https:// and a host",
            &[metrics_off, traces_off][..],
        ),
        (
            &[collector, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            "OTEL_EXPORTER_OTLP_PROTOCOL: expected http/protobuf, usually at port 4318, found 'grpc'",
            &[metrics_off, traces_off],
        ),
        (
            &[collector, ("OTEL_TRACES_EXPORTER", "zipkin")],
            "OTEL_TRACES_EXPORTER: expected otlp or none, found 'zipkin'",
            &[traces_off],
        ),
        (
            &[
                collector,
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "2"),
            ],
            "OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, found '2'",
            &["every request is traced"],
        ),
        (
            &[collector, ("OTEL_METRIC_EXPORT_INTERVAL", "1s")],
            "OTEL_METRIC_EXPORT_INTERVAL: expected milliseconds, found '1s'",
            &["metrics are sent every 60 s"],
        ),
        (
            &[collector, ("OTEL_METRIC_EXPORT_INTERVAL", "10")],
            "OTEL_METRIC_EXPORT_INTERVAL: expected a time from 1s to 1h, found 10ms",
            &["metrics are sent every 60 s"],
        ),
    ] {
        let mut check = Command::new(env!("CARGO_BIN_EXE_oip-server"));
        check
            .arg("check")
            .arg(folder.path())
            .envs(variables.iter().copied());
        let output = check.output().unwrap();
        let lines = String::from_utf8(output.stderr).unwrap();
        let told = lines
            .lines()
            .filter_map(|line| line.split_once(message)?.1.strip_prefix("; "));
        assert_eq!(told.collect::<Vec<_>>(), consequences, "{lines}");
        // The repository has no models.
        assert_eq!(output.status.code(), Some(1), "{lines}");
    }
}

/// Checks that environment variables alone configure a collector, and that a signal's own URL is used
/// exactly.
#[test]
fn variables_of_opentelemetry_name_collectors() {
    let models = digit_means();
    let collector = Collector::start(vec![]);
    let mut command = command(models.path(), &[]);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://nowhere.invalid:1")
        .env(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            format!("{}/here", collector.url),
        )
        .env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_METRICS_EXPORTER", "none")
        .env("OTEL_TRACES_SAMPLER", "parentbased_always_on");
    let mut server = Server::spawn(&mut command);
    server.wait_until_loaded();
    let body = crate::metrics::rows(&[1]).to_string();
    let answer = server.request("POST", "/v2/models/digit_means/infer", &[], body.as_bytes());
    assert_eq!(answer.status, 200);
    let posted = collector.message();
    assert!(posted.head.starts_with("POST /here HTTP/1.1"), "{}", posted.head);
    assert!(!posted.spans.is_empty());
}

/// Returns a repository with the example model of digit means.
fn digit_means() -> tempfile::TempDir {
    let models = tempfile::tempdir().unwrap();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors");
    let copy = models.path().join("digit_means/1/model.safetensors");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::copy(example, copy).unwrap();
    models
}
