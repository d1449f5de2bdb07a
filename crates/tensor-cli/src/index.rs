//! `tensor index`: checks the index of a sharded checkpoint, or rewrites it.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
};

use fmt_core::{AtomicFile, Error, ErrorKind, TensorReader};
use tensor_core::QuotedName;
use tensor_files::ShardIndex;

use crate::{
    failure::{About, Failure, Outcome},
    files,
    options::Index,
    report,
};

pub(crate) fn run(options: &Index, out: &mut impl Write) -> Outcome {
    let folder = &*options.folder;
    let parts = Parts::of(folder).about(folder)?;
    let path = folder.join(format!("{}.{}.index.json", parts.stem, parts.extension));
    let index = parts.index(folder)?;
    let old = std::fs::read(&path).ok().map(|json| ShardIndex::from_json(&json));
    let is_right = matches!(&old, Some(Ok(old)) if old.says_the_same(&index));
    let index = match &old {
        Some(Ok(old)) => index.with_texts_of(old),
        _ => index,
    };
    let is_written = options.write && !is_right;
    if is_written {
        let mut file = AtomicFile::create(&path).about(&path)?;
        file.write_all(index.to_json().as_bytes())?;
        file.persist().about(&path)?;
    }
    let state = match (&old, is_right) {
        (_, true) => "fits the files",
        (Some(Err(_)), _) => "is not an index",
        (Some(Ok(_)), _) => "does not fit the files",
        (None, _) => "is missing",
    };
    if options.json {
        let report = serde_json::json!({
            "index": path.display().to_string(), "files": index.files().len(), "tensors": index.tensors().count(),
            "is_right": is_right, "is_written": is_written,
        });
        report::print(&report, out)?;
    } else {
        let done = if is_written { ": written" } else { "" };
        writeln!(
            out,
            "{}: {state}{done}",
            crate::table::text(&path.display().to_string())
        )?;
    }
    if is_right || is_written {
        Ok(())
    } else {
        Err(Failure::Found)
    }
}

/// The shards of a checkpoint: `STEM-00001-of-00003.EXTENSION` and so on.
struct Parts {
    stem: String,
    extension: String,
    files: Vec<String>,
}

impl Parts {
    /// Finds the shards of the only checkpoint in a directory.
    fn of(folder: &Path) -> Result<Self, Error> {
        let failed = |error| Error::io("the directory cannot be read", error);
        let mut found: BTreeMap<(String, String, u32), Vec<u32>> = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if let Some((stem, extension, number, count)) = name.to_str().and_then(part_name) {
                found.entry((stem, extension, count)).or_default().push(number);
            }
        }
        let mut found = found.into_iter();
        let expected = "the files of one checkpoint, such as model-00001-of-00003.safetensors";
        let ((stem, extension, count), mut numbers) = match (found.next(), found.next()) {
            (Some(only), None) => only,
            (None, _) => {
                let error = Error::new(ErrorKind::NotAFile, "there is no sharded checkpoint");
                return Err(error.expected(expected));
            }
            (Some(((first, ..), _)), Some(((second, ..), _))) => {
                let error = Error::new(ErrorKind::NotAFile, "there is more than one checkpoint");
                let found = format!("parts of {} and of {}", QuotedName(&first), QuotedName(&second));
                return Err(error.expected(expected).found(found));
            }
        };
        numbers.sort_unstable();
        if let Some(missing) = (1..=count).find(|number| numbers.binary_search(number).is_err()) {
            let name = Self::file_name(&stem, &extension, missing, count);
            let error = Error::new(ErrorKind::NotAFile, "a file of the checkpoint is missing");
            return Err(error.expected(QuotedName(&name)));
        }
        let names = (1..=count).map(|number| Self::file_name(&stem, &extension, number, count));
        let files = names.collect();
        Ok(Self {
            stem,
            extension,
            files,
        })
    }

    fn file_name(stem: &str, extension: &str, number: u32, count: u32) -> String {
        format!("{stem}-{number:05}-of-{count:05}.{extension}")
    }

    /// Builds the index from the files.
    fn index(&self, folder: &Path) -> Outcome<ShardIndex> {
        let (mut files_of, mut total) = (BTreeMap::new(), 0u64);
        for name in &self.files {
            let path: PathBuf = folder.join(name);
            for entry in files::open(&path)?.entries() {
                total = total.saturating_add(entry.byte_len().unwrap_or_else(|| entry.stored_size()));
                if let Some(other) = files_of.insert(entry.name.clone(), name.clone()) {
                    let error = Error::new(ErrorKind::Duplicate, "the name is in two of the files");
                    let error = error.of_tensor(&entry.name).found(QuotedName(&other));
                    return Err(error).about(&path);
                }
            }
        }
        Ok(ShardIndex::of_files(files_of, total))
    }
}

/// Splits a name such as `model-00001-of-00003.safetensors` into its parts.
fn part_name(name: &str) -> Option<(String, String, u32, u32)> {
    let (rest, extension) = name.rsplit_once('.')?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| {
        let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    Some((stem.to_owned(), extension.to_owned(), five(number)?, five(count)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let model = |number, count| Some(("model".into(), "safetensors".into(), number, count));
        assert_eq!(part_name("model-00001-of-00003.safetensors"), model(1, 3));
        for other in [
            "model.safetensors",
            "model-1-of-3.safetensors",
            "model-00001-of-00003",
            "-of-.x",
        ] {
            assert_eq!(part_name(other), None, "{other}");
        }
    }
}
