//! Redirects are followed, without leaking tokens to their targets.

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fmt_core::{ByteSource, ErrorKind};
use tensor_remote::open;

use crate::server::{Server, content, quick, serve};

fn redirect(to: &str, out: &mut dyn Write) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
    out.write_all(head.as_bytes())
}

#[test]
fn a_token_stays_with_its_origin() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    let bytes = content(1_000_000);
    let copy = bytes.clone();
    let store = Server::start(move |request, out| {
        note.lock()
            .unwrap()
            .push(request.header("authorization").map(str::to_owned));
        serve(request, &copy, "\"one\"", out)
    });
    let to = store.url("blob?signature=1");
    let hub = Server::start(move |request, out| {
        assert_eq!(request.header("authorization"), Some("Bearer secret"));
        match request.path.as_str() {
            // This redirect stays within the origin and is relative to the path.
            "/a/m.safetensors" => redirect("b/m", out),
            "/a/b/m" => redirect(&to, out),
            other => panic!("{other}"),
        }
    });
    let source = open(&hub.url("a/m.safetensors"), &quick().with_token("secret")).unwrap();
    assert_eq!(source.read(0..1_000_000).unwrap(), bytes);
    assert_eq!(*seen.lock().unwrap(), [None, None]);
    // Later requests go directly to the redirect target.
    assert_eq!((hub.count(), store.count()), (2, 2));
    assert!(!format!("{:?}", quick().with_token("secret")).contains("secret"));
}

/// When the signed URL of a redirect has expired, the client requests the original URL again.
#[test]
fn an_address_that_ends_is_asked_for_again() {
    let bytes = content(1_000_000);
    let copy = bytes.clone();
    let valid = Arc::new(AtomicU64::new(0));
    let current = Arc::clone(&valid);
    let store = Server::start(move |request, out| {
        if request.path != format!("/blob/{}", current.load(Relaxed)) {
            return out.write_all(b"HTTP/1.1 403 Expired\r\nContent-Length: 0\r\n\r\n");
        }
        serve(request, &copy, "\"one\"", out)
    });
    let (address, current) = (store.address, Arc::clone(&valid));
    let hub = Server::start(move |_, out| {
        redirect(&format!("http://{address}/blob/{}", current.load(Relaxed)), out)
    });
    let source = open(&hub.url("m.safetensors"), &quick()).unwrap();
    valid.store(1, Relaxed);
    assert_eq!(source.read(0..1_000_000).unwrap(), bytes);
    assert_eq!(hub.count(), 2);
}

#[test]
fn redirects_that_lead_nowhere() {
    for (location, kind, words) in [
        ("Location: /m.safetensors\r\n", ErrorKind::Io, "too often"),
        ("", ErrorKind::Malformed, "where to"),
        (
            "Location: ftp://example.org/x\r\n",
            ErrorKind::Malformed,
            "scheme",
        ),
        (
            "Location: http://example.org/x\r\n",
            ErrorKind::Unsupported,
            "plain HTTP",
        ),
    ] {
        let server = Server::start(move |_, out| {
            let head = format!("HTTP/1.1 307 There\r\n{location}Content-Length: 0\r\n\r\n");
            out.write_all(head.as_bytes())
        });
        let error = open(&server.url("m.safetensors"), &quick()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(server.count() <= 11);
    }
}
