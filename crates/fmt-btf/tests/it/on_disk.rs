//! Files on disk that change while they are read, and paths that are not regular files.

use std::{
    fs::{self, File},
    io::{self, Write},
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use fmt_btf::{BtfReader, Names};
use fmt_core::{ByteSource, ErrorKind::*, FileSource, ReadOptions, TensorReader};
use tensor_core::{Bytes, DType};

use crate::support::{ForgedRecord, counting, file, words, written};

fn in_folder(test: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    test(folder.path());
}

/// Checks that reading a file that is truncated while it is open returns a complete tensor, or an error of
/// the kind `Changed`.
#[test]
fn a_file_that_becomes_shorter() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        let tensor = counting(DType::I64, &[1 << 17]);
        for round in 0..100u64 {
            fs::write(&path, written(&[&tensor])).unwrap();
            let reader = BtfReader::from_path(&path).unwrap();
            let cutting = {
                let path = path.clone();
                std::thread::spawn(move || {
                    File::options()
                        .write(true)
                        .open(path)
                        .unwrap()
                        .set_len(4096 + round)
                        .unwrap();
                })
            };
            match reader.tensor(0) {
                Ok(read) => assert_eq!(read.bytes().len(), tensor.bytes().len()),
                Err(error) => assert_eq!(error.kind(), Changed),
            }
            cutting.join().unwrap();
            assert_eq!(reader.tensor(0).unwrap_err().kind(), Changed);
            assert_eq!(
                reader.read_into(0, &mut vec![0; 1 << 20]).unwrap_err().kind(),
                Changed
            );
        }
    });
}

/// Checks that opening fails if the file is truncated after its length was queried and before it is read.
#[test]
fn a_file_that_is_empty_when_it_is_read() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        fs::write(&path, ForgedRecord::plain().file()).unwrap();
        let source = FileSource::open(&path).unwrap();
        File::create(&path).unwrap();
        let error = BtfReader::open(Arc::new(source), &ReadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), Changed);
    });
}

/// A reader returns bytes as they are at the time of reading; a sparse tensor is validated on each read.
#[test]
fn a_file_that_is_overwritten() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        let bytes = ForgedRecord::coo(&[4], &[1, 2], &[5, 6]).file();
        fs::write(&path, &bytes).unwrap();
        let reader = BtfReader::from_path(&path).unwrap();
        assert!(reader.sparse(0).is_ok());
        let overwrite = |at: usize, word: u64| {
            let mut changed = bytes.clone();
            changed[at..at + 8].copy_from_slice(&words(&[word]));
            fs::write(&path, changed).unwrap();
            reader.sparse(0).unwrap_err().kind()
        };
        assert_eq!(overwrite(56, 4), OutOfBounds);
        assert_eq!(overwrite(56, 2), Duplicate);
        assert_eq!(overwrite(72, 1), Changed);
    });
}

/// Readers keep the old contents of a replaced file that they have open.
#[test]
fn a_file_that_is_replaced() {
    in_folder(|folder| {
        let (path, other) = (folder.join("a.btf"), folder.join("b.btf"));
        let (old, new) = (counting(DType::I8, &[100]), counting(DType::F32, &[2]));
        fs::write(&path, written(&[&old])).unwrap();
        fs::write(&other, written(&[&new])).unwrap();
        let reader = BtfReader::from_path(&path).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(reader.tensor(0).unwrap(), old);
        assert_eq!(BtfReader::from_path(&path).unwrap().tensor(0).unwrap(), new);
    });
}

/// Checks that a file with a hole of 1 TiB between two records opens quickly.
#[test]
fn a_sparse_file_of_a_terabyte() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        let far = 1u64 << 40;
        let mut out = File::create(&path).unwrap();
        out.write_all(&words(&[2, 24, far])).unwrap();
        out.write_all(&ForgedRecord::plain().bytes()).unwrap();
        out.set_len(far).unwrap();
        let mut out = File::options().append(true).open(&path).unwrap();
        if out.write_all(&ForgedRecord::plain().bytes()).is_err() {
            // The file system does not support files of that length, so the test is skipped.
            return;
        }
        let start = Instant::now();
        let reader = BtfReader::from_path(&path).unwrap();
        assert!(start.elapsed().as_millis() < 100);
        assert_eq!(reader.tensor(0).unwrap(), reader.tensor(1).unwrap());
        assert_eq!(reader.lints().unwrap().len(), 1);
    });
}

/// Checks that paths that are not regular files are refused.
#[cfg(unix)]
#[test]
fn what_is_no_file() {
    in_folder(|folder| {
        let socket = folder.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let looping = folder.join("loop");
        std::os::unix::fs::symlink(&looping, &looping).unwrap();
        let dangling = folder.join("dangling");
        std::os::unix::fs::symlink(folder.join("nowhere"), &dangling).unwrap();
        let devices = [Path::new("/dev/zero"), Path::new("/dev/null")];
        for path in [folder, &socket, &looping, &dangling].into_iter().chain(devices) {
            let error = BtfReader::from_path(path).unwrap_err();
            assert!(matches!(error.kind(), NotAFile | Io), "{error}");
        }
    });
}

/// Checks that missing files and overlong names cause I/O errors.
#[test]
fn files_that_cannot_be_opened() {
    in_folder(|folder| {
        for path in [folder.join("missing.btf"), folder.join("x".repeat(300))] {
            assert_eq!(BtfReader::from_path(&path).unwrap_err().kind(), Io);
        }
    });
}

/// A source that serves `good` reads; further reads fail, or return a byte less than requested if
/// `gives_less`.
struct Failing {
    bytes: Bytes,
    reads: AtomicU64,
    good: u64,
    gives_less: bool,
}

impl ByteSource for Failing {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let is_good = self.reads.fetch_add(1, Ordering::Relaxed) < self.good;
        let bytes = self.bytes.read(range)?;
        match (is_good, self.gives_less) {
            (true, _) => Ok(bytes),
            (false, true) => Ok(bytes.slice(..bytes.len().saturating_sub(1))),
            (false, false) => Err(io::Error::other("the disk is gone")),
        }
    }
}

/// Checks that the reader returns an error if the n-th read fails, for each n.
#[test]
fn every_read_fails_once() {
    let bytes: Bytes = file(&[
        ForgedRecord::plain(),
        ForgedRecord::coo(&[3, 4], &[0, 1, 2, 3], &[5, 6]),
        ForgedRecord::dense(0, &[5000], 200),
    ])
    .into();
    let bytes = [&bytes[..], &[0; 5000]].concat();
    for gives_less in [false, true] {
        let wanted = if gives_less { Changed } else { Io };
        let mut good = 0;
        loop {
            let source = Arc::new(Failing {
                bytes: bytes.clone().into(),
                reads: AtomicU64::new(0),
                good,
                gives_less,
            });
            let work = || {
                let reader = BtfReader::open(source.clone(), &ReadOptions::default())?;
                reader.tensor(0)?;
                reader.sparse(1)?;
                reader.rows(2, 4000..4001)?;
                reader.lints().map(drop)
            };
            match work() {
                Ok(()) => break,
                Err(error) => assert_eq!(error.kind(), wanted, "{error}"),
            }
            good += 1;
        }
        assert!(good > 4);
    }
}

/// If a file grows after it was opened, the reader still uses the length at opening.
#[test]
fn a_file_that_grows() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        fs::write(&path, ForgedRecord::plain().file()).unwrap();
        let reader = BtfReader::from_path(&path).unwrap();
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(&[1; 100])
            .unwrap();
        assert_eq!(reader.lints().unwrap(), []);
    });
}

/// Checks that many threads can use one reader.
#[test]
fn many_threads() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        let tensors: Vec<_> = (0..50).map(|len| counting(DType::U16, &[len, 3])).collect();
        fs::write(&path, written(&tensors.iter().collect::<Vec<_>>())).unwrap();
        let reader = BtfReader::from_path(&path).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let (reader, tensors) = (&reader, &tensors);
                scope.spawn(move || {
                    for round in 0..500 {
                        let index = (round * 7 + thread * 13) % tensors.len();
                        assert_eq!(reader.tensor(index).unwrap(), tensors[index]);
                        assert_eq!(
                            reader.entries()[index].spec().as_ref(),
                            Some(tensors[index].spec())
                        );
                    }
                });
            }
        });
    });
}

/// Checks that tensors from bytes in memory, such as a mapping, are slices of these bytes.
#[test]
fn mapped_files_are_not_copied() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        let tensor = counting(DType::F64, &[100, 10]);
        fs::write(&path, written(&[&tensor])).unwrap();
        let mapped: Bytes = fs::read(&path).unwrap().into();
        let within = mapped.as_ptr_range();
        let reader = BtfReader::from_bytes(mapped.clone()).unwrap();
        for part in [reader.tensor(0).unwrap(), reader.rows(0, 50..60).unwrap()] {
            assert!(within.contains(&part.bytes().as_ptr()));
            assert!(part.view().as_slice::<f64>().is_ok());
        }
    });
}

#[test]
fn names_stand_beside_the_file() {
    in_folder(|folder| {
        let path = folder.join("a.btf");
        let names = Names::new(vec!["a/b".into(), "\u{1F600}\n\"".into()], Default::default()).unwrap();
        fs::write(Names::path_for(&path), names.to_json()).unwrap();
        let read = fs::read(folder.join("a.btf.names.json")).unwrap();
        assert_eq!(Names::from_json(&read, 2).unwrap(), names);
    });
}
