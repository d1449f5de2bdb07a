//! Bytes of messages count against a budget from when they come until they are answered.

use std::{
    collections::VecDeque,
    error::Error,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use oip_service::{ByteBudget, Charge};
use oip_types::{ErrorCode, ServiceError, causes};
use pin_project_lite::pin_project;
use tonic::Status;

use super::status;

/// The bytes that one call has taken of the budget; kept until its answer is made.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Mutex<State>>);

struct State {
    budget: ByteBudget,
    /// Of the message that comes, and of all messages of a call that has only one.
    permit: Charge,
    /// Of messages that have come and were not asked for yet, when the call has several.
    whole: Option<VecDeque<Charge>>,
    frame: MessageFrame,
}

impl Admission {
    pub(crate) fn new(budget: &ByteBudget) -> Result<Self, ServiceError> {
        Self::of(budget, budget.take(0)?)
    }

    fn of(budget: &ByteBudget, permit: Charge) -> Result<Self, ServiceError> {
        Ok(Self(Arc::new(Mutex::new(State {
            budget: budget.clone(),
            permit,
            whole: None,
            frame: MessageFrame::default(),
        }))))
    }

    /// From now on each message has bytes of its own, which [`Admission::next_message`] gives. To be called before
    /// the first byte of the body is read.
    pub(crate) fn count_each_message(&self) {
        self.lock().whole = Some(VecDeque::new());
    }

    /// What the next message of a call with several has taken.
    pub(crate) fn next_message(&self) -> Result<Self, ServiceError> {
        let mut state = self.lock();
        let empty = state.budget.take(0)?;
        let permit = state
            .whole
            .as_mut()
            .and_then(VecDeque::pop_front)
            .unwrap_or(empty);
        Self::of(&state.budget, permit)
    }

    /// Whether a message has begun that is not whole yet.
    pub(crate) fn is_within_message(&self) -> bool {
        self.lock().frame.has_begun()
    }

    /// Takes more bytes.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), ServiceError> {
        self.lock().permit.grow(bytes)
    }

    /// Takes as many more as make it so many: what a message has once it is decompressed.
    pub(crate) fn grow_to(&self, bytes: u64) -> Result<(), ServiceError> {
        let permit = &mut self.lock().permit;
        permit.grow(bytes.saturating_sub(permit.bytes()))
    }

    /// Takes the bytes of a part of the body.
    fn read(&self, mut part: &[u8]) -> Result<(), ServiceError> {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(whole) = &mut state.whole else {
            return state.permit.grow(part.len() as u64);
        };
        while !part.is_empty() {
            let (used, is_whole) = state.frame.read(part);
            state.permit.grow(used as u64)?;
            if is_whole {
                whole.push_back(std::mem::replace(&mut state.permit, state.budget.take(0)?));
            }
            part = &part[used..];
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds the ends of messages: a flag, the length in four bytes (big-endian), the message.
#[derive(Default)]
struct MessageFrame {
    head: [u8; 5],
    head_len: usize,
    /// Bytes of the message that are still to come, once the head is whole.
    left: usize,
}

impl MessageFrame {
    /// Goes over bytes up to the end of a message at most; returns how many, and whether the message is whole.
    fn read(&mut self, part: &[u8]) -> (usize, bool) {
        let of_head = part.len().min(self.head.len() - self.head_len);
        self.head[self.head_len..self.head_len + of_head].copy_from_slice(&part[..of_head]);
        self.head_len += of_head;
        if self.head_len < self.head.len() {
            return (of_head, false);
        }
        if of_head > 0 {
            let [_, length @ ..] = self.head;
            self.left = u32::from_be_bytes(length) as usize;
        }
        let of_message = self.left.min(part.len() - of_head);
        self.left -= of_message;
        if self.left == 0 {
            self.head_len = 0;
        }
        (of_head + of_message, self.left == 0)
    }

    fn has_begun(&self) -> bool {
        self.head_len > 0
    }
}

pin_project! {
    /// A request's body that counts against the budget for bytes in memory, and ends the call when nothing is left.
    pub struct AdmittedBody<B> {
        #[pin]
        inner: B,
        admission: Option<Admission>,
    }
}

impl<B> AdmittedBody<B> {
    pub(crate) fn new(inner: B, admission: Option<Admission>) -> Self {
        Self { inner, admission }
    }
}

impl<B> Body for AdmittedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.project();
        let Some(frame) = ready!(this.inner.poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        let admitted = frame.map_err(|error| broken(error.into())).and_then(|frame| {
            let taken = match (this.admission, frame.data_ref()) {
                (Some(admission), Some(part)) => admission.read(part),
                _ => Ok(()),
            };
            taken.map(|()| frame).map_err(|error| status::from_error(&error))
        });
        Poll::Ready(Some(admitted))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// What a message that does not come is answered with.
pub(crate) fn too_slow() -> ServiceError {
    ServiceError::new(ErrorCode::SlowRequest, "the message came too slowly")
}

/// A body that could not be read to its end: too slow, or cut off.
fn broken(error: Box<dyn Error + Send + Sync>) -> Status {
    let is_slow = causes(&*error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::TimedOut);
    if is_slow {
        return status::from_error(&too_slow());
    }
    Status::from_error(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LC-10: however a body is cut into parts, each message has what it came with, and nothing is kept for long.
    #[test]
    fn lc_10_each_message_of_a_stream_has_its_own_bytes() {
        let message = |len: u32| [&[0][..], &len.to_be_bytes(), &vec![7; len as usize]].concat();
        let lens = [0u32, 3, 300, 1];
        let body: Vec<u8> = lens.iter().flat_map(|len| message(*len)).collect();
        for size in [1, 2, 5, 7, 300, body.len()] {
            let budget = ByteBudget::new(10_000);
            let admission = Admission::new(&budget).unwrap();
            admission.count_each_message();
            for part in body.chunks(size) {
                admission.read(part).unwrap();
            }
            assert!(!admission.is_within_message());
            assert_eq!(budget.used(), body.len() as u64);
            for len in lens {
                let before = budget.used();
                let message = admission.next_message().unwrap();
                message.grow_to(10).unwrap();
                assert!(budget.used() >= before);
                drop(message);
                assert_eq!(before - budget.used(), u64::from(len) + 5, "parts of {size}");
            }
            admission.read(&message(9)[..6]).unwrap();
            assert!(admission.is_within_message());
            assert_eq!(budget.used(), 6);
            assert!(admission.read(&vec![0; 20_000]).is_err());
        }
    }
}
