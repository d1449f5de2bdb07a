//! Compares zTensor files with safetensors and zTensor 2 files of the same tensors, and with plain reads,
//! writes and zstd compression of the same bytes.
//!
//! Run `cargo bench -p fmt-ztensor`. It writes a gigabyte to the temporary directory (`TMPDIR`), which should
//! be on a disk. Memory mapping requires `unsafe`, so it is measured by `cargo bench -p tensor-mmap --bench
//! ztensor`. Words after `--` select benchmarks: `open`, `many`, `write`, `read`, `zstd`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot go on stops"
)]

use std::{
    env,
    fs::{self, File},
    io::{BufWriter, Write},
    os::unix::fs::FileExt,
    path::Path,
    time::Instant,
};

use bench_kit::Comparison;
use bytes::Bytes;
use fmt_core::{
    AtomicFile, TensorReader,
    testing::bench::{TempFile, model_names, random_bytes, small_tensor},
};
use fmt_ztensor::{
    ChecksumKind, Compression, TensorOptions, WriteOptions, ZtensorEditor, ZtensorReader, ZtensorWriter,
};
use safetensors::{SafeTensors, tensor::TensorView};
use tensor_core::{DType, Shape, Tensor, TensorSpec};

const GIB: usize = 1 << 30;

fn main() {
    let words: Vec<String> = env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let is_chosen = |word: &str| words.is_empty() || words.iter().any(|chosen| chosen == word);
    let folder = tempfile::tempdir().unwrap();
    if is_chosen("open") {
        open_many(folder.path());
    }
    if is_chosen("many") {
        write_many(folder.path());
    }
    if is_chosen("write") {
        write_one(folder.path(), &random_bytes(GIB));
    }
    if is_chosen("read") {
        read_one(folder.path(), &random_bytes(GIB));
    }
    if is_chosen("zstd") {
        decompress();
    }
}

fn with_checksum(checksum: Option<ChecksumKind>) -> WriteOptions {
    WriteOptions {
        tensors: TensorOptions {
            checksum,
            ..TensorOptions::default()
        },
        ..WriteOptions::default()
    }
}

fn ztensor_of<W: Write>(out: W, names: &[String], tensor: &Tensor, options: WriteOptions) -> W {
    let mut writer = ZtensorWriter::new(out, options).unwrap();
    for name in names {
        writer.tensor(name, tensor).unwrap();
    }
    writer.finish().unwrap()
}

fn safetensors_of(names: &[String], tensor: &Tensor) -> Vec<u8> {
    let view = || TensorView::new(safetensors::Dtype::F32, vec![4, 4], tensor.bytes()).unwrap();
    safetensors::serialize(names.iter().map(|name| (name, view())), None).unwrap()
}

fn ztensor2_to(path: &Path, names: &[String], tensor: &Tensor) {
    let mut writer = ztensor::Writer::options()
        .canonical(false)
        .align(4096)
        .create(path)
        .unwrap();
    for name in names {
        writer
            .add(name.as_str(), vec![4u64, 4], ztensor::DType::F32, tensor.bytes())
            .unwrap();
    }
    writer.finish().unwrap();
}

fn open_many(folder: &Path) {
    let (names, tensor) = (model_names(10_000), small_tensor());
    let plain = Bytes::from(ztensor_of(Vec::new(), &names, &tensor, with_checksum(None)));
    let checked = Bytes::from(ztensor_of(Vec::new(), &names, &tensor, WriteOptions::default()));
    let safetensors = safetensors_of(&names, &tensor);
    let [path, safetensors_path, ztensor2] = ["a.zt", "a.safetensors", "b.zt"].map(|name| folder.join(name));
    fs::write(&path, &checked).unwrap();
    fs::write(&safetensors_path, &safetensors).unwrap();
    ztensor2_to(&ztensor2, &names, &tensor);

    let mut comparison = Comparison::new("open 10,000 tensors in memory, everything checked");
    comparison.add("safetensors", || {
        SafeTensors::deserialize(&safetensors).unwrap().len()
    });
    comparison.add("fmt-ztensor, without checksums", || {
        ZtensorReader::from_bytes(plain.clone()).unwrap()
    });
    comparison.add("fmt-ztensor, with checksums", || {
        ZtensorReader::from_bytes(checked.clone()).unwrap()
    });
    comparison.rounds(101).run();

    let mut comparison = Comparison::new("open 10,000 tensors of a file on disk");
    comparison.add("safetensors, whole file read", || {
        SafeTensors::deserialize(&fs::read(&safetensors_path).unwrap())
            .unwrap()
            .len()
    });
    comparison.add("ztensor 2.1, mapped", || {
        ztensor::Source::open(&ztensor2).unwrap().len()
    });
    comparison.add("fmt-ztensor, read", || ZtensorReader::from_path(&path).unwrap());
    comparison.rounds(101).run();

    let reader = ZtensorReader::from_bytes(checked.clone()).unwrap();
    let parsed = SafeTensors::deserialize(&safetensors).unwrap();
    let mut comparison = Comparison::new("10,000 tensors by name, none copied");
    comparison.add("safetensors", || {
        let bytes = |name: &String| parsed.tensor(name).unwrap().data().len();
        names.iter().map(bytes).sum::<usize>()
    });
    comparison.add("fmt-ztensor", || {
        let bytes = |name: &String| reader.tensor(reader.find(name).unwrap()).unwrap().bytes().len();
        names.iter().map(bytes).sum::<usize>()
    });
    comparison.rounds(101).run();
}

fn write_many(folder: &Path) {
    let (names, tensor) = (model_names(100_000), small_tensor());
    let room = ztensor_of(Vec::new(), &names, &tensor, WriteOptions::default()).len();
    let mut comparison = Comparison::new("write 100,000 tensors of 64 bytes to memory");
    comparison.add("safetensors", || safetensors_of(&names, &tensor));
    comparison.add("fmt-ztensor", || {
        ztensor_of(Vec::with_capacity(room), &names, &tensor, WriteOptions::default())
    });
    comparison.rounds(15).run();

    let path = folder.join("many");
    let mut comparison = Comparison::new("write 100,000 tensors of 64 bytes to a file");
    comparison.add("safetensors", || {
        let view = || TensorView::new(safetensors::Dtype::F32, vec![4, 4], tensor.bytes()).unwrap();
        let views = names.iter().map(|name| (name, view()));
        safetensors::serialize_to_file(views, None, &path).unwrap();
        TempFile(path.clone())
    });
    comparison.add("ztensor 2.1", || {
        ztensor2_to(&path, &names, &tensor);
        TempFile(path.clone())
    });
    comparison.add("fmt-ztensor", || {
        let out = BufWriter::with_capacity(1 << 20, File::create(&path).unwrap());
        ztensor_of(out, &names, &tensor, WriteOptions::default())
            .flush()
            .unwrap();
        TempFile(path.clone())
    });
    comparison.rounds(15).run();
}

fn spec_of(len: usize) -> TensorSpec {
    TensorSpec::new(DType::U8, Shape::vector(len as u64)).unwrap()
}

fn write_one(folder: &Path, data: &[u8]) {
    let path = folder.join("one");
    let write = |checksum, piece: usize| {
        let mut writer = ZtensorWriter::new(File::create(&path).unwrap(), with_checksum(checksum)).unwrap();
        writer.begin("one", &spec_of(data.len())).unwrap();
        data.chunks(piece).for_each(|piece| writer.write(piece).unwrap());
        writer.finish().unwrap();
        TempFile(path.clone())
    };
    let mut comparison = Comparison::new("write 1 GiB to a file, without waiting for the disk");
    comparison.add("File::write_all", || {
        File::create(&path).unwrap().write_all(data).unwrap();
        TempFile(path.clone())
    });
    comparison.add("safetensors::serialize_to_file", || {
        let view = TensorView::new(safetensors::Dtype::U8, vec![data.len()], data).unwrap();
        safetensors::serialize_to_file([("one", view)], None, &path).unwrap();
        TempFile(path.clone())
    });
    comparison.add("ztensor 2.1", || {
        let mut writer = ztensor::Writer::create(&path).unwrap();
        writer
            .add("one", vec![data.len() as u64], ztensor::DType::U8, data)
            .unwrap();
        writer.finish().unwrap();
        TempFile(path.clone())
    });
    comparison.add("fmt-ztensor, no checksum", || write(None, data.len()));
    comparison.add("fmt-ztensor, crc32c", || {
        write(Some(ChecksumKind::Crc32c), data.len())
    });
    comparison.add("fmt-ztensor, crc32c, pieces of 1 MiB", || {
        write(Some(ChecksumKind::Crc32c), 1 << 20)
    });
    comparison.rounds(7).run();

    let start = Instant::now();
    let mut writer = ZtensorWriter::new(AtomicFile::create(&path).unwrap(), WriteOptions::default()).unwrap();
    writer.begin("one", &spec_of(data.len())).unwrap();
    writer.write(data).unwrap();
    writer.finish().unwrap().persist().unwrap();
    let written = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut editor = ZtensorEditor::open(&path).unwrap();
    editor.rename("one", "uno").unwrap();
    editor.save_in_place().unwrap();
    let renamed = start.elapsed().as_secs_f64();
    println!("\nwriting and persisting 1 GiB, on the disk for good: {written:.2} s");
    println!(
        "renaming its tensor in place, on the disk for good: {:.2} ms",
        renamed * 1e3
    );
}

fn read_one(folder: &Path, data: &[u8]) {
    let path = |name: &str| folder.join(name);
    let write = |name: &str, checksum| {
        let mut writer =
            ZtensorWriter::new(File::create(path(name)).unwrap(), with_checksum(checksum)).unwrap();
        writer.begin("one", &spec_of(data.len())).unwrap();
        writer.write(data).unwrap();
        writer.finish().unwrap();
        ZtensorReader::from_path(path(name)).unwrap()
    };
    let plain = write("plain.zt", None);
    let checked = write("checked.zt", Some(ChecksumKind::Crc32c));
    let file = File::open(path("plain.zt")).unwrap();
    let mut buffers = [(); 3].map(|()| vec![1; GIB]);
    let [one, two, three] = &mut buffers;
    let mut comparison = Comparison::new("1 GiB from the page cache into a buffer that is there");
    comparison.add("pread", || file.read_exact_at(one, 64).unwrap());
    comparison.add("fmt-ztensor: read_into", || plain.read_into(0, two).unwrap());
    comparison.add("fmt-ztensor: read_into, crc32c held", || {
        checked.read_into(0, three).unwrap();
    });
    comparison.rounds(9).run();
    assert!(buffers.iter().all(|buffer| buffer == data));
    drop(buffers);

    let mut comparison = Comparison::new("1 GiB from the page cache into a buffer of its own");
    comparison.add("std::fs::read", || fs::read(path("plain.zt")).unwrap());
    comparison.add("fmt-ztensor: tensor()", || plain.tensor(0).unwrap());
    comparison.add("fmt-ztensor: tensor(), crc32c held", || {
        checked.tensor(0).unwrap()
    });
    comparison.rounds(7).run();
}

/// Returns bytes that compress like the mantissas of weights: by a fifth.
fn weights(len: usize) -> Vec<u8> {
    let mut bytes = random_bytes(len);
    for element in bytes.chunks_exact_mut(4) {
        element[3] = 0x3c | (element[3] & 0x83);
        element[2] &= 0x7f;
    }
    bytes
}

fn decompress() {
    const LEN: usize = 256 << 20;
    let data = weights(LEN);
    let options = TensorOptions {
        compression: Some(Compression::default()),
        ..TensorOptions::default()
    };
    let tensor = Tensor::new(spec_of(LEN), data.clone()).unwrap();
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    let start = Instant::now();
    writer.tensor_with("w", &tensor, &options).unwrap();
    let file = Bytes::from(writer.finish().unwrap());
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "\ncompressing 256 MiB took {seconds:.2} s and left {:.1} %",
        file.len() as f64 / LEN as f64 * 100.0
    );
    let mut whole = Vec::with_capacity(zstd::zstd_safe::compress_bound(LEN));
    let mut context = zstd::zstd_safe::CCtx::create();
    context
        .set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))
        .unwrap();
    context.compress2(&mut whole, &data).unwrap();

    let reader = |threads| {
        ZtensorReader::from_bytes(file.clone())
            .unwrap()
            .with_threads(threads)
    };
    let (one, two) = (reader(1), reader(2));
    let mut buffers = [(); 3].map(|()| vec![1; LEN]);
    let [bare, first, second] = &mut buffers;
    let mut decoder = zstd::zstd_safe::DCtx::create();
    let mut comparison = Comparison::new("decode 256 MiB of zstd in memory into a buffer that is there");
    comparison.add("zstd, one frame in one call", || {
        decoder.decompress(&mut bare[..], &whole).unwrap()
    });
    comparison.add("fmt-ztensor, 1 thread", || one.read_into(0, first).unwrap());
    comparison.add("fmt-ztensor, 2 threads", || two.read_into(0, second).unwrap());
    comparison.rounds(9).run();
    assert!(buffers.iter().all(|buffer| *buffer == data));

    let spec = TensorSpec::new(DType::U8, Shape::new(&[LEN as u64 / 4096, 4096]).unwrap()).unwrap();
    let tensor = Tensor::new(spec, data).unwrap();
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.tensor_with("w", &tensor, &options).unwrap();
    let reader = ZtensorReader::from_bytes(writer.finish().unwrap()).unwrap();
    let mut comparison = Comparison::new("rows of 4 KiB of 256 MiB of zstd");
    comparison.add("all", || reader.tensor(0).unwrap());
    comparison.add("the first", || reader.rows(0, 0..1).unwrap());
    comparison.add("one amid", || reader.rows(0, 30_000..30_001).unwrap());
    comparison.rounds(9).run();
}
