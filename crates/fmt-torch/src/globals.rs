//! The names that a pickle may use, and what they stand for. Everything else is refused.

use tensor_core::DType;

/// The elements of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    Known(DType),
    /// A name and bytes of an element that is copied and not computed with.
    Opaque(&'static str, u32),
    /// Bytes, until a tensor says what they are.
    Untyped,
}

impl Elements {
    pub(crate) fn size(self) -> u64 {
        match self {
            Self::Known(dtype) => dtype.size() as u64,
            Self::Opaque(_, size) => size.into(),
            Self::Untyped => 1,
        }
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    OrderedDict,
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`.
    Tensor,
    /// `_rebuild_tensor_v3`, which says the dtype itself.
    TypedTensor,
    /// A parameter around a tensor.
    Parameter,
    Size,
    /// The type of a storage, or a dtype.
    Elements(Elements),
    /// Something whose value is not looked at.
    Inert,
}

pub(crate) fn find(module: &str, name: &str) -> Option<Global> {
    let elements = |elements| Some(Global::Elements(elements));
    match (module, name) {
        ("collections", "OrderedDict") => Some(Global::OrderedDict),
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(Global::Tensor),
        ("torch._utils", "_rebuild_tensor_v3") => Some(Global::TypedTensor),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Global::Parameter),
        ("torch", "Size") => Some(Global::Size),
        ("torch", "device") | ("_codecs", "encode") => Some(Global::Inert),
        ("torch.storage", "UntypedStorage") | ("torch", "UntypedStorage") => elements(Elements::Untyped),
        ("torch", name) => elements(elements_of(name)?),
        _ => None,
    }
}

fn elements_of(name: &str) -> Option<Elements> {
    use Elements::{Known, Opaque};
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
        "ComplexFloatStorage" | "complex64" => Opaque("C64", 8),
        "ComplexDoubleStorage" | "complex128" => Opaque("C128", 16),
        "float8_e4m3fn" => Opaque("F8_E4M3", 1),
        "float8_e5m2" => Opaque("F8_E5M2", 1),
        "float8_e4m3fnuz" => Opaque("F8_E4M3FNUZ", 1),
        "float8_e5m2fnuz" => Opaque("F8_E5M2FNUZ", 1),
        "float8_e8m0fnu" => Opaque("F8_E8M0", 1),
        _ => return None,
    })
}
