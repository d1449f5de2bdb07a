//! Tests endpoints of the protocol's extensions.

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use oip_http::{HttpConfig, HttpService, service};
use oip_service::testing::TestService;
use serde_json::{Value, json};

use crate::support::{TestResponse, app, app_with, get, infer, send};

async fn post(app: &HttpService, path: &str, body: &str) -> TestResponse {
    send(app, Method::POST, path, Body::from(body.to_owned())).await
}

async fn get_json(app: &HttpService, path: &str) -> Value {
    let answer = get(app, path).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    answer.json()
}

#[tokio::test]
async fn the_repository_is_listed() {
    let app = app();
    let all = json!([
        {"name": "loading", "state": "LOADING"},
        {"name": "matrix", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "matrix", "version": "2", "state": "READY"},
        {"name": "never"},
    ]);
    for body in ["", "{}", r#"{"ready":false,"unknown":[1]}"#] {
        assert_eq!(
            post(&app, "/v2/repository/index", body).await.json(),
            all,
            "{body}"
        );
    }
    let ready = post(&app, "/v2/repository/index/", r#"{"ready":true}"#).await;
    assert_eq!(
        ready.json(),
        json!([{"name": "matrix", "version": "2", "state": "READY"}])
    );
    assert_eq!(
        get_json(&app, "/v2/models").await,
        json!({"models": ["loading", "matrix", "never"]})
    );

    let wrong = post(&app, "/v2/repository/index", r#"{"ready":"yes"}"#).await;
    assert_eq!(
        (wrong.status, wrong.error()),
        (
            StatusCode::BAD_REQUEST,
            "ready: invalid JSON at byte 9: expected true or false, found '\"'".to_owned()
        )
    );
    let named = post(&app, "/v2/repository/other/index", "").await;
    assert_eq!(named.status, StatusCode::NOT_IMPLEMENTED);
    assert_eq!(named.error(), "'repository_name' specification is not supported");
}

#[tokio::test]
async fn models_are_loaded_and_unloaded() {
    let app = app();
    for (path, body) in [
        ("/v2/repository/models/nan/load", ""),
        ("/v2/repository/models/nan/load/", "{}"),
        (
            "/v2/repository/models/nan/load",
            r#"{"parameters":{"config":"{\"max_batch_size\":8}"}}"#,
        ),
        (
            "/v2/repository/models/slow/unload",
            r#"{"parameters":{"unload_dependents":true}}"#,
        ),
    ] {
        let answer = post(&app, path, body).await;
        assert_eq!(
            (answer.status, answer.text()),
            (StatusCode::OK, String::new()),
            "{path}"
        );
    }
    // An empty segment is not the default repository.
    for path in ["/v2/repository//models/nan/unload", "/v2/repository//index"] {
        assert_eq!(post(&app, path, "").await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let index = post(&app, "/v2/repository/index", "").await.json();
    assert!(
        index
            .as_array()
            .unwrap()
            .contains(&json!({"name": "nan", "state": "READY", "reason": "{\"max_batch_size\":8}"}))
    );
    assert!(
        index
            .as_array()
            .unwrap()
            .contains(&json!({"name": "slow", "state": "UNAVAILABLE", "reason": "unloaded with dependents"}))
    );

    for (path, body, status, error) in [
        ("zz/load", "", 404, "model 'zz' does not exist"),
        ("zz/unload", "", 404, "model 'zz' does not exist"),
        (
            "locked/load",
            "",
            503,
            "loading and unloading by request is not allowed",
        ),
        (
            "nan/load",
            r#"{"parameters":{"file:1/m":"AA=="}}"#,
            400,
            "model 'nan': parameter 'file:1/m': models cannot be uploaded in requests; put the file into \
             the repository",
        ),
        (
            "nan/load",
            r#"{"parameters":{"config":1}}"#,
            400,
            "model 'nan': parameter 'config': expected a string, found 1",
        ),
        (
            "nan/unload",
            r#"{"parameters":{"x":true}}"#,
            400,
            "model 'nan': unexpected parameter 'x'; expected unload_dependents or none",
        ),
        (
            "..%2f..%2fetc/load",
            "",
            400,
            "model name '../../etc' must not contain a path separator",
        ),
        (
            "%2e%2e/load",
            "",
            400,
            "model name '..' must not be a path or a hidden file's name",
        ),
    ] {
        let answer = post(&app, &format!("/v2/repository/models/{path}"), body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error()),
            (status, error.to_owned()),
            "{path} {body}"
        );
    }
    let named = post(&app, "/v2/repository/other/models/nan/load", "").await;
    assert_eq!(named.status, StatusCode::NOT_IMPLEMENTED);
}

#[tokio::test]
async fn configurations_are_shown() {
    let app = app();
    for path in ["/v2/models/matrix/config", "/v2/models/matrix/versions/1/config/"] {
        let config = get_json(&app, path).await;
        assert_eq!(
            (&config["name"], &config["max_batch_size"]),
            (&json!("matrix"), &json!(4))
        );
        assert_eq!(config["input"][0]["data_type"], "TYPE_FP32");
        assert_eq!(config["input"][0]["dims"], json!([2]));
        assert!(config["dynamic_batching"].is_object());
        assert_eq!(config["version_policy"]["latest"]["num_versions"], 1);
    }
    assert_eq!(
        get(&app, "/v2/models/zz/config").await.status,
        StatusCode::NOT_FOUND
    );
}

/// Every key that `perf_analyzer` requires is present, each with a distinct value.
#[tokio::test]
async fn statistics_have_all_keys() {
    let app = app();
    let all = get_json(&app, "/v2/models/stats").await;
    assert_eq!(all["model_stats"].as_array().map(Vec::len), Some(2));
    let one = get_json(&app, "/v2/models/matrix/versions/1/stats").await;
    let duration = |number: u64| json!({"count": number, "ns": 1_000_000_000 * number});
    let expected = json!({"model_stats": [{
        "name": "matrix", "version": "1", "last_inference": 1_700_000_000_000u64,
        "inference_count": 101, "execution_count": 102,
        "inference_stats": {
            "success": duration(1), "fail": duration(2), "queue": duration(3), "compute_input": duration(4),
            "compute_infer": duration(5), "compute_output": duration(6), "cache_hit": duration(7), "cache_miss": duration(8),
        },
        "response_stats": {},
        "batch_stats": [{"batch_size": 9, "compute_input": duration(10), "compute_infer": duration(11), "compute_output": duration(12)}],
        "memory_usage": [{"type": "CPU", "id": 13, "byte_size": 14}],
    }]});
    assert_eq!(one, expected);
    assert_eq!(
        get(&app, "/v2/models/zz/stats").await.status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn log_settings_are_read_and_changed() {
    let app = app();
    let before = get_json(&app, "/v2/logging").await;
    assert_eq!(
        before,
        json!({"log_error": true, "log_warning": true, "log_info": true, "log_verbose_level": 0, "log_format": "default"})
    );
    let changed = post(
        &app,
        "/v2/logging/",
        r#"{"log_info":false,"log_verbose_level":2}"#,
    )
    .await;
    assert_eq!(
        changed.json(),
        json!({"log_error": true, "log_warning": true, "log_info": false, "log_verbose_level": 2, "log_format": "default"})
    );
    for (body, error) in [
        (r#"{"log_info":1}"#, "log setting 'log_info': unexpected value 1"),
        (
            r#"{"log_verbose_level":-1}"#,
            "log setting 'log_verbose_level': expected a level of 32 bits, found -1",
        ),
    ] {
        let answer = post(&app, "/v2/logging", body).await;
        assert_eq!(
            (answer.status, answer.error()),
            (StatusCode::BAD_REQUEST, error.to_owned())
        );
    }
}

#[tokio::test]
async fn tensors_can_be_in_shared_memory() {
    let (app, service) = app_with(HttpConfig::default());
    service.share("/in", [1.0f32, 2.0].map(f32::to_le_bytes).concat());
    service.share("/out", vec![0; 16]);
    for (name, size) in [("in", 8), ("out", 16)] {
        let body = format!(r#"{{"key":"/{name}","offset":0,"byte_size":{size}}}"#);
        let answer = post(
            &app,
            &format!("/v2/systemsharedmemory/region/{name}/register"),
            &body,
        )
        .await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, String::new()));
    }
    let regions = get_json(&app, "/v2/systemsharedmemory/status").await;
    assert_eq!(
        regions[0],
        json!({"name": "in", "key": "/in", "offset": 0, "byte_size": 8})
    );
    assert_eq!(regions.as_array().map(Vec::len), Some(2));
    let one = get_json(&app, "/v2/systemsharedmemory/region/out/status").await;
    assert_eq!(one[0]["byte_size"], 16);

    let request = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{"shared_memory_region":"in","shared_memory_byte_size":8}}],
        "outputs":[{"name":"y","parameters":{"shared_memory_region":"out","shared_memory_offset":4,"shared_memory_byte_size":8}}]}"#;
    let answer = infer(&app, "identity_fp32", request).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(
        answer.json()["outputs"],
        json!([{
            "name": "y", "datatype": "FP32", "shape": [2],
            "parameters": {"shared_memory_region": "out", "shared_memory_byte_size": 8, "shared_memory_offset": 4},
        }])
    );
    assert_eq!(
        service.shared("/out").unwrap()[4..12],
        [1.0f32, 2.0].map(f32::to_le_bytes).concat()
    );

    let missing = get(&app, "/v2/systemsharedmemory/region/none/status").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert_eq!(
        post(&app, "/v2/systemsharedmemory/region/in/unregister", "")
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        infer(&app, "identity_fp32", request).await.status,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        post(&app, "/v2/systemsharedmemory/unregister", "").await.status,
        StatusCode::OK
    );
    assert_eq!(get_json(&app, "/v2/systemsharedmemory/status").await, json!([]));
    for body in ["", "{}", r#"{"key":"/in"}"#, r#"{"key":"/in","byte_size":9}"#] {
        let answer = post(&app, "/v2/systemsharedmemory/region/in/register", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
    }
}

#[tokio::test]
async fn outputs_can_be_classified() {
    let request = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[3],"data":[0.5,3.3,1]}],
        "outputs":[{"name":"y","parameters":{"classification":2}}]}"#;
    let answer = infer(&app(), "identity_fp32", request).await;
    assert_eq!(
        answer.json()["outputs"],
        json!([{
            "name": "y", "datatype": "BYTES", "shape": [2], "data": ["3.300000:1:dog", "1.000000:2"],
        }])
    );
    let wrong = infer(&app(), "identity_fp32", &request.replace(":2}", ":0}")).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn what_is_not_offered_is_said() {
    let plain = service(std::sync::Arc::new(TestService::plain()), HttpConfig::default());
    let full = app();
    for (app, method, path, extension) in [
        (&plain, Method::GET, "/v2/models", "model_repository"),
        (&plain, Method::POST, "/v2/repository/index", "model_repository"),
        (
            &plain,
            Method::POST,
            "/v2/repository/models/nan/load",
            "model_repository",
        ),
        (
            &plain,
            Method::POST,
            "/v2/repository/models/nan/unload",
            "model_repository",
        ),
        (
            &plain,
            Method::GET,
            "/v2/models/nan/config",
            "model_configuration",
        ),
        (&plain, Method::GET, "/v2/models/nan/stats", "statistics"),
        (&plain, Method::GET, "/v2/models/stats", "statistics"),
        (&plain, Method::GET, "/v2/logging", "logging"),
        (&plain, Method::POST, "/v2/logging", "logging"),
        (
            &plain,
            Method::GET,
            "/v2/systemsharedmemory/status",
            "system_shared_memory",
        ),
        (
            &plain,
            Method::POST,
            "/v2/systemsharedmemory/region/r/register",
            "system_shared_memory",
        ),
        (
            &plain,
            Method::POST,
            "/v2/systemsharedmemory/unregister",
            "system_shared_memory",
        ),
        (
            &full,
            Method::GET,
            "/v2/cudasharedmemory/status",
            "cuda_shared_memory",
        ),
        (
            &full,
            Method::POST,
            "/v2/cudasharedmemory/region/r/register",
            "cuda_shared_memory",
        ),
        (&full, Method::GET, "/v2/trace/setting", "trace"),
        (&full, Method::POST, "/v2/models/nan/trace/setting", "trace"),
    ] {
        let answer = send(app, method, path, Body::empty()).await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED, "{path}");
        assert_eq!(
            answer.error(),
            format!("the extension '{extension}' is not offered by this server")
        );
    }
}

/// An empty region name is an error, and does not select all regions.
#[tokio::test]
async fn regions_have_names() {
    let (app, service) = app_with(HttpConfig::default());
    service.share("/in", vec![0; 8]);
    let body = r#"{"key":"/in","byte_size":8}"#;
    let registered = post(&app, "/v2/systemsharedmemory/region/r/register", body).await;
    assert_eq!(registered.status, StatusCode::OK);
    for (method, action) in [
        (Method::POST, "register"),
        (Method::POST, "unregister"),
        (Method::GET, "status"),
    ] {
        let path = format!("/v2/systemsharedmemory/region//{action}");
        let answer = send(&app, method, &path, Body::from(body)).await;
        assert_eq!(
            (answer.status, answer.error()),
            (
                StatusCode::BAD_REQUEST,
                "shared memory region '' must have a name".to_owned()
            ),
            "{path}"
        );
    }
    let regions = get_json(&app, "/v2/systemsharedmemory/status").await;
    assert_eq!(regions.as_array().map(Vec::len), Some(1));
}
