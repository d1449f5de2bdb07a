//! What is noted of a request while it is answered, for who writes a line about it when it is over.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
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

    /// What was done since the beginning, or the last call, was this phase.
    pub fn end(&mut self, phase: Phase) {
        if let Some((notes, since)) = &mut self.0 {
            let now = Instant::now();
            notes.add(phase, now - *since);
            *since = now;
        }
    }

    /// What was done since the last call is others' to note.
    pub fn skip(&mut self) {
        if let Some((_, since)) = &mut self.0 {
            *since = Instant::now();
        }
    }
}
