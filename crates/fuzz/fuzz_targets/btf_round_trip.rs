//! Arbitrary tensors, written in arbitrary pieces, must be read back unchanged. The same tensors must give
//! the same bytes.
#![no_main]

use fmt_btf::{BtfReader, BtfWriter, CooCode, RecordSpec, WriteOptions};
use fmt_core::TensorReader;
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use tensor_core::{DType, Shape, SparseCoo, Tensor, TensorSpec};

#[derive(Arbitrary, Debug)]
struct Input {
    tensors: Vec<PlannedTensor>,
    piece: u8,
    for_tfrt: bool,
}

#[derive(Arbitrary, Debug)]
struct PlannedTensor {
    dtype: u8,
    dims: Vec<u8>,
    bytes: Vec<u8>,
    is_sparse: bool,
}

enum Any {
    Dense(Tensor),
    Sparse(SparseCoo),
}

fn tensor(planned: &PlannedTensor) -> Option<Any> {
    const DTYPES: [DType; 10] = [
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F32,
        DType::F64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ];
    let dims: Vec<u64> = planned.dims.iter().take(8).map(|dim| u64::from(dim % 5)).collect();
    let dtype = DTYPES[usize::from(planned.dtype) % DTYPES.len()];
    let spec = TensorSpec::new(dtype, Shape::new(&dims).ok()?).ok()?;
    let len = usize::try_from(spec.byte_len()).ok().filter(|len| *len <= 4096)?;
    // Missing bytes are filled with zeros, which also makes sparse tensors.
    let mut bytes = planned.bytes.clone();
    bytes.resize(len, 0);
    let tensor = Tensor::new(spec, bytes).ok()?;
    Some(if planned.is_sparse {
        Any::Sparse(SparseCoo::from_dense(&tensor.view()))
    } else {
        Any::Dense(tensor)
    })
}

fuzz_target!(|input: Input| {
    let tensors: Vec<Any> = input.tensors.iter().take(16).filter_map(tensor).collect();
    let options = WriteOptions {
        coo_code: if input.for_tfrt {
            CooCode::Tfrt
        } else {
            CooCode::Specification
        },
        ..WriteOptions::default()
    };
    let records: Vec<RecordSpec> = tensors
        .iter()
        .map(|tensor| match tensor {
            Any::Dense(tensor) => tensor.into(),
            Any::Sparse(sparse) => sparse.into(),
        })
        .collect();
    let mut whole = BtfWriter::new(Vec::new(), records.clone(), options.clone()).unwrap();
    let mut in_pieces = BtfWriter::new(Vec::new(), records, options).unwrap();
    let mut bytes = Vec::new();
    for tensor in &tensors {
        match tensor {
            Any::Dense(tensor) => {
                whole.tensor(tensor).unwrap();
                bytes.extend(tensor.bytes());
            }
            Any::Sparse(sparse) => {
                whole.sparse(sparse).unwrap();
                bytes.extend(sparse.indices().bytes());
                bytes.extend(sparse.values().bytes());
            }
        }
    }
    for piece in bytes.chunks(usize::from(input.piece) + 1) {
        in_pieces.write(piece).unwrap();
    }
    let file = whole.finish().unwrap();
    assert_eq!(file, in_pieces.finish().unwrap());
    let reader = BtfReader::from_bytes(file).unwrap();
    assert_eq!(reader.len(), tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        match tensor {
            Any::Dense(tensor) => assert_eq!(reader.tensor(index).unwrap(), *tensor),
            Any::Sparse(sparse) => assert_eq!(reader.sparse(index).unwrap(), *sparse),
        }
    }
});
