//! Opens the files of a sharded checkpoint as one reader.

use std::{collections::HashMap, path::Path};

use fmt_core::{
    ByteSource, Entry, Error, ErrorKind, FileSource, ReadOptions, StoredDType, TensorReader, read_range,
};
use tensor_core::{DType, QuotedName};

use super::index::ShardIndex;
use crate::composite::Composite;

/// Opens the files that an index names, by calling `open` with each name, and checks them against the index.
///
/// Every tensor of the index must be in the file that the index gives for it; copies of it in other files are
/// ignored. Tensors that the index does not list are read too. [`Composite::notes`] reports both cases, and a
/// wrong total size.
///
/// # Errors
/// The errors of `open`, with the file's name; [`ErrorKind::OutOfBounds`] for tensors that are not in the
/// file that the index gives; [`ErrorKind::Duplicate`] when two files have a tensor that is not in the index;
/// with [`ReadOptions::lenient`], this is a lint instead.
pub fn open_shards(
    index: &ShardIndex,
    options: &ReadOptions,
    mut open: impl FnMut(&str) -> Result<Box<dyn TensorReader>, Error>,
) -> Result<Composite<'static>, Error> {
    let mut readers = Vec::new();
    for file in index.files() {
        let reader = open(file).map_err(|error| {
            let what = format!("the file {}, which the index names: {error}", QuotedName(file));
            Error::new(error.kind(), what)
        })?;
        readers.push((file, reader));
    }
    let mut oddities = held_against(index, &readers)?;
    oddities.extend(total_size(index, &readers));
    let mut whole: Option<Composite<'static>> = None;
    let mut twice = Vec::new();
    for (file, reader) in readers {
        let mut part = Composite::new(file, reader);
        part.retain(|entry| match index.file_of(&entry.name) {
            Some(own) => own == file,
            None => {
                let is_known = options.lenient
                    && whole
                        .as_ref()
                        .is_some_and(|whole| whole.find(&entry.name).is_some());
                twice.extend(is_known.then(|| {
                    let (name, file) = (QuotedName(&entry.name), QuotedName(file));
                    format!(
                        "the tensor {name} of {file} is skipped: an earlier file has a tensor with this name"
                    )
                }));
                !is_known
            }
        });
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => whole.append(part)?,
        }
    }
    let mut whole = whole.ok_or_else(|| Error::new(ErrorKind::Malformed, "the index names no file"))?;
    oddities.append(&mut twice);
    for (key, value) in index.texts() {
        let metadata = whole.metadata_mut();
        metadata.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    oddities.into_iter().for_each(|oddity| whole.add_lint(oddity));
    Ok(whole)
}

/// Reads the index at `path`.
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

/// Opens an index and the files next to it.
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

/// Checks that each tensor is in the file that the index names. Returns messages about tensors that the index
/// lacks.
fn held_against(index: &ShardIndex, readers: &Shards<'_>) -> Result<Vec<String>, Error> {
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
            let error = error.expected(format_args!("in {}", QuotedName(file)));
            return Err(match found.first() {
                Some(other) => error.found(format_args!("in {}", QuotedName(other))),
                None => error.found("in none of the files"),
            });
        }
    }
    let (mut unnamed, mut elsewhere) = (Vec::new(), Vec::new());
    for (file, reader) in readers {
        for entry in reader.entries() {
            match index.file_of(&entry.name) {
                Some(own) if own == *file => {}
                Some(_) => elsewhere.push((entry, file)),
                None => unnamed.push((entry, file)),
            }
        }
    }
    let told = |extra: &[(&Entry, &&str)], what: &str| {
        let (entry, file) = extra.first()?;
        let more = match extra.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let (name, file) = (QuotedName(&entry.name), QuotedName(file));
        Some(format!("the tensor {name} of {file}{more}: {what}"))
    };
    let unnamed = told(&unnamed, "read, although the index does not name it");
    let elsewhere = told(
        &elsewhere,
        "skipped, since the index says that it is in another file",
    );
    Ok(unnamed.into_iter().chain(elsewhere).collect())
}

/// Returns a message if the total size in the index matches neither the sum over all tensors nor the sum in
/// which shared bytes count once. In both sums, a bool may count as a byte or a bit. Some writers have other
/// rules, so a mismatch is not an error.
fn total_size(index: &ShardIndex, readers: &Shards<'_>) -> Option<String> {
    let claimed = index.total_size()?;
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
    // Sizes of unknown dtypes cannot be counted.
    if is_right || !is_known {
        return None;
    }
    Some(format!(
        "the index claims {claimed} bytes in all tensors, and they have {}",
        sums[0][0] / 8
    ))
}
