//! Measures opening mapped zTensor files, compared with a plain mapping and with safetensors and zTensor 2
//! files of the same tensors.
//!
//! `cargo bench -p tensor-mmap --bench ztensor` writes a gigabyte to the temporary directory (`TMPDIR`).
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::{
    fs::{self, File},
    hint::black_box,
    path::Path,
};

use bench_kit::Comparison;
use bytes::Bytes;
use fmt_core::TensorReader;
use fmt_ztensor::{WriteOptions, ZtensorReader, ZtensorWriter};
use safetensors::{SafeTensors, tensor::TensorView};
use tensor_core::{DType, Shape, Tensor, TensorSpec};

const GIB: usize = 1 << 30;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    open_many(folder.path());
    let [ours, safetensors] = ["one.zt", "one.safetensors"].map(|name| folder.path().join(name));
    write_one(&ours, &safetensors);

    let reader = ZtensorReader::from_bytes(map(&ours)).unwrap();
    let mut comparison = Comparison::new("a view of 1 GiB in a mapped file");
    comparison.add("open, map and view", || {
        ZtensorReader::from_bytes(map(&ours)).unwrap().tensor(0).unwrap()
    });
    comparison.add("view of an open reader", || reader.tensor(0).unwrap());
    comparison.rounds(101).run();

    let start = reader.entries()[0].range.start as usize;
    let mut comparison = Comparison::new("every byte of 1 GiB, mapped anew each time");
    comparison.add("plain mapping", || sum(&map(&ours)[start..start + GIB]));
    comparison.add("fmt-ztensor", || {
        let reader = ZtensorReader::from_bytes(map(&ours)).unwrap();
        sum(reader.tensor(0).unwrap().bytes())
    });
    comparison.add("safetensors", || {
        let mapped = map(&safetensors);
        let parsed = SafeTensors::deserialize(&mapped).unwrap();
        sum(parsed.tensor("one").unwrap().data())
    });
    comparison.rounds(11).run();
}

/// Opens many files as in `crates/fmt-ztensor/benches/files.rs`, which reads them.
fn open_many(folder: &Path) {
    let names = (0..10_000).map(|number| format!("model.layers.{}.{}.weight", number / 6, number % 6));
    let names: Vec<String> = names.collect();
    let tensor = Tensor::from_vec(Shape::new(&[4, 4]).unwrap(), vec![1.0f32; 16]).unwrap();
    let [ours, safetensors, second] = ["a.zt", "a.safetensors", "b.zt"].map(|name| folder.join(name));
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    names
        .iter()
        .for_each(|name| writer.tensor(name, &tensor).unwrap());
    fs::write(&ours, writer.finish().unwrap()).unwrap();
    let view = || TensorView::new(safetensors::Dtype::F32, vec![4, 4], tensor.bytes()).unwrap();
    let views = names.iter().map(|name| (name, view()));
    safetensors::serialize_to_file(views, None, &safetensors).unwrap();
    let mut writer = ztensor::Writer::options()
        .canonical(false)
        .align(4096)
        .create(&second)
        .unwrap();
    for name in &names {
        writer
            .add(name.as_str(), vec![4u64, 4], ztensor::DType::F32, tensor.bytes())
            .unwrap();
    }
    writer.finish().unwrap();

    let mut comparison = Comparison::new("open 10,000 tensors of a mapped file");
    comparison.add("safetensors", || {
        SafeTensors::deserialize(&map(&safetensors)).unwrap().len()
    });
    comparison.add("ztensor 2.1", || ztensor::Source::open(&second).unwrap().len());
    comparison.add("fmt-ztensor", || ZtensorReader::from_bytes(map(&ours)).unwrap());
    comparison.rounds(101).run();
}

fn write_one(ours: &Path, safetensors: &Path) {
    let words = (0..GIB as u64 / 8).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let data: Vec<u8> = words.collect();
    let spec = TensorSpec::new(DType::U8, Shape::vector(GIB as u64)).unwrap();
    let mut writer = ZtensorWriter::new(File::create(ours).unwrap(), WriteOptions::default()).unwrap();
    writer.begin("one", &spec).unwrap();
    writer.write(&data).unwrap();
    writer.finish().unwrap();
    let view = TensorView::new(safetensors::Dtype::U8, vec![GIB], &data).unwrap();
    safetensors::serialize_to_file([("one", view)], None, safetensors).unwrap();
}

#[expect(unsafe_code, reason = "the files are this benchmark's own")]
fn map(path: &Path) -> Bytes {
    // SAFETY: no other process uses the file.
    unsafe { tensor_mmap::map(&File::open(path).unwrap()).unwrap() }
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    black_box(words.fold(0, u64::wrapping_add))
}
