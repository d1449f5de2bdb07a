//! Plans for the shapes that requests come with: each is made when its shape first comes, and the least used go.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use tensor_core::Shape;

use crate::{
    faults::is_temporary,
    plan::{Plan, Planner, ended},
};

/// Plans that are kept at a time.
const MAX_PLANS: usize = 32;

/// Memory of the plans that are kept; one is kept whatever it takes.
const MAX_PLAN_BYTES: u64 = 512 << 20;

/// Shapes that are known to have no plan. They have places of their own: there are so many that they would throw out all plans.
const MAX_FAILURES: usize = 256;

/// After a failure that may be temporary, the next attempt waits for so many times what the last one took, and twice as long after
/// each further one.
const REST: u32 = 10;
const LEAST_REST: Duration = Duration::from_millis(100);
const MOST_REST: Duration = Duration::from_secs(600);

/// Beside a plan for all sizes, the first plans are made when that one has taken this part of the time that making
/// one takes: a plan for a shape is three to ten times as fast, and most models are asked for few shapes.
const EAGERNESS: u32 = 20;

/// After so many plans, further ones have to be worth it by themselves.
const MAX_EAGER: usize = 8;

/// Shapes whose time is noted.
const MAX_NOTED: usize = 256;

/// The plans of one model, by the shapes of its inputs.
///
/// One plan is made at a time, and once for each shape: requests that need it wait for it. Beside a plan for all sizes,
/// shapes that are asked for again get one.
pub(crate) struct ShapePlans {
    planner: Planner,
    /// About how long it takes to make a plan.
    cost: Duration,
    shelf: Mutex<Shelf>,
    /// Told when a plan was made, or could not be.
    made: Condvar,
}

#[derive(Default)]
struct Shelf {
    /// The most recently used last.
    plans: Vec<Kept>,
    /// Shapes that no plan could be made for, and why; so that asking again costs nothing. The latest last.
    failures: Vec<Failure>,
    is_making: bool,
    made: usize,
    /// The time that a plan for all sizes took for shapes without a plan; the latest last.
    spent: Vec<(Vec<Shape>, Duration)>,
}

struct Kept {
    shapes: Vec<Shape>,
    plan: Arc<Plan>,
    bytes: u64,
}

struct Failure {
    shapes: Vec<Shape>,
    reason: Reason,
    /// When making a plan is worth another attempt, if ever, and how many attempts failed.
    retry: Option<(Instant, u32)>,
}

/// Why there is no plan.
#[derive(Clone)]
struct Reason {
    text: String,
    /// There was not enough time or memory.
    is_temporary: bool,
}

impl Failure {
    fn is_over(&self, now: impl FnOnce() -> Instant) -> bool {
        self.retry.is_some_and(|(at, _)| at <= now())
    }
}

impl ShapePlans {
    /// With the time that making a plan takes, as far as it is known.
    pub(crate) fn new(planner: Planner, cost: Duration) -> Self {
        Self {
            planner,
            cost,
            shelf: Mutex::default(),
            made: Condvar::new(),
        }
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Whether to use a plan for these shapes where a plan for all sizes would do: if it is there, or if it is worth
    /// making and nobody else makes one now.
    pub(crate) fn is_worth(&self, shapes: &[Shape]) -> bool {
        let shelf = self.shelf();
        let has_failed = shelf.has_failed(shapes, Instant::now);
        shelf.has_plan(shapes) || (!has_failed && self.is_worth_making(&shelf, shapes))
    }

    fn is_worth_making(&self, shelf: &Shelf, shapes: &[Shape]) -> bool {
        let eagerness = if shelf.made < MAX_EAGER { EAGERNESS } else { 1 };
        let mut spent = shelf.spent.iter();
        let is_enough = |(_, time): &(_, Duration)| time.saturating_mul(eagerness) >= self.cost;
        !shelf.is_making && spent.find(|(noted, _)| noted == shapes).is_some_and(is_enough)
    }

    /// Whether the next run with these shapes makes no plan.
    pub(crate) fn is_settled(&self, shapes: &[Shape]) -> bool {
        let shelf = self.shelf();
        let has_failed = shelf.has_failed(shapes, Instant::now);
        shelf.has_plan(shapes) || has_failed || !self.is_worth_making(&shelf, shapes)
    }

    /// Notes what a run of the plan for all sizes took.
    pub(crate) fn spend(&self, shapes: &[Shape], time: Duration) {
        let mut shelf = self.shelf();
        let before = shelf.take_spent(shapes);
        if shelf.spent.len() >= MAX_NOTED {
            shelf.spent.remove(0);
        }
        shelf.spent.push((shapes.to_vec(), before.saturating_add(time)));
    }

    /// The plan for inputs of these shapes.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) when the model can't be run with these shapes;
    /// [`Overloaded`](ErrorCode::Overloaded) when there was not enough time or memory to make a plan; what the token says when it
    /// is cancelled while another plan is made.
    pub(crate) fn get(&self, shapes: &[Shape], cancel: &CancelToken) -> Result<Arc<Plan>, ServiceError> {
        let mut shelf = self.shelf();
        loop {
            if let Some(found) = shelf.find(shapes, Instant::now) {
                return found.map_err(|reason| refused(shapes, &reason));
            }
            if !shelf.is_making {
                break;
            }
            if cancel.is_cancelled() {
                return Err(ended(cancel));
            }
            // Cancelling wakes nobody, so it is looked at now and then.
            let waited = self.made.wait_timeout(shelf, Duration::from_millis(20));
            shelf = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        shelf.is_making = true;
        drop(shelf);
        let started = Instant::now();
        let plan = self.make(shapes);
        let mut shelf = self.shelf();
        shelf.is_making = false;
        shelf.made += 1;
        // A plan that is thrown out has to be worth it again.
        shelf.take_spent(shapes);
        match &plan {
            Ok(plan) => shelf.keep(shapes.to_vec(), plan.clone()),
            Err(reason) => shelf.note_failure(shapes.to_vec(), reason.clone(), started, Instant::now()),
        }
        drop(shelf);
        self.made.notify_all();
        plan.map_err(|reason| refused(shapes, &reason))
    }

    /// Makes a plan, on this thread. tract panics at some shapes.
    fn make(&self, shapes: &[Shape]) -> Result<Arc<Plan>, Reason> {
        let started = Instant::now();
        let made = catch_unwind(AssertUnwindSafe(|| self.planner.concrete(shapes)));
        let plan = match made {
            Ok(Ok(plan)) => Ok(Arc::new(plan)),
            Ok(Err(error)) => Err(Reason {
                text: error.message().to_owned(),
                is_temporary: is_temporary(&error),
            }),
            Err(_) => Err(Reason {
                text: "the runtime cannot prepare them".to_owned(),
                is_temporary: false,
            }),
        };
        let (milliseconds, is_made) = (started.elapsed().as_millis(), plan.is_ok());
        tracing::debug!(?shapes, milliseconds, is_made, "made a plan for shapes");
        plan
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn has_plan(&self, shapes: &[Shape]) -> bool {
        self.plans.iter().any(|kept| kept.shapes == shapes)
    }

    /// Whether no plan can be made now.
    fn has_failed(&self, shapes: &[Shape], now: impl Fn() -> Instant) -> bool {
        let mut failures = self.failures.iter();
        failures.any(|failure| failure.shapes == shapes && !failure.is_over(&now))
    }

    /// The plan for these shapes, or why there is none, if either is known.
    fn find(&mut self, shapes: &[Shape], now: impl FnOnce() -> Instant) -> Option<Result<Arc<Plan>, Reason>> {
        if let Some(index) = self.plans.iter().rposition(|kept| kept.shapes == shapes) {
            let kept = self.plans.remove(index);
            let plan = kept.plan.clone();
            self.plans.push(kept);
            return Some(Ok(plan));
        }
        let mut failures = self.failures.iter();
        let failure = failures.rfind(|failure| failure.shapes == shapes)?;
        (!failure.is_over(now)).then(|| Err(failure.reason.clone()))
    }

    fn take_spent(&mut self, shapes: &[Shape]) -> Duration {
        let index = self.spent.iter().rposition(|(noted, _)| noted == shapes);
        index.map_or(Duration::ZERO, |index| self.spent.remove(index).1)
    }

    fn keep(&mut self, shapes: Vec<Shape>, plan: Arc<Plan>) {
        self.failures.retain(|failure| failure.shapes != shapes);
        let bytes = plan.bytes();
        self.plans.push(Kept { shapes, plan, bytes });
        let mut bytes: u64 = self.plans.iter().map(|kept| kept.bytes).sum();
        while self.plans.len() > 1 && (self.plans.len() > MAX_PLANS || bytes > MAX_PLAN_BYTES) {
            bytes -= self.plans.remove(0).bytes;
        }
    }

    /// Notes an attempt that took from `started` to `now`.
    fn note_failure(&mut self, shapes: Vec<Shape>, reason: Reason, started: Instant, now: Instant) {
        let before = self.failures.iter().position(|failure| failure.shapes == shapes);
        let before = before.and_then(|index| self.failures.remove(index).retry);
        let attempts = before.map_or(0, |(_, attempts)| attempts.saturating_add(1));
        let rest = (now - started).saturating_mul(REST).max(LEAST_REST);
        let rest = rest.saturating_mul(1 << attempts.min(16)).min(MOST_REST);
        if self.failures.len() >= MAX_FAILURES {
            self.failures.remove(0);
        }
        self.failures.push(Failure {
            shapes,
            retry: reason.is_temporary.then_some((now + rest, attempts)),
            reason,
        });
    }
}

fn refused(shapes: &[Shape], reason: &Reason) -> ServiceError {
    let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
    let (shapes, text) = (shapes.join(", "), &reason.text);
    match reason.is_temporary {
        true => ServiceError::new(
            ErrorCode::Overloaded,
            format!(
                "the model could not be prepared for inputs of the shapes {shapes} now: {text}; try again later"
            ),
        ),
        false => ServiceError::invalid(format!(
            "the model cannot be run with inputs of the shapes {shapes}: {text}"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::made_up::planner_of_fixture;

    fn plans() -> ShapePlans {
        ShapePlans::new(
            planner_of_fixture("halved_and_doubled"),
            Duration::from_millis(40),
        )
    }

    fn image(width: u64) -> [Shape; 1] {
        [Shape::new(&[1, 3, 2, width]).unwrap()]
    }

    #[test]
    fn a_plan_is_made_once_for_all_who_wait_for_it() {
        let plans = plans();
        let token = CancelToken::new(None);
        let made: Vec<Arc<Plan>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| plans.get(&image(4), &token).unwrap()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|plan| Arc::ptr_eq(plan, &made[0])));
        assert!(plans.is_worth(&image(4)) && !plans.is_worth(&image(6)));
    }

    #[test]
    fn the_least_used_plan_goes() {
        let plans = plans();
        let token = CancelToken::new(None);
        let first = plans.get(&image(2), &token).unwrap();
        let second = plans.get(&image(4), &token).unwrap();
        for width in 3..=MAX_PLANS as u64 {
            plans.get(&image(2 * width), &token).unwrap();
            // Plans in use stay.
            assert!(Arc::ptr_eq(&first, &plans.get(&image(2), &token).unwrap()));
        }
        plans.get(&image(1000), &token).unwrap();
        assert_eq!(plans.shelf().plans.len(), MAX_PLANS);
        assert!(Arc::ptr_eq(&first, &plans.get(&image(2), &token).unwrap()));
        assert!(!Arc::ptr_eq(&second, &plans.get(&image(4), &token).unwrap()));
    }

    #[test]
    fn what_cannot_be_made_is_remembered_and_not_ready() {
        let plans = plans();
        let token = CancelToken::new(None);
        for _ in 0..2 {
            assert!(plans.get(&image(3), &token).is_err());
        }
        assert!(!plans.is_worth(&image(3)));
        assert_eq!(plans.shelf().made, 1);
    }

    /// The time of a load is over, for one, or the machine is busy.
    #[test]
    fn a_plan_that_was_not_made_in_time_is_made_later() {
        let plans = plans();
        let token = CancelToken::new(None);
        {
            let _over = crate::time_limit::until(Some(Instant::now()));
            std::thread::sleep(Duration::from_millis(1));
            let error = plans.get(&image(4), &token).err().unwrap();
            assert_eq!(error.code(), ErrorCode::Overloaded, "{error}");
        }
        // Not at once, and no other shape waits for it.
        assert_eq!(
            plans.get(&image(4), &token).err().unwrap().code(),
            ErrorCode::Overloaded
        );
        assert_eq!(plans.shelf().made, 1);
        plans.get(&image(6), &token).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while plans.get(&image(4), &token).is_err() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(plans.shelf().failures.is_empty());
    }

    #[test]
    fn attempts_become_rarer() {
        let mut shelf = Shelf::default();
        let reason = |is_temporary| Reason {
            text: String::new(),
            is_temporary,
        };
        let (shapes, mut now) = (image(4), Instant::now());
        let mut rests = vec![];
        for _ in 0..14 {
            let started = now;
            now += Duration::from_millis(100);
            shelf.note_failure(shapes.to_vec(), reason(true), started, now);
            let noted = now;
            while shelf.has_failed(&shapes, || now) {
                assert!(shelf.find(&shapes, || now).is_some());
                now += Duration::from_millis(500);
            }
            assert!(shelf.find(&shapes, || now).is_none());
            rests.push((now - noted).as_secs());
        }
        assert_eq!(rests[..5], [1, 2, 4, 8, 16]);
        assert_eq!(rests[12..], [600, 600]);
        shelf.note_failure(shapes.to_vec(), reason(false), now, now);
        assert_eq!(shelf.failures.len(), 1);
        assert!(shelf.has_failed(&shapes, || now + Duration::from_secs(1 << 30)));
    }

    /// There are so many shapes that a model cannot take that they would throw out the plans of all others.
    #[test]
    fn failures_throw_out_no_plan() {
        let plans = plans();
        let token = CancelToken::new(None);
        let good = plans.get(&image(4), &token).unwrap();
        for width in 0..2 * MAX_PLANS as u64 {
            assert!(plans.get(&image(2 * width + 1), &token).is_err());
        }
        assert!(Arc::ptr_eq(&good, &plans.get(&image(4), &token).unwrap()));
        assert!(plans.shelf().failures.len() <= MAX_FAILURES);
    }

    #[test]
    fn what_is_asked_for_again_is_worth_a_plan() {
        let plans = plans();
        let token = CancelToken::new(None);
        let millisecond = Duration::from_millis(1);
        plans.spend(&image(4), millisecond);
        assert!(!plans.is_worth(&image(4)) && plans.is_settled(&image(4)));
        plans.spend(&image(4), millisecond);
        assert!(plans.is_worth(&image(4)) && !plans.is_worth(&image(6)));
        // The next run makes the plan, those after it find it.
        assert!(!plans.is_settled(&image(4)) && plans.is_settled(&image(6)));
        plans.get(&image(4), &token).unwrap();
        assert!(plans.is_settled(&image(4)));
        // Later ones only when as much was spent as a plan costs.
        for width in 1..=MAX_EAGER as u64 {
            plans.get(&image(2 * width), &token).unwrap();
        }
        plans.spend(&image(100), 39 * millisecond);
        assert!(!plans.is_worth(&image(100)));
        plans.spend(&image(100), millisecond);
        assert!(plans.is_worth(&image(100)));
        plans.get(&image(100), &token).unwrap();
        assert!(plans.is_worth(&image(100)) && plans.shelf().spent.is_empty());
    }
}
