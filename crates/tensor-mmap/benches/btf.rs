//! Measures opening mapped BTF files, compared with a plain mapping and with safetensors files of the same
//! bytes.
//!
//! `cargo bench -p tensor-mmap --bench btf` writes a gigabyte to the temporary directory (`TMPDIR`).
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::{fs::File, hint::black_box, path::Path};

use bench_kit::Comparison;
use bytes::Bytes;
use fmt_btf::{BtfReader, BtfWriter, RecordSpec, WriteOptions};
use fmt_core::TensorReader;
use safetensors::{SafeTensors, tensor::TensorView};
use tensor_core::{DType, Shape, TensorSpec};

const GIB: usize = 1 << 30;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (btf, safetensors) = (
        folder.path().join("one.btf"),
        folder.path().join("one.safetensors"),
    );
    write(&btf, &safetensors);

    let reader = BtfReader::from_bytes(map(&btf)).unwrap();
    let mut comparison = Comparison::new("a view of 1 GiB in a mapped file");
    comparison.add("open, map and view", || {
        BtfReader::from_bytes(map(&btf)).unwrap().tensor(0).unwrap()
    });
    comparison.add("view of an open reader", || reader.tensor(0).unwrap());
    comparison.rounds(101).run();

    let start = reader.record(0).unwrap().data.start as usize;
    let mut comparison = Comparison::new("every byte of 1 GiB, mapped anew each time");
    comparison.add("plain mapping", || sum(&map(&btf)[start..start + GIB]));
    comparison.add("fmt-btf", || {
        sum(BtfReader::from_bytes(map(&btf))
            .unwrap()
            .tensor(0)
            .unwrap()
            .bytes())
    });
    comparison.add("safetensors", || {
        let mapped = map(&safetensors);
        let parsed = SafeTensors::deserialize(&mapped).unwrap();
        sum(parsed.tensor("one").unwrap().data())
    });
    comparison.rounds(11).run();
}

fn write(btf: &Path, safetensors: &Path) {
    let data: Vec<u8> = (0..GIB as u64 / 8)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    let spec = TensorSpec::new(DType::U8, Shape::vector(GIB as u64)).unwrap();
    let records = vec![RecordSpec::dense(spec)];
    let mut writer = BtfWriter::new(File::create(btf).unwrap(), records, WriteOptions::default()).unwrap();
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
    let words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    black_box(words.fold(0, u64::wrapping_add))
}
