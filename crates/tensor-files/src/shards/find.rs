//! Finds the checkpoint in a directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use fmt_core::{Error, ErrorKind};
use tensor_core::QuotedName;

use super::names::{PartName, index_for};
use crate::registry::format_of_path;

/// The checkpoint that a path leads to.
#[derive(Debug)]
pub(crate) enum Checkpoint {
    /// A single file.
    File(PathBuf),
    /// The index of several files.
    Index(PathBuf),
    /// All files of a sharded checkpoint, in order, without an index.
    Set(Vec<PathBuf>),
}

/// A checkpoint, and a message about how it was chosen.
#[derive(Debug)]
pub(crate) struct FoundCheckpoint {
    pub(crate) checkpoint: Checkpoint,
    pub(crate) note: Option<String>,
}

/// Resolves a path: a directory with a checkpoint, an index, a file, or the single-file name of a sharded
/// checkpoint.
///
/// # Errors
/// [`ErrorKind::NotAFile`] when a directory has no checkpoint or several, [`ErrorKind::Truncated`] when a
/// checkpoint is incomplete.
pub(crate) fn find(path: &Path) -> Result<FoundCheckpoint, Error> {
    if path.is_dir() {
        return choose(&names_in(path)?).map(|chosen| chosen.found_in(path));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let checkpoint = if index_for(&name).is_some() {
        Checkpoint::Index(path.to_owned())
    } else if let Some(files) = parts_of(path) {
        Checkpoint::Set(files)
    } else {
        Checkpoint::File(path.to_owned())
    };
    let note = None;
    Ok(FoundCheckpoint { checkpoint, note })
}

/// Returns all shards of the checkpoint called `whole`. Returns `None` if a file of that name exists, or if
/// there is not exactly one complete set of shards.
fn parts_of(whole: &Path) -> Option<Vec<PathBuf>> {
    if whole.symlink_metadata().is_ok() {
        return None;
    }
    let folder = whole.parent().unwrap_or(Path::new(""));
    let listed = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let names = names_in(listed).ok()?;
    let mut candidate = Candidate::default();
    let name = whole.file_name()?.to_str()?;
    let parts = names.iter().filter_map(|name| PartName::parse(name));
    parts
        .filter(|part| part.whole() == name)
        .for_each(|part| candidate.add_part(part));
    let parts = candidate.only_set().ok()??;
    Some(parts.iter().map(|name| folder.join(name)).collect())
}

/// Lists the names in a directory. Skips hidden names and names that are not Unicode, since no checkpoint has
/// such names.
fn names_in(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let cannot_read = |error| Error::io("the directory cannot be read", error);
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(cannot_read)? {
        let name = entry.map_err(cannot_read)?.file_name().into_string();
        names.extend(name.ok().filter(|name| !name.starts_with('.')));
    }
    Ok(names)
}

/// The names that Hugging Face's libraries look for, in order of preference.
const PREFERRED: [&str; 3] = [
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin",
];

/// The files of one checkpoint in a directory, which can have several of these forms at once.
#[derive(Default)]
struct Candidate<'n> {
    file: Option<&'n str>,
    index: Option<&'n str>,
    /// Shards, keyed by the number of files and by the shard's number, both from the file name.
    parts: BTreeMap<u32, BTreeMap<u32, PartName<'n>>>,
}

/// The form in which the checkpoint is read.
#[derive(Debug)]
enum Form<'n> {
    File(&'n str),
    Index(&'n str),
    Set(Vec<&'n str>),
}

#[derive(Debug)]
struct ChosenForm<'n> {
    form: Form<'n>,
    note: Option<String>,
}

impl ChosenForm<'_> {
    fn found_in(&self, folder: &Path) -> FoundCheckpoint {
        let checkpoint = match &self.form {
            Form::File(name) => Checkpoint::File(folder.join(name)),
            Form::Index(name) => Checkpoint::Index(folder.join(name)),
            Form::Set(names) => Checkpoint::Set(names.iter().map(|name| folder.join(name)).collect()),
        };
        let note = self.note.clone();
        FoundCheckpoint { checkpoint, note }
    }
}

impl<'n> Candidate<'n> {
    fn add_part(&mut self, part: PartName<'n>) {
        let parts = self.parts.entry(part.count).or_default();
        parts.insert(part.number, part);
    }

    /// Returns the complete set of shards, in order, if there is exactly one.
    fn only_set(&self) -> Result<Option<Vec<&'n str>>, Error> {
        for (count, parts) in &self.parts {
            let missing = (1..=*count).find(|number| !parts.contains_key(number));
            if let (Some(missing), Some(part)) = (missing, parts.values().next()) {
                return Err(incomplete(part, missing));
            }
        }
        let mut sets = self.parts.values();
        match (sets.next(), sets.next()) {
            (Some(one), Some(other)) => Err(more_than_one(
                [one, other]
                    .into_iter()
                    .filter_map(|parts| parts.values().next())
                    .map(|part| part.name),
            )),
            (one, _) => Ok(one.map(|parts| parts.values().map(|part| part.name).collect())),
        }
    }

    fn form(&self) -> Result<Option<ChosenForm<'n>>, Error> {
        let chosen = |form, note| Ok(Some(ChosenForm { form, note }));
        match (self.file, self.index) {
            // Hugging Face's libraries also prefer the single file.
            (Some(file), Some(index)) => {
                let note = format!(
                    "{} is read, and not the files that {} names",
                    QuotedName(file),
                    QuotedName(index)
                );
                chosen(Form::File(file), Some(note))
            }
            (None, Some(index)) => chosen(Form::Index(index), None),
            (file, None) => match (file, self.only_set()?) {
                (Some(file), Some(parts)) => {
                    Err(more_than_one([file].into_iter().chain(parts.first().copied())))
                }
                (Some(file), None) => chosen(Form::File(file), None),
                (None, Some(parts)) => chosen(Form::Set(parts), None),
                (None, None) => Ok(None),
            },
        }
    }
}

fn incomplete(part: &PartName<'_>, missing: u32) -> Error {
    let what = "the checkpoint in the directory is not complete";
    let error = Error::new(ErrorKind::Truncated, what);
    error
        .expected(format_args!("{} as well", QuotedName(&part.sibling(missing))))
        .found(format_args!("{} without it", QuotedName(part.name)))
}

fn more_than_one<'n>(names: impl Iterator<Item = &'n str>) -> Error {
    let shown: Vec<String> = names.take(5).map(|name| QuotedName(name).to_string()).collect();
    let error = Error::new(
        ErrorKind::NotAFile,
        "the directory holds more than one checkpoint",
    );
    error.expected("the name of one of them").found(shown.join(", "))
}

/// Chooses the checkpoint among the names in a directory.
fn choose(names: &BTreeSet<String>) -> Result<ChosenForm<'_>, Error> {
    let is_tensors = |name: &str| format_of_path(Path::new(name)).is_some();
    let mut candidates: BTreeMap<String, Candidate<'_>> = BTreeMap::new();
    for name in names {
        if let Some(whole) = index_for(name) {
            if is_tensors(&whole) {
                candidates.entry(whole).or_default().index = Some(name);
            }
        } else if !is_tensors(name) {
        } else if let Some(part) = PartName::parse(name) {
            candidates.entry(part.whole()).or_default().add_part(part);
        } else {
            candidates.entry(name.clone()).or_default().file = Some(name);
        }
    }
    let mut found = Vec::new();
    for (whole, candidate) in &candidates {
        found.extend(candidate.form()?.map(|chosen| (whole.as_str(), chosen)));
    }
    let all: Vec<&str> = found.iter().map(|(whole, _)| *whole).collect();
    let is_safe = |whole: &str| whole.ends_with(".safetensors");
    match PREFERRED.iter().find(|name| all.contains(name)) {
        Some(name) => found.retain(|(whole, _)| whole == name),
        None if all.iter().any(|whole| is_safe(whole)) => found.retain(|(whole, _)| is_safe(whole)),
        None => {}
    }
    match (found.pop(), found.is_empty()) {
        (Some((_, chosen)), true) => Ok(chosen),
        (None, _) => {
            let error = Error::new(ErrorKind::NotAFile, "there is no checkpoint in the directory");
            Err(error.expected("a tensor file, or files and their index"))
        }
        (Some(_), false) => Err(more_than_one(all.into_iter())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Result<String, ErrorKind> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let chosen = choose(&names).map_err(|error| error.kind())?;
        Ok(match chosen.form {
            Form::File(name) | Form::Index(name) => {
                let note = chosen.note.map_or("", |_| " with a note");
                format!("{name}{note}")
            }
            Form::Set(names) => names.join(" "),
        })
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
        // A directory with the checkpoint in both formats is read as safetensors; other files that trainers
        // write are ignored.
        let torch = "pytorch_model.bin.index.json";
        assert_eq!(
            with(&[index, torch, "training_args.bin", "optimizer.pt"]).as_deref(),
            Ok(index)
        );
        assert_eq!(with(&["weights.zt"]).as_deref(), Ok("weights.zt"));
        assert_eq!(with(&["a.safetensors", "b.npz"]).as_deref(), Ok("a.safetensors"));
        assert_eq!(with(&["a.zt", "b.npz"]), Err(ErrorKind::NotAFile));
        assert_eq!(with(&[]), Err(ErrorKind::NotAFile));
        // Hugging Face's libraries also prefer the single file; MLX repositories have both forms.
        assert_eq!(
            with(&[index, "model.safetensors"]).as_deref(),
            Ok("model.safetensors with a note")
        );
        // All shards are present.
        assert_eq!(with(&[first, second]), Ok(format!("{first} {second}")));
        // The set of shards is incomplete, or there are two sets.
        assert_eq!(with(&[first]), Err(ErrorKind::Truncated));
        assert_eq!(with(&[second, "other.safetensors"]), Err(ErrorKind::Truncated));
        assert_eq!(
            with(&[first, second, "model-00001-of-00001.safetensors"]),
            Err(ErrorKind::NotAFile)
        );
        assert_eq!(
            with(&[first, second, "model.safetensors"]),
            Err(ErrorKind::NotAFile)
        );
    }

    /// Variants, such as fp16, are found by the names that transformers and diffusers give them.
    #[test]
    fn variants_have_names_of_their_own() {
        let whole = "diffusion_pytorch_model.safetensors.index.json";
        let half = "diffusion_pytorch_model.safetensors.index.fp16.json";
        let parts = [
            "diffusion_pytorch_model-00001-of-00002.fp16.safetensors",
            "diffusion_pytorch_model-00002-of-00002.fp16.safetensors",
        ];
        assert_eq!(chosen(&[half, parts[0], parts[1]]).as_deref(), Ok(half));
        assert_eq!(chosen(&[half, whole]).as_deref(), Ok(whole));
        assert_eq!(chosen(&parts), Ok(parts.join(" ")));
        let newer = "model.fp16-00001-of-00001.safetensors";
        let index = "model.safetensors.index.fp16.json";
        assert_eq!(chosen(&[newer, index]).as_deref(), Ok(index));
    }
}
