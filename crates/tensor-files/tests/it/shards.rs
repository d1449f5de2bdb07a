//! Checkpoints of many files.

use std::{fs, path::Path};

use fmt_core::{ErrorKind, Metadata, ReadOptions, TensorReader};
use tensor_core::DType;
use tensor_files::{ConvertOptions, ShardOptions, convert_sharded, diff, format, open_composite};

use crate::support::{names, open, tensor, writable, write};

/// Three tensors of 24 bytes, two of which fit into a file.
fn source(folder: &Path) -> std::path::PathBuf {
    let tensors = ["a", "b", "c"].map(|name| (name, tensor(DType::F32, &[2, 3])));
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let metadata = Metadata::from([("format".to_owned(), "pt".to_owned())]);
    write(folder, "whole.safetensors", &tensors, &metadata)
}

fn divide(folder: &Path, to: &str, max_bytes: u64) -> tensor_files::Sharded {
    let reader = open(&source(folder));
    let path = folder.join(to);
    let target = tensor_files::format_of_path(&path).unwrap();
    let options = ConvertOptions {
        allow_loss: tensor_files::AllowedLoss::ALL,
        ..ConvertOptions::default()
    };
    convert_sharded(
        &*reader,
        target,
        &path,
        &ShardOptions::at_most(max_bytes),
        &options,
    )
    .unwrap()
}

fn refused(path: &Path) -> (ErrorKind, String) {
    let error = tensor_files::open(path, &ReadOptions::default()).err().unwrap();
    (error.kind(), error.to_string())
}

#[test]
fn every_format_can_be_divided_and_read_as_one() {
    for to in writable().filter(|format| format.id() != "npy") {
        let folder = tempfile::tempdir().unwrap();
        let extension = to.extensions()[0];
        let sharded = divide(folder.path(), &format!("out/model.{extension}"), 50);
        assert_eq!(sharded.files.len(), 2, "{extension}");
        let out = folder.path().join("out");
        assert!(names(&out).contains(&format!("model-00002-of-00002.{extension}")));
        for path in [out.clone(), sharded.index.unwrap()] {
            let opened = open_composite(&path, &ReadOptions::default()).unwrap();
            let whole = open(&folder.path().join("whole.safetensors"));
            let left = diff(&*whole, &opened, Default::default());
            let is_metadata =
                |found: &tensor_files::Difference| found.kind == tensor_files::DifferenceKind::Metadata;
            assert!(left.iter().all(is_metadata), "{extension}: {left:?}");
            assert!(
                opened
                    .file_of(2)
                    .ends_with(&format!("out/model-00002-of-00002.{extension}"))
            );
            assert_eq!(tensor_files::checkpoint_files(&path).unwrap().len(), 3);
        }
    }
}

#[test]
fn one_file_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let sharded = divide(folder.path(), "out/model.safetensors", 1 << 20);
    assert_eq!((sharded.files.len(), sharded.index), (1, None));
    assert_eq!(names(&folder.path().join("out")), ["model.safetensors"]);
}

#[test]
fn a_checkpoint_is_replaced_as_a_whole_and_not_by_another_form() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    divide(folder.path(), "out/model.safetensors", 24);
    fs::write(out.join("other-00001-of-00003.safetensors"), "not mine").unwrap();
    fs::write(out.join("other.safetensors.index.json"), "{}").unwrap();
    assert_eq!(names(&out).len(), 6);
    divide(folder.path(), "out/model.safetensors", 50);
    assert_eq!(
        names(&out),
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "other-00001-of-00003.safetensors",
            "other.safetensors.index.json",
        ]
    );
    let reader = open(&folder.path().join("whole.safetensors"));
    let mut options = ConvertOptions::default();
    let safetensors = format("safetensors").unwrap();
    let divide = |max, name: &str, options: &ConvertOptions<'_>| {
        let shards = ShardOptions::at_most(max);
        let divided = convert_sharded(&*reader, safetensors, &folder.path().join(name), &shards, options);
        divided.map(drop).map_err(|error| error.kind())
    };
    // One file where there are many, many where there is one.
    assert_eq!(
        divide(1 << 20, "out/model.safetensors", &options),
        Err(ErrorKind::Exists)
    );
    assert_eq!(divide(24, "whole.safetensors", &options), Err(ErrorKind::Exists));
    options.output.is_new = true;
    assert_eq!(
        divide(24, "out/model.safetensors", &options),
        Err(ErrorKind::Exists)
    );
    assert_eq!(names(&out).len(), 5);
    // A checkpoint that cannot be written leaves no folder.
    let npy = format("npy").unwrap();
    let path = folder.path().join("none/a.npy");
    assert!(convert_sharded(&*reader, npy, &path, &ShardOptions::at_most(1), &options).is_err());
    assert!(!folder.path().join("none").exists());
}

#[test]
fn an_index_that_lies_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    divide(folder.path(), "out/model.safetensors", 50);
    let out = folder.path().join("out");
    let index = out.join("model.safetensors.index.json");
    let good = fs::read_to_string(&index).unwrap();
    let (first, second) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{good}");
        fs::write(&index, good.replacen(from, to, 1)).unwrap();
        refused(&out)
    };
    let (kind, text) = with(&format!("\"a\": \"{first}\""), &format!("\"a\": \"{second}\""));
    assert_eq!(kind, ErrorKind::OutOfBounds);
    assert!(
        text.starts_with("tensor 'a': ") && text.ends_with(&format!("found in '{first}'")),
        "{text}"
    );
    let (kind, text) = with("\"a\":", "\"x\":");
    assert_eq!(kind, ErrorKind::OutOfBounds, "{text}");
    assert!(text.ends_with("found in none of the files"), "{text}");
    let (kind, text) = with("\"total_size\": 72", "\"total_size\": 73");
    assert_eq!(kind, ErrorKind::SizeMismatch);
    assert!(
        text.contains("claims 73 bytes") && text.contains("they have 72"),
        "{text}"
    );
    let (kind, text) = with(&format!("\"a\": \"{first}\",\n"), "");
    assert_eq!(kind, ErrorKind::Malformed, "{text}");
    assert!(text.contains("'a'") && text.contains("does not say so"), "{text}");
    assert_eq!(
        with(second, "../out/model-00002-of-00002.safetensors").0,
        ErrorKind::BadName
    );

    // Faults that cannot lead to wrong data are findings, not errors.
    fs::write(&index, good.replace("72", "73")).unwrap();
    let lenient = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    let opened = open_composite(&out, &lenient).unwrap();
    assert!(opened.lints().unwrap()[0].message.contains("claims 73 bytes"));
    // Some tools count in halves of bytes, or write a double.
    fs::write(&index, good.replace("72", "72.0")).unwrap();
    open(&out);

    fs::write(&index, &good).unwrap();
    fs::remove_file(out.join(second)).unwrap();
    let (kind, text) = refused(&out);
    assert_eq!(kind, ErrorKind::Io);
    assert!(
        text.contains(second) && text.contains("which the index names"),
        "{text}"
    );
    fs::remove_file(&index).unwrap();
    assert_eq!(refused(&out).0, ErrorKind::Truncated);
}
