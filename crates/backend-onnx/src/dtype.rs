//! Element types under their three names: ONNX's codes, the protocol's datatypes and tract's datum types.

use oip_types::DataType;
use tensor_core::DType;
use tract_hir::prelude::DatumType;

use crate::proto::tensor_proto::DataType as Code;

/// The protocol's datatype for one of ONNX's codes, `None` for what the protocol does not have.
pub(crate) fn from_onnx(code: i32) -> Option<DataType> {
    Some(match Code::try_from(code).ok()? {
        Code::Float => DataType::FP32,
        Code::Double => DataType::FP64,
        Code::Float16 => DataType::FP16,
        Code::Bfloat16 => DataType::BF16,
        Code::Uint8 => DataType::UINT8,
        Code::Uint16 => DataType::UINT16,
        Code::Uint32 => DataType::UINT32,
        Code::Uint64 => DataType::UINT64,
        Code::Int8 => DataType::INT8,
        Code::Int16 => DataType::INT16,
        Code::Int32 => DataType::INT32,
        Code::Int64 => DataType::INT64,
        Code::Bool => DataType::BOOL,
        Code::String => DataType::BYTES,
        Code::Unknown
        | Code::Complex64
        | Code::Complex128
        | Code::Float8e4m3fn
        | Code::Float8e4m3fnuz
        | Code::Float8e5m2
        | Code::Float8e5m2fnuz
        | Code::Uint4
        | Code::Int4
        | Code::Float4e2m1 => return None,
    })
}

/// What ONNX calls one of its codes, for messages.
pub(crate) fn onnx_name(code: i32) -> String {
    match Code::try_from(code) {
        Ok(Code::Unknown) => "of no type".to_owned(),
        Ok(code) => code.as_str_name().to_owned(),
        Err(_) => format!("of the unknown type {code}"),
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
