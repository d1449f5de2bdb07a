//! Metadata of servers, models and tensors.

use std::fmt;

use tensor_core::Shape;

use crate::DataType;

/// Metadata that a server reports about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ServerMetadata {
    /// The server's name.
    pub name: String,
    /// The server's version.
    pub version: String,
    /// The supported protocol extensions, under Triton's names.
    pub extensions: Vec<String>,
}

impl ServerMetadata {
    /// Creates metadata without extensions.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            extensions: Vec::new(),
        }
    }
}

/// Metadata of a model.
///
/// ```
/// use oip_types::{DataType, ModelMetadata, ShapePattern, TensorMetadata};
///
/// let inputs = vec![TensorMetadata::new("X", DataType::FP32, &[-1, 64])];
/// let outputs = vec![TensorMetadata::new("label", DataType::INT64, &[-1])];
/// let metadata = ModelMetadata::new("digits", "onnx_onnxv1", inputs, outputs).with_versions(["1"]);
/// assert_eq!(metadata.inputs[0].to_string(), "'X' (FP32[-1, 64])");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ModelMetadata {
    /// The model's name.
    pub name: String,
    /// The available versions, oldest first; empty for models without versions.
    #[cfg_attr(feature = "rest", serde(default, skip_serializing_if = "Vec::is_empty"))]
    pub versions: Vec<String>,
    /// The platform that runs the model, as `<project>_<format>`.
    #[cfg_attr(feature = "rest", serde(default))]
    pub platform: String,
    /// The inputs; required unless [`optional`](TensorMetadata::optional).
    pub inputs: Vec<TensorMetadata>,
    /// The outputs that requests can ask for.
    pub outputs: Vec<TensorMetadata>,
}

impl ModelMetadata {
    /// Creates metadata of a model without versions. `platform` is written as `<project>_<format>`.
    pub fn new(
        name: impl Into<String>,
        platform: impl Into<String>,
        inputs: Vec<TensorMetadata>,
        outputs: Vec<TensorMetadata>,
    ) -> Self {
        Self {
            name: name.into(),
            versions: Vec::new(),
            platform: platform.into(),
            inputs,
            outputs,
        }
    }

    /// Sets the versions, oldest first.
    #[must_use]
    pub fn with_versions(mut self, versions: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.versions = versions.into_iter().map(Into::into).collect();
        self
    }
}

/// Metadata of an input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "rest", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TensorMetadata {
    /// The tensor's name.
    pub name: String,
    /// The type of the tensor's elements.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::datatype_name"))]
    pub datatype: DataType,
    /// The dimensions of the tensor; some may be free.
    #[cfg_attr(feature = "rest", serde(with = "crate::rest::pattern_dims"))]
    pub shape: ShapePattern,
    /// For an input: requests may omit it. For an output: the model may omit it from the response to a
    /// request that names no outputs.
    ///
    /// The protocol's metadata cannot express optional tensors. Clients that read metadata from the wire
    /// always see `false`. Requests that differ in their optional inputs cannot be batched together.
    #[cfg_attr(feature = "rest", serde(skip))]
    pub optional: bool,
    /// For an output: the shape is a hint, and responses may differ from it, even in rank. An output's shape
    /// can depend on the inputs' values, and model files can declare wrong shapes.
    ///
    /// The protocol's metadata cannot express approximate shapes either.
    #[cfg_attr(feature = "rest", serde(skip))]
    pub approximate: bool,
}

impl TensorMetadata {
    /// Creates a required input or an output; dimensions of -1 (or any negative number) are free.
    pub fn new(name: impl Into<String>, datatype: DataType, dims: &[i64]) -> Self {
        Self::with_shape(name, datatype, ShapePattern::from_wire(dims))
    }

    /// Creates a required input or an output with a shape pattern.
    pub fn with_shape(name: impl Into<String>, datatype: DataType, shape: ShapePattern) -> Self {
        Self {
            name: name.into(),
            datatype,
            shape,
            optional: false,
            approximate: false,
        }
    }

    /// Marks the tensor as optional.
    #[must_use]
    pub fn optional(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }

    /// Returns the tensor with its shape marked as approximate.
    #[must_use]
    pub fn approximate(self) -> Self {
        Self {
            approximate: true,
            ..self
        }
    }
}

impl fmt::Display for TensorMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}{})",
            tensor_core::QuotedName(&self.name),
            self.datatype,
            self.shape
        )
    }
}

/// A shape in which some dimensions may be free. The wire form of a free dimension is -1.
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
///
/// // Any number of leading dimensions. The wire form cannot express that, and shows one free dimension.
/// let pattern = ShapePattern::with_any_leading(vec![Some(64)]);
/// assert!(pattern.matches(&Shape::new(&[4, 8, 64])?) && pattern.matches(&Shape::vector(64)));
/// assert!(!pattern.matches(&Shape::scalar()));
/// assert_eq!(pattern.to_wire().collect::<Vec<_>>(), [-1, 64]);
/// assert_eq!(pattern.to_string(), "[..., 64]");
/// # Ok::<(), tensor_core::SpecError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ShapePattern {
    has_any_leading: bool,
    dims: Vec<Option<u64>>,
}

impl ShapePattern {
    /// Creates a pattern from dimensions; `None` matches any size.
    #[must_use]
    pub fn new(dims: Vec<Option<u64>>) -> Self {
        Self {
            has_any_leading: false,
            dims,
        }
    }

    /// Creates a pattern with any number of leading dimensions (possibly none) before those in `last`.
    #[must_use]
    pub fn with_any_leading(last: Vec<Option<u64>>) -> Self {
        Self {
            has_any_leading: true,
            dims: last,
        }
    }

    /// Creates a pattern from the wire form, in which free dimensions are -1.
    #[must_use]
    pub fn from_wire(dims: &[i64]) -> Self {
        Self::new(dims.iter().map(|&dim| u64::try_from(dim).ok()).collect())
    }

    /// Returns the dimensions; `None` matches any size. With [any leading
    /// dimensions](ShapePattern::has_any_leading), these are the last ones.
    #[must_use]
    pub fn dims(&self) -> &[Option<u64>] {
        &self.dims
    }

    /// Returns whether any number of dimensions may come before those of [`ShapePattern::dims`].
    #[must_use]
    pub fn has_any_leading(&self) -> bool {
        self.has_any_leading
    }

    /// Returns the wire form, in which free dimensions are -1. The wire form cannot express a variable number
    /// of leading dimensions; they become one free dimension, the most common case.
    pub fn to_wire(&self) -> impl Iterator<Item = i64> + '_ {
        let leading = self.has_any_leading.then_some(-1);
        let dims = self.dims.iter();
        let dims = dims.map(|dim| dim.map_or(-1, |dim| i64::try_from(dim).unwrap_or(i64::MAX)));
        leading.into_iter().chain(dims)
    }

    /// Returns whether `shape` fits the pattern: its rank and its fixed dimensions agree.
    #[must_use]
    pub fn matches(&self, shape: &Shape) -> bool {
        let Some(leading) = shape.rank().checked_sub(self.dims.len()) else {
            return false;
        };
        let fits = |(wanted, found): (&Option<u64>, &u64)| wanted.is_none_or(|wanted| wanted == *found);
        (leading == 0 || self.has_any_leading) && self.dims.iter().zip(&shape.dims()[leading..]).all(fits)
    }
}

impl fmt::Display for ShapePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leading = self.has_any_leading.then_some(format_args!("...")).into_iter();
        let mut list = f.debug_list();
        list.entries(leading);
        list.entries(self.to_wire().skip(usize::from(self.has_any_leading)))
            .finish()
    }
}

impl fmt::Debug for ShapePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShapePattern({self})")
    }
}
