//! Runs a model in place, that is, on the caller's thread, if its runs are known to be short.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use oip_model::{BoxFuture, Capabilities};
use oip_types::{ModelMetadata, TensorMetadata};

use crate::batching::scheduler::BatchPolicy;

/// Settings for running models on their callers' threads; see
/// [`EngineConfig::in_place`](crate::EngineConfig::in_place).
///
/// A request to a quick model is not passed to a thread of the model, which would cost two context switches.
/// The caller queues the request. If requests were batched recently, the caller yields to the other tasks of
/// its thread. Then the caller runs batches from the queue, including requests of other callers, under the
/// same rules as the model's threads. Whether a model is quick is measured per batch size: a size counts as
/// quick after four consecutive runs within the limit, until a run takes twice the limit. Only models that
/// [promise](oip_model::Capabilities::bounded) that the shapes of the inputs determine the run time are run
/// in place.
///
/// For a model that runs elsewhere, such as in another process, the caller
/// [starts](oip_model::Call::patience) the run and waits for up to four times the limit. If the run takes
/// longer, one of the model's threads takes over.
///
/// ```
/// use oip_engine::{EngineConfig, InPlace};
/// use std::time::Duration;
///
/// let config = EngineConfig::default().with(|config| {
///     // A runtime of 5 threads: one of them is never in a model.
///     let in_place = InPlace::new(Duration::from_micros(100), 4, || Box::pin(tokio::task::yield_now()));
///     config.in_place = Some(in_place);
/// });
/// ```
#[derive(Clone)]
pub struct InPlace {
    limit: Duration,
    others_first: fn() -> BoxFuture<'static, ()>,
    /// Number of callers that may still enter a model. Clones of the settings share the counter.
    room: Arc<AtomicUsize>,
}

impl InPlace {
    /// Creates settings for runs of at most about `limit`, by at most `at_once` concurrent callers across all
    /// models. `others_first` returns a future that becomes ready after the thread's other tasks have been
    /// polled.
    #[must_use]
    pub fn new(limit: Duration, at_once: usize, others_first: fn() -> BoxFuture<'static, ()>) -> Self {
        Self {
            limit,
            others_first,
            room: Arc::new(AtomicUsize::new(at_once)),
        }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Adapts the settings to models in other processes, where the round trip takes most of the time.
    pub(crate) fn for_models_elsewhere(self) -> Self {
        Self {
            limit: self.limit.saturating_mul(4),
            ..self
        }
    }

    /// Waits until the other tasks of this thread have been polled.
    pub(crate) async fn let_others_go_first(&self) {
        (self.others_first)().await;
    }

    /// Returns a permit to run a model on this thread; `None` if too many callers have one.
    pub(crate) fn enter(&self) -> Option<Permit<'_>> {
        let take = |room: usize| room.checked_sub(1);
        let taken = self.room.fetch_update(Ordering::Acquire, Ordering::Relaxed, take);
        taken.is_ok().then(|| Permit(&self.room))
    }
}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlace")
            .field("limit", &self.limit)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

/// A permit to run a model on the current thread.
pub(crate) struct Permit<'a>(&'a AtomicUsize);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Estimates whether a waiting request is likely to be batched with others. With a single client, waiting
/// only causes useless wake-ups.
#[derive(Debug, Default)]
pub(crate) struct Company {
    /// Number of consecutive runs with a single request.
    alone: AtomicU32,
}

/// The number of consecutive single-request runs after which the next request no longer waits for others.
const ALONE: u32 = 64;

/// While each run has a single request, one request in this many still waits for others, to detect new
/// concurrent clients.
const PROBE: u32 = 16;

/// Like [`PROBE`], for models in other processes, where waiting costs two context switches.
const PROBE_ELSEWHERE: u32 = 64;

impl Company {
    /// Returns whether the next request should yield first.
    pub(crate) fn is_likely(&self) -> bool {
        let alone = self.alone.load(Ordering::Relaxed);
        alone < ALONE || alone.is_multiple_of(PROBE)
    }

    /// Returns the same as [`Company::is_likely`], for a model in another process. Waiting costs more there,
    /// so only one in [`PROBE_ELSEWHERE`] requests waits to detect new clients.
    pub(crate) fn is_likely_elsewhere(&self) -> bool {
        let alone = self.alone.load(Ordering::Relaxed);
        alone < ALONE || alone.is_multiple_of(PROBE_ELSEWHERE)
    }

    /// Records the number of requests in a run.
    pub(crate) fn note(&self, requests: usize) {
        match requests {
            0 => {}
            1 => {
                self.alone.fetch_add(1, Ordering::Relaxed);
            }
            _ => self.alone.store(0, Ordering::Relaxed),
        }
    }
}

/// Tracks, for each batch size, whether a model's runs are quick.
pub(crate) struct Quickness {
    /// Limit in nanoseconds; 0 if no run counts as quick.
    limit: u64,
    /// The number of consecutive runs within the limit, by batch size.
    streaks: [AtomicU32; MAX_ROWS + 1],
    /// The number of consecutive quick runs after which a batch size counts as quick.
    needed: AtomicU32,
}

/// The maximum batch size that may run in place.
const MAX_ROWS: usize = 64;

/// Initial number of consecutive quick runs after which a batch size counts as quick.
const NEEDED: u32 = 4;

/// Maximum number of required quick runs, for a model that repeatedly turned out to be slow.
const MAX_NEEDED: u32 = 1 << 10;

/// After this many runs in place, a single slow run is attributed to preemption of the thread.
const FORGIVEN: u32 = 64;

impl Quickness {
    /// Creates an estimate without measurements. Without a limit, no run counts as quick.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self {
            limit: limit.map_or(0, |limit| nanos(limit).max(1)),
            streaks: [const { AtomicU32::new(0) }; MAX_ROWS + 1],
            needed: AtomicU32::new(NEEDED),
        }
    }

    /// Returns whether a batch of `rows` rows may run in place.
    pub(crate) fn is_quick(&self, rows: u64) -> bool {
        self.streak(rows)
            .is_some_and(|streak| streak.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed))
    }

    /// Records the time of a run. A run longer than the limit resets the estimate of its batch size. Once a
    /// batch size counts as quick, only a run longer than twice the limit does so.
    pub(crate) fn note(&self, rows: u64, time: Duration) {
        let Some(streak) = self.streak(rows) else {
            return;
        };
        let time = nanos(time);
        if time <= self.limit {
            let runs = streak.load(Ordering::Relaxed).saturating_add(1);
            streak.store(runs, Ordering::Relaxed);
        } else if !self.is_quick(rows) {
            streak.store(0, Ordering::Relaxed);
        } else if time > 2 * self.limit {
            // Concurrent updates may be lost, which is harmless.
            let (runs, needed) = (
                streak.load(Ordering::Relaxed),
                self.needed.load(Ordering::Relaxed),
            );
            let is_rare = runs >= needed.saturating_add(FORGIVEN);
            let needed = if is_rare {
                NEEDED
            } else {
                (needed * 2).min(MAX_NEEDED)
            };
            self.needed.store(needed, Ordering::Relaxed);
            streak.store(0, Ordering::Relaxed);
        }
    }

    /// Resets all estimates after a batch failed and its requests were run one by one: for some time no batch
    /// counts as quick.
    pub(crate) fn doubt(&self) {
        for streak in &self.streaks {
            streak.store(0, Ordering::Relaxed);
        }
    }

    fn streak(&self, rows: u64) -> Option<&AtomicU32> {
        let rows = usize::try_from(rows).ok().filter(|_| self.limit > 0)?;
        self.streaks.get(rows)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns whether the model is suitable for running in place: batches are not delayed, and run times depend
/// on the row count alone, because the first dimension of the inputs determines their shapes. For a model in
/// another process, the run time does not matter, because the caller's wait is limited.
pub(crate) fn is_suitable(policy: &BatchPolicy, metadata: &ModelMetadata, is_elsewhere: bool) -> bool {
    let is_free = |tensor: &TensorMetadata| tensor.shape.dims().first() == Some(&None);
    let is_shared = |input: &TensorMetadata| policy.independent_rows().shared_inputs.contains(&input.name);
    let has_fixed_rows = |tensor: &TensorMetadata| {
        let shape = &tensor.shape;
        let mut inner = shape.dims().iter().skip(1);
        tensor.datatype.dtype().is_some()
            && !tensor.optional
            && !shape.has_any_leading()
            && inner.all(Option::is_some)
    };
    if is_elsewhere {
        return policy.max_delay().is_zero();
    }
    policy.max_delay().is_zero()
        && !metadata.inputs.is_empty()
        && metadata.inputs.iter().all(has_fixed_rows)
        && !metadata
            .inputs
            .iter()
            .any(|input| is_free(input) && is_shared(input))
}

/// Returns whether a batch of `rows` rows may run on its caller's thread.
pub(crate) fn may_run(model: &Capabilities, quickness: &Quickness, rows: u64) -> bool {
    quickness.is_quick(rows) && (model.elsewhere || model.bounded)
}

#[cfg(test)]
mod tests {
    use oip_model::IndependentRows;
    use oip_types::DataType;

    use super::*;

    const LIMIT: Duration = Duration::from_micros(100);

    #[test]
    fn quick_is_what_was_quick_four_times_until_it_is_slow_once() {
        let quickness = Quickness::new(Some(LIMIT));
        let note = |times: u32, micros| {
            (0..times).for_each(|_| quickness.note(3, Duration::from_micros(micros)));
            quickness.is_quick(3)
        };
        assert!(!note(3, 100) && note(1, 100));
        assert!(!quickness.is_quick(2) && !quickness.is_quick(4));
        // A run between one and two limits leaves the estimate unchanged.
        assert!(note(10, 199) && !note(1, 201));
        assert!(!note(7, 50) && !note(1, 101) && !note(7, 50) && note(1, 50));
        // Repeated wrong estimates raise the number of quick runs that a model needs; many quick runs lower
        // it again.
        for needed in [16, 32, 64, 128, 256, 512, MAX_NEEDED, MAX_NEEDED] {
            assert!(!note(1, 201) && !note(needed - 1, 1) && note(1, 1), "{needed}");
        }
        assert!(note(FORGIVEN, 1) && !note(1, 201));
        assert!(!note(NEEDED - 1, 1) && note(1, 1));
        quickness.doubt();
        assert!(!quickness.is_quick(3));
    }

    #[test]
    fn rows_beyond_the_table_and_engines_without_a_limit_are_never_quick() {
        let quickness = Quickness::new(Some(LIMIT));
        let never = Quickness::new(None);
        for _ in 0..10 {
            for rows in [64, 65, u64::MAX] {
                quickness.note(rows, Duration::ZERO);
            }
            never.note(1, Duration::ZERO);
        }
        assert_eq!(
            [64, 65, u64::MAX].map(|rows| quickness.is_quick(rows)),
            [true, false, false]
        );
        assert!(!never.is_quick(1));
    }

    #[test]
    fn others_are_waited_for_where_they_came() {
        let company = Company::default();
        let waits = |runs: u32| {
            let waits = (0..runs).filter(|_| {
                let waits = company.is_likely();
                company.note(1);
                waits
            });
            waits.count()
        };
        // At first all requests wait, later only one in `PROBE`.
        assert_eq!((waits(ALONE), waits(10 * PROBE)), (64, 10));
        company.note(2);
        assert_eq!(waits(ALONE), 64);
        let mut probes = 0;
        for _ in 0..10 * PROBE_ELSEWHERE {
            probes += u32::from(company.is_likely_elsewhere());
            company.note(1);
        }
        assert_eq!(probes, 10);
    }

    #[test]
    fn no_more_callers_run_models_than_may() {
        let in_place = InPlace::new(LIMIT, 2, || Box::pin(std::future::ready(())));
        let same = in_place.clone();
        for _ in 0..2 {
            let permits = [in_place.enter(), same.enter(), in_place.enter()];
            assert_eq!(permits.map(|permit| permit.is_some()), [true, true, false]);
        }
    }

    #[test]
    fn only_rows_may_be_free() {
        let suits = |max_rows, dims: &[i64], datatype| {
            let tensor = |name: &str| TensorMetadata::new(name, datatype, dims);
            let metadata = ModelMetadata::new("m", "test_test", vec![tensor("x")], vec![tensor("y")]);
            let policy = BatchPolicy::derived(&metadata, &IndependentRows::default(), max_rows);
            assert!(is_suitable(&policy, &metadata, true));
            is_suitable(&policy, &metadata, false)
        };
        assert!(suits(64, &[-1, 16], DataType::FP32) && suits(0, &[1, 16], DataType::FP32));
        assert!(suits(0, &[-1, 16], DataType::FP32) && !suits(64, &[-1, -1], DataType::FP32));
        assert!(!suits(64, &[-1, 16], DataType::BYTES));
        // The row count does not determine the size of a table.
        let with_table = |table: &[i64]| {
            let inputs = [("x", &[-1, 16][..]), ("table", table)];
            let inputs = inputs.map(|(name, dims)| TensorMetadata::new(name, DataType::FP32, dims));
            let output = TensorMetadata::new("y", DataType::FP32, &[-1]);
            let metadata = ModelMetadata::new("m", "test_test", inputs.into(), vec![output]);
            let rows = IndependentRows::default().with_shared_input("table");
            is_suitable(&BatchPolicy::derived(&metadata, &rows, 64), &metadata, false)
        };
        assert!(with_table(&[16]) && !with_table(&[-1]));
    }
}
