//! The cost of reading one message: memory, asked of the lease before it is allocated, and work.

use oip_service::{Charge, Lease};
use oip_types::ServiceError;

use super::cursor::Failure;

/// Bytes that a request may take beside its message without being charged, as its task and its HTTP/2 stream are not.
const UNCHARGED: u64 = 4 << 10;

/// Bytes that are charged at once, so that many small things do not each go to the budget.
const STEP: u64 = 16 << 10;

/// Bytes of work after which the lease is asked whether the answer is still wanted.
const BETWEEN_CHECKS: u64 = 4 << 20;

/// How much work may be done for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// So many bytes may be looked at, then [`Failure::TooMuchWork`] is returned.
    Little(u64),
    /// As much as it takes, until the client leaves or the deadline passes.
    Any,
}

/// Memory and work of one message.
pub(super) struct Account<'l> {
    lease: &'l Lease,
    charge: Charge,
    taken: u64,
    effort: Effort,
    /// Bytes that may be looked at until something must be asked.
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

    /// To be called before so many bytes are allocated for small things, such as names.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Failure> {
        self.taken = self.taken.saturating_add(bytes);
        let missing = self.taken.saturating_sub(UNCHARGED + self.charge.bytes());
        if missing > 0 {
            self.charge.grow(missing.max(STEP))?;
        }
        Ok(())
    }

    /// To be called for so many bytes that are looked at.
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

    /// The memory of small items, kept as long as they are.
    pub(super) fn into_charge(self) -> Charge {
        self.charge
    }
}
