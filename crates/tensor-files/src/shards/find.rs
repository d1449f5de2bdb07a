//! Which file of a folder is the checkpoint.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use fmt_core::{Error, ErrorKind};
use tensor_core::Quoted;

use super::index::ShardIndex;
use crate::registry::format_of_path;

/// What a path leads to.
pub(crate) enum Checkpoint {
    /// One file.
    File(PathBuf),
    /// The index of several.
    Index(PathBuf),
}

/// What a path leads to: the checkpoint in a folder, an index, or a file.
///
/// # Errors
/// [`ErrorKind::NotAFile`] when a folder has no checkpoint or several, [`ErrorKind::Truncated`] when one is there that
/// was not written to its end.
pub(crate) fn find(path: &Path) -> Result<Checkpoint, Error> {
    if path.is_dir() {
        return in_folder(path);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(match name.ends_with(ShardIndex::ENDING) {
        true => Checkpoint::Index(path.to_owned()),
        false => Checkpoint::File(path.to_owned()),
    })
}

/// The names that Hugging Face's libraries look for, the preferred first.
const PREFERRED: [&str; 3] = [
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin",
];

fn in_folder(folder: &Path) -> Result<Checkpoint, Error> {
    let mut names = BTreeSet::new();
    let entries = fs::read_dir(folder).map_err(|error| Error::io("the folder cannot be read", error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("the folder cannot be read", error))?;
        // A name that is not Unicode is none of those that are looked for.
        names.extend(
            entry
                .file_name()
                .into_string()
                .ok()
                .filter(|name| !name.starts_with('.')),
        );
    }
    choose(&names).map(|chosen| match chosen.ends_with(ShardIndex::ENDING) {
        true => Checkpoint::Index(folder.join(chosen)),
        false => Checkpoint::File(folder.join(chosen)),
    })
}

/// The name of the checkpoint, or of its index, among the names in a folder.
fn choose(names: &BTreeSet<String>) -> Result<&str, Error> {
    let is_tensors = |name: &str| format_of_path(Path::new(name)).is_some();
    let mut candidates: Vec<(&str, &str)> = Vec::new();
    for name in names {
        if let Some(whole) = name.strip_suffix(ShardIndex::ENDING) {
            candidates.extend(is_tensors(whole).then_some((whole, name.as_str())));
        } else if let Some(whole) = whole_of(name) {
            let index = format!("{whole}{}", ShardIndex::ENDING);
            if is_tensors(name) && !names.contains(&index) {
                let error = Error::new(
                    ErrorKind::Truncated,
                    "the checkpoint in the folder is not complete",
                );
                let error = error.expected(format_args!("{}, the index of its files", Quoted(&index)));
                return Err(error.found(format_args!("{} without it", Quoted(name))));
            }
        } else if is_tensors(name) {
            candidates.push((name, name));
        }
    }
    let all = candidates.clone();
    if candidates.len() > 1 {
        let is_safe = |(whole, _): &(&str, &str)| whole.ends_with(".safetensors");
        let preferred = PREFERRED
            .iter()
            .find(|name| all.iter().any(|(whole, _)| whole == *name));
        match preferred {
            Some(name) => candidates.retain(|(whole, _)| whole == name),
            None if all.iter().any(is_safe) => candidates.retain(is_safe),
            None => {}
        }
    }
    match candidates[..] {
        [(_, name)] => Ok(name),
        [] => {
            let error = Error::new(ErrorKind::NotAFile, "there is no checkpoint in the folder");
            Err(error.expected("a tensor file, or files and their index"))
        }
        _ => {
            let shown: Vec<String> = all
                .iter()
                .take(5)
                .map(|(_, name)| Quoted(name).to_string())
                .collect();
            let error = Error::new(ErrorKind::NotAFile, "the folder holds more than one checkpoint");
            Err(error.expected("the name of one of them").found(shown.join(", ")))
        }
    }
}

/// For the file of a checkpoint in many, `model-00001-of-00002.safetensors`, the name that it would have as one.
pub(crate) fn whole_of(name: &str) -> Option<String> {
    let (stem, extension) = name.rsplit_once('.')?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(number) && is_number(count)).then(|| format!("{stem}.{extension}"))
}

/// The name of one of so many files.
pub(crate) fn part_of(stem: &str, extension: &str, number: usize, count: usize) -> String {
    format!("{stem}-{number:05}-of-{count:05}.{extension}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Result<String, ErrorKind> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        choose(&names).map(str::to_owned).map_err(|error| error.kind())
    }

    #[test]
    fn the_checkpoint_of_a_folder() {
        let (first, second) = (
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        );
        let index = "model.safetensors.index.json";
        let config = ["config.json", "tokenizer.json", "README.md"];
        let with = |more: &[&'static str]| chosen(&[&config[..], more].concat());
        assert_eq!(with(&["model.safetensors"]).as_deref(), Ok("model.safetensors"));
        assert_eq!(with(&[first, second, index]).as_deref(), Ok(index));
        // A checkpoint in both forms is read as safetensors; other files of trainers are ignored.
        let torch = "pytorch_model.bin.index.json";
        assert_eq!(
            with(&[index, torch, "training_args.bin", "optimizer.pt"]).as_deref(),
            Ok(index)
        );
        assert_eq!(with(&["weights.zt"]).as_deref(), Ok("weights.zt"));
        assert_eq!(with(&["a.safetensors", "b.npz"]).as_deref(), Ok("a.safetensors"));
        assert_eq!(with(&["a.zt", "b.npz"]), Err(ErrorKind::NotAFile));
        assert_eq!(with(&[]), Err(ErrorKind::NotAFile));
        // Not complete, or nobody knows which of two.
        assert_eq!(with(&[first, second]), Err(ErrorKind::Truncated));
        assert_eq!(with(&[first, "pytorch_model.bin"]), Err(ErrorKind::Truncated));
        assert_eq!(with(&[index, "model.safetensors"]), Err(ErrorKind::NotAFile));
    }

    #[test]
    fn names_of_parts() {
        let name = part_of("model", "safetensors", 2, 11);
        assert_eq!(name, "model-00002-of-00011.safetensors");
        assert_eq!(whole_of(&name).as_deref(), Some("model.safetensors"));
        for whole in [
            "model.safetensors",
            "a-of-b.zt",
            "b-1-of-2.zt",
            "-of-.zt",
            "noext-00001-of-00002",
        ] {
            assert_eq!(whole_of(whole), None, "{whole}");
        }
    }
}
