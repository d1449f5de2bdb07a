//! `Concat`: sizes that are symbols beside constants. tract turns these into symbols by way of 32 bits, so that the largest
//! INT64, which stands for "to the end" in files, becomes -1.

use tract_hir::{internal::*, ops::array::Concat as TractConcat};

use super::{attributes::Attributes, elements::elements};
use crate::{building::BuildContext, lowered::OnnxNode};

pub(crate) fn concat(_: &BuildContext, node: &OnnxNode) -> TractResult<Box<dyn InferenceOp>> {
    let inner = TractConcat::new(Attributes(node).int("axis", 0));
    Ok(expand(Concat { inner }))
}

#[derive(Clone, Debug)]
struct Concat {
    inner: TractConcat,
}

impl Expansion for Concat {
    fn name(&self) -> StaticName {
        "Concat".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        self.inner.rules(s, inputs, outputs)
    }

    fn wire(&self, name: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let mut has_sizes = false;
        for &input in inputs {
            has_sizes |= model.outlet_fact(input)?.datum_type == DatumType::TDim;
        }
        let mut exact: TVec<OutletId> = inputs.into();
        for (index, input) in exact.iter_mut().enumerate().filter(|_| has_sizes) {
            let fact = model.outlet_fact(*input)?;
            if let Some(constant) = fact.konst.clone().filter(|_| fact.datum_type == DatumType::I64) {
                let dims: Vec<TDim> = elements::<i64>(&constant)?.iter().map(ToDim::to_dim).collect();
                let dims = super::elements::tensor(constant.shape(), dims)?;
                *input = model.add_const(format!("{name}.size-{index}"), dims)?;
            }
        }
        self.inner.wire(name, model, &exact)
    }
}
