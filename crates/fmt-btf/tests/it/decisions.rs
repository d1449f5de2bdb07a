//! One test for each decision of docs/formats/btf.md where the specification is ambiguous.

use std::sync::Arc;

use fmt_btf::{Btf, BtfReader, BtfWriter, CooCode, Names, RecordSpec, WriteOptions};
use fmt_core::{
    ErrorKind::{self, *},
    Format, Limits, Metadata, Plan, PlannedEntry, ReadOptions, TensorReader,
};
use tensor_core::{Bytes, DType};

use crate::support::{
    F32, F64, ForgedRecord, I8, at_offsets, counting, cut, file, open, open_leniently, refusal, sparse, spec,
    words, written, written_sparse,
};

fn refused(records: Vec<RecordSpec>, options: WriteOptions) -> (ErrorKind, &'static str) {
    let mut out = Vec::new();
    let error = BtfWriter::new(&mut out, records, options).unwrap_err();
    assert!(out.is_empty());
    (error.kind(), error.broken_rule().unwrap())
}

#[test]
fn b1_the_number_for_coo() {
    let matrix = sparse(&[3], &[1], &[9]);
    for (coo_code, layout) in [(CooCode::Specification, 2), (CooCode::Tfrt, 1)] {
        let options = WriteOptions {
            coo_code,
            ..WriteOptions::default()
        };
        let bytes = written_sparse(&matrix, options);
        assert_eq!(bytes[25], layout);
        let reader = open(&bytes).unwrap();
        assert_eq!(reader.record(0).unwrap().layout, layout);
        assert_eq!(reader.sparse(0).unwrap(), matrix);
    }
}

#[test]
fn b2_unsigned_dtypes_are_written_unless_the_specification_is_meant() {
    for dtype in DType::ALL {
        let record = || vec![RecordSpec::dense(spec(dtype, &[3]))];
        let strict = WriteOptions {
            strict_spec: true,
            ..WriteOptions::default()
        };
        let (in_spec, in_tfrt) = match dtype {
            DType::Bool | DType::F16 | DType::BF16 => (false, false),
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => (false, true),
            _ => (true, true),
        };
        for (options, is_written) in [(strict, in_spec), (WriteOptions::default(), in_tfrt)] {
            if is_written {
                assert!(BtfWriter::new(Vec::new(), record(), options).is_ok());
            } else {
                assert_eq!(refused(record(), options), (Unsupported, "B2"));
            }
        }
    }
    let error = BtfWriter::new(
        Vec::new(),
        vec![RecordSpec::dense(spec(DType::BF16, &[1]))],
        WriteOptions::default(),
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "tensor '0': the dtype: expected i8, i16, i32, i64, f32, f64, u8, u16, u32 or u64, \
         found bf16"
    );
}

#[test]
fn b3_everything_is_little_endian() {
    let bytes = written(&[&counting(DType::I16, &[2])]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&bytes[..8]), "0100000000000000");
    assert_eq!(hex(&bytes[32..44]), "020000000000000000010203");
    let tensor = open(&bytes).unwrap().tensor(0).unwrap();
    assert_eq!(tensor.to_vec::<i16>().unwrap(), [0x0100, 0x0302]);
}

#[test]
fn b4_places_of_records() {
    // Written records are in order and without gaps.
    let tensors = [counting(DType::I8, &[3]), counting(DType::F64, &[2, 2])];
    let reader = open(&written(&[&tensors[0], &tensors[1]])).unwrap();
    let offsets = [0, 1].map(|index| reader.record(index).unwrap().offset);
    assert_eq!(offsets, [24, 24 + 32]);
    assert_eq!(reader.lints().unwrap(), []);

    // TFRT's oldest writer did not pad, so its second record starts at byte 124 of the file.
    let mut first = ForgedRecord::dense(F32, &[19], 76);
    first.padding = Some(Vec::new());
    let old = at_offsets(
        &[24, 124],
        &[first.bytes(), ForgedRecord::dense(I8, &[2], 2).bytes()].concat(),
    );
    assert_eq!(refusal(&old), (Misaligned, "B4"));
    let reader = open_leniently(&old).unwrap();
    assert_eq!(reader.tensor(1).unwrap().to_vec::<i8>().unwrap(), [1, 2]);
    assert_eq!(reader.lints().unwrap().len(), 1);
    // A lenient reader also refuses records that overlap.
    let overlapping = at_offsets(&[24, 123], &[first.bytes(), vec![0; 40]].concat());
    assert_eq!(open_leniently(&overlapping).unwrap_err().kind(), Overlap);
}

#[test]
fn b5_the_last_record_is_padded_when_written() {
    let bytes = written(&[&counting(DType::I8, &[5])]);
    assert_eq!(bytes.len() % 8, 0);
    for missing in 1..=3 {
        assert!(open(&cut(bytes.clone(), missing)).is_ok());
    }
    assert!(open(&cut(bytes, 4)).is_err());
}

#[test]
fn b6_reserved_bytes_are_zero_when_written() {
    let bytes = written(&[&counting(DType::U64, &[5])]);
    assert_eq!(bytes[26..32], [0; 6]);
}

#[test]
fn b7_padding_is_zero_when_written() {
    let bytes = written(&[&counting(DType::U8, &[1, 1])]);
    assert_eq!(bytes[49..], [0; 7]);
}

#[test]
fn b8_a_file_without_tensors() {
    let bytes = written(&[]);
    assert_eq!(bytes, [0; 8]);
    let reader = open(&bytes).unwrap();
    assert!(reader.is_empty() && reader.entries().is_empty());
    assert!(reader.record(0).is_none());
}

#[test]
fn b9_scalars_and_tensors_without_elements() {
    let tensors = [
        counting(DType::F64, &[]),
        counting(DType::F64, &[3, 0]),
        counting(DType::I8, &[1]),
    ];
    let bytes = written(&[&tensors[0], &tensors[1], &tensors[2]]);
    let reader = open(&bytes).unwrap();
    for (index, tensor) in tensors.iter().enumerate() {
        assert_eq!(reader.tensor(index).unwrap(), *tensor);
    }
    assert_eq!(reader.record(1).unwrap().data.clone().count(), 0);
    assert_eq!(reader.rows(1, 1..3).unwrap().shape().dims(), [2, 0]);
}

/// TFRT reads indices as signed integers and accepts negative indices.
#[test]
fn b10_indices_are_unsigned() {
    for index in [u64::MAX, 1 << 63, 3] {
        let reader = open(&ForgedRecord::coo(&[3], &[index], &[1]).file()).unwrap();
        let error = reader.sparse(0).unwrap_err();
        assert_eq!((error.kind(), error.broken_rule()), (OutOfBounds, Some("B10")));
    }
}

#[test]
fn b11_entries_are_sorted_when_written() {
    let unsorted = sparse(&[3, 3], &[2, 0, 0, 1, 0, 0], &[1, 2, 3]);
    let bytes = written_sparse(&unsorted, WriteOptions::default());
    let read = open(&bytes).unwrap().sparse(0).unwrap();
    assert_eq!(read, unsorted.sorted().unwrap());

    let repeated = sparse(&[3], &[1, 1], &[1, 2]);
    let mut writer = BtfWriter::new(Vec::new(), vec![(&repeated).into()], WriteOptions::default()).unwrap();
    let error = writer.sparse(&repeated).unwrap_err();
    assert_eq!((error.kind(), error.broken_rule()), (Duplicate, Some("B11")));

    // Indices passed as bytes must already be sorted.
    for (indices, kind) in [([2u64, 1], Malformed), ([1, 1], Duplicate), ([0, 3], OutOfBounds)] {
        let record = RecordSpec::coo(spec(DType::I32, &[3]), 2);
        let mut writer = BtfWriter::new(Vec::new(), vec![record], WriteOptions::default()).unwrap();
        assert_eq!(writer.write(&words(&indices)).unwrap_err().kind(), kind);
        // The writer is unusable after the error.
        assert_eq!(writer.write(&[0; 8]).unwrap_err().kind(), Io);
        assert!(writer.finish().is_err());
    }
}

#[test]
fn b12_sparse_scalars() {
    for values in [&[][..], &[7]] {
        let scalar = sparse(&[], &[], values);
        let bytes = written_sparse(&scalar, WriteOptions::default());
        assert_eq!(open(&bytes).unwrap().sparse(0).unwrap(), scalar);
    }
    let two = RecordSpec::coo(spec(DType::I32, &[]), 2);
    assert_eq!(refused(vec![two], WriteOptions::default()), (SizeMismatch, "B13"));
}

#[test]
fn b13_no_more_entries_than_elements() {
    let too_many = ForgedRecord::coo(&[2], &[0, 1, 0], &[1, 2, 3]).file();
    assert_eq!(refusal(&too_many), (SizeMismatch, "B13"));
    // If duplicates are allowed, there may be more entries than elements.
    let sparse = open_leniently(&too_many).unwrap().sparse(0).unwrap();
    assert_eq!(sparse.to_dense(8).unwrap().to_vec::<i32>().unwrap(), [3, 2]);
}

#[test]
fn b14_tensors_have_numbers_for_names() {
    let reader = open(&file(&vec![ForgedRecord::plain(); 11])).unwrap();
    assert_eq!(reader.entries()[10].name, "10");
    assert_eq!(reader.find("10"), Some(10));
    for name in ["11", "+1", "01", "", "a", "-0", "1 "] {
        assert_eq!(reader.find(name), None, "{name:?}");
    }

    let plan = |name: &str| Plan {
        entries: vec![PlannedEntry::dense(name, spec(DType::I8, &[1]))],
        metadata: Metadata::new(),
    };
    assert!(Btf.create(Box::new(Vec::new()), plan("0")).is_ok());
    let error = Btf.create(Box::new(Vec::new()), plan("weights")).err().unwrap();
    assert_eq!(
        error.to_string(),
        "tensor 'weights': the format has no names: expected '0', its number in the file"
    );
    let mut with_metadata = plan("0");
    with_metadata.metadata.insert("model".into(), "tiny".into());
    let error = Btf.create(Box::new(Vec::new()), with_metadata).err().unwrap();
    assert_eq!((error.kind(), error.broken_rule()), (Unsupported, Some("B14")));
    let mut with_attribute = plan("0");
    with_attribute.entries[0]
        .attributes
        .insert("a".into(), "b".into());
    assert!(Btf.create(Box::new(Vec::new()), with_attribute).is_err());
}

#[test]
fn b14_names_in_a_file_beside_it() {
    for json in [
        &b""[..],
        b"[]",
        b"{\"names\": [\"a\", 1]}",
        b"{\"names\": [\"a\"]}",
        b"{\"names\": [\"a\", \"a\"]}",
        b"{\"names\": [\"a\", \"b\"], \"tensors\": []}",
        b"{\"names\": [\"a\", \"b\"]} {}",
    ] {
        let error = Names::from_json(json, 2).unwrap_err();
        assert_eq!(error.broken_rule(), Some("B14"), "{error}");
    }
    let names = Names::from_json(b"{\"names\": [\"a\", \"b\"]}", 2).unwrap();
    assert_eq!(names.names(), ["a", "b"]);
    assert!(names.metadata().is_empty());
}

#[test]
fn b15_data_is_aligned_to_eight_bytes() {
    let tensors = [
        counting(DType::I8, &[3]),
        counting(DType::F64, &[2]),
        counting(DType::I64, &[]),
    ];
    let reader = open(&written(&[&tensors[0], &tensors[1], &tensors[2]])).unwrap();
    for index in 0..3 {
        assert_eq!(reader.record(index).unwrap().data.start % 8, 0);
    }
}

#[test]
fn b16_sparse_tensors_stay_sparse() {
    let reader = open(&ForgedRecord::coo(&[1 << 20, 1 << 20], &[1, 2], &[3]).file()).unwrap();
    let error = reader.tensor(0).unwrap_err();
    assert_eq!((error.kind(), error.broken_rule()), (Unsupported, Some("B16")));
    assert_eq!(reader.entries()[0].byte_len(), Some(16 + 4));
}

#[test]
fn b17_limits_of_readers() {
    let bytes = file(&vec![ForgedRecord::plain(); 3]);
    let opened = |limits: Limits| {
        let options = ReadOptions {
            limits,
            ..ReadOptions::default()
        };
        let opened = BtfReader::open(Arc::new(Bytes::from(bytes.clone())), &options);
        opened
            .map(drop)
            .map_err(|error| (error.kind(), error.broken_rule()))
    };
    let limits = Limits::default;
    let too_large = Err((TooLarge, Some("B17")));
    // The limits are below, at and above the file's counts.
    for (tensors, wanted) in [(2, too_large), (3, Ok(())), (4, Ok(()))] {
        assert_eq!(opened(Limits { tensors, ..limits() }), wanted);
    }
    for (rank, wanted) in [(1, too_large), (2, Ok(())), (3, Ok(()))] {
        assert_eq!(opened(Limits { rank, ..limits() }), wanted);
    }
    let index = 32 + 3 * 32;
    for (index_bytes, wanted) in [
        (index - 1, too_large),
        (index, Ok(())),
        (index + 1, Ok(())),
        (31, too_large),
    ] {
        assert_eq!(
            opened(Limits {
                index_bytes,
                ..limits()
            }),
            wanted
        );
    }
}

#[test]
fn b17_limits_of_writers() {
    let records = || vec![RecordSpec::dense(spec(DType::I8, &[1, 1])); 3];
    let limited = |limits: Limits| WriteOptions {
        limits,
        ..WriteOptions::default()
    };
    let limits = Limits::default;
    for limits in [
        Limits {
            tensors: 2,
            ..limits()
        },
        Limits { rank: 1, ..limits() },
        Limits {
            index_bytes: 32 + 3 * 32 - 1,
            ..limits()
        },
    ] {
        assert_eq!(refused(records(), limited(limits)), (TooLarge, "B17"));
    }
    let exact = Limits {
        tensors: 3,
        rank: 2,
        index_bytes: 32 + 3 * 32,
        ..limits()
    };
    assert!(BtfWriter::new(Vec::new(), records(), limited(exact)).is_ok());
    // Each tensor fits 63 bits, but the sum of their sizes does not.
    let large = RecordSpec::dense(spec(DType::I8, &[1 << 62]));
    assert_eq!(
        refused(vec![large.clone(), large], WriteOptions::default()),
        (TooLarge, "B17")
    );
}

#[test]
fn b18_records_lie_inside_the_file() {
    let bytes = ForgedRecord::plain().file();
    for last in 1..=16 {
        assert_eq!(refusal(&cut(bytes.clone(), last)), (Truncated, "B18"));
    }
}

#[test]
fn b19_lengths_fit_63_bits() {
    for (dims, dtype) in [(&[1 << 63][..], I8), (&[1 << 60], F64), (&[(1 << 63) - 40], I8)] {
        assert_eq!(
            refusal(&ForgedRecord::new(dtype, 0, dims, &[]).file()),
            (Overflow, "B19")
        );
    }
    for record in [
        RecordSpec::dense(spec(DType::I8, &[1 << 63])),
        RecordSpec::dense(spec(DType::I8, &[(1 << 63) - 10])),
        RecordSpec::coo(spec(DType::I8, &[1 << 62]), 1 << 62),
    ] {
        assert_eq!(refused(vec![record], WriteOptions::default()), (TooLarge, "B19"));
    }
}
