//! Cancellation and deadlines of requests, from the transport to the model.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Signals to running work that its result is no longer wanted, because the work was cancelled or its
/// deadline has passed.
///
/// Clones share one state. Long-running models should check the token between steps.
///
/// ```
/// use oip_model::CancelToken;
///
/// let token = CancelToken::new(None);
/// let seen_by_the_model = token.clone();
/// assert!(!seen_by_the_model.is_cancelled());
/// drop(token.guard()); // the client hung up
/// assert!(seen_by_the_model.is_cancelled());
/// ```
#[derive(Clone, Debug)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
    deadline: Option<Instant>,
    /// If present, this token is also cancelled once all of these tokens are cancelled.
    members: Option<Arc<[CancelToken]>>,
}

impl CancelToken {
    /// Creates a token that is cancelled by [`Self::cancel`] or, if given, by a deadline.
    #[must_use]
    pub fn new(deadline: Option<Instant>) -> Self {
        Self {
            cancelled: Arc::default(),
            deadline,
            members: None,
        }
    }

    /// Creates a token for work that several requests are waiting for. The token is cancelled when all of
    /// `members` are.
    ///
    /// ```
    /// use oip_model::CancelToken;
    ///
    /// let members = [CancelToken::new(None), CancelToken::new(None)];
    /// let batch = CancelToken::all_of(&members);
    /// members[0].cancel();
    /// assert!(!batch.is_cancelled());
    /// members[1].cancel();
    /// assert!(batch.is_cancelled());
    /// ```
    #[must_use]
    pub fn all_of(members: &[Self]) -> Self {
        let deadlines = members.iter().map(|member| member.deadline);
        // The latest deadline; `None` if a member has no deadline.
        let deadline = deadlines.reduce(|a, b| Some(a?.max(b?))).flatten();
        Self {
            members: Some(members.into()).filter(|_| !members.is_empty()),
            ..Self::new(deadline)
        }
    }

    /// Returns this token with another deadline. Cancelling either token cancels both.
    #[must_use]
    pub fn with_deadline(&self, deadline: Option<Instant>) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// Cancels the token and all its clones.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// Returns whether the result is no longer wanted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled_by(Self::is_expired)
    }

    /// Like [`Self::is_cancelled`], for callers that already have the current time.
    #[must_use]
    pub fn is_cancelled_at(&self, now: Instant) -> bool {
        self.is_cancelled_by(|token| token.is_expired_at(now))
    }

    fn is_cancelled_by(&self, is_expired: impl Fn(&Self) -> bool + Copy) -> bool {
        let are_members = || {
            let members = self.members.as_ref();
            members.is_some_and(|members| members.iter().all(|member| member.is_cancelled_by(is_expired)))
        };
        self.cancelled.load(Ordering::Acquire) || is_expired(self) || are_members()
    }

    /// Returns whether the deadline has passed.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Returns whether the deadline has passed at the time `now`.
    #[must_use]
    pub fn is_expired_at(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Returns the time after which the result is no longer wanted.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns a guard that cancels the token if it is dropped without being disarmed. A future that waits
    /// for a response holds one, so that dropping the future cancels the work.
    #[must_use]
    pub fn guard(&self) -> CancelGuard {
        CancelGuard {
            token: Some(self.clone()),
        }
    }
}

/// Cancels its token when it is dropped; see [`CancelToken::guard`].
#[derive(Debug)]
pub struct CancelGuard {
    token: Option<CancelToken>,
}

impl CancelGuard {
    /// Disarms the guard, because the response has arrived: dropping the guard then has no effect.
    pub fn disarm(mut self) {
        self.token = None;
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_dropped_guard_cancels_and_a_disarmed_one_does_not() {
        let token = CancelToken::new(None);
        token.guard().disarm();
        assert!(!token.is_cancelled());
        drop(token.clone().guard());
        assert!(token.is_cancelled() && !token.is_expired());
    }

    #[test]
    fn work_for_several_has_the_latest_deadline() {
        let [soon, late] = [5, 9].map(|seconds| Some(Instant::now() + Duration::from_secs(seconds)));
        let deadline = |deadlines: &[Option<Instant>]| {
            let members: Vec<CancelToken> = deadlines.iter().copied().map(CancelToken::new).collect();
            CancelToken::all_of(&members).deadline()
        };
        assert_eq!(deadline(&[soon, late]), late);
        assert_eq!(deadline(&[late, None]), None);
        assert!(!CancelToken::all_of(&[]).is_cancelled());
    }

    #[test]
    fn a_deadline_cancels_by_itself() {
        let now = Instant::now();
        assert!(CancelToken::new(Some(now)).is_cancelled());
        let later = now + Duration::from_secs(3600);
        let token = CancelToken::new(Some(later));
        assert!(!token.is_cancelled() && !token.is_cancelled_at(now) && token.is_cancelled_at(later));
        assert!(CancelToken::all_of(std::slice::from_ref(&token)).is_cancelled_at(later));
        assert!(!CancelToken::all_of(&[token]).is_cancelled_at(now));
    }
}
