//! Written files are read back, and files that are read can be written again.

use fmt_btf::{BtfReader, BtfWriter, CooCode, RecordSpec, WriteOptions};
use fmt_core::{Layout, TensorReader};
use proptest::prelude::*;
use tensor_core::{DType, Shape, SparseCoo, Tensor, TensorSpec};

use crate::support::{open, spec};

#[derive(Clone, Debug, PartialEq)]
enum Any {
    Dense(Tensor),
    Sparse(SparseCoo),
}

fn tensors() -> impl Strategy<Value = Any> {
    let dtypes: Vec<DType> = DType::ALL
        .into_iter()
        .filter(|dtype| !matches!(dtype, DType::Bool | DType::F16 | DType::BF16))
        .collect();
    let dims = prop::collection::vec(0u64..5, 0..5);
    (prop::sample::select(dtypes), dims, any::<u64>(), any::<bool>()).prop_map(
        |(dtype, dims, seed, is_sparse)| {
            let spec = spec(dtype, &dims);
            let mut state = seed | 1;
            let bytes: Vec<u8> = (0..spec.byte_len())
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    // About two thirds of the bytes are zero, so that sparse tensors have fewer entries than
                    // elements.
                    if state.is_multiple_of(3) {
                        (state >> 32) as u8
                    } else {
                        0
                    }
                })
                .collect();
            let tensor = Tensor::new(spec, bytes).unwrap();
            if is_sparse {
                Any::Sparse(SparseCoo::from_dense(&tensor.view()))
            } else {
                Any::Dense(tensor)
            }
        },
    )
}

fn write(tensors: &[Any], options: WriteOptions, piece: usize) -> Vec<u8> {
    let records = tensors.iter().map(|tensor| match tensor {
        Any::Dense(tensor) => RecordSpec::from(tensor),
        Any::Sparse(sparse) => RecordSpec::from(sparse),
    });
    let mut writer = BtfWriter::new(Vec::new(), records.collect(), options).unwrap();
    for tensor in tensors {
        match tensor {
            Any::Dense(tensor) => {
                for piece in tensor.bytes().chunks(piece) {
                    writer.write(piece).unwrap();
                }
            }
            Any::Sparse(sparse) => writer.sparse(sparse).unwrap(),
        }
    }
    writer.finish().unwrap()
}

fn read(reader: &BtfReader) -> Vec<Any> {
    (0..reader.len())
        .map(|index| match reader.entries()[index].layout {
            Layout::Coo { .. } => Any::Sparse(reader.sparse(index).unwrap()),
            _ => Any::Dense(reader.tensor(index).unwrap()),
        })
        .collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read(tensors in prop::collection::vec(tensors(), 0..6), piece in 1usize..100, for_tfrt: bool) {
        let coo_code = if for_tfrt { CooCode::Tfrt } else { CooCode::Specification };
        let options = WriteOptions { coo_code, ..WriteOptions::default() };
        let bytes = write(&tensors, options.clone(), piece);
        let reader = open(&bytes).unwrap();
        let found = read(&reader);
        prop_assert_eq!(&found, &tensors);
        prop_assert_eq!(write(&found, options, usize::MAX), bytes);
    }

    #[test]
    fn rows_are_rows(rows in 0u64..20, columns in 0u64..5, start in 0u64..20, end in 0u64..20) {
        let shape = Shape::new(&[rows, columns]).unwrap();
        let spec = TensorSpec::new(DType::U32, shape).unwrap();
        let bytes: Vec<u8> = (0..spec.byte_len()).map(|byte| byte as u8).collect();
        let tensor = Tensor::new(spec, bytes).unwrap();
        let reader = open(&write(&[Any::Dense(tensor.clone())], WriteOptions::default(), 7)).unwrap();
        prop_assert_eq!(reader.rows(0, start..end).ok(), tensor.rows(start..end).ok());
    }

    /// Checks that arbitrary bytes never cause a panic, and that the tensors of a file that opens can be
    /// written and read back.
    #[test]
    fn any_words(words in prop::collection::vec(prop_oneof![0u64..80, any::<u64>()], 0..40)) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if let Ok(reader) = open(&bytes) {
            let can_be_read = (0..reader.len()).all(|index| reader.verify(index).is_ok());
            if can_be_read {
                let found = read(&reader);
                let again = open(&write(&found, WriteOptions::default(), usize::MAX)).unwrap();
                for (a, b) in found.iter().zip(read(&again)) {
                    let is_equal = match (a, &b) {
                        (Any::Sparse(a), Any::Sparse(b)) => a.sorted().unwrap() == *b,
                        (a, b) => a == b,
                    };
                    prop_assert!(is_equal);
                }
            }
        }
    }
}
