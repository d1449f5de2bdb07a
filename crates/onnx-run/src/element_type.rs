//! Maps the element types of files to those of the kernels.

use onnx_graph::ElementType as FileType;
use onnx_tensor::ElementType;
use tensor_core::DType;

/// Returns the type in which kernels compute a file's element type; `None` for BF16 and other unsupported
/// types.
#[must_use]
pub fn computed(element_type: FileType) -> Option<ElementType> {
    Some(match element_type {
        FileType::String => ElementType::String,
        FileType::Fixed(dtype) => match dtype {
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
