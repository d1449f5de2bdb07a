//! Elements picked, put elsewhere, repeated.

use std::sync::Arc;

use tract_hir::{internal::*, ops::array};

use super::{Built, rewired::Rewired, texts::OfTexts};
use crate::{
    building::BuildContext,
    dtype,
    faults::{Refusal, Unsupported},
    lowered::OnnxNode,
    ops::{
        attributes::Attributes,
        elements::{of_type, tensor},
        kernel::{Fact, Kernel, kernel},
    },
};

/// `Gather`.
pub(in crate::ops) fn gather(_: &BuildContext, node: &OnnxNode) -> Built {
    let axis = Attributes(node).int("axis", 0);
    Ok(expand(Rewired(
        array::Gather::new(axis),
        OfTexts::Gather { axis },
    )))
}

/// `Expand`.
pub(in crate::ops) fn expand_to(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(Rewired(array::MultiBroadcastTo, OfTexts::Expand)))
}

/// `Tile`.
pub(in crate::ops) fn tile(_: &BuildContext, _: &OnnxNode) -> Built {
    Ok(expand(Rewired(array::Tile, OfTexts::Tile)))
}

/// `EyeLike`.
pub(in crate::ops) fn eye_like(_: &BuildContext, node: &OnnxNode) -> Built {
    let attributes = Attributes(node);
    let datum_type = match attributes.has("dtype") {
        false => None,
        true => {
            let code = i32::try_from(attributes.int("dtype", 0))?;
            let datum_type = dtype::from_onnx(code).and_then(dtype::to_tract);
            Some(datum_type.ok_or_else(|| Refusal("gives a type that is not supported".to_owned()))?)
        }
    };
    Ok(kernel(EyeLike {
        datum_type,
        diagonal: attributes.int("k", 0),
    }))
}

/// Ones on a diagonal. tract makes it before its size is looked at.
#[derive(Debug)]
struct EyeLike {
    /// That of the input, if it is not given.
    datum_type: Option<DatumType>,
    /// Columns to the right of the first diagonal.
    diagonal: i64,
}

impl Kernel for EyeLike {
    fn name(&self) -> &'static str {
        "EyeLike"
    }

    fn outputs(&self, inputs: &[Fact]) -> TractResult<Vec<Fact>> {
        let [input] = inputs else {
            bail!("expected 1 input, found {}", inputs.len());
        };
        ensure!(input.rank() == 2, "expected a matrix");
        let datum_type = self.datum_type.unwrap_or(input.datum_type);
        if !datum_type.is_number() && datum_type != DatumType::Bool {
            bail!(Unsupported::Anywhere("is supported for numbers only".to_owned()));
        }
        Ok(vec![input.with(datum_type)])
    }

    fn run(&self, inputs: &[Arc<Tensor>]) -> TractResult<TVec<Tensor>> {
        let shape = inputs[0].shape();
        let mut eye = vec![0u8; shape[0] * shape[1]];
        for (row, line) in eye.chunks_exact_mut(shape[1].max(1)).enumerate() {
            let column = (row as i64).saturating_add(self.diagonal);
            if let Some(place) = usize::try_from(column)
                .ok()
                .and_then(|column| line.get_mut(column))
            {
                *place = 1;
            }
        }
        let datum_type = self.datum_type.unwrap_or(inputs[0].datum_type());
        Ok(tvec![of_type(tensor(shape, eye)?, datum_type)?])
    }
}
