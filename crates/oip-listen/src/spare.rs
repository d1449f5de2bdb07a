//! A spare thread: a runtime has one more thread than there are CPUs, and parks one of them while the others
//! keep up.
//!
//! Two threads that share a CPU take up to a quarter more time per request, and a request waits for
//! milliseconds whenever one thread preempts the other: with 32 callers of a server on one CPU, p99 is 5.0 ms
//! without this module and 1.2 ms with it. But a runtime with a single thread serves no request while that
//! thread is blocked, and nobody polls its I/O and timers.

use std::{sync::mpsc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{sleep, timeout},
};

/// Interval between checks of whether the threads keep up.
const INTERVAL: Duration = Duration::from_millis(20);

/// Interval between checks while the threads are idle.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum scheduling delay of a new task.
const PATIENCE: Duration = Duration::from_millis(25);

/// Parks one thread of the runtime while the others keep up, until the runtime ends. Does nothing with a
/// single thread.
pub(crate) async fn keep_one_asleep(runtime: &Handle) {
    let mut threads = Threads::of(runtime);
    if threads.progress.len() < 2 {
        return;
    }
    loop {
        // Dropping the sender wakes the parked thread.
        let (awake, spare) = mpsc::channel::<()>();
        let (asleep, is_asleep) = oneshot::channel();
        runtime.spawn(async move {
            // A worker that takes this task from the shared queue may hold another task in its LIFO slot,
            // where no other worker can steal that task. After this yield, the slot is empty.
            tokio::task::yield_now().await;
            let _ = asleep.send(());
            let _ = spare.recv();
        });
        if is_asleep.await.is_err() {
            return;
        }
        // The parked thread may have been the one that polls I/O and timers while the others sleep, so
        // another thread is woken to poll them.
        drop(runtime.spawn(async {}));
        while threads.look().await < 2 || comes_to_its_turn(runtime).await {}
        drop(awake);
        while threads.look().await > 0 {}
    }
}

/// Returns whether a new task is scheduled within [`PATIENCE`]. The new task also wakes a thread to poll I/O
/// and timers: if the thread that polled them is now blocked by work, no other thread would poll them.
async fn comes_to_its_turn(runtime: &Handle) -> bool {
    timeout(PATIENCE, runtime.spawn(async {})).await.is_ok()
}

/// The progress of a runtime's threads, as seen from outside the runtime.
struct Threads<'r> {
    runtime: &'r Handle,
    /// Each thread's park/unpark counter, which is odd while the thread is parked.
    progress: Vec<u64>,
    interval: Duration,
}

impl<'r> Threads<'r> {
    fn of(runtime: &'r Handle) -> Self {
        Self {
            runtime,
            progress: vec![0; runtime.metrics().num_workers()],
            interval: INTERVAL,
        }
    }

    /// Waits for the interval. Returns the number of threads that neither made progress nor were parked at
    /// the end of the interval.
    async fn look(&mut self) -> usize {
        sleep(self.interval).await;
        let metrics = self.runtime.metrics();
        let (mut moved, mut away) = (0, 0);
        for (worker, before) in self.progress.iter_mut().enumerate() {
            let now = metrics.worker_park_unpark_count(worker);
            let has_moved = std::mem::replace(before, now) != now;
            let waits = now % 2 == 1;
            moved += usize::from(has_moved);
            away += usize::from(!has_moved && !waits);
        }
        self.interval = if moved == 0 && away < 2 {
            IDLE_INTERVAL
        } else {
            INTERVAL
        };
        away
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        sync::atomic::{AtomicUsize, Ordering},
        thread,
        time::Instant,
    };

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime(threads: usize) -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads).enable_all().build().unwrap()
    }

    /// Returns the number of tasks that run at the same time when `tasks` blocking tasks are started.
    async fn at_once(runtime: &Handle, tasks: usize) -> usize {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..tasks).map(|_| {
            let (now, most) = (now.clone(), most.clone());
            runtime.spawn(async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
                now.fetch_sub(1, Ordering::SeqCst);
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn a_thread_sleeps_until_the_others_do_not_come_back_and_then_again() {
        for threads in [2, 3] {
            let (watched, watch) = (runtime(threads), runtime(1));
            let handle = watched.handle().clone();
            watch.spawn(async move { keep_one_asleep(&handle).await });
            watch.block_on(async {
                let handle = watched.handle();
                for _ in 0..2 {
                    // Once the spare thread is parked, one fewer thread runs tasks, whatever the load.
                    let start = Instant::now();
                    while at_once(handle, 10).await >= threads {
                        assert!(start.elapsed() < Duration::from_secs(30), "nobody sleeps");
                        sleep(INTERVAL).await;
                    }
                    let stuck = (1..threads).map(|_| {
                        let (release, gate) = mpsc::channel::<()>();
                        handle.spawn(async move { gate.recv() });
                        release
                    });
                    let stuck = stuck.collect::<Vec<_>>();
                    // Timers still fire while a thread is parked.
                    let task = handle.spawn(sleep(Duration::from_millis(1)));
                    timeout(Duration::from_secs(30), task).await.unwrap().unwrap();
                    drop(stuck);
                }
            });
            watched.shutdown_background();
        }
    }

    #[test]
    fn it_ends_with_the_runtime_and_leaves_a_single_thread_alone() {
        let watch = runtime(1);
        let single = runtime(1);
        watch.block_on(keep_one_asleep(single.handle()));
        let ends = runtime(2);
        let handle = ends.handle().clone();
        ends.shutdown_background();
        watch.block_on(keep_one_asleep(&handle));
    }
}
