use std::io;

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the server, caught from now on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Caught only so that they do not end the process: a terminal that hangs up, a log file at its limit, tools that ask
    /// other servers for a fresh log or a dump by SIGUSR1 and SIGUSR2.
    _survived: Vec<Signal>,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let survived = [
            SignalKind::hangup(),
            SignalKind::alarm(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::from_raw(Number::XFSZ.as_raw()),
        ];
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _survived: survived
                .into_iter()
                .filter_map(|kind| signal(kind).ok())
                .collect(),
        })
    }

    /// Waits for the next signal that wants an end, and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
