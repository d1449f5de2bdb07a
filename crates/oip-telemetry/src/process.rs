//! Process metrics from Linux, under the names that Prometheus' client libraries use.

use procfs::{
    ProcError, boot_time_secs, page_size,
    process::{LimitValue, Process as Myself},
    ticks_per_second,
};

use crate::families::{Families, Family};

/// The metrics of this process. Keeps the values that stay constant while the process runs.
///
/// ```
/// use oip_telemetry::{Process, prometheus};
///
/// let process = Process::default();
/// let page = prometheus::page(|families| process.write(families));
/// assert!(page.contains("process_resident_memory_bytes"));
/// ```
#[derive(Debug)]
pub struct Process {
    /// Start time in seconds since 1970. It is read once, because the kernel computes it from a clock that
    /// can be set.
    start: Option<f64>,
}

impl Default for Process {
    /// Reads the values that stay constant.
    fn default() -> Self {
        let start = || {
            let stat = Myself::myself()?.stat()?;
            let since_boot = stat.starttime as f64 / ticks_per_second() as f64;
            Ok::<_, ProcError>(boot_time_secs()? as f64 + since_boot)
        };
        Self { start: start().ok() }
    }
}

impl Process {
    /// Writes the metrics whose values the system reports. Without free file descriptors, no value can be
    /// read.
    pub fn write(&self, text: &mut Families<'_>) {
        if let Some(start) = self.start {
            text.single(&START, start);
        }
        let Ok(process) = Myself::myself() else {
            return;
        };
        if let Ok(stat) = process.stat() {
            let seconds = (stat.utime + stat.stime) as f64 / ticks_per_second() as f64;
            text.single(&CPU, seconds);
            text.single(&RESIDENT, stat.rss * page_size());
            text.single(&VIRTUAL, stat.vsize);
            text.single(&THREADS, u64::try_from(stat.num_threads).unwrap_or_default());
        }
        if let Ok(open) = process.fd_count() {
            text.single(&OPEN_DESCRIPTORS, open as u64);
        }
        if let Ok(limits) = process.limits() {
            let max = match limits.max_open_files.soft_limit {
                LimitValue::Value(max) => max as f64,
                LimitValue::Unlimited => f64::INFINITY,
            };
            text.single(&MAX_DESCRIPTORS, max);
        }
    }
}

const START: Family = Family::gauge(
    "process_start_time_seconds",
    "When the process started, in seconds since 1970.",
);

const CPU: Family = Family::counter(
    "process_cpu_seconds_total",
    "CPU time of the process, user and system.",
);

const RESIDENT: Family = Family::gauge("process_resident_memory_bytes", "Resident memory of the process.");

const VIRTUAL: Family = Family::gauge("process_virtual_memory_bytes", "Virtual memory of the process.");

const THREADS: Family = Family::gauge("process_threads", "Threads of the process.");

const OPEN_DESCRIPTORS: Family = Family::gauge("process_open_fds", "Open file descriptors.");

const MAX_DESCRIPTORS: Family = Family::gauge("process_max_fds", "Limit of open file descriptors.");
