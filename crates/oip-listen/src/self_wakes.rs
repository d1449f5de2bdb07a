//! Handles futures that wake themselves while they are polled.
//!
//! hyper's futures wake themselves for every request with a body, because the parts of a connection's task
//! notify each other. A multi-threaded runtime treats the wake as new work: it queues the task, wakes another
//! thread to help, and polls again, which makes no progress. With one client this costs two thread switches
//! per request: without this module, a small request takes a quarter longer (Xeon, 2 cores). With 8 or 32
//! clients it makes no difference.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use atomic_waker::AtomicWaker;

/// Polls a future again if it woke itself, instead of waking its task.
#[derive(Debug)]
pub(crate) struct SelfWakes {
    state: Arc<State>,
    /// The waker of `state`, created once.
    waker: Waker,
}

#[derive(Debug)]
struct State {
    phase: AtomicU8,
    task: AtomicWaker,
}

/// The future is not being polled: a wake goes to the task.
const IDLE: u8 = 0;
/// The future is being polled and was not woken since the poll began.
const POLLED: u8 = 1;
/// The future is being polled and was woken since the poll began.
const WOKEN: u8 = 2;

impl SelfWakes {
    pub(crate) fn new() -> Self {
        let state = Arc::new(State {
            phase: AtomicU8::new(IDLE),
            task: AtomicWaker::new(),
        });
        Self {
            waker: Waker::from(state.clone()),
            state,
        }
    }

    /// Polls the future, and polls it a second time if it woke itself. If the future wakes itself again, or
    /// if `is_turn_over` returns true, the task is woken as usual.
    pub(crate) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        is_turn_over: impl Fn() -> bool,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let State { phase, task } = &*self.state;
        task.register(cx.waker());
        for _ in 0..2 {
            phase.store(POLLED, Ordering::Release);
            let polled = poll(&mut Context::from_waker(&self.waker));
            let was_woken = phase.swap(IDLE, Ordering::AcqRel) == WOKEN;
            let is_turn_over = is_turn_over();
            if polled.is_ready() || !was_woken {
                return polled;
            }
            if is_turn_over {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Stores the phase even if it is unchanged, so that this thread's earlier writes are visible to the
        // next poll.
        let note = |phase| (phase != IDLE).then_some(WOKEN);
        let noted = self.phase.fetch_update(Ordering::AcqRel, Ordering::Acquire, note);
        if noted.is_err() {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts how often the task is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of polls, and of task wakes, for a future that wakes itself in its first
    /// `self_wakes` polls.
    fn polls_and_wakes(self_wakes: u32, is_turn_over: bool) -> (u32, usize) {
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let mut polls = 0;
        let polled = SelfWakes::new().poll(
            &mut Context::from_waker(&waker),
            || is_turn_over,
            |cx| {
                polls += 1;
                if polls <= self_wakes {
                    cx.waker().wake_by_ref();
                    cx.waker().wake_by_ref();
                }
                Poll::<()>::Pending
            },
        );
        assert!(polled.is_pending());
        (polls, task.0.load(Ordering::Relaxed))
    }

    #[test]
    fn who_wakes_itself_is_polled_once_more_and_then_has_to_wait() {
        assert_eq!(polls_and_wakes(0, false), (1, 0));
        assert_eq!(polls_and_wakes(1, false), (2, 0));
        assert_eq!(polls_and_wakes(2, false), (2, 1));
        assert_eq!(polls_and_wakes(9, false), (2, 1));
        assert_eq!(polls_and_wakes(1, true), (1, 1));
        assert_eq!(polls_and_wakes(0, true), (1, 0));
    }

    #[test]
    fn wakes_between_polls_reach_the_task_that_polled_last() {
        let self_wakes = SelfWakes::new();
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let mut kept = None;
        for task in &tasks {
            let waker = Waker::from(task.clone());
            let polled = self_wakes.poll(
                &mut Context::from_waker(&waker),
                || false,
                |cx| {
                    kept = Some(cx.waker().clone());
                    Poll::<()>::Pending
                },
            );
            assert!(polled.is_pending());
        }
        kept.unwrap().wake();
        assert_eq!(tasks.map(|task| task.0.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn a_wake_of_another_thread_is_never_lost() {
        // However wake and poll interleave, the future is polled again or the task is woken.
        for _ in 0..2_000 {
            let task = Arc::new(Task::default());
            let waker = Waker::from(task.clone());
            let self_wakes = SelfWakes::new();
            let is_there = Arc::new(AtomicUsize::new(0));
            let mut seen = 0;
            let mut other = None;
            let polled = self_wakes.poll(
                &mut Context::from_waker(&waker),
                || false,
                |cx| {
                    other.get_or_insert_with(|| {
                        let (waker, is_there) = (cx.waker().clone(), is_there.clone());
                        std::thread::spawn(move || {
                            is_there.store(1, Ordering::Release);
                            waker.wake();
                        })
                    });
                    seen = is_there.load(Ordering::Acquire);
                    Poll::<()>::Pending
                },
            );
            assert!(polled.is_pending());
            other.unwrap().join().unwrap();
            assert!(seen == 1 || task.0.load(Ordering::Relaxed) > 0);
        }
    }
}
