use std::{
    error::Error,
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use oip_service::{BudgetPermit, ByteBudget};
use oip_types::{ErrorCode, ServiceError, causes};
use pin_project_lite::pin_project;
use tonic::Status;

use super::status;

/// The bytes that one request has taken of the budget, kept until its answer is made.
#[derive(Clone)]
pub(crate) struct Admission(Arc<Mutex<BudgetPermit>>);

impl Admission {
    pub(crate) fn new(budget: &ByteBudget) -> Result<Self, ServiceError> {
        Ok(Self(Arc::new(Mutex::new(budget.take(0)?))))
    }

    fn grow(&self, bytes: u64) -> Result<(), ServiceError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes)
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
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            let grown = this
                .admission
                .as_ref()
                .map_or(Ok(()), |admission| admission.grow(bytes));
            grown.map(|()| frame).map_err(|error| status::from_error(&error))
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

/// A body that could not be read to its end: too slow, or cut off.
fn broken(error: Box<dyn Error + Send + Sync>) -> Status {
    let is_slow = causes(&*error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::TimedOut);
    if is_slow {
        return status::from_error(&ServiceError::new(
            ErrorCode::SlowRequest,
            "the message came too slowly",
        ));
    }
    Status::from_error(error)
}
