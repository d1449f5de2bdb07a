//! Models in separate processes: a model that aborts, overflows its stack, receives a signal, uses up all
//! memory or hangs costs one request and nothing else.
//!
//! [`IsolatedBackend`] wraps another backend. A model whose configuration requests isolation is loaded by a
//! *worker*, a process that has the same backend, and is represented by a proxy in the server. To its caller,
//! an engine or a test, the proxy is a [`Model`](oip_model::Model) like any other: batching, warm-up,
//! checks and statistics stay in the server.
//!
//! A worker is any program that calls [`run`] with its backends. Usually it is the server's own program,
//! started with a subcommand:
//!
//! ```no_run
//! use std::{process::{Command, ExitCode}, sync::Arc};
//!
//! use oip_model::Backend;
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
//! The first worker is started when the model is loaded, and its load error becomes the reason the model is
//! unavailable. A worker runs one request at a time, unless its model can run several (below). For concurrent
//! requests, more workers are started, up to the model's number of instances. Workers run until the model is
//! unloaded.
//!
//! When a worker crashes, the request that it ran fails with an error that says how the worker ended, and a
//! new worker is started immediately. After five consecutive crashes without a response between them, no
//! worker is started for a pause of 1 s, which doubles each time up to 30 s. Requests during the pause are
//! refused with the time of the next attempt.
//!
//! When a request's client disconnects or its deadline passes, the model is notified, as it would be in the
//! server. A worker that continues for another second is killed and replaced, so that no instance is lost.
//! This does not count as a crash.
//!
//! If the calling thread has [little time](oip_model::Call::patience), the run is only started on it
//! (Linux): a small request is sent to an idle worker, and the thread waits for the response on the socket,
//! for at most that time. Since no other thread is woken, this costs a fraction of a handover between
//! threads. Another thread finishes a run that takes longer, calls other models, responds in shared memory or
//! ends the worker.
//!
//! A worker ends with the server, however the server ends: it detects that its control socket was closed, and
//! on Linux the kernel kills it together with the thread that started it. Signals that a terminal or a
//! service manager sends to all processes do not end it earlier. When memory runs out, the kernel kills
//! workers first (Linux).
//!
//! A worker can have a memory limit. A model that exceeds it fails in the way that allocations fail in its
//! language, which ends its worker; the server's error names the limit.
//!
//! This is not a sandbox. A worker has the same rights as the server: it contains bugs, but not an attacker
//! who runs their own code in it. But nothing that a worker *sends* can harm the server: all lengths are
//! bounded before memory is allocated, a malformed response ends the worker, and the engine checks responses
//! against the model's metadata.
//!
//! # Protocol
//!
//! The worker has two Unix socket pairs, without a path or a port. One, its standard input, carries frames.
//! The other, its standard output, carries the 8-byte numbers of cancelled requests to the worker. `run`
//! moves both to other descriptors before any model is loaded, so that output that a model prints cannot mix
//! with the protocol; it goes to the server's log, together with standard error.
//!
//! A frame is a header of 24 bytes (all little-endian: kind and length of the JSON, u32; number of the
//! request and length of the binary data, u64), followed by JSON and binary data.
//!
//! | kind | sent by | JSON | binary |
//! |---|---|---|---|
//! | 1, hello | worker, first | the version of the protocol | |
//! | 2, load | server | backend, model, version, path, configuration, limits, index of the process among the model's | the model file |
//! | 3, loaded | worker | metadata | |
//! | 4, infer | server | a request as in a REST body | its inputs |
//! | 5, outputs | worker | a response as in a REST body | the outputs |
//! | 6, failed | worker, instead of 3, 5 or 8 | code and message, and details for the log | |
//! | 7, run | server | names, datatypes, shapes and locations of inputs; the remaining time; the id and rows of each request in a batch | the inputs, unless they are in a region |
//! | 8, results | worker | the same for outputs; for a batch, which requests failed and why | the outputs, unless they are in a region |
//! | 9, room | worker, before 8 | number of bytes that its outputs need | |
//! | 10, region | server, before 7, and as the reply to 9 | number, size and purpose; the file comes with the header | |
//! | 11, part | worker, before 8 or 6, any number of times | one of several responses, as 8 | as 8 |
//! | 12, taken | server, as the reply to 11, and to 13 if its inputs are in a region | whether to continue | |
//! | 13, ask | worker, before 8 or 6, any number of times | a request to another model, with a number for the call | as 8 |
//! | 14, answer | server, to 13 | the call's number; outputs, or an error; whether it is the last response | as 7, or in a region whose file comes with the header |
//! | 15, next | worker, to 14 that is not the last | the call's number; whether the next response is wanted | |
//! | 16, free | worker, once before 8 or 6 | nothing: it accepts another request while this one continues | |
//!
//! Requests and responses have the protocol's own binary form ([`oip_types::rest`]), so one reader and one
//! writer serve both. Tensors are not encoded: they are written directly from their memory, read into one
//! buffer, and then used as slices of it. Each direction costs the two copies of any socket, one into the
//! kernel and one out of it. JSON is padded with spaces, so that the first tensor is aligned. Request
//! parameters that JSON cannot represent (non-finite numbers, and integers above 63 bits) are refused.
//!
//! # Workers that are another program
//!
//! [`Isolation::load`] runs a model in workers that need not use this crate, such as an interpreter that
//! implements the protocol in its language; [`Isolation::first_bytes`] can send the interpreter its program.
//! A worker that sends `"places": true` in its hello frame receives requests of kind 7 instead of 4, whose
//! JSON gives the location of each tensor. Up to 64 KiB of inputs follow the JSON. On Linux, larger inputs
//! are in a *region*, memory of the server that the worker maps (`memfd_create`, with a sealed size). The
//! region is reused for the next request unless the model still uses it, so inputs are copied only once.
//! Outputs are returned in another region, or as locations in the input region. They are copied once, or not
//! at all if they are the inputs. The server reads and writes regions as files and never maps them.
//!
//! At the end of a request, both sides release the same regions. They release the input region if the model
//! still uses it, if the response is of kind 6, or if it exceeds 112 MiB. They release the output region if
//! it exceeds 112 MiB together with the remaining input region.
//!
//! A model that sends several responses to a request sends each as kind 11 and waits until the server has
//! passed it on. While the client lags behind, the model waits, so a region is never written while it is
//! read. The server's reply says whether another response is wanted. Kind 8 without outputs and with
//! `"is_end": true` ends the responses.
//!
//! Such a worker may run several requests of a model that sends several responses. Once it sends kind 16, the
//! server sends it another connection, as a descriptor on the control socket with eight bytes of 0xFF. This
//! connection has separate regions, and the next request uses it. A connection serves one request at a time,
//! and is reused. If the client of such a request disconnects and the model does not stop, the process is not
//! killed, since it runs other requests too. Instead, the server closes the connection, and the worker drops
//! the model's further responses. When the model is done with the request, the worker sends the request's
//! number on the control socket; with 64 such requests unfinished, the process is killed. A request during
//! which the worker is not free, such as one that hangs in the model's own call, is ended as above.
//!
//! A model of such a worker may call other models while it runs a request (kind 13, at most 256 open calls);
//! the caller provides these models ([`Call::others`](oip_model::Call::others)). The thread that runs the
//! request waits for the worker and the other models at the same time. The inputs of a call are counted
//! toward the memory budget of the running request before they are read. A worker with open calls must always
//! read what it is sent, because the server does not read while it sends. If a call has several responses,
//! each further one is computed only when the worker requests it. Calls that are open when the worker
//! responds, or when its response is no longer wanted, are cancelled.
//!
//! Details that such a worker sends with kind 6, up to 64 KiB, become one event of the server's log at level
//! ERROR, with the field `traceback`. Per worker, at most 100 such events are logged in a burst, plus one per
//! second, and the number of dropped events is logged. A line of output that begins with the character 0x1E
//! and one of E, W, I and D is logged at level ERROR, WARN, INFO or DEBUG.

mod backend;
mod calls;
mod child;
mod exit_cause;
mod isolation;
mod messages;
mod numbers;
mod pool;
mod process;
mod protocol;
#[cfg(target_os = "linux")]
mod region;
mod request_channels;
mod tensor_locations;
mod worker_log;

pub use backend::IsolatedBackend;
pub use child::run;
pub use isolation::Isolation;

/// Returns the path of the running program, for starting the program again. On Linux the path works even if
/// the program's file was replaced or removed meanwhile, so that a server and its workers always run the same
/// program.
#[must_use]
pub fn this_program() -> std::path::PathBuf {
    let itself = std::path::Path::new("/proc/self/exe");
    match itself.exists() {
        true => itself.to_owned(),
        // If the path does not exist, starting the program fails with an error.
        false => std::env::current_exe().unwrap_or_else(|_| itself.to_owned()),
    }
}
