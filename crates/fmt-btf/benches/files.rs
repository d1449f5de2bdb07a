//! Compares BTF files with safetensors and zTensor 2 files of the same tensors, and with plain reads and
//! writes of the same bytes.
//!
//! `cargo bench -p fmt-btf` writes a gigabyte to the temporary directory (`TMPDIR`), which should be on a
//! disk. Mapped files are measured by `cargo bench -p tensor-mmap`, since mapping requires `unsafe`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot go on stops"
)]

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::Path,
    time::Instant,
};

use bench_kit::Comparison;
use fmt_btf::{BtfReader, BtfWriter, RecordSpec, WriteOptions};
use fmt_core::{
    AtomicFile, TensorReader,
    testing::bench::{TempFile, model_names, random_bytes, small_tensor},
};
use safetensors::{SafeTensors, tensor::TensorView};
use tensor_core::{Bytes, DType, Shape, Tensor, TensorSpec};

const GIB: usize = 1 << 30;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    open_many(folder.path());
    write_many();
    let data = random_bytes(GIB);
    write_one(folder.path(), &data);
    read_one(&folder.path().join("one.btf"), &data);
}

fn btf_of(count: usize, tensor: &Tensor) -> Vec<u8> {
    let records = vec![RecordSpec::from(tensor); count];
    let mut writer = BtfWriter::new(Vec::new(), records, WriteOptions::default()).unwrap();
    for _ in 0..count {
        writer.write(tensor.bytes()).unwrap();
    }
    writer.finish().unwrap()
}

fn safetensors_of(names: &[String], tensor: &Tensor) -> Vec<u8> {
    let view = || TensorView::new(safetensors::Dtype::F32, vec![4, 4], tensor.bytes()).unwrap();
    safetensors::serialize(names.iter().map(|name| (name, view())), None).unwrap()
}

fn open_many(folder: &Path) {
    let (names, tensor) = (model_names(10_000), small_tensor());
    let btf = Bytes::from(btf_of(10_000, &tensor));
    let safetensors = safetensors_of(&names, &tensor);
    let ztensor = folder.join("many.zt");
    let mut writer = ztensor::Writer::options()
        .canonical(false)
        .align(4096)
        .create(&ztensor)
        .unwrap();
    for name in &names {
        writer
            .add(name.as_str(), vec![4u64, 4], ztensor::DType::F32, tensor.bytes())
            .unwrap();
    }
    writer.finish().unwrap();
    let path = folder.join("many.btf");
    fs::write(&path, &btf).unwrap();

    let mut comparison = Comparison::new("open 10,000 tensors, everything checked");
    comparison.add("safetensors, in memory", || {
        SafeTensors::deserialize(&safetensors).unwrap().len()
    });
    comparison.add("fmt-btf, in memory", || {
        BtfReader::from_bytes(btf.clone()).unwrap()
    });
    comparison.add("fmt-btf, in memory, and the list of entries", || {
        let reader = BtfReader::from_bytes(btf.clone()).unwrap();
        assert_eq!(reader.entries().len(), 10_000);
        reader
    });
    comparison.add("fmt-btf, from a file, read", || {
        BtfReader::from_path(&path).unwrap()
    });
    comparison.add("ztensor 2.1, from a file, mapped", || {
        ztensor::Source::open(&ztensor).unwrap().len()
    });
    comparison.rounds(101).run();

    let reader = BtfReader::from_bytes(btf.clone()).unwrap();
    let parsed = SafeTensors::deserialize(&safetensors).unwrap();
    let mut comparison = Comparison::new("10,000 tensors of an open file, none copied");
    comparison.add("safetensors, by name", || {
        names
            .iter()
            .map(|name| parsed.tensor(name).unwrap().data().len())
            .sum::<usize>()
    });
    comparison.add("fmt-btf, by number", || {
        (0..reader.len())
            .map(|index| reader.tensor(index).unwrap().bytes().len())
            .sum::<usize>()
    });
    comparison.rounds(101).run();
}

fn write_many() {
    let (names, tensor) = (model_names(100_000), small_tensor());
    let mut comparison = Comparison::new("write 100,000 tensors of 64 bytes to memory");
    comparison.add("safetensors", || safetensors_of(&names, &tensor));
    comparison.add("fmt-btf", || btf_of(names.len(), &tensor));
    comparison.rounds(15).run();
}

fn write_one(folder: &Path, data: &[u8]) {
    let record = || {
        let spec = TensorSpec::new(DType::U8, Shape::vector(data.len() as u64)).unwrap();
        vec![RecordSpec::dense(spec)]
    };
    let path = folder.join("one.btf");
    let plain = folder.join("plain");
    let safetensors = folder.join("one.safetensors");
    let mut comparison = Comparison::new("write 1 GiB to a file, without waiting for the disk");
    comparison.add("File::write_all", || {
        File::create(&plain).unwrap().write_all(data).unwrap();
        TempFile(plain.clone())
    });
    comparison.add("safetensors::serialize_to_file", || {
        let view = TensorView::new(safetensors::Dtype::U8, vec![data.len()], data).unwrap();
        safetensors::serialize_to_file([("one", view)], None, &safetensors).unwrap();
        TempFile(safetensors.clone())
    });
    comparison.add("fmt-btf to a File", || {
        let out = File::create(&path).unwrap();
        let mut writer = BtfWriter::new(out, record(), WriteOptions::default()).unwrap();
        writer.write(data).unwrap();
        writer.finish().unwrap();
        TempFile(path.clone())
    });
    comparison.add("fmt-btf to a File, pieces of 1 MiB", || {
        let out = File::create(&path).unwrap();
        let mut writer = BtfWriter::new(out, record(), WriteOptions::default()).unwrap();
        data.chunks(1 << 20)
            .for_each(|piece| writer.write(piece).unwrap());
        writer.finish().unwrap();
        TempFile(path.clone())
    });
    comparison.rounds(7).run();

    let start = Instant::now();
    let out = AtomicFile::create(&path).unwrap();
    let mut writer = BtfWriter::new(out, record(), WriteOptions::default()).unwrap();
    writer.write(data).unwrap();
    writer.finish().unwrap().persist().unwrap();
    println!(
        "\nwriting and persisting 1 GiB, on the disk for good: {:.2} s",
        start.elapsed().as_secs_f64()
    );
}

fn read_one(path: &Path, data: &[u8]) {
    let file = File::open(path).unwrap();
    let reader = BtfReader::from_path(path).unwrap();
    let start = reader.record(0).unwrap().data.start;
    let mut buffer = vec![1; GIB];
    let mut again = vec![1; GIB];
    let mut comparison = Comparison::new("1 GiB from the page cache into a buffer that is there");
    comparison.add("pread", || file.read_exact_at(&mut buffer, start).unwrap());
    comparison.add("fmt-btf: read_into, from a file", || {
        reader.read_into(0, &mut again).unwrap();
    });
    comparison.rounds(9).run();
    assert!(buffer == data && again == data);
    drop((buffer, again));

    let mut comparison = Comparison::new("1 GiB from the page cache into a buffer of its own");
    comparison.add("std::fs::read", || fs::read(path).unwrap());
    comparison.add("fmt-btf: tensor(), from a file", || reader.tensor(0).unwrap());
    comparison.rounds(7).run();
}
