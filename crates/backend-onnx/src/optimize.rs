//! tract's rules that make a graph better, with an end: some can undo each other, and would go on for ever.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tract_hir::{
    internal::*,
    tract_core::{
        ops::{cnn::Conv, einsum::EinSum},
        optim::{Optimizer, OptimizerSession, TypedPass},
    },
};

use crate::{
    cancelling,
    faults::{Limit, Refusal},
};

/// Changes that a graph may take for each of its nodes, and those that small ones with large inner graphs may take beside them. The
/// models of the tests take at most three for a node.
const CHANGES_FOR_A_NODE: usize = 16;
const CHANGES: usize = 1024;

/// Passes that are left out. The last one takes whole numbers that are all 0, or all 1, for a mask, and puts a single number in their
/// place, so that a product or a quotient loses their shape. The other two only find masks for it.
const LEFT_OUT: [&str; 3] = ["PropagateUniformTdim", "PropagateRoi", "FoldUniformMask"];

/// Makes a graph simpler.
pub(crate) fn declutter(model: &mut TypedModel) -> TractResult<()> {
    let mut optimizer = Optimizer::declutter();
    optimizer
        .passes
        .retain(|pass| !LEFT_OUT.contains(&&*name(&**pass)));
    watched(optimizer, model).optimize(model)
}

/// The pass that computes what constants give.
const FOLDING: &str = "PropConst";

/// Multiplications of one product, or one convolution, of constants. tract does not look at the time meanwhile.
const MAX_FOLDED: i64 = 1 << 37;

/// Bytes that operators of constants may give one behind the other, all of which are computed before tract comes back.
const MAX_CHAIN: u64 = 1 << 34;

/// Refuses a product of constants, or a chain of other operators, that takes too long.
fn admit_folding(model: &TypedModel) -> TractResult<()> {
    for node in model.nodes() {
        admit_chain(model, node)?;
        if !node.op_is::<EinSum>() && !node.op_is::<Conv>() {
            continue;
        }
        let inputs = model.node_input_facts(node.id)?;
        if inputs.iter().any(|input| input.konst.is_none()) {
            continue;
        }
        let costs = node.op.cost(&inputs)?.into_iter();
        let known = costs.map(|(_, count)| count.to_i64().unwrap_or(0));
        if known.fold(0, i64::saturating_add) > MAX_FOLDED {
            let error = Refusal("is a product of constants that takes too long".to_owned());
            return Err(TractError::from(error).context(node.name.clone()));
        }
    }
    Ok(())
}

fn admit_chain(model: &TypedModel, first: &TypedNode) -> TractResult<()> {
    const SMALL: u64 = 1 << 26;
    let bytes = |node: &TypedNode| {
        let sizes = node.outputs.iter().map(|output| output.fact.mem_size().to_i64());
        sizes
            .filter_map(|size| u64::try_from(size.ok()?).ok())
            .sum::<u64>()
    };
    let mut all = bytes(first);
    let facts = model.node_input_facts(first.id)?;
    if all < SMALL || facts.is_empty() || facts.iter().any(|fact| fact.konst.is_none()) {
        return Ok(());
    }
    let mut node = first;
    while let Some(next) = model.single_succ(node.id)?.filter(|next| next.inputs.len() == 1) {
        node = next;
        all = all.saturating_add(bytes(node));
        if all > MAX_CHAIN {
            let error = Refusal("is a chain of operators on constants that takes too long".to_owned());
            return Err(TractError::from(error).context(first.name.clone()));
        }
    }
    Ok(())
}

/// The name of a pass. tract tells it only as part of the debug text.
fn name(pass: &dyn TypedPass) -> String {
    let text = format!("{pass:?}");
    text.split(|letter: char| !letter.is_alphanumeric())
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Makes a graph ready to run.
pub(crate) fn optimize(model: &mut TypedModel) -> TractResult<()> {
    let optimizer = watched(Optimizer::codegen(), model);
    model.optimize_with_session(&mut optimizer.session())
}

fn watched(optimizer: Optimizer, model: &TypedModel) -> Optimizer {
    let most = model.nodes().len().saturating_mul(CHANGES_FOR_A_NODE) + CHANGES;
    let left = Arc::new(AtomicUsize::new(most));
    let passes = optimizer.passes.into_iter().map(|pass| {
        Box::new(Watched {
            is_folding: name(&*pass) == FOLDING,
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
    /// Whether it computes what constants give.
    is_folding: bool,
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
        cancelling::check_all()?;
        if self.is_folding {
            admit_folding(model)?;
        }
        let patch = self.pass.next(session, model)?;
        if patch.is_some() {
            // One session changes a graph and what is in it, one after the other.
            match self.left.load(Ordering::Relaxed).checked_sub(1) {
                Some(left) => self.left.store(left, Ordering::Relaxed),
                None => bail!(Limit("preparing the model does not come to an end".to_owned())),
            }
        }
        Ok(patch)
    }

    fn run_direct(&mut self, model: &mut TypedModel) -> TractResult<bool> {
        cancelling::check_all()?;
        self.pass.run_direct(model)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::time_limit;

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
    fn passes_that_are_left_out_are_there() {
        let names: Vec<String> = Optimizer::declutter()
            .passes
            .iter()
            .map(|pass| name(&**pass))
            .collect();
        assert!(
            LEFT_OUT
                .iter()
                .chain([&FOLDING])
                .all(|left_out| names.iter().any(|name| name == left_out)),
            "{names:?}"
        );
    }

    #[test]
    fn large_products_of_constants_are_refused() {
        for (size, is_refused) in [(64, false), (1 << 19, true)] {
            let mut model = TypedModel::default();
            let factors = [("a", [size, 1]), ("b", [1, size])];
            let factors = factors.map(|(name, shape)| {
                let factor = Tensor::zero::<f32>(&shape).unwrap();
                model.add_const(name, factor).unwrap()
            });
            let axes = AxesMapping::from_strs(&["mk", "kn"], &["mn"]).unwrap();
            let op = EinSum::new(axes, f32::datum_type());
            let product = model.wire_node("p", op, &factors).unwrap();
            model.select_output_outlets(&product).unwrap();
            let error = declutter(&mut model).err();
            let found = error.is_some_and(|error| error.root_cause().is::<Refusal>());
            assert_eq!(found, is_refused, "{size}");
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
        let error = watched(optimizer(), &model).optimize(&mut model);
        assert!(error.unwrap_err().root_cause().is::<Limit>());

        let _over = time_limit::start(std::time::Duration::ZERO);
        std::thread::sleep(std::time::Duration::from_millis(1));
        let error = watched(optimizer(), &model).optimize(&mut model).unwrap_err();
        assert!(
            error.root_cause().to_string().ends_with("takes too long"),
            "{error:?}"
        );
    }
}
