//! Tests that truncated, damaged and oversized models are refused or still run, but never panic or hang.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use oip_model::CancelToken;

use crate::support::{Runtime, file, names, recorded_request, runtimes};

/// Time limit for one damaged model. Loading takes milliseconds; the limit allows for machines under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// The deadline of a request, since every request to a server has one.
const DEADLINE: Duration = Duration::from_secs(5);

/// The stack size of the engine's threads.
const STACK: usize = 8 << 20;

/// The result of loading and running a damaged model.
#[derive(Debug, PartialEq)]
enum Fate {
    Refused,
    Loaded,
    /// The run panicked, which counts as a bug in this test although the engine catches panics.
    Panicked,
}

/// Loads an untrusted file, and runs it if it can be loaded.
fn try_out(runtime: Runtime, content: Vec<u8>, name: &str) -> Fate {
    let (sender, fate) = mpsc::channel();
    let damaged = name.to_owned();
    let thread = thread::Builder::new().stack_size(STACK).spawn(move || {
        let attempt = catch_unwind(AssertUnwindSafe(|| match runtime.load(content) {
            Err(_) => Fate::Refused,
            Ok(model) => {
                let request = recorded_request(&damaged);
                if model.metadata().check_request(&request).is_ok() {
                    // The damage may have raised the count of a loop to a million, so the run needs a
                    // deadline.
                    let token = CancelToken::new(Some(Instant::now() + DEADLINE));
                    let _ = model.infer(request, &token);
                }
                Fate::Loaded
            }
        }));
        // After the time limit the receiver is gone, and sending fails.
        let _ = sender.send(attempt.unwrap_or(Fate::Panicked));
    });
    thread.unwrap();
    let fate = fate.recv_timeout(PATIENCE);
    fate.unwrap_or_else(|_| panic!("{name}: loading or running hangs"))
}

/// Checks that truncated files, empty files, and files of other formats are refused.
#[test]
fn partial_files_are_refused() {
    for &runtime in runtimes() {
        expect_refused_partial_files(runtime);
    }
}

fn expect_refused_partial_files(runtime: Runtime) {
    let whole = file("random_forest.onnx");
    for part in [0, 1, whole.len() / 10, whole.len() / 2, whole.len() - 1] {
        let fate = try_out(runtime, whole[..part].to_vec(), "random_forest");
        // A file truncated between two fields can be a valid model whose operator-set versions are missing.
        assert_eq!(fate, Fate::Refused, "the first {part} bytes");
    }
    let mut random = Random(1);
    let noise: Vec<u8> = (0..1 << 20).map(|_| random.next() as u8).collect();
    assert_eq!(try_out(runtime, noise, "random_forest"), Fate::Refused);
    assert_eq!(
        try_out(runtime, b"#!/bin/sh\necho no model\n".to_vec(), "random_forest"),
        Fate::Refused
    );
}

/// Checks that damaged models are refused or run, without crashing the process, hanging, or taking unbounded
/// memory.
#[test]
fn damaged_models_do_no_harm() {
    for &runtime in runtimes() {
        expect_no_harm_of_damaged_models(runtime);
    }
}

fn expect_no_harm_of_damaged_models(runtime: Runtime) {
    let names = names(".request.json");
    let (mut refused, mut loaded, mut panicked) = (0, 0, Vec::new());
    for round in 0..15 {
        for name in &names {
            // Seeded by the name, so that a new fixture does not change the damage to the others.
            let seed = name.bytes().fold(20_261_121 + round, |seed: u64, byte| {
                seed.wrapping_mul(1_099_511_628_211) ^ u64::from(byte)
            });
            let mut random = Random(seed);
            let whole = file(&format!("{name}.onnx"));
            match try_out(runtime, random.damaged(&whole), name) {
                Fate::Refused => refused += 1,
                Fate::Loaded => loaded += 1,
                Fate::Panicked => panicked.push((round, name)),
            }
        }
    }
    let count = refused + loaded + panicked.len();
    assert!(
        count >= 1000 && refused > count / 4 && loaded > count / 20,
        "{refused} {loaded}"
    );
    assert!(panicked.is_empty(), "{panicked:?}");
}

/// Checks that excessively nested and large structures are refused quickly.
#[test]
fn deep_and_large_structures_are_refused() {
    for &runtime in runtimes() {
        expect_refused_structures(runtime);
    }
}

fn expect_refused_structures(runtime: Runtime) {
    // Graphs nested in node attributes, written by hand since no library nests this deeply.
    let mut graph = Vec::new();
    for _ in 0..10_000 {
        // Attribute: g (6). Node: attribute (5). Graph: node (1).
        for field in [6u8, 5, 1] {
            let mut outer = vec![field << 3 | 2];
            varint(graph.len(), &mut outer);
            outer.extend(&graph);
            graph = outer;
        }
        if graph.len() > 1 << 20 {
            break;
        }
    }
    assert_eq!(try_out(runtime, model_of(&graph), "identity"), Fate::Refused);
    // A file of a million empty nodes, each of which takes two bytes.
    let nodes = [1u8 << 3 | 2, 0].repeat(1_000_000);
    assert_eq!(try_out(runtime, model_of(&nodes), "identity"), Fate::Refused);
}

fn model_of(graph: &[u8]) -> Vec<u8> {
    let mut model = vec![7 << 3 | 2];
    varint(graph.len(), &mut model);
    model.extend(graph);
    model
}

fn varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 >> 33) ^ self.0;
        mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 16
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Returns a copy with some bytes changed, removed, duplicated or moved.
    fn damaged(&mut self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.below(5)],
                3 => drop(bytes.remove(at)),
                4 => bytes.insert(at, self.next() as u8),
                _ => {
                    let other = self.below(bytes.len());
                    bytes.swap(at, other);
                }
            }
        }
        bytes
    }
}
