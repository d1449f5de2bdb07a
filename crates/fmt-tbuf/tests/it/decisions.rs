//! Tests rules T1 to T21 of docs/formats/tensorbuffers.md, which settle what the specification leaves open.

use fmt_core::{
    ErrorKind, Format, Limits, Plan, PlannedEntry, ReadOptions, Sniff, TensorReader, Verification,
};
use fmt_tbuf::{TbufReader, TbufWriter, TensorBuffers, WriteOptions, tensor_id};
use tensor_core::{Bytes, CastError, DType, Tensor};

use crate::{
    corpus::small,
    support::{Forge, ForgedTensor, back_to_back, counting, open, open_leniently, spec, tensor, written},
};

fn lint_rules(reader: &TbufReader) -> Vec<String> {
    let lints = reader.lints().unwrap();
    let rule = |message: &str| message.rsplit(['(', ')']).nth(1).unwrap().to_owned();
    lints.iter().map(|lint| rule(&lint.message)).collect()
}

fn open_with(bytes: Vec<u8>, limits: Limits) -> Result<TbufReader, ErrorKind> {
    let options = ReadOptions {
        limits,
        lenient: false,
    };
    TbufReader::open(std::sync::Arc::new(Bytes::from(bytes)), &options).map_err(|error| error.kind())
}

#[test]
fn t1_magic_at_both_ends() {
    let file = small();
    assert_eq!(
        (&file[..4], &file[file.len() - 4..]),
        (&b"TBS1"[..], &b"TBS1"[..])
    );
    let len = file.len() as u64;
    assert_eq!(TensorBuffers.sniff(&file[..64], len), Sniff::Certain);
    assert_eq!(TensorBuffers.sniff(&file[..4], 11), Sniff::Possible);
    assert_eq!(TensorBuffers.sniff(b"TBS2", len), Sniff::Possible);
    assert_eq!(TensorBuffers.sniff(b"PK\x03\x04", len), Sniff::No);
    assert_eq!(TensorBuffers.sniff(b"", 0), Sniff::No);
}

#[test]
fn t2_the_length_is_that_of_the_whole_index() {
    let file = small();
    let reader = open(&file).unwrap();
    let index = reader.index_range();
    assert_eq!(index.end, file.len() as u64 - 8);
    let stored = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap());
    assert_eq!(u64::from(stored), index.end - index.start);
}

#[test]
fn t3_alignment_of_data_and_index() {
    let (a, b) = (counting(DType::U8, &[3]), counting(DType::F64, &[2]));
    let starts = |alignment| {
        let options = WriteOptions {
            alignment,
            ..WriteOptions::default()
        };
        let file = written(options, &[("a", &a), ("b", &b)]);
        assert_eq!(tensor(&file, "b").unwrap(), b);
        let reader = open(&file).unwrap();
        let start = |name| reader.entries()[reader.find(name).unwrap()].range.start;
        [start("a"), start("b"), reader.index_range().start]
    };
    assert_eq!(starts(64), [64, 128, 144]);
    assert_eq!(starts(1), [4, 7, 23]);
    assert_eq!(starts(4), [4, 8, 24]);
    assert_eq!(starts(65536), [65536, 131_072, 131_088]);
    for alignment in [0, 3, 131_072] {
        let options = WriteOptions {
            alignment,
            ..WriteOptions::default()
        };
        let error = TbufWriter::new(Vec::new(), options).unwrap_err();
        assert_eq!(
            (error.kind(), error.broken_rule()),
            (ErrorKind::Unsupported, Some("T3"))
        );
    }
    // The bytes before and between the tensors' data are zero.
    let file = written(WriteOptions::default(), &[("a", &a), ("b", &b)]);
    assert!(file[4..64].iter().chain(&file[67..128]).all(|byte| *byte == 0));
    assert_eq!(lint_rules(&open(&file).unwrap()), Vec::<String>::new());
}

#[test]
fn t4_what_32_bits_cannot_hold_is_refused_before_the_first_byte() {
    let planned = |entries: &[(&str, DType, &[u64])]| {
        let entry =
            |(name, dtype, dims): &(&str, DType, &[u64])| PlannedEntry::dense(*name, spec(*dtype, dims));
        let plan = Plan {
            entries: entries.iter().map(entry).collect(),
            ..Plan::default()
        };
        TbufWriter::planned(NoSink, &plan, WriteOptions::default()).map(drop)
    };
    let word = u64::from(u32::MAX);
    assert!(planned(&[("a", DType::U8, &[word])]).is_ok());
    for (name, dims) in [("a size", &[word + 1][..]), ("a dimension", &[word + 1, 0])] {
        let error = planned(&[("a", DType::U8, dims)]).unwrap_err();
        assert_eq!(
            (error.kind(), error.broken_rule()),
            (ErrorKind::TooLarge, Some("T4")),
            "{name}"
        );
    }
    // Data must begin below 4 GiB, so only the last tensor may end above 4 GiB.
    assert!(planned(&[("a", DType::U8, &[word - 200]), ("b", DType::U8, &[word])]).is_ok());
    let error = planned(&[("a", DType::U8, &[word]), ("b", DType::U8, &[1])]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor 'b': where the data would begin: expected at most byte 4294967295: the format has 32 bits for it; the \
         largest tensor can come last, or the tensors can be spread over several files, found byte 4294967360"
    );
}

/// A sink that fails the test when it is written to.
struct NoSink;

impl std::io::Write for NoSink {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        panic!("something was written")
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn t5_tensors_are_listed_by_id_and_found_in_any_order() {
    let tensors: Vec<_> = (0..100)
        .map(|number| (format!("tensor {number}"), Tensor::scalar(number)))
        .collect();
    let named: Vec<_> = tensors.iter().map(|(name, tensor)| (&name[..], tensor)).collect();
    let file = written(WriteOptions::default(), &named);
    let reader = open(&file).unwrap();
    let ids: Vec<u64> = (0..100).map(|index| reader.id(index)).collect();
    assert!(ids.is_sorted_by(|a, b| a < b));
    for (name, expected) in &tensors {
        assert_eq!(reader.tensor(reader.find(name).unwrap()).unwrap(), *expected);
    }
    assert_eq!(reader.find("tensor 100"), None);

    let same_id = Forge::of(&[
        ForgedTensor::plain(),
        ForgedTensor {
            id: Some(tensor_id("a")),
            ..ForgedTensor::new("b", 1, &[2], 16, 8)
        },
    ]);
    let reader = open(&same_id.file()).unwrap();
    assert_eq!((reader.find("a"), reader.find("b")), (Some(0), Some(1)));
    let lints = reader.lints().unwrap();
    assert!(lints.iter().any(|lint| lint.message.ends_with("(T6)")));
}

/// Checks two names with the same hash: the writer refuses the second, and the reader finds both.
#[test]
fn t5_names_with_the_same_hash() {
    let names = ["8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"];
    let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.tensor(names[0], &Tensor::scalar(1u8)).unwrap();
    let error = writer.tensor(names[1], &Tensor::scalar(2u8)).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Duplicate, Some("T5"))
    );
    assert!(error.to_string().contains(names[0]), "{error}");

    let forged = [
        ForgedTensor::new(names[0], 7, &[1], 4, 1),
        ForgedTensor::new(names[1], 7, &[1], 5, 1),
    ];
    let reader = open(&Forge::of(&forged).file()).unwrap();
    assert_eq!((reader.find(names[0]), reader.find(names[1])), (Some(0), Some(1)));
}

#[test]
fn t6_ids_are_written_but_not_relied_upon() {
    let reader = open(&small()).unwrap();
    assert_eq!(reader.id(0), tensor_id("a"));
    let file = Forge::with(|tensor| tensor.id = Some(7));
    let reader = open(&file).unwrap();
    assert_eq!((reader.find("a"), reader.id(0)), (Some(0), 7));
    assert_eq!(lint_rules(&reader), ["T6", "T12"]);
}

#[test]
fn t7_names_are_unique_unless_the_reader_is_lenient() {
    let twice = Forge::of(&[
        ForgedTensor::new("a", 7, &[2], 4, 2),
        ForgedTensor::new("a", 7, &[1], 8, 1),
    ])
    .file();
    let error = open(&twice).unwrap_err();
    assert_eq!((error.kind(), error.tensor()), (ErrorKind::Duplicate, Some("a")));
    let lenient = open_leniently(&twice).unwrap();
    assert_eq!(lenient.find("a"), Some(0));
    assert_eq!(lenient.tensor(1).unwrap().bytes()[..], [4]);
    assert!(lint_rules(&lenient).contains(&"T7".to_owned()));

    let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.tensor("a", &Tensor::scalar(1u8)).unwrap();
    let error = writer.tensor("a", &Tensor::scalar(1u8)).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Duplicate, Some("T7"))
    );
    // The refused tensor is not in the file.
    assert_eq!(open(&writer.finish().unwrap()).unwrap().entries().len(), 1);
}

#[test]
fn t8_any_version_is_read_and_1_0_0_is_written() {
    assert_eq!(open(&small()).unwrap().version(), "1.0.0");
    for (version, is_odd) in [
        ("1.0.0", false),
        ("1.7", false),
        ("2.0.0", true),
        ("", true),
        ("10", true),
    ] {
        let forge = Forge {
            version: Some(version.into()),
            ..Forge::new()
        };
        let reader = open(&forge.file()).unwrap();
        assert_eq!(reader.version(), version);
        assert_eq!(
            lint_rules(&reader).contains(&"T8".to_owned()),
            is_odd,
            "{version}"
        );
    }
}

#[test]
fn t9_the_model_is_all_the_metadata_there_is() {
    let mut plan = Plan::default();
    plan.metadata.insert("model".to_owned(), "resnet".to_owned());
    let mut file = Vec::new();
    TensorBuffers
        .create(Box::new(&mut file), plan.clone())
        .unwrap()
        .finish()
        .unwrap();
    let reader = open(&file).unwrap();
    assert_eq!(
        (reader.model(), reader.metadata()),
        (Some("resnet"), &plan.metadata)
    );
    assert_eq!(open(&small()).unwrap().model(), None);
    let empty = Forge {
        model: Some(Vec::new()),
        ..Forge::new()
    };
    assert_eq!(open(&empty.file()).unwrap().model(), Some(""));

    plan.metadata.insert("license".to_owned(), "MIT".to_owned());
    let error = TbufWriter::planned(NoSink, &plan, WriteOptions::default()).unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Unsupported, Some("T9"))
    );
    let mut entry = PlannedEntry::dense("a", spec(DType::U8, &[1]));
    entry.attributes.insert("unit".to_owned(), "m".to_owned());
    let plan = Plan {
        entries: vec![entry],
        ..Plan::default()
    };
    let error = TbufWriter::planned(NoSink, &plan, WriteOptions::default()).unwrap_err();
    assert_eq!(
        (error.kind(), error.tensor()),
        (ErrorKind::Unsupported, Some("a"))
    );
}

#[test]
fn t10_an_absent_shape_is_a_scalar() {
    let file = Forge::with(|tensor| (tensor.shape, tensor.size) = (None, Some(4)));
    assert_eq!(*tensor(&file, "a").unwrap().spec(), spec(DType::F32, &[]));
    let file = written(WriteOptions::default(), &[("a", &Tensor::scalar(2.5f32))]);
    assert_eq!(tensor(&file, "a").unwrap(), Tensor::scalar(2.5f32));
}

#[test]
fn t11_tensors_without_bytes_may_stand_anywhere_before_the_index() {
    for (offset, is_accepted) in [(0, true), (4, true), (10, true), (64, true), (65, false)] {
        let file = Forge::of(&[ForgedTensor::plain(), ForgedTensor::new("b", 1, &[0], offset, 0)]).file();
        assert_eq!(open(&file).is_ok(), is_accepted, "{offset}");
    }
    let empty = counting(DType::I64, &[2, 0]);
    let file = written(
        WriteOptions::default(),
        &[("a", &empty), ("b", &counting(DType::U8, &[1])), ("c", &empty)],
    );
    assert_eq!(
        (tensor(&file, "a").unwrap(), tensor(&file, "c").unwrap()),
        (empty.clone(), empty)
    );
}

#[test]
fn t12_the_same_data_may_have_several_names_but_parts_of_it_may_not() {
    let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    let tied = counting(DType::F32, &[2, 2]);
    writer.tensor("encoder", &tied).unwrap();
    writer.alias("decoder", tied.spec(), "encoder").unwrap();
    writer.alias("bits", &spec(DType::U32, &[4]), "encoder").unwrap();
    let error = writer
        .alias("half", &spec(DType::F32, &[2]), "encoder")
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::SizeMismatch, Some("T12"))
    );
    assert_eq!(
        writer.alias("x", tied.spec(), "nothing").unwrap_err().kind(),
        ErrorKind::OutOfBounds
    );
    let file = writer.finish().unwrap();
    let reader = open(&file).unwrap();
    assert_eq!(reader.entries().len(), 3);
    let [encoder, decoder] =
        ["encoder", "decoder"].map(|name| reader.tensor(reader.find(name).unwrap()).unwrap());
    assert_eq!(
        (encoder.bytes().as_ptr(), &encoder),
        (decoder.bytes().as_ptr(), &tied)
    );

    let partly = Forge::of(&[
        ForgedTensor::new("a", 7, &[8], 4, 8),
        ForgedTensor::new("b", 7, &[8], 8, 8),
    ])
    .file();
    assert_eq!(open(&partly).unwrap_err().broken_rule(), Some("T12"));
    assert_eq!(
        open_leniently(&partly).unwrap().tensor(1).unwrap().bytes()[..],
        [4, 5, 6, 7, 8, 9, 10, 11]
    );
}

#[test]
fn t12_holes_are_reported() {
    let mut data = vec![0; 9000];
    data[7000..7010].fill(b'x');
    let tensors = [
        ForgedTensor::new("a", 7, &[4], 4, 4),
        ForgedTensor::new("b", 7, &[4], 5000, 4),
    ];
    let forge = Forge {
        data,
        ..Forge::of(&tensors)
    };
    let lints = open(&forge.file()).unwrap().lints().unwrap();
    let ranges: Vec<_> = lints.iter().filter_map(|lint| lint.range.clone()).collect();
    // The lints name two holes: one longer than any padding, and one with nonzero bytes.
    assert_eq!(ranges.last(), Some(&(7004..7014)));
    assert!(ranges.contains(&(8..5000)), "{lints:?}");
}

#[test]
fn t13_data_lies_between_magic_and_index() {
    for (offset, is_accepted) in [(3, false), (4, true), (52, true), (53, false)] {
        let file = Forge::with(|tensor| tensor.offset = Some(offset));
        assert_eq!(open(&file).is_ok(), is_accepted, "{offset}");
    }
}

#[test]
fn t14_ten_dtypes() {
    for dtype in DType::ALL {
        let tensor = counting(dtype, &[3, 2]);
        let mut writer = TbufWriter::new(Vec::new(), WriteOptions::default()).unwrap();
        let begun = writer.tensor("a", &tensor);
        if [DType::Bool, DType::F16, DType::BF16].contains(&dtype) {
            let error = begun.unwrap_err();
            assert_eq!(
                (error.kind(), error.broken_rule()),
                (ErrorKind::Unsupported, Some("T14"))
            );
        } else {
            begun.unwrap();
            assert_eq!(
                crate::support::tensor(&writer.finish().unwrap(), "a").unwrap(),
                tensor
            );
        }
    }
    let sparse = Plan {
        entries: vec![PlannedEntry::coo("a", spec(DType::F32, &[4, 4]), 2)],
        ..Plan::default()
    };
    let error = TbufWriter::planned(NoSink, &sparse, WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn t15_data_is_little_endian() {
    let file = written(WriteOptions::default(), &[("a", &Tensor::scalar(0x0102_0304u32))]);
    assert_eq!(file[64..68], [4, 3, 2, 1]);
}

#[test]
fn t17_fields_of_later_versions_are_passed_over() {
    let forge = Forge {
        operations: Some(0),
        ..Forge::new()
    };
    let reader = open(&forge.file()).unwrap();
    assert!(reader.has_unknown_fields());
    assert!(lint_rules(&reader).contains(&"T17".to_owned()));
    assert!(!open(&small()).unwrap().has_unknown_fields());
    assert!(
        open(&Forge::with(|tensor| tensor.unknown = Some(1)))
            .unwrap()
            .has_unknown_fields()
    );
}

#[test]
fn t20_limits_are_the_readers() {
    let many: Vec<_> = (0..5)
        .map(|number| ForgedTensor::new(&number.to_string(), 7, &[1, 1, 1], 4, 1))
        .collect();
    let file = Forge::of(&many).file();
    let reader = open(&file).unwrap();
    let index = reader.index_range().end - reader.index_range().start;
    type Set = fn(&mut Limits, u64);
    let limits: [(&str, u64, Set, ErrorKind); 4] = [
        (
            "tensors",
            5,
            |limits, limit| limits.tensors = limit,
            ErrorKind::TooLarge,
        ),
        (
            "rank",
            3,
            |limits, limit| limits.rank = limit,
            ErrorKind::TooLarge,
        ),
        (
            "name",
            1,
            |limits, limit| limits.name_bytes = limit,
            ErrorKind::BadName,
        ),
        (
            "index",
            index,
            |limits, limit| limits.index_bytes = limit,
            ErrorKind::TooLarge,
        ),
    ];
    for (what, actual, set, kind) in limits {
        for (limit, expected) in [(actual - 1, Some(kind)), (actual, None), (actual + 1, None)] {
            let mut limits = Limits::default();
            set(&mut limits, limit);
            assert_eq!(open_with(file.clone(), limits).err(), expected, "{what} {limit}");
        }
    }
}

#[test]
fn t20_nothing_is_written_that_readers_refuse() {
    let limits = Limits {
        tensors: 2,
        rank: 2,
        name_bytes: 4,
        ..Limits::default()
    };
    let options = WriteOptions {
        limits,
        ..WriteOptions::default()
    };
    let mut writer = TbufWriter::new(Vec::new(), options).unwrap();
    let scalar = spec(DType::U8, &[]);
    assert_eq!(
        writer
            .begin("a", &spec(DType::U8, &[1, 1, 1]))
            .unwrap_err()
            .kind(),
        ErrorKind::TooLarge
    );
    assert_eq!(
        writer.begin("abcde", &scalar).unwrap_err().kind(),
        ErrorKind::BadName
    );
    writer.tensor("abcd", &Tensor::scalar(1u8)).unwrap();
    writer.tensor("b", &Tensor::scalar(1u8)).unwrap();
    assert_eq!(
        writer.begin("c", &scalar).unwrap_err().kind(),
        ErrorKind::TooLarge
    );
    let file = writer.finish().unwrap();

    // The bound on the index is at least its actual size.
    let reader = open(&file).unwrap();
    let index = reader.index_range().end - reader.index_range().start;
    let options = WriteOptions {
        limits: Limits {
            index_bytes: index,
            ..Limits::default()
        },
        ..WriteOptions::default()
    };
    let mut writer = TbufWriter::new(Vec::new(), options).unwrap();
    let begun = writer.begin("abcd", &scalar).and_then(|()| writer.write(&[1]));
    let begun = begun.and_then(|()| writer.begin("b", &scalar));
    assert_eq!(begun.unwrap_err().broken_rule(), Some("T20"));
}

#[test]
fn reading_by_rows_into_buffers_and_verifying() {
    let matrix = counting(DType::I16, &[4, 3]);
    let file = written(back_to_back(), &[("m", &matrix), ("s", &Tensor::scalar(1u8))]);
    let reader = open(&file).unwrap();
    let (m, s) = (reader.find("m").unwrap(), reader.find("s").unwrap());
    assert_eq!(reader.rows(m, 1..3).unwrap(), matrix.rows(1..3).unwrap());
    let backwards = std::ops::Range { start: 2, end: 1 };
    for (index, rows) in [(m, 0..5), (m, backwards), (s, 0..1)] {
        assert_eq!(
            reader.rows(index, rows).unwrap_err().kind(),
            ErrorKind::OutOfBounds
        );
    }
    let mut buffer = vec![0; 24];
    reader.read_into(m, &mut buffer).unwrap();
    assert_eq!(buffer, matrix.bytes()[..]);
    assert_eq!(
        reader.read_into(m, &mut buffer[1..]).unwrap_err().kind(),
        ErrorKind::SizeMismatch
    );
    assert_eq!(reader.verify(m).unwrap(), Verification::Unchecked);
    assert_eq!(reader.sparse(m).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(reader.format(), "tbuf");
}

#[test]
fn tensors_of_bytes_in_memory_are_slices_of_them() {
    let file = Bytes::from(small());
    let reader = TbufReader::from_bytes(file.clone()).unwrap();
    assert_eq!(reader.tensor(0).unwrap().bytes().as_ptr(), file[64..].as_ptr());
    assert_eq!(
        reader.rows(0, 1..2).unwrap().bytes().as_ptr(),
        file[68..].as_ptr()
    );
}

/// Checks that misaligned data is copied instead of viewed in place.
#[test]
fn misaligned_data() {
    let mut aligned = Forge::of(&[ForgedTensor::new("a", 2, &[2], 5, 16)]).file();
    // The data is at offset 5 of the file, so the allocation determines whether it is aligned. The test
    // accepts both cases.
    let tensor = tensor(&aligned, "a").unwrap();
    let expected: Vec<f64> = aligned[5..21]
        .chunks_exact(8)
        .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(tensor.view().to_cow::<f64>().unwrap()[..], expected);
    let view = tensor.view().as_slice::<f64>().map(<[f64]>::to_vec);
    let is_aligned = (tensor.bytes().as_ptr() as usize).is_multiple_of(8);
    assert_eq!(
        view,
        if is_aligned {
            Ok(expected)
        } else {
            Err(CastError::Misaligned { dtype: DType::F64 })
        }
    );
    aligned.clear();
    let reader = open(&Forge::of(&[ForgedTensor::new("a", 2, &[2], 5, 16)]).file()).unwrap();
    assert!(lint_rules(&reader).contains(&"T3".to_owned()));
}
