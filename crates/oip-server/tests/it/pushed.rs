//! Tests that pushed metrics are the same as `/metrics`, even when that path is disabled.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use oip_telemetry::testing::{Collector, ReceivedMessage};

use crate::support::{ConfigFile, Server, command, failing};

fn server(arguments: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("digit_means/1/model.safetensors");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models");
    fs::copy(examples.join("digit_means/1/model.safetensors"), copy).unwrap();
    let mut command = command(folder.path(), arguments);
    command
        .env("OTEL_SERVICE_NAME", "shop")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-for=all")
        .env("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-for=metrics");
    let mut server = Server::spawn(&mut command);
    server.wait_until_loaded();
    (server, folder)
}

/// Returns the first message whose metrics include a successful request.
fn with_a_request(collector: &Collector) -> ReceivedMessage {
    loop {
        let posted = collector.message();
        let success = posted.metrics.get("nv_inference_request_success");
        if success.is_some_and(|metric| metric.points[0].value >= 1.0) {
            return posted;
        }
    }
}

fn infer(server: &Server) {
    let body = crate::metrics::rows(&[1]).to_string();
    let answer = server.request("POST", "/v2/models/digit_means/infer", &[], body.as_bytes());
    assert_eq!(answer.status, 200);
}

#[test]
fn what_is_pushed_is_what_is_shown() {
    let collector = Collector::start(vec![]);
    let config = ConfigFile::new(&format!(
        "otlp-metrics-endpoint = {:?}\notlp-metrics-interval = \"1s\"\notlp-attribute = [\"team=a\"]",
        collector.url
    ));
    let (server, _folder) = server(&[&config.option]);
    infer(&server);
    let posted = with_a_request(&collector);
    assert!(posted.head.contains("x-for: metrics\r\n"), "{}", posted.head);
    assert_eq!(
        (&*posted.resource["service.name"], &*posted.resource["team"]),
        ("shop", "a")
    );
    let page = String::from_utf8(server.get("/metrics").body).unwrap();
    let mut shown = BTreeMap::new();
    for line in page.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            let points = match kind {
                "histogram" => format!("{name}_count"),
                _ => name.to_owned(),
            };
            let is_sample = |line: &&str| {
                line.strip_prefix(&points)
                    .is_some_and(|rest| rest.starts_with([' ', '{']))
            };
            let count = page.lines().filter(is_sample).count();
            let kind = if kind == "counter" { "sum" } else { kind };
            if count > 0 {
                shown.insert(name, (kind, count));
            }
        }
    }
    let pushed: BTreeMap<&str, (&str, usize)> = posted
        .metrics
        .iter()
        .map(|(name, metric)| (name.as_str(), (metric.kind, metric.points.len())))
        .collect();
    assert_eq!(pushed, shown);
    let success = &posted.metrics["nv_inference_request_success"];
    assert!(success.is_monotonic && success.description.starts_with("Inference requests"));
    let point = &success.points[0];
    assert_eq!(
        (
            point.value,
            &*point.attributes["model"],
            &*point.attributes["version"]
        ),
        (1.0, "digit_means", "1")
    );
    let duration = &posted.metrics["oip_request_duration_seconds"].points[0];
    assert_eq!(
        (duration.count, duration.counts.len()),
        (1, duration.bounds.len() + 1)
    );
    assert!(duration.value > 0.0 && duration.value < 30.0, "seconds");
}

#[test]
fn metrics_that_are_not_shown_can_be_pushed_and_the_end_pushes_the_last_ones() {
    let collector = Collector::start(vec![]);
    let config = ConfigFile::new(&format!(
        "otlp-metrics-endpoint = {:?}\notlp-metrics-interval = \"1h\"",
        collector.url
    ));
    let (mut server, _folder) = server(&["--allow-metrics=false", &config.option]);
    assert_eq!(server.get("/metrics").status, 404);
    infer(&server);
    server.signal("TERM");
    assert!(server.wait(Duration::from_secs(30)).success());
    let posted = with_a_request(&collector);
    assert_eq!(posted.metrics["oip_request_bytes"].points.len(), 2);
}

#[test]
fn wrong_settings_for_pushing_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    for (settings, message) in [
        (
            "otlp-metrics-endpoint = \"collector\"",
            "the configuration file: otlp-metrics-endpoint: expected the URL of a collector",
        ),
        (
            "otlp-metrics-interval = \"5s\"",
            "the configuration file: otlp-metrics-interval needs otlp-metrics-endpoint",
        ),
        (
            "otlp-metrics-endpoint = \"http://c\"\notlp-metrics-interval = \"500ms\"",
            "the configuration file: otlp-metrics-interval: expected a time from 1s to 1h, found 500ms",
        ),
    ] {
        let config = ConfigFile::new(settings);
        let (code, line) = failing(&[folder, &config.option]);
        assert!(code == 2 && line.starts_with(message), "{code}: {line}");
    }
}
