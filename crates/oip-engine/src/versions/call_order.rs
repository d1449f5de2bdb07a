//! Prevents deadlocks between models that call each other.

use std::collections::{BTreeMap, BTreeSet};

use oip_types::{ErrorCode, ServiceError};
use parking_lot::{Mutex, MutexGuard};
use tensor_core::QuotedName;

/// The calls between models: for each caller, the names of the models that it has called. The graph is
/// acyclic.
///
/// A model holds its instance while it waits for a model that it called. With a cycle, requests could hold
/// all instances of each model and wait for the next model forever, even if no single request forms a cycle.
/// As in lock ordering, the first call determines the direction.
#[derive(Default)]
pub(crate) struct CallOrder(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl CallOrder {
    /// Records that `caller` calls `callee`.
    ///
    /// # Errors
    /// `callee` calls `caller`, directly or through other models.
    pub(crate) fn admit(&self, caller: &str, callee: &str) -> Result<(), ServiceError> {
        let mut calls = self.lock();
        if calls.get(caller).is_some_and(|callees| callees.contains(callee)) {
            return Ok(());
        }
        if let Some(path) = path(&calls, callee, caller) {
            let caller = QuotedName(caller);
            let message = match &path[..] {
                [_] => format!("model {caller} cannot call itself: it would wait for itself"),
                path => format!(
                    "model {caller} cannot call {}, which calls {caller} in turn ({}): requests would wait for each other",
                    QuotedName(callee),
                    path.join(" -> ")
                ),
            };
            return Err(ServiceError::new(ErrorCode::Internal, message));
        }
        let callees = calls.entry(caller.to_owned()).or_default();
        callees.insert(callee.to_owned());
        Ok(())
    }

    /// Forgets the calls of a model that was reloaded, since it may now call other models.
    pub(crate) fn forget(&self, caller: &str) {
        self.lock().remove(caller);
    }

    /// Locks the calls.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<String>>> {
        self.0.lock()
    }
}

/// Finds a path of calls between two models, both included.
fn path<'c>(calls: &'c BTreeMap<String, BTreeSet<String>>, from: &'c str, to: &str) -> Option<Vec<&'c str>> {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![vec![from]];
    while let Some(path) = open.pop() {
        let last = *path.last()?;
        if last == to {
            return Some(path);
        }
        for next in calls.get(last).into_iter().flatten() {
            if seen.insert(next) {
                let mut longer = path.clone();
                longer.push(next);
                open.push(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_asked_first_does_not_ask_back() {
        let order = CallOrder::default();
        for (caller, callee) in [("a", "b"), ("b", "c"), ("a", "c"), ("a", "b"), ("d", "a")] {
            order.admit(caller, callee).unwrap();
        }
        let refused = |caller, callee| order.admit(caller, callee).unwrap_err().message().to_owned();
        assert_eq!(
            refused("c", "a"),
            "model 'c' cannot call 'a', which calls 'c' in turn (a -> c): requests would wait for each other"
        );
        assert!(refused("c", "d").contains("(d -> a -> c)"));
        assert_eq!(
            refused("x", "x"),
            "model 'x' cannot call itself: it would wait for itself"
        );
        // A refused call is not recorded, and reloading a model clears its calls.
        order.admit("d", "c").unwrap();
        order.forget("b");
        order.admit("c", "b").unwrap();
        assert!(order.admit("b", "a").is_err());
    }
}
