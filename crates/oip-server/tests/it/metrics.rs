//! `GET /metrics` of the real program: values, names, and limits on the series that clients can create.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::{
    exposition::{Family, parse},
    support::{Server, receive, send},
};

/// Starts a server with a tensor file as its only model. Returns it with the directory that holds the file.
pub(crate) fn server(arguments: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("digit_means/1");
    fs::create_dir_all(&version).unwrap();
    let example =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digit_means/1/model.safetensors");
    fs::copy(example, version.join("model.safetensors")).unwrap();
    let mut server = Server::start(folder.path(), arguments);
    server.wait_until_loaded();
    (server, folder)
}

/// A parsed metrics page.
pub(crate) struct Page {
    text: String,
    families: Vec<Family>,
}

impl Page {
    pub(crate) fn of(server: &Server) -> Self {
        let answer = server.get("/metrics");
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; version=0.0.4; charset=utf-8")
        );
        let text = String::from_utf8(answer.body).unwrap();
        let families = parse(&text).unwrap_or_else(|error| panic!("{error}"));
        Self { text, families }
    }

    /// Returns the value of a sample with these labels.
    pub(crate) fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let samples = self.families.iter().flat_map(|family| &family.samples);
        let mut found = samples.filter(|sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(label, value)| sample.label(label) == Some(value))
        });
        let value = found.next()?.value;
        assert!(found.next().is_none(), "{name} {labels:?} are several");
        Some(value)
    }

    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels)
            .unwrap_or_else(|| panic!("no {name} {labels:?}: {}", self.text))
    }

    /// Returns a value of the only version of the only model.
    fn model(&self, name: &str) -> f64 {
        self.value(name, MODEL)
    }

    /// Returns the names and labels of all samples.
    fn series(&self) -> Vec<&str> {
        let samples = self.text.lines().filter(|line| !line.starts_with('#'));
        samples.map(|sample| sample.rsplit_once(' ').unwrap().0).collect()
    }
}

const MODEL: &[(&str, &str)] = &[("model", "digit_means"), ("version", "1")];

fn infer(server: &Server, body: &Value) -> u16 {
    let path = "/v2/models/digit_means/infer";
    server
        .request("POST", path, &[], body.to_string().as_bytes())
        .status
}

pub(crate) fn rows(rows: &[i64]) -> Value {
    let input = json!({"name": "mean.rows", "datatype": "INT64", "shape": [rows.len()], "data": rows});
    json!({ "inputs": [input] })
}

#[test]
fn what_happened_is_counted() {
    let (server, _folder) = server(&["--memory-budget", "100MiB"]);
    let before = Page::of(&server);
    for sample in before.families.iter().flat_map(|family| &family.samples) {
        let is_counted = sample.label("model").is_some() && !sample.name.contains("model_");
        assert!(!is_counted || sample.value == 0.0, "{sample:?}");
    }
    for asked in [&[3, 8][..], &[0], &[9, 9, 9]] {
        assert_eq!(infer(&server, &rows(asked)), 200);
    }
    // The model rejects one request, and another has the wrong shape.
    assert_eq!(infer(&server, &rows(&[10])), 400);
    assert_eq!(
        infer(&server, &json!({"inputs": [], "outputs": [{"name": "median"}]})),
        400
    );
    // The deadline of this request has already passed. Its client may get the error before a thread of the
    // model has seen the request.
    let mut late = rows(&[1]);
    late["parameters"] = json!({"timeout": 1});
    assert_eq!(infer(&server, &late), 504);
    let failures = |page: &Page| {
        ["REJECTED", "CANCELED", "BACKEND", "OTHER"].map(|reason| {
            page.value(
                "nv_inference_request_failure",
                &[MODEL[0], MODEL[1], ("reason", reason)],
            )
        })
    };
    until("all failures are counted", || {
        failures(&Page::of(&server)) == [1.0, 0.0, 0.0, 2.0]
    });
    let page = Page::of(&server);
    assert_eq!(page.model("nv_inference_request_success"), 3.0);
    // A tensor file does not batch: each run is one inference. The rejected request was a run too.
    assert_eq!(page.model("nv_inference_count"), 3.0);
    assert_eq!(page.model("nv_inference_exec_count"), 4.0);
    assert_eq!(page.model("oip_batch_rows_count"), 4.0);
    assert_eq!(page.model("nv_inference_pending_request_count"), 0.0);
    for histogram in ["request", "queue", "compute"] {
        let count = page.model(&format!("oip_{histogram}_duration_seconds_count"));
        assert_eq!(count, 3.0, "{histogram}");
    }
    // The counter and the histogram cover the same requests; the histogram loses less than a microsecond per
    // request.
    let microseconds = page.model("nv_inference_request_duration_us");
    let seconds = page.model("oip_request_duration_seconds_sum");
    assert!(microseconds > 0.0 && (microseconds - seconds * 1e6).abs() < 4.0);
    let parts = ["queue", "compute_input", "compute_infer", "compute_output"];
    let parts = parts.map(|part| page.model(&format!("nv_inference_{part}_duration_us")));
    assert!(parts.iter().sum::<f64>() <= microseconds);

    assert_eq!(page.model("oip_model_ready"), 1.0);
    let load_time = page.model("nv_model_load_duration_secs");
    assert!(load_time > 0.0 && load_time < 60.0);
    if cfg!(target_os = "linux") {
        let memory = page.model("oip_model_memory_bytes");
        assert!(memory < 1e9, "{memory}");
    }
    assert_eq!(page.value("oip_server_ready", &[]), 1.0);
    assert_eq!(page.value("oip_memory_budget_bytes", &[]), 104_857_600.0);
    assert_eq!(page.value("oip_memory_budget_used_bytes", &[]), 0.0);
    assert_eq!(
        page.value("oip_build_info", &[("version", env!("CARGO_PKG_VERSION"))]),
        1.0
    );
    let is_failure = |series: &&str| series.starts_with("oip_request_failures_total");
    let (failed, others): (Vec<&str>, Vec<&str>) = page.series().into_iter().partition(is_failure);
    assert_eq!(before.series(), others);
    assert_eq!(failed.len(), 2, "{failed:?}");
}

/// A body in transit counts toward the budget.
#[test]
fn bodies_in_work_are_shown() {
    let (server, _folder) = server(&[]);
    let mut stream = server.connect();
    let head = "POST /v2/models/digit_means/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n";
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    std::io::Write::write_all(&mut stream, " ".repeat(40_000).as_bytes()).unwrap();
    let used = || Page::of(&server).value("oip_memory_budget_used_bytes", &[]);
    until("the body is counted", || used() >= 40_000.0);
    drop(stream);
    until("it is not any more", || used() == 0.0);
}

/// Checks that a reloaded model's metrics restart at 0, and that an unloaded model's disappear.
#[test]
fn versions_come_and_go() {
    let (server, _folder) = server(&["--model-control-mode=explicit", "--load-model=digit_means"]);
    let success = || Page::of(&server).find("nv_inference_request_success", MODEL);
    assert_eq!(infer(&server, &rows(&[1])), 200);
    assert_eq!(success(), Some(1.0));
    let repository = |call: &str, body: &[u8]| {
        let path = format!("/v2/repository/models/digit_means/{call}");
        assert_eq!(server.request("POST", &path, &[], body).status, 200);
    };
    // Nothing has changed, so nothing is loaded.
    repository("load", b"");
    assert_eq!(success(), Some(1.0));
    let changed = json!({"parameters": {"config": r#"{"instance_group": [{"count": 1}]}"#}});
    repository("load", changed.to_string().as_bytes());
    assert_eq!(success(), Some(0.0));
    repository("unload", b"");
    assert_eq!(success(), None);
    let page = Page::of(&server);
    assert_eq!(page.model("oip_model_ready"), 0.0);
    assert_eq!(page.find("nv_model_load_duration_secs", MODEL), None);
}

#[test]
#[cfg(target_os = "linux")]
fn the_process_is_described() {
    let (server, _folder) = server(&[]);
    let page = Page::of(&server);
    let value = |name: &str| page.value(&format!("process_{name}"), &[]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - value("start_time_seconds");
    assert!((-2.0..120.0).contains(&age), "{age}");
    let used = server.cpu_time().as_secs_f64();
    assert!(value("cpu_seconds_total") <= used + 0.02, "{used}");
    let resident = value("resident_memory_bytes");
    assert!(resident > 1e6 && resident < value("virtual_memory_bytes"));
    assert!(value("threads") >= 2.0);
    let open = value("open_fds");
    assert!(open > 3.0 && open < value("max_fds"));
}

/// The path `/metrics` follows the same rules as all other paths.
#[test]
fn heads_methods_and_paths() {
    let (server, _folder) = server(&[]);
    assert_eq!(server.get("/metrics/").status, 200);
    assert_eq!(server.get("/metrics?name=x").status, 200);
    let mut stream = server.connect();
    send(&mut stream, "HEAD", "/metrics", &[], b"");
    let mut head = [0; 15];
    std::io::Read::read_exact(&mut stream, &mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    for method in ["POST", "PUT", "DELETE"] {
        let answer = server.request(method, "/metrics", &[], b"");
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET,HEAD")));
        assert_eq!(answer.json(), json!({"error": "Method Not Allowed"}));
    }
    let answer = server.get("/metrics/digit_means");
    assert_eq!(
        (answer.status, answer.json()),
        (404, json!({"error": "Not Found"}))
    );
    let long = format!("/metrics?{}", "x".repeat(9_000));
    assert_eq!(server.get(&long).status, 414);
}

#[test]
fn metrics_can_be_taken_away() {
    let (server, _folder) = server(&["--allow-metrics=false"]);
    let answer = server.get("/metrics");
    assert_eq!(
        (answer.status, answer.json()),
        (404, json!({"error": "Not Found"}))
    );
    assert_eq!(infer(&server, &rows(&[1])), 200);
}

/// Sends unknown names over a connection, as clients do; `src/metrics/mod.rs` tests all 100,000 names.
#[test]
fn many_names_over_a_connection() {
    let (server, _folder) = server(&[]);
    // Failures are counted by route and code, so the first one creates a series.
    let first = server.request(
        "POST",
        "/v2/models/n/infer",
        &[],
        rows(&[1]).to_string().as_bytes(),
    );
    assert_eq!(first.status, 404);
    let is_counted = || {
        Page::of(&server)
            .find("oip_request_failures_total", &[])
            .is_some()
    };
    until("it is counted", is_counted);
    let before = Page::of(&server);
    let mut stream = server.connect();
    for index in 0..3_000 {
        let body = rows(&[1]).to_string();
        send(
            &mut stream,
            "POST",
            &format!("/v2/models/m{index}/infer"),
            &[],
            body.as_bytes(),
        );
        assert_eq!(receive(&mut stream).status, 404);
    }
    let after = Page::of(&server);
    assert_eq!(before.series(), after.series());
    // Only numbers have changed, by a few digits each.
    assert!(before.text.len().abs_diff(after.text.len()) < 200);
}

/// docs/metrics.md has exactly one row per metric, with type and labels.
#[test]
fn the_page_of_documentation_lists_what_there_is() {
    let (server, _folder) = server(&[]);
    // Failures have no series before the first one.
    assert_eq!(server.get("/nowhere").status, 404);
    let is_counted = || {
        Page::of(&server)
            .find("oip_request_failures_total", &[])
            .is_some()
    };
    until("it is counted", is_counted);
    let page = Page::of(&server);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let document = fs::read_to_string(document).unwrap();
    let mut rows = BTreeMap::new();
    for line in document.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').to_owned();
        assert!(
            rows.insert(name, (cells[2].to_owned(), cells[3].to_owned()))
                .is_none()
        );
    }
    for Family {
        name,
        kind,
        help,
        samples,
    } in &page.families
    {
        let labels = samples[0].labels.iter().map(|(label, _)| label.as_str());
        let labels: Vec<&str> = labels.filter(|label| *label != "le").collect();
        let row = rows.remove(name).unwrap_or_else(|| panic!("no row for {name}"));
        assert_eq!(row, (kind.clone(), labels.join(", ")), "{name}");
        assert!(help.ends_with('.'), "{name}: {help}");
    }
    let is_elsewhere = |name: &String| !cfg!(target_os = "linux") && name.starts_with("process_");
    // These metrics exist only with ONNX Runtime or with GPUs.
    let is_of_onnx_runtime =
        |name: &String| name.starts_with("nv_gpu_") || name == "oip_model_execution_provider";
    rows.retain(|name, _| !is_elsewhere(name) && !is_of_onnx_runtime(name));
    assert!(rows.is_empty(), "rows for nothing: {rows:?}");
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it does not happen: {what}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}
