//! Defines how ONNX's operator schemas are represented.

/// An ONNX operator in all its versions.
#[derive(Debug)]
#[non_exhaustive]
pub struct Schema {
    /// The domain of the operator set that contains the operator.
    pub domain: &'static str,
    /// The operator's name, without its domain.
    pub name: &'static str,
    /// The minimum and maximum numbers of inputs, each pair with the operator set from which it applies.
    pub inputs: &'static [(i64, usize, usize)],
    /// The maximum numbers of outputs, each with the operator set from which it applies.
    pub outputs: &'static [(i64, usize)],
    /// The attributes that some versions lack, each with the first and the last operator set that has the
    /// attribute.
    pub attributes: &'static [(&'static str, i64, i64)],
}

/// The maximum count of an operator that takes any number of inputs or outputs.
pub const ANY: usize = usize::MAX;

/// Marks an attribute that the current operator set still has.
pub const LATEST: i64 = i64::MAX;

pub(crate) const fn schema(
    domain: &'static str,
    name: &'static str,
    inputs: &'static [(i64, usize, usize)],
    outputs: &'static [(i64, usize)],
    attributes: &'static [(&'static str, i64, i64)],
) -> Schema {
    Schema {
        domain,
        name,
        inputs,
        outputs,
        attributes,
    }
}
