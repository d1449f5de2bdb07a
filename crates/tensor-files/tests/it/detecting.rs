//! Formats are detected by their magic numbers, then by names.

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
        // The file is detected without a name, and with a wrong name if the format has a magic number.
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
    // If the name belongs to a format, that format's reader is used, because its error explains best what is
    // wrong.
    let path = folder.path().join("paper.npy");
    std::fs::write(&path, b"%PDF-1.7 and so on and on").unwrap();
    assert_eq!(open(&path, &Default::default()).err().unwrap().kind(), BadMagic);
    std::fs::write(&path, b"").unwrap();
    assert_eq!(open(&path, &Default::default()).err().unwrap().kind(), Truncated);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(open(&empty, &Default::default()).err().unwrap().kind(), NotAFile);
}

/// An archive of arrays is detected by its first member, like PyTorch checkpoints, whatever its name.
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

/// The error describes the kind of file that was found, whatever its name.
#[test]
fn what_is_another_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let values = tensor(DType::F32, &[2, 3]);
    let safetensors = write(
        folder.path(),
        "a.safetensors",
        &[("w", &values)],
        &Metadata::new(),
    );
    let safetensors = std::fs::read(safetensors).unwrap();
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868416\n";
    let cases: [(&[u8], &str); 8] = [
        (pointer, "a pointer of Git LFS to a file of 90868416 bytes"),
        (b"<!DOCTYPE html><html>Sign in</html>", "an HTML page"),
        (
            b"Invalid username or password.",
            "text that begins with 'Invalid username or password.'",
        ),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0", "compressed with gzip"),
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0\0", "a Python pickle"),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0", "an HDF5 file"),
        (&[0; 40], "begins with zeros"),
        (&safetensors, "a safetensors file"),
    ];
    for (content, expected) in cases {
        for name in [
            "model.safetensors",
            "m.zt",
            "m.tbuf",
            "m.btf",
            "m.npz",
            "m.npy",
            "m.gguf",
            "m.pt",
            "m.onnx",
            "m",
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            let Err(error) = open(&path, &Default::default()) else {
                // Opening succeeds if the name matches the real format or has no known extension. Zeros are a
                // valid BTF file without tensors.
                assert!(
                    expected.contains("safetensors") || expected.contains("zeros"),
                    "{name}: {expected}"
                );
                continue;
            };
            assert!(error.to_string().contains(expected), "{name}: {error}");
        }
    }
}

/// For an interrupted download, the error gives the actual and the expected length.
#[test]
fn what_is_cut_off_is_told_with_both_lengths() {
    let folder = tempfile::tempdir().unwrap();
    let values = tensor(DType::F32, &[20, 30]);
    for name in ["a.safetensors", "a.npy", "a.gguf"] {
        let path = write(folder.path(), name, &[("0", &values)], &Metadata::new());
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1000]).unwrap();
        let error = open(&path, &Default::default()).err().unwrap();
        let expected = format!(
            "the file is truncated; copy or download it again: expected {} bytes, found {}",
            bytes.len(),
            bytes.len() - 1000
        );
        assert_eq!((error.kind(), error.to_string()), (Truncated, expected), "{name}");
    }
}
