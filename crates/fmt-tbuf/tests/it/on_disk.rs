//! Files on disk: replaced, truncated, changed, mapped, huge, and paths that are not regular files.

use std::{fs, io, ops::Range, path::Path, process::Command, sync::Arc, thread};

use fmt_core::{AtomicFile, ByteSource, Error, ErrorKind, FileSource, ReadOptions, TensorReader};
use fmt_tbuf::{TbufReader, TbufWriter, TensorBuffers, WriteOptions};
use tensor_core::{Bytes, DType, Tensor};

use crate::{
    corpus::small,
    support::{Forge, counting, written},
};

fn kind<T>(result: Result<T, Error>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

fn big() -> Vec<u8> {
    written(
        WriteOptions::default(),
        &[("a", &counting(DType::U8, &[1 << 20]))],
    )
}

#[test]
fn truncated_after_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    fs::write(&path, big()).unwrap();
    let reader = TbufReader::from_path(&path).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let mut buffer = vec![0; 1 << 20];
    assert_eq!(kind(reader.tensor(0)), Some(ErrorKind::Changed));
    assert_eq!(kind(reader.read_into(0, &mut buffer)), Some(ErrorKind::Changed));
    assert_eq!(kind(reader.rows(0, 5000..5001)), Some(ErrorKind::Changed));
    assert_eq!(kind(reader.rows(0, 0..10)), None);
    assert_eq!(kind(TbufReader::from_path(&path)), Some(ErrorKind::BadMagic));
}

#[test]
fn truncated_while_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    fs::write(&path, small()).unwrap();
    let source = FileSource::open(&path).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    let opened = TbufReader::open(Arc::new(source), &ReadOptions::default());
    assert_eq!(kind(opened), Some(ErrorKind::Changed));
}

#[test]
fn overwritten_while_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    fs::write(&path, big()).unwrap();
    let reader = TbufReader::from_path(&path).unwrap();
    let writer = {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().write(true).open(&path).unwrap();
        thread::spawn(move || (0..50).for_each(|byte| file.write_all_at(&vec![byte; 1 << 20], 64).unwrap()))
    };
    for _ in 0..20 {
        // The tensor's bytes may be old or new, but their number is right.
        assert_eq!(reader.tensor(0).unwrap().bytes().len(), 1 << 20);
    }
    writer.join().unwrap();
}

#[test]
fn replaced_while_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    fs::write(&path, small()).unwrap();
    let old = TbufReader::from_path(&path).unwrap();
    let new = written(WriteOptions::default(), &[("new", &Tensor::scalar(1u8))]);
    fs::write(folder.path().join("b"), new).unwrap();
    fs::rename(folder.path().join("b"), &path).unwrap();
    assert_eq!(old.tensor(0).unwrap(), counting(DType::F32, &[3]));
    assert_eq!(TbufReader::from_path(&path).unwrap().find("new"), Some(0));
}

/// Checks that a file can be replaced while its tensors are read from a mapping of it.
#[test]
#[expect(unsafe_code, reason = "the file is this test's own")]
fn saved_to_where_it_was_read_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    fs::write(&path, big()).unwrap();
    for _ in 0..3 {
        // SAFETY: the file is only replaced, never changed.
        let mapped = unsafe { tensor_mmap::map(&fs::File::open(&path).unwrap()).unwrap() };
        let reader = TbufReader::from_bytes(mapped.clone()).unwrap();
        let tensor = reader.tensor(0).unwrap();
        // Nothing was copied: the tensor's bytes are in the mapping.
        assert!(mapped.as_ptr_range().contains(&tensor.bytes().as_ptr()));
        let mut writer =
            TbufWriter::new(AtomicFile::create(&path).unwrap(), WriteOptions::default()).unwrap();
        writer.tensor("a", &tensor).unwrap();
        writer.finish().unwrap().persist().unwrap();
        assert_eq!(tensor, counting(DType::U8, &[1 << 20]));
        assert_eq!(fs::read(&path).unwrap(), big());
    }
}

/// Checks that opening a sparse file of 1 TiB, with a valid start and end, allocates little memory.
#[test]
fn sparse_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    let file = fs::File::create(&path).unwrap();
    let (index, _) = Forge::new().index();
    let end = 1u64 << 40;
    if file.set_len(end).is_err() {
        // The file system does not support files of a terabyte, so the test is skipped.
        return;
    }
    {
        use std::os::unix::fs::FileExt;
        let tail = [&index[..], &(index.len() as u32).to_le_bytes(), b"TBS1"].concat();
        file.write_all_at(b"TBS1", 0).unwrap();
        file.write_all_at(&tail, end - tail.len() as u64).unwrap();
    }
    let mut opened = None;
    let allocated = allocation_counter::measure(|| opened = Some(TbufReader::from_path(&path)));
    let reader = opened.unwrap().unwrap();
    assert_eq!(reader.tensor(0).unwrap().bytes()[..], [0; 12]);
    assert!(allocated.bytes_max < 64 << 10, "{allocated:?}");
}

#[test]
fn what_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert_eq!(
        kind(TbufReader::from_path(folder.path())),
        Some(ErrorKind::NotAFile)
    );
    assert_eq!(
        kind(TbufReader::from_path("/dev/zero")),
        Some(ErrorKind::NotAFile)
    );
    std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
    std::os::unix::fs::symlink("loop", path("loop")).unwrap();
    for name in ["dangling", "loop", "missing", &"n".repeat(300)] {
        assert_eq!(
            kind(TbufReader::from_path(path(name))),
            Some(ErrorKind::Io),
            "{name}"
        );
    }
    if Command::new("mkfifo")
        .arg(path("pipe"))
        .status()
        .is_ok_and(|status| status.success())
    {
        assert_eq!(
            kind(TbufReader::from_path(path("pipe"))),
            Some(ErrorKind::NotAFile)
        );
    }
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    assert_eq!(kind(TbufReader::from_path(path("socket"))), Some(ErrorKind::Io));
}

/// A source that serves `reads_left` reads, and then fails.
struct Failing {
    bytes: Bytes,
    reads_left: std::sync::atomic::AtomicI32,
}

impl ByteSource for Failing {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        if self.reads_left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) <= 0 {
            return Err(io::Error::other("injected"));
        }
        ByteSource::read(&self.bytes, range)
    }
}

#[test]
fn every_read_may_fail() {
    for reads in 0..6 {
        let source = Failing {
            bytes: small().into(),
            reads_left: reads.into(),
        };
        let opened = TbufReader::open(Arc::new(source), &ReadOptions::default());
        // Opening reads the start, the tail and the index.
        assert_eq!(opened.is_ok(), reads >= 3);
        match opened {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io);
                assert!(error.to_string().ends_with("injected"), "{error}");
            }
            Ok(reader) => assert_eq!(kind(reader.tensor(0)), (reads == 3).then_some(ErrorKind::Io)),
        }
    }
}

/// A user-defined source that returns fewer bytes than requested causes an error.
#[test]
fn short_reads() {
    struct Short(Bytes);
    impl ByteSource for Short {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }

        fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
            let end = range.end.min(range.start + 10);
            ByteSource::read(&self.0, range.start..end)
        }
    }
    let opened = TbufReader::open(Arc::new(Short(small().into())), &ReadOptions::default());
    assert_eq!(kind(opened), Some(ErrorKind::Changed));
}

#[test]
fn grown_after_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    fs::write(&path, small()).unwrap();
    let reader = TbufReader::from_path(&path).unwrap();
    io::Write::write_all(
        &mut fs::File::options().append(true).open(&path).unwrap(),
        &[1; 1000],
    )
    .unwrap();
    assert_eq!(reader.tensor(0).unwrap(), counting(DType::F32, &[3]));
    assert_eq!(reader.lints().unwrap(), []);
}

#[test]
fn many_threads_read_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    let tensors: Vec<_> = (0..100u64)
        .map(|number| (number.to_string(), counting(DType::U8, &[number])))
        .collect();
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
    fs::write(&path, written(WriteOptions::default(), &named)).unwrap();
    let reader = TbufReader::from_path(&path).unwrap();
    thread::scope(|scope| {
        for first in 0..16 {
            let (reader, tensors) = (&reader, &tensors);
            scope.spawn(move || {
                for step in 0..2000 {
                    let (name, expected) = &tensors[(first * 31 + step * 7) % 100];
                    assert_eq!(reader.tensor(reader.find(name).unwrap()).unwrap(), *expected);
                }
            });
        }
    });
}

/// Checks that dropping an unfinished writer leaves the old file unchanged.
#[test]
fn given_up_on_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tbuf");
    fs::write(&path, small()).unwrap();
    let mut writer = TbufWriter::new(AtomicFile::create(&path).unwrap(), WriteOptions::default()).unwrap();
    writer.tensor("b", &counting(DType::U8, &[100])).unwrap();
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), small());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Checks that all ways to open a file give the same result.
#[test]
#[expect(unsafe_code, reason = "the files are this test's own")]
fn one_verdict_from_memory_from_disk_and_from_a_mapping() {
    for side in ["accept", "reject"] {
        for entry in fs::read_dir(Path::new(crate::corpus::FOLDER).join(side)).unwrap() {
            let path = entry.unwrap().path();
            // SAFETY: no other process changes the corpus.
            let mapped = unsafe { tensor_mmap::map(&fs::File::open(&path).unwrap()).unwrap() };
            let mapped = kind(TbufReader::from_bytes(mapped));
            let read = kind(TbufReader::from_path(&path));
            let source: Arc<dyn ByteSource> = Arc::new(FileSource::open(&path).unwrap());
            let format = kind(fmt_core::Format::open(
                &TensorBuffers,
                source,
                &ReadOptions::default(),
            ));
            assert_eq!((mapped, read), (read, format), "{}", path.display());
            assert_eq!(mapped.is_none(), side == "accept");
        }
    }
}
