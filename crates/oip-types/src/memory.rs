//! Memory budgets: decoding and encoding reserve memory from the caller's budget before they allocate.

use bytes::Bytes;

use crate::ServiceError;

/// A memory budget for a request. Code that may allocate a lot of memory calls [`Memory::reserve`] first.
///
/// `oip-resources` implements this trait for a request's memory lease; [`UnlimitedMemory`] is for callers that
/// trust their input.
pub trait Memory {
    /// Grants memory for a buffer of `bytes` bytes.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorCode::TooLarge) or [`Overloaded`](crate::ErrorCode::Overloaded) when the
    /// budget cannot cover the buffer.
    fn reserve(&self, bytes: usize) -> Result<Box<dyn Reservation>, ServiceError>;

    /// Checks whether to continue; called between the steps of long operations.
    ///
    /// # Errors
    /// If the response is no longer needed.
    fn check(&self) -> Result<(), ServiceError> {
        Ok(())
    }
}

/// A grant of memory for one buffer. Dropping the grant returns the memory to the budget.
pub trait Reservation: Send {
    /// Grants more bytes for the buffer.
    ///
    /// # Errors
    /// See [`Memory::reserve`].
    fn grow(&mut self, bytes: usize) -> Result<(), ServiceError>;

    /// Returns all granted memory beyond `bytes` to the budget.
    fn shrink_to(&mut self, bytes: usize);

    /// Ties the grant to the buffer: the memory is returned when the last slice of the buffer is dropped.
    fn own(self: Box<Self>, buffer: Bytes) -> Bytes;
}

/// A budget without limits, which grants every request.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnlimitedMemory;

impl Memory for UnlimitedMemory {
    fn reserve(&self, _: usize) -> Result<Box<dyn Reservation>, ServiceError> {
        // Boxing a zero-sized value does not allocate.
        Ok(Box::new(Self))
    }
}

impl Reservation for UnlimitedMemory {
    fn grow(&mut self, _: usize) -> Result<(), ServiceError> {
        Ok(())
    }

    fn shrink_to(&mut self, _: usize) {}

    fn own(self: Box<Self>, buffer: Bytes) -> Bytes {
        buffer
    }
}
