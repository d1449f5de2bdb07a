//! Facts about a request for the access log and traces.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Records facts about a request on its way through the server: its model, and the duration of each phase.
///
/// If recording is enabled, a transport finds this record among the request's extensions, as
/// `Arc<RequestNotes>`, and attaches it to the request's [`Lease`](crate::Lease). Without the record, nothing
/// is recorded and no clock is read.
///
/// ```
/// use oip_resources::{Phase, RequestNotes};
/// use std::time::Duration;
///
/// let notes = RequestNotes::default();
/// notes.add(Phase::Run, Duration::from_micros(20));
/// notes.add(Phase::Run, Duration::from_micros(3));
/// assert_eq!(notes.time(Phase::Run), Some(Duration::from_micros(23)));
/// assert_eq!(notes.time(Phase::Queue), None);
/// ```
#[derive(Debug, Default)]
pub struct RequestNotes {
    model: OnceLock<String>,
    version: OnceLock<String>,
    identity: OnceLock<String>,
    /// The duration of each phase in nanoseconds, plus one; 0 if the phase did not occur.
    times: [AtomicU64; Phase::ALL.len()],
    /// The start and end of each stage, if the request is traced.
    stages: Option<Stages>,
}

#[derive(Debug, Default)]
struct Stages {
    ended: Mutex<Vec<Stage>>,
    /// The number of pipeline steps started.
    steps: AtomicU32,
}

/// A part of a traced request's time, with its start and end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stage {
    /// The kind of stage.
    pub kind: StageKind,
    /// The number of the pipeline step that the stage belongs to; 0 for the request itself.
    pub step: u32,
    /// Time at which the stage began.
    pub start: Instant,
    /// Time at which the stage ended.
    pub end: Instant,
}

/// The activity in a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StageKind {
    /// A phase other than [`Phase::Run`], which consists of the stages `Batch`, `Run` and `Split`.
    Phase(Phase),
    /// Concatenating the inputs of a batch.
    Batch,
    /// The model's own run.
    Run {
        /// The number of rows in the batch.
        rows: u64,
    },
    /// Checking outputs and splitting them by request.
    Split,
    /// A step of a pipeline, which has its own stages.
    Step {
        /// The number of the step among the request's steps, from 1.
        number: u32,
        /// The model that the step runs.
        model: String,
    },
}

/// A phase of a request's processing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for the request's bytes.
    Read,
    /// Parsing the bytes into tensors.
    Decode,
    /// Waiting for the model.
    Queue,
    /// Running the model, including building and splitting the batch. For a batched request, the time of the
    /// whole batch counts.
    Run,
    /// Serializing the response.
    Encode,
}

impl Phase {
    /// All phases, in the order in which a request passes them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Decode, Self::Queue, Self::Run, Self::Encode];
}

impl RequestNotes {
    /// Maximum number of recorded stages of a request. A stream can have any number of stages.
    pub const MOST_STAGES: usize = 256;

    /// Creates a record that includes stages, for a request that is being traced.
    ///
    /// ```
    /// use oip_resources::{Phase, RequestNotes, StageKind};
    /// use std::time::Instant;
    ///
    /// let notes = RequestNotes::traced();
    /// let start = Instant::now();
    /// notes.end_stage(StageKind::Phase(Phase::Read), 0, start, Instant::now());
    /// assert_eq!(notes.stages()[0].start, start);
    /// assert!(!RequestNotes::default().is_traced());
    /// ```
    #[must_use]
    pub fn traced() -> Self {
        Self {
            stages: Some(Stages::default()),
            ..Self::default()
        }
    }

    /// Returns whether stages are recorded.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.stages.is_some()
    }

    /// Records a stage of the request, or of one of its pipeline steps. Stages beyond [`Self::MOST_STAGES`]
    /// are dropped.
    pub fn end_stage(&self, kind: StageKind, step: u32, start: Instant, end: Instant) {
        let Some(stages) = &self.stages else { return };
        let mut ended = stages.ended.lock();
        if ended.len() < Self::MOST_STAGES {
            ended.push(Stage {
                kind,
                step,
                start,
                end,
            });
        }
    }

    /// Returns the number for a pipeline step that starts now, counted from 1; `None` if the request is not
    /// traced.
    #[must_use]
    pub fn begin_step(&self) -> Option<u32> {
        let stages = self.stages.as_ref()?;
        Some(stages.steps.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Returns all stages so far, in the order in which they ended.
    #[must_use]
    pub fn stages(&self) -> Vec<Stage> {
        let Some(stages) = &self.stages else {
            return Vec::new();
        };
        stages.ended.lock().clone()
    }

    /// Records the model. Later calls have no effect; a stream can have requests to several models.
    pub fn set_model(&self, name: &str) {
        self.model.get_or_init(|| shortened(name));
    }

    /// Records the version that ran the request.
    pub fn set_version(&self, version: &str) {
        self.version.get_or_init(|| shortened(version));
    }

    /// Records the authenticated identity of the sender.
    pub fn set_identity(&self, identity: &str) {
        self.identity.get_or_init(|| shortened(identity));
    }

    /// Returns the model, if it was recorded.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.get().map(String::as_str)
    }

    /// Returns the version that ran the request, if it was recorded.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.version.get().map(String::as_str)
    }

    /// Returns the sender's identity, if it was authenticated.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.get().map(String::as_str)
    }

    /// Adds `time` to a phase.
    pub fn add(&self, phase: Phase, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        let slot = &self.times[phase as usize];
        let first = u64::from(slot.load(Ordering::Relaxed) == 0);
        slot.fetch_add(nanoseconds.saturating_add(first), Ordering::Relaxed);
    }

    /// Returns the duration of a phase, if it occurred.
    #[must_use]
    pub fn time(&self, phase: Phase) -> Option<Duration> {
        let stored = self.times[phase as usize].load(Ordering::Relaxed);
        stored.checked_sub(1).map(Duration::from_nanos)
    }
}

/// Truncates a name for the log line, because clients can send names of any length.
fn shortened(name: &str) -> String {
    const MOST: usize = 256;
    name[..name.floor_char_boundary(MOST)].to_owned()
}

/// Measures consecutive phases, if recording is enabled.
#[derive(Debug)]
pub struct Laps(Option<(Arc<RequestNotes>, Instant)>);

impl Laps {
    /// Starts measuring now, if there is a record to add the phases to.
    #[must_use]
    pub fn new(notes: Option<&Arc<RequestNotes>>) -> Self {
        Self(notes.map(|notes| (notes.clone(), Instant::now())))
    }

    /// Adds the time since the start or the last call to the duration of `phase`.
    pub fn end(&mut self, phase: Phase) {
        if let Some((notes, since)) = &mut self.0 {
            let now = Instant::now();
            notes.add(phase, now - *since);
            notes.end_stage(StageKind::Phase(phase), 0, *since, now);
            *since = now;
        }
    }

    /// Discards the time since the start or the last call, because it is recorded elsewhere.
    pub fn skip(&mut self) {
        if let Some((_, since)) = &mut self.0 {
            *since = Instant::now();
        }
    }
}
