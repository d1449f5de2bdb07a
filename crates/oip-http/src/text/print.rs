//! Prints responses of text routes as JSON, charged to the request's lease while it is printed.

use std::io;

use bytes::Bytes;
use oip_resources::{Charge, Lease};
use oip_types::ServiceError;
use serde::{Serialize, Serializer};

/// Capacity of the first allocation in bytes.
const START: usize = 1 << 10;

/// JSON text whose memory is charged to a lease before it is allocated.
pub(crate) struct JsonText {
    text: Vec<u8>,
    charge: Charge,
    max_bytes: usize,
    /// Why the last write failed.
    failure: Option<ServiceError>,
}

impl JsonText {
    /// Creates an empty text of at most `max_bytes` bytes.
    pub(crate) fn new(lease: &Lease, max_bytes: usize) -> Result<Self, ServiceError> {
        Ok(Self {
            text: Vec::new(),
            charge: lease.charge(0)?,
            max_bytes,
            failure: None,
        })
    }

    /// Appends a value.
    ///
    /// # Errors
    /// [`Internal`](oip_types::ErrorCode::Internal) when the text becomes too long; the errors of
    /// [`Lease::charge`].
    pub(crate) fn print(&mut self, value: &impl Serialize) -> Result<(), ServiceError> {
        serde_json::to_writer(&mut *self, value).map_err(|error| {
            let failure = self.failure.take();
            failure.unwrap_or_else(|| ServiceError::internal(error.to_string()))
        })
    }

    /// Converts the text into a body, which keeps the charge.
    pub(crate) fn into_body(self) -> Bytes {
        self.charge.own(self.text)
    }

    /// Makes room for `more` bytes.
    fn reserve(&mut self, more: usize) -> Result<(), ServiceError> {
        let needed = self.text.len().saturating_add(more);
        if needed > self.max_bytes {
            let most = self.max_bytes;
            let message = format!("the response has at least {needed} bytes, the limit is {most}");
            return Err(ServiceError::internal(message));
        }
        let capacity = self.text.capacity();
        if needed <= capacity {
            return Ok(());
        }
        let wanted = needed.max(capacity.saturating_mul(2)).max(START);
        // The old allocation is still there while its content is moved to the new one.
        self.charge.grow(wanted as u64)?;
        self.text.reserve_exact(wanted - self.text.len());
        self.charge.shrink_to(self.text.capacity() as u64);
        Ok(())
    }
}

impl io::Write for JsonText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(failure) = self.reserve(bytes.len()) {
            self.failure = Some(failure);
            return Err(io::ErrorKind::Other.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serializes an iterator's items as a list, without collecting them.
pub(crate) struct Each<I>(pub(crate) I);

impl<I> Serialize for Each<I>
where
    I: Iterator<Item: Serialize> + Clone,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}
