//! The queue under every interleaving of its threads, or very many of them: `queue.rs` compiled once more, on `shuttle`'s
//! locks. A thread that would sleep for ever is a deadlock, which `shuttle` reports.
//!
//! `shuttle` has no clock. Here time passes with every look at it, and a wait with a time limit ends at once, so whoever
//! waits without a limit must be woken by somebody.

use std::{
    cell::Cell,
    sync::OnceLock,
    time::{Duration, Instant},
};

use oip_types::{ModelConfig, model_config::DynamicBatching};
use shuttle::{
    scheduler::{DfsScheduler, PctScheduler, RandomScheduler},
    sync::Arc,
    thread,
};

use super::scheduler::{self, Ask, BatchPolicy, JoinKey, Scheduler};
use queue::{PushError, Queue};

#[path = "queue.rs"]
mod queue;

/// `shuttle`'s locks under the standard library's names.
mod sync {
    use std::{
        ops::{Deref, DerefMut},
        time::Duration,
    };

    pub(super) use std::sync::PoisonError;

    pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> Result<MutexGuard<'_, T>, PoisonError<MutexGuard<'_, T>>> {
            Ok(MutexGuard(&self.0, self.0.lock().unwrap()))
        }
    }

    pub(super) struct MutexGuard<'a, T>(&'a shuttle::sync::Mutex<T>, shuttle::sync::MutexGuard<'a, T>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.1
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.1
        }
    }

    pub(super) struct Condvar(shuttle::sync::Condvar);

    type Waited<G> = Result<G, PoisonError<G>>;

    impl Condvar {
        pub(super) fn new() -> Self {
            Self(shuttle::sync::Condvar::new())
        }

        pub(super) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(super) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> Waited<MutexGuard<'a, T>> {
            Ok(MutexGuard(guard.0, self.0.wait(guard.1).unwrap()))
        }

        /// The time is over at once, but others may come in between.
        pub(super) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
        ) -> Waited<(MutexGuard<'a, T>, ())> {
            let MutexGuard(mutex, guard) = guard;
            drop(guard);
            shuttle::thread::yield_now();
            Ok((MutexGuard(mutex, mutex.lock().unwrap()), ()))
        }
    }
}

const TICK: Duration = Duration::from_millis(1);

/// A clock that moves by a tick whenever somebody looks. `shuttle` runs all threads of a test on one.
fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    thread_local!(static LOOKS: Cell<u32> = const { Cell::new(0) });
    let looks = LOOKS.replace(LOOKS.get().wrapping_add(1));
    *START.get_or_init(Instant::now) + TICK * looks
}

fn queue(max_queue_delay: Duration) -> Arc<Queue<u32>> {
    let config = ModelConfig {
        max_batch_size: 2,
        dynamic_batching: Some(DynamicBatching {
            max_queue_delay_microseconds: max_queue_delay.as_micros() as u64,
            ..DynamicBatching::default()
        }),
        ..ModelConfig::default()
    };
    let scheduler = Scheduler::new(BatchPolicy::from_config(&config).unwrap(), 100);
    Arc::new(Queue::new(scheduler, now))
}

fn ask(group: u8) -> Ask {
    Ask {
        rows: 1,
        key: Some(JoinKey(vec![group])),
        ..Ask::default()
    }
}

/// A thread that takes all it gets, and gives it back in the end.
fn consumer(queue: &Arc<Queue<u32>>) -> thread::JoinHandle<Vec<u32>> {
    let queue = queue.clone();
    thread::spawn(move || {
        let works = std::iter::from_fn(|| queue.take());
        works
            .flat_map(|work| {
                assert!(work.expired.is_empty() && work.batch.len() <= 2);
                work.batch
            })
            .collect()
    })
}

/// Two threads, two requests of two groups, which wait for company that does not come; then the end.
fn delayed_requests_of_two_groups() {
    let queue = queue(TICK * 3);
    let consumers = [consumer(&queue), consumer(&queue)];
    queue.push(ask(1), |_| 1).unwrap();
    queue.push(ask(2), |_| 2).unwrap();
    // Without the end: the time that passes must be enough.
    while queue.len() > 0 {
        thread::yield_now();
    }
    queue.close();
    assert_eq!(queue.push(ask(1), |_| 3), Err(PushError::Closed));
    let mut taken: Vec<u32> = consumers.into_iter().flat_map(|c| c.join().unwrap()).collect();
    taken.sort_unstable();
    assert_eq!(taken, [1, 2]);
}

/// One thread, a request that is taken back while another comes.
fn a_request_that_is_taken_back() {
    let queue = queue(Duration::ZERO);
    let consumer = consumer(&queue);
    let other = thread::spawn({
        let queue = queue.clone();
        move || queue.push(ask(1), |_| 2).is_ok()
    });
    let ticket = queue.push(ask(1), |_| 1).unwrap();
    let taken_back = queue.cancel(ticket);
    assert!(other.join().unwrap());
    queue.close();
    let mut left: Vec<u32> = consumer.join().unwrap();
    left.extend(taken_back);
    left.sort_unstable();
    assert_eq!(left, [1, 2], "a request was lost, or left twice");
}

/// Two threads, three callers with three requests each of two groups, some of which are taken back.
fn many_of_everything() {
    let queue = queue(TICK * 2);
    let consumers = [consumer(&queue), consumer(&queue)];
    let callers = (0..3u32).map(|caller| {
        let queue = queue.clone();
        thread::spawn(move || {
            let mut taken_back = Vec::new();
            for round in 0..3 {
                let item = caller * 3 + round;
                let ticket = queue.push(ask((item % 2) as u8), |_| item).unwrap();
                if round == 1 {
                    taken_back.extend(queue.cancel(ticket));
                }
            }
            taken_back
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut left: Vec<u32> = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
    queue.close();
    left.extend(consumers.into_iter().flat_map(|c| c.join().unwrap()));
    left.sort_unstable();
    assert_eq!(
        left,
        (0..9).collect::<Vec<u32>>(),
        "a request was lost, or left twice"
    );
}

fn run(scheduler: impl shuttle::scheduler::Scheduler + 'static, scenario: fn()) -> usize {
    shuttle::Runner::new(scheduler, shuttle::Config::new()).run(scenario)
}

#[test]
fn every_interleaving_of_a_request_that_is_taken_back() {
    let interleavings = run(DfsScheduler::new(None, false), a_request_that_is_taken_back);
    assert!(interleavings > 1_000, "{interleavings}");
}

#[test]
fn many_interleavings_of_waiting_for_company() {
    run(RandomScheduler::new(3_000), delayed_requests_of_two_groups);
    run(PctScheduler::new(3, 3_000), delayed_requests_of_two_groups);
}

#[test]
fn many_interleavings_of_everything() {
    run(RandomScheduler::new(1_500), many_of_everything);
    run(PctScheduler::new(3, 1_500), many_of_everything);
}
