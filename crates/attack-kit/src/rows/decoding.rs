//! gRPC messages that are small on the wire, and large or slow to decode.

use std::future::Future;

use crate::{
    grpc::{FramedMessage, Grpc, Method},
    protobuf::{field, request},
    rows::{Scale, Tally},
    server::Target,
};

/// A message filled up to the size limit with tiny items of one kind.
pub struct Bomb {
    /// Name of the kind of item, for the table of attacks.
    pub name: &'static str,
    /// Builds a message of about the given size.
    pub message: fn(usize) -> Vec<u8>,
}

/// Messages with many items of every repeated field, and messages that are slow to decode.
pub const BOMBS: &[Bomb] = &[
    Bomb {
        name: "empty inputs",
        message: |size| b"\x2a\x00".repeat(size / 2),
    },
    Bomb {
        name: "empty outputs",
        message: |size| b"\x32\x00".repeat(size / 2),
    },
    Bomb {
        name: "empty raw_input_contents",
        message: |size| b"\x3a\x00".repeat(size / 2),
    },
    Bomb {
        name: "parameters",
        message: |size| parameters(size, request::PARAMETERS),
    },
    Bomb {
        name: "parameters of an input",
        message: |size| inside(&[request::INPUTS], &parameters(size, request::PARAMETERS)),
    },
    Bomb {
        name: "parameters of an output",
        message: |size| inside(&[request::OUTPUTS], &parameters(size, 2)),
    },
    Bomb {
        name: "empty bytes_contents",
        message: |size| {
            inside(
                &[request::INPUTS, request::CONTENTS],
                &b"\x42\x00".repeat(size / 2),
            )
        },
    },
    Bomb {
        name: "packed int64_contents",
        message: |size| {
            let path = [request::INPUTS, request::CONTENTS, request::INT64];
            inside(&path, &vec![0; size])
        },
    },
    Bomb {
        name: "int64_contents one by one",
        message: |size| {
            inside(
                &[request::INPUTS, request::CONTENTS],
                &b"\x18\x00".repeat(size / 2),
            )
        },
    },
    Bomb {
        name: "packed shape",
        message: |size| inside(&[request::INPUTS, request::SHAPE], &vec![0; size]),
    },
    Bomb {
        name: "shape one by one",
        message: |size| inside(&[request::INPUTS], &b"\x18\x00".repeat(size / 2)),
    },
    Bomb {
        name: "contents again and again",
        message: |size| inside(&[request::INPUTS], &b"\x2a\x00".repeat(size / 2)),
    },
    Bomb {
        name: "unknown fields",
        message: |size| b"\x78\x00".repeat(size / 2),
    },
    Bomb {
        name: "empty model names",
        message: |size| b"\x0a\x00".repeat(size / 2),
    },
    Bomb {
        name: "groups in groups",
        message: |size| vec![0x7b; size],
    },
];

/// Builds a message with as many distinct parameters as fit into `size`.
fn parameters(size: usize, number: u32) -> Vec<u8> {
    let mut message = Vec::with_capacity(size);
    let mut name = 0u32;
    while message.len() + 16 < size {
        let mut entry = Vec::with_capacity(8);
        field(
            &mut entry,
            1,
            &[0, 6, 12, 18].map(|shift| b'0' + (name >> shift & 0x3f) as u8),
        );
        field(&mut message, number, &entry);
        name += 1;
    }
    message
}

/// Nests content in messages along a path of fields.
fn inside(path: &[u32], content: &[u8]) -> Vec<u8> {
    path.iter().rev().fold(content.to_vec(), |inner, number| {
        let mut outer = Vec::with_capacity(inner.len() + 8);
        field(&mut outer, *number, &inner);
        outer
    })
}

/// Sends the bomb compressed and uncompressed, each on four streams of one connection. The messages are built
/// before the function returns.
pub fn bomb(
    target: Target,
    scale: Scale,
    tally: Tally,
    kind: &Bomb,
    method: Method,
) -> impl Future<Output = ()> + use<> {
    // The enclosing messages also count towards the limit.
    let message = (kind.message)(scale.request - 64);
    let messages = [FramedMessage::gzip(&message), FramedMessage::plain(&message)];
    async move {
        for framed in messages {
            let Ok(grpc) = Grpc::connect(target.grpc).await else {
                tally.add("no connection");
                continue;
            };
            let call = || async {
                match grpc.call(method, &framed).await {
                    // A stream reports errors of its requests in messages, and ends normally.
                    Ok(answer) if answer.code == 0 => tally.add("a response"),
                    Ok(answer) => tally.add(format_args!("grpc {}", answer.code)),
                    Err(_) => tally.add("closed"),
                }
            };
            tokio::join!(call(), call(), call(), call());
        }
    }
}
