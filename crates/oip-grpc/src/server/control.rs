//! Messages of all calls except inference, which `tonic` reads and `prost` decodes. These messages are small,
//! and their decoded size is charged to the call's lease before they are decoded.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use oip_resources::{Charge, Lease};
use oip_types::ServiceError;
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tonic::Status;

use super::{frame_head::PartialHead, messages::broken, status};

/// Maximum size of a control message in bytes. The largest plausible one carries a model configuration in a
/// load request.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// Maximum ratio of decoded to encoded size: an empty string in a list takes 2 bytes encoded and 24 decoded,
/// and a list may take three times as much memory while it grows.
const DECODED: u64 = 48;

/// Bytes of memory per received byte of an incomplete message. While its buffer grows, the previous smaller
/// buffer exists too.
const GROWING: u64 = 4;

/// The charge for the memory of a call's messages, held until the response.
#[derive(Clone)]
pub(crate) struct ControlCharge(Arc<Mutex<Charge>>);

impl ControlCharge {
    pub(crate) fn new(lease: &Lease) -> Result<Self, ServiceError> {
        Ok(Self(Arc::new(Mutex::new(lease.charge(0)?))))
    }

    /// Charges a message, or its received part, to the lease. A call's messages are decoded one at a time, so
    /// only the largest message counts.
    fn cover(&self, seen: MessagePart) -> Result<(), ServiceError> {
        let most = |bytes: usize| bytes.min(MAX_MESSAGE) as u64;
        let bytes = match seen {
            MessagePart::Nothing => return Ok(()),
            MessagePart::Part(bytes) => most(bytes) * GROWING,
            // A compressed message may expand to the limit. A message with a larger declared length is
            // rejected unread.
            MessagePart::Whole {
                is_compressed: true, ..
            } => MAX_MESSAGE as u64 * DECODED,
            MessagePart::Whole { bytes, .. } => most(bytes) * DECODED,
        };
        let mut charge = self.0.lock();
        let missing = bytes.saturating_sub(charge.bytes());
        charge.grow(missing)
    }
}

/// Finds message boundaries in a body.
#[derive(Default)]
struct Messages {
    head: PartialHead,
    /// Bytes received of the message, without its head.
    seen: usize,
}

/// The received part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessagePart {
    /// An incomplete frame header.
    Nothing,
    /// The number of bytes that have arrived of an incomplete message.
    Part(usize),
    Whole {
        is_compressed: bool,
        bytes: usize,
    },
}

impl Messages {
    /// Scans bytes up to the end of the current message; returns the received part of that message, and the
    /// bytes after it.
    fn read<'p>(&mut self, part: &'p [u8]) -> (MessagePart, &'p [u8]) {
        let part = &part[self.head.take(part)..];
        let Some((flag, bytes)) = self.head.get() else {
            return (MessagePart::Nothing, part);
        };
        let (of_message, rest) = part.split_at(part.len().min(bytes - self.seen));
        self.seen += of_message.len();
        if self.seen < bytes {
            return (MessagePart::Part(self.seen), rest);
        }
        *self = Self::default();
        let is_compressed = flag != 0;
        (MessagePart::Whole { is_compressed, bytes }, rest)
    }
}

pin_project! {
    /// A request body that charges its messages to the call's lease: the received bytes as they arrive, and
    /// the decoded size before decoding.
    pub struct ControlBody<B> {
        #[pin]
        inner: B,
        messages: Messages,
        charge: ControlCharge,
    }
}

impl<B> ControlBody<B> {
    pub(crate) fn new(inner: B, charge: ControlCharge) -> Self {
        Self {
            inner,
            messages: Messages::default(),
            charge,
        }
    }
}

impl<B> Body for ControlBody<B>
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
        let charged = frame.map_err(|error| broken(error.into())).and_then(|frame| {
            let mut part = frame.data_ref().map(|part| &part[..]).unwrap_or_default();
            while !part.is_empty() {
                let (seen, rest) = this.messages.read(part);
                part = rest;
                let covered = this.charge.cover(seen);
                covered.map_err(|error| status::from_error(&error))?;
            }
            Ok(frame)
        });
        Poll::Ready(Some(charged))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use oip_resources::{ByteBudget, TimeLimits};
    use prost::Message;

    use super::*;
    use crate::proto::{LogSettingsRequest, RepositoryModelLoadRequest, TraceSettingRequest};

    /// All messages are found, however the body is split.
    #[test]
    fn messages_are_found() {
        let body: Vec<u8> = [0u32, 3, 300, 1]
            .iter()
            .flat_map(|len| [&[0][..], &len.to_be_bytes(), &vec![7; *len as usize]].concat())
            .collect();
        for size in [1, 2, 5, 7, 300, body.len()] {
            let (mut messages, mut found) = (Messages::default(), Vec::new());
            for mut part in body.chunks(size) {
                while !part.is_empty() {
                    let (seen, rest) = messages.read(part);
                    if let MessagePart::Whole {
                        bytes,
                        is_compressed: false,
                    } = seen
                    {
                        found.push(bytes);
                    }
                    part = rest;
                }
            }
            assert_eq!(found, [0, 3, 300, 1], "parts of {size}");
        }
    }

    #[test]
    fn the_largest_message_of_a_call_counts() {
        let budget = ByteBudget::new(1 << 20);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let charge = ControlCharge::new(&lease).unwrap();
        let whole = |bytes, is_compressed| MessagePart::Whole { bytes, is_compressed };
        charge.cover(whole(100, false)).unwrap();
        charge.cover(whole(10, false)).unwrap();
        assert_eq!(budget.used(), 100 * DECODED);
        assert!(charge.cover(whole(1 << 20, false)).is_err());
        assert!(charge.cover(whole(1, true)).is_err());
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

    /// A message that declares a large length counts toward the budget only with the bytes that have arrived.
    #[test]
    fn messages_are_charged_as_they_come() {
        let budget = ByteBudget::new(1 << 20);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let charge = ControlCharge::new(&lease).unwrap();
        let mut messages = Messages::default();
        let mut send = |part: &[u8]| charge.cover(messages.read(part).0).unwrap();
        send(&[0, 0, 16, 0, 0]);
        send(&[7; 1000]);
        assert_eq!(budget.used(), 1000 * GROWING);
        send(&[7; 1000]);
        assert_eq!(budget.used(), 2000 * GROWING);
    }

    /// Decoding takes at most [`DECODED`] times the size of the message, even for the worst cases: maps and
    /// lists of nearly empty items.
    #[test]
    fn no_message_takes_more_than_the_factor() {
        const SIZE: usize = 256 << 10;
        fn peak<M: Message + Default>(message: &[u8]) -> u64 {
            allocation_counter::measure(|| drop(M::decode(message).unwrap())).bytes_max
        }
        let entries = |tag| {
            let mut entries = Vec::new();
            for index in 0u32.. {
                if entries.len() >= SIZE {
                    break;
                }
                let mut entry = Vec::new();
                prost::encoding::string::encode(1, &format!("{index:x}"), &mut entry);
                prost::encoding::bytes::encode(tag, &entry, &mut entries);
            }
            entries
        };
        let bound = |message: &[u8]| message.len() as u64 * DECODED;
        let (log, load) = (entries(1), entries(3));
        assert!(peak::<LogSettingsRequest>(&log) < bound(&log));
        assert!(peak::<RepositoryModelLoadRequest>(&load) < bound(&load));
        let (mut entry, mut trace) = (Vec::new(), Vec::new());
        prost::encoding::bytes::encode(2, &[0x0a, 0].repeat(SIZE / 2), &mut entry);
        prost::encoding::bytes::encode(1, &entry, &mut trace);
        assert!(peak::<TraceSettingRequest>(&trace) < bound(&trace));
    }
}
