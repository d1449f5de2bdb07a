//! The form of the schemas of ONNX's operators.

/// An operator of ONNX in all its versions.
///
/// ```
/// let schema = onnx_operators::schema_of("", "Squeeze").ok_or("no schema")?;
/// // Its axes became a second input in operator set 13.
/// assert_eq!(schema.inputs, [(1, 1, 1), (13, 1, 2)]);
/// assert_eq!(schema.attributes, [("axes", 1, 12)]);
/// # Ok::<(), &str>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Schema {
    /// The domain of its operator set.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The operator set from which on there are so many inputs, at least and at most.
    pub inputs: &'static [(i64, usize, usize)],
    /// The same of outputs, at most.
    pub outputs: &'static [(i64, usize)],
    /// The attributes that not all versions have, with the first and the last operator set.
    pub attributes: &'static [(&'static str, i64, i64)],
}

/// As many as the node names.
pub const ANY: usize = usize::MAX;

/// Still there.
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
