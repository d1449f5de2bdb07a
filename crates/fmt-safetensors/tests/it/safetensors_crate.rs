//! Comparison with the crate `safetensors`: each crate reads what the other writes, and both reject the same
//! files.

use std::collections::HashMap;

use fmt_core::{Metadata, TensorReader};
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use tensor_core::{DType, Naming, Tensor};

use crate::support::{counting, file, open, written};

fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let dims = prop::collection::vec(0u64..4, 0..4);
    let tensor = (prop::sample::select(DType::ALL.to_vec()), dims);
    prop::collection::vec(tensor.prop_map(|(dtype, dims)| counting(dtype, &dims)), 0..8)
}

fn their_dtype(dtype: DType) -> Dtype {
    serde_json::from_value(dtype.name_in(Naming::Safetensors).into()).unwrap()
}

proptest! {
    #[test]
    fn what_is_written_they_read(tensors in tensors()) {
        let names: Vec<String> = (0..tensors.len()).map(|number| format!("t{number}\u{e9}\"")).collect();
        let borrowed: Vec<_> = names.iter().map(String::as_str).zip(&tensors).collect();
        let metadata: Metadata = [("key".to_owned(), "value".to_owned())].into();
        let bytes = written(&borrowed, &metadata);
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(theirs.len(), tensors.len());
        for (name, tensor) in &borrowed {
            let found = theirs.tensor(name).unwrap();
            let dims: Vec<u64> = found.shape().iter().map(|dim| *dim as u64).collect();
            prop_assert_eq!(&dims[..], tensor.shape().dims());
            prop_assert_eq!(found.dtype(), their_dtype(tensor.spec().dtype()));
            prop_assert_eq!(found.data(), &tensor.bytes()[..]);
        }
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        prop_assert_eq!(header.metadata().as_ref().unwrap()["key"].as_str(), "value");
    }

    #[test]
    fn what_they_write_is_read(tensors in tensors()) {
        let views = tensors.iter().enumerate().map(|(number, tensor)| {
            let dims = tensor.shape().dims().iter().map(|dim| *dim as usize).collect();
            let view = TensorView::new(their_dtype(tensor.spec().dtype()), dims, tensor.bytes());
            (number.to_string(), view.unwrap())
        });
        let metadata = HashMap::from([("a".to_owned(), "b".to_owned())]);
        let bytes = safetensors::serialize(views, Some(metadata)).unwrap();
        let reader = open(&bytes).unwrap();
        for (number, tensor) in tensors.iter().enumerate() {
            let index = reader.find(&number.to_string()).unwrap();
            prop_assert_eq!(&reader.tensor(index).unwrap(), tensor);
        }
        prop_assert_eq!(reader.metadata()["a"].as_str(), "b");
    }

    /// Generates headers near the limits. Both crates must accept or reject the same headers, apart from
    /// known differences.
    #[test]
    fn verdicts_differ_only_where_it_is_known(
        dims in prop::collection::vec(prop_oneof![0u64..4, Just(1 << 32), Just(1 << 63)], 0..4),
        start in 0u64..3, end in 0u64..20, data in 0usize..20,
        dtype in prop::sample::select(vec!["U8", "F32", "F4", "F8_E4M3", "f32", "BOOL"]),
    ) {
        let header = format!(
            r#"{{"a":{{"dtype":"{dtype}","shape":{dims:?},"data_offsets":[{start},{end}]}}}}"#
        );
        let bytes = file(&header, data);
        let (ours, theirs) = (open(&bytes), SafeTensors::deserialize(&bytes));
        // The reference crate rejects a product that overflows before a dimension of 0 (S6).
        let has_zero = dims.contains(&0);
        if ours.is_ok() && theirs.is_err() {
            prop_assert!(has_zero || dtype == "f32", "{:?}", theirs.err());
        }
        if theirs.is_ok() {
            prop_assert!(ours.is_ok(), "{}", ours.unwrap_err());
        }
    }
}
