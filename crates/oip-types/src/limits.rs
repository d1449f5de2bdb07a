//! Limits on what a request may contain.

use tensor_core::Shape;

use crate::ServiceError;

/// Limits on a request, checked before any model is involved.
///
/// ```
/// use oip_types::RequestLimits;
///
/// let limits = RequestLimits::default().with(|limits| limits.rank = 4);
/// assert!(limits.shape(&[1, 3, 224, 224]).is_ok());
/// assert!(limits.shape(&[1, 1, 3, 224, 224]).is_err());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestLimits {
    /// Number of inputs and requested outputs together (default 256).
    pub tensors: usize,
    /// Number of dimensions of a tensor (default 32).
    pub rank: usize,
    /// Number of parameters of a request, input or output (default 256).
    pub parameters: usize,
    /// Length of a request id in bytes (default 1 KiB).
    pub id_bytes: usize,
    /// Nesting depth of a JSON value (default 64).
    pub json_depth: usize,
    /// Decoded size of all tensors of a body in bytes (default 64 MiB).
    pub tensor_bytes: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            tensors: 256,
            rank: 32,
            parameters: 256,
            id_bytes: 1024,
            json_depth: 64,
            tensor_bytes: 64 << 20,
        }
    }
}

impl RequestLimits {
    /// Returns the limits with `change` applied.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Converts dimensions from the wire into a shape.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when there are too many dimensions, a dimension
    /// is negative, or their product overflows 64 bits.
    pub fn shape(&self, dims: &[i64]) -> Result<Shape, ServiceError> {
        self.check_rank(dims.len())?;
        let checked = dims
            .iter()
            .map(|&dim| u64::try_from(dim))
            .collect::<Result<Vec<u64>, _>>();
        let dims =
            checked.map_err(|_| ServiceError::invalid(format!("shape {dims:?} has a negative dimension")))?;
        Shape::new(&dims).map_err(|error| ServiceError::invalid(error.to_string()))
    }

    /// Checks the rank of a tensor.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when `rank` exceeds [`RequestLimits::rank`].
    pub fn check_rank(&self, rank: usize) -> Result<(), ServiceError> {
        if rank <= self.rank {
            return Ok(());
        }
        let message = format!("shape has {rank} dimensions, the limit is {}", self.rank);
        Err(ServiceError::invalid(message))
    }

    /// Checks the number of inputs and requested outputs.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when `count` exceeds
    /// [`RequestLimits::tensors`].
    pub fn check_tensors(&self, count: usize) -> Result<(), ServiceError> {
        within("inputs and outputs", count, self.tensors)
    }

    /// Checks the number of parameters of a request, input or output.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when `count` exceeds
    /// [`RequestLimits::parameters`].
    pub fn check_parameters(&self, count: usize) -> Result<(), ServiceError> {
        within("parameters", count, self.parameters)
    }

    /// Checks the length of a request id; an empty id becomes `None`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the id is too long.
    pub fn id(&self, id: String) -> Result<Option<String>, ServiceError> {
        self.check_id(&id)?;
        Ok(Some(id).filter(|id| !id.is_empty()))
    }

    /// Checks the length of a request id.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorCode::InvalidArgument) when the id is too long.
    pub fn check_id(&self, id: &str) -> Result<(), ServiceError> {
        within("bytes of id", id.len(), self.id_bytes)
    }
}

fn within(what: &str, found: usize, limit: usize) -> Result<(), ServiceError> {
    if found <= limit {
        return Ok(());
    }
    Err(ServiceError::invalid(format!(
        "too many {what}: the limit is {limit}, found {found} or more"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rejects invalid dimensions.
    #[test]
    fn hostile_dimensions_are_refused() {
        let limits = RequestLimits::default();
        for dims in [
            &[-1][..],
            &[i64::MIN],
            &[1 << 62, 4],
            &[16, (1 << 60) + 2],
            &[1; 33],
        ] {
            assert!(limits.shape(dims).is_err(), "{dims:?}");
        }
        assert_eq!(limits.shape(&[1; 32]).unwrap().rank(), 32);
        assert_eq!(limits.shape(&[0, i64::MAX]).unwrap().element_count(), 0);
    }

    #[test]
    fn counts_have_limits_that_include_the_last() {
        let limits = RequestLimits::default();
        assert!(limits.check_tensors(256).is_ok());
        assert!(limits.check_tensors(257).is_err());
        assert!(limits.check_parameters(256).is_ok());
        assert!(limits.check_parameters(257).is_err());
        assert_eq!(limits.id("x".repeat(1024)).unwrap().unwrap().len(), 1024);
        assert!(limits.id("x".repeat(1025)).is_err());
        assert_eq!(limits.id(String::new()).unwrap(), None);
    }
}
