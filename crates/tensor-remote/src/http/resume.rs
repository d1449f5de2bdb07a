//! Response bodies that resume after a failure.

use std::{
    io::{self, Read},
    ops::Range,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use fmt_core::{Error, ErrorKind};
use ureq::{Body, BodyReader};

use super::RemoteOptions;

/// A file whose ranges can be requested again.
pub(crate) trait Reopen: Send + Sync {
    /// Requests a range of the file, in the version that was opened.
    fn body(&self, range: Range<u64>) -> Result<Body, Error>;

    /// Returns the access options.
    fn options(&self) -> &RemoteOptions;
}

/// Reads a range of a file. If a response breaks off, requests the missing bytes.
pub(crate) struct ResumingBody {
    file: Arc<dyn Reopen>,
    rest: Range<u64>,
    body: Option<BodyReader<'static>>,
    /// Number of failures since the last substantial progress ([`PROGRESS`]).
    failures: u32,
    /// Number of bytes received since the last failure.
    progress: u64,
    /// Time spent waiting since the rate was last checked. `arrived` is the number of bytes received in this
    /// time.
    waited: Duration,
    arrived: u64,
}

/// Number of bytes after which earlier failures are forgotten.
const PROGRESS: u64 = 64 << 10;
/// Minimum rate in bytes per second.
const SLOWEST: f64 = 1024.0;

impl ResumingBody {
    pub(crate) fn new(file: Arc<dyn Reopen>, range: Range<u64>, body: Body) -> Self {
        Self {
            file,
            rest: range,
            body: Some(body.into_reader()),
            failures: 0,
            progress: 0,
            waited: Duration::ZERO,
            arrived: 0,
        }
    }

    /// Records that receiving `arrived` bytes took the time `waited`. Returns false if the response is too
    /// slow.
    fn is_fast_enough(&mut self, waited: Duration, arrived: u64) -> bool {
        self.waited += waited;
        self.arrived += arrived;
        let patience = self.file.options().patience;
        if self.waited < patience {
            return true;
        }
        let is_fast = self.arrived as f64 >= SLOWEST * self.waited.as_secs_f64();
        (self.waited, self.arrived) = (Duration::ZERO, 0);
        is_fast
    }

    /// Drops the broken response and requests the missing bytes, unless there were too many failures.
    fn broken(&mut self, error: io::Error) -> io::Result<()> {
        self.body = None;
        (self.waited, self.arrived) = (Duration::ZERO, 0);
        let options = self.file.options();
        if self.failures >= options.retries {
            let what = format!("the response ended early {} times in a row", self.failures + 1);
            return Err(io::Error::other(Error::io(what, error).at(self.rest.start)));
        }
        thread::sleep(options.pause(self.failures));
        self.failures += 1;
        self.progress = 0;
        Ok(())
    }

    /// Checks that the response contains no bytes after the requested range. Reading to the end makes the
    /// connection reusable.
    fn check_end(&mut self) -> io::Result<()> {
        let Some(mut body) = self.body.take() else {
            return Ok(());
        };
        match body.read(&mut [0]) {
            // All requested bytes have arrived, so a connection error has no effect.
            Ok(0) | Err(_) => Ok(()),
            Ok(_) => {
                let error = Error::new(
                    ErrorKind::Malformed,
                    "the server sends more than the part that it announced",
                );
                Err(io::Error::other(error.at(self.rest.end)))
            }
        }
    }
}

impl Read for ResumingBody {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.rest.end - self.rest.start;
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        if len == 0 {
            return Ok(0);
        }
        loop {
            let body = match &mut self.body {
                Some(body) => body,
                None => {
                    let body = self.file.body(self.rest.clone()).map_err(io::Error::other)?;
                    self.body.insert(body.into_reader())
                }
            };
            let start = Instant::now();
            let read = body.read(&mut out[..len]);
            let waited = start.elapsed();
            match read {
                Ok(0) => self.broken(io::ErrorKind::UnexpectedEof.into())?,
                Ok(read) => {
                    self.rest.start += read as u64;
                    self.progress += read as u64;
                    if self.progress >= PROGRESS {
                        self.failures = 0;
                    }
                    if self.rest.is_empty() {
                        self.check_end()?;
                    } else if !self.is_fast_enough(waited, read as u64) {
                        let slow = format!("less than {SLOWEST} bytes arrive in a second");
                        self.broken(io::Error::new(io::ErrorKind::TimedOut, slow))?;
                    }
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.broken(error)?,
            }
        }
    }
}
