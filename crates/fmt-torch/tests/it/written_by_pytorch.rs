//! Checkpoints written by PyTorch: `tests/python/checkpoints.py` generates and describes them.

use std::{collections::BTreeMap, path::PathBuf};

use fmt_core::{Error, ErrorKind, ReadOptions, TensorReader, testing::open_hostile};
use fmt_torch::{Torch, TorchReader};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

fn open(name: &str) -> Result<TorchReader, Error> {
    TorchReader::from_path(path(name))
}

fn open_leniently(name: &str) -> TorchReader {
    let options = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    let bytes = tensor_core::Bytes::from(std::fs::read(path(name)).unwrap());
    TorchReader::open(std::sync::Arc::new(bytes), &options).unwrap()
}

/// Streams the bytes of a tensor.
fn streamed(reader: &TorchReader, index: usize) -> Vec<u8> {
    let mut stream = reader.stream(index).unwrap();
    let (mut all, mut buffer) = (Vec::new(), [0; 48]);
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return all,
            len => all.extend(&buffer[..len]),
        }
    }
}

#[test]
fn everything_is_what_pytorch_reads() {
    let expected = std::fs::read_to_string(path("expected.txt")).unwrap();
    let mut files = BTreeMap::<&str, BTreeMap<&str, &str>>::new();
    for line in expected.lines() {
        let (file, rest) = line.split_once(' ').unwrap();
        let (name, description) = rest.split_once(' ').unwrap();
        files.entry(file).or_default().insert(name, description);
    }
    assert!(files.len() > 10, "{} files", files.len());
    for (file, tensors) in files {
        let reader = open(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        let found: BTreeMap<String, String> = (0..reader.entries().len())
            .map(|index| {
                let entry = &reader.entries()[index];
                let crc = crc32fast::hash(&streamed(&reader, index));
                (
                    entry.name.clone(),
                    format!("{}{} {crc:08x}", entry.dtype, entry.shape),
                )
            })
            .collect();
        let found: BTreeMap<&str, &str> = found.iter().map(|(name, text)| (&**name, &**text)).collect();
        assert_eq!(found, tensors, "{file}");
        // All ways of reading agree, in memory and on disk, within limits.
        open_hostile(
            &Torch,
            &std::fs::read(path(file)).unwrap(),
            &ReadOptions::default(),
        )
        .unwrap();
    }
}

#[test]
fn values_beside_tensors_are_metadata() {
    for file in ["training.pt", "training_legacy.pt"] {
        let reader = open(file).unwrap();
        let metadata = reader.metadata();
        assert_eq!(metadata["epoch"], "3", "{file}");
        assert_eq!(metadata["counts.a"], "2", "{file}");
        assert_eq!(metadata["optimizer.param_groups.0.lr"], "0.001", "{file}");
    }
}

#[test]
fn tensors_with_a_step_to_come_are_not_read_as_they_are() {
    let reader = open("lazy.pt").unwrap();
    for (name, step) in [("conjugated", "resolve_conj()"), ("negated", "resolve_neg()")] {
        let index = reader.find(name).unwrap();
        let entry = &reader.entries()[index];
        assert!(!entry.is_copied_only(), "{name} would be copied as it is");
        let error = reader.tensor(index).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(step), "{error}");
        assert!(reader.stream(index).is_err());
    }
    assert!(reader.tensor(reader.find("plain").unwrap()).is_ok());
}

#[test]
fn other_kinds_are_listed_and_not_read() {
    for (file, name, dims, reason) in [
        ("quantised.pt", "q", &[4][..], "dequantize()"),
        ("sparse.pt", "s", &[3, 3], "to_dense()"),
        ("numpy.pt", "a", &[3], "torch.from_numpy"),
    ] {
        for reader in [open(file).unwrap(), open_leniently(file)] {
            let entry = &reader.entries()[0];
            assert_eq!((&*entry.name, entry.shape.dims()), (name, dims));
            assert!(!entry.is_copied_only() && entry.spec().is_none());
            let error = reader.tensor(0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(reason), "{error}");
            assert!(reader.stream(0).is_err());
            assert_eq!(reader.verify(0).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}

#[test]
fn code_is_refused_by_name() {
    let error = open("module.pt").unwrap_err();
    assert_eq!(
        (error.kind(), error.broken_rule()),
        (ErrorKind::Unsupported, Some("P3"))
    );
    let name = "'torch.nn.modules.container.Sequential'";
    assert!(error.to_string().contains(name), "{error}");
}

/// A lenient reader represents objects by their attributes and reports ignored globals.
#[test]
fn lenient_reading_finds_the_parameters_of_a_module() {
    let reader = open_leniently("module.pt");
    let state = open("state.pt").unwrap();
    for (index, entry) in state.entries().iter().enumerate() {
        let same = reader
            .find(&entry.name)
            .unwrap_or_else(|| panic!("{}", entry.name));
        assert_eq!(reader.tensor(same).unwrap(), state.tensor(index).unwrap());
    }
    let parts = reader.foreign_parts();
    assert!(
        parts.contains(&"objects of torch.nn.modules.linear.Linear".to_owned()),
        "{parts:?}"
    );
    assert!(!reader.lints().unwrap().is_empty());
}

#[test]
fn storages_that_stand_for_themselves_are_bytes() {
    let reader = open("storage.pt").unwrap();
    let bytes = reader.tensor(0).unwrap();
    assert_eq!(reader.entries()[0].name, "bytes");
    assert_eq!(bytes.to_vec::<u8>().unwrap(), [0, 0, 128, 63, 0, 0, 128, 63]);
}

#[test]
fn programs_are_foreign_parts_of_a_script() {
    let reader = open("script.pt").unwrap();
    assert!(
        reader.foreign_parts().iter().any(|part| part.contains("/code/")),
        "{:?}",
        reader.foreign_parts()
    );
}
