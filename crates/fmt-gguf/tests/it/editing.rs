//! Edits names and metadata of files on disk.

use std::fs;

use fmt_core::{ErrorKind, TensorReader};
use fmt_gguf::{GgufReader, edit};

use crate::support::{RawTensor, file, sample, text};

#[test]
fn values_keep_their_types_and_tensors_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    fs::write(&path, sample()).unwrap();
    let original = GgufReader::from_bytes(sample()).unwrap();
    let set = |key: &str, value: Option<&str>| {
        let mut editor = edit(&path, &Default::default()).unwrap();
        editor.set(key, value);
        editor.save()
    };
    // The new value has the length of the old value, so the file is changed in place.
    assert!(set("general.file_type", Some("8")).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), sample().len() as u64);
    assert!(!set("general.name", Some(&"long".repeat(20))).unwrap());
    assert!(!set("tiny.limit", None).unwrap());
    let refused = set("general.file_type", Some("eight")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);

    let reader = GgufReader::from_path(&path).unwrap();
    assert_eq!(reader.metadata()["general.file_type"], "8");
    assert!(reader.metadata()["gguf.types"].contains(r#""general.file_type":"u32""#));
    assert!(!reader.metadata().contains_key("tiny.limit"));
    for index in [0, 1, 2, 4] {
        assert_eq!(reader.tensor(index).unwrap(), original.tensor(index).unwrap());
    }
}

/// Edits keep the offsets of tensors that are not in data order and have padding between them.
#[test]
fn offsets_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let tensors = [
        RawTensor("a", &[4], 24, vec![1, 2, 3, 4]),
        RawTensor("b", &[4], 24, vec![5, 6, 7, 8]),
    ];
    let mut bytes = file(&[("general.name", 8, text("x"))], &tensors);
    // In the header, each tensor's offset follows its type.
    let offsets: Vec<usize> = (0..bytes.len() - 12)
        .filter(|at| bytes[*at..].starts_with(&[24, 0, 0, 0]))
        .collect();
    bytes[offsets[0] + 4] = 32;
    bytes[offsets[1] + 4] = 0;
    fs::write(&path, bytes).unwrap();
    let mut editor = edit(&path, &Default::default()).unwrap();
    editor
        .rename("a", "a longer name than there was, by far")
        .unwrap();
    editor.save().unwrap();
    let reader = GgufReader::from_path(&path).unwrap();
    assert_eq!(reader.tensor(0).unwrap().to_vec::<i8>().unwrap(), [5, 6, 7, 8]);
    assert_eq!(reader.tensor(1).unwrap().to_vec::<i8>().unwrap(), [1, 2, 3, 4]);

    let mut editor = edit(&path, &Default::default()).unwrap();
    editor.set("general.alignment", Some("64"));
    assert_eq!(editor.save().unwrap_err().kind(), ErrorKind::Unsupported);
}
