//! Compares TensorBuffers files with safetensors files of the same tensors, and with plain reads and writes
//! of the same bytes.
//!
//! `cargo bench -p fmt-tbuf` writes a gigabyte to the temporary directory (`TMPDIR`), which should be on a
//! disk.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark that cannot go on stops"
)]

use std::{
    fs::{self, File},
    hint::black_box,
    io::{BufWriter, Write},
    os::unix::fs::FileExt,
    path::Path,
    time::Instant,
};

use bench_kit::Comparison;
use fmt_core::{
    AtomicFile, TensorReader,
    testing::bench::{TempFile, model_names, random_bytes, small_tensor},
};
use fmt_tbuf::{TbufReader, TbufWriter, WriteOptions};
use safetensors::{SafeTensors, tensor::TensorView};
use tensor_core::{Bytes, DType, Shape, Tensor, TensorSpec};

const GIB: usize = 1 << 30;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    open_many();
    write_many();
    let path = folder.path().join("one.tbuf");
    let data = random_bytes(GIB);
    write_one(folder.path(), &data);
    read_one(&path, &data);
}

fn tbuf_of(names: &[String], tensor: &Tensor) -> Vec<u8> {
    let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    for name in names {
        writer.tensor(name, tensor).unwrap();
    }
    writer.finish().unwrap()
}

fn safetensors_of(names: &[String], tensor: &Tensor) -> Vec<u8> {
    let view = || TensorView::new(safetensors::Dtype::F32, vec![4, 4], tensor.bytes()).unwrap();
    safetensors::serialize(names.iter().map(|name| (name, view())), None).unwrap()
}

fn open_many() {
    let (names, tensor) = (model_names(10_000), small_tensor());
    let tbuf = Bytes::from(tbuf_of(&names, &tensor));
    let safetensors = safetensors_of(&names, &tensor);
    let mut comparison = Comparison::new("open 10,000 tensors in memory, everything checked");
    comparison.add("safetensors", || {
        SafeTensors::deserialize(&safetensors).unwrap().len()
    });
    comparison.add("fmt-tbuf", || TbufReader::from_bytes(tbuf.clone()).unwrap());
    comparison.add("fmt-tbuf, and one tensor by name", || {
        let reader = TbufReader::from_bytes(tbuf.clone()).unwrap();
        reader.tensor(reader.find(&names[5000]).unwrap()).unwrap()
    });
    comparison.rounds(201).run();
    open_many_on_disk(&names, &tensor, &tbuf, &safetensors);

    let reader = TbufReader::from_bytes(tbuf.clone()).unwrap();
    let parsed = SafeTensors::deserialize(&safetensors).unwrap();
    let mut comparison = Comparison::new("10,000 tensors by name, none copied");
    comparison.add("safetensors", || {
        names
            .iter()
            .map(|name| parsed.tensor(name).unwrap().data().len())
            .sum::<usize>()
    });
    comparison.add("fmt-tbuf", || {
        let bytes = |name: &String| reader.tensor(reader.find(name).unwrap()).unwrap().bytes().len();
        names.iter().map(bytes).sum::<usize>()
    });
    comparison.rounds(101).run();
}

#[expect(unsafe_code, reason = "the files are this benchmark's own")]
fn open_many_on_disk(names: &[String], tensor: &Tensor, tbuf: &[u8], safetensors: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let [tbuf_path, safetensors_path, ztensor_path] =
        ["a.tbuf", "a.safetensors", "a.zt"].map(|name| folder.path().join(name));
    fs::write(&tbuf_path, tbuf).unwrap();
    fs::write(&safetensors_path, safetensors).unwrap();
    let mut writer = ztensor::Writer::options()
        .canonical(false)
        .align(4096)
        .create(&ztensor_path)
        .unwrap();
    for name in names {
        writer
            .add(name.as_str(), vec![4u64, 4], ztensor::DType::F32, tensor.bytes())
            .unwrap();
    }
    writer.finish().unwrap();

    // SAFETY: no other process uses the files.
    let map = |path: &Path| unsafe { tensor_mmap::map(&File::open(path).unwrap()).unwrap() };
    let mut comparison = Comparison::new("open 10,000 tensors of a file on disk");
    comparison.add("safetensors, mapped", || {
        SafeTensors::deserialize(&map(&safetensors_path)).unwrap().len()
    });
    comparison.add("ztensor 2.1, mapped", || {
        ztensor::Source::open(&ztensor_path).unwrap().len()
    });
    comparison.add("fmt-tbuf, mapped", || {
        TbufReader::from_bytes(map(&tbuf_path)).unwrap()
    });
    comparison.add("fmt-tbuf, read", || TbufReader::from_path(&tbuf_path).unwrap());
    comparison.rounds(201).run();
}

fn write_many() {
    let (names, tensor) = (model_names(100_000), small_tensor());
    let room = tbuf_of(&names, &tensor).len();
    let mut comparison = Comparison::new("write 100,000 tensors of 64 bytes to memory");
    comparison.add("safetensors", || safetensors_of(&names, &tensor));
    comparison.add("fmt-tbuf", || {
        let mut writer = TbufWriter::new(Vec::with_capacity(room), WriteOptions::default()).unwrap();
        names
            .iter()
            .for_each(|name| writer.tensor(name, &tensor).unwrap());
        writer.finish().unwrap()
    });
    comparison.rounds(21).run();

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many");
    let mut comparison = Comparison::new("write 100,000 tensors of 64 bytes to a file");
    comparison.add("safetensors", || {
        let view = || TensorView::new(safetensors::Dtype::F32, vec![4, 4], tensor.bytes()).unwrap();
        let views = names.iter().map(|name| (name, view()));
        safetensors::serialize_to_file(views, None, &path).unwrap();
        TempFile(path.clone())
    });
    comparison.add("fmt-tbuf", || {
        let out = BufWriter::with_capacity(1 << 20, File::create(&path).unwrap());
        let mut writer = TbufWriter::new(out, WriteOptions::default()).unwrap();
        names
            .iter()
            .for_each(|name| writer.tensor(name, &tensor).unwrap());
        writer.finish().unwrap().flush().unwrap();
        TempFile(path.clone())
    });
    comparison.rounds(21).run();
}

fn write_one(folder: &Path, data: &[u8]) {
    let spec = TensorSpec::new(DType::U8, Shape::vector(data.len() as u64)).unwrap();
    let path = folder.join("written");
    let pieces = |size: usize, out: &mut dyn FnMut(&[u8])| data.chunks(size).for_each(out);
    let mut comparison = Comparison::new("write 1 GiB to a file, without waiting for the disk");
    comparison.add("File::write_all", || {
        File::create(&path).unwrap().write_all(data).unwrap();
        TempFile(path.clone())
    });
    comparison.add("fmt-tbuf", || {
        let mut writer = TbufWriter::new(File::create(&path).unwrap(), WriteOptions::default()).unwrap();
        writer.begin("one", &spec).unwrap();
        writer.write(data).unwrap();
        writer.finish().unwrap();
        TempFile(path.clone())
    });
    comparison.add("File::write_all, pieces of 1 MiB", || {
        let mut file = File::create(&path).unwrap();
        pieces(1 << 20, &mut |piece| file.write_all(piece).unwrap());
        TempFile(path.clone())
    });
    comparison.add("fmt-tbuf, pieces of 1 MiB", || {
        let mut writer = TbufWriter::new(File::create(&path).unwrap(), WriteOptions::default()).unwrap();
        writer.begin("one", &spec).unwrap();
        pieces(1 << 20, &mut |piece| writer.write(piece).unwrap());
        writer.finish().unwrap();
        TempFile(path.clone())
    });
    comparison.add("safetensors::serialize_to_file", || {
        let view = TensorView::new(safetensors::Dtype::U8, vec![data.len()], data).unwrap();
        safetensors::serialize_to_file([("one", view)], None, &path).unwrap();
        TempFile(path.clone())
    });
    comparison.rounds(15).run();

    let (tbuf, other) = (folder.join("one.tbuf"), folder.join("one.safetensors"));
    let view = TensorView::new(safetensors::Dtype::U8, vec![data.len()], data).unwrap();
    safetensors::serialize_to_file([("one", view)], None, &other).unwrap();
    let start = Instant::now();
    let mut writer = TbufWriter::new(AtomicFile::create(&tbuf).unwrap(), WriteOptions::default()).unwrap();
    writer.begin("one", &spec).unwrap();
    writer.write(data).unwrap();
    writer.finish().unwrap().persist().unwrap();
    let published = start.elapsed().as_secs_f64();
    println!("\nwriting and publishing 1 GiB, on the disk for good: {published:.2} s");
}

#[expect(unsafe_code, reason = "the files are this benchmark's own")]
fn read_one(path: &Path, data: &[u8]) {
    let file = File::open(path).unwrap();
    // SAFETY: no other process uses the file.
    let mapped = unsafe { tensor_mmap::map(&file).unwrap() };
    let in_memory = TbufReader::from_bytes(mapped.clone()).unwrap();
    let on_disk = TbufReader::from_path(path).unwrap();
    let start = usize::try_from(on_disk.entries()[0].range.start).unwrap();

    let mut comparison = Comparison::new("a view of 1 GiB in a mapped file");
    comparison.add("open, map and view", || {
        // SAFETY: no other process uses the file.
        let mapped = unsafe { tensor_mmap::map(&File::open(path).unwrap()).unwrap() };
        TbufReader::from_bytes(mapped).unwrap().tensor(0).unwrap()
    });
    comparison.add("view of an open reader", || in_memory.tensor(0).unwrap());
    comparison.rounds(101).run();

    let safetensors_path = path.with_extension("safetensors");
    let mut comparison = Comparison::new("every byte of 1 GiB, mapped anew each time");
    comparison.add("plain mapping", || {
        // SAFETY: no other process uses the file.
        let mapped = unsafe { tensor_mmap::map(&File::open(path).unwrap()).unwrap() };
        sum(&mapped[start..start + GIB])
    });
    comparison.add("fmt-tbuf", || {
        // SAFETY: no other process uses the file.
        let mapped = unsafe { tensor_mmap::map(&File::open(path).unwrap()).unwrap() };
        sum(TbufReader::from_bytes(mapped).unwrap().tensor(0).unwrap().bytes())
    });
    comparison.add("safetensors", || {
        // SAFETY: no other process uses the file.
        let mapped = unsafe { tensor_mmap::map(&File::open(&safetensors_path).unwrap()).unwrap() };
        sum(SafeTensors::deserialize(&mapped)
            .unwrap()
            .tensor("one")
            .unwrap()
            .data())
    });
    comparison.rounds(9).run();

    let mut buffer = vec![1; GIB];
    let mut again = vec![1; GIB];
    let mut comparison = Comparison::new("1 GiB from the page cache into a buffer that is there");
    comparison.add("pread", || file.read_exact_at(&mut buffer, start as u64).unwrap());
    comparison.add("fmt-tbuf: read_into, from a file", || {
        on_disk.read_into(0, &mut again).unwrap();
    });
    comparison.rounds(9).run();
    assert!(buffer == data && again == data);
    drop((buffer, again));

    let mut comparison = Comparison::new("1 GiB from the page cache into a buffer of its own");
    comparison.add("std::fs::read", || fs::read(path).unwrap());
    comparison.add("fmt-tbuf: tensor(), from a file", || on_disk.tensor(0).unwrap());
    comparison.rounds(7).run();
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    black_box(words.fold(0, u64::wrapping_add))
}
