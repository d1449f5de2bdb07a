//! Plans for the shapes that requests come with: each is made when its shape first comes, and the least used go.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use oip_service::CancelToken;
use oip_types::{ErrorCode, ServiceError};
use tensor_core::Shape;

use crate::plan::{Plan, Planner, ended};

/// Plans that are kept at a time.
const MAX_PLANS: usize = 32;

/// Memory of the plans that are kept; one is kept whatever it takes.
const MAX_PLAN_BYTES: u64 = 512 << 20;

/// The plans of one model, by the shapes of its inputs.
///
/// One plan is made at a time, and once for each shape: requests that need it wait for it.
pub(crate) struct ShapePlans {
    planner: Planner,
    shelf: Mutex<Shelf>,
    /// Told when a plan was made, or could not be.
    made: Condvar,
}

#[derive(Default)]
struct Shelf {
    /// The most recently used last.
    plans: Vec<Kept>,
    is_making: bool,
}

struct Kept {
    shapes: Vec<Shape>,
    /// Or why there is none.
    plan: Result<Arc<Plan>, Failure>,
    bytes: u64,
}

/// Why no plan could be made; kept so that asking again costs nothing.
#[derive(Clone)]
struct Failure(String);

impl ShapePlans {
    pub(crate) fn new(planner: Planner) -> Self {
        Self {
            planner,
            shelf: Mutex::default(),
            made: Condvar::new(),
        }
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Whether there was a request with these shapes.
    pub(crate) fn has(&self, shapes: &[Shape]) -> bool {
        let shelf = self.shelf();
        shelf
            .plans
            .iter()
            .any(|kept| kept.shapes == shapes && kept.plan.is_ok())
    }

    /// The plan for inputs of these shapes.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) when the model can't be run with these shapes; what the token
    /// says when it is cancelled while another plan is made.
    pub(crate) fn get(&self, shapes: &[Shape], cancel: &CancelToken) -> Result<Arc<Plan>, ServiceError> {
        let mut shelf = self.shelf();
        loop {
            if let Some(plan) = shelf.find(shapes) {
                return plan.map_err(|failure| refused(shapes, &failure));
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
        let plan = self.make(shapes);
        let mut shelf = self.shelf();
        shelf.is_making = false;
        shelf.keep(Kept {
            shapes: shapes.to_vec(),
            bytes: plan.as_ref().map_or(0, |plan| plan.bytes()),
            plan: plan.clone(),
        });
        drop(shelf);
        self.made.notify_all();
        plan.map_err(|failure| refused(shapes, &failure))
    }

    /// Makes a plan, on this thread. tract panics at some shapes.
    fn make(&self, shapes: &[Shape]) -> Result<Arc<Plan>, Failure> {
        let started = std::time::Instant::now();
        let made = catch_unwind(AssertUnwindSafe(|| self.planner.concrete(shapes)));
        let plan = match made {
            Ok(Ok(plan)) => Ok(Arc::new(plan)),
            Ok(Err(error)) => Err(Failure(error.message().to_owned())),
            Err(_) => Err(Failure("the runtime cannot prepare them".to_owned())),
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
    fn find(&mut self, shapes: &[Shape]) -> Option<Result<Arc<Plan>, Failure>> {
        let index = self.plans.iter().rposition(|kept| kept.shapes == shapes)?;
        let kept = self.plans.remove(index);
        let plan = kept.plan.clone();
        self.plans.push(kept);
        Some(plan)
    }

    fn keep(&mut self, kept: Kept) {
        self.plans.push(kept);
        let mut bytes: u64 = self.plans.iter().map(|kept| kept.bytes).sum();
        while self.plans.len() > 1 && (self.plans.len() > MAX_PLANS || bytes > MAX_PLAN_BYTES) {
            bytes -= self.plans.remove(0).bytes;
        }
    }
}

fn refused(shapes: &[Shape], failure: &Failure) -> ServiceError {
    let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
    ServiceError::new(
        ErrorCode::InvalidArgument,
        format!(
            "the model cannot be run with inputs of the shapes {}: {}",
            shapes.join(", "),
            failure.0
        ),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{decode, lower, signature::Signature};

    fn plans() -> ShapePlans {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/halved_and_doubled.onnx"
        );
        let model = decode::model(&std::fs::read(path).unwrap().into()).unwrap();
        let graph = model.graph.as_ref().unwrap();
        let signature = Signature::of(&model, graph).unwrap();
        let lowered = lower::lower(graph, &signature.opsets).unwrap();
        ShapePlans::new(Planner::new(signature, lowered).unwrap())
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
        assert!(plans.has(&image(4)) && !plans.has(&image(6)));
    }

    #[test]
    fn the_least_used_plan_goes() {
        let plans = plans();
        let token = CancelToken::new(None);
        let first = plans.get(&image(2), &token).unwrap();
        let second = plans.get(&image(4), &token).unwrap();
        for width in 3..=MAX_PLANS as u64 {
            plans.get(&image(2 * width), &token).unwrap();
            // What is used stays.
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
        assert!(!plans.has(&image(3)));
        assert_eq!(plans.shelf().plans.len(), 1);
    }
}
