//! Tests the request middleware: request ids, the access log, totals over all models, and load reports.

use std::{collections::HashSet, fs, io::Write, path::Path, process::Command};

use oip_grpc::proto::{
    ModelInferRequest, ServerLiveRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
    model_infer_request::InferInputTensor,
};
use prost::Message;
use serde_json::Value;
use tonic::{Request, transport::Endpoint};

use crate::{
    metrics::{Page, rows, server, until},
    support::{Server, connect, failing, receive, send},
};

const INFER: &str = "/v2/models/digit_means/infer";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Returns the lines of an access log.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// Returns the only line that satisfies `is_it`, once it is written.
pub(crate) fn line(path: &Path, is_it: impl Fn(&Value) -> bool) -> Value {
    until("a line is written", || lines(path).iter().any(&is_it));
    let mut found: Vec<Value> = lines(path).into_iter().filter(&is_it).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Starts a server with a JSON access log; returns it with the log's path.
fn logging_server(folder: &Path) -> (Server, tempfile::TempDir, std::path::PathBuf) {
    let log = folder.join("access.log");
    let arguments = ["--access-log", "json", "--access-log-file", log.to_str().unwrap()];
    let (server, repository) = server(&arguments);
    (server, repository, log)
}

async fn client(server: &Server) -> GrpcInferenceServiceClient<tonic::transport::Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
    GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap())
}

#[test]
fn each_request_over_http_has_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _repository, log) = logging_server(folder.path());
    let body = rows(&[1, 2]).to_string();
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let headers = [("X-Request-ID", "first"), ("traceparent", parent.as_str())];
    let answer = server.request("POST", INFER, &headers, body.as_bytes());
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-request-id"), Some("first"));
    assert_eq!(answer.header("traceparent"), Some(parent.as_str()));
    let found = line(&log, |line| line["request_id"] == "first");
    for (name, expected) in [
        ("transport", Value::from("http")),
        ("method", "POST".into()),
        ("route", "/v2/models/{model}/infer".into()),
        ("model", "digit_means".into()),
        ("version", "1".into()),
        ("code", 200.into()),
        ("bytes_in", body.len().into()),
        ("bytes_out", answer.body.len().into()),
        ("trace_id", TRACE.into()),
    ] {
        assert_eq!(found[name], expected, "{name}: {found}");
    }
    assert!(found["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(found.get("path").is_none() && found.get("identity").is_none());
    let phases: u64 = ["us_read", "us_decode", "us_queue", "us_run", "us_encode"]
        .iter()
        .map(|phase| found[phase].as_u64().unwrap())
        .sum();
    assert!(phases <= found["us"].as_u64().unwrap(), "{found}");

    // Invalid ids are replaced; unknown paths are logged without becoming routes.
    let answer = server.request("GET", "/secret?token=abc", &[("X-Request-ID", "two words")], b"");
    let made = answer.header("x-request-id").unwrap().to_owned();
    assert!(made.len() == 16 && made != "two words");
    let found = line(&log, |line| line["request_id"] == made.as_str());
    assert_eq!(
        (&found["route"], &found["path"], &found["code"]),
        (&"other".into(), &"/secret".into(), &404.into())
    );
    assert!(!fs::read_to_string(&log).unwrap().contains("abc"));

    // This client disconnects before the response.
    let mut stream = connect(server.http);
    let head =
        format!("POST {INFER} HTTP/1.1\r\nHost: x\r\nX-Request-ID: gone\r\nContent-Length: 100\r\n\r\nabc");
    stream.write_all(head.as_bytes()).unwrap();
    drop(stream);
    let found = line(&log, |line| line["request_id"] == "gone");
    assert!([400, 499].contains(&found["code"].as_u64().unwrap()), "{found}");
    // A HEAD response has no body.
    let mut stream = connect(server.http);
    send(&mut stream, "HEAD", "/v2", &[("X-Request-ID", "head")], b"");
    let found = line(&log, |line| line["request_id"] == "head");
    assert_eq!(found["code"], 200);
}

#[tokio::test]
async fn each_call_over_grpc_has_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _repository, log) = logging_server(folder.path());
    let mut client = client(&server).await;
    let mut request = Request::new(ServerLiveRequest {});
    request
        .metadata_mut()
        .insert("x-request-id", "live".parse().unwrap());
    let answer = client.server_live(request).await.unwrap();
    assert_eq!(answer.metadata().get("x-request-id").unwrap(), "live");
    let found = line(&log, |line| line["request_id"] == "live");
    assert_eq!(
        (&found["route"], &found["code"]),
        (&"ServerLive".into(), &0.into())
    );

    let mut request = Request::new(ModelInferRequest {
        model_name: "nothing".to_owned(),
        ..Default::default()
    });
    request
        .metadata_mut()
        .insert("x-request-id", "infer".parse().unwrap());
    let status = client.model_infer(request).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    assert_eq!(status.metadata().get("x-request-id").unwrap(), "infer");
    let found = line(&log, |line| line["request_id"] == "infer");
    assert_eq!(
        (&found["route"], &found["code"]),
        (&"ModelInfer".into(), &5.into())
    );
    assert_eq!(found["model"], "nothing");
    // A gRPC frame has a flag, a length of four bytes, and the message.
    assert_eq!(found["bytes_in"], 5 + 2 + "nothing".len());

    // This inference request has a `traceparent`.
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let mut request = Request::new(rows_message(&[1, 2]));
    for (name, value) in [("x-request-id", "good"), ("traceparent", parent.as_str())] {
        request.metadata_mut().insert(name, value.parse().unwrap());
    }
    let answer = client.model_infer(request).await.unwrap();
    for (name, value) in [("x-request-id", "good"), ("traceparent", parent.as_str())] {
        assert_eq!(answer.metadata().get(name).unwrap(), value);
    }
    let found = line(&log, |line| line["request_id"] == "good");
    for (name, expected) in [
        ("transport", Value::from("grpc")),
        ("route", "ModelInfer".into()),
        ("model", "digit_means".into()),
        ("version", "1".into()),
        ("code", 0.into()),
        ("bytes_in", (5 + rows_message(&[1, 2]).encoded_len()).into()),
        ("bytes_out", (5 + answer.get_ref().encoded_len()).into()),
        ("trace_id", TRACE.into()),
    ] {
        assert_eq!(found[name], expected, "{name}: {found}");
    }
    assert!(found["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    let phases: u64 = ["us_read", "us_decode", "us_queue", "us_run", "us_encode"]
        .iter()
        .map(|phase| found[phase].as_u64().unwrap())
        .sum();
    assert!(phases <= found["us"].as_u64().unwrap(), "{found}");
}

/// Returns a gRPC request for rows of `digit_means`, with raw row indices.
fn rows_message(rows: &[i64]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "digit_means".to_owned(),
        inputs: vec![InferInputTensor {
            name: "mean.rows".to_owned(),
            datatype: "INT64".to_owned(),
            shape: vec![rows.len() as i64],
            ..Default::default()
        }],
        raw_input_contents: vec![
            rows.iter()
                .flat_map(|row| row.to_le_bytes())
                .collect::<Vec<u8>>()
                .into(),
        ],
        ..Default::default()
    }
}

/// Without the access log, ids are repeated but not generated.
#[tokio::test]
async fn ids_go_back_without_a_log() {
    let (server, _repository) = server(&["--allow-metrics=false"]);
    let answer = server.request("GET", "/v2", &[("X-Request-ID", "mine")], b"");
    assert_eq!(answer.header("x-request-id"), Some("mine"));
    let answer = server.request("GET", "/v2", &[("traceparent", "00-x-y-z")], b"");
    assert_eq!(
        (answer.header("x-request-id"), answer.header("traceparent")),
        (None, None)
    );
    let mut request = Request::new(ServerLiveRequest {});
    request
        .metadata_mut()
        .insert("x-request-id", "mine".parse().unwrap());
    let answer = client(&server).await.server_live(request).await.unwrap();
    assert_eq!(answer.metadata().get("x-request-id").unwrap(), "mine");
}

/// Requests that reach no model are counted by route and code, and inference requests by size.
#[tokio::test]
async fn totals_count_what_no_model_sees() {
    let (server, _repository) = server(&[]);
    let body = rows(&[1, 2]).to_string();
    for _ in 0..3 {
        assert_eq!(server.request("POST", INFER, &[], body.as_bytes()).status, 200);
    }
    assert_eq!(server.request("POST", INFER, &[], b"{").status, 400);
    assert_eq!(server.get("/v2/models/other").status, 404);
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.request("PUT", "/v2", &[], b"").status, 405);
    let mut client = client(&server).await;
    let request = ModelInferRequest {
        model_name: "nothing".to_owned(),
        ..Default::default()
    };
    client.model_infer(request).await.unwrap_err();
    let failures = |page: &Page, transport, route, code| {
        let labels = [("transport", transport), ("route", route), ("code", code)];
        page.find("oip_request_failures_total", &labels)
    };
    until("everything is counted", || {
        let page = Page::of(&server);
        let expected = [
            ("http", "/v2/models/{model}/infer", "400"),
            ("http", "/v2/models/{model}", "404"),
            ("http", "other", "404"),
            ("http", "/v2", "405"),
            ("grpc", "ModelInfer", "5"),
        ];
        expected
            .iter()
            .all(|(transport, route, code)| failures(&page, transport, route, code) == Some(1.0))
    });
    let page = Page::of(&server);
    let http = [("transport", "http")];
    assert_eq!(page.value("oip_request_bytes_count", &http), 4.0);
    assert_eq!(
        page.value("oip_request_bytes_sum", &http),
        (3 * body.len() + 1) as f64
    );
    assert!(page.value("oip_answer_bytes_sum", &http) > 300.0);
    assert_eq!(
        page.value("oip_request_bytes_count", &[("transport", "grpc")]),
        1.0
    );
    assert_eq!(page.value("oip_requests_running", &http), 0.0);
    // The body of this request is still being sent.
    let mut stream = server.connect();
    stream
        .write_all(format!("POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc").as_bytes())
        .unwrap();
    until("it runs", || {
        Page::of(&server).value("oip_requests_running", &http) == 1.0
    });
    drop(stream);
    until("it runs no more", || {
        Page::of(&server).value("oip_requests_running", &http) == 0.0
    });
}

#[tokio::test]
async fn balancers_get_load_reports() {
    let (server, _repository) = server(&[]);
    let body = rows(&[1]).to_string();
    let mut stream = server.connect();
    for (format, start) in [
        ("text", "TEXT mem_utilization=0."),
        ("JSON", "JSON {\"mem_utilization\": 0."),
    ] {
        let headers = [("endpoint-load-metrics-format", format)];
        send(&mut stream, "POST", INFER, &headers, body.as_bytes());
        let answer = receive(&mut stream);
        let report = answer.header("endpoint-load-metrics").unwrap();
        assert!(report.starts_with(start), "{report}");
        let running = ["running_requests=1", "\"running_requests\": 1"];
        assert!(running.iter().any(|running| report.contains(running)), "{report}");
    }
    send(&mut stream, "POST", INFER, &[], body.as_bytes());
    assert_eq!(receive(&mut stream).header("endpoint-load-metrics"), None);
    let mut request = Request::new(ServerLiveRequest {});
    let wanted = "text".parse().unwrap();
    request
        .metadata_mut()
        .insert("endpoint-load-metrics-format", wanted);
    let answer = client(&server).await.server_live(request).await.unwrap();
    let report = answer.metadata().get("endpoint-load-metrics").unwrap();
    assert!(report.to_str().unwrap().starts_with("TEXT "), "{report:?}");
}

/// Requests over both transports on one port are logged, and neither transport writes to a file that was
/// rotated before SIGHUP.
#[tokio::test]
async fn the_file_is_opened_again_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let (models, log) = (folder.path().join("models"), folder.path().join("access.log"));
    fs::create_dir(&models).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_oip-server"));
    command.arg("--model-repository").arg(&models).args([
        "--address=127.0.0.1:0",
        "--access-log=json",
        "--access-log-file",
        log.to_str().unwrap(),
    ]);
    let mut server = Server::spawn(&mut command);
    server.wait_until_loaded();
    let mut client = client(&server).await;
    let mut ask = async |id: &str| {
        let answer = server.request("GET", "/v2", &[("X-Request-ID", id)], b"");
        assert_eq!(answer.status, 200);
        let mut request = Request::new(ServerLiveRequest {});
        let id = format!("{id}-grpc").parse().unwrap();
        request.metadata_mut().insert("x-request-id", id);
        client.server_live(request).await.unwrap();
    };
    ask("before").await;
    line(&log, |line| {
        line["request_id"] == "before" && line["transport"] == "http"
    });
    line(&log, |line| {
        line["request_id"] == "before-grpc" && line["transport"] == "grpc"
    });
    let moved = folder.path().join("access.log.1");
    fs::rename(&log, &moved).unwrap();
    server.signal("HUP");
    until("there is a new file", || log.exists());
    ask("after").await;
    line(&log, |line| {
        line["request_id"] == "after" && line["transport"] == "http"
    });
    line(&log, |line| {
        line["request_id"] == "after-grpc" && line["transport"] == "grpc"
    });
    let ids: HashSet<String> = lines(&moved)
        .iter()
        .map(|line| line["request_id"].to_string())
        .collect();
    let before = ["\"before\"", "\"before-grpc\""];
    assert_eq!(ids, before.map(str::to_owned).into());
}

#[test]
fn logs_that_cannot_be_written_are_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().to_str().unwrap();
    let file = folder.path().join("nowhere/access.log");
    let file = file.to_str().unwrap();
    let anywhere = ["--model-repository", repository, "--address", "127.0.0.1:0"];
    let (code, line) = failing(&[&anywhere[..], &["--access-log-file", file]].concat());
    assert_eq!(
        (code, &*line),
        (2, "--access-log-file needs --access-log=text or json")
    );
    let arguments = [&anywhere[..], &["--access-log=text", "--access-log-file", file]].concat();
    let (code, line) = failing(&arguments);
    let expected = format!("the access log cannot be written to {file}: No such file");
    assert!(code == 1 && line.starts_with(&expected), "{line}");
}
