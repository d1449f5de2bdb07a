//! Files of version 2 written by this crate, read by this crate and by the reference implementation.

use std::{collections::BTreeMap, sync::Arc};

use fmt_core::{
    Error, ErrorKind, Format, OpaqueDType, Plan, PlannedEntry, ReadOptions, StoredDType, TensorReader,
    Verification, testing::read_everything,
};
use fmt_ztensor2::{ObjectsReader, Ztensor1, Ztensor2};
use proptest::prelude::*;
use tensor_core::{Bytes, DType, Shape, TensorSpec};

fn dense(name: &str, dtype: DType, dims: &[u64]) -> PlannedEntry {
    PlannedEntry::dense(name, TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap())
}

fn opaque(name: &str, dtype: OpaqueDType, dims: &[u64]) -> PlannedEntry {
    PlannedEntry::opaque(name, dtype, Shape::new(dims).unwrap()).unwrap()
}

/// Writes tensors whose bytes are consecutive numbers, `piece` bytes at a time. Returns the file and the
/// tensors' bytes.
fn written(plan: &Plan, piece: usize) -> Result<(Vec<u8>, Vec<Vec<u8>>), Error> {
    let mut file = Vec::new();
    let contents: Vec<Vec<u8>> = plan
        .entries
        .iter()
        .zip(1..)
        .map(|(entry, seed)| {
            let is_bool = entry.opaque.is_none() && entry.spec.dtype() == DType::Bool;
            let byte = |at: u64| (at * seed) as u8 & if is_bool { 1 } else { 0xFF };
            (0..entry.byte_len().unwrap()).map(byte).collect()
        })
        .collect();
    let mut writer = Ztensor2.create(Box::new(&mut file), plan.clone())?;
    for bytes in contents.concat().chunks(piece) {
        writer.write(bytes)?;
    }
    let len = writer.finish()?;
    assert_eq!(len, file.len() as u64);
    Ok((file, contents))
}

/// Plans tensors of every dtype, with several shapes: a scalar, a vector, a shape without elements, and a
/// large one.
fn everything() -> Plan {
    let shapes: [&[u64]; 4] = [&[], &[3], &[2, 0, 5], &[17, 2, 31]];
    let known = DType::ALL.iter().zip(shapes.iter().cycle());
    let mut entries: Vec<_> = known
        .map(|(dtype, dims)| dense(dtype.name(), *dtype, dims))
        .collect();
    for (name, bits) in [
        ("F8_E4M3", 8),
        ("F8_E5M2", 8),
        ("F8_E8M0", 8),
        ("F4", 4),
        ("C64", 64),
        ("C128", 128),
    ] {
        entries.push(opaque(name, OpaqueDType::of_bits(name, bits), &[2, 6]));
    }
    entries[1].attributes = BTreeMap::from([("unit".into(), "mm".into()), ("q".into(), String::new())]);
    let metadata = [
        ("format", "pt"),
        ("a longer key than twenty-three bytes", "\u{e4}"),
    ];
    Plan {
        entries,
        metadata: metadata
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    }
}

#[test]
fn what_is_written_is_read_here() {
    let plan = everything();
    let (file, contents) = written(&plan, 4099).unwrap();
    assert_eq!(written(&plan, 1).unwrap().0, file, "the same whatever the pieces");
    let reader = ObjectsReader::open(Arc::new(Bytes::from(file)), &ReadOptions::default()).unwrap();
    assert_eq!(reader.metadata(), &plan.metadata);
    assert_eq!(reader.lints().unwrap(), []);
    read_everything(&reader);
    assert_eq!(reader.entries().len(), plan.entries.len());
    for (planned, content) in plan.entries.iter().zip(&contents) {
        let index = reader.find(&planned.name).unwrap();
        let entry = &reader.entries()[index];
        match &planned.opaque {
            Some((dtype, shape)) => {
                assert_eq!(
                    (&entry.dtype, &entry.shape),
                    (&StoredDType::Opaque(dtype.clone()), shape)
                );
            }
            None => {
                assert_eq!(entry.spec().as_ref(), Some(&planned.spec));
                assert_eq!(reader.tensor(index).unwrap().bytes(), content);
            }
        }
        assert_eq!(entry.attributes.to_map(), planned.attributes);
        assert_eq!(reader.verify(index).unwrap(), Verification::Ok, "{}", entry.name);
    }
}

/// The reference implementation reads the same tensors, and the digests match.
#[test]
fn what_is_written_is_read_by_the_projects_crate() {
    let plan = everything();
    let (file, contents) = written(&plan, 1 << 20).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.zt");
    std::fs::write(&path, file).unwrap();
    let source = ztensor::Source::open(&path).unwrap();
    assert_eq!(source.len(), plan.entries.len());
    for (planned, content) in plan.entries.iter().zip(&contents) {
        let tensor = source.tensor(&planned.name).unwrap();
        let shape = planned
            .opaque
            .as_ref()
            .map_or(planned.spec.shape(), |(_, shape)| shape);
        assert_eq!((tensor.shape(), tensor.layout()), (shape.dims(), "dense"));
        assert_eq!(tensor.data().unwrap().bytes().unwrap(), &content[..]);
        assert!(tensor.verify().unwrap().is_checked(), "{}", planned.name);
    }
    let shown = format!("{:?}", source.attributes().unwrap());
    assert!(
        shown.contains("\"pt\"") && shown.contains("twenty-three"),
        "{shown}"
    );
}

#[test]
fn a_file_of_no_tensors() {
    let (file, _) = written(&Plan::default(), 1).unwrap();
    let reader = ObjectsReader::open(Arc::new(Bytes::from(file)), &ReadOptions::default()).unwrap();
    assert_eq!(reader.entries().len(), 0);
}

#[test]
fn what_the_format_cannot_hold() {
    let refused = |entry: PlannedEntry| {
        let plan = Plan {
            entries: vec![entry],
            ..Plan::default()
        };
        let mut file = Vec::new();
        let error = Ztensor2.create(Box::new(&mut file), plan).err().unwrap();
        assert_eq!(file, []);
        (error.kind(), error.broken_rule())
    };
    let spec = TensorSpec::new(DType::F32, Shape::vector(9)).unwrap();
    assert_eq!(
        refused(PlannedEntry::coo("s", spec, 2)),
        (ErrorKind::Unsupported, Some("O18"))
    );
    assert_eq!(
        refused(opaque("q", OpaqueDType::new("Q8_0", 32, 34), &[32])),
        (ErrorKind::Unsupported, Some("O9"))
    );
    for name in ["", "a\0b", &"x".repeat(1025)] {
        assert_eq!(
            refused(dense(name, DType::F32, &[1])),
            (ErrorKind::BadName, Some("O6"))
        );
    }
    let mut keyed = dense("k", DType::F32, &[1]);
    keyed.attributes.insert(String::new(), "value".into());
    assert_eq!(refused(keyed), (ErrorKind::BadName, Some("O7")));

    let twice = vec![dense("t", DType::F32, &[1]), dense("t", DType::I8, &[1])];
    let plan = Plan {
        entries: twice,
        ..Plan::default()
    };
    assert_eq!(written(&plan, 1).unwrap_err().kind(), ErrorKind::Duplicate);

    let plan = Plan {
        entries: vec![dense("b", DType::Bool, &[2])],
        ..Plan::default()
    };
    let write = |bytes: &[u8]| {
        let mut writer = Ztensor2.create(Box::new(std::io::sink()), plan.clone())?;
        writer.write(bytes)?;
        writer.finish()
    };
    assert_eq!(write(&[1, 2]).unwrap_err().broken_rule(), Some("O17"));
    assert_eq!(write(&[1]).unwrap_err().kind(), ErrorKind::SizeMismatch);
    assert_eq!(write(&[1, 0, 1]).unwrap_err().kind(), ErrorKind::SizeMismatch);
    assert!(write(&[1, 0]).is_ok());
    assert!(Ztensor2.is_written() && !Ztensor1.is_written());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_names_and_texts(
        tensors in prop::collection::btree_map("[^\0]{1,40}", ("[^\0]{1,300}", ".{0,300}", 0..70_000u64), 0..6),
        metadata in prop::collection::btree_map("[^\0]{1,30}", ".{0,70}", 0..30),
        piece in 1..9000usize,
    ) {
        let entries = tensors.iter().map(|(name, (key, value, len))| {
            let mut entry = dense(name, DType::U8, &[*len]);
            entry.attributes.insert(key.clone(), value.clone());
            entry
        });
        let plan = Plan { entries: entries.collect(), metadata };
        let (file, contents) = written(&plan, piece).unwrap();
        let reader = ObjectsReader::open(Arc::new(Bytes::from(file)), &ReadOptions::default()).unwrap();
        prop_assert_eq!(reader.metadata(), &plan.metadata);
        for (planned, content) in plan.entries.iter().zip(&contents) {
            let index = reader.find(&planned.name).unwrap();
            let tensor = reader.tensor(index).unwrap();
            prop_assert_eq!(tensor.bytes(), content);
            prop_assert_eq!(&reader.entries()[index].attributes.to_map(), &planned.attributes);
        }
    }
}
