//! Converts between the element types of ONNX, of the protocol, and of the kernels.

use oip_types::DataType;
use onnx_graph::ElementType as FileType;
use onnx_tensor::ElementType;

/// Converts a file's element type into the protocol's datatype.
pub(crate) fn of(element_type: FileType) -> DataType {
    match element_type {
        FileType::Fixed(dtype) => DataType::Fixed(dtype),
        FileType::String => DataType::Bytes,
    }
}

/// Returns the element type that the kernels use for a datatype; `None` for datatypes that the kernels do not
/// support, such as BF16.
pub(crate) fn computed(datatype: DataType) -> Option<ElementType> {
    onnx_run::computed(match datatype {
        DataType::Bytes => FileType::String,
        DataType::Fixed(dtype) => FileType::Fixed(dtype),
    })
}

/// Converts a computed element type into the protocol's datatype.
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
