//! Files on disk: changes by other processes, and the state after failed writes.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
    sync::Arc,
    thread,
};

use bytes::Bytes;
use fmt_core::{AtomicFile, ByteSource, ErrorKind, ReadOptions, TensorReader, testing::read_everything};
use fmt_ztensor::{
    CborValue, Compression, CustomField, TensorOptions, WriteOptions, ZtensorEditor, ZtensorReader,
    ZtensorWriter, recover,
};
use tensor_core::{Shape, Tensor};

use crate::support::*;

fn numbers(from: u32, count: u32) -> Tensor {
    Tensor::from_vec(Shape::vector(count.into()), (from..from + count).collect()).unwrap()
}

/// Returns a file of three tensors: raw, big-endian and compressed.
fn sample_file() -> Vec<u8> {
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.tensor("raw", &numbers(1, 1000)).unwrap();
    let big = TensorOptions {
        big_endian: true,
        fields: vec![CustomField::new("unit", CborValue::from("m")).unwrap()],
        ..TensorOptions::default()
    };
    writer.tensor_with("big", &numbers(2, 1000), &big).unwrap();
    let compressed = TensorOptions {
        compression: Some(Compression::default()),
        ..TensorOptions::default()
    };
    writer
        .tensor_with("compressed", &numbers(3, 1000), &compressed)
        .unwrap();
    writer.finish().unwrap()
}

fn check_sample(reader: &dyn TensorReader) {
    for (index, tensor) in [numbers(1, 1000), numbers(2, 1000), numbers(3, 1000)]
        .into_iter()
        .enumerate()
    {
        assert!(reader.tensor(index).unwrap() == tensor);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn fs_02_truncated_after_opening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    for len in [0, 64, 100, 4096] {
        fs::write(&path, sample_file()).unwrap();
        let reader = ZtensorReader::from_path(&path).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(len)
            .unwrap();
        let mut buffer = vec![0; 4000];
        let kinds = [
            reader.tensor(2).unwrap_err().kind(),
            reader.rows(1, 990..1000).unwrap_err().kind(),
            reader.read_into(1, &mut buffer).unwrap_err().kind(),
            reader.verify(2).unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::Changed; 4], "{len}");
        assert!(ZtensorReader::from_path(&path).is_err());
    }
}

#[test]
fn overwritten_while_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    fs::write(&path, sample_file()).unwrap();
    let reader = ZtensorReader::from_path(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xee; 9000], 64).unwrap();
    for index in 0..3 {
        assert_eq!(reader.tensor(index).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(reader.verify(index).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn fs_11_replaced_and_grown_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    fs::write(&path, sample_file()).unwrap();
    let old = ZtensorReader::from_path(&path).unwrap();
    File::options()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"more")
        .unwrap();
    check_sample(&old);
    assert!(ZtensorReader::from_path(&path).is_err());
    let mut writer = ZtensorWriter::new(AtomicFile::create(&path).unwrap(), WriteOptions::default()).unwrap();
    writer.tensor("new", &numbers(9, 9)).unwrap();
    writer.finish().unwrap().persist().unwrap();
    check_sample(&old);
    assert_eq!(ZtensorReader::from_path(&path).unwrap().entries()[0].name, "new");
}

#[test]
fn saved_over_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    fs::write(&path, sample_file()).unwrap();
    let reader = ZtensorReader::from_path(&path).unwrap();
    let mut writer = ZtensorWriter::new(AtomicFile::create(&path).unwrap(), WriteOptions::default()).unwrap();
    for (index, entry) in reader.entries().iter().enumerate() {
        writer
            .tensor(&entry.name, &reader.tensor(index).unwrap())
            .unwrap();
    }
    writer.finish().unwrap().persist().unwrap();
    check_sample(&reader);
    check_sample(&ZtensorReader::from_path(&path).unwrap());
}

#[test]
fn fs_08_what_is_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink("loop", path("loop")).unwrap();
    let kind = |path: &Path| ZtensorReader::from_path(path).unwrap_err().kind();
    assert_eq!(kind(folder.path()), ErrorKind::NotAFile);
    assert_eq!(kind(Path::new("/dev/zero")), ErrorKind::NotAFile);
    assert_eq!(kind(&path("loop")), ErrorKind::Io);
    assert_eq!(kind(&path("absent")), ErrorKind::Io);
    assert_eq!(kind(&path(&"n".repeat(5000))), ErrorKind::Io);
}

/// Checks that a reader returns an error and no partial data if its source fails at the n-th read, for every
/// n.
#[test]
fn every_read_fails_once() {
    struct Failing {
        bytes: Bytes,
        left: std::sync::atomic::AtomicI64,
    }
    impl ByteSource for Failing {
        fn len(&self) -> u64 {
            self.bytes.len() as u64
        }
        fn read(&self, range: std::ops::Range<u64>) -> io::Result<Bytes> {
            if self.left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                return Err(io::Error::from_raw_os_error(5));
            }
            ByteSource::read(&self.bytes, range)
        }
    }
    let bytes = Bytes::from(sample_file());
    let mut failures = 0;
    for n in 0..30 {
        let source = Arc::new(Failing {
            bytes: bytes.clone(),
            left: n.into(),
        });
        match ZtensorReader::open(source, &ReadOptions::default()) {
            Err(error) => assert_eq!((error.kind(), n < 4), (ErrorKind::Io, true), "{n}: {error}"),
            Ok(reader) => {
                for (index, first) in [1u32, 2, 3].into_iter().enumerate() {
                    match reader.tensor(index) {
                        Ok(tensor) => assert!(tensor == numbers(first, 1000)),
                        Err(error) => {
                            failures += 1;
                            assert_eq!(error.kind(), ErrorKind::Io);
                            assert!(error.to_string().contains("os error 5"), "{error}");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(failures, 3);
}

#[test]
fn many_threads_on_one_reader() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    fs::write(&path, sample_file()).unwrap();
    let reader = ZtensorReader::from_path(&path).unwrap();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| (0..50).for_each(|_| check_sample(&reader)));
        }
    });
}

/// A sink with a capacity of `room` bytes that accepts at most `piece` bytes per write.
struct Full {
    room: usize,
    piece: usize,
    taken: Vec<u8>,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.piece).min(self.room - self.taken.len());
        self.taken.extend_from_slice(&bytes[..len]);
        if len == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(len)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Checks that writing fails if the sink becomes full after any number of bytes, and succeeds if the sink
/// accepts one byte at a time.
#[test]
fn wr_06_sinks_that_are_full_or_slow() {
    let write = |room: usize, piece: usize| {
        let sink = Full {
            room,
            piece,
            taken: Vec::new(),
        };
        let mut writer = ZtensorWriter::new(sink, WriteOptions::default())?;
        writer.tensor("raw", &numbers(1, 10))?;
        let compressed = TensorOptions {
            compression: Some(Compression::default()),
            ..TensorOptions::default()
        };
        writer.tensor_with("compressed", &numbers(2, 10), &compressed)?;
        writer.finish().map(|sink| sink.taken)
    };
    let whole = write(usize::MAX, usize::MAX).unwrap();
    assert_eq!(write(usize::MAX, 1).unwrap(), whole);
    for room in 0..whole.len() {
        assert_eq!(write(room, 100).unwrap_err().kind(), ErrorKind::Io, "{room}");
    }
    assert_eq!(write(whole.len(), 100).unwrap(), whole);
    // After a failure, every further call fails.
    let sink = Full {
        room: 70,
        piece: 100,
        taken: Vec::new(),
    };
    let mut writer = ZtensorWriter::new(sink, WriteOptions::default()).unwrap();
    assert!(writer.tensor("raw", &numbers(1, 10)).is_err());
    assert!(writer.finish().is_err());
}

#[test]
fn a_panic_on_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    fs::write(&path, sample_file()).unwrap();
    let writing = std::panic::catch_unwind(|| {
        let mut writer =
            ZtensorWriter::new(AtomicFile::create(&path).unwrap(), WriteOptions::default()).unwrap();
        writer.tensor("a", &numbers(1, 10)).unwrap();
        panic!("on the way");
    });
    assert!(writing.is_err());
    assert_eq!(names(folder.path()), ["a.zt"]);
    check_sample(&ZtensorReader::from_path(&path).unwrap());
}

/// Checks that an incompletely written file causes an error: truncated, with a zeroed sector, or with zeroed
/// data.
#[test]
fn torn_files() {
    let whole = sample_file();
    for len in 0..whole.len() {
        assert!(open(&whole[..len]).is_err(), "{len}");
    }
    let index_start = open(&whole).unwrap().index_range().start as usize;
    for sector in (0..whole.len()).step_by(512) {
        let mut torn = whole.clone();
        let end = torn.len().min(sector + 512);
        torn[sector..end].fill(0);
        let is_whole = open(&torn).is_ok_and(|reader| {
            let read = read_everything(&reader);
            read.iter().all(|(_, read)| read.is_ok())
        });
        assert!(!is_whole, "{sector}");
    }
    let mut torn = whole;
    torn[64..index_start].fill(0);
    let reader = open(&torn).unwrap();
    assert!((0..3).all(|index| reader.verify(index).is_err()));
}

/// The writer rejects what the format cannot store before it writes anything; see also the rules Z12, Z20 and
/// Z27.
#[test]
fn refused_before_the_first_byte() {
    let mut out = Vec::new();
    let mut writer = ZtensorWriter::new(&mut out, WriteOptions::default()).unwrap();
    assert_eq!(
        writer.tensor("a\0", &numbers(1, 1)).unwrap_err().kind(),
        ErrorKind::BadName
    );
    drop(writer);
    assert!(out.is_empty());
}

#[test]
fn z28_appending_and_editing_as_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    fs::write(&path, sample_file()).unwrap();
    let mut editor = ZtensorEditor::open(&path).unwrap();
    assert_eq!(
        editor.rename("raw", "big").unwrap_err().kind(),
        ErrorKind::Duplicate
    );
    assert_eq!(
        editor.rename("none", "x").unwrap_err().kind(),
        ErrorKind::OutOfBounds
    );
    assert_eq!(
        editor.rename("raw", "a\0").unwrap_err().kind(),
        ErrorKind::BadName
    );
    editor.rename("raw", "raw").unwrap();
    editor.rename("raw", "bare").unwrap();
    editor.rename("compressed", "raw").unwrap();
    editor
        .set_field("big", CustomField::new("unit", CborValue::from("km")).unwrap())
        .unwrap();
    editor
        .set_field("big", CustomField::new("rate", CborValue::from(0.5)).unwrap())
        .unwrap();
    editor
        .set_field("bare", CustomField::new("gone", CborValue::from(1)).unwrap())
        .unwrap();
    assert_eq!(
        editor.remove_field("bare", "gone").unwrap(),
        Some(CborValue::from(1))
    );
    assert_eq!(editor.remove_field("bare", "gone").unwrap(), None);
    let mut writer = editor.append().unwrap();
    writer.tensor("more", &numbers(4, 10)).unwrap();
    writer.finish().unwrap().persist().unwrap();

    let reader = ZtensorReader::from_path(&path).unwrap();
    check_sample(&reader);
    assert_eq!(reader.tensor(3).unwrap(), numbers(4, 10));
    let names: Vec<_> = reader.entries().iter().map(|entry| &*entry.name).collect();
    assert_eq!(names, ["bare", "big", "raw", "more"]);
    let fields = reader.fields(1);
    let fields: Vec<_> = fields
        .iter()
        .map(|field| (field.key(), field.value().to_string()))
        .collect();
    assert_eq!(
        fields,
        [("unit", r#""km""#.to_owned()), ("rate", "0.5".to_owned())]
    );
    assert!(reader.lints().unwrap().is_empty());
    assert!(reader.entries()[1].is_big_endian);
}

/// Checks that saving fails if a trainer replaces the checkpoint, by renaming another file, while an editor
/// is open. The new file has the same length and index, but different data.
#[test]
fn z28_a_checkpoint_that_took_the_files_name_meanwhile_stays() {
    type Save = fn(ZtensorEditor, &dyn Fn()) -> Result<(), fmt_core::Error>;
    let saves: [Save; 3] = [
        |editor, train| {
            train();
            editor.save()
        },
        |editor, train| {
            train();
            editor.save_in_place()
        },
        |editor, train| {
            let writer = editor.append()?;
            train();
            writer.finish()?.persist()
        },
    ];
    for save in saves {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.zt");
        fs::write(&path, sample_file()).unwrap();
        let mut newer = sample_file();
        newer[64] ^= 0xff;
        let train = || {
            let trained = folder.path().join("trained");
            fs::write(&trained, &newer).unwrap();
            fs::rename(&trained, &path).unwrap();
        };
        let mut editor = ZtensorEditor::open(&path).unwrap();
        editor.rename("raw", "renamed").unwrap();
        assert_eq!(save(editor, &train).unwrap_err().kind(), ErrorKind::Changed);
        assert!(fs::read(&path).unwrap() == newer);
        assert_eq!(names(folder.path()), ["a.zt"]);
    }
}

/// Rewriting an index keeps all its values, including unknown values, in this crate's encoding.
#[test]
fn z28_what_is_not_understood_survives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    let entries = [
        w().with("data_endianness", text("little"))
            .with("checksum", text("md5:00")),
        w().with("name", text("v"))
            .with("dtype", text("float8"))
            .with("layout", text("sparsecoo")),
        w().with("name", text("u"))
            .with("encoding", text("lz4"))
            .with("x", vec![0xc1, 0xfb, 0, 0, 0, 0, 0, 0, 0, 0]),
        w().with("name", text("t")).with("layout", vec![0x81, 0x01]),
    ];
    fs::write(&path, file_of(&W, &entries)).unwrap();
    ZtensorEditor::open(&path).unwrap().save().unwrap();
    let once = fs::read(&path).unwrap();
    // The editor sorts the known keys; the values are unchanged.
    let mut sorted = entries.clone();
    let order = [
        "name",
        "offset",
        "size",
        "dtype",
        "layout",
        "shape",
        "encoding",
        "data_endianness",
        "checksum",
        "x",
    ];
    for entry in &mut sorted {
        entry
            .0
            .sort_by_key(|(key, _)| order.iter().position(|known| text(known) == *key));
    }
    assert_eq!(once, file_of(&W, &sorted));
    ZtensorEditor::open(&path).unwrap().save().unwrap();
    assert_eq!(fs::read(&path).unwrap(), once);
}

#[test]
fn z28_appending_and_editing_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    let old = sample_file();
    fs::write(&path, &old).unwrap();
    let mut editor = ZtensorEditor::open(&path).unwrap();
    editor.rename("raw", "bare").unwrap();
    let mut writer = editor.append_in_place().unwrap();
    writer.tensor("more", &numbers(4, 100_000)).unwrap();
    assert_eq!(names(folder.path()), ["a.zt", "a.zt.append-journal"]);
    // A second editor cannot change the file at the same time.
    let other = ZtensorEditor::open(&path).and_then(ZtensorEditor::save_in_place);
    assert_eq!(
        other.unwrap_err().kind() == ErrorKind::Io,
        ZtensorReader::from_path(&path).is_ok()
    );
    writer.commit().unwrap();
    assert_eq!(names(folder.path()), ["a.zt"]);
    let new = fs::read(&path).unwrap();
    assert_eq!(new[..old.len()], old);
    let reader = ZtensorReader::from_path(&path).unwrap();
    check_sample(&reader);
    assert_eq!(reader.tensor(3).unwrap(), numbers(4, 100_000));
    assert_eq!(reader.entries()[0].name, "bare");
    // The old index is now unused space, which a lint reports.
    assert_eq!(reader.lints().unwrap().len(), 1);

    // An append without a commit leaves the file unchanged.
    let mut writer = ZtensorEditor::open(&path).unwrap().append_in_place().unwrap();
    writer.tensor("lost", &numbers(5, 1_000_000)).unwrap();
    drop(writer);
    assert!(fs::read(&path).unwrap() == new);
    assert_eq!(names(folder.path()), ["a.zt"]);
}

/// Checks that `recover` restores the old file after a power failure at any byte of a change in place.
#[test]
fn a_change_in_place_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    let old = file_of(&W, &[w()]);
    fs::write(&path, &old).unwrap();
    let mut writer = ZtensorEditor::open(&path).unwrap().append_in_place().unwrap();
    writer.tensor("more", &numbers(4, 10)).unwrap();
    writer.commit().unwrap();
    let new = fs::read(&path).unwrap();
    let journal = folder.path().join("a.zt.append-journal");
    for len in old.len()..=new.len() {
        fs::write(&path, &new[..len]).unwrap();
        fs::write(&journal, format!("{}\n", old.len())).unwrap();
        assert_eq!(recover(&path).unwrap(), (len - old.len()) as u64);
        assert!(fs::read(&path).unwrap() == old);
        assert!(!journal.exists());
    }
    assert_eq!(recover(&path).unwrap(), 0);
}
