//! Runs fast models on the transports' threads: creates the engine's setting, and computes the number of
//! threads.

use std::{
    future::{Future, poll_fn},
    num::NonZeroUsize,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use atomic_waker::AtomicWaker;
use oip_engine::InPlace;

use oip_types::HumanDuration;

/// Returns the engine's setting: models whose runs take at most about `time` run on the thread that received
/// the request, provided that no request can make a run longer. A `time` of zero disables such runs.
pub(crate) fn setting(time: Option<HumanDuration>) -> Option<InPlace> {
    let limit = time.map_or(DEFAULT_LIMIT, |time| time.0);
    let is_wanted = !limit.is_zero();
    is_wanted.then(|| InPlace::new(limit, transport_threads() - 1, || Box::pin(others_first())))
}

/// Yields to the runtime's other tasks, whose requests then join the batch. Without it, gRPC requests
/// of a small network take 37 to 59 % more processor time with 32 callers (Xeon, 2 cores).
///
/// tokio's `yield_now` is not enough: it completes at its second poll, and a connection may poll its request
/// twice in one turn.
async fn others_first() {
    let mut turn: Option<Arc<Turn>> = None;
    poll_fn(|cx| match &turn {
        Some(turn) => {
            // A request may move to another task together with its connection.
            turn.task.register(cx.waker());
            match turn.is_over.load(Ordering::Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        }
        None => {
            let new = Arc::new(Turn {
                is_over: AtomicBool::new(false),
                task: AtomicWaker::new(),
            });
            new.task.register(cx.waker());
            let waker = Waker::from(new.clone());
            turn = Some(new);
            pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker))
        }
    })
    .await;
}

/// One turn of the runtime's other tasks. The turn ends when `task` is woken.
struct Turn {
    is_over: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.is_over.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// About the cost of two thread wake-ups and the handover between the threads.
const DEFAULT_LIMIT: Duration = Duration::from_micros(100);

/// Returns the number of threads of a lane's runtime: one per CPU, all of which may run models, and a spare
/// thread that is parked until one of them blocks.
pub(crate) fn transport_threads() -> usize {
    1 + thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tokio::{join, runtime::Builder};

    use super::*;

    #[test]
    fn others_have_their_turn_however_often_it_is_asked_whether_they_had() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let ran = AtomicU32::new(0);
        runtime.block_on(async {
            let other = tokio::spawn(async {});
            let asks_often = async {
                let mut first = pin!(others_first());
                poll_fn(|cx| {
                    for _ in 0..3 {
                        if first.as_mut().poll(cx).is_ready() {
                            return Poll::Ready(());
                        }
                    }
                    ran.fetch_add(1, Ordering::Relaxed);
                    Poll::Pending
                })
                .await;
                assert!(other.is_finished());
            };
            join!(asks_often);
        });
        assert_eq!(ran.into_inner(), 1);
    }
}
