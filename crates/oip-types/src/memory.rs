//! Memory that decoding and encoding take, as the caller allows it.

use bytes::Bytes;

use crate::ServiceError;

/// Allows memory for a request, or refuses it. Whatever may become large asks before it allocates.
///
/// `oip-service` implements it for the lease of a request; [`Unlimited`] is for callers that trust what they read.
pub trait Memory {
    /// Allows a buffer of so many bytes.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorCode::TooLarge) or [`Overloaded`](crate::ErrorCode::Overloaded) when there is no room.
    fn reserve(&self, bytes: usize) -> Result<Box<dyn Reservation>, ServiceError>;

    /// Whether to go on; asked between pieces of work that takes long.
    ///
    /// # Errors
    /// When the answer is not wanted any more.
    fn check(&self) -> Result<(), ServiceError> {
        Ok(())
    }
}

/// Memory that was allowed for one buffer; given back when it is dropped.
pub trait Reservation: Send {
    /// Allows more bytes for the buffer.
    ///
    /// # Errors
    /// As [`Memory::reserve`].
    fn grow(&mut self, bytes: usize) -> Result<(), ServiceError>;

    /// Gives back what is beyond so many bytes.
    fn shrink_to(&mut self, bytes: usize);

    /// Ties the grant to the buffer: it is given back when the last slice of the buffer is dropped.
    fn own(self: Box<Self>, buffer: Bytes) -> Bytes;
}

/// Allows everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unlimited;

impl Memory for Unlimited {
    fn reserve(&self, _: usize) -> Result<Box<dyn Reservation>, ServiceError> {
        // A box of nothing is not allocated.
        Ok(Box::new(Self))
    }
}

impl Reservation for Unlimited {
    fn grow(&mut self, _: usize) -> Result<(), ServiceError> {
        Ok(())
    }

    fn shrink_to(&mut self, _: usize) {}

    fn own(self: Box<Self>, buffer: Bytes) -> Bytes {
        buffer
    }
}
