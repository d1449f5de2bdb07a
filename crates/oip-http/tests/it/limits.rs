//! Tests limits on control request bodies, and on decoding large bodies.

use std::time::{Duration, Instant};

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use oip_http::HttpConfig;

use crate::support::{app, app_with, infer_with, send};

/// Paths with a JSON body, each with the name of a member that it accepts.
const CONTROL: [(&str, &str); 5] = [
    ("/v2/repository/index", "ready"),
    ("/v2/repository/models/nan/load", "parameters"),
    ("/v2/repository/models/nan/unload", "parameters"),
    ("/v2/logging", "log_info"),
    ("/v2/systemsharedmemory/region/r/register", "key"),
];

/// Nesting is limited in every body, in known and in ignored members.
#[tokio::test]
async fn deep_bodies_are_refused_at_once() {
    let app = app();
    for (path, member) in CONTROL {
        for member in [member, "unknown"] {
            for depth in [65, 129, 250_000] {
                let body = format!("{{\"{member}\":{}", "[".repeat(depth));
                let start = Instant::now();
                let answer = send(&app, Method::POST, path, Body::from(body)).await;
                assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {member} {depth}");
                answer.error();
                // The limit is ten times the documented time, because tests run in parallel.
                assert!(
                    start.elapsed() < Duration::from_secs(1),
                    "{path} {member} {depth}"
                );
            }
        }
    }
}

/// Bodies without tensors are limited to 1 MiB; the largest of them contains a model configuration.
#[tokio::test]
async fn bodies_without_tensors_have_a_megabyte() {
    let app = app();
    for (path, _) in CONTROL {
        let large = vec![b' '; (1 << 20) + 1];
        let answer = send(&app, Method::POST, path, Body::from(large)).await;
        assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
        // The test's bodies have no declared length, so the error does not contain their size.
        assert_eq!(
            answer.error(),
            "expected a body of at most 1048576 bytes, found more",
            "{path}"
        );
    }
    let all_blank = vec![b' '; 1 << 20];
    let answer = send(&app, Method::POST, CONTROL[0].0, Body::from(all_blank)).await;
    assert_eq!(answer.status, StatusCode::OK);
    // If the limit for bodies with tensors is below 1 MiB, it also applies to bodies without tensors.
    let (small, _) = app_with(HttpConfig::default().with(|config| config.max_body_bytes = 10));
    let answer = send(&small, Method::POST, CONTROL[0].0, Body::from("           ")).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}

/// BYTES of any size give the same result, although large ones are decoded on the pool.
#[tokio::test]
async fn large_bytes_take_the_same_way() {
    let app = app();
    let raw = [("inference-header-content-length", "0")];
    for len in [1 << 20, (1 << 20) + 1] {
        let text = vec![b'a'; len];
        let answer = infer_with(&app, "identity_bytes", &raw, Body::from(text.clone())).await;
        assert_eq!(answer.status, StatusCode::OK);
        let [_, tensor] = &answer.frames[..] else {
            panic!("{} frames", answer.frames.len())
        };
        assert_eq!(tensor[..4], (len as u32).to_le_bytes());
        assert_eq!(tensor[4..], text);
    }

    let json = format!(
        r#"{{"inputs":[{{"name":"x","datatype":"BYTES","shape":[300000],"parameters":{{"binary_data_size":{}}}}}]}}"#,
        5 * 300_000
    );
    let length = json.len().to_string();
    let headers = [("inference-header-content-length", length.as_str())];
    let elements = b"\x01\0\0\0b".repeat(300_000);
    let good = [json.as_bytes(), &elements].concat();
    let answer = infer_with(&app, "identity_bytes", &headers, good.into()).await;
    assert_eq!(answer.status, StatusCode::OK);
    let cut = [json.as_bytes(), &elements[..elements.len() - 5], b"\x02\0\0\0b"].concat();
    let answer = infer_with(&app, "identity_bytes", &headers, cut.into()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(
        answer.error(),
        "model 'identity_bytes': input 'x': BYTES element 299999 is truncated at byte 1499999: expected 2 \
         bytes of \
         data, found 1"
    );
}
