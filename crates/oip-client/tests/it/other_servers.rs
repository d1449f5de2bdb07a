//! Tests responses in the style of other servers, taken from their source code and from captured traffic.

use oip_client::{ErrorKind, HttpClient, InferenceClient};
use oip_types::{DataType, ErrorCode, ModelRef};

use crate::support::{ScriptedServer, to_model};

fn model() -> ModelRef<'static> {
    ModelRef::new("m", None).unwrap()
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

async fn infer(
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> oip_client::Result<oip_types::InferResponse> {
    ScriptedServer::answering("200 OK", headers, body)
        .client()
        .infer(&to_model("m"))
        .await
}

/// Triton has no body in health responses, and status 400 for not ready. It prints floats as doubles, and
/// sends no id.
#[tokio::test]
async fn triton() {
    let ready = ScriptedServer::answering("200 OK", &[("Content-Length", "0")], "");
    assert!(ready.client().server_ready().await.unwrap());
    assert!(ready.client().model_ready(model()).await.unwrap());
    let not_ready = ScriptedServer::answering("400 Bad Request", &[], "");
    assert!(!not_ready.client().model_ready(model()).await.unwrap());

    let response = infer(
        &[JSON],
        r#"{"model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[0.10000000149011612,NaN]}]}"#,
    );
    let response = response.await.unwrap();
    let y: Vec<f32> = response
        .output("y")
        .unwrap()
        .as_fixed()
        .unwrap()
        .to_vec()
        .unwrap();
    assert_eq!(y[0].to_bits(), 0.1f32.to_bits());
    assert!(y[1].is_nan());
    assert_eq!(
        (response.id, response.model_version.as_deref()),
        (None, Some("1"))
    );

    let json = br#"{"model_name":"m","model_version":"1","outputs":[{"name":"e","datatype":"FP32","shape":[0],"parameters":{"binary_data_size":0}},{"name":"y","datatype":"INT16","shape":[2],"parameters":{"binary_data_size":4}}]}"#;
    let body = [&json[..], &[1, 0, 255, 255]].concat();
    let length = json.len().to_string();
    let headers = [
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", &*length),
    ];
    let response = infer(&headers, body).await.unwrap();
    let y: Vec<i16> = response
        .output("y")
        .unwrap()
        .as_fixed()
        .unwrap()
        .to_vec()
        .unwrap();
    assert_eq!(y, [1, -1]);
    assert_eq!(response.output("e").unwrap().shape().dims(), [0]);

    let metadata = r#"{"name":"m","versions":["1"],"platform":"onnxruntime_onnx","inputs":[{"name":"x","datatype":"FP32","shape":[-1,3,224,224]}],"outputs":[]}"#;
    let metadata = ScriptedServer::answering("200 OK", &[JSON], metadata)
        .client()
        .model_metadata(model())
        .await
        .unwrap();
    assert_eq!(metadata.inputs[0].to_string(), "'x' (FP32[-1, 3, 224, 224])");

    let error = ScriptedServer::answering(
        "400 Bad Request",
        &[JSON],
        r#"{"error":"[request id: 7] unexpected inference input 'qq' for model 'm'"}"#,
    );
    let error = error.client().infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::InvalidArgument));
    assert!(
        error
            .to_string()
            .ends_with("unexpected inference input 'qq' for model 'm' (HTTP 400)"),
        "{error}"
    );
}

/// MLServer sends nested data, parameters with content types, an id of its own, and empty lists.
#[tokio::test]
async fn mlserver() {
    let response = infer(
        &[JSON],
        r#"{"model_name":"m","model_version":null,"id":"6f0a","parameters":{"content_type":"np"},"outputs":[{"name":"y","shape":[2,2],"datatype":"INT64","parameters":{"content_type":"np"},"data":[[1,2],[3,4]]},{"name":"s","shape":[1],"datatype":"BYTES","parameters":null,"data":["gr\u00f6\u00dfe"]}]}"#,
    );
    let response = response.await.unwrap();
    let y: Vec<i64> = response
        .output("y")
        .unwrap()
        .as_fixed()
        .unwrap()
        .to_vec()
        .unwrap();
    assert_eq!(y, [1, 2, 3, 4]);
    let s: Vec<_> = response
        .output("s")
        .unwrap()
        .as_bytes()
        .unwrap()
        .elements()
        .collect();
    assert_eq!(s, ["größe"]);

    let metadata = r#"{"name":"m","versions":[],"platform":"","inputs":[],"outputs":[],"parameters":{}}"#;
    let metadata = ScriptedServer::answering("200 OK", &[JSON], metadata)
        .client()
        .model_metadata(model())
        .await
        .unwrap();
    assert!(metadata.inputs.is_empty() && metadata.versions.is_empty());

    let body = r#"{"error":"builtins.ValueError: cannot reshape array of size 3 into shape (4,)"}"#;
    let error = ScriptedServer::answering("500 Internal Server Error", &[JSON], body);
    let error = error.client().infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Internal));
}

/// KServe sends null for absent values, and errors in `FastAPI`'s format.
#[tokio::test]
async fn kserve() {
    let response = infer(
        &[JSON],
        r#"{"model_name":"m","model_version":null,"id":"8c","parameters":null,"outputs":[{"name":"y","shape":[2],"datatype":"FP32","parameters":null,"data":[1,2.5]}]}"#,
    );
    let response = response.await.unwrap();
    assert_eq!(response.output("y").unwrap().datatype(), DataType::FP32);
    assert_eq!(response.model_version, None);

    let server = ScriptedServer::answering(
        "200 OK",
        &[JSON],
        r#"{"name":"kserve","version":"0.21.0","extensions":null}"#,
    );
    assert_eq!(server.client().server_metadata().await.unwrap().version, "0.21.0");
    let metadata = r#"{"name":"m","versions":null,"platform":"","inputs":null,"outputs":[{"name":"y","datatype":"FP32","shape":[-1]}]}"#;
    let metadata = ScriptedServer::answering("200 OK", &[JSON], metadata)
        .client()
        .model_metadata(model())
        .await
        .unwrap();
    assert_eq!((metadata.versions.len(), metadata.outputs.len()), (0, 1));
    let not_ready = ScriptedServer::answering("200 OK", &[JSON], r#"{"ready":false}"#);
    assert!(!not_ready.client().server_ready().await.unwrap());

    let body = r#"{"detail":[{"type":"missing","loc":["body","inputs"],"msg":"Field required","input":{}}]}"#;
    let error = ScriptedServer::answering("422 Unprocessable Entity", &[JSON], body);
    let error = error.client().infer(&to_model("m")).await.unwrap_err();
    assert_eq!(error.message(), "body.inputs: Field required");
}

/// Rejects the responses of servers that do not implement the protocol.
#[tokio::test]
async fn no_inference_server_at_all() {
    let page = "<!doctype html>\n<html><head><TITLE>Sign in</TITLE></head></html>";
    for (status, headers, body, kind, message) in [
        (
            "200 OK",
            &[("Content-Type", "text/html; charset=utf-8")][..],
            page,
            ErrorKind::Protocol,
            "found a web page (Sign in); is this the address of an inference server?",
        ),
        (
            "200 OK",
            &[JSON],
            "",
            ErrorKind::Protocol,
            "expected JSON, found an empty body (HTTP 200)",
        ),
        (
            "200 OK",
            &[JSON],
            "{}",
            ErrorKind::Protocol,
            "member \"model_name\" is missing",
        ),
        (
            "200 OK",
            &[JSON],
            "[1]",
            ErrorKind::Protocol,
            "the response violates the protocol: ",
        ),
        (
            "200 OK",
            &[JSON],
            r#"{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[3],"data":[1]}]}"#,
            ErrorKind::Protocol,
            "output 'y': expected 3 elements",
        ),
        (
            "204 No Content",
            &[],
            "",
            ErrorKind::Protocol,
            "found an empty body (HTTP 204)",
        ),
        (
            "302 Found",
            &[("Location", "https://login.example/")],
            "",
            ErrorKind::Refused,
            "the server is at https://login.example/; redirects are not followed",
        ),
        (
            "404 Not Found",
            &[("Content-Type", "text/html")],
            page,
            ErrorKind::Refused,
            "Not Found, from a web page (Sign in)",
        ),
        (
            "404 Not Found",
            &[JSON],
            r#"{"detail":"Not Found"}"#,
            ErrorKind::Refused,
            "Not Found",
        ),
    ] {
        let server = ScriptedServer::answering(status, headers, body);
        let error = server.client().infer(&to_model("m")).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(message), "{error}");
        assert!(error.to_string().starts_with(&server.url), "{error}");
    }
}

#[tokio::test]
async fn requests_have_the_form_that_servers_expect() {
    let server = ScriptedServer::answering("200 OK", &[JSON], r#"{"model_name":"m","outputs":[]}"#);
    let raw = HttpClient::builder(format!("{}/serving/v2/", server.url))
        .header("X-Tenant", "a")
        .build()
        .unwrap();
    raw.infer(&to_model("größe a")).await.unwrap();
    let typed = HttpClient::builder(&server.url)
        .tensor_form(oip_client::TensorForm::Typed)
        .send_timeout(false)
        .build()
        .unwrap();
    typed.infer(&to_model("m").with_output("y")).await.unwrap();

    let requests = server.requests();
    let [binary, json] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert!(
        binary.starts_with("POST /serving/v2/models/gr%C3%B6%C3%9Fe%20a/infer HTTP/1.1\r\n"),
        "{binary}"
    );
    let (head, body) = binary.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    for header in [
        "content-type: application/octet-stream",
        "x-tenant: a",
        "user-agent: oip-client/",
        "inference-header-content-length: ",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert!(
        !head.contains("accept-encoding") && !head.contains("transfer-encoding") && !head.contains("expect"),
        "{head}"
    );
    assert!(
        body.starts_with(r#"{"parameters":{"binary_data_output":true,"timeout":60000000},"inputs":[{"#),
        "{body}"
    );
    let (head, body) = json.split_once("\r\n\r\n").unwrap();
    assert!(
        head.to_ascii_lowercase()
            .contains("content-type: application/json\r\n"),
        "{head}"
    );
    assert!(!body.contains("timeout"), "{body}");
    assert!(
        body.ends_with(r#""outputs":[{"name":"y","parameters":{"binary_data":false}}]}"#),
        "{body}"
    );
}
