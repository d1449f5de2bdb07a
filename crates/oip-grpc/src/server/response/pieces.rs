//! Builds a message as a list of buffers. Large tensors are inserted between the written bytes without
//! copying.

use bytes::Bytes;
use oip_resources::{Charge, Lease};
use oip_types::ServiceError;
use prost::encoding;

/// Maximum size of a buffer in bytes; longer output uses several.
const PIECE: usize = 256 << 10;

/// Buffers up to this size are not charged to the lease, like HTTP response heads.
const UNCHARGED: usize = 512;

/// Tensors up to this size are copied into the buffer, which is cheaper than a separate frame.
const JOINED: usize = 4 << 10;

/// Writes a message. Buffers are charged to the lease before they are allocated.
pub(super) struct Pieces<'l> {
    lease: &'l Lease,
    done: Vec<Bytes>,
    buffer: Vec<u8>,
    charge: Option<Charge>,
}

impl<'l> Pieces<'l> {
    /// Starts a message. `expected` is the approximate number of bytes to be written rather than appended.
    pub(super) fn new(lease: &'l Lease, expected: usize) -> Result<Self, ServiceError> {
        let mut pieces = Self {
            lease,
            done: Vec::new(),
            buffer: Vec::new(),
            charge: None,
        };
        pieces.enlarge(expected.min(PIECE))?;
        Ok(pieces)
    }

    /// Copies `bytes` into the current buffer, and into further buffers when it is full.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), ServiceError> {
        while !bytes.is_empty() {
            self.make_room(bytes.len())?;
            let room = self.buffer.capacity() - self.buffer.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    pub(super) fn varint(&mut self, value: u64) -> Result<(), ServiceError> {
        const MOST: usize = 10;
        if self.buffer.capacity() - self.buffer.len() >= MOST {
            encoding::encode_varint(value, &mut self.buffer);
            return Ok(());
        }
        let mut bytes = [0; MOST];
        let mut rest = &mut bytes[..];
        encoding::encode_varint(value, &mut rest);
        let len = MOST - rest.len();
        self.write(&bytes[..len])
    }

    /// Writes a field's tag and length.
    pub(super) fn delimited(&mut self, tag: u32, len: usize) -> Result<(), ServiceError> {
        self.varint(u64::from(tag << 3 | 2))?;
        self.varint(len as u64)
    }

    /// Appends bytes as a separate buffer without copying; short slices are copied into the current buffer.
    pub(super) fn append(&mut self, bytes: Bytes) -> Result<(), ServiceError> {
        if bytes.len() <= JOINED {
            return self.write(&bytes);
        }
        self.finish_buffer();
        self.done.push(bytes);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Vec<Bytes> {
        self.finish_buffer();
        self.done
    }

    /// Ensures that the current buffer has capacity for at least one more byte: a full buffer grows, or a new
    /// one is started. `bytes` is the number of bytes to be written.
    fn make_room(&mut self, bytes: usize) -> Result<(), ServiceError> {
        if self.buffer.len() < self.buffer.capacity() {
            return Ok(());
        }
        if self.buffer.capacity() >= PIECE {
            self.lease.check()?;
            self.finish_buffer();
        }
        let wanted = (self.buffer.len() + bytes)
            .max(2 * self.buffer.capacity())
            .max(256);
        self.enlarge(wanted.min(PIECE))
    }

    fn enlarge(&mut self, capacity: usize) -> Result<(), ServiceError> {
        if capacity > UNCHARGED {
            let charge = match &mut self.charge {
                Some(charge) => charge,
                None => self.charge.insert(self.lease.charge(0)?),
            };
            charge.grow((capacity as u64).saturating_sub(charge.bytes()))?;
        }
        self.buffer.reserve_exact(capacity - self.buffer.len());
        Ok(())
    }

    fn finish_buffer(&mut self) {
        let (buffer, charge) = (std::mem::take(&mut self.buffer), self.charge.take());
        if !buffer.is_empty() {
            self.done.push(match charge {
                Some(charge) => charge.own(buffer),
                None => buffer.into(),
            });
        }
    }
}
