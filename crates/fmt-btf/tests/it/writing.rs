//! Writers: refused input, failing sinks, and deterministic output.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use fmt_btf::{Btf, BtfReader, BtfWriter, RecordSpec, WriteOptions};
use fmt_core::{AtomicFile, ErrorKind::*, Format, Plan, PlannedEntry, TensorReader};
use tensor_core::{DType, SparseCoo, Tensor};

use crate::support::{counting, open, sparse, spec, words, written};

/// Returns a dense tensor of each width, some of them empty, and sparse tensors.
fn everything() -> (Vec<Tensor>, Vec<SparseCoo>) {
    let tensors = vec![
        counting(DType::I8, &[3]),
        counting(DType::F64, &[0, 4]),
        counting(DType::I16, &[5, 1]),
        counting(DType::F32, &[]),
        counting(DType::U64, &[2, 3]),
    ];
    let sparse = vec![
        sparse(&[3, 4], &[0, 1, 2, 3], &[5, 6]),
        sparse(&[3, 4], &[], &[]),
        sparse(&[], &[], &[9]),
        sparse(&[7], &[6], &[-1]),
    ];
    (tensors, sparse)
}

fn records() -> Vec<RecordSpec> {
    let (tensors, sparse) = everything();
    let tensors = tensors.iter().map(RecordSpec::from);
    tensors.chain(sparse.iter().map(RecordSpec::from)).collect()
}

/// Returns the bytes of all tensors, in the order in which they are written.
fn all_bytes() -> Vec<u8> {
    let (tensors, sparse) = everything();
    let mut bytes: Vec<u8> = tensors
        .iter()
        .flat_map(|tensor| tensor.bytes().to_vec())
        .collect();
    for sparse in sparse {
        bytes.extend(sparse.indices().bytes());
        bytes.extend(sparse.values().bytes());
    }
    bytes
}

fn whole() -> Vec<u8> {
    let (tensors, sparse) = everything();
    let mut writer = BtfWriter::new(Vec::new(), records(), WriteOptions::default()).unwrap();
    for tensor in &tensors {
        writer.tensor(tensor).unwrap();
    }
    for sparse in &sparse {
        writer.sparse(sparse).unwrap();
    }
    writer.finish().unwrap()
}

/// Checks that pieces of any length, from any thread, give the same file.
#[test]
fn the_same_tensors_give_the_same_bytes() {
    let (whole, bytes) = (whole(), all_bytes());
    assert_eq!(open(&whole).unwrap().len(), 9);
    // A lint (B2) reports the unsigned dtype, which the specification lacks.
    assert_eq!(open(&whole).unwrap().lints().unwrap().len(), 1); // u64
    let threads = [1, 2, 3, 5, 7, 8, 11, 64, bytes.len()].map(|piece| {
        let bytes = bytes.clone();
        std::thread::spawn(move || {
            let mut writer = BtfWriter::new(Vec::new(), records(), WriteOptions::default()).unwrap();
            for piece in bytes.chunks(piece) {
                writer.write(piece).unwrap();
                writer.write(&[]).unwrap();
            }
            writer.finish().unwrap()
        })
    });
    for thread in threads {
        assert!(thread.join().unwrap() == whole);
    }
}

/// A sink that accepts at most `at_once` bytes per call and `room` bytes in total, and then fails.
struct Sink {
    taken: Vec<u8>,
    room: usize,
    at_once: usize,
}

impl Write for &mut Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.at_once).min(self.room);
        if len == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.taken.extend(&bytes[..len]);
        self.room -= len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

fn write_to(sink: &mut Sink) -> Result<u64, fmt_core::Error> {
    let (tensors, sparse) = everything();
    let mut plan = Plan::default();
    for tensor in &tensors {
        let name = plan.entries.len().to_string();
        plan.entries
            .push(PlannedEntry::dense(name, tensor.spec().clone()));
    }
    for sparse in &sparse {
        let name = plan.entries.len().to_string();
        plan.entries
            .push(PlannedEntry::coo(name, sparse.spec().clone(), sparse.nnz()));
    }
    let mut writer = Btf.create(Box::new(sink), plan)?;
    for piece in all_bytes().chunks(13) {
        writer.write(piece)?;
    }
    writer.finish()
}

/// Checks that writing fails if the sink becomes full after any number of bytes.
#[test]
fn a_sink_that_is_full_anywhere() {
    let whole = whole();
    for room in 0..=whole.len() {
        let mut sink = Sink {
            taken: Vec::new(),
            room,
            at_once: usize::MAX,
        };
        let error = write_to(&mut sink).unwrap_err();
        assert_eq!(error.kind(), Io);
        assert!(whole.starts_with(&sink.taken));
    }
}

#[test]
fn a_sink_that_takes_a_byte_at_a_time() {
    let whole = whole();
    let mut sink = Sink {
        taken: Vec::new(),
        room: usize::MAX,
        at_once: 1,
    };
    assert_eq!(write_to(&mut sink).unwrap(), whole.len() as u64);
    assert!(sink.taken == whole);
}

/// Checks that too few or too many bytes are refused.
#[test]
fn bytes_that_do_not_fit_the_plan() {
    let bytes = all_bytes();
    let writer = || BtfWriter::new(Vec::new(), records(), WriteOptions::default()).unwrap();
    for len in 0..bytes.len() {
        let mut writer = writer();
        writer.write(&bytes[..len]).unwrap();
        assert_eq!(writer.finish().unwrap_err().kind(), SizeMismatch);
    }
    let mut writer = writer();
    writer.write(&bytes).unwrap();
    assert_eq!(writer.write(&[0]).unwrap_err().kind(), SizeMismatch);
    assert!(writer.finish().unwrap() == whole());
}

#[test]
fn tensors_that_were_not_announced() {
    let (a, b) = (counting(DType::I8, &[3]), counting(DType::I8, &[3, 1]));
    let mut writer = BtfWriter::new(Vec::new(), vec![(&a).into()], WriteOptions::default()).unwrap();
    let error = writer.tensor(&b).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tensor is not the next one that was declared: expected i8[3], found i8[3, 1]"
    );
    writer.write(&a.bytes()[..1]).unwrap();
    let error = writer.tensor(&a).unwrap_err();
    assert!(
        error.to_string().contains("expected more bytes of tensor 0"),
        "{error}"
    );
    writer.write(&a.bytes()[1..]).unwrap();
    let error = writer.tensor(&a).unwrap_err();
    assert!(error.to_string().contains("expected no more tensors"), "{error}");
    assert!(writer.finish().unwrap() == written(&[&a]));

    let matrix = sparse(&[3, 4], &[0, 1, 2, 3], &[5, 6]);
    let mut writer = BtfWriter::new(Vec::new(), vec![(&matrix).into()], WriteOptions::default()).unwrap();
    assert!(writer.sparse(&sparse(&[3, 4], &[0, 1], &[5])).is_err());
    writer.write(&words(&[0])).unwrap();
    assert!(
        writer
            .sparse(&matrix)
            .unwrap_err()
            .to_string()
            .contains("more bytes")
    );
}

/// Checks that a file can be replaced while its tensors are read from it.
#[test]
fn saving_over_the_file_that_is_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.btf");
    let tensor = counting(DType::F64, &[1000]);
    std::fs::write(&path, written(&[&tensor])).unwrap();
    let reader = BtfReader::from_path(&path).unwrap();
    let read = reader.tensor(0).unwrap();
    let records = vec![RecordSpec::from(&read); 2];
    let file = AtomicFile::create(&path).unwrap();
    let mut writer = BtfWriter::new(file, records, WriteOptions::default()).unwrap();
    writer.tensor(&read).unwrap();
    writer.tensor(&reader.tensor(0).unwrap()).unwrap();
    writer.finish().unwrap().persist().unwrap();
    assert_eq!(reader.tensor(0).unwrap(), tensor);
    let saved = BtfReader::from_path(&path).unwrap();
    assert_eq!(
        [saved.tensor(0).unwrap(), saved.tensor(1).unwrap()],
        [tensor.clone(), tensor]
    );
}

/// Memory does not grow with the amount of data: pieces are passed to the sink immediately, and only the
/// table is kept.
#[test]
fn bytes_are_not_gathered() {
    struct Count(Arc<AtomicUsize>);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.fetch_add(bytes.len(), Ordering::Relaxed);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let count = Arc::new(AtomicUsize::new(0));
    let record = RecordSpec::dense(spec(DType::I64, &[1 << 20]));
    let mut writer = BtfWriter::new(Count(count.clone()), vec![record], WriteOptions::default()).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 0);
    let piece = vec![0; 1 << 16];
    for pieces in 1..=128 {
        writer.write(&piece).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 40 + (pieces << 16));
    }
    writer.finish().unwrap();
}
