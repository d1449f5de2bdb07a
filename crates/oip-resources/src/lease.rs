//! The lease of a request: its memory, deadline and cancellation, from its first byte to the last byte of its
//! response.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_model::{CancelGuard, CancelToken};
use oip_types::{ErrorCode, Memory, Reservation, ServiceError};
use parking_lot::Mutex;

use crate::{ByteBudget, Laps, RequestNotes, TimeLimits};
#[cfg(unix)]
use crate::{ConnectionMemory, ConnectionRegion};

/// A request's memory, deadline and cancellation. Clones share one lease.
///
/// A transport creates the lease when the first byte of a request arrives. Each step that allocates memory
/// charges it to the request first ([`Lease::charge`]). Each long-running step checks between pieces whether
/// the response is still wanted ([`Lease::check`]).
///
/// ```
/// use oip_resources::{ByteBudget, Lease, TimeLimits};
///
/// let budget = ByteBudget::new(1 << 20);
/// let lease = Lease::new(&budget, &TimeLimits::default());
/// let buffer = lease.charge(5)?.own(b"hello".to_vec());
/// let slice = buffer.slice(1..3);
/// drop((lease, buffer));
/// assert_eq!(budget.used(), 5); // the slice keeps the buffer
/// drop(slice);
/// assert_eq!(budget.used(), 0);
/// # Ok::<(), oip_resources::oip_types::ServiceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lease(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    budget: ByteBudget,
    held: AtomicU64,
    received: Instant,
    deadline: Mutex<Option<Instant>>,
    cancel: CancelToken,
    notes: OnceLock<Arc<RequestNotes>>,
    was_run: AtomicBool,
    #[cfg(unix)]
    connection_memory: OnceLock<Arc<dyn ConnectionMemory>>,
}

impl Lease {
    /// Creates the lease of a request whose first byte has just arrived. The longest allowed timeout applies
    /// until the request's own timeout is known.
    #[must_use]
    pub fn new(budget: &ByteBudget, time: &TimeLimits) -> Self {
        let lease = Self::without_deadline(budget);
        lease.set_timeout(time.max);
        lease
    }

    /// Creates a lease without limits, for callers within the process.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::without_deadline(&ByteBudget::new(u64::MAX))
    }

    /// Creates a lease on a budget, without a deadline.
    pub(crate) fn without_deadline(budget: &ByteBudget) -> Self {
        Self(Arc::new(Inner {
            budget: budget.clone(),
            held: AtomicU64::new(0),
            received: Instant::now(),
            deadline: Mutex::new(None),
            cancel: CancelToken::new(None),
            notes: OnceLock::new(),
            was_run: AtomicBool::new(false),
            #[cfg(unix)]
            connection_memory: OnceLock::new(),
        }))
    }

    /// Creates a lease on the same budget, without a deadline, for work that this request shares with other
    /// requests, as in a batch.
    #[must_use]
    pub fn for_shared_work(&self) -> Self {
        Self::without_deadline(&self.0.budget)
    }

    /// Returns the time at which the request's first byte arrived.
    #[must_use]
    pub fn received(&self) -> Instant {
        self.0.received
    }

    /// Gives the request access to the connection's shared memory, if that memory is open. Later calls have
    /// no effect.
    #[cfg(unix)]
    pub fn use_memory_of(&self, region: &ConnectionRegion) {
        if let Some(memory) = region.memory() {
            self.0.connection_memory.get_or_init(|| memory.clone());
        }
    }

    /// Returns the memory that the connection's client shares, if any.
    #[cfg(unix)]
    #[must_use]
    pub fn connection_memory(&self) -> Option<&Arc<dyn ConnectionMemory>> {
        self.0.connection_memory.get()
    }

    /// Returns whether the connection's client shares memory.
    #[must_use]
    pub fn has_connection_memory(&self) -> bool {
        #[cfg(unix)]
        return self.connection_memory().is_some();
        #[cfg(not(unix))]
        false
    }

    /// Sets the [`RequestNotes`], which record facts about the request for the access log and traces. Later
    /// calls have no effect.
    pub fn set_notes(&self, notes: Arc<RequestNotes>) {
        self.0.notes.get_or_init(|| notes);
    }

    /// Returns the request's [`RequestNotes`], if recording is enabled.
    #[must_use]
    pub fn notes(&self) -> Option<&RequestNotes> {
        self.0.notes.get().map(Arc::as_ref)
    }

    /// Records the version that ran the request, if it has a name and recording is enabled.
    pub fn note_version(&self, version: Option<&str>) {
        if let (Some(notes), Some(version)) = (self.notes(), version) {
            notes.set_version(version);
        }
    }

    /// Records that a model was called for the request, or for a part of it.
    pub fn note_run(&self) {
        self.0.was_run.store(true, Ordering::Relaxed);
    }

    /// Returns whether a model was called for the request, or for a part of it.
    #[must_use]
    pub fn was_run(&self) -> bool {
        self.0.was_run.load(Ordering::Relaxed)
    }

    /// Starts measuring the phases of the request.
    #[must_use]
    pub fn laps(&self) -> Laps {
        Laps::new(self.0.notes.get())
    }

    /// Returns the time by which the request must have its response.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.0.deadline.lock()
    }

    /// Sets the deadline to `timeout` after the request's first byte.
    pub fn set_timeout(&self, timeout: Duration) {
        self.set_deadline(self.0.received.checked_add(timeout));
    }

    /// Sets the deadline; `None` removes it.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        *self.0.deadline.lock() = deadline;
    }

    /// Returns a token that is cancelled when the response is no longer wanted. The token has the lease's
    /// current deadline.
    #[must_use]
    pub fn cancel_token(&self) -> CancelToken {
        self.0.cancel.with_deadline(self.deadline())
    }

    /// Returns a guard that cancels the request if it is dropped without being disarmed. A transport keeps
    /// the guard in the future that handles the request, so that all work stops when the client disconnects.
    #[must_use]
    pub fn guard(&self) -> CancelGuard {
        self.0.cancel.guard()
    }

    /// Checks whether to continue with the request.
    ///
    /// # Errors
    /// [`ErrorCode::DeadlineExceeded`] when its deadline has passed, [`ErrorCode::Cancelled`] when its client
    /// has disconnected.
    pub fn check(&self) -> Result<(), ServiceError> {
        if self.0.cancel.is_cancelled() {
            return Err(ServiceError::new(
                ErrorCode::Cancelled,
                "the request was cancelled",
            ));
        }
        match self.deadline() {
            Some(deadline) if deadline <= Instant::now() => Err(deadline_passed()),
            _ => Ok(()),
        }
    }

    /// Charges `bytes` bytes to the request, and counts them toward the budget, for a buffer that is about to
    /// be allocated.
    ///
    /// # Errors
    /// [`ErrorCode::TooLarge`] when the request would exceed the whole budget with these bytes;
    /// [`ErrorCode::Overloaded`] when other requests hold the memory that this request needs.
    pub fn charge(&self, bytes: u64) -> Result<Charge, ServiceError> {
        let mut charge = Charge {
            lease: self.clone(),
            bytes: 0,
        };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Returns the number of bytes charged to the request.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }
}

impl ByteBudget {
    /// Counts bytes toward the budget for work that belongs to no request.
    ///
    /// # Errors
    /// See [`Lease::charge`].
    pub fn take(&self, bytes: u64) -> Result<Charge, ServiceError> {
        Lease::without_deadline(self).charge(bytes)
    }
}

/// Returns the error for a request whose deadline has passed.
pub(crate) fn deadline_passed() -> ServiceError {
    ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed")
}

/// Bytes of memory charged to a request; returned to the budget on drop.
#[derive(Debug)]
pub struct Charge {
    lease: Lease,
    bytes: u64,
}

impl Charge {
    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the budget that the bytes are charged to.
    pub(crate) fn budget(&self) -> &ByteBudget {
        &self.lease.0.budget
    }

    /// Charges more bytes to the request.
    ///
    /// # Errors
    /// See [`Lease::charge`]; on failure the charge is unchanged.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ServiceError> {
        let Inner { budget, held, .. } = &*self.lease.0;
        budget.reserve(held.load(Ordering::Relaxed), bytes)?;
        held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        Ok(())
    }

    /// Returns all bytes beyond `bytes` to the budget.
    pub fn shrink_to(&mut self, bytes: u64) {
        drop(self.split(self.bytes.saturating_sub(bytes)));
    }

    /// Splits off a charge of `bytes`, or of all bytes if the charge has fewer.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            lease: self.lease.clone(),
            bytes,
        }
    }

    /// Attaches the charge to the buffer that it was made for: the bytes return to the budget when the last
    /// slice of the buffer is dropped.
    #[must_use]
    pub fn own(self, buffer: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(ChargedBuffer {
            buffer,
            _charge: self,
        })
    }
}

impl Memory for Lease {
    fn reserve(&self, bytes: usize) -> Result<Box<dyn Reservation>, ServiceError> {
        Ok(Box::new(self.charge(bytes as u64)?))
    }

    fn check(&self) -> Result<(), ServiceError> {
        Lease::check(self)
    }
}

impl Reservation for Charge {
    fn grow(&mut self, bytes: usize) -> Result<(), ServiceError> {
        Charge::grow(self, bytes as u64)
    }

    fn shrink_to(&mut self, bytes: usize) {
        Charge::shrink_to(self, bytes as u64);
    }

    fn own(self: Box<Self>, buffer: Bytes) -> Bytes {
        Charge::own(*self, buffer)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Inner { budget, held, .. } = &*self.lease.0;
        held.fetch_sub(self.bytes, Ordering::Relaxed);
        budget.release(self.bytes);
    }
}

/// A buffer and its charge. Dropping the value frees the buffer first and then returns its bytes to the
/// budget.
struct ChargedBuffer<B> {
    buffer: B,
    _charge: Charge,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ChargedBuffer<B> {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_that_holds_the_whole_budget_can_never_have_more() {
        let budget = ByteBudget::new(100);
        let lease = Lease::new(&budget, &TimeLimits::default());
        let body = lease.charge(60).unwrap();
        assert_eq!(lease.charge(41).unwrap_err().code(), ErrorCode::TooLarge);
        let other = budget.take(10).unwrap();
        assert_eq!(lease.charge(40).unwrap_err().code(), ErrorCode::Overloaded);
        drop(other);
        assert_eq!(lease.charge(40).unwrap().bytes(), 40);
        drop(body);
        assert_eq!((lease.held(), budget.used()), (0, 0));
    }

    #[test]
    fn time_is_counted_from_the_first_byte() {
        let lease = Lease::new(&ByteBudget::new(1), &TimeLimits::default());
        assert_eq!(
            lease.deadline(),
            Some(lease.received() + TimeLimits::default().max)
        );
        assert!(lease.check().is_ok());
        lease.set_timeout(Duration::ZERO);
        assert_eq!(lease.check().unwrap_err().code(), ErrorCode::DeadlineExceeded);
        assert!(lease.cancel_token().is_expired());
    }

    #[test]
    fn a_client_that_leaves_cancels_everything() {
        let lease = Lease::unlimited();
        let seen_by_the_model = lease.cancel_token();
        lease.guard().disarm();
        assert!(lease.check().is_ok());
        drop(lease.clone().guard());
        assert_eq!(lease.check().unwrap_err().code(), ErrorCode::Cancelled);
        assert!(seen_by_the_model.is_cancelled());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Charge { lease: usize, bytes: u64 },
        Grow { charge: usize, bytes: u64 },
        Shrink { charge: usize, bytes: u64 },
        Split { charge: usize, bytes: u64 },
        Own { charge: usize },
        Slice { buffer: usize },
        DropCharge { charge: usize },
        DropBuffer { buffer: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        let (any, bytes) = (0usize..8, 0u64..60);
        prop_oneof![
            (0usize..3, bytes.clone()).prop_map(|(lease, bytes)| Step::Charge { lease, bytes }),
            (any.clone(), bytes.clone()).prop_map(|(charge, bytes)| Step::Grow { charge, bytes }),
            (any.clone(), bytes.clone()).prop_map(|(charge, bytes)| Step::Shrink { charge, bytes }),
            (any.clone(), bytes).prop_map(|(charge, bytes)| Step::Split { charge, bytes }),
            any.clone().prop_map(|charge| Step::Own { charge }),
            any.clone().prop_map(|buffer| Step::Slice { buffer }),
            any.clone().prop_map(|charge| Step::DropCharge { charge }),
            any.prop_map(|buffer| Step::DropBuffer { buffer }),
        ]
    }

    proptest! {
        /// After any sequence of charges, splits and transfers, the budget counts exactly the bytes that are
        /// still charged, and never more than its limit.
        #[test]
        fn the_budget_counts_what_is_alive(steps in prop::collection::vec(step(), 1..80)) {
            const LIMIT: u64 = 100;
            let budget = ByteBudget::new(LIMIT);
            let leases: Vec<Lease> = (0..3).map(|_| Lease::without_deadline(&budget)).collect();
            let mut charges: Vec<Charge> = Vec::new();
            // Slices of the same buffer are stored with the buffer's number, which is its index in `sizes`.
            let mut buffers: Vec<(usize, Bytes)> = Vec::new();
            let mut sizes: Vec<u64> = Vec::new();
            for step in steps {
                match step {
                    Step::Charge { lease, bytes } => {
                        let (held, used) = (leases[lease].held(), budget.used());
                        match leases[lease].charge(bytes) {
                            Ok(charge) => charges.push(charge),
                            Err(error) => {
                                prop_assert!(used + bytes > LIMIT);
                                let never = held + bytes > LIMIT;
                                prop_assert_eq!(error.code() == ErrorCode::TooLarge, never);
                            }
                        }
                    }
                    Step::Grow { charge, bytes } => {
                        if let Some(charge) = charges.get_mut(charge) {
                            let before = charge.bytes();
                            let grown = charge.grow(bytes).is_ok();
                            prop_assert_eq!(charge.bytes(), before + if grown { bytes } else { 0 });
                        }
                    }
                    Step::Shrink { charge, bytes } => {
                        if let Some(charge) = charges.get_mut(charge) {
                            charge.shrink_to(bytes);
                            prop_assert!(charge.bytes() <= bytes);
                        }
                    }
                    Step::Split { charge, bytes } => {
                        if let Some(charge) = charges.get_mut(charge) {
                            let part = charge.split(bytes);
                            charges.push(part);
                        }
                    }
                    Step::Own { charge } if charge < charges.len() => {
                        let charge = charges.swap_remove(charge);
                        sizes.push(charge.bytes());
                        buffers.push((sizes.len() - 1, charge.own(vec![1; 5])));
                    }
                    Step::Slice { buffer } => {
                        if let Some((number, buffer)) = buffers.get(buffer) {
                            let slice = (*number, buffer.slice(buffer.len() / 2..));
                            buffers.push(slice);
                        }
                    }
                    Step::DropCharge { charge } if charge < charges.len() => drop(charges.swap_remove(charge)),
                    Step::DropBuffer { buffer } if buffer < buffers.len() => drop(buffers.swap_remove(buffer)),
                    Step::Own { .. } | Step::DropCharge { .. } | Step::DropBuffer { .. } => {}
                }
                let mut alive: Vec<usize> = buffers.iter().map(|(number, _)| *number).collect();
                alive.sort_unstable();
                alive.dedup();
                let counted: u64 = charges.iter().map(Charge::bytes).sum::<u64>()
                    + alive.into_iter().map(|number| sizes[number]).sum::<u64>();
                prop_assert_eq!(budget.used(), counted);
                prop_assert!(counted <= LIMIT);
                prop_assert_eq!(leases.iter().map(Lease::held).sum::<u64>(), counted);
            }
            drop((charges, buffers));
            prop_assert_eq!(budget.used(), 0);
        }
    }
}
