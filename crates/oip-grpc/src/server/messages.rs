//! Splits a call's body into messages: a flag byte, a big-endian 4-byte length, and the message.
//!
//! Each message has a lease from its first byte. Its memory grows with the bytes received, whatever its
//! declared length.

use std::{error::Error, future::poll_fn, io, pin::Pin};

use bytes::{Buf, Bytes};
use http_body::Body;
use oip_resources::{Buffer, ByteBudget, CallSlot, Lease, TimeLimits, compression::Compression};
use oip_types::{ErrorCode, ServiceError, causes};
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Status};

use super::{GrpcConfig, frame_head::PartialHead, status};

/// The messages of a call.
pub(crate) struct Messages<B> {
    body: Pin<Box<B>>,
    /// Received bytes that do not belong to a message yet.
    part: Bytes,
    incoming: Option<PartialMessage>,
    compression: Option<Compression>,
    limit: usize,
    budget: ByteBudget,
    time: TimeLimits,
    /// The stream's slot while none of its requests is running. While such a stream waits for its client, it
    /// can be evicted in favor of a new one.
    place: Option<CallSlot>,
}

/// A complete message.
pub(crate) struct Message {
    pub(crate) lease: Lease,
    /// The message's compression, if any.
    pub(crate) compression: Option<Compression>,
    /// The message's bytes, which hold their charge.
    pub(crate) bytes: Bytes,
}

/// A partially received message.
struct PartialMessage {
    lease: Lease,
    since: Instant,
    head: PartialHead,
    /// The frame header, once it is complete.
    frame: Option<(Option<Compression>, usize)>,
    buffer: Buffer,
}

impl<B> Messages<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    /// Splits `body` into messages. Messages with the compressed flag use `compression`.
    pub(crate) fn new(body: B, compression: Option<Compression>, config: &GrpcConfig) -> Self {
        Self {
            body: Box::pin(body),
            part: Bytes::new(),
            incoming: None,
            compression,
            limit: config.max_message_bytes,
            budget: config.budget.clone(),
            time: config.time,
            place: None,
        }
    }

    /// Returns the next message; `None` at the end. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Status> {
        self.next_of(None).await
    }

    /// Sets the slot of a stream that waits for its client, or `None` while its requests are running. Each
    /// received part of a message postpones the eviction.
    pub(crate) fn set_resting_place(&mut self, place: Option<CallSlot>) {
        self.place = place;
    }

    /// Returns the only message of a call, charged to the call's lease.
    pub(crate) async fn only(&mut self, lease: &Lease) -> Result<Message, Status> {
        let missing = || Status::internal("Missing request message.");
        let message = self.next_of(Some(lease)).await?.ok_or_else(missing)?;
        loop {
            if !self.part.is_empty() {
                return Err(Status::internal("expected one request message, found more"));
            }
            if !self.read_part().await? {
                return Ok(message);
            }
        }
    }

    async fn next_of(&mut self, lease: Option<&Lease>) -> Result<Option<Message>, Status> {
        loop {
            if let Some(message) = self.take_message(lease)? {
                return Ok(Some(message));
            }
            let is_open = match &self.incoming {
                None => self.read_part().await?,
                // A call may be silent between messages but not within one.
                Some(PartialMessage { since, .. }) => {
                    let patience = since.checked_add(self.time.max);
                    let part = self.read_part();
                    match patience {
                        None => part.await?,
                        Some(end) => timeout_at(end, part)
                            .await
                            .unwrap_or_else(|_| Err(status::from_error(&too_slow())))?,
                    }
                }
            };
            if let (true, Some(_), Some(place)) = (is_open, &self.incoming, &self.place) {
                place.rest();
            }
            if !is_open {
                return match self.incoming {
                    None => Ok(None),
                    Some(_) => Err(Status::internal("Unexpected EOF decoding stream.")),
                };
            }
        }
    }

    /// Reads the next part of the body; returns false at the end of the body.
    async fn read_part(&mut self) -> Result<bool, Status> {
        let frame = poll_fn(|cx| self.body.as_mut().poll_frame(cx)).await;
        match frame.map(|frame| frame.map(http_body::Frame::into_data)) {
            Some(Ok(Ok(part))) => {
                self.part = part;
                Ok(true)
            }
            // Trailers are the last frame of a body.
            None | Some(Ok(Err(_))) => Ok(false),
            Some(Err(error)) => {
                let status = broken(error.into());
                if status.code() == Code::Cancelled {
                    self.incoming = None;
                    return Ok(false);
                }
                Err(status)
            }
        }
    }

    /// Consumes received bytes up to the end of a message.
    fn take_message(&mut self, lease: Option<&Lease>) -> Result<Option<Message>, Status> {
        if self.part.is_empty() {
            return Ok(None);
        }
        let refused = |error: ServiceError| status::from_error(&error);
        if self.incoming.is_none() {
            let lease = match lease {
                Some(lease) => lease.clone(),
                None => Lease::new(&self.budget, &self.time),
            };
            self.incoming = Some(PartialMessage {
                buffer: Buffer::new(&lease).map_err(refused)?,
                lease,
                since: Instant::now(),
                head: PartialHead::default(),
                frame: None,
            });
        }
        let Some(incoming) = &mut self.incoming else {
            return Ok(None);
        };
        let Some((compression, len)) = incoming.read_head(&mut self.part, self.compression, self.limit)?
        else {
            return Ok(None);
        };
        let used = self.part.len().min(len - incoming.buffer.len());
        let part = &self.part[..used];
        incoming.buffer.push(part, Some(len)).map_err(refused)?;
        self.part.advance(used);
        if incoming.buffer.len() < len {
            return Ok(None);
        }
        Ok(self.incoming.take().map(|incoming| Message {
            lease: incoming.lease,
            compression,
            bytes: incoming.buffer.finish(),
        }))
    }
}

impl PartialMessage {
    /// Reads the frame header; `None` while it is incomplete.
    fn read_head(
        &mut self,
        part: &mut Bytes,
        compression: Option<Compression>,
        limit: usize,
    ) -> Result<Option<(Option<Compression>, usize)>, Status> {
        if self.frame.is_some() {
            return Ok(self.frame);
        }
        part.advance(self.head.take(part));
        let Some((flag, len)) = self.head.get() else {
            return Ok(None);
        };
        let compression = match (flag, compression) {
            (0, _) => None,
            (1, Some(compression)) => Some(compression),
            (1, None) => {
                return Err(Status::internal(
                    "protocol error: received message with compressed-flag but no grpc-encoding was specified",
                ));
            }
            (flag, _) => {
                return Err(Status::internal(format!(
                    "protocol error: received message with invalid compression flag: {flag} (valid flags are 0 and \
                     1), while sending request"
                )));
            }
        };
        if len > limit {
            return Err(Status::resource_exhausted(format!(
                "Error, decoded message length too large: found {len} bytes, the limit is: {limit} bytes"
            )));
        }
        self.frame = Some((compression, len));
        Ok(self.frame)
    }
}

/// Creates the error for a message that arrives too slowly.
fn too_slow() -> ServiceError {
    ServiceError::new(ErrorCode::SlowRequest, "the message arrived too slowly")
}

/// Creates the error for a body that failed: too slow, or truncated.
pub(crate) fn broken(error: Box<dyn Error + Send + Sync>) -> Status {
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
    use std::{
        collections::VecDeque,
        convert::Infallible,
        task::{Context, Poll, Waker},
    };

    use http_body::Frame;

    use super::*;

    /// A body of several parts that stays open after the last one.
    struct Parts(VecDeque<Bytes>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.0.pop_front() {
                Some(part) => Poll::Ready(Some(Ok(Frame::data(part)))),
                None => Poll::Pending,
            }
        }
    }

    fn message(len: u32) -> Vec<u8> {
        [&[0][..], &len.to_be_bytes(), &vec![7; len as usize]].concat()
    }

    /// Each message counts toward the budget with exactly its own bytes, however the body is split, and
    /// nothing is retained.
    #[tokio::test]
    async fn each_message_of_a_stream_has_its_own_bytes() {
        let lens = [0u32, 3, 300, 1];
        let body: Vec<u8> = lens.iter().flat_map(|len| message(*len)).collect();
        for size in [1, 2, 5, 7, 300, body.len()] {
            let config = GrpcConfig::default().with(|config| config.budget = ByteBudget::new(10_000));
            let mut parts: VecDeque<Bytes> = body.chunks(size).map(Bytes::copy_from_slice).collect();
            parts.push_back(message(9)[..6].to_vec().into());
            let mut messages = Messages::new(Parts(parts), None, &config);
            let mut cx = Context::from_waker(Waker::noop());
            let mut next = |messages: &mut Messages<Parts>| std::pin::pin!(messages.next()).poll(&mut cx);
            let mut held = Vec::new();
            for len in lens {
                let before = config.budget.used();
                let Poll::Ready(Ok(Some(message))) = next(&mut messages) else {
                    panic!("a message of {len} bytes in parts of {size}")
                };
                assert_eq!(message.bytes, vec![7; len as usize]);
                let held_for_it = config.budget.used() - before;
                assert_eq!(held_for_it, u64::from(len), "parts of {size}");
                held.push(message);
            }
            drop(held);
            assert_eq!(config.budget.used(), 0);
            // The first part contains half a message.
            assert!(next(&mut messages).is_pending());
            assert!((1..=4).contains(&config.budget.used()));
            drop(messages);
            assert_eq!(config.budget.used(), 0);
        }
    }

    /// No memory is allocated for a message's claimed length before its bytes arrive.
    #[tokio::test]
    async fn lengths_that_lie_take_nothing() {
        let config = GrpcConfig::default();
        let head = [&[0][..], &(64u32 << 20).to_be_bytes(), &[1, 2, 3]].concat();
        let mut messages = Messages::new(Parts(VecDeque::from([head.into()])), None, &config);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(std::pin::pin!(messages.next()).poll(&mut cx).is_pending());
        assert_eq!(config.budget.used(), 12, "four times what has come");
    }
}
