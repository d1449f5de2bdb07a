//! Models in processes of their own: one that aborts, overflows its stack, gets a signal, uses up all memory or hangs costs one
//! request and nothing else.
//!
//! [`IsolatedBackend`] wraps another backend. A model whose configuration wants isolation is loaded by a *worker*, a
//! process that has the same backend, and a model in the server stands for it. To its caller, an engine or a test, it
//! is a [`Model`](oip_service::Model) like any other: batches, warm-up, checks and statistics stay where they are.
//!
//! A worker is any program that calls [`run`] with its backends; usually it is the server's own, started with a
//! subcommand:
//!
//! ```no_run
//! use std::{process::{Command, ExitCode}, sync::Arc};
//!
//! use oip_service::Backend;
//! use oip_worker::{IsolatedBackend, Isolation};
//!
//! /// What a server's `main` does, with its backend and the way it serves models.
//! fn run(my_backend: fn() -> Arc<dyn Backend>, serve: fn(Vec<Arc<dyn Backend>>) -> ExitCode) -> ExitCode {
//!     if std::env::args().nth(1).is_some_and(|argument| argument == "worker") {
//!         return oip_worker::run(&[my_backend()]);
//!     }
//!     let isolation = Isolation::new(|| {
//!         let mut command = Command::new(oip_worker::this_program());
//!         command.arg("worker");
//!         command
//!     });
//!     serve(vec![Arc::new(IsolatedBackend::new(my_backend(), isolation.by_default(true)))])
//! }
//! ```
//!
//! # Life of a worker
//!
//! The first one is started when the model is loaded, and its load error becomes the reason that the model is unavailable.
//! A worker runs one request at a time, unless its model goes on with some while it takes others (below); when requests come at the same time
//! more workers are started, up to the model's instances. They stay until the model is unloaded.
//!
//! When a worker dies, the request that it ran fails with an error that says how it died; a new worker is started at
//! once. After five deaths in a row without an answer between them there is a pause, of a second and then of twice as much each
//! time, up to 30 s; requests are refused meanwhile, with the time of the next try.
//!
//! When a request's client is gone or its deadline has passed, the model is told, as it would be in the server. A worker that
//! goes on for a second nevertheless is killed and replaced, so that no instance is lost. This is not one of the five deaths.
//!
//! A run on a thread that has [little time](oip_service::Call::patience) is only begun there (Linux): a small request is sent to an idle worker and its
//! answer waited for on the socket, for so long; waking nobody else, this costs a fraction of what a thread between them does. The rest of
//! a run that takes longer, asks other models, answers in shared memory or ends the worker is for a thread that has time.
//!
//! A worker ends with the server, however that ends: it reads the end of its control socket, and on Linux the system ends it
//! with the thread that started it. It does not end before, when the terminal or a service manager sends its signal to all
//! processes. When the system runs out of memory it ends workers first (Linux).
//!
//! A worker can be given a limit of memory. A model that exceeds it ends its worker, by the way an allocation fails in its
//! language; the server's message names the limit.
//!
//! This is not a sandbox. A worker has the rights of the server: it contains bugs, but not an attacker who runs code of his own
//! in it. But nothing that a worker *sends* can harm the server: all lengths are bounded before memory is allocated, a malformed
//! answer ends the worker, and the engine checks answers against the model's metadata.
//!
//! # Protocol
//!
//! Two pairs of Unix sockets, without a path or a port. One, the worker's standard input, carries frames;
//! the other, its standard output, carries 8-byte numbers of requests that are cancelled, to the worker. `run` moves both
//! away before any model is loaded, so that what a model prints cannot get among them; it goes to the server's log, with what
//! is written to standard error.
//!
//! A frame is a head of 24 bytes (all little-endian: kind and bytes of JSON, u32; number of the request and bytes of binary
//! data, u64), JSON, and binary data.
//!
//! | kind | sent by | JSON | binary |
//! |---|---|---|---|
//! | 1, hello | worker, first | the version of the protocol | |
//! | 2, load | server | backend, model, version, path, configuration, limits, the number of the process among the model's | the model file |
//! | 3, loaded | worker | metadata | |
//! | 4, infer | server | a request as in a REST body | its inputs |
//! | 5, outputs | worker | an answer as in a REST body | the outputs |
//! | 6, failed | worker, instead of 3, 5 or 8 | code and message, and details for the log | |
//! | 7, run | server | names, datatypes, shapes and places of inputs; the time that is left; of joined requests the id and rows of each | the inputs, unless they are in a region |
//! | 8, results | worker | the same of outputs; of joined requests, which failed and why | the outputs, unless they are in a region |
//! | 9, room | worker, before 8 | bytes that its outputs take | |
//! | 10, region | server, before 7, and as the answer to 9 | number, size and purpose; the file comes with the head | |
//! | 11, part | worker, before 8 or 6, any number of times | one of several answers, as 8 | as 8 |
//! | 12, taken | server, as the answer to 11, and to 13 if its inputs are in a region | whether it may go on | |
//! | 13, ask | worker, before 8 or 6, any number of times | a request to another model, with a number for it | as 8 |
//! | 14, answer | server, to 13 | the number; outputs, or an error; whether it is the last | as 7, or in a region whose file comes with the head |
//! | 15, next | worker, to 14 that is not the last | the number; whether the next one is wanted | |
//! | 16, free | worker, once before 8 or 6 | nothing: it can be given another request beside this one | |
//!
//! Requests and answers are the protocol's own binary form ([`oip_types::rest`]), so there is one reader and one writer for
//! both. Tensors are not encoded: they are written from where they are and read into one buffer, of which they are slices.
//! Each direction costs what a socket costs, one copy into the system and one out of it. JSON is filled up with spaces, so that
//! the first tensor is aligned. What JSON cannot carry in a request's own parameters, numbers that are not finite and
//! integers above 63 bits, is refused.
//!
//! # Workers that are another program
//!
//! [`Isolation::load`] runs a model in workers that need not be this crate's, such as an interpreter with the protocol written
//! in its language; [`Isolation::first_bytes`] can send it its program. One that says `"places": true` in its greeting gets
//! requests as kind 7 rather than 4: JSON says where each tensor is. Up to 64 KiB of inputs are behind the JSON; on Linux more
//! of them are in a *region*, memory of the server's that the worker maps (`memfd_create`, sealed against changes of its size),
//! which is used again for the next request unless the model holds on to it. So inputs are copied once. Outputs come back in
//! another region, or as places in the inputs' one, and are copied once, or not at all where they are the inputs. The server reads
//! and writes regions as files and maps none.
//!
//! Both sides let go of the same regions at the end of a request: the inputs' one if the model holds on to it or the answer is kind 6, or if it is
//! above 112 MiB; the outputs' one if it and the inputs' one that is left are above that together.
//!
//! A model of such a worker that gives several answers to a request sends each as kind 11 and waits until the server has taken
//! it: while the client is behind, the model waits, and a region is never written while it is read. The answer says whether a
//! next one is wanted. Kind 8 without outputs, and with `"is_end": true`, ends them.
//!
//! Such a worker may run several requests of a model that gives several answers: once it says that it is free (kind 16), it gets another
//! connection, as a file on the control socket beside eight bytes of 0xFF, with regions of its own, and the next request comes by it. A
//! connection is used for one request at a time, and again for later ones. If the client of such a request is gone and the model goes on
//! with it nevertheless, the process is not killed, since it has the requests of others: the server closes the connection, and the worker drops what
//! the model still gives. It then sends the request's number on the control socket when the model is done with it; if 64 such requests
//! are not, the process is killed. A request that the worker is not free beside, such as one that hangs in the model's own call, is ended as
//! above.
//!
//! A model of such a worker may ask other models while it works on a request (kind 13, at most 256 open at a time); who they are is the
//! caller's to say ([`Call::others`](oip_service::Call::others)). The thread that runs the request waits for the worker and for
//! the answers at once. Inputs are charged before they are read. A worker that asks must read what is sent to it at any time: the
//! server does not read while it sends. Of several answers the next one is made when the worker wants it. What is open when the worker
//! answers, or when nobody waits for it any more, is dropped.
//!
//! Details that such a worker sends with kind 6, up to 64 KiB, are one event of the server's log at level ERROR, with the field
//! `traceback`: 100 of a worker at once and one more each second, with the number of those left out. A line of output that begins with
//! the character 0x1E and one of E, W, I and D is logged as an error, a warning, for information or for debugging.

mod backend;
mod beside;
mod calls;
mod child;
mod death;
mod isolation;
mod messages;
mod numbers;
mod places;
mod pool;
mod process;
mod protocol;
#[cfg(target_os = "linux")]
mod region;
mod worker_log;

pub use backend::IsolatedBackend;
pub use child::run;
pub use isolation::Isolation;

/// The program that runs, for starting it again: on Linux also when its file was replaced or removed meanwhile, so that a
/// server and its workers are always the same.
#[must_use]
pub fn this_program() -> std::path::PathBuf {
    let itself = std::path::Path::new("/proc/self/exe");
    match itself.exists() {
        true => itself.to_owned(),
        // If it cannot be found, starting it fails with an error.
        false => std::env::current_exe().unwrap_or_else(|_| itself.to_owned()),
    }
}
