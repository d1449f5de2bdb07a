//! Edits names and metadata of files on disk.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use fmt_core::{ErrorKind, TensorReader};
use fmt_safetensors::{SafetensorsReader, edit};

/// Writes a file with a header of `header_len` bytes, a tensor of an unknown dtype, a tensor of a known
/// dtype, and an unknown key.
fn file(path: &Path, header_len: usize) {
    let json = r#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"n":{"dtype":"NEW","shape":[2],"data_offsets":[3,5]}}"#;
    let mut bytes = (header_len as u64).to_le_bytes().to_vec();
    bytes.extend(format!("{json:<header_len$}").bytes());
    bytes.extend([1, 2, 3, 4, 5]);
    fs::write(path, bytes).unwrap();
}

#[test]
fn in_place_where_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    file(&path, 200);
    let before = fs::metadata(&path).unwrap();
    let mut editor = edit(&path, &Default::default()).unwrap();
    editor.set("format", Some("pt"));
    editor.rename("w", "weight").unwrap();
    assert!(editor.save().unwrap());
    let after = fs::metadata(&path).unwrap();
    assert_eq!((before.ino(), before.len()), (after.ino(), after.len()));
    let reader = SafetensorsReader::from_path(&path).unwrap();
    assert_eq!(reader.metadata()["format"], "pt");
    let index = reader.find("weight").unwrap();
    assert_eq!(reader.tensor(index).unwrap().to_vec::<u8>().unwrap(), [1, 2, 3]);
    assert_eq!(reader.entries()[1].dtype.to_string(), "NEW");
    // No journal is left.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn anew_where_there_is_none_and_then_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    file(&path, 120);
    let set = |key: &str, value: Option<&str>| {
        let mut editor = edit(&path, &Default::default()).unwrap();
        editor.set(key, value);
        editor.save().unwrap()
    };
    assert!(!set("license", Some("apache-2.0")));
    assert!(set("format", Some("pt")));
    assert!(set("license", None));
    let reader = SafetensorsReader::from_path(&path).unwrap();
    assert_eq!(reader.metadata().len(), 1);
    assert_eq!(reader.tensor(0).unwrap().to_vec::<u8>().unwrap(), [1, 2, 3]);
    assert!(reader.entries()[0].range.start.is_multiple_of(64));
}

#[test]
fn what_cannot_be_is_refused_and_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    file(&path, 200);
    let bytes = fs::read(&path).unwrap();
    let open = || edit(&path, &Default::default()).unwrap();
    assert_eq!(open().rename("w", "n").unwrap_err().kind(), ErrorKind::Duplicate);
    assert_eq!(
        open().rename("x", "y").unwrap_err().kind(),
        ErrorKind::OutOfBounds
    );
    let mut editor = open();
    editor.rename("w", "__metadata__").unwrap();
    assert_eq!(editor.save().unwrap_err().kind(), ErrorKind::BadName);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    // Another process changes the file while the editor is open.
    let editor = open();
    let mut other = bytes.clone();
    other[100] = b' ';
    fs::write(&path, &other).unwrap();
    assert_eq!(editor.save().unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(fs::read(&path).unwrap(), other);
}

/// If a trainer replaces the checkpoint by rename while an editor is open, saving fails and keeps the new
/// file, even if it has the same length and header.
#[test]
fn a_checkpoint_that_took_the_files_name_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    for header_len in [200, 120] {
        file(&path, header_len);
        let mut newer = fs::read(&path).unwrap();
        *newer.last_mut().unwrap() = 99;
        let mut editor = edit(&path, &Default::default()).unwrap();
        editor.set("license", Some("apache-2.0"));
        let trained = folder.path().join("trained");
        fs::write(&trained, &newer).unwrap();
        fs::rename(&trained, &path).unwrap();
        assert_eq!(editor.save().unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(fs::read(&path).unwrap(), newer);
        // No journal and no temporary file is left.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
