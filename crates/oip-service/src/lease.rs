//! The lease of a request: its memory, its time and its right to work, from its first byte to the last byte of its answer.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use oip_types::{ErrorCode, Memory, Reservation, ServiceError};

use crate::{ByteBudget, CancelGuard, CancelToken, Laps, RequestNotes, TimeLimits};
#[cfg(unix)]
use crate::{ConnectionMemory, ConnectionRegion};

/// A request's memory, time and right to work. Clones are the same lease.
///
/// A transport makes it when the first byte of a request comes. Each step that allocates for the request asks it first
/// ([`Lease::charge`]); each step that takes long asks it between pieces whether the answer is still wanted
/// ([`Lease::check`]).
///
/// ```
/// use oip_service::{ByteBudget, Lease, TimeLimits};
///
/// let budget = ByteBudget::new(1 << 20);
/// let lease = Lease::new(&budget, &TimeLimits::default());
/// let buffer = lease.charge(5)?.own(b"hello".to_vec());
/// let slice = buffer.slice(1..3);
/// drop((lease, buffer));
/// assert_eq!(budget.used(), 5); // the slice keeps the buffer
/// drop(slice);
/// assert_eq!(budget.used(), 0);
/// # Ok::<(), oip_service::oip_types::ServiceError>(())
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
    /// The lease of a request whose first byte has just come. Until the request says how long it may take, it may take
    /// the longest time that the limits allow.
    #[must_use]
    pub fn new(budget: &ByteBudget, time: &TimeLimits) -> Self {
        let lease = Self::without_deadline(budget);
        lease.set_timeout(time.max);
        lease
    }

    /// A lease without limits, for callers within the process.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::without_deadline(&ByteBudget::new(u64::MAX))
    }

    /// Memory of a budget, without a deadline.
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

    /// A lease on the same budget, without a deadline, for work that this request and others share, as in a batch.
    #[must_use]
    pub fn for_shared_work(&self) -> Self {
        Self::without_deadline(&self.0.budget)
    }

    /// When the request's first byte came.
    #[must_use]
    pub fn received(&self) -> Instant {
        self.0.received
    }

    /// Lets the request read and write the memory that its connection's client shares, if it was opened. The first word counts.
    #[cfg(unix)]
    pub fn use_memory_of(&self, region: &ConnectionRegion) {
        if let Some(memory) = region.memory() {
            self.0.connection_memory.get_or_init(|| memory.clone());
        }
    }

    /// The memory that the connection's client shares, if there is some.
    #[cfg(unix)]
    #[must_use]
    pub fn connection_memory(&self) -> Option<&Arc<dyn ConnectionMemory>> {
        self.0.connection_memory.get()
    }

    /// Whether the connection's client shares memory.
    #[must_use]
    pub fn has_connection_memory(&self) -> bool {
        #[cfg(unix)]
        return self.connection_memory().is_some();
        #[cfg(not(unix))]
        false
    }

    /// Where to note what is done for the request. The first word counts.
    pub fn set_notes(&self, notes: Arc<RequestNotes>) {
        self.0.notes.get_or_init(|| notes);
    }

    /// Where to note it, if somebody wants to know.
    #[must_use]
    pub fn notes(&self) -> Option<&RequestNotes> {
        self.0.notes.get().map(Arc::as_ref)
    }

    /// Notes which version answered, if it has a name and somebody wants to know.
    pub fn note_version(&self, version: Option<&str>) {
        if let (Some(notes), Some(version)) = (self.notes(), version) {
            notes.set_version(version);
        }
    }

    /// Notes that a model is called for the request, or for a part of it.
    pub fn note_run(&self) {
        self.0.was_run.store(true, Ordering::Relaxed);
    }

    /// Whether a model was called for the request, or for a part of it.
    #[must_use]
    pub fn was_run(&self) -> bool {
        self.0.was_run.load(Ordering::Relaxed)
    }

    /// Begins to take times for the notes.
    #[must_use]
    pub fn laps(&self) -> Laps {
        Laps::new(self.0.notes.get())
    }

    /// The time before which the request must be answered.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the deadline to so long after the request's first byte.
    pub fn set_timeout(&self, timeout: Duration) {
        self.set_deadline(self.0.received.checked_add(timeout));
    }

    pub(crate) fn set_deadline(&self, deadline: Option<Instant>) {
        *self.0.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// Tells when the answer is not wanted any more. The token has the deadline that the lease has now.
    #[must_use]
    pub fn cancel_token(&self) -> CancelToken {
        self.0.cancel.with_deadline(self.deadline())
    }

    /// A guard that cancels the request when it is dropped before it is disarmed: a transport keeps it in the future that
    /// answers the request, so that all work ends when the client leaves.
    #[must_use]
    pub fn guard(&self) -> CancelGuard {
        self.0.cancel.guard()
    }

    /// Whether to go on with the request.
    ///
    /// # Errors
    /// [`ErrorCode::DeadlineExceeded`] when its time is over, [`ErrorCode::Cancelled`] when its client has left.
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

    /// Takes bytes of the budget for a buffer that is about to be allocated.
    ///
    /// # Errors
    /// [`ErrorCode::TooLarge`] when the request can never fit, because with these bytes it would hold more than the
    /// whole budget; [`ErrorCode::Overloaded`] when other requests hold what it needs now.
    pub fn charge(&self, bytes: u64) -> Result<Charge, ServiceError> {
        let mut charge = Charge {
            lease: self.clone(),
            bytes: 0,
        };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Bytes that are charged to the request now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }
}

impl ByteBudget {
    /// Takes some bytes for work that belongs to no request.
    ///
    /// # Errors
    /// As [`Lease::charge`].
    pub fn take(&self, bytes: u64) -> Result<Charge, ServiceError> {
        Lease::without_deadline(self).charge(bytes)
    }
}

/// The error for a request whose time is over.
pub(crate) fn deadline_passed() -> ServiceError {
    ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed")
}

/// Bytes of memory charged to a request; given back when it is dropped.
#[derive(Debug)]
pub struct Charge {
    lease: Lease,
    bytes: u64,
}

impl Charge {
    /// Bytes of this charge.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The budget that the bytes are taken from.
    pub(crate) fn budget(&self) -> &ByteBudget {
        &self.lease.0.budget
    }

    /// Takes more bytes.
    ///
    /// # Errors
    /// As [`Lease::charge`]; the charge keeps what it had.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ServiceError> {
        let Inner { budget, held, .. } = &*self.lease.0;
        budget.reserve(held.load(Ordering::Relaxed), bytes)?;
        held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        Ok(())
    }

    /// Gives back what is beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        drop(self.split(self.bytes.saturating_sub(bytes)));
    }

    /// Makes a charge of its own of so many of the bytes, or of all if there are fewer.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            lease: self.lease.clone(),
            bytes,
        }
    }

    /// Ties the charge to the buffer it was taken for: the bytes are given back when the last slice of it is dropped.
    #[must_use]
    pub fn own(self, buffer: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Owned {
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

/// A buffer and what it costs. The buffer is freed first.
struct Owned<B> {
    buffer: B,
    _charge: Charge,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Owned<B> {
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
        /// Whatever is taken, split and handed on: the budget counts exactly what is alive, and never more than its limit.
        #[test]
        fn the_budget_counts_what_is_alive(steps in prop::collection::vec(step(), 1..80)) {
            const LIMIT: u64 = 100;
            let budget = ByteBudget::new(LIMIT);
            let leases: Vec<Lease> = (0..3).map(|_| Lease::without_deadline(&budget)).collect();
            let mut charges: Vec<Charge> = Vec::new();
            // Slices of the same buffer have its number; each buffer has its size.
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
