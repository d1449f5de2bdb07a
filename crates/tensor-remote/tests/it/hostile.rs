//! Servers that send wrong responses, stall or refuse: the client returns a clear error within bounded memory
//! and time.

use std::{
    io::{self, Write},
    thread,
    time::{Duration, Instant},
};

use fmt_core::{ByteSource, ErrorKind, read_range};
use tensor_remote::open;

use crate::server::{Request, Server, body, content, head, quick, serve};

/// Opens a file on a server that runs the given script. Expects an error of the kind `kind` whose message
/// contains `words`.
fn expect(
    kind: ErrorKind,
    words: &str,
    script: impl Fn(&Request, &mut dyn Write) -> io::Result<()> + Send + Sync + 'static,
) {
    let server = Server::start(script);
    let start = Instant::now();
    let error = open(&server.url("m.safetensors"), &quick()).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{words}: {error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{words}");
}

fn fixed(text: &'static str) -> impl Fn(&Request, &mut dyn Write) -> io::Result<()> {
    move |_, out| out.write_all(text.as_bytes())
}

#[test]
fn a_server_without_ranges() {
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    expect(ErrorKind::Unsupported, "whole files only", fixed(text));
}

#[test]
fn answers_that_do_not_say_what_they_are() {
    for text in [
        "HTTP/1.1 206 Partial\r\nContent-Length: 3\r\n\r\nabc",
        "HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/*\r\n\r\nabc",
        "HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nContent-Range: bytes 2-0/3\r\n\r\nabc",
        "HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/2\r\n\r\nabc",
        "HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nContent-Type: multipart/byteranges; boundary=x\r\n\r\n--x",
    ] {
        expect(ErrorKind::Malformed, "which part of the file", fixed(text));
    }
}

#[test]
fn answers_that_are_something_else() {
    let text = "HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nContent-Range: bytes 1-3/9000\r\n\r\nabc";
    expect(ErrorKind::Malformed, "another part of the file", fixed(text));
    let text = "HTTP/1.1 206 Partial\r\nContent-Length: 4\r\nContent-Range: bytes 0-2/3\r\n\r\nabcd";
    expect(ErrorKind::Malformed, "another length", fixed(text));
    let text = "HTTP/1.1 206 Partial\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/3\r\n\r\nabc";
    expect(ErrorKind::Malformed, "compressed", fixed(text));
    let text = "HTTP/1.1 416 None\r\nContent-Length: 0\r\nContent-Range: bytes */900\r\n\r\n";
    expect(ErrorKind::Malformed, "416", fixed(text));
    expect(ErrorKind::Io, "no response", fixed("SSH-2.0-OpenSSH_9.9\r\n"));
}

#[test]
fn refusals_say_why() {
    for (status, words) in [
        (401, "token"),
        (403, "access to the file is denied"),
        (404, "no such file"),
        (418, "refuses"),
    ] {
        expect(ErrorKind::Io, words, move |_, out| {
            let head = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
            out.write_all(head.as_bytes())
        });
    }
    let text =
        "HTTP/1.1 403 No\r\nContent-Length: 0\r\nX-Error-Message: accept the licence\x1b first\r\n\r\n";
    let server = Server::start(fixed(text));
    let error = open(&server.url("m.zt"), &quick()).unwrap_err().to_string();
    assert!(!error.contains('\x1b'), "{error}");
}

#[test]
fn bodies_without_end() {
    expect(ErrorKind::Malformed, "more than the part", |_, out| {
        let head = "HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-2/3\r\n\r\n";
        out.write_all(head.as_bytes())?;
        loop {
            out.write_all(b"3\r\nabc\r\n")?;
        }
    });
}

#[test]
fn bodies_that_stop_early() {
    expect(ErrorKind::Io, "ended early 3 times in a row", |request, out| {
        head(&request.range(1000), 1000, "", out)?;
        out.write_all(b"abc")?;
        Err(io::ErrorKind::Other.into())
    });
}

#[test]
fn bodies_that_drip() {
    expect(ErrorKind::Io, "bytes arrive in a second", |request, out| {
        head(&request.range(100_000), 100_000, "", out)?;
        loop {
            out.write_all(b"a")?;
            out.flush()?;
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn silence_and_heads_without_end() {
    let start = Instant::now();
    expect(ErrorKind::Io, "no response", |_, _| {
        thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    expect(ErrorKind::Io, "no response", |_, out| {
        out.write_all(b"HTTP/1.1 206 Partial\r\n")?;
        loop {
            out.write_all(b"X-More: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")?;
        }
    });
}

/// The server announces a length larger than any memory. The client allocates memory only as bytes arrive.
#[test]
fn a_length_beyond_all_memory() {
    let server = Server::start(|request, out| {
        let range = request.range(1 << 62);
        head(&range, 1 << 62, "", out)?;
        if range.start == 0 {
            return out.write_all(&vec![0; 256 << 10]);
        }
        out.write_all(&[0; 1000])?;
        Err(io::ErrorKind::Other.into())
    });
    let source = open(&server.url("m.safetensors"), &quick()).unwrap();
    assert_eq!(source.len(), 1 << 62);
    let error = read_range(&source, 1 << 30..1 << 50, "the header").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

#[test]
fn failures_that_pass() {
    for status in [408, 429, 500, 502, 503, 504] {
        let bytes = content(100_000);
        let copy = bytes.clone();
        let server = Server::start(move |request, out| match request.number {
            0 | 1 => {
                let head = format!("HTTP/1.1 {status} Later\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n");
                out.write_all(head.as_bytes())
            }
            _ => serve(request, &copy, "\"one\"", out),
        });
        let source = open(&server.url("m.safetensors"), &quick()).unwrap();
        assert_eq!(source.read(0..100_000).unwrap(), bytes);
        assert_eq!(server.count(), 3);
    }
    expect(
        ErrorKind::Io,
        "cannot answer now (status 503",
        fixed("HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n"),
    );
}

#[test]
fn the_time_that_a_server_asks_for() {
    let bytes = content(1000);
    let server = Server::start(move |request, out| match request.number {
        0 => out.write_all(b"HTTP/1.1 429 Slow\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"),
        _ => serve(request, &bytes, "\"one\"", out),
    });
    let start = Instant::now();
    open(&server.url("m.safetensors"), &quick()).unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn what_broke_off_goes_on() {
    let bytes = content(2_000_000);
    let copy = bytes.clone();
    // Every response breaks off after 300,000 bytes.
    let server = Server::start(move |request, out| {
        let range = request.range(2_000_000);
        head(&range, 2_000_000, "ETag: \"one\"\r\n", out)?;
        let end = range.end.min(range.start + 300_000);
        body(&copy, range.start..end, out)?;
        if end < range.end {
            Err(io::ErrorKind::Other.into())
        } else {
            Ok(())
        }
    });
    let source = open(&server.url("m.safetensors"), &quick()).unwrap();
    assert_eq!(source.read(0..2_000_000).unwrap(), bytes);
    assert_eq!(server.count(), 1 + 6);
}
