//! Properties of the scheduler under random sequences of events.

use std::collections::{BTreeMap, BTreeSet};

use oip_types::{
    ModelConfig,
    model_config::{DynamicBatching, QueuePolicy, TimeoutAction},
};
use proptest::prelude::*;

use super::*;

/// An event of a random sequence.
#[derive(Clone, Debug)]
enum Event {
    /// A request arrives.
    Push {
        rows: u64,
        group: Option<u8>,
        priority: u64,
        timeout: Option<u64>,
        deadline: Option<u64>,
        is_measured_by_rows: bool,
    },
    /// A caller runs the next batch itself if the batch has at most this many rows.
    InPlace(u64),
    /// This many microseconds pass.
    Pass(u64),
    /// An instance is free.
    Next,
    /// The client of the n-th request disconnects.
    Cancel(usize),
    /// A batch's outputs have a different row count than its inputs.
    StopJoining,
}

fn event() -> impl Strategy<Value = Event> {
    let push = (
        1..=5u64,
        proptest::option::weighted(0.9, 0..3u8),
        0..=4u64,
        proptest::option::of(0..2_000u64),
        proptest::option::of(0..5_000u64),
        proptest::bool::weighted(0.8),
    );
    let push = push.prop_map(
        |(rows, group, priority, timeout, deadline, is_measured_by_rows)| Event::Push {
            rows,
            group,
            priority,
            timeout,
            deadline,
            is_measured_by_rows,
        },
    );
    prop_oneof![
        20 => push,
        6 => (0..800u64).prop_map(Event::Pass),
        8 => Just(Event::Next),
        4 => (0..10u64).prop_map(Event::InPlace),
        2 => any::<prop::sample::Index>().prop_map(|index| Event::Cancel(index.index(64))),
        1 => Just(Event::StopJoining),
    ]
}

fn queue_policy() -> impl Strategy<Value = QueuePolicy> {
    (any::<bool>(), 0..3_000u64, any::<bool>(), 0..8u32).prop_map(|(is_delay, timeout, allow, size)| {
        QueuePolicy {
            timeout_action: if is_delay {
                TimeoutAction::Delay
            } else {
                TimeoutAction::Reject
            },
            default_timeout_microseconds: timeout.saturating_sub(1_000),
            allow_timeout_override: allow,
            max_queue_size: size.saturating_sub(2),
        }
    })
}

fn policy() -> impl Strategy<Value = BatchPolicy> {
    let levels = prop_oneof![Just(0u64), 1..=3u64];
    (
        1..=8u32,
        proptest::collection::vec(1..=8u32, 0..3),
        0..1_500u64,
        levels,
        queue_policy(),
        queue_policy(),
    )
        .prop_map(|(max, preferred, delay, levels, queue, first)| {
            let config = ModelConfig {
                max_batch_size: max,
                dynamic_batching: Some(DynamicBatching {
                    preferred_batch_size: preferred.into_iter().filter(|size| *size <= max).collect(),
                    max_queue_delay_microseconds: delay.saturating_sub(500),
                    priority_levels: levels,
                    default_priority_level: levels,
                    default_queue_policy: Some(queue),
                    priority_queue_policy: (1..=levels.min(1)).map(|level| (level, first.clone())).collect(),
                    ..DynamicBatching::default()
                }),
                ..ModelConfig::default()
            };
            BatchPolicy::from_config(&config).unwrap()
        })
}

/// The test's record of a request.
#[derive(Clone, Debug)]
struct RequestRecord {
    rows: u64,
    group: Option<u8>,
    level: u64,
    since: Instant,
    /// Time at which the queue timeout expires.
    timeout: Option<Instant>,
    deadline: Option<Instant>,
    is_measured_by_rows: bool,
}

impl RequestRecord {
    /// Returns the request's sort key in the serving order; `now` must not be earlier than the last call of
    /// [`Scheduler::expire`].
    fn rank(&self, policy: &BatchPolicy, arrival: usize, now: Instant) -> (u64, bool, usize) {
        let is_late = self.timeout.is_some_and(|timeout| timeout <= now);
        (
            self.level,
            is_late && policy.is_delayed_by_timeout(self.level),
            arrival,
        )
    }
}

struct World {
    policy: BatchPolicy,
    scheduler: Scheduler<usize>,
    now: Instant,
    all: Vec<RequestRecord>,
    waiting: BTreeSet<usize>,
    tickets: BTreeMap<usize, Ticket>,
    is_joining: bool,
}

const CAPACITY: usize = 12;

impl World {
    fn push(&mut self, known: RequestRecord, ask: Ask) {
        let number = self.all.len();
        let (limit, level) = (
            self.policy.queue(known.level).max_queue_size as usize,
            known.level,
        );
        let counts = |other: &&usize| {
            let other = self.all[**other].level;
            match limit {
                0 => self.policy.queue(other).max_queue_size == 0,
                _ => other == level,
            }
        };
        let others = self.waiting.iter().filter(counts).count();
        let has_room = others < if limit == 0 { CAPACITY } else { limit };
        self.all.push(known);
        let pushed = self.scheduler.push(ask, self.now, |_| number);
        assert_eq!(pushed.is_some(), has_room, "{others} wait, the limit is {limit}");
        if let Some(ticket) = pushed {
            self.waiting.insert(number);
            self.tickets.insert(number, ticket);
        }
    }

    /// Lets a caller take the next batch, if the batch has at most `max_rows` rows.
    fn next_in_place(&mut self, max_rows: u64) {
        self.expire();
        let before = self.scheduler.len();
        match self.scheduler.next_in_place(self.now, |rows| rows <= max_rows) {
            InPlace::Idle => assert!(self.waiting.is_empty()),
            InPlace::Leave => assert!(before > 0 && self.scheduler.len() == before),
            InPlace::Run(batch) => {
                let known = batch.iter().map(|number| &self.all[*number]);
                assert!(known.clone().all(|known| known.is_measured_by_rows));
                assert!(known.map(|known| known.rows).sum::<u64>() <= max_rows);
                self.check_batch(&batch);
            }
        }
    }

    fn expire(&mut self) {
        for (number, expiry) in self.scheduler.expire(self.now) {
            assert!(self.waiting.remove(&number), "{number} left twice");
            let known = &self.all[number];
            match expiry {
                Expiry::Deadline => assert!(known.deadline.unwrap() <= self.now),
                Expiry::Timeout => {
                    assert!(known.timeout.unwrap() <= self.now);
                    assert!(!self.policy.is_delayed_by_timeout(known.level));
                }
            }
        }
        for &number in &self.waiting {
            let known = &self.all[number];
            let is_over = |time: Option<Instant>| time.is_some_and(|time| time <= self.now);
            assert!(!is_over(known.deadline), "{number} is kept beyond its deadline");
            let is_delayed = self.policy.is_delayed_by_timeout(known.level);
            assert!(!is_over(known.timeout) || is_delayed, "{number} is kept too long");
        }
    }

    fn next(&mut self) {
        self.expire();
        match self.scheduler.next(self.now) {
            Next::Idle => assert!(self.waiting.is_empty()),
            Next::WaitUntil(until) => {
                assert!(until > self.now);
                for number in &self.waiting {
                    let known = &self.all[*number];
                    assert!(
                        known.group.is_some() && self.is_joining,
                        "{number} waits for no one"
                    );
                    assert!(
                        until <= known.since + self.policy.max_delay(),
                        "{number} waits too long"
                    );
                    assert!(known.deadline.is_none_or(|deadline| until <= deadline));
                }
            }
            Next::Run(batch) => self.check_batch(&batch),
        }
    }

    fn check_batch(&mut self, batch: &[usize]) {
        let (policy, now) = (&self.policy, self.now);
        assert!(!batch.is_empty());
        let rank = |number: &usize| self.all[*number].rank(policy, *number, now);
        assert!(batch.is_sorted_by_key(rank), "{batch:?} is out of order");
        let known = |number: usize| &self.all[number];
        let first = known(batch[0]);
        let rows: u64 = batch.iter().map(|number| known(*number).rows).sum();
        assert!(batch.len() == 1 || rows <= policy.max_rows(), "{rows} rows");
        assert!(
            batch.len() == 1 || self.is_joining && first.group.is_some(),
            "joined what must run alone"
        );
        assert!(batch.iter().all(|number| known(*number).group == first.group));
        for number in batch {
            assert!(self.waiting.remove(number), "{number} left twice");
        }
        // No earlier request of the same group is skipped.
        let last = rank(&batch[batch.len() - 1]);
        let is_of_group = |number: &&usize| self.all[**number].group == first.group;
        if first.group.is_some() && self.is_joining {
            assert!(
                self.waiting
                    .iter()
                    .filter(is_of_group)
                    .all(|number| rank(number) > last)
            );
        }
        // Without a delay, the earliest request is served first.
        if policy.max_delay().is_zero() {
            let head = rank(&batch[0]);
            assert!(self.waiting.iter().all(|number| rank(number) > head));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    /// A request that bypasses the queue is one that the scheduler would have run at once and alone. Later
    /// requests are handled as if the bypassing request had been queued.
    #[test]
    fn what_passes_would_be_run_at_once(
        policy in policy(),
        events in proptest::collection::vec(event(), 1..40),
    ) {
        let now = Instant::now();
        let [mut passing, mut entering] = [(); 2].map(|()| Scheduler::new(policy.clone(), CAPACITY));
        for event in events {
            let Event::Push { rows, group, priority, timeout, deadline, is_measured_by_rows } = event else {
                let left = [&mut passing, &mut entering].map(Scheduler::drain);
                prop_assert_eq!(&left[0], &left[1]);
                continue;
            };
            let ask = Ask {
                rows,
                bytes: 0,
                key: group.map(|group| JoinKey(vec![group])),
                priority,
                timeout: timeout.map(Duration::from_micros),
                deadline: deadline.map(|deadline| now + Duration::from_micros(deadline)),
                measured_rows: is_measured_by_rows.then_some(rows),
            };
            let was_empty = entering.len() == 0;
            let Some(passed) = passing.pass(&ask, now) else {
                let pushed = [&mut passing, &mut entering]
                    .map(|scheduler| scheduler.push(ask.clone(), now, Ticket::arrival));
                prop_assert_eq!(pushed[0], pushed[1]);
                let waits = !policy.max_delay().is_zero() && group.is_some();
                let is_late = policy.timeout(policy.level(priority), ask.timeout).is_some_and(|time| time.is_zero())
                    || deadline == Some(0);
                prop_assert!(!was_empty || waits || is_late, "it could have passed");
                continue;
            };
            prop_assert!(was_empty);
            prop_assert_eq!(entering.push(ask, now, Ticket::arrival), Some(passed));
            prop_assert!(entering.expire(now).is_empty());
            prop_assert_eq!(entering.next(now), Next::Run(vec![passed.arrival()]));
        }
    }

    /// No request is lost or run twice, none runs after its deadline, batches respect their limits and the
    /// order, and no request waits longer than the policy allows while an instance is free.
    #[test]
    fn every_request_leaves_once_in_time_and_in_order(
        policy in policy(),
        events in proptest::collection::vec(event(), 1..120),
    ) {
        let mut world = World {
            scheduler: Scheduler::new(policy.clone(), CAPACITY),
            policy,
            now: Instant::now(),
            all: Vec::new(),
            waiting: BTreeSet::new(),
            tickets: BTreeMap::new(),
            is_joining: true,
        };
        for event in events {
            match event {
                Event::Push { rows, group, priority, timeout, deadline, is_measured_by_rows } => {
                    let micros = Duration::from_micros;
                    let level = world.policy.level(priority);
                    let timeout = timeout.map(micros);
                    let known = RequestRecord {
                        rows,
                        group,
                        level,
                        since: world.now,
                        timeout: world.policy.timeout(level, timeout).map(|timeout| world.now + timeout),
                        deadline: deadline.map(|deadline| world.now + micros(deadline)),
                        is_measured_by_rows,
                    };
                    let ask = Ask {
                        rows,
                        bytes: 0,
                        key: group.map(|group| JoinKey(vec![group])),
                        priority,
                        timeout,
                        deadline: known.deadline,
                        measured_rows: is_measured_by_rows.then_some(rows),
                    };
                    world.push(known, ask);
                }
                Event::Pass(time) => world.now += Duration::from_micros(time),
                Event::Next => world.next(),
                Event::InPlace(max_rows) => world.next_in_place(max_rows),
                Event::Cancel(number) => {
                    if let Some(ticket) = world.tickets.get(&number) {
                        let was_waiting = world.waiting.remove(&number);
                        prop_assert_eq!(world.scheduler.cancel(*ticket), was_waiting.then_some(number));
                    }
                }
                Event::StopJoining => {
                    world.scheduler.stop_joining();
                    world.is_joining = false;
                }
            }
            prop_assert_eq!(world.scheduler.len(), world.waiting.len());
        }
        // In the end, no request may be left in the scheduler.
        world.scheduler.flush();
        for _ in 0..=world.waiting.len() {
            world.next();
        }
        prop_assert!(world.waiting.is_empty(), "{:?} are left", world.waiting);
        prop_assert!(world.scheduler.groups.is_empty() && world.scheduler.timeouts.is_empty());
        prop_assert!(world.scheduler.limited.values().all(|count| *count == 0));
    }
}

fn scheduler(batching: DynamicBatching) -> Scheduler<u32> {
    let config = ModelConfig {
        max_batch_size: 8,
        dynamic_batching: Some(batching),
        ..ModelConfig::default()
    };
    Scheduler::new(BatchPolicy::from_config(&config).unwrap(), 100)
}

fn rows(rows: u64) -> Ask {
    Ask {
        rows,
        key: Some(JoinKey::default()),
        ..Ask::default()
    }
}

#[test]
fn preferred_sizes_are_run_at_once_and_others_wait_for_the_delay() {
    let delay = Duration::from_millis(5);
    let mut scheduler = scheduler(DynamicBatching {
        preferred_batch_size: vec![4, 6],
        max_queue_delay_microseconds: 5_000,
        ..DynamicBatching::default()
    });
    let start = Instant::now();
    let push = |scheduler: &mut Scheduler<u32>, item, count, now| {
        scheduler.push(rows(count), now, |_| item).unwrap();
    };
    push(&mut scheduler, 1, 2, start);
    assert_eq!(scheduler.next(start), Next::WaitUntil(start + delay));
    push(&mut scheduler, 2, 2, start + delay / 2);
    assert_eq!(scheduler.next(start + delay / 2), Next::Run(vec![1, 2]));
    // First 3, then 5 rows wait. Neither is a preferred size, so the batch runs when the delay of the first
    // request ends.
    push(&mut scheduler, 3, 3, start);
    push(&mut scheduler, 4, 2, start + delay / 2);
    assert_eq!(scheduler.next(start + delay / 2), Next::WaitUntil(start + delay));
    assert_eq!(scheduler.next(start + delay), Next::Run(vec![3, 4]));
    // The second request would exceed the largest preferred size, so the first one runs at once.
    push(&mut scheduler, 5, 5, start);
    push(&mut scheduler, 6, 2, start);
    assert_eq!(scheduler.next(start), Next::Run(vec![5]));
    assert_eq!(scheduler.next(start), Next::WaitUntil(start + delay));
}

#[test]
fn a_group_that_waited_long_enough_goes_before_one_that_is_full_again_and_again() {
    let mut scheduler = scheduler(DynamicBatching {
        max_queue_delay_microseconds: 5_000,
        ..DynamicBatching::default()
    });
    let start = Instant::now();
    let lonely = Ask {
        key: Some(JoinKey(vec![1])),
        ..rows(1)
    };
    scheduler.push(lonely, start, |_| 0).unwrap();
    for round in 1..=5 {
        let now = start + Duration::from_millis(round);
        scheduler.push(rows(8), now, |_| round as u32).unwrap();
        let expected = if round < 5 { round as u32 } else { 0 };
        assert_eq!(scheduler.next(now), Next::Run(vec![expected]));
    }
}

#[test]
fn higher_priorities_go_first_and_lower_ones_fill_their_batch() {
    let mut scheduler = scheduler(DynamicBatching {
        priority_levels: 3,
        default_priority_level: 3,
        ..DynamicBatching::default()
    });
    let now = Instant::now();
    for (item, count, priority) in [(1, 3, 0), (2, 3, 2), (3, 3, 1), (4, 2, 0)] {
        let ask = Ask {
            priority,
            ..rows(count)
        };
        scheduler.push(ask, now, |_| item).unwrap();
    }
    assert_eq!(scheduler.next(now), Next::Run(vec![3, 2]));
    assert_eq!(scheduler.next(now), Next::Run(vec![1, 4]));
    assert_eq!(scheduler.next(now), Next::Idle);
}
