//! Element types under their three names: ONNX's, the protocol's, and those of the kernels.

use oip_types::DataType;
use onnx_graph::ElementType as FileType;
use onnx_kernels::ElementType;
use tensor_core::DType;

/// The protocol's datatype.
pub(crate) fn of(element_type: FileType) -> DataType {
    match element_type {
        FileType::Fixed(dtype) => DataType::Fixed(dtype),
        FileType::String => DataType::Bytes,
    }
}

/// The type that a datatype is computed in, `None` for BF16 and others that are not computed.
pub(crate) fn computed(datatype: DataType) -> Option<ElementType> {
    Some(match datatype {
        DataType::Bytes => ElementType::String,
        DataType::Fixed(dtype) => match dtype {
            DType::Bool => ElementType::Bool,
            DType::U8 => ElementType::U8,
            DType::U16 => ElementType::U16,
            DType::U32 => ElementType::U32,
            DType::U64 => ElementType::U64,
            DType::I8 => ElementType::I8,
            DType::I16 => ElementType::I16,
            DType::I32 => ElementType::I32,
            DType::I64 => ElementType::I64,
            DType::F16 => ElementType::F16,
            DType::F32 => ElementType::F32,
            DType::F64 => ElementType::F64,
            _ => return None,
        },
    })
}

/// The protocol's datatype of what was computed.
pub(crate) fn served(element_type: ElementType) -> DataType {
    match element_type {
        ElementType::Bool => DataType::BOOL,
        ElementType::U8 => DataType::UINT8,
        ElementType::U16 => DataType::UINT16,
        ElementType::U32 => DataType::UINT32,
        ElementType::U64 => DataType::UINT64,
        ElementType::I8 => DataType::INT8,
        ElementType::I16 => DataType::INT16,
        ElementType::I32 => DataType::INT32,
        ElementType::I64 => DataType::INT64,
        ElementType::F16 => DataType::FP16,
        ElementType::F32 => DataType::FP32,
        ElementType::F64 => DataType::FP64,
        ElementType::String => DataType::BYTES,
    }
}
