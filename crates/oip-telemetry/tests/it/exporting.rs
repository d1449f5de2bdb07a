//! Tests exports of spans with and without a collector.

use std::{
    net::TcpListener,
    time::{Duration, Instant, UNIX_EPOCH},
};

use oip_telemetry::{
    CollectorConfig, Endpoint, Exporter, ExporterConfig, Kind, Span, SpanId, TraceId, Value,
    testing::Collector,
};

fn config(url: &str) -> ExporterConfig {
    let collector = CollectorConfig::new(Endpoint::parse(url).unwrap());
    ExporterConfig::new(collector.with(|config| {
        config.back_off = Duration::from_millis(10);
        config.timeout = Duration::from_secs(5);
    }))
}

fn span(name: &'static str) -> Span {
    let at = |microseconds| UNIX_EPOCH + Duration::from_micros(microseconds);
    Span::new(
        TraceId::random(),
        SpanId::random(),
        name,
        at(1_000_000),
        at(1_000_250),
    )
}

/// Waits until `is_so` returns true; panics with `what` after a minute.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn spans_arrive_with_all_that_they_say() {
    let collector = Collector::start(vec![]);
    let exporter = Exporter::start(config(&collector.url).with(|config| {
        config.collector.headers = vec![("x-token".to_owned(), "secret".to_owned())];
        config.collector.resource = vec![("service.name".to_owned(), "shop".to_owned())];
    }))
    .unwrap();
    let mut server = span("POST /v2");
    server.kind = Kind::Server;
    server.attributes = vec![
        ("http.route", "/v2/models/{model}/infer".into()),
        ("http.response.status_code", 500_i64.into()),
        ("below.zero", Value::Number(-3)),
    ];
    server.failure = Some("it failed".to_owned());
    let mut run = span("run");
    run.parent = Some(server.id);
    let (server_id, trace) = (server.id.to_string(), server.trace.to_string());
    exporter.export(vec![server, run]);
    exporter.finish(Duration::from_secs(30));
    let posted = collector.message();
    assert!(
        posted.head.starts_with("POST /v1/traces HTTP/1.1\r\n"),
        "{}",
        posted.head
    );
    let head = posted.head.to_lowercase();
    assert!(
        head.contains("\r\ncontent-type: application/x-protobuf\r\n"),
        "{head}"
    );
    assert!(head.contains("\r\nx-token: secret\r\n"), "{head}");
    assert_eq!(posted.resource["service.name"], "shop");
    let [server, run] = &posted.spans[..] else {
        panic!("{:?}", posted.spans)
    };
    assert_eq!(
        (&server.trace, &server.id, &*server.parent),
        (&trace, &server_id, "")
    );
    assert_eq!((&*server.name, server.kind), ("POST /v2", 2));
    assert_eq!((server.start, server.end), (1_000_000_000, 1_000_250_000));
    assert_eq!(server.attributes["http.route"], "/v2/models/{model}/infer");
    assert_eq!(server.attributes["http.response.status_code"], "500");
    assert_eq!(server.attributes["below.zero"], "-3");
    assert_eq!(server.failure, Some((2, "it failed".to_owned())));
    assert_eq!((&*run.name, run.kind, &run.parent), ("run", 1, &server_id));
    assert_eq!(run.failure, None);
    until("the response is counted", || exporter.sent() == 2);
    assert_eq!(exporter.dropped(), 0);
}

#[test]
fn what_may_pass_is_tried_again_and_what_will_not_is_dropped() {
    let collector = Collector::start(vec![
        ("503 Service Unavailable", vec![]),
        ("429 Too Many Requests", vec![]),
        ("200 OK", vec![]),
        ("400 Bad Request", b"no".to_vec()),
        // The collector rejects one of two spans: field 1 is a message whose field 1 is the number 1.
        ("200 OK", vec![0x0a, 0x02, 0x08, 0x01]),
    ]);
    let exporter = Exporter::start(config(&collector.url)).unwrap();
    exporter.export(vec![span("a")]);
    for _ in 0..3 {
        assert_eq!(collector.message().spans[0].name, "a");
    }
    until("a is taken", || exporter.sent() == 1);
    exporter.export(vec![span("b")]);
    assert_eq!(collector.message().spans[0].name, "b");
    until("b is dropped", || exporter.dropped() == 1);
    exporter.export(vec![span("c"), span("d")]);
    assert_eq!(collector.message().spans.len(), 2);
    until("one of them is dropped", || {
        (exporter.sent(), exporter.dropped()) == (2, 2)
    });
    assert!(collector.has_nothing_for(Duration::from_millis(50)));
}

/// A missing collector delays nothing, and spans that do not fit are dropped and counted. Once the collector
/// is available, it gets new spans.
#[test]
fn a_collector_that_is_not_there_costs_spans_only() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let exporter = Exporter::start(config(&format!("http://{address}")).with(|config| {
        config.capacity = 4;
        config.collector.back_off = Duration::from_secs(20);
    }))
    .unwrap();
    // The spans of the first message wait for a retry; four requests wait in the queue.
    exporter.export(vec![span("a"); 600]);
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..100 {
        exporter.export(vec![span("b"); 2]);
    }
    until("those without room are counted", || exporter.dropped() >= 192);
    // At exit, the program does not wait for the collector either.
    let start = Instant::now();
    exporter.finish(Duration::from_secs(10));
    assert!(start.elapsed() < Duration::from_secs(10));
    until("all are counted", || exporter.dropped() == 800);
    assert_eq!(exporter.sent(), 0);

    let collector = Collector::on(TcpListener::bind(address).unwrap(), vec![]);
    exporter.export(vec![span("c")]);
    assert_eq!(collector.message().spans[0].name, "c");
}
