//! Tests pushed metrics as a collector receives them, and a missing collector.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use oip_telemetry::{
    CollectorConfig, Endpoint, MetricFamily, MetricKind, MetricsConfig, MetricsExporter, SampleValue,
    testing::Collector,
};

fn config(url: &str) -> MetricsConfig {
    let collector = CollectorConfig::new(Endpoint::parse(url).unwrap()).with(|config| {
        config.back_off = Duration::from_millis(10);
        config.headers = vec![("x-token".to_owned(), "secret".to_owned())];
        config.resource = vec![("service.name".to_owned(), "shop".to_owned())];
    });
    MetricsConfig::new(collector).with(|config| config.interval = Duration::from_millis(50))
}

fn families(count: u64) -> Vec<MetricFamily> {
    let labels = || vec![("model".to_owned(), "\"m\"".to_owned())];
    let mut counter = MetricFamily::new("c_total", "How many.", MetricKind::Counter);
    counter.add(labels(), SampleValue::Integer(count));
    counter.add(Vec::new(), SampleValue::Real(0.25));
    let mut gauge = MetricFamily::new("g", "How much.", MetricKind::Gauge);
    gauge.add(Vec::new(), SampleValue::Real(-1.5));
    let mut histogram = MetricFamily::new("h_seconds", "How long.", MetricKind::Histogram);
    let (bounds, counts) = (vec![0.5, 2.0], vec![3, 0, 1]);
    histogram.add(
        labels(),
        SampleValue::Histogram {
            bounds,
            counts,
            sum: 4.5,
        },
    );
    let empty = MetricFamily::new("none", "", MetricKind::Gauge);
    vec![counter, gauge, histogram, empty]
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn totals_arrive_again_and_again() {
    let collector = Collector::start(vec![]);
    let calls = Arc::new(AtomicU64::new(0));
    let exporter = MetricsExporter::start(config(&collector.url), {
        let calls = calls.clone();
        move || families(10 + calls.fetch_add(1, Relaxed))
    })
    .unwrap();
    let (first, second) = (collector.message(), collector.message());
    assert!(
        first.head.starts_with("POST /v1/metrics HTTP/1.1\r\n") && first.head.contains("x-token: secret"),
        "{}",
        first.head
    );
    assert_eq!(first.resource["service.name"], "shop");
    let names: Vec<&str> = first.metrics.keys().map(String::as_str).collect();
    assert_eq!(names, ["c_total", "g", "h_seconds"], "empty families say nothing");
    let counter = &first.metrics["c_total"];
    assert_eq!(
        (
            counter.kind,
            counter.is_monotonic,
            counter.temporality,
            &*counter.description
        ),
        ("sum", true, 2, "How many.")
    );
    let [of_model, of_all] = &counter.points[..] else {
        panic!("{counter:?}")
    };
    assert_eq!((of_model.value, &*of_model.attributes["model"]), (10.0, "\"m\""));
    assert_eq!((of_all.value, of_all.attributes.len()), (0.25, 0));
    let gauge = &first.metrics["g"];
    assert_eq!(
        (gauge.kind, gauge.points[0].value, gauge.points[0].start),
        ("gauge", -1.5, 0)
    );
    let histogram = &first.metrics["h_seconds"];
    assert_eq!((histogram.kind, histogram.temporality), ("histogram", 2));
    let point = &histogram.points[0];
    assert_eq!((point.count, point.value), (4, 4.5));
    assert_eq!(
        (&point.counts[..], &point.bounds[..]),
        (&[3, 0, 1][..], &[0.5, 2.0][..])
    );
    assert_eq!(&*point.attributes["model"], "\"m\"");
    let later = &second.metrics["c_total"].points[0];
    assert_eq!(later.value, 11.0);
    assert_eq!(later.start, of_model.start, "it is the same counter");
    assert!(of_model.start <= of_model.time && of_model.time < later.time);
    until("they are counted", || exporter.sent() >= 2);
    assert_eq!(exporter.failed(), 0);
}

#[test]
fn what_fails_is_made_up_for_by_the_next_push() {
    let collector = Collector::start(vec![
        ("503 Service Unavailable", vec![]),
        ("404 Not Found", b"the receiver is off".to_vec()),
        ("200 OK", vec![]),
    ]);
    let exporter = MetricsExporter::start(config(&collector.url), || families(1)).unwrap();
    for _ in 0..3 {
        assert_eq!(collector.message().metrics["c_total"].points[0].value, 1.0);
    }
    until("one is taken", || exporter.sent() >= 1);
    assert_eq!(exporter.failed(), 2);
}

/// A missing collector delays nothing. On exit, the metrics are pushed once more.
#[test]
fn the_end_pushes_what_there_is_and_waits_for_nobody() {
    let collector = Collector::start(vec![]);
    let rarely = |url: &str| config(url).with(|config| config.interval = Duration::from_secs(3600));
    let exporter = MetricsExporter::start(rarely(&collector.url), || families(7)).unwrap();
    exporter.finish(Duration::from_secs(30));
    assert_eq!(collector.message().metrics["c_total"].points[0].value, 7.0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    let exporter = MetricsExporter::start(rarely(&silent), || families(1)).unwrap();
    let start = Instant::now();
    exporter.finish(Duration::from_millis(50));
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "the collector's time is 10 s"
    );
}
