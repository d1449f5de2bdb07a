//! Tests of the rules of docs/formats/ztensor.md that settle what the specification leaves open, except the
//! rules about hostile files.

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{ErrorKind, Format, Layout, Plan, PlannedEntry, ReadOptions, Sniff, TensorReader};
use fmt_ztensor::{
    CborValue, ChecksumKind, Compression, CustomField, TensorOptions, WriteOptions, Ztensor, ZtensorReader,
    ZtensorWriter,
};
use tensor_core::{DType, Shape, Tensor, TensorSpec};

use crate::support::*;

fn spec(dtype: DType, dims: &[u64]) -> TensorSpec {
    TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap()
}

fn floats() -> Tensor {
    Tensor::from_vec(Shape::vector(3), vec![1.0f32, 2.0, 3.0]).unwrap()
}

fn written(options: WriteOptions) -> Vec<u8> {
    let mut writer = ZtensorWriter::new(Vec::new(), options).unwrap();
    writer.tensor("w", &floats()).unwrap();
    writer.finish().unwrap()
}

fn unchecked() -> TensorOptions {
    TensorOptions {
        checksum: None,
        ..TensorOptions::default()
    }
}

/// Returns the error with which the writer rejects a tensor with these options, before it writes anything.
fn refused(options: &TensorOptions) -> (ErrorKind, Option<&'static str>, String) {
    let mut out = Vec::new();
    let mut writer = ZtensorWriter::new(&mut out, WriteOptions::default()).unwrap();
    let error = writer
        .begin_with("t", &spec(DType::F32, &[1]), options)
        .unwrap_err();
    drop(writer);
    assert!(out.is_empty());
    (error.kind(), error.broken_rule(), error.to_string())
}

#[test]
fn z1_layout_is_written_unless_the_specification_is_to_be_kept_to_the_letter() {
    let layout = w().with("checksum", text("crc32c:0x384DE783"));
    let strict = WriteOptions {
        strict_spec: true,
        ..WriteOptions::default()
    };
    assert_eq!(written(strict), one(&layout));
    let mut with_layout = layout;
    with_layout.0.insert(4, (text("layout"), text("dense")));
    assert_eq!(written(WriteOptions::default()), one(&with_layout));
    let sparse = open(&one(&w().with("layout", text("sparsecoo")))).unwrap();
    assert_eq!(
        sparse.entries()[0].layout,
        Layout::Unknown("sparsecoo".to_owned())
    );
    assert_eq!(sparse.tensor(0).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn z2_one_form_is_written() {
    let options = TensorOptions {
        big_endian: true,
        fields: vec![
            CustomField::new("z", CborValue::from(1000)).unwrap(),
            CustomField::new("a", CborValue::from("b")).unwrap(),
        ],
        ..unchecked()
    };
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.tensor_with("w", &floats(), &options).unwrap();
    let mut entry = w()
        .with("data_endianness", text("big"))
        .with("z", uint(1000))
        .with("a", text("b"));
    entry.0.insert(4, (text("layout"), text("dense")));
    let swapped = [0x3f, 0x80, 0, 0, 0x40, 0, 0, 0, 0x40, 0x40, 0, 0];
    assert_eq!(writer.finish().unwrap(), file_of(&swapped, &[entry]));
}

#[test]
fn z5_checksums_are_written_in_one_form() {
    let checksum = |kind| {
        let options = TensorOptions {
            checksum: Some(kind),
            ..TensorOptions::default()
        };
        let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
        writer.tensor_with("n", &Tensor::scalar(10u32), &options).unwrap();
        writer
            .tensor_with(
                "e",
                &Tensor::new(spec(DType::U8, &[0]), Bytes::new()).unwrap(),
                &options,
            )
            .unwrap();
        let reader = ZtensorReader::from_bytes(writer.finish().unwrap()).unwrap();
        let entries = reader.entries();
        [0, 1].map(|index: usize| entries[index].checksum.clone().unwrap())
    };
    assert_eq!(
        checksum(ChecksumKind::Crc32c),
        ["crc32c:0x01440BA0".to_owned(), "crc32c:0x00000000".to_owned()]
    );
    let sha256 = checksum(ChecksumKind::Sha256);
    assert_eq!(
        sha256[1],
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    );
}

/// A tensor in memory is returned without a copy and without verifying its checksum; a copied tensor is
/// verified.
#[test]
fn z6_what_is_copied_is_verified() {
    let file = one(&w().with("checksum", text("crc32c:0")));
    let reader = open(&file).unwrap();
    assert!(reader.tensor(0).is_ok() && reader.rows(0, 1..2).is_ok());
    assert_eq!(
        reader.read_into(0, &mut [0; 12]).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let mut on_disk = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut on_disk, &file).unwrap();
    let reader = ZtensorReader::from_path(on_disk.path()).unwrap();
    assert_eq!(reader.tensor(0).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(reader.rows(0, 1..2).is_ok());
}

#[test]
fn z6_raw_tensors_in_memory_are_not_copied() {
    let file = Bytes::from(one(&w()));
    let reader = ZtensorReader::from_bytes(file.clone()).unwrap();
    assert_eq!(reader.tensor(0).unwrap().bytes().as_ptr(), file[64..].as_ptr());
    assert_eq!(
        reader.rows(0, 2..3).unwrap().bytes().as_ptr(),
        file[72..].as_ptr()
    );
    let allocated = allocation_counter::measure(|| drop(reader.tensor(0).unwrap()));
    assert_eq!(allocated.count_total, 0);
}

#[test]
fn z7_compressed_and_big_endian_is_refused() {
    let compressed = TensorOptions {
        compression: Some(Compression::default()),
        big_endian: true,
        ..TensorOptions::default()
    };
    let (kind, rule, message) = refused(&compressed);
    assert_eq!((kind, rule), (ErrorKind::Unsupported, Some("Z7")));
    assert!(
        message.contains("expected either raw or least significant byte first"),
        "{message}"
    );
    let lint = open(&one(&w()
        .with("dtype", text("int8"))
        .with("shape", dims(&[12]))
        .with("data_endianness", text("big"))));
    assert_eq!(lint.unwrap().lints().unwrap().len(), 1);
}

#[test]
fn z9_names_may_occur_twice_for_lenient_readers() {
    let file = file_of(
        &[5; 76],
        &[w(), w().with("offset", uint(128)), w().with("name", text(""))],
    );
    assert!(open(&file).is_err());
    let reader = open_lenient(&file).unwrap();
    assert_eq!(
        (reader.entries().len(), reader.find("w"), reader.find("")),
        (3, Some(0), Some(2))
    );
    assert!(
        reader
            .lints()
            .unwrap()
            .iter()
            .any(|lint| lint.message.contains("Z9"))
    );
    assert!(open_lenient(&one(&w().with("name", text("a\0")))).is_ok());
    // A lenient reader still rejects faults that could lead to wrong data.
    assert!(open_lenient(&one(&w().and(text("offset"), uint(64)))).is_err());
    assert!(open_lenient(&one(&w().with("offset", uint(8)))).is_err());
}

#[test]
fn z10_lenient_readers_take_overlaps() {
    let tensor = |name: &str, offset, size| entry(name, offset, size, "uint8", &[size], "raw");
    let file = file_of(&[3; 128], &[tensor("a", 64, 100), tensor("b", 128, 64)]);
    assert_eq!(open(&file).unwrap_err().kind(), ErrorKind::Overlap);
    assert_eq!(open_lenient(&file).unwrap().tensor(1).unwrap().bytes().len(), 64);
}

#[test]
fn z10_alignments() {
    let at = |alignment| WriteOptions {
        alignment,
        ..WriteOptions::default()
    };
    for alignment in [64, 128, 4096, 65536] {
        let mut writer = ZtensorWriter::new(Vec::new(), at(alignment)).unwrap();
        for name in ["a", "b", "c"] {
            writer.tensor(name, &floats()).unwrap();
        }
        let reader = ZtensorReader::from_bytes(writer.finish().unwrap()).unwrap();
        assert!(
            reader
                .entries()
                .iter()
                .all(|entry| entry.range.start % alignment == 0)
        );
        // No padding follows the last tensor.
        assert_eq!(reader.index_range().start, reader.entries()[2].range.end);
    }
    for alignment in [0, 1, 32, 96, 131_072] {
        let error = ZtensorWriter::new(Vec::new(), at(alignment)).unwrap_err();
        assert_eq!(
            (error.kind(), error.broken_rule()),
            (ErrorKind::Unsupported, Some("Z10"))
        );
    }
}

#[test]
fn z11_an_index_of_no_bytes() {
    let file = [&b"ZTEN0001"[..], &[0; 8]].concat();
    assert_eq!(open(&file).unwrap_err().kind(), ErrorKind::Truncated);
    assert_eq!(open_lenient(&file).unwrap().entries().len(), 0);
    let file = [&b"ZTEN0001"[..], &[0; 9]].concat();
    assert_eq!(open(&file).unwrap_err().broken_rule(), Some("Z11"));
    assert_eq!(open_lenient(&file).unwrap().entries().len(), 0);
}

/// Before the data is written, only the offsets and sizes are unknown, so the bound may exceed the index
/// length only by the size of their encodings.
#[test]
fn z12_the_bound_of_an_index_is_near_its_length() {
    const COUNT: usize = 1000;
    for checksum in [None, Some(ChecksumKind::Crc32c), Some(ChecksumKind::Sha256)] {
        let write = |index_bytes: u64| {
            let mut options = WriteOptions::default();
            options.tensors.checksum = checksum;
            options.limits.index_bytes = index_bytes;
            let mut writer = ZtensorWriter::new(Vec::new(), options).unwrap();
            for number in 0..COUNT {
                let tensor = Tensor::from_vec(Shape::vector(1), vec![1.0f32]).unwrap();
                writer.tensor(&format!("model.layers.{number}.weight"), &tensor)?;
            }
            writer.finish()
        };
        let file = Bytes::from(write(1 << 20).unwrap());
        let index = ZtensorReader::from_bytes(file).unwrap().index_range();
        let len = index.end - index.start;
        // CBOR encodes an offset or size in one to nine bytes.
        assert!(write(len + 9 + 16 * COUNT as u64).is_ok(), "{checksum:?}");
        assert_eq!(write(len - 1).unwrap_err().broken_rule(), Some("Z12"));
    }
}

#[test]
fn z12_writers_keep_the_limits_of_readers() {
    let writer = |limit: fn(&mut fmt_core::Limits)| {
        let mut options = WriteOptions::default();
        limit(&mut options.limits);
        ZtensorWriter::new(Vec::new(), options).unwrap()
    };
    let begin = |mut writer: ZtensorWriter<Vec<u8>>, name: &str, dims: &[u64]| {
        writer.begin("first", &spec(DType::U8, &[0])).unwrap();
        let error = writer.begin(name, &spec(DType::U8, dims)).unwrap_err();
        (error.kind(), error.broken_rule())
    };
    let too_large = (ErrorKind::TooLarge, Some("Z12"));
    assert_eq!(
        begin(writer(|limits| limits.rank = 2), "t", &[1, 1, 1]),
        too_large
    );
    assert_eq!(begin(writer(|limits| limits.tensors = 1), "t", &[1]), too_large);
    assert_eq!(
        begin(writer(|limits| limits.index_bytes = 200), "t", &[1]),
        too_large
    );
    let bad = (ErrorKind::BadName, Some("Z24"));
    assert_eq!(begin(writer(|_| {}), &"n".repeat(65537), &[1]), bad);
    assert_eq!(begin(writer(|_| {}), "a\0b", &[1]), bad);
    assert_eq!(
        begin(writer(|_| {}), "first", &[1]),
        (ErrorKind::Duplicate, Some("Z9"))
    );
    assert_eq!(
        begin(writer(|_| {}), "t", &[1 << 63]),
        (ErrorKind::TooLarge, Some("Z10"))
    );
}

#[test]
fn z16_large_tensors_are_cut_into_frames_with_a_table() {
    let data = sample(5 << 20);
    let tensor = |len: usize| Tensor::new(spec(DType::U8, &[len as u64]), data[..len].to_vec()).unwrap();
    let blob = |len: usize, compression: Compression| {
        let options = TensorOptions {
            compression: Some(compression),
            ..unchecked()
        };
        let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
        writer.tensor_with("t", &tensor(len), &options).unwrap();
        let file = writer.finish().unwrap();
        let range = ZtensorReader::from_bytes(file.clone()).unwrap().entries()[0]
            .range
            .clone();
        file[range.start as usize..range.end as usize].to_vec()
    };
    // Up to 4 MiB, the blob is one frame with content size and checksum, without a table.
    assert_eq!(blob(4 << 20, Compression::default()), frame(&data[..4 << 20]));
    let frames: Vec<_> = data[..(4 << 20) + 1].chunks(1 << 20).map(frame).collect();
    let sizes: Vec<_> = frames
        .iter()
        .map(Vec::len)
        .zip([1 << 20, 1 << 20, 1 << 20, 1 << 20, 1])
        .collect();
    assert_eq!(
        blob((4 << 20) + 1, Compression::default()),
        [frames.concat(), table(&sizes)].concat()
    );
    let two = blob(5 << 20, Compression::default().with_frames_of(4 << 20));
    assert_eq!(two[two.len() - 9..][..4], [2, 0, 0, 0]);
    for frame_bytes in [0, 4095, (1 << 30) + 1] {
        let options = TensorOptions {
            compression: Some(Compression::default().with_frames_of(frame_bytes)),
            ..TensorOptions::default()
        };
        assert_eq!(refused(&options).1, Some("Z16"));
    }
}

/// Rows that are located by a table equal the rows of the whole tensor, or reading fails. In this file, a
/// skippable frame hides another frame from sequential decoding, but the table refers to it.
#[test]
fn z16_rows_are_those_of_the_whole_tensor() {
    let data = sample(600);
    let (first, second) = (frame(&data[..500]), frame(&data[500..]));
    let hidden = frame(&[7; 100]);
    let table = table(&[(first.len() + second.len() + 8, 500), (hidden.len(), 100)]);
    let file = zstd_of(&[&first[..], &second, &skippable(&hidden), &table].concat(), 600);
    let reader = open(&file).unwrap();
    assert_eq!(reader.rows(0, 550..560).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(reader.tensor(0).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(streamed(&reader, 0).unwrap_err().kind(), ErrorKind::Corrupt);
}

/// Reads a tensor's stream to its end, in pieces of an odd size.
fn streamed(reader: &ZtensorReader, index: usize) -> Result<Vec<u8>, fmt_core::Error> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 48_000]);
    let mut stream = reader.stream(index)?;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(bytes),
            len => bytes.extend_from_slice(&buffer[..len]),
        }
    }
}

/// A tensor above the memory limit can be streamed, whatever the size of its frames, and streaming verifies
/// checksums. Only reading the whole tensor fails.
#[test]
fn z12_tensors_beyond_the_limit_for_memory_are_streamed() {
    let data = sample(3_000_000);
    let spec = spec(DType::U8, &[3_000_000]);
    let mut options = ReadOptions::default();
    options.limits.decoded_bytes = 1 << 20;
    let half = data.len() / 2;
    let blobs = [
        frame(&data),
        frame_with(&data, false, false),
        [frame_with(&data[..half], false, true), frame(&data[half..])].concat(),
        data.chunks(100_000).map(frame).collect::<Vec<_>>().concat(),
    ];
    for (number, blob) in blobs.iter().enumerate() {
        let file = zstd_of(blob, 3_000_000);
        let reader = open_with(&file, &options).unwrap();
        assert_eq!(reader.tensor(0).unwrap_err().kind(), ErrorKind::TooLarge);
        assert!(streamed(&reader, 0).unwrap() == data, "blob {number}");
        assert!(reader.verify(0).is_ok());
        let mut damaged = file.clone();
        damaged[64 + blob.len() / 2] ^= 0x40;
        if let Ok(bytes) = streamed(&open_with(&damaged, &options).unwrap(), 0) {
            // Corruption goes undetected only in the blob without checksums.
            assert!(number == 1 && bytes.len() == data.len(), "blob {number}");
        }
    }
    for big_endian in [false, true] {
        let tensor = Tensor::new(spec.clone(), data.clone()).unwrap();
        let tensor = Tensor::new(
            TensorSpec::new(DType::U16, Shape::vector(1_500_000)).unwrap(),
            tensor.into_bytes(),
        );
        let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
        let written = TensorOptions {
            big_endian,
            ..TensorOptions::default()
        };
        writer.tensor_with("t", &tensor.unwrap(), &written).unwrap();
        let mut file = writer.finish().unwrap();
        let reader = open_with(&file, &options).unwrap();
        assert!(streamed(&reader, 0).unwrap() == data, "{big_endian}");
        file[100_000] ^= 1;
        let reader = open_with(&file, &options).unwrap();
        assert_eq!(streamed(&reader, 0).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn z17_levels() {
    for level in [0, 20, -1] {
        let options = TensorOptions {
            compression: Some(Compression::level(level)),
            ..TensorOptions::default()
        };
        assert_eq!(refused(&options).1, Some("Z17"));
    }
    assert!(TensorOptions::default().compression.is_none());
}

#[test]
fn z20_sparse_tensors_are_refused() {
    let plan = Plan {
        entries: vec![
            PlannedEntry::dense("d", spec(DType::U8, &[1])),
            PlannedEntry::coo("s", spec(DType::F32, &[9, 9]), 2),
        ],
        ..Plan::default()
    };
    let mut out = Vec::new();
    let error = Ztensor.create(Box::new(&mut out), plan).map(drop).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule(), error.tensor()),
        (ErrorKind::Unsupported, Some("Z20"), Some("s"))
    );
    assert!(
        error.to_string().contains("indices and values as two tensors"),
        "{error}"
    );
    assert!(out.is_empty());
}

#[test]
fn z21_sniffing() {
    let sniff = |head: &[u8]| Ztensor.sniff(head, 100);
    assert_eq!(sniff(b"ZTEN0001"), Sniff::Certain);
    assert_eq!(sniff(b"ZTEN1000"), Sniff::Possible);
    assert_eq!(sniff(b"\x89ZT2\r\n\x1a\n"), Sniff::Possible);
    assert_eq!((sniff(b"TBS1"), sniff(b"")), (Sniff::No, Sniff::No));
}

#[test]
fn z27_attributes_fit_and_metadata_does_not() {
    let mut entry = PlannedEntry::dense("t", spec(DType::U8, &[1]));
    entry.attributes.insert("unit".to_owned(), "m".to_owned());
    let mut plan = Plan {
        entries: vec![entry.clone()],
        ..Plan::default()
    };
    let mut out = Vec::new();
    let mut writer = Ztensor.create(Box::new(&mut out), plan.clone()).unwrap();
    writer.write(&[1]).unwrap();
    writer.finish().unwrap();
    let reader = Ztensor
        .open(Arc::new(Bytes::from(out)), &ReadOptions::default())
        .unwrap();
    assert_eq!(reader.entries()[0].attributes.to_map()["unit"], "m");
    plan.metadata.insert("license".to_owned(), "MIT".to_owned());
    let error = ZtensorWriter::planned(Vec::new(), &plan, WriteOptions::default()).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Unsupported, Some("Z27"))
    );
    plan.metadata.clear();
    plan.entries[0]
        .attributes
        .insert("offset".to_owned(), "64".to_owned());
    let error = ZtensorWriter::planned(Vec::new(), &plan, WriteOptions::default()).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Duplicate, Some("Z9"))
    );
}

#[test]
fn z9_custom_fields_twice() {
    let field = || CustomField::new("a", CborValue::from(true)).unwrap();
    let options = TensorOptions {
        fields: vec![field(), field()],
        ..TensorOptions::default()
    };
    assert_eq!(refused(&options).1, Some("Z9"));
}

/// Prints every kind of CBOR item in diagnostic notation.
#[test]
fn custom_values_are_shown() {
    let shown = |cbor: &[u8]| CborValue::from_cbor(cbor).unwrap().to_string();
    assert_eq!(
        shown(&[0x3b, 255, 255, 255, 255, 255, 255, 255, 255]),
        "-18446744073709551616"
    );
    assert_eq!(shown(&[0xf9, 0x7e, 0]), "NaN");
    assert_eq!(
        shown(&[0x82, 0xf9, 0x7c, 0, 0xf9, 0xfc, 0]),
        "[Infinity, -Infinity]"
    );
    assert_eq!(
        shown(&[0x85, 0xf4, 0xf5, 0xf6, 0xf7, 0xe0]),
        "[false, true, null, undefined, simple(0)]"
    );
    assert_eq!(shown(&[0xc1, 0xa1, 0x60, 0x42, 1, 255]), r#"1({"": h'01ff'})"#);
    assert_eq!(shown(&[0x9f, 0xbf, 0xff, 0x80, 0xff]), "[{}, []]");
    assert_eq!(shown(&[0xbf, 1, 2, 3, 0x9f, 0xff, 0xff]), "{1: 2, 3: []}");
    assert_eq!(shown(&[0x7f, 0x61, b'"', 0xff]), r#""\"""#);
    for bytes in [&[][..], &[1, 2], &[0x81], &[0xff]] {
        assert!(CborValue::from_cbor(bytes).is_err());
    }
    let number = CborValue::from(7);
    assert_eq!(
        (
            number.as_u64(),
            number.as_f64(),
            number.as_bool(),
            number.as_text()
        ),
        (Some(7), Some(7.0), None, None)
    );
    assert_eq!(CborValue::from_cbor([0x20]).unwrap().as_f64(), Some(-1.0));
    assert_eq!(CborValue::from(0.5).as_f64(), Some(0.5));
    assert_eq!(CborValue::from(false).as_bool(), Some(false));
}

#[test]
fn bytes_too_many_and_too_few() {
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.begin("a", &spec(DType::U8, &[4])).unwrap();
    writer.write(&[1, 2]).unwrap();
    assert_eq!(
        writer.write(&[3, 4, 5]).unwrap_err().kind(),
        ErrorKind::SizeMismatch
    );
    let error = writer.begin("b", &spec(DType::U8, &[1])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor 'a': bytes of the tensor are missing: expected 4, found 2"
    );
    writer.write(&[3, 4]).unwrap();
    writer.alias("tied", &spec(DType::I16, &[2]), "a").unwrap();
    writer
        .alias("tied again", &spec(DType::F32, &[]), "tied")
        .unwrap();
    for (of, bytes, kind) in [
        ("a", 3, ErrorKind::SizeMismatch),
        ("c", 4, ErrorKind::OutOfBounds),
    ] {
        let error = writer.alias("x", &spec(DType::U8, &[bytes]), of).unwrap_err();
        assert_eq!(error.kind(), kind);
    }
    let reader = ZtensorReader::from_bytes(writer.finish().unwrap()).unwrap();
    let ranges: Vec<_> = reader.entries().iter().map(|entry| entry.range.clone()).collect();
    assert_eq!(ranges, [64..68, 64..68, 64..68]);
    assert!(
        reader
            .entries()
            .iter()
            .all(|entry| entry.checksum == reader.entries()[0].checksum)
    );
    assert_eq!(
        reader.tensor(1).unwrap().to_vec::<i16>().unwrap(),
        [0x0201, 0x0403]
    );
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.begin("a", &spec(DType::U8, &[4])).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::SizeMismatch);
}

#[test]
fn values_go_to_ciborium_and_back() {
    use ciborium::Value;

    let mut value = Value::Map(vec![
        (Value::Text("scale".to_owned()), Value::Float(0.5)),
        (Value::Integer((-2).into()), Value::Bytes(vec![0, 255])),
        (Value::Null, Value::Tag(32, Box::new(Value::Bool(true)))),
    ]);
    let encoded = CborValue::try_from(&value).unwrap();
    assert_eq!(Value::try_from(&encoded).unwrap(), value);
    // `ciborium` has no variant for simple values, so the conversion fails.
    let simple = CborValue::from_cbor([0xe0]).unwrap();
    let refused = Value::try_from(&simple).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    for _ in 0..CborValue::MAX_DEPTH {
        value = Value::Array(vec![value]);
    }
    let refused = CborValue::try_from(&value).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Malformed);
}
