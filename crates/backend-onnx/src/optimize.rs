//! tract's rules that make a graph better, with an end: some undo each other, and would go on for ever.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tract_onnx::tract_hir::{
    internal::*,
    tract_core::{
        ops::scan::Scan,
        optim::{Optimizer, OptimizerSession, TypedPass},
    },
};

use crate::{faults::Limit, time_limit};

/// Changes that a graph may take for each of its nodes, and those that small ones with large inner graphs may take beside them. Models
/// take one for a node or two, and none that is known three.
const CHANGES_FOR_A_NODE: usize = 16;
const CHANGES: usize = 1024;

/// Makes a graph simpler. Where that does not come to an end, each `Scan` stays as it is: the rules that move products out of its
/// body are known to repeat.
pub(crate) fn declutter(model: &mut TypedModel) -> TractResult<()> {
    let given = model.clone();
    let outcome = watched(Optimizer::declutter(), model).optimize(model);
    if !outcome
        .as_ref()
        .is_err_and(|error| error.root_cause().is::<Endless>())
    {
        return outcome;
    }
    *model = given;
    let mut optimizer = Optimizer::declutter();
    for pass in &mut optimizer.passes {
        if format!("{pass:?}") == OF_OPERATORS {
            *pass = Box::new(WithoutScans { from: 0 });
        }
    }
    watched(optimizer, model).optimize(model).map_err(limit)
}

/// Makes a graph ready to run.
pub(crate) fn optimize(model: &mut TypedModel) -> TractResult<()> {
    let optimizer = watched(Optimizer::codegen(), model);
    model
        .optimize_with_session(&mut optimizer.session())
        .map_err(limit)
}

/// More changes than any model needs.
#[derive(Debug)]
struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("preparing the model does not come to an end")
    }
}

impl std::error::Error for Endless {}

/// The pass with the rules that operators have for themselves.
const OF_OPERATORS: &str = "declutter";

/// That pass for all operators but `Scan`.
#[derive(Clone, Debug)]
struct WithoutScans {
    from: usize,
}

impl TypedPass for WithoutScans {
    fn reset(&mut self) -> TractResult<()> {
        self.from = 0;
        Ok(())
    }

    fn next(
        &mut self,
        session: &mut OptimizerSession<'_>,
        model: &TypedModel,
    ) -> TractResult<Option<TypedModelPatch>> {
        let nodes = model.nodes().iter().skip(self.from);
        for node in nodes.filter(|node| !node.op_is::<Scan>()) {
            if let Some(patch) = node.op.declutter_with_session(session, model, node)? {
                self.from = node.id + usize::from(patch.dont_apply_twice.is_some());
                return Ok(Some(patch));
            }
        }
        Ok(None)
    }
}

fn limit(error: TractError) -> TractError {
    match error.root_cause().is::<Endless>() {
        true => Limit(Endless.to_string()).into(),
        false => error,
    }
}

fn watched(optimizer: Optimizer, model: &TypedModel) -> Optimizer {
    let most = model.nodes().len().saturating_mul(CHANGES_FOR_A_NODE) + CHANGES;
    let left = Arc::new(AtomicUsize::new(most));
    let passes = optimizer.passes.into_iter().map(|pass| {
        Box::new(Watched {
            pass,
            left: left.clone(),
        }) as Box<dyn TypedPass>
    });
    Optimizer {
        passes: passes.collect(),
        ..optimizer
    }
}

/// A pass that ends when the time is over, or when all passes together have changed too much; those over inner graphs are copies of
/// these.
#[derive(Clone, Debug)]
struct Watched {
    pass: Box<dyn TypedPass>,
    left: Arc<AtomicUsize>,
}

impl TypedPass for Watched {
    fn reset(&mut self) -> TractResult<()> {
        self.pass.reset()
    }

    fn next(
        &mut self,
        session: &mut OptimizerSession<'_>,
        model: &TypedModel,
    ) -> TractResult<Option<TypedModelPatch>> {
        time_limit::check()?;
        let patch = self.pass.next(session, model)?;
        if patch.is_some() {
            // One session changes a graph and what is in it, one after the other.
            match self.left.load(Ordering::Relaxed).checked_sub(1) {
                Some(left) => self.left.store(left, Ordering::Relaxed),
                None => bail!(Endless),
            }
        }
        Ok(patch)
    }

    fn run_direct(&mut self, model: &mut TypedModel) -> TractResult<bool> {
        time_limit::check()?;
        self.pass.run_direct(model)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// A pass that never ends.
    #[derive(Clone, Debug)]
    struct Renamed;

    impl TypedPass for Renamed {
        fn reset(&mut self) -> TractResult<()> {
            Ok(())
        }

        fn next(
            &mut self,
            _: &mut OptimizerSession<'_>,
            _: &TypedModel,
        ) -> TractResult<Option<TypedModelPatch>> {
            Ok(Some(TypedModelPatch::default()))
        }
    }

    #[test]
    fn what_never_ends_is_ended() {
        let mut model = TypedModel::default();
        let input = model.add_source("x", f32::fact([4])).unwrap();
        model.select_output_outlets(&[input]).unwrap();
        let optimizer = || Optimizer {
            passes: vec![Box::new(Renamed)],
            ..Optimizer::declutter()
        };
        let error = watched(optimizer(), &model).optimize(&mut model).map_err(limit);
        assert!(error.unwrap_err().root_cause().is::<Limit>());

        let _over = time_limit::start(std::time::Duration::ZERO);
        std::thread::sleep(std::time::Duration::from_millis(1));
        let error = watched(optimizer(), &model).optimize(&mut model).unwrap_err();
        assert!(
            error.root_cause().to_string().ends_with("takes too long"),
            "{error:?}"
        );
    }

    #[test]
    fn the_pass_of_operators_is_there_to_be_replaced() {
        let passes = Optimizer::declutter().passes;
        let names = passes.iter().map(|pass| format!("{pass:?}"));
        assert_eq!(names.filter(|name| name == OF_OPERATORS).count(), 1);
    }
}
