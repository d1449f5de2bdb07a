//! Tests the queue under all, or very many, interleavings of its threads: compiles `queue.rs` again with the
//! locks of `shuttle`. `shuttle` reports a thread that would sleep forever as a deadlock.
//!
//! `shuttle` has no clock. In these tests each read of the clock advances the time, and a timed wait ends at
//! once. A thread that waits without a timeout must therefore be woken by another thread.

use std::{
    cell::Cell,
    sync::{OnceLock, Weak},
    time::{Duration, Instant},
};

use oip_types::{ModelConfig, model_config::DynamicBatching};
use shuttle::{
    rand::Rng,
    scheduler::{DfsScheduler, PctScheduler, RandomScheduler},
    sync::{Arc, Barrier},
    thread,
};

use super::scheduler::{self, Ask, BatchPolicy, JoinKey, Scheduler, Ticket};
use queue::{PushError, Queue, Runner};

#[path = "queue.rs"]
#[allow(dead_code, reason = "the queue's own users call all of it")]
#[allow(clippy::duplicate_mod, reason = "the same code on other locks")]
mod queue;

/// The locks of `shuttle` under the names of the standard library.
mod sync {
    use std::{
        ops::{Deref, DerefMut},
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    pub(super) use std::sync::PoisonError;

    use shuttle::{
        rand::Rng,
        sync::mpsc::{Receiver, Sender, channel},
        thread,
    };

    pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> Result<MutexGuard<'_, T>, PoisonError<MutexGuard<'_, T>>> {
            Ok(MutexGuard(self, self.0.lock().unwrap()))
        }
    }

    pub(super) struct MutexGuard<'a, T>(&'a Mutex<T>, shuttle::sync::MutexGuard<'a, T>);

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

    /// Behaves like `shuttle`'s condition variable, except that a timed wait can end at any time. Until its
    /// thread runs again, such a wait still receives notifications, which exposes lost-wakeup bugs.
    #[derive(Default)]
    pub(super) struct Condvar {
        /// The waiting threads. All threads of a test run on one OS thread, so this lock is never contended.
        waiting: std::sync::Mutex<Vec<(usize, Sender<()>)>>,
        waits: AtomicUsize,
    }

    type WaitResult<G> = Result<G, PoisonError<G>>;

    impl Condvar {
        pub(super) fn new() -> Self {
            Self::default()
        }

        /// Wakes one randomly chosen waiter.
        pub(super) fn notify_one(&self) {
            thread::yield_now();
            let mut waiting = self.waiting.lock().unwrap();
            let any = match waiting.len() {
                0 => return,
                1 => 0,
                len => shuttle::rand::thread_rng().gen_range(0..len),
            };
            let (_, any) = waiting.swap_remove(any);
            drop(waiting);
            // The wait of the notified thread may have timed out.
            let _ = any.send(());
        }

        pub(super) fn notify_all(&self) {
            thread::yield_now();
            let all = std::mem::take(&mut *self.waiting.lock().unwrap());
            for (_, waiter) in all {
                let _ = waiter.send(());
            }
        }

        pub(super) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> WaitResult<MutexGuard<'a, T>> {
            let MutexGuard(mutex, guard) = guard;
            let (_, notified) = self.enter();
            drop(guard);
            notified.recv().unwrap();
            mutex.lock()
        }

        pub(super) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            _: Duration,
        ) -> WaitResult<(MutexGuard<'a, T>, ())> {
            let MutexGuard(mutex, guard) = guard;
            let (this, _notified) = self.enter();
            drop(guard);
            thread::yield_now();
            self.waiting.lock().unwrap().retain(|(other, _)| *other != this);
            Ok((mutex.lock().unwrap(), ()))
        }

        fn enter(&self) -> (usize, Receiver<()>) {
            let this = self.waits.fetch_add(1, Ordering::SeqCst);
            let (sender, receiver) = channel();
            self.waiting.lock().unwrap().push((this, sender));
            (this, receiver)
        }
    }
}

const TICK: Duration = Duration::from_millis(1);

/// Returns the time of a clock that advances by a tick on each read. `shuttle` runs all threads of a test on
/// one OS thread, so they share the thread-local counter.
fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    thread_local!(static LOOKS: Cell<u32> = const { Cell::new(0) });
    let looks = LOOKS.replace(LOOKS.get().wrapping_add(1));
    *START.get_or_init(Instant::now) + TICK * looks
}

/// Creates a queue whose threads are started by the test, before the first request.
fn queue(instances: usize, max_queue_delay: Duration) -> Arc<Queue<u32, u32>> {
    let scheduler = scheduler(max_queue_delay);
    Arc::new(Queue::new(scheduler, instances, None, now, |queue| {
        queue.not_started();
    }))
}

/// The items that the threads have taken so far.
type TakenItems = Arc<shuttle::sync::Mutex<Vec<u32>>>;

/// Creates a queue that starts its threads itself. The threads end after `max_idle`. Also returns the items
/// that the threads take.
fn queue_with_threads(instances: usize, max_idle: Option<Duration>) -> (Arc<Queue<u32, u32>>, TakenItems) {
    let taken = Arc::new(shuttle::sync::Mutex::new(Vec::new()));
    let queue = Arc::new_cyclic(|queue: &Weak<Queue<u32, u32>>| {
        let (queue, taken) = (queue.clone(), taken.clone());
        let start = move |_: &Queue<u32, u32>| {
            let (queue, taken) = (queue.upgrade().unwrap(), taken.clone());
            thread::spawn(move || {
                queue.begin();
                let mut slot = None;
                while let Some(work) = queue.take(slot) {
                    slot = work.slot;
                    thread::yield_now();
                    let mut taken = taken.lock().unwrap();
                    taken.extend(work.batch);
                    taken.extend(work.rest);
                }
            });
        };
        Queue::new(scheduler(Duration::ZERO), instances, max_idle, now, start)
    });
    (queue, taken)
}

fn scheduler(max_queue_delay: Duration) -> Scheduler<u32> {
    let config = ModelConfig {
        max_batch_size: 2,
        dynamic_batching: Some(DynamicBatching {
            max_queue_delay_microseconds: max_queue_delay.as_micros() as u64,
            ..DynamicBatching::default()
        }),
        ..ModelConfig::default()
    };
    Scheduler::new(BatchPolicy::from_config(&config).unwrap(), 100)
}

fn ask(group: u8) -> Ask {
    Ask {
        rows: 1,
        measured_rows: Some(1),
        key: Some(JoinKey(vec![group])),
        ..Ask::default()
    }
}

fn push(queue: &Queue<u32, u32>, group: u8, item: u32) -> Ticket {
    queue.push(ask(group), Runner::Thread, |_| item).unwrap().0
}

/// Runs the item on the caller if the queue allows it, and returns all items that the caller ran.
fn run_in_place(queue: &Queue<u32, u32>, is_quick: bool, item: u32) -> Vec<u32> {
    let may_pass = is_quick && shuttle::rand::thread_rng().gen_bool(0.5);
    if may_pass && let Some((_, slot)) = queue.pass(&ask(1), now(), |_| {}) {
        thread::yield_now();
        queue.done_in_place(slot);
        return vec![item];
    }
    let (ticket, runner) = queue.push(ask(1), Runner::Caller, |_| item).unwrap();
    if runner == Runner::Thread {
        return Vec::new();
    }
    let mut batches = Vec::new();
    for _ in 0..2 {
        thread::yield_now();
        let Some(work) = queue.take_in_place(ticket, |_| is_quick) else {
            return batches;
        };
        assert!(work.expired.is_empty() && work.batch.len() <= 2);
        thread::yield_now();
        queue.done_in_place(work.slot.unwrap());
        batches.extend(work.batch);
    }
    queue.leave();
    batches
}

/// Starts a thread that takes items until the queue is closed, and then returns the items.
fn consumer(queue: &Arc<Queue<u32, u32>>) -> thread::JoinHandle<Vec<u32>> {
    let queue = queue.clone();
    queue.enlist();
    thread::spawn(move || {
        let (mut taken, mut slot) = (Vec::new(), None);
        while let Some(work) = queue.take(slot) {
            assert!(work.expired.is_empty() && work.batch.len() <= 2);
            taken.extend(work.batch);
            taken.extend(work.rest);
            slot = work.slot;
        }
        taken
    })
}

/// Two threads serve two requests of different groups. Each request waits for others to join it, but none
/// arrive. A thread with one request stays busy until the other request has run, so the other thread must not
/// sleep.
fn delayed_requests_of_two_groups() {
    let queue = queue(2, TICK * 8);
    let both = Arc::new(Barrier::new(2));
    let consumers = [0, 1].map(|_| {
        let (queue, both) = (queue.clone(), both.clone());
        queue.enlist();
        thread::spawn(move || {
            let mut slot = None;
            while let Some(work) = queue.take(slot) {
                assert_eq!(work.batch.len(), 1);
                both.wait();
                slot = work.slot;
            }
        })
    });
    push(&queue, 1, 1);
    push(&queue, 2, 2);
    // Closing the queue would wake all threads; here only the passing time may wake them.
    while queue.len() > 0 {
        thread::yield_now();
    }
    queue.close();
    assert_eq!(queue.push(ask(1), Runner::Thread, |_| 3), Err(PushError::Closed));
    consumers
        .into_iter()
        .for_each(|consumer| consumer.join().unwrap());
}

/// A request that is cancelled while the only thread waits is either run or returned, exactly once.
fn a_request_that_is_taken_back() {
    let queue = queue(1, Duration::ZERO);
    let consumer = consumer(&queue);
    let ticket = push(&queue, 1, 1);
    let taken_back = queue.cancel(ticket);
    queue.close();
    let mut left: Vec<u32> = consumer.join().unwrap();
    left.extend(taken_back);
    assert_eq!(left, [1], "a request was lost, or left twice");
}

/// A request that arrives while the queue is being closed is either refused or run by the only thread.
fn a_request_at_the_end() {
    let queue = queue(1, Duration::ZERO);
    let consumer = consumer(&queue);
    let caller = thread::spawn({
        let queue = queue.clone();
        move || queue.push(ask(1), Runner::Thread, |_| 1).is_ok()
    });
    queue.close();
    let is_taken = caller.join().unwrap();
    assert_eq!(consumer.join().unwrap(), vec![1; usize::from(is_taken)]);
}

/// Two threads serve three callers that send three requests each, in two groups. Some requests are cancelled.
/// Each request leaves the queue exactly once.
fn many_of_everything() {
    let queue = queue(2, TICK * 2);
    let consumers = [consumer(&queue), consumer(&queue)];
    let callers = (0..3u32).map(|caller| {
        let queue = queue.clone();
        thread::spawn(move || {
            let mut taken_back = Vec::new();
            for round in 0..3 {
                let item = caller * 3 + round;
                let ticket = push(&queue, (item % 2) as u8, item);
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

/// Three callers try to run their requests in place on the only instance; one request is too slow for running
/// in place. Either the thread or the callers may empty the queue, and closing the queue must not depend on
/// the thread.
fn requests_that_are_run_in_place() {
    let queue = queue(1, Duration::ZERO);
    let consumer = consumer(&queue);
    let callers = (0..3u32).map(|item| {
        let queue = queue.clone();
        thread::spawn(move || run_in_place(&queue, item > 0, item))
    });
    let callers: Vec<_> = callers.collect();
    let mut left: Vec<u32> = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
    while queue.len() > 0 {
        thread::yield_now();
    }
    queue.close();
    left.extend(consumer.join().unwrap());
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2], "a request was lost, or left twice");
}

/// A caller occupies the only instance while the queue is closed: the thread must neither sleep forever nor
/// end too early.
fn the_end_while_a_caller_runs_its_request() {
    let queue = queue(1, Duration::ZERO);
    let consumer = consumer(&queue);
    let caller = thread::spawn({
        let queue = queue.clone();
        move || run_in_place(&queue, true, 1)
    });
    let other = thread::spawn({
        let queue = queue.clone();
        move || match queue.push(ask(2), Runner::Thread, |_| 2) {
            Ok((ticket, _)) => queue.cancel(ticket),
            Err(_) => Some(2),
        }
    });
    let mut left = caller.join().unwrap();
    queue.close();
    left.extend(other.join().unwrap());
    left.extend(consumer.join().unwrap());
    left.sort_unstable();
    assert_eq!(left, [1, 2], "a request was lost, or left twice");
}

/// Two callers start their requests and pass the runs to one of two threads; a third request is left to the
/// threads. There are two instances. Each request runs once, although the queue is closed meanwhile.
fn runs_that_are_left_to_threads() {
    let queue = queue(2, Duration::ZERO);
    let consumers = [consumer(&queue), consumer(&queue)];
    let callers = (0..2u32).map(|item| {
        let queue = queue.clone();
        thread::spawn(move || {
            let Ok((ticket, runner)) = queue.push(ask(1), Runner::Caller, |_| item) else {
                return Some(item);
            };
            if runner == Runner::Thread {
                return None;
            }
            let work = queue.take_in_place(ticket, |_| true)?;
            thread::yield_now();
            let mut batch = work.batch.into_iter();
            let rest = batch.next().unwrap();
            queue.hand_over(work.slot.unwrap(), rest);
            batch.next()
        })
    });
    let callers: Vec<_> = callers.collect();
    let other = thread::spawn({
        let queue = queue.clone();
        move || queue.push(ask(2), Runner::Thread, |_| 2).err().map(|_| 2)
    });
    queue.close();
    let mut left: Vec<u32> = other.join().unwrap().into_iter().collect();
    left.extend(callers.into_iter().filter_map(|caller| caller.join().unwrap()));
    left.extend(consumers.into_iter().flat_map(|c| c.join().unwrap()));
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2], "a request was lost, or left twice");
}

/// A caller passes its run on the only instance to the only thread while another request is queued. The
/// thread takes both before the queue is closed.
fn a_run_that_is_left_to_a_thread_with_another_one_behind_it() {
    let queue = queue(1, Duration::ZERO);
    let taken = Arc::new(shuttle::sync::atomic::AtomicUsize::new(0));
    queue.enlist();
    let consumer = thread::spawn({
        let (queue, taken) = (queue.clone(), taken.clone());
        move || {
            let mut slot = None;
            while let Some(work) = queue.take(slot) {
                let count = work.batch.len() + usize::from(work.rest.is_some());
                taken.fetch_add(count, shuttle::sync::atomic::Ordering::SeqCst);
                slot = work.slot;
            }
        }
    });
    let (ticket, runner) = queue.push(ask(1), Runner::Caller, |_| 1).unwrap();
    let work = match runner {
        Runner::Caller => queue.take_in_place(ticket, |_| true),
        Runner::Thread => None,
    };
    push(&queue, 2, 2);
    if let Some(work) = work {
        queue.hand_over(work.slot.unwrap(), 1);
    }
    while taken.load(shuttle::sync::atomic::Ordering::SeqCst) < 2 {
        thread::yield_now();
    }
    queue.close();
    consumer.join().unwrap();
}

/// Three callers use two instances that have no threads yet: one passes its run to a thread, one cancels its
/// request, one waits. All requests are taken before the queue is closed, so the test hangs if a thread is
/// not started or ends too early.
fn threads_that_start_when_requests_come(max_idle: Option<Duration>) {
    let (queue, taken) = queue_with_threads(2, max_idle);
    let callers = (0..3u32).map(|item| {
        let queue = queue.clone();
        thread::spawn(move || {
            if item > 0 {
                let ticket = push(&queue, item as u8, item);
                return (item == 1).then(|| queue.cancel(ticket)).flatten();
            }
            let (ticket, runner) = queue.push(ask(3), Runner::Caller, |_| item).unwrap();
            if runner == Runner::Caller
                && let Some(work) = queue.take_in_place(ticket, |_| true)
            {
                queue.hand_over(work.slot.unwrap(), item);
            }
            None
        })
    });
    let callers: Vec<_> = callers.collect();
    let left: Vec<u32> = callers.into_iter().filter_map(|c| c.join().unwrap()).collect();
    while taken.lock().unwrap().len() + left.len() < 3 {
        thread::yield_now();
    }
    queue.close();
    while !queue.is_over() {
        thread::yield_now();
    }
    let mut left = left;
    left.extend(taken.lock().unwrap().iter());
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2], "a request was lost, or left twice");
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
fn many_interleavings_of_a_request_at_the_end() {
    run(RandomScheduler::new(1_000), a_request_at_the_end);
    run(PctScheduler::new(3, 1_000), a_request_at_the_end);
}

#[test]
fn many_interleavings_of_waiting_for_company() {
    run(RandomScheduler::new(1_000), delayed_requests_of_two_groups);
    run(PctScheduler::new(3, 1_000), delayed_requests_of_two_groups);
}

#[test]
fn many_interleavings_of_requests_that_are_run_in_place() {
    run(RandomScheduler::new(2_000), requests_that_are_run_in_place);
    run(PctScheduler::new(3, 2_000), requests_that_are_run_in_place);
}

#[test]
fn many_interleavings_of_the_end_while_a_caller_runs_its_request() {
    run(
        RandomScheduler::new(1_000),
        the_end_while_a_caller_runs_its_request,
    );
    run(
        PctScheduler::new(3, 1_000),
        the_end_while_a_caller_runs_its_request,
    );
}

#[test]
fn many_interleavings_of_runs_that_are_left_to_threads() {
    for scenario in [
        runs_that_are_left_to_threads,
        a_run_that_is_left_to_a_thread_with_another_one_behind_it,
    ] {
        run(RandomScheduler::new(2_000), scenario);
        run(PctScheduler::new(3, 2_000), scenario);
    }
}

#[test]
fn many_interleavings_of_threads_that_start_on_demand() {
    for scenario in [
        || threads_that_start_when_requests_come(None),
        || threads_that_start_when_requests_come(Some(TICK * 3)),
    ] {
        run(RandomScheduler::new(2_000), scenario);
        run(PctScheduler::new(3, 2_000), scenario);
    }
}

/// Threads cannot be started: runs that callers passed on are dropped, and their slots are freed.
#[test]
fn without_a_thread_a_run_that_is_left_gives_its_slot_back() {
    run(RandomScheduler::new(100), || {
        let queue = queue(1, Duration::ZERO);
        let (_, slot) = queue.pass(&ask(1), now(), |_| {}).unwrap();
        queue.hand_over(slot, 1);
        let (_, slot) = queue.pass(&ask(1), now(), |_| {}).unwrap();
        queue.done_in_place(slot);
        queue.close();
        assert!(queue.is_over());
    });
}

#[test]
fn many_interleavings_of_everything() {
    run(RandomScheduler::new(500), many_of_everything);
    run(PctScheduler::new(3, 500), many_of_everything);
}
