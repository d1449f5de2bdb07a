//! A bounded queue of responses to one request, between the thread that runs the model and the task that
//! sends them.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use oip_model::{CancelToken, ResponseSink};
use oip_resources::Lease;
use oip_types::{ErrorCode, InferOutput, ModelMetadata, RequestedOutput, ServiceError};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::run::charging::{self, Inputs};

/// The maximum number of queued responses. A model that sends responses faster than its client receives them
/// is blocked.
const MOST_ANSWERS: usize = 8;

/// The maximum size of the queued responses in bytes. A single response may be larger.
const MOST_BYTES: usize = 1 << 20;

/// How often a blocked model thread checks whether its client is still connected.
const TICK: Duration = Duration::from_millis(20);

/// One of several responses to a request.
pub(crate) struct Part {
    pub(crate) outputs: Vec<InferOutput>,
    /// Whether the model declared this response the last one.
    pub(crate) is_last: bool,
}

/// A bounded queue of responses, filled by a thread and emptied by a task.
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
    /// Whether the receiver was dropped.
    is_closed: bool,
    /// Whether the client has taken the response that the model declared the last one.
    took_last: bool,
}

impl Parts {
    /// Takes the next response. If there is none, the task is woken when one arrives.
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

    /// Returns whether the client has the last response, even if the model has not returned yet.
    pub(crate) fn took_last(&self) -> bool {
        self.lock().took_last
    }

    /// Closes the queue after the receiver was dropped, and drops the queued responses.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.room.notify_one();
        drop(waiting);
    }

    /// Queues a response, and blocks while the queue is full. Returns the time blocked, or an error if the
    /// receiver was dropped or the request cancelled.
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
            self.room.wait_for(&mut state, TICK);
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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

/// Receives a model's responses. Counts each response toward the memory budget and checks it against the
/// metadata.
pub(crate) struct Sink<'s> {
    pub(crate) parts: &'s Parts,
    pub(crate) metadata: &'s ModelMetadata,
    pub(crate) lends_memory: bool,
    pub(crate) inputs: Inputs,
    pub(crate) wanted: Vec<RequestedOutput>,
    pub(crate) cancel: &'s CancelToken,
    pub(crate) lease: &'s Lease,
    /// Function that frees the instance for other requests.
    pub(crate) free_instance: &'s dyn Fn(),
    pub(crate) end: SinkEnd,
}

/// The state of a response stream at its end.
#[derive(Default)]
pub(crate) struct SinkEnd {
    /// How long the client blocked the model.
    pub(crate) blocked: Duration,
    /// Whether the model sent a response that it declared the last one.
    is_over: bool,
    /// The reason why a response was rejected; all later responses are rejected too.
    failure: Option<(ErrorCode, String)>,
}

impl SinkEnd {
    /// Returns the model's result. Returns an error instead if a response was rejected, or if the model
    /// stopped early because the request was cancelled.
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
                "it gave another response after the last one",
            ));
        }
        let outputs = charging::charge_outputs(self.lease, &self.inputs, self.lends_memory, outputs)?;
        let outputs = self.metadata.pick_outputs(&self.wanted, outputs)?;
        let start = Instant::now();
        let put = self.parts.put(Part { outputs, is_last }, self.cancel);
        if put.is_err() {
            // The client disconnected while the model was blocked.
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

    /// Returns how many responses of `bytes` bytes fit into the queue.
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
        // No more responses fit, no matter how long the test waits.
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
