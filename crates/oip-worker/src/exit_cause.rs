//! Describes how a worker process ended, for error messages.

use std::{fmt, os::unix::process::ExitStatusExt, process::ExitStatus};

use nix::sys::signal::Signal;
use oip_types::ByteSize;

use crate::protocol::Broken;

/// How a worker ended. `Display` writes it as a clause: "it was terminated by SIGSEGV".
pub(crate) struct Death {
    pub(crate) broken: Broken,
    /// The exit status; `None` if the worker had to be killed.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) hint: Option<&'static str>,
    pub(crate) memory_limit: Option<u64>,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(status) = self.status else {
            return match &self.broken {
                Broken::Ended => write!(f, "it was killed because it closed its connection"),
                Broken::GivenUp => write!(
                    f,
                    "it was killed because it kept running after its client disconnected or its deadline \
                     passed"
                ),
                Broken::Wrong(what) => write!(f, "it was killed because it sent {what}"),
                Broken::System(error) => {
                    write!(f, "it was killed because communication with it failed: {error}")
                }
            };
        };
        let mut may_be_memory = true;
        match (status.signal(), status.code()) {
            (Some(signal), _) => {
                write!(f, "it was terminated by {}", signal_name(signal))?;
                match (self.hint, Signal::try_from(signal)) {
                    (Some(hint), _) => write!(f, ", {hint}")?,
                    (None, Ok(Signal::SIGSEGV | Signal::SIGBUS)) => {
                        write!(f, " (stack overflow, or out of memory?)")?;
                    }
                    (None, Ok(Signal::SIGKILL)) => write!(f, " (by the system, out of memory?)")?,
                    _ => {}
                }
            }
            (None, code) => {
                may_be_memory = self.hint.is_some();
                write!(f, "it ended with code {}", code.unwrap_or(0))?;
                if let Some(hint) = self.hint {
                    write!(f, ", {hint}")?;
                }
            }
        }
        match self.memory_limit.filter(|_| may_be_memory) {
            Some(limit) => write!(f, "; it may use {:#} of memory", ByteSize(limit)),
            None => Ok(()),
        }
    }
}

fn signal_name(number: i32) -> String {
    let known = Signal::try_from(number);
    known.map_or_else(
        |_| format!("signal {number}"),
        |signal| signal.as_str().to_owned(),
    )
}
