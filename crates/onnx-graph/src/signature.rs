//! The inputs and outputs of a model, as its graph declares them.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use bytes::Bytes;
use onnx_operators::IR_VERSIONS;
use tensor_core::QuotedName;

use crate::{
    ElementType, Error, decode,
    proto::{self, ModelProto, TypeProto, ValueInfoProto, canonical_domain, tensor_shape_proto, type_proto},
};

/// A model's interface: inputs and outputs, operator sets and producer.
///
/// Reading a signature does not prepare the model, so it is fast even for large models.
///
/// ```
/// use onnx_graph::Signature;
///
/// let error = Signature::read(&b"no model".as_slice().into()).unwrap_err();
/// assert!(error.to_string().starts_with("the file is text that begins with 'no model'"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signature {
    /// Version of the file format.
    pub ir_version: i64,
    /// Versions of the operator sets by domain; ONNX's own has the empty domain.
    pub opsets: BTreeMap<String, i64>,
    /// The program that wrote the file, as the file names it.
    pub producer: String,
    /// Inputs that a request must contain, in the file's order.
    pub inputs: Vec<Port>,
    /// Outputs, in the file's order.
    pub outputs: Vec<Port>,
}

impl Signature {
    /// Reads an ONNX file.
    ///
    /// # Errors
    /// Returns [`Invalid`](crate::ErrorKind::Invalid) if it is not an ONNX file, has an unknown version, or
    /// has inputs or outputs that are not tensors of a supported type.
    pub fn read(content: &Bytes) -> Result<Self, Error> {
        Self::of(&decode::decode(content)?)
    }

    /// Returns the signature of a decoded file.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), except those for the file format.
    pub fn of(model: &ModelProto) -> Result<Self, Error> {
        let graph = model
            .graph
            .as_ref()
            .ok_or_else(|| Error::invalid(proto::DAMAGED))?;
        if !IR_VERSIONS.contains(&model.ir_version) {
            return Err(Error::invalid(format!(
                "the file's format is IR version {}, expected {} to {}",
                model.ir_version,
                IR_VERSIONS.start(),
                IR_VERSIONS.end()
            )));
        }
        let initialized: HashSet<&str> = graph
            .initializer
            .iter()
            .map(|tensor| tensor.name.as_str())
            .collect();
        let given = |input: &&ValueInfoProto| !initialized.contains(input.name.as_str());
        Ok(Self {
            ir_version: model.ir_version,
            opsets: opsets(model)?,
            producer: format!("{} {}", model.producer_name, model.producer_version)
                .trim()
                .to_owned(),
            inputs: graph
                .input
                .iter()
                .filter(given)
                .map(|input| Port::read(input, "input"))
                .collect::<Result<_, _>>()?,
            outputs: graph
                .output
                .iter()
                .map(|output| Port::read(output, "output"))
                .collect::<Result<_, _>>()?,
        })
    }
}

/// Maximum size in bytes of one input or output tensor.
pub const MAX_TENSOR_BYTES: u64 = 4 << 30;

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// Name of the input or output.
    pub name: String,
    /// Type of the tensor's elements.
    pub element_type: ElementType,
    /// Dimensions; `None` if the rank is unknown.
    pub dims: Option<Vec<Dim>>,
}

impl Port {
    fn read(info: &ValueInfoProto, role: &str) -> Result<Self, Error> {
        let invalid =
            |reason: &dyn fmt::Display| Error::invalid(format!("{role} {} {reason}", QuotedName(&info.name)));
        if info.name.is_empty() {
            return Err(Error::invalid(format!("an {role} of the model has no name")));
        }
        let tensor = tensor_type(info.r#type.as_ref()).map_err(|error| invalid(&error))?;
        let element_type = ElementType::from_code(tensor.elem_type).ok_or_else(|| {
            let name = ElementType::name_of_code(tensor.elem_type);
            invalid(&format_args!("is {name}, which is not supported"))
        })?;
        let dims = tensor
            .shape
            .as_ref()
            .map(|shape| shape.dim.iter().map(Dim::read).collect::<Vec<Dim>>());
        let port = Self {
            name: info.name.clone(),
            element_type,
            dims,
        };
        port.check_size().map_err(|error| invalid(&error))?;
        Ok(port)
    }

    /// Creates an input or output. With `dims` of `None`, the rank is unknown.
    #[must_use]
    pub fn new(name: impl Into<String>, element_type: ElementType, dims: Option<Vec<Dim>>) -> Self {
        Self {
            name: name.into(),
            element_type,
            dims,
        }
    }

    /// Checks the limits of an input whose dimensions were changed.
    ///
    /// # Errors
    /// Returns an error for more than 32 dimensions, or more than [`MAX_TENSOR_BYTES`].
    pub fn check(&self) -> Result<(), Error> {
        let checked = self.check_size();
        checked.map_err(|error| Error::invalid(format!("input {} {error}", QuotedName(&self.name))))
    }

    /// Refuses sizes that could make derived sizes overflow.
    fn check_size(&self) -> Result<(), Unservable> {
        let Some(dims) = &self.dims else {
            return Ok(());
        };
        if dims.len() > MAX_RANK {
            return Err(Unservable::Rank(dims.len()));
        }
        let element = self.element_type.dtype().map_or(1, |dtype| dtype.size() as u64);
        let bytes = dims
            .iter()
            .filter_map(Dim::fixed)
            .try_fold(element, |bytes, dim| bytes.checked_mul(dim.max(1)));
        match bytes {
            Some(..=MAX_TENSOR_BYTES) => Ok(()),
            _ => Err(Unservable::Size),
        }
    }
}

/// A dimension of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// A fixed size, which every request must have.
    Fixed(u64),
    /// Any size; all dimensions of this name have the same size in a request.
    Named(String),
    /// Any size, independent of other dimensions.
    Free,
}

impl Dim {
    fn read(dim: &tensor_shape_proto::Dimension) -> Self {
        use tensor_shape_proto::dimension::Value;
        match &dim.value {
            // Some exporters write -1 for a free dimension.
            Some(Value::DimValue(value)) => u64::try_from(*value).map_or(Self::Free, Self::Fixed),
            Some(Value::DimParam(name)) if !name.is_empty() => Self::Named(name.clone()),
            _ => Self::Free,
        }
    }

    /// Returns the size, if it is fixed.
    #[must_use]
    pub fn fixed(&self) -> Option<u64> {
        match self {
            Self::Fixed(dim) => Some(*dim),
            Self::Named(_) | Self::Free => None,
        }
    }
}

/// Writes the dimension as ONNX's tools do: a number, a name, or `?`.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(dim) => write!(f, "{dim}"),
            Self::Named(name) => f.write_str(name),
            Self::Free => f.write_str("?"),
        }
    }
}

/// The reason why the server cannot accept an input or output of a model.
#[derive(Debug)]
enum Unservable {
    /// The input or output is not a tensor.
    Kind(&'static str),
    Rank(usize),
    Size,
}

const MAX_RANK: usize = 32;

const MAP: &str = "is a map";
const MAPS: &str = "is a sequence of maps";
const SEQUENCE: &str = "is a sequence";
const OPTIONAL: &str = "is optional";

impl fmt::Display for Unservable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(what) => {
                write!(
                    f,
                    "{what}, which a request cannot carry; only tensors can be served"
                )?;
                match *what {
                    MAP | MAPS => f.write_str(
                        " (scikit-learn models: export with options={id(model): {'zipmap': False}}, or zipmap=False, to get \
                         probabilities as a tensor)",
                    ),
                    SEQUENCE => f.write_str(": give each tensor an output of its own, or join them by ConcatFromSequence"),
                    OPTIONAL => f.write_str(": take its tensor out by OptionalGetElement"),
                    _ => Ok(()),
                }
            }
            Self::Rank(rank) => write!(f, "has {rank} dimensions, the limit is {MAX_RANK}"),
            Self::Size => f.write_str("has dimensions beyond the limit of 4 GiB"),
        }
    }
}

fn tensor_type(info: Option<&TypeProto>) -> Result<&type_proto::Tensor, Unservable> {
    use type_proto::Value;
    let what = match info.and_then(|info| info.value.as_ref()) {
        Some(Value::TensorType(tensor)) => return Ok(tensor),
        Some(Value::SequenceType(sequence)) => {
            match &sequence.elem_type.as_ref().and_then(|t| t.value.as_ref()) {
                Some(Value::MapType(_)) => MAPS,
                _ => SEQUENCE,
            }
        }
        Some(Value::MapType(_)) => MAP,
        Some(Value::OptionalType(_)) => OPTIONAL,
        Some(Value::SparseTensorType(_)) => "is a sparse tensor",
        Some(Value::OpaqueType(_)) => "is of an opaque type",
        None => "has no type",
    };
    Err(Unservable::Kind(what))
}

fn opsets(model: &ModelProto) -> Result<BTreeMap<String, i64>, Error> {
    let mut opsets = BTreeMap::new();
    for import in &model.opset_import {
        let domain = canonical_domain(&import.domain);
        if opsets
            .insert(domain.to_owned(), import.version)
            .is_some_and(|version| version != import.version)
        {
            return Err(Error::invalid(format!(
                "operator set {} is imported twice, in different versions",
                QuotedName(&import.domain)
            )));
        }
    }
    Ok(opsets)
}
