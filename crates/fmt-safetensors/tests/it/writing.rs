//! Writers: rejected input, and deterministic output.

use fmt_core::{AtomicFile, ErrorKind, ErrorKind::*, Format, Metadata, Plan, PlannedEntry, TensorReader};
use fmt_safetensors::{Safetensors, SafetensorsReader, SafetensorsWriter};
use tensor_core::{DType, Shape, TensorSpec};

use crate::support::{counting, open, written};

fn refused(tensors: &[(&str, TensorSpec)]) -> ErrorKind {
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, spec)| ((*name).to_owned(), spec.clone()))
        .collect();
    let mut out = Vec::new();
    let error = SafetensorsWriter::new(&mut out, &tensors, &Metadata::new()).unwrap_err();
    assert!(out.is_empty() && error.broken_rule().is_some());
    error.kind()
}

fn spec(dims: &[u64]) -> TensorSpec {
    TensorSpec::new(DType::U8, Shape::new(dims).unwrap()).unwrap()
}

/// Invalid plans are rejected before the first byte is written.
#[test]
fn what_the_format_cannot_hold() {
    assert_eq!(refused(&[("a", spec(&[1])), ("a", spec(&[2]))]), Duplicate);
    assert_eq!(refused(&[("__metadata__", spec(&[1]))]), BadName);
    assert_eq!(refused(&[(&"n".repeat(65537), spec(&[1]))]), BadName);
    assert_eq!(refused(&[("a", spec(&[1 << 63]))]), TooLarge);
    assert_eq!(
        refused(&[
            ("a", spec(&[1 << 60])),
            ("b", spec(&[1 << 60])),
            ("c", spec(&[1 << 60])),
            ("d", spec(&[1 << 60])),
            ("e", spec(&[1 << 60])),
            ("f", spec(&[1 << 60])),
            ("g", spec(&[1 << 60])),
            ("h", spec(&[1 << 60]))
        ]),
        TooLarge
    );
    // The crate safetensors multiplies the dimensions in order, and refuses this shape because the product
    // overflows before it is multiplied by 0.
    assert_eq!(refused(&[("a", spec(&[1 << 63, 4, 0]))]), TooLarge);

    let create = |entry: PlannedEntry| {
        let plan = Plan {
            entries: vec![entry],
            ..Plan::default()
        };
        Safetensors
            .create(Box::new(Vec::new()), plan)
            .map(drop)
            .map_err(|error| error.kind())
    };
    assert_eq!(create(PlannedEntry::dense("a", spec(&[1]))), Ok(()));
    assert_eq!(create(PlannedEntry::coo("a", spec(&[1]), 1)), Err(Unsupported));
    let mut with_attribute = PlannedEntry::dense("a", spec(&[1]));
    with_attribute.attributes.insert("a".into(), "b".into());
    assert_eq!(create(with_attribute), Err(Unsupported));
}

#[test]
fn bytes_that_do_not_fit() {
    let writer =
        || SafetensorsWriter::new(Vec::new(), &[("a".into(), spec(&[3]))], &Metadata::new()).unwrap();
    assert_eq!(writer().finish().unwrap_err().kind(), SizeMismatch);
    let mut short = writer();
    short.write(&[1, 2]).unwrap();
    assert_eq!(short.write(&[3, 4]).unwrap_err().kind(), SizeMismatch);
    short.write(&[3]).unwrap();
    assert_eq!(short.finish().unwrap().len(), 64 + 3);
}

/// Pieces of any length give the same file.
#[test]
fn the_same_tensors_give_the_same_bytes() {
    let metadata: Metadata = [("z".into(), "1".into()), ("a".into(), "\u{1F600}\"\n".into())].into();
    let tensors = DType::ALL.map(|dtype| (dtype.name(), counting(dtype, &[3, 1])));
    let borrowed: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let whole = written(&borrowed, &metadata);
    let bytes: Vec<u8> = tensors
        .iter()
        .flat_map(|(_, tensor)| tensor.bytes().to_vec())
        .collect();
    for piece in [1, 2, 3, 7, bytes.len()] {
        let mut out = Vec::new();
        let entries = tensors
            .iter()
            .map(|(name, tensor)| PlannedEntry::dense(*name, tensor.spec().clone()));
        let plan = Plan {
            entries: entries.collect(),
            metadata: metadata.clone(),
        };
        let mut writer = Safetensors.create(Box::new(&mut out), plan).unwrap();
        for piece in bytes.chunks(piece) {
            writer.write(piece).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), whole.len() as u64);
        assert!(out == whole);
    }
    let reader = open(&whole).unwrap();
    assert_eq!(reader.metadata(), &metadata);
    for (index, (name, tensor)) in tensors.iter().enumerate() {
        assert_eq!(reader.find(name), Some(index));
        assert_eq!(reader.tensor(index).unwrap(), *tensor);
    }
    assert_eq!(reader.find("other"), None);
}

/// Saving over the file that tensors are read from does not change what the open reader reads.
#[test]
fn saving_over_the_file_that_is_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let tensor = counting(DType::BF16, &[1000]);
    std::fs::write(&path, written(&[("a", &tensor)], &Metadata::new())).unwrap();
    let reader = SafetensorsReader::from_path(&path).unwrap();
    let specs = vec![("b".to_owned(), tensor.spec().clone())];
    let out = AtomicFile::create(&path).unwrap();
    let mut writer = SafetensorsWriter::new(out, &specs, &Metadata::new()).unwrap();
    writer.write(reader.tensor(0).unwrap().bytes()).unwrap();
    writer.finish().unwrap().persist().unwrap();
    assert_eq!(reader.tensor(0).unwrap(), tensor);
    let saved = SafetensorsReader::from_path(&path).unwrap();
    assert_eq!((saved.find("b"), saved.tensor(0).unwrap()), (Some(0), tensor));
}

/// Writing fails, no matter after how many bytes the sink is full, and every later write fails too.
#[test]
fn a_sink_that_is_full() {
    let tensor = counting(DType::U8, &[50]);
    let len = written(&[("a", &tensor)], &Metadata::new()).len();
    for room in 0..len {
        let mut full = vec![0; room];
        let specs = vec![("a".to_owned(), tensor.spec().clone())];
        let mut writer = SafetensorsWriter::new(&mut full[..], &specs, &Metadata::new()).unwrap();
        assert_eq!(writer.write(tensor.bytes()).unwrap_err().kind(), Io);
        assert_eq!(writer.write(&[]).unwrap_err().kind(), Io);
    }
}
