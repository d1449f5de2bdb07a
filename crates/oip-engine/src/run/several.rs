//! Several answers to one request, on their way from the thread that runs the model to the task that takes them.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use oip_service::{CancelToken, Lease, ResponseSink};
use oip_types::{ErrorCode, InferOutput, ModelMetadata, RequestedOutput, ServiceError};

use crate::run::charging::{self, Inputs};

/// Responses that wait to be taken, at most. A model that gives them faster than its client takes them waits.
const MOST_ANSWERS: usize = 8;

/// Bytes that they have together, at most, where there are several.
const MOST_BYTES: usize = 1 << 20;

/// How often a model's thread that waits for its client looks whether the client is still there.
const TICK: Duration = Duration::from_millis(20);

/// One answer.
pub(crate) struct Part {
    pub(crate) outputs: Vec<InferOutput>,
    /// Whether the model said that no other comes.
    pub(crate) is_last: bool,
}

/// A bounded queue of answers, filled by a thread and emptied by a task.
#[derive(Default)]
pub(crate) struct Parts {
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Part>,
    bytes: usize,
    reader: Option<Waker>,
    /// The receiver is gone.
    is_closed: bool,
    /// The one was taken that the model said to be the last.
    took_last: bool,
}

impl Parts {
    /// The next answer, if there is one; else the task is woken once there is.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Part> {
        let mut state = self.lock();
        let Some(part) = state.waiting.pop_front() else {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        state.bytes -= bytes(&part);
        state.took_last |= part.is_last;
        drop(state);
        self.room.notify_one();
        Poll::Ready(part)
    }

    /// Whether the client has all, though the model may not have returned yet.
    pub(crate) fn took_last(&self) -> bool {
        self.lock().took_last
    }

    /// The receiver is gone. Answers that wait are dropped.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.room.notify_one();
        drop(waiting);
    }

    /// Puts an answer in once there is room, and returns how long that took; an error if nobody will take it.
    fn put(&self, part: Part, cancel: &CancelToken) -> Result<Duration, ServiceError> {
        let more = bytes(&part);
        let mut state = self.lock();
        let mut since = None;
        loop {
            if state.is_closed || cancel.is_cancelled() {
                return Err(nobody_takes_it(cancel));
            }
            let has_room =
                state.waiting.len() < MOST_ANSWERS && state.bytes.saturating_add(more) <= MOST_BYTES;
            if has_room || state.waiting.is_empty() {
                break;
            }
            since.get_or_insert_with(Instant::now);
            let waited = self.room.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiting.push_back(part);
        state.bytes += more;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// Updates are atomic, so lock poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(part: &Part) -> usize {
    part.outputs.iter().map(|output| output.value.raw().len()).sum()
}

fn nobody_takes_it(cancel: &CancelToken) -> ServiceError {
    match cancel.is_expired() {
        true => ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed"),
        false => ServiceError::new(ErrorCode::Cancelled, "the request was cancelled"),
    }
}

/// Takes a model's answers: each is charged to the request and checked against the metadata first.
pub(crate) struct Sink<'s> {
    pub(crate) parts: &'s Parts,
    pub(crate) metadata: &'s ModelMetadata,
    pub(crate) lends_memory: bool,
    pub(crate) inputs: Inputs,
    pub(crate) wanted: Vec<RequestedOutput>,
    pub(crate) cancel: &'s CancelToken,
    pub(crate) lease: &'s Lease,
    /// Gives the instance to others.
    pub(crate) free_instance: &'s dyn Fn(),
    pub(crate) end: SinkEnd,
}

/// How it went.
#[derive(Default)]
pub(crate) struct SinkEnd {
    /// How long the model waited for its client.
    pub(crate) blocked: Duration,
    /// The model said that no other answer comes.
    is_over: bool,
    /// Why an answer was not taken; then none is.
    failure: Option<(ErrorCode, String)>,
}

impl SinkEnd {
    /// The end of the stream: what the model says, unless it passed over an answer that was not taken, or stopped since it was
    /// told to.
    pub(crate) fn result(
        self,
        model: Result<(), ServiceError>,
        cancel: &CancelToken,
    ) -> Result<(), ServiceError> {
        match self.failure {
            Some((code, message)) => Err(ServiceError::new(code, message)),
            None if model.is_ok() && !self.is_over && cancel.is_cancelled() => Err(nobody_takes_it(cancel)),
            None => model,
        }
    }
}

impl Sink<'_> {
    fn put(&mut self, outputs: Vec<InferOutput>, is_last: bool) -> Result<(), ServiceError> {
        if let Some((code, message)) = &self.end.failure {
            return Err(ServiceError::new(*code, message.clone()));
        }
        let given = self.try_put(outputs, is_last);
        match given {
            Ok(blocked) => self.end.blocked += blocked,
            Err(error) => {
                self.end.failure = Some((error.code(), error.message().to_owned()));
                return Err(error);
            }
        }
        self.end.is_over |= is_last;
        Ok(())
    }

    fn try_put(&mut self, outputs: Vec<InferOutput>, is_last: bool) -> Result<Duration, ServiceError> {
        if self.end.is_over {
            return Err(ServiceError::internal(
                "it gave another answer after the last one",
            ));
        }
        let outputs = charging::charge_outputs(self.lease, &self.inputs, self.lends_memory, outputs)?;
        let outputs = self.metadata.pick_outputs(&self.wanted, outputs)?;
        let start = Instant::now();
        let put = self.parts.put(Part { outputs, is_last }, self.cancel);
        if put.is_err() {
            // Of a client that left while it was waited for.
            self.end.blocked += start.elapsed();
        }
        put
    }
}

impl ResponseSink for Sink<'_> {
    fn send(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        self.put(outputs, false)
    }

    fn send_last(&mut self, outputs: Vec<InferOutput>) -> Result<(), ServiceError> {
        self.put(outputs, true)
    }

    fn free_instance(&mut self) {
        (self.free_instance)();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use futures_executor::block_on;
    use tensor_core::{Shape, Tensor};

    use super::*;

    fn part(bytes: usize, is_last: bool) -> Part {
        let value = Tensor::from_vec(Shape::vector(bytes as u64), vec![1u8; bytes]).unwrap();
        Part {
            outputs: vec![InferOutput::new("y", value)],
            is_last,
        }
    }

    fn take(parts: &Parts) -> Part {
        block_on(std::future::poll_fn(|cx| parts.poll_take(cx)))
    }

    /// How many parts of a size are put in before the thread waits.
    fn fits(bytes: usize) -> usize {
        let parts = Arc::new(Parts::default());
        let cancel = CancelToken::new(None);
        let putting = thread::spawn({
            let (parts, cancel) = (parts.clone(), cancel.clone());
            move || {
                let mut count = 0;
                while parts.put(part(bytes, false), &cancel).is_ok() {
                    count += 1;
                }
                count
            }
        });
        // However long one waits, no more are put in.
        thread::sleep(Duration::from_millis(100));
        cancel.cancel();
        putting.join().unwrap()
    }

    #[test]
    fn a_model_waits_for_its_client_by_answers_and_by_bytes() {
        assert!(fits(10) <= MOST_ANSWERS);
        assert!(fits(MOST_BYTES / 2) <= 2);
        assert!(fits(MOST_BYTES * 2) <= 1);
    }

    #[test]
    fn parts_come_in_order_while_they_are_made() {
        let parts = Arc::new(Parts::default());
        let putting = thread::spawn({
            let parts = parts.clone();
            move || {
                let cancel = CancelToken::new(None);
                (0..1000).try_for_each(|size| parts.put(part(size, size == 999), &cancel).map(drop))
            }
        });
        for size in 0..1000 {
            let part = take(&parts);
            assert_eq!((bytes(&part), part.is_last), (size, size == 999));
        }
        putting.join().unwrap().unwrap();
    }

    #[test]
    fn a_model_that_waits_for_room_is_told_that_nobody_takes_any_more() {
        let parts = Arc::new(Parts::default());
        let cancel = CancelToken::new(None);
        parts.put(part(MOST_BYTES, false), &cancel).unwrap();
        let putting = thread::spawn({
            let parts = parts.clone();
            move || parts.put(part(1, false), &CancelToken::new(None)).unwrap_err()
        });
        parts.close();
        assert_eq!(putting.join().unwrap().code(), ErrorCode::Cancelled);
        let late = CancelToken::new(Some(Instant::now()));
        assert_eq!(
            parts.put(part(1, false), &late).unwrap_err().code(),
            ErrorCode::DeadlineExceeded
        );
    }
}
