//! Accounts for the cost of decoding one message: its memory, which is charged to the lease before
//! allocation, and its work.

use oip_resources::{Charge, Lease};
use oip_types::ServiceError;

use super::cursor::Failure;

/// Memory that a request may use in addition to its message without a charge to its lease, such as its task
/// and its HTTP/2 stream.
const UNCHARGED: u64 = 4 << 10;

/// Granularity of charges in bytes, so that small items do not each access the budget.
const STEP: u64 = 16 << 10;

/// Bytes of work after which the decoder checks again whether the response is still wanted.
const BETWEEN_CHECKS: u64 = 4 << 20;

/// The allowed work for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// At most this many bytes; beyond that, decoding fails with [`Failure::TooMuchWork`].
    Little(u64),
    /// Unlimited, until the client disconnects or the deadline passes.
    Any,
}

/// The memory and work accounts of a message.
pub(super) struct Account<'l> {
    lease: &'l Lease,
    charge: Charge,
    taken: u64,
    effort: Effort,
    /// Bytes of work left until the next check.
    left: u64,
}

impl<'l> Account<'l> {
    pub(super) fn new(lease: &'l Lease, effort: Effort) -> Result<Self, ServiceError> {
        Ok(Self {
            lease,
            charge: lease.charge(0)?,
            taken: 0,
            effort,
            left: match effort {
                Effort::Little(bytes) => bytes,
                Effort::Any => BETWEEN_CHECKS,
            },
        })
    }

    pub(super) fn lease(&self) -> &'l Lease {
        self.lease
    }

    /// Charges memory for small items, such as names, to the lease before they are allocated.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Failure> {
        self.taken = self.taken.saturating_add(bytes);
        let missing = self.taken.saturating_sub(UNCHARGED + self.charge.bytes());
        if missing > 0 {
            self.charge.grow(missing.max(STEP))?;
        }
        Ok(())
    }

    /// Counts the examination of `bytes` as work.
    pub(super) fn work(&mut self, bytes: usize) -> Result<(), Failure> {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => self.ask(),
        }
    }

    #[cold]
    fn ask(&mut self) -> Result<(), Failure> {
        match self.effort {
            Effort::Little(_) => Err(Failure::TooMuchWork),
            Effort::Any => {
                self.left = BETWEEN_CHECKS;
                Ok(self.lease.check()?)
            }
        }
    }

    /// Returns the charge for small items, which the caller keeps for as long as they exist.
    pub(super) fn into_charge(self) -> Charge {
        self.charge
    }
}
