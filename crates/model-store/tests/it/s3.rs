//! Cloud clients against local servers that imitate S3.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use model_store::{
    CloudStore, Location, Mirror, MirrorOptions, Scope, Store, StoreError,
    testing::{FakeServer, Objects, Response},
};
use object_store::{BackoffConfig, RetryConfig, aws::AmazonS3Builder};
use tensor_remote::{RemoteConnector, RemoteOptions};

use crate::support::{URL, files};

fn store(server: &FakeServer, bucket: &str) -> CloudStore {
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(2),
            base: 2.0,
        },
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
    };
    let client = AmazonS3Builder::new()
        .with_endpoint(server.url())
        .with_bucket_name(bucket)
        .with_region("eu-west-1")
        .with_access_key_id("key")
        .with_secret_access_key("secret")
        .with_http_connector(RemoteConnector::new(RemoteOptions::default()))
        .with_retry(retry)
        .build()
        .unwrap();
    CloudStore::new(Arc::new(client), "", URL).unwrap()
}

fn bucket() -> Objects {
    let objects = Objects::default();
    for name in ["a", "b", "c & d", "e%20ü"] {
        objects.put(&format!("{name}/1/model.onnx"), format!("content of {name}"));
    }
    objects
}

#[test]
fn a_bucket_of_several_pages_is_mirrored() {
    let objects = bucket();
    let large: Vec<u8> = (0..20_000_000_u32).map(|at| (at % 251) as u8).collect();
    objects.put("large/1/model.onnx", large.clone());
    let served = objects.clone();
    let server = FakeServer::start(move |request| served.as_s3("models", 2, request));
    let cache = tempfile::tempdir().unwrap();
    let mirror = Mirror::with_store(
        &Location::parse(URL).unwrap(),
        Box::new(store(&server, "models")),
        MirrorOptions::new(cache.path()),
    );
    let mirror = mirror.unwrap();
    let folder = mirror.start(Scope::All).unwrap();
    assert_eq!(files(&folder).len(), 5);
    assert_eq!(files(&folder)["e%20ü/1/model.onnx"], "content of e%20ü");
    assert!(std::fs::read(folder.join("large/1/model.onnx")).unwrap() == large);
    // There are three list pages, one request per small object, and three ranges of the large one.
    assert_eq!(server.take_requests().len(), 3 + 4 + 3);

    // A poll without changes requests only the list pages.
    mirror.refresh(None);
    assert_eq!(server.take_requests().len(), 3);
    // Loading one model requests one list page.
    mirror.refresh(Some("a"));
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn refusals_are_told_in_words_of_their_own() {
    type Respond = fn() -> Response;
    let answers: [(&str, Respond); 4] = [
        ("absent", || {
            Response::new(
                404,
                "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>",
            )
        }),
        ("forbidden", || {
            Response::new(403, "<Error><Code>AccessDenied</Code></Error>")
        }),
        ("elsewhere", || {
            Response::new(301, "").header("x-amz-bucket-region", "us-west-2")
        }),
        ("ill", || Response::new(503, "SlowDown")),
    ];
    for (bucket, answer) in answers {
        let server = FakeServer::start(move |_| answer());
        let error = store(&server, bucket).list(None, None).unwrap_err();
        let text = error.to_string();
        match bucket {
            "absent" => assert!(
                matches!(error, StoreError::NotFound { .. })
                    && text.starts_with("s3://models: the list of objects does not exist; check the URL")
                    && text.contains("NoSuchBucket"),
                "{text}"
            ),
            "forbidden" => assert!(
                matches!(error, StoreError::Denied { .. })
                    && text.contains("access to the list of objects is refused"),
                "{text}"
            ),
            "elsewhere" => assert!(text.contains("incorrectly configured region"), "{text}"),
            _ => assert!(
                text.contains("503") && server.take_requests().len() == 3,
                "{text}"
            ),
        }
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn answers_that_break_off_are_asked_for_again() {
    let objects = bucket();
    let server = FakeServer::start(move |request| {
        let mut response = objects.as_s3("models", 100, request);
        if request.number == 1 {
            response.cut_at = Some(3);
        }
        response
    });
    let store = store(&server, "models");
    let listing = store.list(None, None).unwrap().unwrap();
    let open = store.open(&listing.objects[0]).unwrap();
    assert_eq!(open.read(0..12).unwrap(), "content of a");
    assert_eq!(server.take_requests().len(), 3);
}

#[test]
fn an_object_that_was_replaced_is_not_read() {
    let objects = bucket();
    let served = objects.clone();
    let server = FakeServer::start(move |request| served.as_s3("models", 100, request));
    let store = store(&server, "models");
    let listing = store.list(None, None).unwrap().unwrap();
    objects.put("a/1/model.onnx", "content of x");
    let error = store.open(&listing.objects[0]).unwrap().read(0..12).unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");
}

/// Some stores omit entity tags in lists, and fractions of seconds in responses.
#[test]
fn lists_without_entity_tags_are_enough() {
    let objects = bucket();
    let large: Vec<u8> = (0..20_000_000_u32).map(|at| (at % 251) as u8).collect();
    objects.put("large/1/model.onnx", large.clone());
    let (served, modified) = (
        objects.clone(),
        Arc::new(Mutex::new("Sun, 01 Nov 2026 00:00:00 GMT")),
    );
    let now = modified.clone();
    let server = FakeServer::start(move |request| {
        let mut response = served.as_s3("models", 100, request);
        if request.path.trim_matches('/') == "models" {
            let mut list = String::from_utf8(response.body).unwrap();
            while let (Some(start), Some(end)) = (list.find("<ETag>"), list.find("</ETag>")) {
                list.replace_range(start..end + "</ETag>".len(), "");
            }
            response.body = list.replace("00:00.000Z", "00:00.572Z").into_bytes();
        } else {
            response
                .headers
                .retain(|(name, _)| !name.eq_ignore_ascii_case("last-modified"));
            response = response.header("Last-Modified", *now.lock().unwrap());
        }
        response
    });
    let store = store(&server, "models");
    let listing = store.list(None, None).unwrap().unwrap();
    let named = |name: &str| {
        listing
            .objects
            .iter()
            .find(|object| object.name.as_str() == name)
            .unwrap()
    };
    let open = store.open(named("large/1/model.onnx")).unwrap();
    assert!(open.read(0..10_000_000).unwrap() == large[..10_000_000]);
    // A new version within the same second is detected by the entity tag of the response.
    objects.put("large/1/model.onnx", vec![0; large.len()]);
    let error = open.read(10_000_000..20_000_000).unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");
    // A version with a later time is detected by the time.
    *modified.lock().unwrap() = "Sun, 01 Nov 2026 00:00:01 GMT";
    let error = store
        .open(named("a/1/model.onnx"))
        .unwrap()
        .read(0..12)
        .unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");
}

#[test]
fn a_list_with_names_that_lead_elsewhere_is_refused() {
    let objects = bucket();
    objects.put("a/../../evil", "x");
    let server = FakeServer::start(move |request| objects.as_s3("models", 100, request));
    let error = store(&server, "models").list(None, None).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, StoreError::Name { .. }) && text.contains("a/../../evil"),
        "{text}"
    );
}

#[test]
fn nobody_listens() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = AmazonS3Builder::new()
        .with_endpoint(format!("http://{address}"))
        .with_bucket_name("models")
        .with_access_key_id("key")
        .with_secret_access_key("secret")
        .with_http_connector(RemoteConnector::new(RemoteOptions::default()))
        .with_retry(RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        })
        .build()
        .unwrap();
    let error = CloudStore::new(Arc::new(client), "", URL)
        .unwrap()
        .list(None, None)
        .unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}
