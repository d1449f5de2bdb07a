//! Files written by several versions of the Python package `ztensor` (`tests/python/make_objects.py`).

use std::{collections::BTreeMap, fs, path::Path};

use fmt_core::{TensorReader, Verification};
use fmt_ztensor2::ObjectsReader;
use sha2::{Digest, Sha256};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real");

/// Returns dtype, shape and digest of each tensor, by file and name.
fn expected() -> BTreeMap<(String, String), String> {
    let mut expected = BTreeMap::new();
    for entry in fs::read_dir(FOLDER).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        for line in fs::read_to_string(path).unwrap().lines() {
            let fields: Vec<_> = line.split('\t').collect();
            let key = (fields[0].to_owned(), fields[1].to_owned());
            expected.insert(key, fields[2..].join("\t"));
        }
    }
    expected
}

fn content(reader: &dyn TensorReader, index: usize) -> Option<Vec<u8>> {
    if let Ok(sparse) = reader.sparse(index) {
        return Some([&sparse.indices().bytes()[..], sparse.values().bytes()].concat());
    }
    let mut stream = reader.stream(index).ok()?;
    let (mut content, mut buffer) = (Vec::new(), vec![0; 4096]);
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return Some(content),
            len => content.extend_from_slice(&buffer[..len]),
        }
    }
}

#[test]
fn files_of_the_python_packages() {
    let expected = expected();
    assert!(expected.len() > 60, "{}", expected.len());
    for ((file, name), expected) in &expected {
        let reader = ObjectsReader::from_path(Path::new(FOLDER).join(file)).unwrap();
        let index = reader.find(name).unwrap();
        let entry = &reader.entries()[index];
        let digest: String = Sha256::digest(content(&reader, index).unwrap())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            &format!("{}{}\t{digest}", entry.dtype, entry.shape),
            expected,
            "{file} {name}"
        );
        let verified = reader.verify(index).unwrap();
        let has_checksum = file.starts_with('2') || file.contains("crc32c") || file.contains("sha256");
        assert_eq!(verified == Verification::Ok, has_checksum, "{file} {name}");
        assert!(reader.lints().unwrap().iter().all(|lint| lint.tensor.is_some()));
    }
    // An object that cannot be read as a tensor is listed with the reason.
    let sparse = ObjectsReader::from_path(Path::new(FOLDER).join("1.2.3-sparse.zt")).unwrap();
    let quantised = &sparse.entries()[sparse.find("q").unwrap()];
    assert_eq!(
        quantised.unsupported.as_deref(),
        Some("the layout 'quantized_group'")
    );
    assert_eq!(quantised.attributes.to_map()["bits"], "4");
    let types = ObjectsReader::from_path(Path::new(FOLDER).join("2.1.2-types.zt")).unwrap();
    assert_eq!(types.metadata()["made"], "by a script");
}
