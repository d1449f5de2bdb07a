//! How large single values may become: a few bytes of a request can ask for a product of terabytes.

use oip_types::{ServiceError, TensorValue};
use tract_onnx::tract_hir::internal::*;

use crate::faults::{BadInput, Refusal};

/// Bytes of a value: an input, an output or what flows between two operators.
pub(crate) const MAX_BYTES: u64 = 4 << 30;

/// The same for an input without elements, as if each dimension of nothing were one: it costs its sender nothing, and what
/// operators make of its other dimensions takes memory and time.
const MAX_EMPTY_BYTES: u64 = 256 << 20;

/// Refuses what is known, before the model runs, to be too large.
pub(crate) fn admit(datum_type: DatumType, dims: &[TDim]) -> TractResult<()> {
    let known = dims.iter().map(|dim| dim.to_i64().ok());
    match bytes(datum_type, known) {
        Some(bytes) if bytes > MAX_BYTES => Err(Refusal(format!(
            "gives {}, which is beyond the limit of {} GiB",
            gib(bytes),
            MAX_BYTES >> 30
        ))
        .into()),
        _ => Ok(()),
    }
}

/// Refuses a request's input before anything is made of it. A dimension of nothing hides how large the others are.
pub(crate) fn admit_input(value: &TensorValue) -> Result<(), ServiceError> {
    let element = value.datatype().dtype().map_or(1, |dtype| dtype.size() as u64);
    let sizes = value.shape().dims().iter().map(|&dim| dim.max(1));
    let bytes = sizes.fold(element, u64::saturating_mul);
    let limit = match value.shape().dims().contains(&0) {
        true => MAX_EMPTY_BYTES,
        false => MAX_BYTES,
    };
    if bytes <= limit {
        return Ok(());
    }
    let (shape, mib) = (value.shape(), limit >> 20);
    let size = match bytes {
        u64::MAX => "more bytes than can be counted".to_owned(),
        bytes => format!("{} MiB", bytes >> 20),
    };
    Err(ServiceError::invalid(format!(
        "dimensions {shape} stand for {size}, the limit is {mib} MiB"
    )))
}

/// The outputs of a node whose sizes depend on a request.
#[derive(Debug, Default)]
pub(crate) struct FreeSizes(Vec<(DatumType, TVec<TDim>)>);

impl FreeSizes {
    /// Refuses a node whose outputs are too large whatever the request is.
    pub(crate) fn of(node: &TypedNode) -> TractResult<Self> {
        let mut free = Vec::new();
        for output in &node.outputs {
            let fact = &output.fact;
            admit(fact.datum_type, &fact.shape)?;
            if !fact.shape.is_concrete() {
                free.push((fact.datum_type, fact.shape.to_tvec()));
            }
        }
        Ok(Self(free))
    }

    /// Looks, before the node runs, whether its outputs would be too large for this request.
    ///
    /// # Errors
    /// [`BadInput`] with the size.
    pub(crate) fn check(&self, symbols: &SymbolValues) -> TractResult<()> {
        for (datum_type, dims) in &self.0 {
            // What depends on values of other nodes is not known yet; operators that make such sizes have checks of their own.
            let sizes = dims.iter().map(|dim| dim.eval_to_i64(symbols).ok());
            if let Some(bytes) = bytes(*datum_type, sizes).filter(|&bytes| bytes > MAX_BYTES) {
                let (size, limit) = (gib(bytes), MAX_BYTES >> 30);
                bail!(BadInput(format!(
                    "with these shapes a value between two operators takes {size}, which is beyond the limit of {limit} GiB"
                )));
            }
        }
        Ok(())
    }
}

/// The size of a value, at least `u64::MAX` if it has no bounds; `None` if a dimension is not known.
fn bytes(datum_type: DatumType, dims: impl Iterator<Item = Option<i64>>) -> Option<u64> {
    let element = datum_type.size_of() as u64;
    let mut bytes = element;
    let mut is_empty = false;
    for dim in dims {
        let dim = u64::try_from(dim?).ok()?;
        is_empty |= dim == 0;
        bytes = bytes.saturating_mul(dim.max(1));
    }
    Some(if is_empty { 0 } else { bytes })
}

pub(crate) fn gib(bytes: u64) -> String {
    match bytes {
        u64::MAX => "more bytes than can be counted".to_owned(),
        bytes => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_its_sender_nothing_is_small() {
        let admits = |dims: &[u64]| {
            let shape = tensor_core::Shape::new(dims).expect("a shape");
            let value = tensor_core::Tensor::from_vec(shape, Vec::<f32>::new()).expect("a tensor");
            admit_input(&value.into()).map_err(|error| error.to_string())
        };
        assert_eq!(admits(&[0, 3, 4096, 4096]), Ok(()));
        let error = "dimensions [0, 8388608, 16] stand for 512 MiB, the limit is 256 MiB";
        assert_eq!(admits(&[0, 1 << 23, 16]), Err(error.to_owned()));
    }
}
