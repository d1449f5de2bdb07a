use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use oip_types::{ErrorCode, ServiceError};

/// Bytes of request bodies that may be in memory at once, over all transports.
///
/// A transport takes a permit before it reads a body and keeps it until the answer is sent. When nothing is left the
/// request is refused at once, so that memory stays bounded however many clients send however much.
///
/// ```
/// use oip_service::ByteBudget;
///
/// let budget = ByteBudget::new(100);
/// let first = budget.take(80).unwrap();
/// assert_eq!(budget.take(30).unwrap_err().code().http_status(), 429);
/// drop(first);
/// assert!(budget.take(30).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct ByteBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: u64,
    used: AtomicU64,
}

impl ByteBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Shared {
            limit,
            used: AtomicU64::new(0),
        }))
    }

    /// Takes some bytes.
    ///
    /// # Errors
    /// [`ErrorCode::Overloaded`] when they are not left.
    pub fn take(&self, bytes: u64) -> Result<BudgetPermit, ServiceError> {
        let mut permit = BudgetPermit {
            budget: self.clone(),
            bytes: 0,
        };
        permit.grow(bytes)?;
        Ok(permit)
    }

    /// Bytes that can be taken altogether.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }
}

/// Bytes taken from a [`ByteBudget`]; they are given back when it is dropped.
#[derive(Debug)]
pub struct BudgetPermit {
    budget: ByteBudget,
    bytes: u64,
}

impl BudgetPermit {
    /// Bytes taken under this permit.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes more bytes under the same permit.
    ///
    /// # Errors
    /// [`ErrorCode::Overloaded`] when they are not left; the permit keeps what it had.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ServiceError> {
        let Shared { limit, used } = &*self.budget.0;
        let more = |used: u64| used.checked_add(bytes).filter(|used| used <= limit);
        if used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
        {
            self.bytes += bytes;
            return Ok(());
        }
        let message =
            format!("the server is reading as many requests as its {limit} bytes for them allow; try again");
        Err(ServiceError::new(ErrorCode::Overloaded, message))
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_give_back_what_they_took() {
        let budget = ByteBudget::new(10);
        let mut permit = budget.take(4).unwrap();
        permit.grow(6).unwrap();
        assert!(permit.grow(1).is_err());
        assert!(budget.take(u64::MAX).is_err());
        assert_eq!((budget.used(), budget.limit()), (10, 10));
        drop(permit);
        assert_eq!(budget.used(), 0);
    }
}
