//! Cooperative cancellation of long products.

/// Decides between blocks of work whether a product continues or is cancelled.
///
/// A product calls [`spend`](Self::spend) with the estimated cost before each block, and returns its error
/// unchanged. The output is incomplete in that case.
///
/// ```
/// struct Budget(u64);
///
/// #[derive(Debug, PartialEq)]
/// struct Exhausted;
///
/// impl onnx_gemm::Pace for Budget {
///     type Stopped = Exhausted;
///
///     fn spend(&mut self, steps: u64) -> Result<(), Exhausted> {
///         self.0 = self.0.checked_sub(steps).ok_or(Exhausted)?;
///         Ok(())
///     }
/// }
///
/// let (a, b, mut c) = (vec![1.0; 1 << 16], vec![1.0; 1 << 16], vec![0.0; 1 << 16]);
/// let found = onnx_gemm::gemm(&a, &b, [256; 3], &mut c, &mut Budget(1000));
/// assert_eq!(found, Err(Exhausted));
/// ```
pub trait Pace {
    /// The error that cancels a product.
    type Stopped;

    /// Accounts for `steps` steps of work that follow; a step takes a few nanoseconds on one core.
    ///
    /// # Errors
    /// Returns an error to cancel the product.
    fn spend(&mut self, steps: u64) -> Result<(), Self::Stopped>;
}

/// A [`Pace`] that never cancels a product.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpaced;

impl Pace for Unpaced {
    type Stopped = std::convert::Infallible;

    #[inline]
    fn spend(&mut self, _: u64) -> Result<(), Self::Stopped> {
        Ok(())
    }
}

/// A [`Pace`] that cancels after the given number of steps.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Budget(pub(crate) u64);

#[cfg(test)]
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

#[cfg(test)]
impl Pace for Budget {
    type Stopped = Exhausted;

    fn spend(&mut self, steps: u64) -> Result<(), Exhausted> {
        self.0 = self.0.checked_sub(steps).ok_or(Exhausted)?;
        Ok(())
    }
}
