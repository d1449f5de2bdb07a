//! Written files are read back unchanged.

use fmt_core::TensorReader;
use fmt_npy::{Npy, Npz};
use proptest::prelude::*;
use tensor_core::{DType, Tensor};

use crate::support::{archive, counting, open, open_archive, written};

fn tensors() -> impl Strategy<Value = Tensor> {
    let dtypes: Vec<DType> = DType::ALL
        .into_iter()
        .filter(|dtype| *dtype != DType::BF16)
        .collect();
    let dims = prop::collection::vec(0u64..5, 0..5);
    (prop::sample::select(dtypes), dims).prop_map(|(dtype, dims)| counting(dtype, &dims))
}

proptest! {
    #[test]
    fn arrays(tensor in tensors(), piece in 1usize..50) {
        let bytes = written(&Npy, &[("0", &tensor)], piece);
        let reader = open(&bytes).unwrap();
        prop_assert_eq!(reader.tensor(0).unwrap(), tensor);
        prop_assert!(reader.lints().unwrap().is_empty());
    }

    #[test]
    fn archives(tensors in prop::collection::vec(tensors(), 0..5), piece in 1usize..50) {
        let names: Vec<String> = (0..tensors.len()).map(|number| format!("arr_{number}")).collect();
        let named: Vec<_> = names.iter().map(String::as_str).zip(&tensors).collect();
        let stored = written(&Npz, &named, piece);
        let members: Vec<_> = tensors.iter().map(|tensor| written(&Npy, &[("0", tensor)], 9)).collect();
        let paths: Vec<String> = names.iter().map(|name| format!("{name}.npy")).collect();
        let members: Vec<_> = paths.iter().map(String::as_str).zip(members.iter().map(Vec::as_slice)).collect();
        for bytes in [stored, archive(&members, true)] {
            let reader = open_archive(&bytes).unwrap();
            for (name, tensor) in &named {
                let index = reader.find(name).unwrap();
                prop_assert_eq!(&reader.tensor(index).unwrap(), *tensor);
            }
        }
    }
}
