//! Signals: termination, reload, and ignored ones.

use std::{future::pending, process::exit};

use rustix::process::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    failure::Failure,
    telemetry::{LIFE_CYCLE, Log},
};

/// Handlers of the server's signals. Creating the value installs them.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// SIGHUP; `None` if the system does not allow handling it.
    hangup: Option<Signal>,
    /// Signals that are handled only so that they do not end the process: SIGALRM, SIGXFSZ (sent when a log
    /// reaches the file size limit), and SIGUSR1 and SIGUSR2, with which tools ask other servers to reopen
    /// logs or dump state.
    _survived: Vec<Signal>,
}

impl Signals {
    /// Sets up handlers. Must run on a runtime.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let handle = |kind| {
            signal(kind).map_err(|error| Failure::run(format!("cannot install signal handlers: {error}")))
        };
        let survived = [
            SignalKind::alarm(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
            SignalKind::from_raw(Number::XFSZ.as_raw()),
        ];
        Ok(Self {
            terminate: handle(SignalKind::terminate())?,
            interrupt: handle(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup()).ok(),
            _survived: survived
                .into_iter()
                .filter_map(|kind| signal(kind).ok())
                .collect(),
        })
    }

    /// Waits for the next termination signal, and returns its name. Ignores other signals.
    pub(crate) async fn next_end(&mut self) -> &'static str {
        loop {
            if let SignalAction::End(signal) = self.next().await {
                return signal;
            }
        }
    }

    /// Waits for `ending`. Another termination signal ends the process at once, after `finish` and after the
    /// log is written.
    pub(crate) async fn or_exit<T>(
        &mut self,
        ending: impl Future<Output = T>,
        log: &Log,
        finish: impl FnOnce(),
    ) -> T {
        tokio::select! {
            output = ending => output,
            signal = self.next_end() => {
                tracing::warn!(target: LIFE_CYCLE, signal, "exiting at once");
                finish();
                log.write_out();
                exit(INTERRUPTED);
            }
        }
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> SignalAction {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::End("SIGTERM"),
            _ = self.interrupt.recv() => SignalAction::End("SIGINT"),
            _ = hangup => SignalAction::Reload,
        }
    }
}

/// The exit code after a second signal.
const INTERRUPTED: i32 = 130;

/// The action that a signal requests.
pub(crate) enum SignalAction {
    /// Terminate the server. The value is the signal's name.
    End(&'static str),
    /// Reload the files that support reloading.
    Reload,
}
