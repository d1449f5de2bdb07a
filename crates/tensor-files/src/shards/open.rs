//! The files of a checkpoint as one reader.

use std::{collections::HashMap, path::Path};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, FileSource, ReadOptions, StoredDType, TensorReader, read_range,
};
use tensor_core::{DType, Quoted};

use super::index::ShardIndex;
use crate::composite::Composite;

/// Opens the files that an index names, by a function that is given their names, and checks them against it.
///
/// Every tensor must be in the file that the index says, and in no other; the files must have no tensor beside these, and
/// the total size must be right. With [`ReadOptions::lenient`] the last two are lints.
///
/// # Errors
/// Whatever the function comes to, with the file's name; [`ErrorKind::OutOfBounds`] for tensors that are not where the
/// index says; [`ErrorKind::Malformed`] and [`ErrorKind::SizeMismatch`] for the rest.
pub fn open_shards(
    index: &ShardIndex,
    options: &ReadOptions,
    mut open: impl FnMut(&str) -> Result<Box<dyn TensorReader>, Error>,
) -> Result<Composite<'static>, Error> {
    let mut readers = Vec::new();
    for file in index.files() {
        let reader = open(file).map_err(|error| {
            let what = format!("the file {}, which the index names: {error}", Quoted(file));
            Error::new(error.kind(), what)
        })?;
        readers.push((file, reader));
    }
    let lies = held_against(index, &readers)?;
    let (kept, size) = (index.tensors().count(), total_size(index, &readers));
    let mut oddities = Vec::new();
    for error in lies.into_iter().chain(size.err()) {
        if !options.lenient {
            return Err(error.expected("a true index; --lenient goes on without"));
        }
        oddities.push(error.to_string());
    }
    let mut whole: Option<Composite<'static>> = None;
    for (file, reader) in readers {
        let mut part = Composite::new(file, reader);
        part.retain(|entry| index.file_of(&entry.name) == Some(file));
        match &mut whole {
            None => whole = Some(part),
            // Every name is in one file, so none clashes.
            Some(whole) => whole.append(part)?,
        }
    }
    let mut whole = whole.ok_or_else(|| Error::new(ErrorKind::Malformed, "the index names no file"))?;
    debug_assert_eq!(whole.entries().len(), kept);
    for (key, value) in index.texts() {
        let metadata = whole.metadata_mut();
        metadata.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    oddities.into_iter().for_each(|oddity| whole.add_lint(oddity));
    Ok(whole)
}

/// Reads an index.
pub(crate) fn read_index(path: &Path, options: &ReadOptions) -> Result<ShardIndex, Error> {
    let source = FileSource::open(path)?;
    let most = options.limits.index_bytes;
    if source.len() > most {
        let error = Error::new(ErrorKind::TooLarge, "the index of the checkpoint's files");
        return Err(error
            .expected(format_args!("at most {most} bytes"))
            .found(source.len()));
    }
    ShardIndex::from_json(&read_range(&source, 0..source.len(), "the index")?)
}

/// Opens an index and the files beside it.
pub(crate) fn open_index(path: &Path, options: &ReadOptions) -> Result<Composite<'static>, Error> {
    let index = read_index(path, options)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let opened = open_shards(&index, options, |file| {
        crate::open::open_file(&folder.join(file), options)
    });
    let mut opened = opened?;
    opened.relabel(|file| folder.join(file).display().to_string());
    Ok(opened)
}

type Shards<'i> = [(&'i str, Box<dyn TensorReader>)];

/// Fails for tensors that are not where the index says; returns an error for one that it does not name.
fn held_against(index: &ShardIndex, readers: &Shards<'_>) -> Result<Option<Error>, Error> {
    let mut places: HashMap<&str, Vec<&str>> = HashMap::new();
    for (file, reader) in readers {
        for entry in reader.entries() {
            places.entry(&entry.name).or_default().push(file);
        }
    }
    for (name, file) in index.tensors() {
        let found = places.get(name).map_or(&[][..], Vec::as_slice);
        if !found.contains(&file) {
            let error =
                Error::new(ErrorKind::OutOfBounds, "the index says in which file it is").of_tensor(name);
            let error = error.expected(format_args!("in {}", Quoted(file)));
            return Err(match found.first() {
                Some(other) => error.found(format_args!("in {}", Quoted(other))),
                None => error.found("in none of the files"),
            });
        }
    }
    let mut extra = readers.iter().flat_map(|(file, reader)| {
        let entries = reader.entries().iter();
        entries
            .filter(|entry| index.file_of(&entry.name) != Some(file))
            .map(move |entry| (entry, file))
    });
    Ok(extra.next().map(|(entry, file)| {
        let what = format!("the file {} has it, and the index does not say so", Quoted(file));
        Error::new(ErrorKind::Malformed, what).of_tensor(&entry.name)
    }))
}

/// Checks the total size against the tensors: of all of them, or of those that share no bytes; a bool may count as a byte
/// or a bit. Writers in use differ in both.
fn total_size(index: &ShardIndex, readers: &Shards<'_>) -> Result<(), Error> {
    let Some(claimed) = index.total_size() else {
        return Ok(());
    };
    let bits = |entry: &Entry, bool_bits: u128| match &entry.dtype {
        StoredDType::Known(DType::Bool) => u128::from(entry.byte_len().unwrap_or(0)) * bool_bits,
        _ => u128::from(entry.byte_len().unwrap_or(0)) * 8,
    };
    let mut sums = [[0u128; 2]; 2];
    let mut is_known = true;
    for (_, reader) in readers {
        let mut seen = std::collections::HashSet::new();
        for entry in reader.entries() {
            is_known &= entry.byte_len().is_some();
            let is_new = entry.range.is_empty() || seen.insert(entry.range.clone());
            for (sum, bool_bits) in sums.iter_mut().zip([8, 1]) {
                sum[0] += bits(entry, bool_bits);
                sum[1] += if is_new { bits(entry, bool_bits) } else { 0 };
            }
        }
    }
    let is_right = sums
        .iter()
        .flatten()
        .any(|sum| (*sum as f64 / 8.0 - claimed).abs() < 1.0);
    // Dtypes of unknown width can be counted by nobody.
    if is_right || !is_known {
        return Ok(());
    }
    let error = Error::new(
        ErrorKind::SizeMismatch,
        format!(
            "the index claims {claimed} bytes in all tensors, and they have {}",
            sums[0][0] / 8
        ),
    );
    Err(error)
}
