//! Reads files written by NumPy, if present, and writes their tensors again for NumPy to read; see
//! `tests/python/check_against_numpy.py`.

use std::{fs, path::Path};

use fmt_core::TensorReader;
use fmt_npy::{Npy, NpyReader, Npz, NpzReader};
use tensor_core::Tensor;

use crate::support::written;

#[test]
fn files_of_numpy() {
    let Some(folder) = std::env::var_os("NPY_FOLDER") else {
        return;
    };
    let folder = Path::new(&folder);
    let again = folder.join("again");
    let _ = fs::create_dir(&again);
    let archives =
        ["all.npz", "all-compressed.npz"].map(|name| NpzReader::from_path(folder.join(name)).unwrap());
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for entry in archives[0].entries() {
        let name = &entry.name;
        let wanted = fs::read(folder.join(format!("{name}.bytes"))).unwrap();
        let reader = NpyReader::from_path(folder.join(format!("{name}.npy"))).unwrap();
        let tensor = reader.tensor(0).unwrap();
        assert!(tensor.bytes() == &wanted, "{name}");
        for archive in &archives {
            let index = archive.find(name).unwrap();
            assert_eq!(archive.tensor(index).unwrap(), tensor);
        }
        fs::write(
            again.join(format!("{name}.npy")),
            written(&Npy, &[("0", &tensor)], 1000),
        )
        .unwrap();
        tensors.push((name.clone(), tensor));
    }
    let named: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor))
        .collect();
    assert!(named.len() > 100);
    fs::write(again.join("all.npz"), written(&Npz, &named, 1000)).unwrap();
}
