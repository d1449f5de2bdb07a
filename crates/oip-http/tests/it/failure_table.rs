//! Tests the failure table: errors that clients of other servers encounter, and the responses of this server.
//!
//! docs/oip.md has the same rows with the responses of both transports. The engine's tests cover rows about
//! engine errors, such as a batch that is too large.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Method, Request},
};
use flate2::{Compression, write::GzEncoder};
use oip_http::HttpConfig;
use oip_resources::TimeLimits;

use crate::support::{app_with, call, x};

/// A request of the table and the expected response.
struct Row {
    /// The failure, as named in the table.
    failure: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, String)>,
    /// The request body, sent by POST; without a body, the request is a GET.
    body: Option<Vec<u8>>,
    status: u16,
    /// The error message; empty for success.
    error: &'static str,
    /// A header that the response must have.
    header: Option<(&'static str, &'static str)>,
}

const IDENTITY: &str = "/v2/models/identity_fp32/infer";
const RETRY: Option<(&str, &str)> = Some(("retry-after", "1"));

fn get(failure: &'static str, path: &'static str, status: u16, error: &'static str) -> Row {
    Row {
        failure,
        path,
        headers: vec![],
        body: None,
        status,
        error,
        header: None,
    }
}

fn infer(failure: &'static str, body: &str, status: u16, error: &'static str) -> Row {
    Row {
        body: Some(body.as_bytes().to_vec()),
        ..get(failure, IDENTITY, status, error)
    }
}

/// Creates a row whose body is JSON followed by binary data.
fn binary(failure: &'static str, json: &str, tail: &[u8], status: u16, error: &'static str) -> Row {
    Row {
        headers: vec![("inference-header-content-length", json.len().to_string())],
        body: Some([json.as_bytes(), tail].concat()),
        ..infer(failure, "", status, error)
    }
}

fn to(path: &'static str, row: Row) -> Row {
    Row { path, ..row }
}

fn rows() -> Vec<Row> {
    let good = x("FP32", "[1]", "[1]");
    let sized = |size: usize| {
        format!(
            r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[2],"parameters":{{"binary_data_size":{size}}}}}]}}"#
        )
    };
    let cut = {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        std::io::Write::write_all(&mut encoder, good.as_bytes()).unwrap();
        let mut body = encoder.finish().unwrap();
        body.truncate(20);
        body
    };
    vec![
        get(
            "unknown model, metadata",
            "/v2/models/zz",
            404,
            "model 'zz' does not exist; there are 'loading', 'matrix', 'never'",
        ),
        to(
            "/v2/models/zz/infer",
            infer(
                "unknown model, infer",
                &good,
                404,
                "model 'zz' does not exist; there are 'loading', 'matrix', 'never'",
            ),
        ),
        get(
            "unknown version, metadata",
            "/v2/models/matrix/versions/99",
            404,
            "model 'matrix' version '99' does not exist",
        ),
        to(
            "/v2/models/matrix/versions/99/infer",
            infer(
                "unknown version, infer",
                &good,
                404,
                "model 'matrix' version '99' does not exist",
            ),
        ),
        get(
            "unknown model, ready",
            "/v2/models/zz/ready",
            404,
            "model 'zz' does not exist",
        ),
        Row {
            header: RETRY,
            ..to(
                "/v2/models/loading/infer",
                infer(
                    "model not ready (infer)",
                    &good,
                    503,
                    "model 'loading' is not ready: it is being loaded",
                ),
            )
        },
        infer(
            "wrong element count in `data`",
            &x("FP32", "[3]", "[1,2]"),
            400,
            "model 'identity_fp32': input 'x': expected 3 elements for shape [3], found 2",
        ),
        infer(
            "wrong shape vs model",
            &x("FP32", "[1,1]", "[1]"),
            400,
            "model 'identity_fp32': input 'x': expected shape [-1], found [1, 1]",
        ),
        infer(
            "negative dim",
            &x("FP32", "[-1]", "[1]"),
            400,
            "model 'identity_fp32': input 'x': shape [-1] has a negative dimension",
        ),
        infer(
            "wrong dtype vs model",
            &x("INT32", "[1]", "[1]"),
            400,
            "model 'identity_fp32': input 'x': expected datatype FP32, found INT32",
        ),
        infer(
            "unknown dtype name",
            &x("FLOAT", "[1]", "[1]"),
            400,
            "model 'identity_fp32': input 'x': unknown datatype 'FLOAT'",
        ),
        infer(
            "\"fp32\"",
            &x("fp32", "[1]", "[1]"),
            400,
            "model 'identity_fp32': input 'x': unknown datatype 'fp32' (did you mean 'FP32'?)",
        ),
        binary(
            "wrong raw byte size: not the shape's",
            &sized(4),
            &[0; 4],
            400,
            "model 'identity_fp32': input 'x': expected 8 bytes for FP32[2], found 4",
        ),
        binary(
            "wrong raw byte size: missing bytes",
            &sized(8),
            &[0; 7],
            400,
            "model 'identity_fp32': input 'x': expected 8 bytes of binary data, found 7",
        ),
        binary(
            "wrong raw byte size: bytes left over",
            &sized(8),
            &[0; 9],
            400,
            "model 'identity_fp32': 1 bytes of binary data are left over after all tensors with \"binary_data_size\"",
        ),
        infer(
            "wrong JSON type in data",
            &x("FP32", "[1]", "[true]"),
            400,
            "model 'identity_fp32': input 'x': element 0: invalid JSON at byte 61: expected a number for FP32, found 't'",
        ),
        infer(
            "missing required input",
            r#"{"inputs":[]}"#,
            400,
            "model 'identity_fp32': input 'x' (FP32[-1]) is missing: expected 1 inputs, found 0",
        ),
        infer(
            "`inputs` key missing",
            "{}",
            400,
            "model 'identity_fp32': member \"inputs\" is missing",
        ),
        infer(
            "unknown input name",
            &good.replace("\"x\"", "\"qq\""),
            400,
            "model 'identity_fp32': unexpected input 'qq'; the model takes 'x' (FP32[-1])",
        ),
        infer(
            "unknown requested output",
            &good.replacen('{', r#"{"outputs":[{"name":"nope"}],"#, 1),
            400,
            "model 'identity_fp32': unexpected output 'nope'; the model gives 'y' (FP32[-1])",
        ),
        infer(
            "no data",
            r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}"#,
            400,
            "model 'identity_fp32': input 'x': expected one of \"data\", \"binary_data_size\" and \
             \"shared_memory_region\", found none of them",
        ),
        binary(
            "both data + raw",
            &sized(8).replace("\"shape\"", "\"data\":[1,2],\"shape\""),
            &[0; 8],
            400,
            "model 'identity_fp32': input 'x': expected only one of \"data\", \"binary_data_size\" and \
             \"shared_memory_region\", found several",
        ),
        infer(
            "malformed JSON",
            r#"{"inputs":[}"#,
            400,
            "model 'identity_fp32': inputs[0]: invalid JSON at byte 11: expected an object, found '}'",
        ),
        infer(
            "empty body (infer)",
            "",
            400,
            "model 'identity_fp32': invalid JSON at byte 0: expected an object, found the end",
        ),
        Row {
            headers: vec![("content-type", "text/plain".into())],
            ..infer("wrong Content-Type", &good, 200, "")
        },
        infer("missing Content-Type", &good, 200, ""),
        Row {
            headers: vec![("content-length", "67108865".into())],
            ..infer(
                "payload too large",
                "",
                413,
                "expected a body of at most 67108864 bytes, found 67108865",
            )
        },
        Row {
            headers: vec![("content-encoding", "br".into())],
            header: Some(("accept-encoding", "gzip, deflate")),
            ..infer(
                "unsupported Content-Encoding",
                &good,
                415,
                "Content-Encoding: expected one of gzip and deflate, found 'br'",
            )
        },
        Row {
            headers: vec![("content-encoding", "gzip".into())],
            body: Some(cut),
            ..infer(
                "bad gzip",
                "",
                400,
                "the compressed body is malformed: it is truncated",
            )
        },
        Row {
            header: RETRY,
            ..to(
                "/v2/models/busy/infer",
                infer(
                    "queue full",
                    &good,
                    429,
                    "model 'busy': its queue is full; try again later",
                ),
            )
        },
        to(
            "/v2/models/slow/infer",
            infer(
                "timeout in queue",
                &good,
                504,
                "model 'slow': the deadline passed",
            ),
        ),
        to(
            "/v2/models/failing/infer",
            infer("model execution error", &good, 500, "model 'failing': it failed"),
        ),
    ]
}

#[tokio::test]
async fn every_row_of_the_table_of_failures() {
    let time = TimeLimits::default().with(|time| {
        time.default = Duration::from_millis(50);
        time.max = Duration::from_secs(20);
    });
    let (app, _) = app_with(HttpConfig::default().with(|config| config.time = time));
    for row in rows() {
        let method = if row.body.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        let mut request = Request::builder()
            .method(method)
            .uri(row.path)
            .header("host", "x");
        for (name, value) in &row.headers {
            request = request.header(*name, value);
        }
        let body = row.body.map_or_else(Body::empty, Body::from);
        let answer = call(&app, request.body(body).unwrap()).await;
        let error = if answer.status.is_success() {
            String::new()
        } else {
            answer.error()
        };
        assert_eq!(
            (answer.status.as_u16(), error.as_str()),
            (row.status, row.error),
            "{}",
            row.failure
        );
        if let Some((name, value)) = row.header {
            assert_eq!(answer.header(name), Some(value), "{}", row.failure);
        }
    }
}
