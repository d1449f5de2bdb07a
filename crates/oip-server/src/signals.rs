use std::{future::pending, io};

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that the server handles, from now on.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` where it cannot be caught.
    hangup: Option<Signal>,
    /// Caught only so that they do not end the process: SIGXFSZ of a log file at its limit, and SIGUSR1 and
    /// SIGUSR2, by which tools ask other servers to reopen logs or dump state.
    _survived: Vec<Signal>,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let survived = [
            SignalKind::alarm(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::from_raw(Number::XFSZ.as_raw()),
        ];
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup()).ok(),
            _survived: survived
                .into_iter()
                .filter_map(|kind| signal(kind).ok())
                .collect(),
        })
    }

    /// Waits for the next signal to stop, and returns its name. Other signals are discarded.
    pub(crate) async fn next_end(&mut self) -> &'static str {
        loop {
            if let Wish::End(signal) = self.next().await {
                return signal;
            }
        }
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Wish {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Wish::End("SIGTERM"),
            _ = self.interrupt.recv() => Wish::End("SIGINT"),
            _ = hangup => Wish::Reload,
        }
    }
}

/// Exit code after a second signal.
pub(crate) const INTERRUPTED: i32 = 130;

/// What a signal asks for.
pub(crate) enum Wish {
    /// Stop; the name of the signal.
    End(&'static str),
    /// Reload files.
    Reload,
}
