use std::fmt;

use tensor_core::Shape;

use crate::DataType;

/// What a server says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ServerMetadata {
    /// A name for the server.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// The protocol's extensions it offers, under Triton's names.
    pub extensions: Vec<String>,
}

/// What a server says about a model.
///
/// ```
/// use oip_types::{DataType, ModelMetadata, ShapePattern, TensorMetadata};
///
/// let metadata = ModelMetadata {
///     name: "digits".into(),
///     versions: vec!["1".into()],
///     platform: "onnx_onnxv1".into(),
///     inputs: vec![TensorMetadata::new("X", DataType::FP32, &[-1, 64])],
///     outputs: vec![TensorMetadata::new("label", DataType::INT64, &[-1])],
/// };
/// assert_eq!(metadata.inputs[0].to_string(), "'X' (FP32[-1, 64])");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct ModelMetadata {
    /// The model's name.
    pub name: String,
    /// The versions that may be asked for, oldest first; empty for models without versions.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub versions: Vec<String>,
    /// What runs the model, as `<project>_<format>`.
    #[cfg_attr(feature = "rest", serde(default))]
    pub platform: String,
    /// The inputs it takes, all of them required.
    pub inputs: Vec<TensorMetadata>,
    /// The outputs it gives.
    pub outputs: Vec<TensorMetadata>,
}

/// What a server says about an input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
pub struct TensorMetadata {
    /// The model's name for it.
    pub name: String,
    /// The element type.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::datatype_name"))]
    pub datatype: DataType,
    /// The dimensions, some of which may be free.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::pattern_dims"))]
    pub shape: ShapePattern,
}

impl TensorMetadata {
    /// An input or output; dimensions of -1 (or any negative number) are free.
    pub fn new(name: impl Into<String>, datatype: DataType, dims: &[i64]) -> Self {
        Self {
            name: name.into(),
            datatype,
            shape: ShapePattern::from_wire(dims),
        }
    }
}

impl fmt::Display for TensorMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}{})",
            tensor_core::Quoted(&self.name),
            self.datatype,
            self.shape
        )
    }
}

/// A shape in which some dimensions may be free; on the wire those are -1.
///
/// ```
/// use oip_types::ShapePattern;
/// use tensor_core::Shape;
///
/// let pattern = ShapePattern::from_wire(&[-1, 64]);
/// assert!(pattern.matches(&Shape::new(&[32, 64])?));
/// assert!(!pattern.matches(&Shape::new(&[32, 63])?));
/// assert!(!pattern.matches(&Shape::vector(64)));
/// assert_eq!(pattern.to_string(), "[-1, 64]");
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ShapePattern {
    dims: Vec<Option<u64>>,
}

impl ShapePattern {
    /// A pattern from dimensions, `None` where any size will do.
    #[must_use]
    pub fn new(dims: Vec<Option<u64>>) -> Self {
        Self { dims }
    }

    /// A pattern from the wire's form, where free dimensions are -1.
    #[must_use]
    pub fn from_wire(dims: &[i64]) -> Self {
        Self {
            dims: dims.iter().map(|&dim| u64::try_from(dim).ok()).collect(),
        }
    }

    /// The dimensions, `None` where any size will do.
    #[must_use]
    pub fn dims(&self) -> &[Option<u64>] {
        &self.dims
    }

    /// The wire's form, where free dimensions are -1.
    pub fn to_wire(&self) -> impl ExactSizeIterator<Item = i64> + '_ {
        self.dims
            .iter()
            .map(|dim| dim.map_or(-1, |dim| i64::try_from(dim).unwrap_or(i64::MAX)))
    }

    /// Whether a shape has this rank and these fixed dimensions.
    #[must_use]
    pub fn matches(&self, shape: &Shape) -> bool {
        let fits = |(wanted, found): (&Option<u64>, &u64)| wanted.is_none_or(|wanted| wanted == *found);
        self.dims.len() == shape.rank() && self.dims.iter().zip(shape.dims()).all(fits)
    }
}

impl fmt::Display for ShapePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.to_wire()).finish()
    }
}

impl fmt::Debug for ShapePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShapePattern({self})")
    }
}
