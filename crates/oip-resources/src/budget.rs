//! The memory budget for requests, shared by all transports.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use oip_types::{ErrorCode, ServiceError};
use tensor_core::SpareBuffers;

/// The number of bytes that all requests may use at once, across all transports.
///
/// Each buffer of a request is counted toward the budget, through the request's [`Lease`](crate::Lease), from
/// before it is allocated until it is freed. Memory use is therefore bounded, however many clients there are
/// and however large their requests. A request that does not fit into the budget is refused immediately.
///
/// Large buffers are kept for later requests, up to a quarter of the budget. Kept and used memory together
/// never exceed the budget. [`ByteBudget::trim`] frees buffers that are not needed.
///
/// Requests of more than 1 MiB leave an eighth of the budget to smaller requests, and those of more than 64
/// KiB leave a sixteenth. Small requests therefore fit even when large ones use all the memory that they are
/// allowed.
///
/// ```
/// use oip_resources::ByteBudget;
///
/// let budget = ByteBudget::new(100);
/// let first = budget.take(80).unwrap();
/// assert_eq!(budget.take(30).unwrap_err().code().http_status(), 429);
/// assert_eq!(budget.take(101).unwrap_err().code().http_status(), 413);
/// drop(first);
/// assert!(budget.take(30).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct ByteBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    limit: u64,
    used: AtomicU64,
    spare: SpareBuffers,
}

/// Maximum size of a small request in bytes. Small requests may use the whole budget.
const SMALL: u64 = 64 << 10;

/// Maximum size of a medium request in bytes. Larger requests leave an eighth of the budget unused.
const MEDIUM: u64 = 1 << 20;

impl ByteBudget {
    /// Creates a budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(BudgetState {
            limit,
            used: AtomicU64::new(0),
            spare: SpareBuffers::new(limit / 4),
        }))
    }

    /// Returns the size of the budget in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Returns the number of bytes counted toward the budget.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Frees kept buffers that no request has needed since the last call. Call this method every few seconds.
    pub fn trim(&self) {
        self.0.spare.trim();
    }

    /// Returns the kept buffers of earlier requests.
    pub(crate) fn spare(&self) -> &SpareBuffers {
        &self.0.spare
    }

    /// Keeps a buffer for later requests, if it fits into the budget together with the memory in use.
    pub(crate) fn keep(&self, buffer: Vec<u8>) {
        let BudgetState { limit, spare, .. } = &*self.0;
        spare.put(buffer);
        let beyond = (self.used() + spare.bytes()).saturating_sub(*limit);
        if beyond > 0 {
            spare.free(beyond);
        }
    }

    /// Counts `bytes` bytes toward the budget, for a request that already holds `held` bytes.
    pub(crate) fn reserve(&self, held: u64, bytes: u64) -> Result<(), ServiceError> {
        let BudgetState { limit, used, spare } = &*self.0;
        let whole = held.saturating_add(bytes);
        if whole > *limit {
            let message = format!(
                "the request needs at least {whole} bytes of memory, the server has {limit} for all requests"
            );
            return Err(ServiceError::new(ErrorCode::TooLarge, message));
        }
        let more = |used: u64| {
            // A request that runs alone may use the whole budget.
            let is_alone = used <= held;
            let left_to_smaller = if is_alone || whole <= SMALL {
                0
            } else if whole <= MEDIUM {
                limit / 16
            } else {
                limit / 8
            };
            let allowed = limit - left_to_smaller;
            used.checked_add(bytes).filter(|used| *used <= allowed)
        };
        match used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(before) => {
                let beyond = (before + bytes + spare.bytes()).saturating_sub(*limit);
                if beyond > 0 {
                    spare.free(beyond);
                }
                Ok(())
            }
            Err(_) => {
                let message = format!(
                    "other requests use the server's {limit} bytes of memory for requests; try again"
                );
                Err(ServiceError::new(ErrorCode::Overloaded, message))
            }
        }
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_fits_and_what_does_not_fit_now_are_told_apart() {
        let budget = ByteBudget::new(10);
        let mut charge = budget.take(4).unwrap();
        charge.grow(6).unwrap();
        assert_eq!(budget.take(1).unwrap_err().code(), ErrorCode::Overloaded);
        assert_eq!(charge.grow(1).unwrap_err().code(), ErrorCode::TooLarge);
        assert_eq!(budget.take(u64::MAX).unwrap_err().code(), ErrorCode::TooLarge);
        assert_eq!((budget.used(), budget.limit()), (10, 10));
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn large_requests_leave_room_for_small_ones() {
        let budget = ByteBudget::new(16 * MEDIUM);
        let large: Vec<_> = (0..7).map(|_| budget.take(2 * MEDIUM).unwrap()).collect();
        assert_eq!(budget.take(2 * MEDIUM).unwrap_err().code(), ErrorCode::Overloaded);
        let medium = budget.take(MEDIUM).unwrap();
        assert_eq!(budget.take(MEDIUM).unwrap_err().code(), ErrorCode::Overloaded);
        let small: Vec<_> = (0..16).map(|_| budget.take(SMALL).unwrap()).collect();
        assert_eq!(budget.take(1).unwrap_err().code(), ErrorCode::Overloaded);
        drop((large, medium, small));
        // A request that runs alone may be as large as the budget.
        assert!(budget.take(16 * MEDIUM).is_ok());
    }
}
