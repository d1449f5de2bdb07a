//! Notes about a request while it is answered, for the line that is logged when it is over.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// What is noted of a request on its way through the server: the model that it is for, and how long each part took.
///
/// A transport finds one among the request's extensions, as `Arc<RequestNotes>`, if somebody wants to know, and gives it
/// to the request's [`Lease`](crate::Lease). Without one nothing is noted, and no clock is read for it.
///
/// ```
/// use oip_service::{Phase, RequestNotes};
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
    /// Nanoseconds of each phase, and one more: 0 is a phase that was not there.
    times: [AtomicU64; Phase::ALL.len()],
    /// Where each part of the time begins and ends, if the request is traced.
    stages: Option<Stages>,
}

#[derive(Debug, Default)]
struct Stages {
    ended: Mutex<Vec<Stage>>,
    /// Steps of pipelines that have begun.
    steps: AtomicU32,
}

/// A part of a traced request's time, from one instant to another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stage {
    /// The phase.
    pub kind: StageKind,
    /// The step of a pipeline that it was done for; 0 for the request itself.
    pub step: u32,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
}

/// What is done in a part of a request's time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StageKind {
    /// A phase, but for [`Phase::Run`], which is three stages.
    Phase(Phase),
    /// Joining the inputs of a batch.
    Batch,
    /// The model itself, for so many rows of all that ran together.
    Run {
        /// The rows of the batch.
        rows: u64,
    },
    /// Checking outputs and taking them apart.
    Split,
    /// A step of a pipeline, with the stages of its own.
    Step {
        /// Its number among the steps of the request, from 1.
        number: u32,
        /// The model that it runs.
        model: String,
    },
}

/// A part of the time that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for the request's bytes.
    Read,
    /// Making tensors of them.
    Decode,
    /// Waiting for the model.
    Queue,
    /// The model with the joining and the taking apart of batches; of a batch, all of it.
    Run,
    /// Making the answer's bytes.
    Encode,
}

impl Phase {
    /// All of them, in the order of a request.
    pub const ALL: [Self; 5] = [Self::Read, Self::Decode, Self::Queue, Self::Run, Self::Encode];
}

impl RequestNotes {
    /// Stages that are kept of one request: a stream can have any number.
    pub const MOST_STAGES: usize = 256;

    /// Notes with stages, for a request that is traced.
    ///
    /// ```
    /// use oip_service::{Phase, RequestNotes, StageKind};
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

    /// Whether stages are kept.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.stages.is_some()
    }

    /// Something was done for the request, or for a step of the pipeline that it is for. Beyond
    /// [`Self::MOST_STAGES`] nothing is kept.
    pub fn end_stage(&self, kind: StageKind, step: u32, start: Instant, end: Instant) {
        let Some(stages) = &self.stages else { return };
        let mut ended = stages.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.len() < Self::MOST_STAGES {
            ended.push(Stage {
                kind,
                step,
                start,
                end,
            });
        }
    }

    /// A number for a step of a pipeline that begins; `None` if the request is not traced.
    #[must_use]
    pub fn begin_step(&self) -> Option<u32> {
        let stages = self.stages.as_ref()?;
        Some(stages.steps.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// All stages so far, in the order of their ends.
    #[must_use]
    pub fn stages(&self) -> Vec<Stage> {
        let Some(stages) = &self.stages else {
            return Vec::new();
        };
        stages
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The request is for this model. The first one counts, where a stream has requests to several.
    pub fn set_model(&self, name: &str) {
        self.model.get_or_init(|| shortened(name));
    }

    /// It was answered by this version.
    pub fn set_version(&self, version: &str) {
        self.version.get_or_init(|| shortened(version));
    }

    /// It is from somebody who has proven to be this one.
    pub fn set_identity(&self, identity: &str) {
        self.identity.get_or_init(|| shortened(identity));
    }

    /// The model, if the request came so far.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.get().map(String::as_str)
    }

    /// The version that answered, if one did and has a name.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.version.get().map(String::as_str)
    }

    /// Whom it is from, if somebody has asked and knows.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        self.identity.get().map(String::as_str)
    }

    /// A phase took so long, or so much longer.
    pub fn add(&self, phase: Phase, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        let slot = &self.times[phase as usize];
        let first = u64::from(slot.load(Ordering::Relaxed) == 0);
        slot.fetch_add(nanoseconds.saturating_add(first), Ordering::Relaxed);
    }

    /// How long a phase took, if it was there.
    #[must_use]
    pub fn time(&self, phase: Phase) -> Option<Duration> {
        let stored = self.times[phase as usize].load(Ordering::Relaxed);
        stored.checked_sub(1).map(Duration::from_nanos)
    }
}

/// A name as far as a line has room for it: requests can name what they like.
fn shortened(name: &str) -> String {
    const MOST: usize = 256;
    name[..name.floor_char_boundary(MOST)].to_owned()
}

/// Takes the time of one phase after the other, if somebody wants to know.
#[derive(Debug)]
pub struct Laps(Option<(Arc<RequestNotes>, Instant)>);

impl Laps {
    /// Begins now, if there are notes to write to.
    #[must_use]
    pub fn new(notes: Option<&Arc<RequestNotes>>) -> Self {
        Self(notes.map(|notes| (notes.clone(), Instant::now())))
    }

    /// The time since the beginning, or the last call, was this phase.
    pub fn end(&mut self, phase: Phase) {
        if let Some((notes, since)) = &mut self.0 {
            let now = Instant::now();
            notes.add(phase, now - *since);
            notes.end_stage(StageKind::Phase(phase), 0, *since, now);
            *since = now;
        }
    }

    /// The time since the last call is noted elsewhere.
    pub fn skip(&mut self) {
        if let Some((_, since)) = &mut self.0 {
            *since = Instant::now();
        }
    }
}
