//! Running a model where its request is: on the thread of the caller, for models whose runs are short and cannot be else.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use oip_service::{BoxFuture, Capabilities};
use oip_types::{ModelMetadata, TensorMetadata};

use crate::batching::scheduler::BatchPolicy;

/// How an engine runs models on the threads of its callers; see [`EngineConfig::in_place`](crate::EngineConfig::in_place).
///
/// A request to a model that is known to be quick is not handed to a thread of the model, which would cost two wake-ups of
/// other threads. It enters the queue, lets the other tasks of its thread go first where requests of others joined lately, and then its
/// caller runs what waits, others' requests included, under the rules that the model's threads have too. What is quick is measured, for each number of rows:
/// four runs in a row within the limit, until one takes twice as long. Only models that
/// [promise](oip_service::Capabilities::bounded) that a run's time follows from the shapes of its inputs are run like this.
///
/// Models that run [elsewhere](oip_service::Capabilities::elsewhere), such as in processes of their own, are called with a limit on
/// the [patience](oip_service::Call::patience) of the caller, four times that of other models; the rest of a run that is not over by
/// then is left to one of the model's threads.
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
    /// Callers that may run models now. Clones share it.
    room: Arc<AtomicUsize>,
}

impl InPlace {
    /// Runs of at most about `limit`, by at most `at_once` callers at a time, over all models. `others_first` gives a future that
    /// is ready once the caller's thread has had a look at its other tasks.
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

    /// The same for models that are only waited for: much of their time is the way there and back.
    pub(crate) fn for_models_elsewhere(self) -> Self {
        Self {
            limit: self.limit.saturating_mul(4),
            ..self
        }
    }

    /// Waits until the other tasks of this thread had their turn.
    pub(crate) async fn let_others_go_first(&self) {
        (self.others_first)().await;
    }

    /// The right to run a model on this thread, if not too many do.
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

/// The right to run a model on the current thread, until it is dropped.
pub(crate) struct Permit<'a>(&'a AtomicUsize);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Whether requests of others are likely to join one that waits for them. Waiting has a price: the thread's other tasks, or
/// another thread, are woken for nothing where there is one client.
#[derive(Debug, Default)]
pub(crate) struct Company {
    /// Runs of a single request since the last one of several.
    alone: AtomicU32,
}

/// Runs of a single request after which nobody is expected any more.
const ALONE: u32 = 64;

/// Of so many requests one still waits for others, so that it shows when there are some again.
const PROBE: u32 = 16;

/// The same for models that run elsewhere, where it takes two wake-ups of threads.
const PROBE_ELSEWHERE: u32 = 64;

impl Company {
    /// Whether the next request should let others go first.
    pub(crate) fn is_likely(&self) -> bool {
        let alone = self.alone.load(Ordering::Relaxed);
        alone < ALONE || alone.is_multiple_of(PROBE)
    }

    /// The same for a model that runs elsewhere: that others are there shows rarely, so it costs more to find out.
    pub(crate) fn is_likely_elsewhere(&self) -> bool {
        let alone = self.alone.load(Ordering::Relaxed);
        alone < ALONE || alone.is_multiple_of(PROBE_ELSEWHERE)
    }

    /// Notes how many requests a run had.
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

/// The measured times of a model's runs, by their rows.
pub(crate) struct Quickness {
    /// In nanoseconds; 0 if no run is quick enough.
    limit: u64,
    /// How many runs in a row were within the limit, by rows.
    streaks: [AtomicU32; MAX_ROWS + 1],
    /// Runs in a row after which a number of rows counts as quick.
    needed: AtomicU32,
}

/// Larger batches take the threads' way.
const MAX_ROWS: usize = 64;

/// Runs in a row that are enough at first.
const NEEDED: u32 = 4;

/// How many are needed at most, of a model that was taken for quick and was not again and again.
const MAX_NEEDED: u32 = 1 << 10;

/// A slow run after so many that were run in place is taken for the machine's doing: the thread had to let others run.
const FORGIVEN: u32 = 64;

impl Quickness {
    /// Nothing is known yet; with no limit, nothing will ever be quick enough.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self {
            limit: limit.map_or(0, |limit| nanos(limit).max(1)),
            streaks: [const { AtomicU32::new(0) }; MAX_ROWS + 1],
            needed: AtomicU32::new(NEEDED),
        }
    }

    /// Whether a batch of so many rows may be run in place.
    pub(crate) fn is_quick(&self, rows: u64) -> bool {
        self.streak(rows)
            .is_some_and(|streak| streak.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed))
    }

    /// Notes how long a run took. A run that takes twice as long as it may ends what was known at once.
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
            // Rough where several threads note runs at a time, which does no harm.
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

    /// A batch failed, so that its requests are run one by one: for some time no batch is quick.
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

/// Whether the common first dimension of a request's inputs says all about their shapes, and batches wait for nobody: only then do
/// runs with as many rows take the same time. A model that runs elsewhere is waited for only so long, whatever its requests are like.
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

/// Whether a batch of so many rows may be run where its requests are.
pub(crate) fn may_run(model: &Capabilities, quickness: &Quickness, rows: u64) -> bool {
    quickness.is_quick(rows) && (model.elsewhere || model.bounded)
}

#[cfg(test)]
mod tests {
    use oip_service::IndependentRows;
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
        // Between one and two limits it stays what it is.
        assert!(note(10, 199) && !note(1, 201));
        assert!(!note(7, 50) && !note(1, 101) && !note(7, 50) && note(1, 50));
        // Repeated wrong estimates lower the trust in a model; many quick runs restore it.
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
        // At first, then now and then.
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
        // The rows say nothing of the size of a table.
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
