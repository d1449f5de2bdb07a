//! A web page at the root of an Open Inference Protocol server. It shows the models and their metrics, a form
//! to call each model, code for the same call in several languages, and the last lines of the log.
//!
//! The page is static. It loads nothing from other servers and calls the server's own endpoints: the
//! protocol, its extensions (repository, configuration, logging) and, if offered, Prometheus metrics at
//! `/metrics`. If the server does not offer an endpoint, the page says so.
//!
//! ```
//! use oip_console::{LogTail, router};
//!
//! let log = LogTail::new(500);
//! log.push("2026-11-22T10:00:00Z INFO listening\n");
//! // Merge it into the protocol's router, for example with `oip_http::router_with(service, config, router(Some(log)))`.
//! let routes: axum::Router = router(Some(log));
//! ```
//!
//! | path | response |
//! |---|---|
//! | `/` | the page for browsers (`Accept` includes `text/html`), otherwise a few lines of text |
//! | `/console/...` | its scripts and style |
//! | `/console/log?after=N` | `{"next": M, "lines": [...]}`: the kept lines after number N; 403 without a [`LogTail`] |
//!
//! The page's `Content-Security-Policy` allows only the server's own scripts and styles, and prevents other
//! pages from embedding it. The protocol's router must refuse requests from pages of other hosts, as
//! `oip-http` does.

mod log_tail;

use axum::{
    Json, Router,
    extract::{RawQuery, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;

pub use log_tail::{LogLines, LogTail};

/// A file of the page: its path, media type and content.
type File = (&'static str, &'static str, &'static str);

const FILES: [File; 10] = [
    (
        "/console/console.css",
        "text/css; charset=utf-8",
        include_str!("../page/console.css"),
    ),
    (
        "/console/icon.svg",
        "image/svg+xml",
        include_str!("../page/icon.svg"),
    ),
    script("/console/console.js", include_str!("../page/console.js")),
    script("/console/dom.js", include_str!("../page/dom.js")),
    script("/console/draw.js", include_str!("../page/draw.js")),
    script("/console/model.js", include_str!("../page/model.js")),
    script("/console/server.js", include_str!("../page/server.js")),
    script("/console/snippets.js", include_str!("../page/snippets.js")),
    script("/console/tensors.js", include_str!("../page/tensors.js")),
    script("/console/texts.js", include_str!("../page/texts.js")),
];

const PAGE: &str = include_str!("../page/index.html");

const fn script(path: &'static str, content: &'static str) -> File {
    (path, "text/javascript; charset=utf-8", content)
}

/// The response at `/` for programs. The response is public, so it does not include the version.
const FOR_PROGRAMS: &str = concat!(
    "Tensorferry, a server of the Open Inference Protocol (KServe V2)\n\n",
    "models       GET  /v2/models\n",
    "one model    GET  /v2/models/MODEL\n",
    "inference    POST /v2/models/MODEL/infer\n",
    "health       GET  /v2/health/ready\n",
    "description  GET  /openapi.json, or /docs in a browser\n",
);

/// Creates the routes of the page. Without a log, requests for log lines get 403.
pub fn router(log: Option<LogTail>) -> Router {
    let mut router = Router::new()
        .route("/", get(root))
        .route("/console/log", get(log_lines))
        .with_state(log);
    for (path, content_type, content) in FILES {
        router = router.route(path, get(async move || file(content_type, content)));
    }
    router
}

/// The page loads files only from this server, and connects to no other.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; base-uri \
     'none'; form-action 'none'; frame-ancestors 'none'",
);

fn file(content_type: &'static str, content: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 5] = [
        (CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CONTENT_SECURITY_POLICY, POLICY),
        // The next version of the server may have different files under the same names.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (VARY, HeaderValue::from_static("accept")),
    ];
    (headers, content).into_response()
}

async fn root(headers: HeaderMap) -> Response {
    let wants_page = headers
        .get_all(ACCEPT)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.contains("text/html")));
    if wants_page {
        file("text/html; charset=utf-8", PAGE)
    } else {
        file("text/plain; charset=utf-8", FOR_PROGRAMS)
    }
}

#[derive(Serialize)]
struct ErrorBody {
    error: &'static str,
}

async fn log_lines(State(log): State<Option<LogTail>>, RawQuery(query): RawQuery) -> Response {
    let Some(log) = log else {
        let error = "the log is not shown here; the server's operator can allow it (--allow-console-log)";
        return (StatusCode::FORBIDDEN, Json(ErrorBody { error })).into_response();
    };
    let after = query
        .as_deref()
        .and_then(|query| query.strip_prefix("after=")?.parse().ok());
    ([(CACHE_CONTROL, "no-store")], Json(log.after(after.unwrap_or(0)))).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{
        body::Body,
        http::{Request, header::HeaderValue},
    };
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn get(log: Option<LogTail>, path: &str, accept: &'static str) -> (StatusCode, HeaderMap, String) {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static(accept));
        let (head, body) = router(log).oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (
            head.status,
            head.headers,
            String::from_utf8(body.to_vec()).unwrap(),
        )
    }

    #[tokio::test]
    async fn browsers_get_the_page_and_programs_get_text() {
        let (status, headers, body) = get(None, "/", "text/html,application/xhtml+xml,*/*;q=0.8").await;
        assert_eq!(
            (status, &headers[CONTENT_TYPE]),
            (
                StatusCode::OK,
                &HeaderValue::from_static("text/html; charset=utf-8")
            )
        );
        assert!(
            headers[CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap()
                .contains("default-src 'none'")
        );
        assert!(body.starts_with("<!doctype html>"));
        let (_, headers, body) = get(None, "/", "*/*").await;
        assert_eq!(headers[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert!(body.contains("/v2/models"));
    }

    /// The page must not use anything that the policy forbids, and every file that it references must exist.
    #[tokio::test]
    async fn the_page_loads_what_is_there_and_nothing_else() {
        let sources = FILES
            .iter()
            .map(|(path, _, content)| (*path, *content))
            .chain([("/", PAGE)]);
        for (path, content) in sources {
            for place in content.match_indices("://").map(|(place, _)| place) {
                let start = content[..place]
                    .rfind(['"', '\'', '`', ' '])
                    .map_or(0, |start| start + 1);
                let url = &content[start..];
                assert!(
                    url.starts_with("http://www.w3.org/"),
                    "{path} names {}",
                    &url[..40.min(url.len())]
                );
            }
            assert!(
                !content.contains("style=\"") && !content.contains("innerHTML"),
                "{path}"
            );
            let imports = content
                .split("from \"./")
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap());
            for import in imports.map(|name| format!("/console/{name}")) {
                assert_eq!(
                    get(None, &import, "*/*").await.0,
                    StatusCode::OK,
                    "{path} imports {import}"
                );
            }
        }
        for reference in PAGE.split("=\"/console/").skip(1) {
            let path = format!("/console/{}", reference.split('"').next().unwrap());
            assert_eq!(get(None, &path, "*/*").await.0, StatusCode::OK, "{path}");
        }
    }

    #[tokio::test]
    async fn the_log_is_given_line_by_line_or_refused() {
        let log = LogTail::new(3);
        for number in 1..=4 {
            log.push(&format!("line {number}\n"));
        }
        let lines = async |path: &'static str| -> serde_json::Value {
            let (status, _, body) = get(Some(log.clone()), path, "*/*").await;
            assert_eq!(status, StatusCode::OK);
            serde_json::from_str(&body).unwrap()
        };
        let all = lines("/console/log?after=0").await;
        assert_eq!(
            all,
            serde_json::json!({"next": 4, "lines": ["line 2", "line 3", "line 4"]})
        );
        let new = lines("/console/log?after=3").await;
        assert_eq!(new, serde_json::json!({"next": 4, "lines": ["line 4"]}));
        let (status, _, body) = get(None, "/console/log", "*/*").await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(body.contains("--allow-console-log"), "{body}");
    }
}
