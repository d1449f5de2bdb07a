//! A file that changes while it is read gives an error, never mixed data.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use fmt_core::{ByteSource, ErrorKind, read_range};
use tensor_remote::open;

use crate::server::{Request, Server, body, content, head, quick, serve};

/// Reads a range, lets the server change the file, and expects the next read to fail.
fn expect_change(script: impl Fn(&Request, bool, &mut dyn Write) -> io::Result<()> + Send + Sync + 'static) {
    let has_changed = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&has_changed);
    let server = Server::start(move |request, out| script(request, flag.load(Relaxed), out));
    let source = open(&server.url("m.safetensors"), &quick()).unwrap();
    assert!(source.read(500_000..500_010).is_ok());
    has_changed.store(true, Relaxed);
    let error = read_range(&source, 800_000..800_010, "the data").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn another_tag() {
    // The first server sends a strong ETag, which the client repeats in `If-Range`. The second server sends a
    // weak ETag, which `If-Range` does not allow.
    expect_change(|request, has_changed, out| {
        let etag = if has_changed { "\"two\"" } else { "\"one\"" };
        serve(request, &content(1_000_000), etag, out)
    });
    expect_change(|request, has_changed, out| {
        let etag = if has_changed {
            "ETag: W/\"two\"\r\n"
        } else {
            "ETag: W/\"one\"\r\n"
        };
        assert!(request.header("if-range").is_none(), "a weak tag is no condition");
        let range = request.range(1_000_000);
        head(&range, 1_000_000, etag, out)?;
        body(&content(1_000_000), range, out)
    });
}

#[test]
fn another_date() {
    expect_change(|request, has_changed, out| {
        let date = if has_changed { "Tue" } else { "Mon" };
        let range = request.range(1_000_000);
        head(&range, 1_000_000, &format!("Last-Modified: {date}\r\n"), out)?;
        body(&content(1_000_000), range, out)
    });
}

#[test]
fn another_length() {
    expect_change(|request, has_changed, out| {
        let len = if has_changed { 900_000 } else { 1_000_000 };
        let range = request.range(len);
        head(&range, len, "", out)?;
        body(&content(1_000_000), range, out)
    });
    // The file became too short for the requested part.
    expect_change(|request, has_changed, out| {
        if has_changed {
            return out
                .write_all(b"HTTP/1.1 416 None\r\nContent-Length: 0\r\nContent-Range: bytes */10\r\n\r\n");
        }
        serve(request, &content(1_000_000), "\"one\"", out)
    });
}

#[test]
fn a_change_between_two_halves_of_an_answer() {
    let server = Server::start(move |request, out| {
        let etag = if request.number < 2 { "\"one\"" } else { "\"two\"" };
        if request.number == 1 {
            let range = request.range(1_000_000);
            head(&range, 1_000_000, &format!("ETag: {etag}\r\n"), out)?;
            body(&content(1_000_000), range.start..range.start + 1000, out)?;
            return Err(io::ErrorKind::Other.into());
        }
        serve(request, &content(1_000_000), etag, out)
    });
    let source = open(&server.url("m.safetensors"), &quick()).unwrap();
    let error = read_range(&source, 300_000..900_000, "the data").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn a_server_that_forgets_ranges_is_no_change() {
    let server = Server::start(move |request, out| match request.number {
        0 => serve(request, &content(1_000_000), "\"one\"", out),
        _ => out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: \"one\"\r\n\r\n"),
    });
    let source = open(&server.url("m.safetensors"), &quick()).unwrap();
    let error = read_range(&source, 300_000..900_000, "the data").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
