//! Buffers that grow as the bytes of a request arrive. Memory is charged to the request before it is
//! allocated.

use std::{
    io::{self, Read},
    mem,
};

use bytes::Bytes;
use oip_types::{ErrorCode, ServiceError};

use crate::{Charge, Lease};

/// Minimum size of an allocation, in bytes.
const LEAST: usize = 16 << 10;

/// Collects bytes that arrive in parts. Memory is charged to the request's [`Lease`] before it is allocated.
///
/// Buffers of 64 KiB or more reuse the memory of earlier requests if the [`ByteBudget`](crate::ByteBudget)
/// has kept such memory, and return it to the budget later.
///
/// ```
/// use oip_resources::{Buffer, ByteBudget, Lease, TimeLimits};
///
/// let budget = ByteBudget::new(1 << 20);
/// let lease = Lease::new(&budget, &TimeLimits::default());
/// let mut buffer = Buffer::new(&lease)?;
/// buffer.push(b"hello ", Some(11))?;
/// buffer.push(b"world", Some(11))?;
/// let bytes = buffer.finish();
/// assert_eq!((&bytes[..], budget.used()), (&b"hello world"[..], 11));
/// drop(bytes);
/// assert_eq!(budget.used(), 0);
/// # Ok::<(), oip_resources::oip_types::ServiceError>(())
/// ```
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    charge: Charge,
}

impl Buffer {
    /// Creates an empty buffer.
    ///
    /// # Errors
    /// See [`Lease::charge`].
    pub fn new(lease: &Lease) -> Result<Self, ServiceError> {
        Ok(Self {
            bytes: Vec::new(),
            charge: lease.charge(0)?,
        })
    }

    /// Appends bytes. `whole` is the expected total length, if known.
    ///
    /// # Errors
    /// The errors of [`Lease::charge`]; [`ErrorCode::Overloaded`] when the system is out of memory.
    pub fn push(&mut self, bytes: &[u8], whole: Option<usize>) -> Result<(), ServiceError> {
        self.make_room(bytes.len(), whole)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Reserves capacity for `len` more bytes, and calls `append` to append them.
    ///
    /// # Errors
    /// The errors of [`Lease::charge`] and of `append`.
    pub fn append_with(
        &mut self,
        len: usize,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let whole = self.bytes.len().saturating_add(len);
        if whole > self.bytes.capacity() {
            self.enlarge(whole)?;
        }
        append(&mut self.bytes)
    }

    /// Reads at most `most` bytes from `reader` into the unused capacity, without growing the buffer. Returns
    /// the number of bytes read.
    ///
    /// # Errors
    /// Returns the errors of the reader.
    pub fn fill_from(&mut self, reader: impl Read, most: usize) -> io::Result<usize> {
        let room = most.min(self.bytes.capacity() - self.bytes.len());
        reader.take(room as u64).read_to_end(&mut self.bytes)
    }

    /// Reserves capacity for at least `more` bytes; `whole` is the expected total length, if known.
    ///
    /// A client that announces a long body and sends little of it must not take memory from other requests.
    /// The capacity is therefore at most four times the bytes that have arrived, or twice if the total length
    /// is unknown.
    ///
    /// # Errors
    /// See [`Buffer::push`].
    pub fn make_room(&mut self, more: usize, whole: Option<usize>) -> Result<(), ServiceError> {
        let needed = self.bytes.len().saturating_add(more);
        if needed <= self.bytes.capacity() {
            return Ok(());
        }
        let capacity = match whole {
            Some(whole) => needed.saturating_mul(4).min(whole),
            None => self.bytes.capacity().saturating_mul(2).max(LEAST),
        };
        self.enlarge(capacity.max(needed))
    }

    fn enlarge(&mut self, capacity: usize) -> Result<(), ServiceError> {
        if let Some(mut warm) = self.charge.budget().spare().take(capacity) {
            warm.clear();
            // The old buffer counts toward the budget until its bytes are copied.
            match self.charge.grow(warm.capacity() as u64) {
                Ok(()) => {
                    warm.extend_from_slice(&self.bytes);
                    let old = mem::replace(&mut self.bytes, warm);
                    self.charge.shrink_to(self.bytes.capacity() as u64);
                    self.charge.budget().keep(old);
                    return Ok(());
                }
                // The kept buffer is larger than needed; a new allocation of the needed size may still fit.
                Err(_) => self.charge.budget().keep(warm),
            }
        }
        let missing = (capacity as u64).saturating_sub(self.charge.bytes());
        self.charge.grow(missing)?;
        let reserved = self.bytes.try_reserve_exact(capacity - self.bytes.len());
        reserved.map_err(|error| {
            ServiceError::new(ErrorCode::Overloaded, "the system is out of memory").caused_by(error)
        })
    }

    /// Returns the number of bytes that have arrived.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the buffer is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns whether the buffer has no unused capacity, so that it must grow for the next byte.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.bytes.len() == self.bytes.capacity()
    }

    /// Returns the bytes, which count toward the budget until the last slice of them is dropped.
    #[must_use]
    pub fn finish(mut self) -> Bytes {
        // If the length was unknown in advance, much of the buffer may be unused.
        let unused = self.bytes.capacity() - self.bytes.len();
        if unused > self.bytes.len() / 4 {
            self.bytes.shrink_to_fit();
            self.charge.shrink_to(self.bytes.capacity() as u64);
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.charge.shrink_to(0);
        self.charge.budget().keep(mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteBudget, TimeLimits};

    #[test]
    fn it_is_never_much_larger_than_what_has_come() {
        let budget = ByteBudget::new(64 << 20);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let whole = 20 << 20;
        for (whole, factor) in [(Some(whole), 4), (None, 2)] {
            let mut buffer = Buffer::new(&lease).unwrap();
            let mut expected = Vec::new();
            for n in 0..700 {
                let part = vec![n as u8; 30_000];
                buffer.push(&part, whole).unwrap();
                expected.extend_from_slice(&part);
                assert_eq!(budget.used(), buffer.bytes.capacity() as u64);
                assert!(budget.used() <= (factor * expected.len()) as u64);
            }
            let bytes = buffer.finish();
            assert_eq!(bytes, expected);
            assert!(budget.used() <= expected.len() as u64 * 5 / 4);
            drop(bytes);
            assert_eq!(budget.used(), 0);
        }
    }

    #[test]
    fn a_second_request_gets_the_memory_of_the_first() {
        let budget = ByteBudget::new(64 << 20);
        let mut addresses = Vec::new();
        for _ in 0..3 {
            let lease = Lease::new(&budget, &TimeLimits::default());
            let mut buffer = Buffer::new(&lease).unwrap();
            for _ in 0..1024 {
                buffer.push(&[7; 1 << 10], Some(1 << 20)).unwrap();
            }
            let bytes = buffer.finish();
            assert_eq!(bytes, vec![7; 1 << 20]);
            addresses.push(bytes.as_ptr());
            assert_eq!(budget.used(), 1 << 20);
        }
        assert_eq!(addresses[1], addresses[2]);
        assert_eq!(budget.used(), 0);
    }

    /// Kept memory and used memory together stay within the limit.
    #[test]
    fn kept_buffers_make_room_for_requests() {
        let budget = ByteBudget::new(4 << 20);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let whole = Some(1 << 20);
        let mut buffer = Buffer::new(&lease).unwrap();
        buffer.push(&vec![0; 1 << 20], whole).unwrap();
        drop(buffer);
        assert_eq!(budget.spare().bytes(), 1 << 20);
        let charge = lease.charge((3 << 20) + 1).unwrap();
        assert_eq!(budget.spare().bytes(), 0);
        drop(charge);
    }

    /// The kept buffer is larger than needed and exceeds the budget; a new, smaller one fits, so the request
    /// is accepted.
    #[test]
    fn a_request_that_just_fits_is_not_refused_for_a_kept_buffer() {
        let budget = ByteBudget::new(1 << 20);
        let lease = Lease::new(&budget, &TimeLimits::default());
        budget.keep(Vec::with_capacity(250 << 10));
        let mut buffer = Buffer::new(&lease).unwrap();
        buffer.push(&[0; 5], None).unwrap();
        let _rest = lease.charge((1 << 20) - (16 << 10) - (200 << 10)).unwrap();
        budget.keep(Vec::with_capacity(250 << 10));
        buffer.push(&vec![0; 200 << 10], Some((200 << 10) + 5)).unwrap();
        assert_eq!(buffer.finish().len(), (200 << 10) + 5);
    }

    #[test]
    fn a_request_beyond_the_budget_is_refused() {
        let budget = ByteBudget::new(1 << 20);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let mut buffer = Buffer::new(&lease).unwrap();
        let refused = buffer.push(&vec![0; (1 << 20) + 1], None).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::TooLarge);
        assert!(buffer.is_empty());
        drop(buffer);
        assert_eq!(budget.used(), 0);
    }
}
