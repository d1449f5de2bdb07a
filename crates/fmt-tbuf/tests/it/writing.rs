//! Writing: refused input, pieces, failing sinks, memory, determinism, and round trips.

use std::io::{self, Write};

use fmt_core::{ErrorKind, Format, Plan, PlannedEntry, TensorReader, testing::read_everything};
use fmt_tbuf::{TbufWriter, TensorBuffers, WriteOptions};
use proptest::prelude::*;
use tensor_core::{DType, Shape, Tensor, TensorSpec};

use crate::support::{counting, open, spec, tensor, written};

/// A sink that accepts at most `at_a_time` bytes per call and `room` bytes in total, and then fails.
#[derive(Debug, Default)]
struct Sink {
    bytes: Vec<u8>,
    room: usize,
    at_a_time: usize,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.at_a_time).min(self.room - self.bytes.len());
        if len == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A sink that counts the bytes written.
#[derive(Default)]
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Of three tensors of 2 GiB each, the third would start at 4 GiB, so all are refused before anything is
/// written. Two tensors are accepted.
#[test]
fn more_than_32_bits_can_place() {
    let entry = |name: &str| PlannedEntry::dense(name, spec(DType::U8, &[1 << 31]));
    let plan = |names: &[&str]| Plan {
        entries: names.iter().map(|name| entry(name)).collect(),
        ..Plan::default()
    };
    let mut sink = Counter::default();
    let error = TensorBuffers
        .create(Box::new(&mut sink), plan(&["a", "b", "c"]))
        .map(drop)
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.tensor(), error.broken_rule()),
        (ErrorKind::TooLarge, Some("c"), Some("T4"))
    );
    assert_eq!(sink.0, 0);

    // Without a plan, the third tensor is refused when it is written, and the file can still be finished.
    let mut writer = TbufWriter::new(Counter::default(), WriteOptions::default()).unwrap();
    let piece = vec![0; 64 << 20];
    for name in ["a", "b"] {
        writer.begin(name, &spec(DType::U8, &[1 << 31])).unwrap();
        for _ in 0..32 {
            writer.write(&piece).unwrap();
        }
    }
    let error = writer.begin("c", &spec(DType::U8, &[1])).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::TooLarge, Some("T4"))
    );
    assert!(writer.finish().unwrap().0 > 1 << 32);
}

#[test]
fn a_sink_without_room() {
    let tensors = [
        ("a", counting(DType::F32, &[3])),
        ("b", counting(DType::U8, &[100])),
    ];
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let whole = written(WriteOptions::default(), &named);
    for room in 0..=whole.len() {
        let mut sink = Sink {
            room,
            at_a_time: 7,
            ..Sink::default()
        };
        let mut writer = TbufWriter::new(&mut sink, WriteOptions::default()).unwrap();
        let result = named
            .iter()
            .try_for_each(|(name, tensor)| writer.tensor(name, tensor));
        if let Err(error) = &result {
            assert_eq!(error.kind(), ErrorKind::Io);
            // After a failed write, no later call completes the file.
            let finished = writer.finish();
            assert!(finished.is_err());
        } else {
            let finished = writer.finish().map(drop);
            assert_eq!(finished.is_ok(), room == whole.len(), "{room}");
        }
        assert_eq!(sink.bytes, whole[..room]);
    }
}

#[test]
fn a_sink_that_takes_a_byte_at_a_time() {
    let a = counting(DType::F32, &[3]);
    let mut sink = Sink {
        room: usize::MAX,
        at_a_time: 1,
        ..Sink::default()
    };
    let mut writer = TbufWriter::new(&mut sink, WriteOptions::default()).unwrap();
    writer.tensor("a", &a).unwrap();
    writer.finish().unwrap();
    assert_eq!(sink.bytes, written(WriteOptions::default(), &[("a", &a)]));
}

/// After a power failure, a part of the file may be missing on disk and read as zeros. Such a file is
/// invalid, unless only tensor data is missing.
#[test]
fn torn_files() {
    let tensors: Vec<_> = (0..40)
        .map(|number| (format!("tensor.{number}"), counting(DType::F32, &[20])))
        .collect();
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
    let whole = written(WriteOptions::default(), &named);
    let original = open(&whole).unwrap();
    let index = original.index_range().start as usize;
    for sector in (0..whole.len()).step_by(512) {
        let mut torn = whole.clone();
        let end = (sector + 512).min(whole.len());
        torn[sector..end].fill(0);
        let opened = open(&torn);
        if sector > 0 && end <= index {
            assert_eq!(opened.unwrap().entries(), original.entries());
        } else if sector == 0 || end == whole.len() {
            assert!(opened.is_err(), "sector at {sector}");
        } else if let Ok(reader) = opened {
            // An index with zeroed parts may be valid, but never leads out of bounds.
            read_everything(&reader);
        }
    }
}

#[test]
fn what_cannot_be_written_leaves_no_trace() {
    let mut sink = Sink {
        room: usize::MAX,
        at_a_time: usize::MAX,
        ..Sink::default()
    };
    let mut writer = TbufWriter::new(&mut sink, WriteOptions::default()).unwrap();
    let scalar = spec(DType::U8, &[]);
    assert_eq!(
        writer.begin("a\0b", &scalar).unwrap_err().kind(),
        ErrorKind::BadName
    );
    assert_eq!(
        writer.begin("a", &spec(DType::F16, &[])).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(writer.write(&[1]).unwrap_err().kind(), ErrorKind::SizeMismatch);
    drop(writer);
    assert_eq!(sink.bytes, []);

    let twice = Plan {
        entries: ["a", "b", "a"]
            .map(|name| PlannedEntry::dense(name, scalar.clone()))
            .to_vec(),
        ..Plan::default()
    };
    let error = TensorBuffers
        .create(Box::new(&mut sink), twice)
        .map(drop)
        .unwrap_err();
    assert_eq!((error.kind(), error.tensor()), (ErrorKind::Duplicate, Some("a")));
    assert_eq!(sink.bytes, []);
}

#[test]
fn too_few_and_too_many_bytes() {
    let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.begin("a", &spec(DType::U8, &[4])).unwrap();
    writer.write(&[1, 2]).unwrap();
    let error = writer.begin("b", &spec(DType::U8, &[1])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor 'a': bytes of the tensor are missing: expected 4, found 2"
    );
    let error = writer.write(&[3, 4, 5]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "more bytes than the tensors have: expected at most 2, found 3"
    );
    writer.write(&[3, 4]).unwrap();
    let file = writer.finish().unwrap();
    assert_eq!(tensor(&file, "a").unwrap().bytes()[..], [1, 2, 3, 4]);

    let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.begin("a", &spec(DType::U8, &[4])).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::SizeMismatch);
}

#[test]
fn the_same_tensors_give_the_same_bytes() {
    let write = || {
        let tensors: Vec<_> = (0..50)
            .map(|number| (format!("t{number}"), counting(DType::I16, &[number])))
            .collect();
        let named: Vec<_> = tensors.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
        written(WriteOptions::default(), &named)
    };
    let other = std::thread::spawn(write).join().unwrap();
    assert_eq!(write(), other);
}

/// The writer holds only the index and one piece in memory, whatever the amount of data.
#[test]
fn writing_takes_no_memory_for_data() {
    let piece = vec![7; 1 << 20];
    let measured = allocation_counter::measure(|| {
        let mut writer = TbufWriter::new(Counter::default(), WriteOptions::default()).unwrap();
        for number in 0..20 {
            writer
                .begin(&format!("tensor {number}"), &spec(DType::U8, &[8 << 20]))
                .unwrap();
            for _ in 0..8 {
                writer.write(&piece).unwrap();
            }
        }
        assert!(writer.finish().unwrap().0 > 160 << 20);
    });
    assert!(measured.bytes_max < 64 << 10, "{measured:?}");
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let dtypes = DType::ALL
        .into_iter()
        .filter(|dtype| !matches!(dtype, DType::Bool | DType::F16 | DType::BF16));
    let dims = prop::collection::vec(0u64..5, 0..5);
    (prop::sample::select(dtypes.collect::<Vec<_>>()), dims).prop_flat_map(|(dtype, dims)| {
        let spec = TensorSpec::new(dtype, Shape::new(&dims).unwrap()).unwrap();
        let len = spec.byte_len() as usize;
        prop::collection::vec(any::<u8>(), len..=len)
            .prop_map(move |bytes| Tensor::new(spec.clone(), bytes).unwrap())
    })
}

proptest! {
    /// Files written in pieces of any size and with any alignment are read back.
    #[test]
    fn what_is_written_is_read_again(
        tensors in prop::collection::btree_map("[^\0]{1,12}", any_tensor(), 0..12),
        model in prop::option::of(".{0,20}"),
        alignment in (0u32..9).prop_map(|log| 1 << log),
        piece in 1usize..50,
    ) {
        let mut plan = Plan::default();
        plan.metadata.extend(model.clone().map(|model| ("model".to_owned(), model)));
        plan.entries = tensors.iter().map(|(name, tensor)| PlannedEntry::dense(name, tensor.spec().clone())).collect();
        let options = WriteOptions { alignment, ..WriteOptions::default() };
        let mut writer = TbufWriter::planned(Vec::new(), &plan, options.clone()).unwrap();
        let bytes: Vec<u8> = tensors.values().flat_map(|tensor| tensor.bytes().to_vec()).collect();
        for piece in bytes.chunks(piece) {
            writer.write(piece).unwrap();
        }
        let file = writer.finish().unwrap();

        let reader = open(&file).unwrap();
        prop_assert_eq!(reader.entries().len(), tensors.len());
        prop_assert_eq!(reader.model(), model.as_deref());
        for (name, tensor) in &tensors {
            let index = reader.find(name).unwrap();
            prop_assert_eq!(&reader.tensor(index).unwrap(), tensor);
            prop_assert_eq!(reader.entries()[index].range.start % u64::from(alignment), 0);
        }
        read_everything(&reader);

        // Writing tensors separately gives the same file as writing a plan.
        let mut one_by_one = TbufWriter::new(Vec::new(), options).unwrap();
        if let Some(model) = &model {
            one_by_one.set_model(model).unwrap();
        }
        for (name, tensor) in &tensors {
            one_by_one.tensor(name, tensor).unwrap();
        }
        prop_assert_eq!(one_by_one.finish().unwrap(), file);
    }
}
