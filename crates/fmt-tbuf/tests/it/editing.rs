//! Edits files: names, model and additional tensors, atomically and in place.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use fmt_core::{Entry, ErrorKind, ReadOptions, TensorReader};
use fmt_tbuf::{TbufEditor, TbufReader, WriteOptions, recover, tensor_id};
use tempfile::TempDir;
use tensor_core::{DType, Tensor};

use crate::support::{Forge, ForgedTensor, back_to_back, counting, open_leniently, spec, written};

/// Writes a file with tensors `a` and `b` into a new directory.
fn file_of_two(options: WriteOptions) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.tbuf");
    let file = written(
        options,
        &[
            ("a", &counting(DType::F32, &[3])),
            ("b", &counting(DType::U8, &[5])),
        ],
    );
    fs::write(&path, file).unwrap();
    (folder, path)
}

fn names(reader: &TbufReader) -> Vec<&str> {
    let mut names: Vec<&str> = reader
        .entries()
        .iter()
        .map(|entry: &Entry| &entry.name[..])
        .collect();
    names.sort_unstable();
    names
}

fn read(path: &Path, name: &str) -> Tensor {
    let reader = TbufReader::from_path(path).unwrap();
    reader.tensor(reader.find(name).unwrap()).unwrap()
}

fn files(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn t16_names_and_model_change_without_the_data() {
    for options in [WriteOptions::default(), back_to_back()] {
        for in_place in [false, true] {
            let (folder, path) = file_of_two(options.clone());
            let before = TbufReader::from_path(&path).unwrap();
            let places: Vec<_> = ["a", "b"]
                .map(|name| before.entries()[before.find(name).unwrap()].range.clone())
                .to_vec();
            let mut editor = TbufEditor::open(&path).unwrap();
            editor.rename("a", "a longer name").unwrap();
            editor.set_model(Some("resnet")).unwrap();
            if in_place {
                editor.save_in_place()
            } else {
                editor.save()
            }
            .unwrap();

            let after = TbufReader::from_path(&path).unwrap();
            assert_eq!(
                (names(&after), after.model()),
                (vec!["a longer name", "b"], Some("resnet"))
            );
            let renamed = after.find("a longer name").unwrap();
            assert_eq!(after.id(renamed), tensor_id("a longer name"));
            assert_eq!(after.entries()[renamed].range, places[0]);
            assert_eq!(after.entries()[after.find("b").unwrap()].range, places[1]);
            assert_eq!(after.tensor(renamed).unwrap(), counting(DType::F32, &[3]));
            assert_eq!(files(&folder), ["model.tbuf"]);
            // The old handle still reads the old file.
            assert_eq!(
                before.tensor(before.find("b").unwrap()).unwrap(),
                counting(DType::U8, &[5])
            );
        }
    }
}

#[test]
fn t16_tensors_are_appended() {
    for in_place in [false, true] {
        let (folder, path) = file_of_two(WriteOptions::default());
        let old_len = fs::metadata(&path).unwrap().len();
        let old_index = TbufReader::from_path(&path).unwrap().index_range();
        let editor = TbufEditor::open(&path).unwrap();
        let added = counting(DType::F64, &[100, 3]);
        let tied = spec(DType::U8, &[5]);
        if in_place {
            let mut writer = editor.append_in_place().unwrap();
            writer.begin("c", added.spec()).unwrap();
            added
                .bytes()
                .chunks(7)
                .for_each(|piece| writer.write(piece).unwrap());
            writer.alias("d", &tied, "b").unwrap();
            writer.tensor("e", &Tensor::scalar(1u8)).unwrap();
            writer.commit().unwrap();
        } else {
            let mut writer = editor.append().unwrap();
            writer.tensor("c", &added).unwrap();
            writer.alias("d", &tied, "b").unwrap();
            writer.tensor("e", &Tensor::scalar(1u8)).unwrap();
            writer.finish().unwrap().persist().unwrap();
        }
        let reader = TbufReader::from_path(&path).unwrap();
        assert_eq!(names(&reader), ["a", "b", "c", "d", "e"]);
        assert_eq!(
            (read(&path, "a"), read(&path, "c")),
            (counting(DType::F32, &[3]), added)
        );
        assert_eq!(read(&path, "d"), read(&path, "b"));
        let start = reader.entries()[reader.find("c").unwrap()].range.start;
        assert!(start.is_multiple_of(64) && start >= if in_place { old_len } else { old_index.start });
        assert_eq!(files(&folder), ["model.tbuf"]);
        // After a change in place, the old index is unused space and reported as such.
        let lints = reader.lints().unwrap();
        assert_eq!(
            lints.iter().any(|lint| lint.message.ends_with("(T12)")),
            in_place,
            "{lints:?}"
        );
    }
}

#[test]
fn refused_changes() {
    let (_folder, path) = file_of_two(WriteOptions::default());
    let before = fs::read(&path).unwrap();
    let mut editor = TbufEditor::open(&path).unwrap();
    for (from, to, kind) in [
        ("a", "b", ErrorKind::Duplicate),
        ("x", "y", ErrorKind::OutOfBounds),
        ("a", "a\0", ErrorKind::BadName),
    ] {
        assert_eq!(editor.rename(from, to).unwrap_err().kind(), kind, "{from} {to}");
    }
    editor.rename("a", "a").unwrap();
    editor.rename("a", "c").unwrap();
    editor.rename("b", "a").unwrap();
    editor.rename("c", "b").unwrap();
    let mut writer = editor.append().unwrap();
    assert_eq!(
        writer.tensor("a", &Tensor::scalar(1u8)).unwrap_err().kind(),
        ErrorKind::Duplicate
    );
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn two_names_change_places() {
    let (_folder, path) = file_of_two(WriteOptions::default());
    let mut editor = TbufEditor::open(&path).unwrap();
    assert_eq!(editor.reader().entries().len(), 2);
    for (from, to) in [("a", "c"), ("b", "a"), ("c", "b")] {
        editor.rename(from, to).unwrap();
    }
    editor.save().unwrap();
    assert_eq!(
        (read(&path, "a"), read(&path, "b")),
        (counting(DType::U8, &[5]), counting(DType::F32, &[3]))
    );
}

#[test]
fn what_cannot_be_read_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.tbuf");
    let file = Forge::of(&[
        ForgedTensor {
            dtype: Some(99),
            ..ForgedTensor::plain()
        },
        ForgedTensor::new("b", 7, &[2], 20, 2),
    ])
    .file();
    fs::write(&path, file).unwrap();
    let mut editor = TbufEditor::open(&path).unwrap();
    editor.rename("b", "c").unwrap();
    editor.save().unwrap();
    let reader = TbufReader::from_path(&path).unwrap();
    let entry = &reader.entries()[reader.find("a").unwrap()];
    assert_eq!(
        (entry.dtype.to_string(), entry.range.clone()),
        ("99".to_owned(), 4..16)
    );
    assert_eq!(read(&path, "c").bytes()[..], [16, 17]);
}

#[test]
fn t17_fields_are_not_lost_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("operations.tbuf");
    fs::write(
        &path,
        Forge {
            operations: Some(0),
            ..Forge::new()
        }
        .file(),
    )
    .unwrap();
    for in_place in [false, true] {
        let editor = TbufEditor::open(&path).unwrap();
        let saved = if in_place {
            editor.save_in_place()
        } else {
            editor.save()
        };
        let error = saved.unwrap_err();
        assert_eq!(
            (error.kind(), error.broken_rule()),
            (ErrorKind::Unsupported, Some("T17"))
        );
    }
    let mut editor = TbufEditor::open(&path).unwrap();
    editor.lose_unknown_fields();
    editor.save().unwrap();
    assert!(!TbufReader::from_path(&path).unwrap().has_unknown_fields());
}

#[test]
fn a_lenient_editor_cannot_mend_names_that_occur_twice() {
    let file = Forge::of(&[ForgedTensor::plain(), ForgedTensor::new("a", 7, &[1], 20, 1)]).file();
    assert!(open_leniently(&file).is_ok());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("twice.tbuf");
    fs::write(&path, file).unwrap();
    let lenient = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    let error = TbufEditor::open_with(&path, &lenient, WriteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Duplicate);
}

#[test]
fn a_change_in_place_that_is_given_up_leaves_the_old_file() {
    let (folder, path) = file_of_two(WriteOptions::default());
    let before = fs::read(&path).unwrap();
    let mut writer = TbufEditor::open(&path).unwrap().append_in_place().unwrap();
    writer.begin("c", &spec(DType::U8, &[4 << 20])).unwrap();
    writer.write(&vec![7; 3 << 20]).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > 2 << 20);
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), before);

    // When bytes are missing, the commit fails and the file is truncated to its old length.
    let mut writer = TbufEditor::open(&path).unwrap().append_in_place().unwrap();
    writer.begin("c", &spec(DType::U8, &[4])).unwrap();
    assert_eq!(writer.commit().unwrap_err().kind(), ErrorKind::SizeMismatch);
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(files(&folder), ["model.tbuf"]);
}

/// Checks that `recover` restores the old file after a crash at any point of a change in place.
#[test]
fn recovery_after_any_prefix_of_a_change_in_place() {
    let (_folder, path) = file_of_two(WriteOptions::default());
    let before = fs::read(&path).unwrap();
    let mut writer = TbufEditor::open(&path).unwrap().append_in_place().unwrap();
    let journal = path.with_file_name("model.tbuf.append-journal");
    let announced = fs::read(&journal).unwrap();
    assert_eq!(announced, format!("{}\n", before.len()).as_bytes());
    writer.tensor("c", &counting(DType::U8, &[50])).unwrap();
    writer.commit().unwrap();
    let after = fs::read(&path).unwrap();
    assert!(after.starts_with(&before));
    assert!(!journal.exists());
    assert_eq!(recover(&path).unwrap(), 0);

    for len in before.len()..=after.len() {
        fs::write(&path, &after[..len]).unwrap();
        fs::write(&journal, &announced).unwrap();
        // As long as the journal exists, even a completely written change is undone.
        assert_eq!(recover(&path).unwrap(), (len - before.len()) as u64);
        assert_eq!(fs::read(&path).unwrap(), before);
        assert!(!journal.exists());
    }
}

#[test]
fn a_journal_that_does_not_fit_changes_nothing() {
    let (_folder, path) = file_of_two(WriteOptions::default());
    let journal = path.with_file_name("model.tbuf.append-journal");
    fs::File::options()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"torn")
        .unwrap();
    let torn = fs::read(&path).unwrap();
    let texts = [
        &b""[..],
        b"12",
        b"-1\n",
        b"99999999\n",
        b"184467440737095516160\n",
        b"\xff\n",
        b"4\n",
        b"0\n",
    ];
    for text in texts {
        fs::write(&journal, text).unwrap();
        assert!(recover(&path).is_err(), "{text:?}");
        assert_eq!(fs::read(&path).unwrap(), torn);
    }
}

#[test]
fn one_change_in_place_at_a_time() {
    let (_folder, path) = file_of_two(WriteOptions::default());
    let first = TbufEditor::open(&path).unwrap().append_in_place().unwrap();
    let second = TbufEditor::open(&path).unwrap();
    assert_eq!(second.append_in_place().unwrap_err().kind(), ErrorKind::Io);
    drop(first);

    // One editor changes the file after another editor has opened it.
    let mut early = TbufEditor::open(&path).unwrap();
    early.rename("a", "c").unwrap();
    let mut late = TbufEditor::open(&path).unwrap();
    late.rename("b", "d").unwrap();
    late.save_in_place().unwrap();
    assert_eq!(early.save_in_place().unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(names(&TbufReader::from_path(&path).unwrap()), ["a", "d"]);
}

/// Checks that saving fails if a trainer replaces the checkpoint, by renaming another file, while an editor
/// is open. The new file has the same length and index, but different data.
#[test]
fn t16_a_checkpoint_that_took_the_files_name_meanwhile_stays() {
    type Save = fn(TbufEditor, &dyn Fn()) -> Result<(), fmt_core::Error>;
    let saves: [Save; 3] = [
        |editor, train| {
            train();
            editor.save()
        },
        |editor, train| {
            train();
            editor.save_in_place()
        },
        |editor, train| {
            let writer = editor.append()?;
            train();
            writer.finish()?.persist()
        },
    ];
    for save in saves {
        let (folder, path) = file_of_two(WriteOptions::default());
        let mut newer = fs::read(&path).unwrap();
        newer[64] ^= 0xff;
        let train = || {
            let trained = folder.path().join("trained");
            fs::write(&trained, &newer).unwrap();
            fs::rename(&trained, &path).unwrap();
        };
        let mut editor = TbufEditor::open(&path).unwrap();
        editor.rename("a", "renamed").unwrap();
        assert_eq!(save(editor, &train).unwrap_err().kind(), ErrorKind::Changed);
        assert_eq!(fs::read(&path).unwrap(), newer);
        assert_eq!(files(&folder), ["model.tbuf"]);
    }
}
