//! Tests which requests from web pages are rejected, and that other clients are not affected.

use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use oip_http::{AllowedHosts, HttpConfig, HttpService};

use crate::support::{TestResponse, app, app_with, call, x};

async fn ask(
    app: &HttpService,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> TestResponse {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    call(app, request.body(Body::from(body.to_owned())).unwrap()).await
}

const CHANGES: [(&str, &str); 6] = [
    ("/v2/logging", r#"{"log_verbose_level":1}"#),
    ("/v2/repository/models/matrix/unload", ""),
    ("/v2/repository/models/matrix/load/", ""),
    (
        "/v2/systemsharedmemory/region/r/register",
        r#"{"key":"/k","byte_size":1}"#,
    ),
    ("/v2/systemsharedmemory/region/r/unregister", ""),
    ("/v2/systemsharedmemory/unregister", ""),
];

#[tokio::test]
async fn pages_of_other_hosts_change_nothing() {
    let app = app();
    for (path, body) in CHANGES {
        for origin in ["http://evil.example", "http://127.0.0.1:3000", "null"] {
            let headers = [("host", "127.0.0.1:8080"), ("origin", origin)];
            let answer = ask(&app, Method::POST, path, &headers, body).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path} {origin}");
            let expected = format!("Origin '{origin}': web pages of other hosts may not change the server");
            assert!(answer.error().starts_with(&expected), "{}", answer.error());
        }
    }
    let settings = ask(&app, Method::GET, "/v2/logging", &[("host", "x")], "").await;
    assert_eq!(settings.json()["log_verbose_level"], 0);
}

#[tokio::test]
async fn programs_and_the_servers_own_pages_are_not_concerned() {
    let app = app();
    let change = CHANGES[0];
    for headers in [
        &[("host", "127.0.0.1:8080")][..],
        &[("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080")],
    ] {
        let answer = ask(&app, Method::POST, change.0, headers, change.1).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    // Inference and reading change nothing; without CORS the browser hides the responses from the page.
    let foreign = [("host", "127.0.0.1:8080"), ("origin", "http://evil.example")];
    let infer = "/v2/models/identity_fp32/infer";
    for (method, path, body) in [
        (Method::POST, infer, &*x("FP32", "[1]", "[1]")),
        (Method::POST, "/v2/repository/index", ""),
        (Method::GET, "/v2/logging", ""),
    ] {
        let answer = ask(&app, method, path, &foreign, body).await;
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (StatusCode::OK, None)
        );
    }
}

#[tokio::test]
async fn names_that_a_page_resolved_to_this_server_are_refused() {
    let config = HttpConfig::default()
        .with(|config| config.allowed_hosts = AllowedHosts::only(["models.example.com"]));
    let (app, _) = app_with(config);
    for (host, status) in [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("models.example.com", 200),
        ("rebound.evil.example:8080", 403),
    ] {
        for path in ["/v2", "/v2/models/matrix"] {
            let answer = ask(&app, Method::GET, path, &[("host", host)], "").await;
            assert_eq!(answer.status.as_u16(), status, "{host} {path}");
        }
    }
    let headers = [
        ("host", "rebound.evil.example"),
        ("origin", "http://rebound.evil.example"),
    ];
    let answer = ask(&app, Method::POST, CHANGES[0].0, &headers, CHANGES[0].1).await;
    assert_eq!(
        answer.error(),
        "Host 'rebound.evil.example': expected an IP address, localhost, or one of the server's allowed hosts"
    );
}

/// Over HTTP/2 a request may lack the `Host` header; its target contains the host.
#[tokio::test]
async fn the_host_of_a_target_counts_where_there_is_no_header() {
    let config = HttpConfig::default().with(|config| {
        config.allowed_hosts = AllowedHosts::only(["models.example.com"]);
    });
    let (app, _) = app_with(config);
    for (target, status) in [
        ("https://models.example.com/v2", StatusCode::OK),
        ("https://127.0.0.1:8443/v2", StatusCode::OK),
        ("https://evil.example/v2", StatusCode::FORBIDDEN),
    ] {
        let request = Request::get(target).version(axum::http::Version::HTTP_2);
        let answer = call(&app, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{target}");
    }
}
