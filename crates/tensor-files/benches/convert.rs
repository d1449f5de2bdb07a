//! Times the conversion of 1 GiB of tensors to each format, compared with copying the file.
//!
//! Run with `cargo bench -p tensor-files`. The benchmark writes a few gigabytes to the temporary directory
//! (`TMPDIR`), which should be on a disk.
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use bench_kit::Comparison;
use fmt_core::{Plan, PlannedEntry};
use tensor_core::{DType, Shape, TensorSpec};
use tensor_files::{ConvertOptions, convert, format_of_path, formats, open};

/// Number of tensors, each of 16 MiB.
const TENSORS: usize = 64;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("source.safetensors");
    write_source(&path);
    let copy = folder.path().join("copy");

    let mut comparison = Comparison::new("convert 1 GiB of safetensors, all of it on the disk in the end");
    comparison.add("copy of the file", || {
        fs::copy(&path, &copy).unwrap();
        File::open(&copy).unwrap().sync_all().unwrap();
        TempFile(copy.clone())
    });
    for format in formats() {
        // Only formats that hold more than one tensor are measured.
        if !format.is_written() || format.id() == "npy" {
            continue;
        }
        let target = folder.path().join("target");
        let path = &path;
        comparison.add(format!("to {}", format.id()), move || {
            let reader = open(path, &Default::default()).unwrap();
            convert(&*reader, *format, &target, &ConvertOptions::default()).unwrap();
            TempFile(target.clone())
        });
    }
    comparison.rounds(7).run();
}

/// A file that is removed on drop. The removal is not timed.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

fn write_source(path: &Path) {
    let spec = TensorSpec::new(DType::F32, Shape::new(&[4096, 1024]).unwrap()).unwrap();
    let bytes: Vec<u8> = (0..spec.byte_len() / 8)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    let names = (0..TENSORS).map(|number| number.to_string());
    let plan = Plan {
        entries: names
            .map(|name| PlannedEntry::dense(name, spec.clone()))
            .collect(),
        ..Plan::default()
    };
    let out = Box::new(File::create(path).unwrap());
    let mut writer = format_of_path(path).unwrap().create(out, plan).unwrap();
    for _ in 0..TENSORS {
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
}
