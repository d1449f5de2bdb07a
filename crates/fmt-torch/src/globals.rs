//! The globals that a pickle may use, and their meaning. All other globals are rejected.

use fmt_core::{OpaqueDType, StoredDType};
use tensor_core::DType;

/// The element type of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    Known(DType),
    /// The name and size of an opaque element.
    Opaque(&'static str, u32),
    /// Two four-bit floats in a byte, which counts as one element.
    PairsOfF4,
    /// Bytes of unknown type; the tensor that uses the storage specifies the dtype.
    Untyped,
}

impl Elements {
    pub(crate) fn size(self) -> u64 {
        match self {
            Self::Known(dtype) => dtype.size() as u64,
            Self::Opaque(_, size) => size.into(),
            Self::PairsOfF4 | Self::Untyped => 1,
        }
    }

    pub(crate) fn dtype(self) -> StoredDType {
        match self {
            Self::Known(dtype) => StoredDType::Known(dtype),
            Self::Opaque(name, size) => StoredDType::Opaque(OpaqueDType::new(name, 1, size)),
            Self::PairsOfF4 => StoredDType::Opaque(OpaqueDType::of_bits("F4", 4)),
            Self::Untyped => StoredDType::Unknown("bytes".to_owned()),
        }
    }

    /// Returns the size of the words that are stored in the host's byte order; a complex number has two
    /// words.
    pub(crate) fn word(self) -> u64 {
        match self {
            Self::Opaque(name, size) if name.starts_with('C') => u64::from(size) / 2,
            other => other.size(),
        }
    }
}

/// The meaning of a global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    /// A dictionary constructor: from pairs, another dictionary, or nothing.
    Dict,
    /// `defaultdict`, whose first argument is the default factory.
    DefaultDict,
    /// A constructor that takes a list, such as that of a set or a `TorchScript` list; its result is
    /// represented by that list.
    List,
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`.
    Tensor,
    /// `_rebuild_tensor_v3`, whose arguments specify the dtype.
    TypedTensor,
    /// A parameter around a tensor.
    Parameter,
    /// `_rebuild_from_type_v2`: calls another function, for a tensor that has attributes or belongs to a
    /// subclass.
    FromType,
    /// A tensor class.
    TensorType,
    /// `TorchScript`'s type tag of a value.
    TypeTag,
    Size,
    /// A storage type or dtype.
    Elements(Elements),
    /// A constructor of a tensor or array that is listed but not read.
    Unread(UnreadKind),
    /// A function or class whose result is ignored.
    Inert,
    /// An unknown class, whose objects are represented by their attributes.
    Class,
}

/// Kinds of tensors that are listed but not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadKind {
    Quantised,
    Sparse,
    Nested,
    NoData,
    /// A subclass that wraps other tensors.
    Wrapper,
    NumPy,
    Other,
}

impl UnreadKind {
    /// Returns a label to list in place of the dtype, and the reason why the tensor is not read.
    pub(crate) fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Quantised => (
                "quantised",
                "it is quantised, as PyTorch's own types are; call dequantize() and save it again",
            ),
            Self::Sparse => (
                "sparse",
                "it is a sparse tensor of PyTorch; call to_dense() and save it again",
            ),
            Self::Nested => ("nested", "it is a nested tensor of PyTorch"),
            Self::NoData => ("no data", "it was saved without data, on the device 'meta'"),
            Self::Wrapper => ("wrapped", "its class consists of other tensors, which are listed"),
            Self::NumPy => (
                "NumPy",
                "it is an array of NumPy; torch.from_numpy makes a tensor of it",
            ),
            Self::Other => ("unknown", "this kind of tensor is not supported"),
        }
    }
}

pub(crate) fn find(module: &str, name: &str) -> Option<Global> {
    let unread = |kind| Some(Global::Unread(kind));
    let elements = |elements| Some(Global::Elements(elements));
    match (module, name) {
        ("collections", "OrderedDict" | "Counter") | ("builtins" | "__builtin__", "dict") => {
            Some(Global::Dict)
        }
        ("collections", "defaultdict") => Some(Global::DefaultDict),
        ("builtins" | "__builtin__", "set" | "frozenset" | "list" | "tuple")
        | (
            "torch.jit._pickle",
            "build_intlist" | "build_tensorlist" | "build_doublelist" | "build_boollist",
        ) => Some(Global::List),
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(Global::Tensor),
        ("torch._utils", "_rebuild_tensor_v3") => Some(Global::TypedTensor),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Global::Parameter),
        ("torch._tensor", "_rebuild_from_type_v2") => Some(Global::FromType),
        ("torch", "Tensor") | ("torch.nn.parameter", "Parameter" | "Buffer") => Some(Global::TensorType),
        ("torch.jit._pickle", "restore_type_tag") => Some(Global::TypeTag),
        ("torch", "Size") => Some(Global::Size),
        ("torch._utils", "_rebuild_qtensor") => unread(UnreadKind::Quantised),
        ("torch._utils", "_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor") => {
            unread(UnreadKind::Sparse)
        }
        ("torch._utils", "_rebuild_nested_tensor") => unread(UnreadKind::Nested),
        ("torch._utils", "_rebuild_meta_tensor_no_storage") => unread(UnreadKind::NoData),
        ("torch._utils", "_rebuild_wrapper_subclass") => unread(UnreadKind::Wrapper),
        ("torch._utils", name) if name.starts_with("_rebuild_") => unread(UnreadKind::Other),
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct")
        | ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => unread(UnreadKind::NumPy),
        // Checkpoints contain these globals for NumPy scalars, such as the best loss so far.
        ("numpy", "ndarray")
        | (
            "torch",
            "device"
            | "per_tensor_affine"
            | "per_tensor_symmetric"
            | "per_channel_affine"
            | "per_channel_symmetric"
            | "per_channel_affine_float_qparams",
        )
        | ("torch.serialization", "_get_layout")
        | ("_codecs", "encode")
        | (
            "builtins" | "__builtin__",
            "int" | "float" | "str" | "bool" | "complex" | "bytearray" | "slice",
        )
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")
        | ("numpy", "dtype") => Some(Global::Inert),
        ("torch.storage" | "torch", "UntypedStorage") => elements(Elements::Untyped),
        ("torch", name) => elements(elements_of(name)?),
        _ => None,
    }
}

/// Describes well-known rejected globals, where a description helps more than the name.
pub(crate) fn refused(module: &str, name: &str) -> &'static str {
    match (module, name) {
        ("numpy.core.multiarray" | "numpy._core.multiarray", _) => {
            "arrays of NumPy in a checkpoint are not supported"
        }
        ("torch.jit._pickle" | "torch._utils" | "torch._tensor", _) => {
            "the checkpoint has an unsupported kind of tensors"
        }
        _ => "the checkpoint refers to code, which is never run",
    }
}

fn elements_of(name: &str) -> Option<Elements> {
    use Elements::{Known, Opaque, PairsOfF4};
    Some(match name {
        "BoolStorage" | "bool" => Known(DType::Bool),
        "ByteStorage" | "uint8" => Known(DType::U8),
        "uint16" => Known(DType::U16),
        "uint32" => Known(DType::U32),
        "uint64" => Known(DType::U64),
        "CharStorage" | "int8" => Known(DType::I8),
        "ShortStorage" | "int16" => Known(DType::I16),
        "IntStorage" | "int32" => Known(DType::I32),
        "LongStorage" | "int64" => Known(DType::I64),
        "HalfStorage" | "float16" => Known(DType::F16),
        "BFloat16Storage" | "bfloat16" => Known(DType::BF16),
        "FloatStorage" | "float32" => Known(DType::F32),
        "DoubleStorage" | "float64" => Known(DType::F64),
        "complex32" | "ComplexHalfStorage" => Opaque("C32", 4),
        "ComplexFloatStorage" | "complex64" => Opaque("C64", 8),
        "ComplexDoubleStorage" | "complex128" => Opaque("C128", 16),
        "float8_e4m3fn" => Opaque("F8_E4M3", 1),
        "float8_e5m2" => Opaque("F8_E5M2", 1),
        "float8_e4m3fnuz" => Opaque("F8_E4M3FNUZ", 1),
        "float8_e5m2fnuz" => Opaque("F8_E5M2FNUZ", 1),
        "float8_e8m0fnu" => Opaque("F8_E8M0", 1),
        "float4_e2m1fn_x2" => PairsOfF4,
        // The quantised types occur only in tensors that are not read.
        "QInt8Storage" | "qint8" => Opaque("QI8", 1),
        "QUInt8Storage" | "quint8" => Opaque("QU8", 1),
        "QInt32Storage" | "qint32" => Opaque("QI32", 4),
        "QUInt4x2Storage" | "quint4x2" => Opaque("QU4X2", 1),
        "QUInt2x4Storage" | "quint2x4" => Opaque("QU2X4", 1),
        _ => return None,
    })
}
