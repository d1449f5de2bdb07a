use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// A bounded queue between the callers of a model and its threads.
///
/// Pushing never waits: a full queue gives the item back. Popping waits until there is an item or the queue is
/// closed and empty.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

struct State<T> {
    items: VecDeque<T>,
    is_closed: bool,
}

/// Why an item was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    /// As many items wait as may.
    Full,
    /// No item is taken any more.
    Closed,
}

impl<T> Queue<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state = State {
            items: VecDeque::new(),
            is_closed: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            capacity,
        }
    }

    pub(crate) fn push(&self, item: T) -> Result<(), PushError> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(PushError::Closed);
        }
        if state.items.len() >= self.capacity {
            return Err(PushError::Full);
        }
        state.items.push_back(item);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The item that has waited longest; `None` once the queue is closed and empty.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes no more items; those that wait are still popped.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Nothing panics while it holds the lock, so a poisoned one is as good as any.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn a_full_queue_refuses_at_once() {
        let queue = Queue::new(2);
        assert_eq!(
            [queue.push(1), queue.push(2), queue.push(3)],
            [Ok(()), Ok(()), Err(PushError::Full)]
        );
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.push(3), Ok(()));
        assert_eq!([queue.pop(), queue.pop()], [Some(2), Some(3)]);
    }

    #[test]
    fn a_closed_queue_gives_out_what_it_has_and_ends_those_who_wait() {
        let queue = Arc::new(Queue::new(10));
        let waiting = thread::spawn({
            let queue = queue.clone();
            move || std::iter::from_fn(|| queue.pop()).sum::<i32>()
        });
        for item in 1..=4 {
            queue.push(item).unwrap();
        }
        queue.close();
        assert_eq!(queue.push(5), Err(PushError::Closed));
        assert_eq!(waiting.join().unwrap(), 10);
    }
}
