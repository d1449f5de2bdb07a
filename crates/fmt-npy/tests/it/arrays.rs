//! `.npy`: one test for each rule of docs/formats/npy.md.

use std::sync::Arc;

use fmt_core::{
    Encoding,
    ErrorKind::{self, *},
    Format, Limits, Plan, PlannedEntry, ReadOptions, Sniff, TensorReader,
};
use fmt_npy::{Npy, NpyReader};
use tensor_core::{Bytes, DType, Shape, TensorSpec};

use crate::support::{counting, header, npy, open, verdict, written};

#[test]
fn n1_magic_and_version() {
    let good = npy(&header("|u1", false, "(2,)"), &[1, 2]);
    for position in 0..6 {
        let mut bytes = good.clone();
        bytes[position] ^= 1;
        assert_eq!(verdict(open(&bytes)), Err((BadMagic, "N1")));
    }
    for version in [[0, 0], [1, 1], [4, 0], [2, 7], [255, 255]] {
        let mut bytes = good.clone();
        bytes[6..8].copy_from_slice(&version);
        assert_eq!(verdict(open(&bytes)), Err((BadVersion, "N1")));
    }
    // Versions 2 and 3 have a longer length field.
    let text = header("|u1", false, "(2,)");
    for version in [2, 3] {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend([7, 8]);
        assert_eq!(
            open(&bytes).unwrap().tensor(0).unwrap().to_vec::<u8>().unwrap(),
            [7, 8]
        );
    }
    assert_eq!(Npy.sniff(&good, 100), Sniff::Certain);
    assert_eq!(Npy.sniff(b"\x93NUMP", 100), Sniff::No);
}

#[test]
fn n2_the_length_of_the_header() {
    let good = npy(&header("|u1", false, "(0,)"), &[]);
    for len in 0..good.len() {
        assert_eq!(verdict(open(&good[..len])), Err((Truncated, "N2")), "{len}");
    }
    let mut long = good.clone();
    long[6] = 2;
    long[8..12].copy_from_slice(&65_537u32.to_le_bytes());
    assert_eq!(verdict(open(&long)), Err((TooLarge, "N2")));
}

#[test]
fn n3_the_text_of_the_header() {
    for text in [
        "",
        "{}",
        "[]",
        "{'descr': '|u1'}",
        "{'descr': '|u1', 'fortran_order': False}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)} {}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': false, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': 1}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1.0,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1 1)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (18446744073709551616,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (__import__('os'),)}",
        "{'descr': '|u\\x31', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|u1, 'fortran_order': False, 'shape': (1,)}",
        "{descr: '|u1', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [('a', '<f4')",
        "{'descr': 'a",
    ] {
        assert_eq!(verdict(open(&npy(text, &[1]))), Err((Malformed, "N3")), "{text}");
    }
    for text in [
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}",
        "{\"shape\":(1,),\"fortran_order\":True,\"descr\":\"|u1\"}",
        "  { 'descr' : '|u1' , 'fortran_order' : False , 'shape' : ( 1 , ) , }  \n",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1L,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': ()}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1,1)}",
    ] {
        let reader = open(&npy(text, &[9])).unwrap();
        assert_eq!(reader.tensor(0).unwrap().to_vec::<u8>().unwrap(), [9], "{text}");
    }
}

#[test]
fn n4_dtypes() {
    for (descr, dtype) in [
        ("|b1", DType::Bool),
        ("?", DType::Bool),
        ("<f2", DType::F16),
        ("u1", DType::U8),
        // ml_dtypes saves bfloat16 as `<V2`; genuine raw bytes have no byte order.
        ("<V2", DType::BF16),
    ] {
        let bytes = vec![1; dtype.size()];
        let reader = open(&npy(&header(descr, false, "()"), &bytes)).unwrap();
        assert_eq!(reader.entries()[0].dtype.known(), Some(dtype));
    }
    for descr in [
        "|O", "<c8", "<U3", "|S3", "|V2", "=f4", "f4", "|i4", "<M8[ns]", "<f16", "",
    ] {
        let reader = open(&npy(&header(descr, false, "(1,)"), &[0; 16])).unwrap();
        assert!(reader.entries()[0].unsupported.is_some());
        assert_eq!(verdict(reader.tensor(0)), Err((Unsupported, "N4")), "{descr}");
    }
    let objects = open(&npy(&header("|O", false, "(1,)"), &[0; 16])).unwrap();
    let reason = objects.tensor(0).unwrap_err().to_string();
    assert!(reason.contains("'|O'") && reason.contains("pickled"), "{reason}");
    let fields = "{'descr': [('a', '<f4'), ('b', '|u1', (2, 2))], 'fortran_order': False, 'shape': (1,)}";
    assert_eq!(
        verdict(open(&npy(fields, &[0; 8])).unwrap().tensor(0)),
        Err((Unsupported, "N4"))
    );
}

#[test]
fn n5_shapes() {
    let opened = |descr: &str, shape: &str| verdict(open(&npy(&header(descr, false, shape), &[0; 8])));
    let overflow = Err((Overflow, "N5"));
    assert_eq!(opened("|u1", "(4294967296, 4294967296)"), overflow);
    assert_eq!(opened("|u1", "(9223372036854775808,)"), overflow);
    assert_eq!(opened("<f8", "(2305843009213693952,)"), overflow);
    assert_eq!(opened("|O", "(4294967296, 4294967296)"), overflow);
    assert_eq!(
        opened("<f8", "(0, 9223372036854775808, 9223372036854775808)"),
        Ok(())
    );
    let rank = |rank: usize| opened("|u1", &format!("({})", "1,".repeat(rank)));
    assert_eq!(rank(64), Ok(()));
    assert_eq!(rank(66), Err((TooLarge, "N5")));
    assert_eq!(rank(65), Err((TooLarge, "N5")));
}

#[test]
fn n6_the_length_of_the_data() {
    let bytes = npy(&header("<f4", false, "(2,)"), &[0; 7]);
    assert_eq!(verdict(open(&bytes)), Err((Truncated, "N6")));
    let huge = npy(&header("<f4", false, "(1000000000000,)"), &[0; 7]);
    assert_eq!(verdict(open(&huge)), Err((Truncated, "N6")));
    let longer = npy(&header("<f4", false, "(2,)"), &[0; 9]);
    let reader = open(&longer).unwrap();
    assert_eq!(reader.lints().unwrap().len(), 1);
    assert_eq!(reader.tensor(0).unwrap().bytes().len(), 8);
}

#[test]
fn n7_byte_order_and_memory_order() {
    // The array is [[1, 2, 3], [4, 5, 6]].
    for (descr, is_column_major, values) in [
        ("<i2", false, [1i16, 2, 3, 4, 5, 6]),
        (">i2", false, [1, 2, 3, 4, 5, 6]),
        ("<i2", true, [1, 4, 2, 5, 3, 6]),
        (">i2", true, [1, 4, 2, 5, 3, 6]),
    ] {
        let is_big = descr.starts_with('>');
        let bytes = values.iter().flat_map(|value| {
            if is_big {
                value.to_be_bytes()
            } else {
                value.to_le_bytes()
            }
        });
        let file = npy(
            &header(descr, is_column_major, "(2, 3)"),
            &bytes.collect::<Vec<u8>>(),
        );
        let reader = open(&file).unwrap();
        assert_eq!(
            reader.tensor(0).unwrap().to_vec::<i16>().unwrap(),
            [1, 2, 3, 4, 5, 6]
        );
        assert_eq!(reader.rows(0, 1..2).unwrap().to_vec::<i16>().unwrap(), [4, 5, 6]);
        let mut buffer = [0; 12];
        reader.read_into(0, &mut buffer).unwrap();
        assert_eq!(buffer, [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0]);
        assert_eq!(reader.entries()[0].is_big_endian, is_big);
        assert_eq!(
            reader.entries()[0].encoding == Encoding::ColumnMajor,
            is_column_major
        );

        // Conversion respects the limit on decoded bytes.
        let limits = Limits {
            decoded_bytes: 11,
            ..Limits::default()
        };
        let options = ReadOptions {
            limits,
            ..ReadOptions::default()
        };
        let limited = NpyReader::open(Arc::new(Bytes::from(file)), &options).unwrap();
        let is_plain = !is_big && !is_column_major;
        let wanted = if is_plain { Ok(()) } else { Err((TooLarge, "N7")) };
        assert_eq!(verdict(limited.tensor(0)), wanted);
    }
    // For a vector, both orders are the same.
    let vector = open(&npy(&header("|u1", true, "(3,)"), &[1, 2, 3])).unwrap();
    assert_eq!(vector.tensor(0).unwrap().to_vec::<u8>().unwrap(), [1, 2, 3]);
}

#[test]
fn plain_arrays_are_not_copied() {
    let bytes = Bytes::from(written(&Npy, &[("0", &counting(DType::F64, &[100]))], 7));
    let reader = NpyReader::from_bytes(bytes.clone()).unwrap();
    let tensor = reader.tensor(0).unwrap();
    assert!(bytes.as_ptr_range().contains(&tensor.bytes().as_ptr()));
    assert_eq!(reader.entries()[0].range.start % 64, 0);
    assert_eq!(reader.find("0"), Some(0));
}

/// Opaque elements are byte-swapped by word and transposed.
#[test]
fn n4_opaque_elements() {
    let streamed = |file: &[u8]| {
        let reader = open(file).unwrap();
        assert!(reader.entries()[0].is_copied_only());
        let (mut stream, mut out) = (reader.stream(0).unwrap(), [0; 64]);
        let len = stream.read(&mut out).unwrap();
        (reader.entries()[0].dtype.to_string(), out[..len].to_vec())
    };
    let strings = npy(&header("|S3", false, "(2,)"), b"ab\0cde");
    assert_eq!(streamed(&strings), ("S3".to_owned(), b"ab\0cde".to_vec()));
    // Two strings of two code points each, big-endian.
    let texts: Vec<u8> = "abcd"
        .chars()
        .flat_map(|character| u32::from(character).to_be_bytes())
        .collect();
    let little: Vec<u8> = "abcd"
        .chars()
        .flat_map(|character| u32::from(character).to_le_bytes())
        .collect();
    let file = npy(&header(">U2", false, "(2,)"), &texts);
    assert_eq!(streamed(&file), ("U2".to_owned(), little));
    // Two by two complex numbers, column-major and big-endian.
    let parts: Vec<u8> = (0..8u8).flat_map(|part| f32::from(part).to_be_bytes()).collect();
    let file = npy(&header(">c8", true, "(2, 2)"), &parts);
    let wanted: Vec<u8> = [0u8, 1, 4, 5, 2, 3, 6, 7]
        .iter()
        .flat_map(|part| f32::from(*part).to_le_bytes())
        .collect();
    assert_eq!(streamed(&file), ("C64".to_owned(), wanted));
    let cut = npy(&header("|S3", false, "(3,)"), b"ab\0cde");
    assert_eq!(verdict(open(&cut)), Err((Truncated, "N6")));
}

#[test]
fn n13_opaque_elements_are_written() {
    let written = |name: &str, bytes: u32| {
        let dtype = fmt_core::OpaqueDType::new(name, 1, bytes);
        let entry = PlannedEntry::opaque("0", dtype, Shape::vector(2)).unwrap();
        let plan = Plan {
            entries: vec![entry],
            ..Plan::default()
        };
        let mut out = Vec::new();
        let mut writer = Npy
            .create(Box::new(&mut out), plan)
            .map_err(|error| (error.kind(), error.to_string()))?;
        writer.write(&vec![7; 2 * bytes as usize]).unwrap();
        writer.finish().unwrap();
        let reader = open(&out).unwrap();
        assert_eq!(reader.entries()[0].dtype.to_string(), name);
        Ok::<_, (ErrorKind, String)>(String::from_utf8_lossy(&out[10..40]).into_owned())
    };
    assert!(written("S3", 3).unwrap().contains("'|S3'"));
    assert!(written("U2", 8).unwrap().contains("'<U2'"));
    assert!(written("C64", 8).unwrap().contains("'<c8'"));
    assert!(written("M8[ns]", 8).unwrap().contains("'<M8[ns]'"));
    assert_eq!(written("F8_E4M3", 1).unwrap_err().0, Unsupported);
}

#[test]
fn n13_what_cannot_be_written() {
    let spec = |dtype: DType, dims: &[u64]| TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap();
    let entry = |dtype, dims: &[u64]| PlannedEntry::dense("0", spec(dtype, dims));
    let create = |entries: Vec<PlannedEntry>| -> Result<(), (ErrorKind, &'static str)> {
        let plan = Plan {
            entries,
            ..Plan::default()
        };
        verdict(Npy.create(Box::new(Vec::new()), plan))
    };
    assert_eq!(create(vec![entry(DType::F16, &[3])]), Ok(()));
    assert_eq!(create(vec![]), Err((Unsupported, "N13")));
    assert_eq!(
        create(vec![entry(DType::F16, &[3]), entry(DType::F16, &[3])]),
        Err((Unsupported, "N13"))
    );
    assert_eq!(create(vec![entry(DType::BF16, &[3])]), Ok(()));
    assert_eq!(create(vec![entry(DType::U8, &[1 << 63])]), Err((TooLarge, "N13")));
    assert_eq!(
        create(vec![PlannedEntry::dense("a", spec(DType::U8, &[3]))]),
        Err((BadName, "N13"))
    );
    assert_eq!(
        create(vec![PlannedEntry::coo("0", spec(DType::U8, &[3]), 1)]),
        Err((Unsupported, "N13"))
    );
    let plan = Plan {
        entries: vec![entry(DType::U8, &[3])],
        metadata: [("a".into(), "b".into())].into(),
    };
    assert_eq!(
        verdict(Npy.create(Box::new(Vec::new()), plan.clone())),
        Err((Unsupported, "N13"))
    );
    let mut writer = Npy
        .create(
            Box::new(Vec::new()),
            Plan {
                metadata: Default::default(),
                ..plan
            },
        )
        .unwrap();
    assert_eq!(writer.write(&[0; 4]).unwrap_err().kind(), SizeMismatch);
    writer.write(&[0; 2]).unwrap();
    assert_eq!(writer.finish().unwrap_err().kind(), SizeMismatch);
}
