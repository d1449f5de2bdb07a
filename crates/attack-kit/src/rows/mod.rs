//! The attacks: each is a function that behaves badly until it is done or dropped, and counts what it was answered.

mod bodies;
mod connections;
mod decoding;
mod frames;
mod readers;
mod shared_memory;

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use crate::server::Target;

pub use bodies::{drip, gzip_crowd, gzip_crowd_that_leaves};
pub use connections::{
    crowded_heads_of_streams, idle_connections, long_heads, long_heads_of_streams, unread_conversations,
    unread_requests,
};
pub use decoding::{BOMBS, Bomb, bomb};
pub use frames::{FLOODS, Flood, flood};
pub use readers::{slow_json, slow_streams, unread_echoes};
pub use shared_memory::{Region, shared_memory};

/// How large the server's limits are, and how many clients attack.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Its `--max-request-size`.
    pub request: usize,
    /// Its `--memory-budget`.
    pub budget: usize,
    /// Clients that read slowly, or not at all.
    pub readers: usize,
    /// Clients that send compressed bodies.
    pub crowd: usize,
}

impl Scale {
    /// The server's default options.
    pub const FULL: Self = Self {
        request: 64 << 20,
        budget: 512 << 20,
        readers: 60,
        crowd: 300,
    };

    /// An eighth of that, for tests.
    pub const SMALL: Self = Self {
        request: 8 << 20,
        budget: 64 << 20,
        readers: 60,
        crowd: 100,
    };

    /// The options that give a server these limits.
    #[must_use]
    pub fn options(&self) -> [String; 6] {
        [
            "--max-request-size".to_owned(),
            self.request.to_string(),
            "--max-answer-size".to_owned(),
            self.request.to_string(),
            "--memory-budget".to_owned(),
            self.budget.to_string(),
        ]
    }

    /// The most memory that the server may take, above what it has when nothing is to do.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.budget + self.budget / 4 + (64 << 20)
    }
}

/// Counts the answers to an attack, by what they are.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<String, usize>>>);

impl Tally {
    /// Counts one answer.
    pub fn add(&self, answer: impl fmt::Display) {
        if let Ok(mut counts) = self.0.lock() {
            *counts.entry(answer.to_string()).or_default() += 1;
        }
    }

    /// How often this was answered.
    #[must_use]
    pub fn count(&self, answer: &str) -> usize {
        self.0
            .lock()
            .map_or(0, |counts| counts.get(answer).copied().unwrap_or(0))
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.lock().map_err(|_| fmt::Error)?;
        let texts: Vec<String> = counts
            .iter()
            .map(|(answer, count)| format!("{count} x {answer}"))
            .collect();
        formatter.write_str(&texts.join(", "))
    }
}

/// An attack that runs until it is done or dropped.
pub type Attack = Pin<Box<dyn Future<Output = ()>>>;

/// One attack by its name, as the table shows it.
pub struct Row {
    /// The name.
    pub name: String,
    /// Options of the server beside the default ones.
    pub options: &'static [&'static str],
    /// What it uses up.
    pub kind: Kind,
    /// Makes what is sent; the attack begins when the future is first polled.
    pub start: Box<dyn Fn(Target, Scale, Tally) -> Attack + Send + Sync>,
}

/// What an attack uses up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Large requests and answers, from few connections.
    Large,
    /// Many connections that each hold a little.
    Crowd,
    /// As many small things as go through. Good clients need not keep half of their rate beside it: a flood keeps a processor busy at
    /// the client's side alone, so that on a small machine their rate says little.
    Flood,
}

/// All attacks.
#[must_use]
pub fn all() -> Vec<Row> {
    fn row<F: Future<Output = ()> + 'static>(
        name: impl Into<String>,
        start: impl Fn(Target, Scale, Tally) -> F + Send + Sync + 'static,
    ) -> Row {
        Row {
            name: name.into(),
            options: &[],
            kind: Kind::Large,
            start: Box::new(move |target, scale, tally| Box::pin(start(target, scale, tally))),
        }
    }
    use crate::grpc::Method;
    let mut rows = Vec::new();
    for kind in BOMBS {
        for method in [Method::Unary, Method::Stream] {
            let name = format!("{} ({method:?})", kind.name);
            rows.push(row(name, move |target, scale, tally| {
                bomb(target, scale, tally, kind, method)
            }));
        }
    }
    rows.push(row("slow readers of JSON", slow_json));
    for method in [Method::Unary, Method::Stream] {
        let name = format!("streams with a window opened 1 byte/s ({method:?})");
        rows.push(row(name, move |target, _, tally| {
            slow_streams(target, tally, method)
        }));
    }
    rows.push(row("binary echoes that are not read", unread_echoes));
    rows.push(row("gzip bodies", gzip_crowd));
    rows.push(row("gzip bodies of clients that leave", gzip_crowd_that_leaves));
    rows.push(row("announced bodies that drip", drip));
    rows.push(row("conversations that are not read", unread_conversations));
    let crowds = [
        row("heads without end", long_heads),
        row("streams with long heads", long_heads_of_streams),
        row("streams with heads of many headers", crowded_heads_of_streams),
        row("requests that wait to be read", unread_requests),
        row("idle connections", idle_connections),
    ];
    rows.extend(crowds.map(|row| Row {
        kind: Kind::Crowd,
        ..row
    }));
    rows.push(Row {
        options: &["--system-shared-memory"],
        ..row("tensors in shared memory", shared_memory)
    });
    for kind in FLOODS {
        rows.push(Row {
            kind: Kind::Flood,
            ..row(kind.name, move |target, _, tally| flood(target, tally, kind))
        });
    }
    rows
}
