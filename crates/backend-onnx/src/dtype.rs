//! Element types under their three names: ONNX's codes, the protocol's datatypes and tract's datum types.

use oip_types::DataType;
use onnx_graph::ElementType;
use tensor_core::DType;
use tract_hir::prelude::DatumType;

/// The protocol's datatype for one of ONNX's codes, `None` for what the protocol does not have.
pub(crate) fn from_onnx(code: i32) -> Option<DataType> {
    ElementType::from_code(code).map(of)
}

/// The protocol's datatype.
pub(crate) fn of(element_type: ElementType) -> DataType {
    match element_type {
        ElementType::Fixed(dtype) => DataType::Fixed(dtype),
        ElementType::String => DataType::Bytes,
    }
}

/// tract's type for a datatype of the protocol, `None` for BF16 and others that it does not have.
pub(crate) fn to_tract(datatype: DataType) -> Option<DatumType> {
    Some(match datatype {
        DataType::Bytes => DatumType::String,
        DataType::Fixed(dtype) => match dtype {
            DType::Bool => DatumType::Bool,
            DType::U8 => DatumType::U8,
            DType::U16 => DatumType::U16,
            DType::U32 => DatumType::U32,
            DType::U64 => DatumType::U64,
            DType::I8 => DatumType::I8,
            DType::I16 => DatumType::I16,
            DType::I32 => DatumType::I32,
            DType::I64 => DatumType::I64,
            DType::F16 => DatumType::F16,
            DType::F32 => DatumType::F32,
            DType::F64 => DatumType::F64,
            _ => return None,
        },
    })
}

/// The protocol's datatype for what tract computed, `None` for what has no form outside of it.
pub(crate) fn from_tract(datum_type: DatumType) -> Option<DataType> {
    // Quantized values leave as the integers they are stored as; symbolic dimensions as the numbers they stand for.
    Some(match datum_type {
        DatumType::Bool => DataType::BOOL,
        DatumType::U8 | DatumType::QU8(_) => DataType::UINT8,
        DatumType::U16 => DataType::UINT16,
        DatumType::U32 => DataType::UINT32,
        DatumType::U64 => DataType::UINT64,
        DatumType::I8 | DatumType::QI8(_) => DataType::INT8,
        DatumType::I16 => DataType::INT16,
        DatumType::I32 | DatumType::QI32(_) => DataType::INT32,
        DatumType::I64 | DatumType::TDim => DataType::INT64,
        DatumType::F16 => DataType::FP16,
        DatumType::F32 => DataType::FP32,
        DatumType::F64 => DataType::FP64,
        DatumType::String => DataType::BYTES,
        _ => return None,
    })
}
