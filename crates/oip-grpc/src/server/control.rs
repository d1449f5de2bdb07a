//! The messages of all calls but inference, which `tonic` reads and `prost` decodes: small ones, whose decoded size is
//! charged before anything is built of them.

use std::{
    error::Error,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use oip_service::{Charge, Lease};
use oip_types::ServiceError;
use pin_project_lite::pin_project;
use tonic::Status;

use super::{
    messages::{HEAD, broken},
    status,
};

/// Bytes that such a message may have. The largest that makes sense is a model's configuration to load it with.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// Bytes in memory for one on the wire, at most: an empty string in a list is 2 bytes there and 24 here, three times
/// while the list grows.
const DECODED: u64 = 48;

/// What the messages of a call are charged; kept until the call is answered.
#[derive(Clone)]
pub(crate) struct ControlCharge(Arc<Mutex<Charge>>);

impl ControlCharge {
    pub(crate) fn new(lease: &Lease) -> Result<Self, ServiceError> {
        Ok(Self(Arc::new(Mutex::new(lease.charge(0)?))))
    }

    /// Charges a message. Messages of one call are decoded one after the other, so the largest is what counts.
    fn cover(&self, message: u64) -> Result<(), ServiceError> {
        let mut charge = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = (message * DECODED).saturating_sub(charge.bytes());
        charge.grow(missing)
    }
}

/// Finds the heads of messages.
#[derive(Default)]
struct Heads {
    head: [u8; HEAD],
    head_len: usize,
    /// Bytes of the message that are still to come, once its head is whole.
    left: usize,
}

impl Heads {
    /// Goes over bytes up to the end of a head at most; returns the head if it is whole, and what follows it.
    fn read<'p>(&mut self, mut part: &'p [u8]) -> (Option<[u8; HEAD]>, &'p [u8]) {
        let of_message = self.left.min(part.len());
        self.left -= of_message;
        part = &part[of_message..];
        let (of_head, rest) = part.split_at(part.len().min(HEAD - self.head_len));
        self.head[self.head_len..self.head_len + of_head.len()].copy_from_slice(of_head);
        self.head_len += of_head.len();
        if self.head_len < HEAD {
            return (None, rest);
        }
        let [_, length @ ..] = self.head;
        self.left = u32::from_be_bytes(length) as usize;
        self.head_len = 0;
        (Some(self.head), rest)
    }
}

pin_project! {
    /// The body of a call whose messages are charged when their heads come, before they are read.
    pub struct ControlBody<B> {
        #[pin]
        inner: B,
        heads: Heads,
        charge: ControlCharge,
    }
}

impl<B> ControlBody<B> {
    pub(crate) fn new(inner: B, charge: ControlCharge) -> Self {
        Self {
            inner,
            heads: Heads::default(),
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
                let (head, rest) = this.heads.read(part);
                part = rest;
                if let Some([flag, length @ ..]) = head {
                    // A compressed message may become as large as any; one that claims more is refused unread.
                    let len = if flag == 0 {
                        u32::from_be_bytes(length) as usize
                    } else {
                        MAX_MESSAGE
                    };
                    let covered = this.charge.cover(len.min(MAX_MESSAGE) as u64);
                    covered.map_err(|error| status::from_error(&error))?;
                }
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
    use oip_service::{ByteBudget, TimeLimits};
    use prost::Message;

    use super::*;
    use crate::proto::{LogSettingsRequest, RepositoryModelLoadRequest, TraceSettingRequest};

    /// However a body is cut into parts, all heads are found.
    #[test]
    fn heads_are_found() {
        let body: Vec<u8> = [0u32, 3, 300, 1]
            .iter()
            .flat_map(|len| [&[0][..], &len.to_be_bytes(), &vec![7; *len as usize]].concat())
            .collect();
        for size in [1, 2, 5, 7, 300, body.len()] {
            let (mut heads, mut found) = (Heads::default(), Vec::new());
            for mut part in body.chunks(size) {
                while !part.is_empty() {
                    let (head, rest) = heads.read(part);
                    found.extend(head.map(|head| head[4]));
                    part = rest;
                }
            }
            assert_eq!(found, [0, 3, 44, 1], "parts of {size}");
        }
    }

    #[test]
    fn the_largest_message_of_a_call_counts() {
        let budget = ByteBudget::new(1 << 20);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let charge = ControlCharge::new(&lease).unwrap();
        charge.cover(100).unwrap();
        charge.cover(10).unwrap();
        assert_eq!(budget.used(), 100 * DECODED);
        assert!(charge.cover(1 << 20).is_err());
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

    /// The factor holds for what grows most: maps and lists of next to nothing.
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
