//! Formats are recognised by their marks, then by names.

use fmt_core::{ErrorKind::*, Metadata};
use tensor_core::DType;
use tensor_files::{detect, open};

use crate::support::{tensor, writable, write};

#[test]
fn every_format_opens_its_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let values = tensor(DType::F32, &[2, 3]);
    for format in writable() {
        let name = format!("a.{}", format.extensions()[0]);
        let path = write(folder.path(), &name, &[("0", &values)], &Metadata::new());
        let reader = open(&path, &Default::default()).unwrap();
        assert_eq!(reader.format(), format.id());
        assert_eq!(reader.tensor(0).unwrap(), values);
        // Without a name, and with a wrong one if the format has a mark.
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(
            detect(&bytes, bytes.len() as u64, None).unwrap().id(),
            format.id()
        );
        let is_marked = format.sniff(&bytes, bytes.len() as u64) == fmt_core::Sniff::Certain;
        let misnamed = detect(&bytes, bytes.len() as u64, Some("a.btf".as_ref())).unwrap();
        assert_eq!(misnamed.id(), if is_marked { format.id() } else { "btf" });
    }
}

#[test]
fn what_is_of_no_format_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("paper");
    std::fs::write(&path, b"%PDF-1.7 and so on and on").unwrap();
    let error = open(&path, &Default::default()).err().unwrap();
    assert_eq!(error.kind(), Unsupported);
    assert!(
        error
            .to_string()
            .contains("one of btf, gguf, npy, npz, onnx, safetensors"),
        "{error}"
    );
    // A name that a format has is believed: its reader says best what is wrong.
    let path = folder.path().join("paper.npy");
    std::fs::write(&path, b"%PDF-1.7 and so on and on").unwrap();
    assert_eq!(open(&path, &Default::default()).err().unwrap().kind(), BadMagic);
    std::fs::write(&path, b"").unwrap();
    assert_eq!(open(&path, &Default::default()).err().unwrap().kind(), Truncated);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(open(&empty, &Default::default()).err().unwrap().kind(), NotAFile);
}

/// An archive of arrays is recognised by its first member, as checkpoints of PyTorch are: a wrong name does not matter.
#[test]
fn a_misnamed_archive_of_arrays_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let values = tensor(DType::F32, &[2, 3]);
    let path = write(folder.path(), "a.npz", &[("w", &values)], &Metadata::new());
    for name in ["a.safetensors", "a.bin", "a.gguf", "a.btf"] {
        let misnamed = folder.path().join(name);
        std::fs::copy(&path, &misnamed).unwrap();
        let reader = open(&misnamed, &Default::default()).unwrap();
        assert_eq!(reader.format(), "npz", "{name}");
        assert_eq!(reader.tensor(0).unwrap(), values, "{name}");
    }
}
