//! Tests of sharded checkpoints.

use std::{fs, path::Path};

use fmt_core::{ErrorKind, Metadata, ReadOptions, TensorReader};
use tensor_core::DType;
use tensor_files::{ConvertOptions, ShardOptions, convert_sharded, diff, format, open_composite};

use crate::support::{names, open, tensor, writable, write};

/// Writes a file of three tensors of 24 bytes each, `a`, `b` and `c`.
fn source(folder: &Path) -> std::path::PathBuf {
    let tensors = ["a", "b", "c"].map(|name| (name, tensor(DType::F32, &[2, 3])));
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let metadata = Metadata::from([("format".to_owned(), "pt".to_owned())]);
    write(folder, "whole.safetensors", &tensors, &metadata)
}

fn divide(folder: &Path, to: &str, max_bytes: u64) -> tensor_files::ShardedCheckpoint {
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
    // A single file must not replace existing shards, and shards must not replace a single file.
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
    // A checkpoint that cannot be written leaves no directory behind.
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
    assert_eq!(
        with(second, "../out/model-00002-of-00002.safetensors").0,
        ErrorKind::BadName
    );

    // Faults that cannot lead to wrong data are reported as lints, not as errors.
    let notes = |from: &str, to: &str| {
        assert!(good.contains(from), "{good}");
        fs::write(&index, good.replacen(from, to, 1)).unwrap();
        let opened = open_composite(&out, &ReadOptions::default()).unwrap();
        assert_eq!(opened.entries().len(), 3, "nothing is left out");
        let notes: Vec<String> = opened.notes().map(str::to_owned).collect();
        assert_eq!(opened.lints().unwrap().len(), notes.len());
        notes
    };
    assert_eq!(
        notes("\"total_size\": 72", "\"total_size\": 73"),
        ["the index claims 73 bytes in all tensors, and they have 72"]
    );
    assert_eq!(
        notes(&format!("\"a\": \"{first}\",\n"), ""),
        [format!(
            "the tensor 'a' of '{first}': read, although the index does not name it"
        )]
    );
    // Some tools write the total size as a double, because they count half bytes.
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

/// If two files have the same tensor, the index decides which is read; if the index does not name the tensor,
/// opening fails.
#[test]
fn the_index_decides_between_two_files() {
    let folder = tempfile::tempdir().unwrap();
    divide(folder.path(), "out/model.safetensors", 50);
    let out = folder.path().join("out");
    let (first, second) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    let zeros = tensor_core::Tensor::from_vec(tensor_core::Shape::vector(2), vec![0f32; 2]).unwrap();
    let c = tensor(DType::F32, &[2, 3]);
    write(&out, second, &[("b", &zeros), ("c", &c)], &Metadata::new());
    let opened = open_composite(&out, &ReadOptions::default()).unwrap();
    assert_eq!(opened.entries().len(), 3);
    assert_eq!(opened.entries()[1].shape.dims(), [2, 3]);
    let notes: Vec<&str> = opened.notes().collect();
    let told =
        format!("the tensor 'b' of '{second}': skipped, since the index says that it is in another file");
    assert_eq!(notes[0], told);
    let index = out.join("model.safetensors.index.json");
    let good = fs::read_to_string(&index).unwrap();
    fs::write(&index, good.replace(&format!("\"b\": \"{first}\",\n"), "")).unwrap();
    assert_eq!(refused(&out).0, ErrorKind::Duplicate);
    let lenient = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    assert_eq!(
        open_composite(&out, &lenient).unwrap().entries()[1].shape.dims(),
        [2, 3]
    );
}

/// Other layouts of Hugging Face are read: a single file with an index, a variant's index, and all files
/// without an index.
#[test]
fn other_layouts_of_checkpoints_are_read_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let whole = open(&source(folder.path()));
    let out = folder.path().join("out");
    let same = |notes: &[&str]| {
        let opened = open_composite(&out, &ReadOptions::default()).unwrap();
        assert!(diff(&*whole, &opened, Default::default()).is_empty());
        assert!(
            opened.notes().eq(notes.iter().copied()),
            "{:?}",
            opened.notes().collect::<Vec<_>>()
        );
        tensor_files::checkpoint_files(&out).unwrap().len()
    };
    divide(folder.path(), "out/model.safetensors", 24);
    let index = out.join("model.safetensors.index.json");
    let json = fs::read_to_string(&index).unwrap();
    assert_eq!(same(&[]), 4);
    fs::remove_file(&index).unwrap();
    let without = "no index lists the shards: all 3 files with matching names are read";
    assert_eq!(same(&[without]), 3);
    // The shards are also found by the name of the single file.
    let named = open_composite(&out.join("model.safetensors"), &ReadOptions::default()).unwrap();
    assert_eq!(named.entries().len(), 3);
    for number in 1..=3 {
        let from = out.join(format!("model-{number:05}-of-00003.safetensors"));
        fs::rename(
            from,
            out.join(format!("model-{number:05}-of-00003.fp16.safetensors")),
        )
        .unwrap();
    }
    assert_eq!(same(&[without]), 3);
    let variant = out.join("model.safetensors.index.fp16.json");
    fs::write(&variant, json.replace(".safetensors", ".fp16.safetensors")).unwrap();
    assert_eq!(same(&[]), 4);
    let named = open_composite(&variant, &ReadOptions::default()).unwrap();
    assert_eq!(named.entries().len(), 3);
    fs::copy(
        folder.path().join("whole.safetensors"),
        out.join("model.safetensors"),
    )
    .unwrap();
    fs::write(
        &index,
        json.replace("model-00001-of-00003.safetensors", "model.safetensors"),
    )
    .unwrap();
    let both = "'model.safetensors' is read, and not the files that 'model.safetensors.index.json' names";
    assert_eq!(same(&[both]), 1);
}

/// If the process is killed while files are renamed, the directory has no complete checkpoint, because old
/// and new files may have the same names.
#[test]
fn files_without_the_first_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for extension in ["safetensors", "gguf"] {
        let sharded = divide(folder.path(), &format!("{extension}/model.{extension}"), 24);
        let out = folder.path().join(extension);
        sharded
            .index
            .into_iter()
            .for_each(|index| fs::remove_file(index).unwrap());
        open_composite(&out, &ReadOptions::default()).unwrap();
        fs::remove_file(&sharded.files[0]).unwrap();
        let (kind, text) = refused(&out);
        assert_eq!(kind, ErrorKind::Truncated);
        assert!(
            text.contains(&format!("expected 'model-00001-of-00003.{extension}' as well")),
            "{text}"
        );
    }
}

/// If renaming stops halfway, old and new files exist next to each other. They are never combined, because
/// the old first file is already removed and the new first file is renamed last.
#[test]
fn old_and_new_files_are_never_taken_together() {
    for extension in ["safetensors", "gguf"] {
        let folder = tempfile::tempdir().unwrap();
        let old = divide(folder.path(), &format!("out/model.{extension}"), 24);
        let out = folder.path().join("out");
        let reader = open(&source(folder.path()));
        // When all tensors are written, a directory takes the second file's name, so that renaming stops
        // there.
        let stop = |progress: tensor_files::Progress| {
            if progress.done == progress.total && old.files[1].is_file() {
                fs::remove_file(&old.files[1]).unwrap();
                fs::create_dir(&old.files[1]).unwrap();
            }
            std::ops::ControlFlow::Continue(())
        };
        let options = ConvertOptions {
            on_progress: Some(&stop),
            ..ConvertOptions::default()
        };
        let path = out.join(format!("model.{extension}"));
        let target = format(extension).unwrap();
        let shards = ShardOptions::at_most(24);
        let stopped = convert_sharded(&*reader, target, &path, &shards, &options).unwrap_err();
        assert_eq!(stopped.kind(), ErrorKind::Io);
        fs::remove_dir(&old.files[1]).unwrap();
        fs::copy(&old.files[2], &old.files[1]).unwrap();
        let (kind, text) = refused(&out);
        assert_eq!(kind, ErrorKind::Truncated, "{text}");
        assert!(
            text.contains(&format!("'model-00001-of-00003.{extension}'")),
            "{text}"
        );
    }
}

/// GGUF files contain the information of an index themselves.
#[test]
fn files_of_gguf_have_no_index() {
    let folder = tempfile::tempdir().unwrap();
    let sharded = divide(folder.path(), "out/model.gguf", 24);
    assert_eq!((sharded.files.len(), sharded.index), (3, None));
    let out = folder.path().join("out");
    assert_eq!(
        names(&out),
        [1, 2, 3].map(|number| format!("model-{number:05}-of-00003.gguf"))
    );
    for (number, file) in sharded.files.iter().enumerate() {
        let reader = open(file);
        let metadata = reader.metadata();
        assert_eq!(metadata["split.no"], number.to_string());
        assert_eq!(metadata["split.count"], "3");
        assert_eq!(metadata["split.tensors.count"], "3");
        assert_eq!(
            metadata["gguf.types"],
            r#"{"split.count":"u16","split.no":"u16","split.tensors.count":"i32"}"#
        );
        assert_eq!(metadata.contains_key("format"), number == 0);
    }
    let whole = open_composite(&out, &ReadOptions::default()).unwrap();
    assert_eq!(
        whole.metadata(),
        &Metadata::from([("format".to_owned(), "pt".to_owned())])
    );
    assert_eq!(whole.notes().count(), 0);
    // A single file that is converted from all shards, or from one of them, is an independent model.
    let target = format("gguf").unwrap();
    let merged = folder.path().join("merged.gguf");
    let convert = |reader: &dyn TensorReader| {
        tensor_files::convert(reader, target, &merged, &ConvertOptions::default()).unwrap();
        open(&merged).metadata().clone()
    };
    assert_eq!(&convert(&whole), whole.metadata());
    assert_eq!(&convert(&*open(&sharded.files[0])), whole.metadata());
    // Dividing the checkpoint differently removes the old files.
    divide(folder.path(), "out/model.gguf", 50);
    assert_eq!(
        names(&out),
        ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    );
    // A single file is refused where shards exist.
    let options = ConvertOptions::default();
    let shards = ShardOptions::at_most(1 << 20);
    let path = out.join("model.gguf");
    let refused_form = convert_sharded(&whole, target, &path, &shards, &options).unwrap_err();
    assert_eq!(refused_form.kind(), ErrorKind::Exists);
    // Both files are now the second one, so the name of the first does not match its shard number.
    let part = |number: u32| out.join(format!("model-{number:05}-of-00002.gguf"));
    fs::copy(part(2), part(1)).unwrap();
    let (kind, text) = refused(&out);
    assert_eq!(kind, ErrorKind::Malformed, "{text}");
    assert!(
        text.contains("number 0 (from 0) of 2") && text.contains("found number 1 of 2"),
        "{text}"
    );
}
