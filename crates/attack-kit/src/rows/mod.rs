//! The attacks: each is an async function that misbehaves until it ends or is dropped, and counts responses.

mod bodies;
mod connections;
mod decoding;
mod frames;
mod readers;
mod scale;
mod shared_memory;
mod streams;
mod tally;

use std::{future::Future, pin::Pin};

use crate::{grpc::Method, server::Target};

pub use bodies::{drip, gzip_crowd, gzip_crowd_that_leaves};
pub use connections::{
    crowded_heads_of_streams, idle_connections, long_heads, long_heads_of_streams, unread_conversations,
    unread_requests,
};
pub use decoding::{BOMBS, Bomb, bomb};
pub use frames::{FLOODS, Flood, flood};
pub use readers::{slow_json, slow_streams, unread_echoes};
pub use scale::Scale;
pub use shared_memory::{Region, shared_memory};
pub use streams::{silent_streams, unread_stream};
pub use tally::Tally;

/// An attack that runs until it ends or is dropped.
pub type Attack = Pin<Box<dyn Future<Output = ()>>>;

/// An attack with its name in the table.
pub struct Row {
    /// Name of the attack in the table.
    pub name: String,
    /// Server options in addition to the defaults.
    pub options: &'static [&'static str],
    /// The kind of resource that the attack exhausts.
    pub kind: Kind,
    /// Prepares the attack, which begins when the future is first polled.
    pub start: Box<dyn Fn(Target, Scale, Tally) -> Attack + Send + Sync>,
}

/// The kind of resource an attack exhausts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory: large requests and responses from few connections.
    Large,
    /// Connections: a large number of connections, each of which holds a little memory.
    Crowd,
    /// CPU: as many small operations as possible. Well-behaved clients need not keep half their rate: the
    /// attacker alone keeps a CPU busy, so on a small machine their rate says little about the server.
    Flood,
}

impl Row {
    /// Creates an attack that exhausts memory and needs no server options.
    fn new<F: Future<Output = ()> + 'static>(
        name: impl Into<String>,
        start: impl Fn(Target, Scale, Tally) -> F + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            options: &[],
            kind: Kind::Large,
            start: Box::new(move |target, scale, tally| Box::pin(start(target, scale, tally))),
        }
    }
}

/// Returns all attacks.
#[must_use]
pub fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in BOMBS {
        for method in [Method::Unary, Method::Stream] {
            let name = format!("{} ({method:?})", kind.name);
            rows.push(Row::new(name, move |target, scale, tally| {
                bomb(target, scale, tally, kind, method)
            }));
        }
    }
    rows.push(Row::new("slow readers of JSON", slow_json));
    for method in [Method::Unary, Method::Stream] {
        let name = format!("streams with a window opened 1 byte/s ({method:?})");
        rows.push(Row::new(name, move |target, _, tally| {
            slow_streams(target, tally, method)
        }));
    }
    rows.push(Row::new("binary echoes that are not read", unread_echoes));
    rows.push(Row::new("gzip bodies", gzip_crowd));
    rows.push(Row::new(
        "gzip bodies of clients that leave",
        gzip_crowd_that_leaves,
    ));
    rows.push(Row::new("announced bodies that drip", drip));
    rows.push(Row::new("conversations that are not read", unread_conversations));
    rows.push(Row::new(
        "a stream that is not read, next to calls on its connection",
        unread_stream,
    ));
    let crowds = [
        Row::new("heads without end", long_heads),
        Row::new("streams with long heads", long_heads_of_streams),
        Row::new("streams with heads of many headers", crowded_heads_of_streams),
        Row::new("requests that wait to be read", unread_requests),
        Row::new("idle connections", idle_connections),
        Row::new("silent streams, next to many calls at once", silent_streams),
    ];
    rows.extend(crowds.map(|row| Row {
        kind: Kind::Crowd,
        ..row
    }));
    rows.push(Row {
        options: &["--system-shared-memory"],
        ..Row::new("tensors in shared memory", shared_memory)
    });
    for kind in FLOODS {
        rows.push(Row {
            kind: Kind::Flood,
            ..Row::new(kind.name, move |target, _, tally| flood(target, tally, kind))
        });
    }
    rows
}
