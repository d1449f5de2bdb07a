//! Written files are read back unchanged.

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{Plan, PlannedEntry, TensorReader, TensorWriter, Verification, testing::read_everything};
use fmt_ztensor::{
    CborValue, ChecksumKind, Compression, CustomField, TensorOptions, WriteOptions, ZtensorReader,
    ZtensorWriter,
};
use proptest::prelude::*;
use tensor_core::{DType, Shape, Tensor, TensorSpec};

/// A tensor and its storage options.
#[derive(Clone, Debug)]
struct Case {
    name: String,
    tensor: Tensor,
    options: TensorOptions,
    /// Number of bytes per write.
    pieces: usize,
}

fn value() -> impl Strategy<Value = CborValue> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(CborValue::from),
        any::<f64>().prop_map(CborValue::from),
        any::<bool>().prop_map(CborValue::from),
        ".{0,10}".prop_map(|text| CborValue::from(&*text)),
        prop::collection::vec(any::<u8>(), 0..10).prop_map(|bytes| CborValue::from(&*bytes)),
    ];
    leaf.prop_recursive(4, 20, 4, |inner| {
        prop::collection::vec(inner, 0..4).prop_map(|items| {
            let mut cbor = vec![0x80 | items.len() as u8];
            items
                .iter()
                .for_each(|item| cbor.extend_from_slice(item.as_bytes()));
            CborValue::from_cbor(cbor).unwrap()
        })
    })
}

fn options() -> impl Strategy<Value = TensorOptions> {
    let compression = prop_oneof![
        Just(None),
        (1..6, 4096u64..9000)
            .prop_map(|(level, frames)| Some(Compression::level(level).with_frames_of(frames))),
    ];
    let checksum = prop_oneof![
        Just(None),
        Just(Some(ChecksumKind::Crc32c)),
        Just(Some(ChecksumKind::Sha256))
    ];
    let fields = prop::collection::btree_map("x[a-z]{0,5}", value(), 0..3);
    (compression, checksum, any::<bool>(), fields).prop_map(|(compression, checksum, big_endian, fields)| {
        let fields = fields
            .into_iter()
            .map(|(key, value)| CustomField::new(key, value).unwrap());
        TensorOptions {
            compression,
            checksum,
            big_endian: big_endian && compression.is_none(),
            fields: fields.collect(),
        }
    })
}

fn case() -> impl Strategy<Value = Case> {
    let spec = (
        prop::sample::select(&DType::ALL[..]),
        prop::collection::vec(0u64..6, 0..4),
    );
    ("[a-zä.]{1,12}", spec, options(), 1usize..40, any::<u8>()).prop_map(
        |(name, (dtype, dims), options, pieces, seed)| {
            let spec = TensorSpec::new(dtype, Shape::new(&dims).unwrap()).unwrap();
            let bytes: Vec<u8> = (0..spec.byte_len())
                .map(|at| (at as u8).wrapping_mul(31) ^ seed)
                .collect();
            Case {
                name,
                tensor: Tensor::new(spec, bytes).unwrap(),
                options,
                pieces,
            }
        },
    )
}

fn write(cases: &[Case], options: WriteOptions) -> Vec<u8> {
    let mut writer = ZtensorWriter::new(Vec::new(), options).unwrap();
    for case in cases {
        writer
            .begin_with(&case.name, case.tensor.spec(), &case.options)
            .unwrap();
        for piece in case.tensor.bytes().chunks(case.pieces) {
            writer.write(piece).unwrap();
        }
    }
    writer.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn tensors_come_back(cases in prop::collection::vec(case(), 0..6), alignment in 6u32..9, strict_spec: bool) {
        let mut cases = cases;
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        cases.dedup_by(|a, b| a.name == b.name);
        let options = WriteOptions { alignment: 1 << alignment, strict_spec, ..WriteOptions::default() };
        let file = write(&cases, options.clone());
        prop_assert!(file == write(&cases, options), "not deterministic");
        let reader = ZtensorReader::from_bytes(file).unwrap();
        prop_assert_eq!(reader.entries().len(), cases.len());
        let contents = read_everything(&reader);
        for (index, (case, (_, read))) in cases.iter().zip(contents).enumerate() {
            let entry = &reader.entries()[index];
            prop_assert_eq!(reader.find(&case.name), Some(index));
            prop_assert_eq!(read.unwrap(), &case.tensor.bytes()[..]);
            prop_assert_eq!(&reader.fields(index), &case.options.fields);
            prop_assert_eq!(entry.range.start % (1 << alignment), 0);
            prop_assert_eq!(entry.checksum.is_some(), case.options.checksum.is_some());
            let is_checked = case.options.checksum.is_some() || case.options.compression.is_some();
            let expected = if is_checked { Verification::Ok } else { Verification::Unchecked };
            prop_assert_eq!(reader.verify(index).unwrap(), expected);
        }
        prop_assert!(reader.lints().unwrap().is_empty());
    }

    /// Checks that a planned file can be written in pieces that end anywhere.
    #[test]
    fn planned_tensors_come_back(cases in prop::collection::vec(case(), 0..6), piece in 1usize..100) {
        let mut cases = cases;
        cases.sort_by(|a, b| a.name.cmp(&b.name));
        cases.dedup_by(|a, b| a.name == b.name);
        let entries = cases.iter().map(|case| PlannedEntry::dense(&case.name, case.tensor.spec().clone()));
        let plan = Plan { entries: entries.collect(), ..Plan::default() };
        let mut file = Vec::new();
        let mut writer: Box<dyn TensorWriter> = Box::new(ZtensorWriter::planned(&mut file, &plan, WriteOptions::default()).unwrap());
        let all: Vec<u8> = cases.iter().flat_map(|case| case.tensor.bytes().to_vec()).collect();
        all.chunks(piece).for_each(|piece| writer.write(piece).unwrap());
        let len = writer.finish().unwrap();
        prop_assert_eq!(len, file.len() as u64);
        let reader = ZtensorReader::from_bytes(file).unwrap();
        for (index, case) in cases.iter().enumerate() {
            prop_assert_eq!(&reader.tensor(index).unwrap(), &case.tensor);
        }
    }

    #[test]
    fn values_come_back(value in value()) {
        let cbor: ciborium::Value = ciborium::from_reader(value.as_bytes()).unwrap();
        let mut again = Vec::new();
        ciborium::into_writer(&cbor, &mut again).unwrap();
        prop_assert_eq!(CborValue::from_cbor(again).unwrap().to_string(), value.to_string());
    }
}

/// Tests a tensor that is large enough for several threads and frames, and for a seek table.
#[test]
fn large_compressed_tensors() {
    let elements: Vec<u32> = (0..3_000_000u32).map(|at| at.wrapping_mul(at) >> 9).collect();
    let tensor = Tensor::from_vec(Shape::new(&[3000, 1000]).unwrap(), elements).unwrap();
    let options = TensorOptions {
        compression: Some(Compression::level(1)),
        ..TensorOptions::default()
    };
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.begin_with("t", tensor.spec(), &options).unwrap();
    tensor
        .bytes()
        .chunks(700_001)
        .for_each(|piece| writer.write(piece).unwrap());
    let file = Bytes::from(writer.finish().unwrap());
    for threads in [1, 2, 5] {
        let reader = ZtensorReader::from_bytes(file.clone())
            .unwrap()
            .with_threads(threads);
        assert!(reader.tensor(0).unwrap() == tensor);
        for rows in [0..1, 2999..3000, 100..101, 250..800, 0..2999, 7..7] {
            assert!(reader.rows(0, rows.clone()).unwrap() == tensor.rows(rows).unwrap());
        }
    }
    // Reading a row reads only the row's frame, the table and the frame headers, not the whole blob.
    let counting = Arc::new(Counting {
        bytes: file,
        read: std::sync::atomic::AtomicU64::new(0),
    });
    let reader = ZtensorReader::open(counting.clone(), &Default::default()).unwrap();
    let before = counting.read.load(std::sync::atomic::Ordering::Relaxed);
    reader.rows(0, 1500..1501).unwrap();
    let read = counting.read.load(std::sync::atomic::Ordering::Relaxed) - before;
    let stored = reader.entries()[0].stored_size();
    assert!(read < stored / 8, "{read} of {stored}");
}

/// Tests tensors that are large enough for several threads to read and hash them.
#[test]
fn large_raw_tensors() {
    for (len, big_endian) in [(4 << 20, false), ((4 << 20) + 8, false), ((13 << 20) + 8, true)] {
        let bytes: Vec<u8> = (0..len).map(|at: u64| ((at * at) >> 5) as u8).collect();
        let spec = TensorSpec::new(DType::F64, Shape::vector(len / 8)).unwrap();
        let tensor = Tensor::new(spec, bytes).unwrap();
        let options = TensorOptions {
            big_endian,
            ..TensorOptions::default()
        };
        let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
        writer.tensor_with("t", &tensor, &options).unwrap();
        let mut file = writer.finish().unwrap();
        let read = |file: &[u8], threads| {
            let reader = ZtensorReader::from_bytes(file.to_vec())
                .unwrap()
                .with_threads(threads);
            let mut buffer = vec![0; len as usize];
            reader
                .read_into(0, &mut buffer)
                .map(|()| buffer)
                .map_err(|error| error.kind())
        };
        for threads in [1, 2, 7] {
            assert!(read(&file, threads).unwrap() == tensor.bytes()[..]);
        }
        file[64 + len as usize - 1] ^= 1;
        for threads in [1, 2, 7] {
            assert_eq!(read(&file, threads), Err(fmt_core::ErrorKind::Corrupt));
        }
    }
}

struct Counting {
    bytes: Bytes,
    read: std::sync::atomic::AtomicU64,
}

impl fmt_core::ByteSource for Counting {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, range: std::ops::Range<u64>) -> std::io::Result<Bytes> {
        self.read
            .fetch_add(range.end - range.start, std::sync::atomic::Ordering::Relaxed);
        fmt_core::ByteSource::read(&self.bytes, range)
    }
}

/// Checks that the number of threads does not change the bytes of a compressed file.
#[test]
fn compressed_by_any_number_of_threads() {
    let bytes: Vec<u8> = (0..9_000_001_u64).map(|at| (at * at / 977) as u8).collect();
    let spec = |len| TensorSpec::new(DType::U8, Shape::vector(len)).unwrap();
    let write = |threads, frame_bytes, piece: usize| {
        let compression = Compression::level(1)
            .with_frames_of(frame_bytes)
            .with_threads(threads);
        let mut options = WriteOptions::default();
        options.tensors.compression = Some(compression);
        let mut file = Vec::new();
        let mut writer = ZtensorWriter::new(&mut file, options).unwrap();
        for len in [9_000_001, 100, 0, 8 << 20] {
            writer.begin(&len.to_string(), &spec(len)).unwrap();
            bytes[..len as usize]
                .chunks(piece)
                .for_each(|piece| writer.write(piece).unwrap());
        }
        writer.finish().unwrap();
        file
    };
    for (frame_bytes, piece) in [(1 << 20, 1 << 20), (300_000, 70_001), (5 << 20, 1 << 24)] {
        let alone = write(1, frame_bytes, piece);
        for threads in [0, 2, 3, 8] {
            assert!(write(threads, frame_bytes, piece) == alone, "{threads} threads");
        }
        let reader = ZtensorReader::from_bytes(alone).unwrap();
        for (index, entry) in reader.entries().iter().enumerate() {
            let len = entry.shape.element_count() as usize;
            assert_eq!(reader.tensor(index).unwrap().bytes(), &bytes[..len]);
        }
    }
}

/// Dropping the writer stops threads that are still compressing.
#[test]
fn a_compressed_file_that_is_given_up() {
    let spec = TensorSpec::new(DType::U8, Shape::vector(64 << 20)).unwrap();
    let mut options = WriteOptions::default();
    options.tensors.compression = Some(Compression::level(3).with_threads(3));
    let mut writer = ZtensorWriter::new(Vec::new(), options).unwrap();
    writer.begin("w", &spec).unwrap();
    writer.write(&vec![7; 20 << 20]).unwrap();
    drop(writer);
}

/// The checksum does not depend on the size of the writes. When a tensor is written in one call, another
/// thread hashes it concurrently.
#[test]
fn checksums_are_those_of_the_bytes_however_they_come() {
    let bytes: Vec<u8> = (0..20_000_001_u64).map(|at| (at * at / 977) as u8).collect();
    let spec = TensorSpec::new(DType::U8, Shape::vector(bytes.len() as u64)).unwrap();
    for checksum in [ChecksumKind::Crc32c, ChecksumKind::Sha256] {
        let write = |piece: usize| {
            let mut options = WriteOptions::default();
            options.tensors.checksum = Some(checksum);
            let mut file = Vec::new();
            let mut writer = ZtensorWriter::new(&mut file, options).unwrap();
            writer.begin("w", &spec).unwrap();
            bytes.chunks(piece).for_each(|piece| writer.write(piece).unwrap());
            writer.finish().unwrap();
            file
        };
        let file = write(100_001);
        assert!(write(9 << 20) == file);
        assert!(write(bytes.len()) == file);
        let reader = ZtensorReader::from_bytes(file).unwrap();
        assert_eq!(reader.verify(0).unwrap(), Verification::Ok);
    }
}
