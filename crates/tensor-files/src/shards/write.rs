//! Writes a sharded checkpoint and its index.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    ops::{ControlFlow, Range},
    path::{Path, PathBuf},
};

use fmt_core::{
    AtomicFile, CompleteFile, Entry, Error, ErrorKind, Format, Metadata, OutputOptions, TensorReader,
};

use super::{
    index::ShardIndex,
    names::{PartName, part_of},
};
use crate::{
    composite::Composite,
    convert::{AdaptedPlan, ConvertOptions, Progress, convert, refuse, remove_names_beside},
    loss::Loss,
    split::remove_split,
};

/// Options for sharding a checkpoint.
///
/// ```
/// let options = tensor_files::ShardOptions::at_most(5_000_000_000);
/// assert_eq!(options.max_bytes, 5_000_000_000);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ShardOptions {
    /// Maximum tensor bytes in a file. A larger tensor gets a separate file.
    pub max_bytes: u64,
}

impl ShardOptions {
    /// Creates options that limit the tensor bytes in each file.
    #[must_use]
    pub fn at_most(max_bytes: u64) -> Self {
        Self { max_bytes }
    }
}

/// The result of writing a sharded checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardedCheckpoint {
    /// The files with tensors, in order.
    pub files: Vec<PathBuf>,
    /// The index; `None` if a single file was enough, and for GGUF, whose files contain this information.
    pub index: Option<PathBuf>,
    /// Total length of all files with tensors, in bytes.
    pub len: u64,
    /// The contents of the source that the files do not contain.
    pub losses: Vec<Loss>,
}

/// Writes tensors into as many files as needed, `NAME-00001-of-00003.EXTENSION` for a path `NAME.EXTENSION`,
/// and an index `NAME.EXTENSION.index.json`; or into a single file of that name if that is enough. Instead of
/// an index, each GGUF file has the keys `split.no`, `split.count` and `split.tensors.count`, as llama.cpp
/// expects.
///
/// Tensors keep their order. All files are written before any is renamed to its final name. The first file is
/// renamed last, followed only by the index. Files of the old checkpoint that the new one lacks are removed.
/// If the process is killed before the end, either the old checkpoint remains, or files without the first
/// one, which [`open`](crate::open()) refuses. The directory is created if necessary.
///
/// # Errors
/// The errors of [`convert`]; [`ErrorKind::Exists`] when the directory has a checkpoint of the same name in
/// the other form (a single file instead of shards, or vice versa), and when source files would be replaced
/// or removed.
pub fn convert_sharded(
    reader: &dyn TensorReader,
    target: &dyn Format,
    path: &Path,
    shards: &ShardOptions,
    options: &ConvertOptions<'_>,
) -> Result<ShardedCheckpoint, Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let is_made = !folder.exists();
    fs::create_dir_all(folder).map_err(|error| Error::io("the directory cannot be created", error))?;
    let written = write(reader, target, path, shards, options);
    if written.is_err() && is_made {
        // `remove_dir` removes only an empty directory.
        let _ = fs::remove_dir(folder);
    }
    written
}

fn write(
    reader: &dyn TensorReader,
    target: &dyn Format,
    path: &Path,
    shards: &ShardOptions,
    options: &ConvertOptions<'_>,
) -> Result<ShardedCheckpoint, Error> {
    let names = Names::new(path, target.id() != "gguf")?;
    let parts = divided(reader.entries(), shards.max_bytes);
    names.check_other_form(parts.len())?;
    if parts.len() > 1 {
        return write_parts(reader, target, names, &parts, options);
    }
    let converted = convert(reader, target, path, options)?;
    Ok(ShardedCheckpoint {
        files: vec![path.to_owned()],
        index: None,
        len: converted.len,
        losses: converted.losses,
    })
}

/// Writes several files, one for each range of the tensors in `parts`, and the index.
fn write_parts(
    reader: &dyn TensorReader,
    target: &dyn Format,
    names: Names,
    parts: &[Range<usize>],
    options: &ConvertOptions<'_>,
) -> Result<ShardedCheckpoint, Error> {
    let replaced = names.replaced_files()?;
    let file_names: Vec<String> = (0..parts.len())
        .map(|number| names.part(number, parts.len()))
        .collect();
    let files: Vec<PathBuf> = file_names.iter().map(|name| names.folder.join(name)).collect();
    let targets = files.iter().chain(&replaced).chain([&names.index]);
    options.sources.check_targets(targets.map(PathBuf::as_path))?;
    if options.output.is_new && (names.index.exists() || !replaced.is_empty()) {
        let error = Error::new(
            ErrorKind::Exists,
            "the checkpoint exists and must not be replaced",
        );
        return Err(error.expected("another directory or name"));
    }
    let adapted = adapt(reader, target, parts, options)?;
    let mut losses = merged_losses(&adapted);
    if losses.contains(&Loss::Names) {
        return Err(names_needed(&adapted, target));
    }
    refuse(&losses, target, options.allow_loss)?;

    let total = reader.entries().iter().filter_map(Entry::byte_len);
    let total = total.fold(0, u64::saturating_add);
    let (shards, len) = write_shards(&adapted, target, &files, total, options)?;
    let late = options.lost_on_the_way.map(|lost| lost()).unwrap_or_default();
    refuse(&late, target, options.allow_loss)?;
    losses.extend(late);

    let index = match names.has_index {
        true => {
            let index = index_of(&adapted, &file_names);
            Some(write_index(&names.index, &index, &options.output)?)
        }
        false => None,
    };
    replace(shards, &files, index, &replaced, &names, target)?;
    Ok(ShardedCheckpoint {
        files,
        index: names.has_index.then_some(names.index),
        len,
        losses,
    })
}

/// Plans the contents of each file, as far as the target can store them.
fn adapt<'r>(
    reader: &'r dyn TensorReader,
    target: &dyn Format,
    parts: &[Range<usize>],
    options: &ConvertOptions<'_>,
) -> Result<Vec<(Composite<'r>, AdaptedPlan)>, Error> {
    let adapted = adapt_for(reader, target, parts, reader.entries().len(), options)?;
    let kept = adapted.iter().map(|(_, part)| part.tensors().count()).sum();
    if kept == reader.entries().len() {
        return Ok(adapted);
    }
    // Some tensors cannot be stored. Each GGUF file contains the total number of tensors, so all files are
    // planned again.
    adapt_for(reader, target, parts, kept, options)
}

/// Plans the contents of each file for a checkpoint of `tensors` tensors in total.
fn adapt_for<'r>(
    reader: &'r dyn TensorReader,
    target: &dyn Format,
    parts: &[Range<usize>],
    tensors: usize,
    options: &ConvertOptions<'_>,
) -> Result<Vec<(Composite<'r>, AdaptedPlan)>, Error> {
    let adapted = parts.iter().enumerate().map(|(number, range)| {
        let mut part = Composite::chosen("", reader, range.clone());
        remove_split(part.metadata_mut());
        if target.id() == "gguf" {
            put_split(part.metadata_mut(), number, parts.len(), tensors)?;
        }
        let own = AdaptedPlan::new(&part, part.metadata(), target, options);
        Ok((part, own))
    });
    adapted.collect()
}

/// Returns the losses of all files. Losses of the whole checkpoint, which are the same for every file, appear
/// once.
fn merged_losses(adapted: &[(Composite<'_>, AdaptedPlan)]) -> Vec<Loss> {
    let mut losses = Vec::<Loss>::new();
    for loss in adapted.iter().flat_map(|(_, own)| &own.losses) {
        let is_of_whole = matches!(loss, Loss::Names | Loss::Metadata(_) | Loss::ForeignPart(_));
        if !is_of_whole || !losses.contains(loss) {
            losses.push(loss.clone());
        }
    }
    losses
}

/// Returns the error for a target that cannot store the names that the index refers to.
fn names_needed(adapted: &[(Composite<'_>, AdaptedPlan)], target: &dyn Format) -> Error {
    let why = adapted.iter().find_map(|(_, part)| part.bad_name.as_ref());
    let why = why.map(ToString::to_string).unwrap_or_default();
    let what = format!(
        "an index needs names, which {} does not keep ({why})",
        target.id()
    );
    Error::new(ErrorKind::Unsupported, what)
}

/// A file with tensors, complete under a temporary name.
struct WrittenShard {
    file: CompleteFile,
    /// The names file next to it, if the format stores no names.
    beside: Option<CompleteFile>,
}

/// Writes the files with tensors under temporary names. `files` are their final paths, and `total` is the
/// length of all tensors in bytes, for the progress. Also returns the total length of all files.
fn write_shards(
    adapted: &[(Composite<'_>, AdaptedPlan)],
    target: &dyn Format,
    files: &[PathBuf],
    total: u64,
    options: &ConvertOptions<'_>,
) -> Result<(Vec<WrittenShard>, u64), Error> {
    let (mut shards, mut len, mut tensor_bytes) = (Vec::new(), 0, 0);
    for ((part, plan), path) in adapted.iter().zip(files) {
        let mut file = AtomicFile::create_with(path, &options.output)?;
        let tell = |progress: Progress| match options.on_progress {
            Some(tell) => tell(Progress {
                done: tensor_bytes + progress.done,
                total,
            }),
            None => ControlFlow::Continue(()),
        };
        let own_options = ConvertOptions {
            sources: options.sources.clone(),
            output: options.output.clone(),
            on_progress: Some(&tell),
            ..*options
        };
        len += plan.write(part, target, &mut file, &own_options)?;
        let beside = plan.names_beside(part, path)?;
        shards.push(WrittenShard {
            file: file.complete()?,
            beside: beside.map(AtomicFile::complete).transpose()?,
        });
        tensor_bytes += stored(part, plan).filter_map(Entry::byte_len).sum::<u64>();
    }
    Ok((shards, len))
}

/// Returns the tensors that a file stores.
fn stored<'p>(part: &'p Composite<'_>, plan: &'p AdaptedPlan) -> impl Iterator<Item = &'p Entry> {
    plan.tensors().map(|index| &part.entries()[index])
}

/// Returns the index for files with these `names`.
fn index_of(adapted: &[(Composite<'_>, AdaptedPlan)], names: &[String]) -> ShardIndex {
    let (mut weight_map, mut tensor_bytes) = (BTreeMap::new(), 0);
    for ((part, plan), name) in adapted.iter().zip(names) {
        for entry in stored(part, plan) {
            tensor_bytes += entry.byte_len().unwrap_or(0);
            weight_map.insert(entry.name.clone(), name.clone());
        }
    }
    ShardIndex::new(weight_map, tensor_bytes)
}

/// Writes the index under a temporary name.
fn write_index(path: &Path, index: &ShardIndex, output: &OutputOptions) -> Result<CompleteFile, Error> {
    let mut file = AtomicFile::create_with(path, output)?;
    let written = file.write_all(index.to_json().as_bytes());
    written.map_err(|error| Error::io("the index cannot be written", error))?;
    file.complete()
}

/// Renames the new files to their final paths in `files`, the first file last, followed by the index.
/// `replaced` are the files of the old checkpoint.
fn replace(
    shards: Vec<WrittenShard>,
    files: &[PathBuf],
    index: Option<CompleteFile>,
    replaced: &[PathBuf],
    names: &Names,
    target: &dyn Format,
) -> Result<(), Error> {
    // From here until the first new file appears, the directory has no checkpoint: shards without the first
    // one are rejected, so old and new shards with the same names are never read together.
    remove(&names.index)?;
    for old in replaced.iter().chain(files).filter(|path| is_first(path)) {
        remove(old)?;
    }
    for (path, shard) in files.iter().zip(shards).rev() {
        remove_names_beside(target, path)?;
        if let Some(beside) = shard.beside {
            beside.persist()?;
        }
        shard.file.persist()?;
    }
    index.map_or(Ok(()), CompleteFile::persist)?;
    for old in replaced.iter().filter(|old| !files.contains(old)) {
        remove_names_beside(target, old)?;
        remove(old)?;
    }
    Ok(())
}

/// Turns the metadata of the whole checkpoint into the metadata of one GGUF file.
#[cfg(feature = "gguf")]
fn put_split(metadata: &mut Metadata, number: usize, count: usize, tensors: usize) -> Result<(), Error> {
    let too_many = |what: &str, most: u64, found: usize| {
        let error = Error::new(ErrorKind::TooLarge, format!("the number of {what}"));
        error
            .expected(format_args!("at most {most}, which GGUF can say"))
            .found(found)
    };
    let files = u16::try_from(count).map_err(|_| too_many("files", u16::MAX.into(), count))?;
    let most = i32::MAX.unsigned_abs();
    let split = fmt_gguf::Split {
        // The shard number is less than the number of files, which fits `u16`.
        number: u16::try_from(number).unwrap_or(files),
        count: files,
        tensors: u32::try_from(tensors)
            .ok()
            .filter(|tensors| *tensors <= most)
            .ok_or_else(|| too_many("tensors", most.into(), tensors))?,
    };
    *metadata = split.metadata_of(metadata);
    Ok(())
}

#[cfg(not(feature = "gguf"))]
fn put_split(_: &mut Metadata, _: usize, _: usize, _: usize) -> Result<(), Error> {
    Ok(())
}

/// Divides tensors into groups that fit `max_bytes`, in order.
fn divided(entries: &[Entry], max_bytes: u64) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut filled = 0u64;
    for (index, entry) in entries.iter().enumerate() {
        let len = entry.byte_len().unwrap_or(0);
        let all = filled.saturating_add(len);
        match parts.last_mut() {
            Some(last) if all <= max_bytes || len == 0 => {
                last.end = index + 1;
                filled = all;
            }
            _ => {
                parts.push(index..index + 1);
                filled = len;
            }
        }
    }
    if parts.is_empty() {
        parts.push(0..0);
    }
    parts
}

/// The names of a checkpoint's files.
struct Names {
    folder: PathBuf,
    /// The name as a single file.
    whole: String,
    /// The path of the index, even if none is written.
    index: PathBuf,
    has_index: bool,
}

impl Names {
    fn new(path: &Path, has_index: bool) -> Result<Self, Error> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.filter(|name| name.rsplit_once('.').is_some_and(|(stem, _)| !stem.is_empty()));
        let name = name.ok_or_else(|| {
            let error = Error::new(ErrorKind::BadName, "the base name of the files");
            error.expected("a name with an extension, such as model.safetensors")
        })?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self {
            index: folder.join(format!("{name}{}", ShardIndex::ENDING)),
            whole: name.to_owned(),
            folder,
            has_index,
        })
    }

    fn part(&self, number_from_zero: usize, count: usize) -> String {
        let (stem, extension) = self.whole.rsplit_once('.').unwrap_or((&self.whole, ""));
        // Each open file takes a descriptor, and the number of descriptors is limited, so the number of files
        // fits 32 bits.
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        part_of(stem, extension, number(number_from_zero + 1), number(count))
    }

    /// Fails if the directory has the checkpoint in the other form (single file or shards), because it would
    /// be unclear which of the two is valid.
    fn check_other_form(&self, parts: usize) -> Result<(), Error> {
        let others = match parts {
            1 => [vec![self.index.clone()], self.parts()?].concat(),
            _ => vec![self.folder.join(&self.whole)],
        };
        let Some(other) = others.iter().find(|path| path.exists()) else {
            return Ok(());
        };
        let error = Error::new(
            ErrorKind::Exists,
            "the directory has a checkpoint of this name in another form",
        );
        Err(error
            .expected("another directory or name, or remove that file")
            .found(other.display()))
    }

    /// Lists files with the names of a checkpoint's shards.
    fn parts(&self) -> Result<Vec<PathBuf>, Error> {
        let cannot_read = |error| Error::io("the directory cannot be read", error);
        let mut parts = Vec::new();
        let folder = match self.folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => &self.folder,
        };
        for entry in fs::read_dir(folder).map_err(cannot_read)? {
            let name = entry.map_err(cannot_read)?.file_name();
            let is_own = name.to_str().is_some_and(|name| self.is_part(name));
            parts.extend(is_own.then(|| self.folder.join(name)));
        }
        Ok(parts)
    }

    fn is_part(&self, name: &str) -> bool {
        PartName::parse(name).is_some_and(|part| part.whole() == self.whole)
    }

    /// Lists the shards of the checkpoint to be replaced, by its index or, without an index, by their names.
    fn replaced_files(&self) -> Result<Vec<PathBuf>, Error> {
        if !self.has_index {
            return self.parts();
        }
        let index = fs::read(&self.index)
            .ok()
            .and_then(|json| ShardIndex::from_json(&json).ok());
        let files = index.iter().flat_map(ShardIndex::files);
        let own = files.filter(|file| self.is_part(file));
        Ok(own.map(|file| self.folder.join(file)).collect())
    }
}

/// Returns whether a file has the name of a first shard.
fn is_first(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let part = name.and_then(PartName::parse);
    part.is_some_and(|part| part.number == 1)
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(
            format!("{}, which is replaced, cannot be removed", path.display()),
            error,
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use fmt_core::StoredDType;
    use tensor_core::{DType, Shape};

    use super::*;

    #[test]
    fn files_are_filled_in_order() {
        let entry = |len| {
            Entry::new(
                String::new(),
                StoredDType::Known(DType::U8),
                Shape::vector(len),
                0..len,
            )
        };
        let parts = |lens: &[u64]| divided(&lens.iter().map(|len| entry(*len)).collect::<Vec<_>>(), 10);
        assert_eq!(parts(&[]).len(), 1);
        assert_eq!(parts(&[4, 6]).first(), Some(&(0..2)));
        assert_eq!(parts(&[4, 6, 1]), [0..2, 2..3]);
        assert_eq!(parts(&[99, 1, 99, 0]), [0..1, 1..2, 2..4]);
        assert_eq!(parts(&[5, 99, 5]), [0..1, 1..2, 2..3]);
    }
}
