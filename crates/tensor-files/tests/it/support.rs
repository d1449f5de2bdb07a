//! Writes test files.

use std::path::{Path, PathBuf};

use fmt_core::{Format, Metadata, Plan, PlannedEntry, TensorReader};
use tensor_core::{DType, Shape, SparseCoo, Tensor, TensorSpec};
use tensor_files::format;

/// Returns the formats that can be written.
pub(crate) fn writable() -> impl Iterator<Item = &'static dyn Format> {
    let all = tensor_files::formats().iter().copied();
    all.filter(|format| !["gguf", "onnx", "torch", "ztensor1", "ztensor2"].contains(&format.id()))
}

pub(crate) fn tensor(dtype: DType, dims: &[u64]) -> Tensor {
    let spec = TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap();
    let bytes: Vec<u8> = (0..spec.byte_len()).map(|byte| (byte % 113) as u8).collect();
    Tensor::new(spec, bytes).unwrap()
}

/// Writes named tensors as a file of the format, and returns its path.
pub(crate) fn write(folder: &Path, name: &str, tensors: &[(&str, &Tensor)], metadata: &Metadata) -> PathBuf {
    let path = folder.join(name);
    let format = tensor_files::format_of_path(&path).unwrap();
    let entries = tensors
        .iter()
        .map(|(name, tensor)| PlannedEntry::dense(*name, tensor.spec().clone()));
    let plan = Plan {
        entries: entries.collect(),
        metadata: metadata.clone(),
    };
    let mut out = Vec::new();
    let mut writer = format.create(Box::new(&mut out), plan).unwrap();
    for (_, tensor) in tensors {
        writer.write(tensor.bytes()).unwrap();
    }
    writer.finish().unwrap();
    std::fs::write(&path, out).unwrap();
    path
}

/// Writes a BTF file with a sparse and a dense tensor.
pub(crate) fn write_sparse(folder: &Path) -> (PathBuf, SparseCoo) {
    let dense = Tensor::from_vec(Shape::new(&[2, 3]).unwrap(), vec![0i32, 5, 0, 0, 0, -6]).unwrap();
    let sparse = SparseCoo::from_dense(&dense.view());
    let plan = Plan {
        entries: vec![
            PlannedEntry::coo("0", sparse.spec().clone(), sparse.nnz()),
            PlannedEntry::dense("1", dense.spec().clone()),
        ],
        ..Plan::default()
    };
    let mut out = Vec::new();
    let mut writer = format("btf").unwrap().create(Box::new(&mut out), plan).unwrap();
    writer.write(sparse.indices().bytes()).unwrap();
    writer.write(sparse.values().bytes()).unwrap();
    writer.write(dense.bytes()).unwrap();
    writer.finish().unwrap();
    let path = folder.join("sparse.btf");
    std::fs::write(&path, out).unwrap();
    (path, sparse)
}

pub(crate) fn open(path: &Path) -> Box<dyn TensorReader> {
    tensor_files::open(path, &Default::default()).unwrap()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
