//! Names of a sharded checkpoint's files and of its index.

use std::path::Path;

use super::index::ShardIndex;
use crate::registry::format_of_path;

/// The name of a shard, `model-00002-of-00003.safetensors`. A variant may follow the numbers, as in
/// `model-00002-of-00003.fp16.safetensors`, or precede them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartName<'n> {
    pub(crate) name: &'n str,
    stem: &'n str,
    /// The shard's number, from 1.
    pub(crate) number: u32,
    pub(crate) count: u32,
    /// The extension with the variant, without the leading dot.
    extension: &'n str,
}

impl<'n> PartName<'n> {
    pub(crate) fn parse(name: &'n str) -> Option<Self> {
        let (front, behind) = name.rsplit_once("-of-")?;
        let (count, extension) = behind.split_once('.')?;
        let (stem, number) = front.rsplit_once('-')?;
        let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(number) || !is_number(count) || extension.is_empty() {
            return None;
        }
        let (number, count) = (number.parse().ok()?, count.parse().ok()?);
        (1..=count).contains(&number).then_some(Self {
            name,
            stem,
            number,
            count,
            extension,
        })
    }

    /// Returns the name that the checkpoint would have as a single file.
    pub(crate) fn whole(&self) -> String {
        format!("{}.{}", self.stem, self.extension)
    }

    /// Returns the name of another shard of the same checkpoint.
    pub(crate) fn sibling(&self, number: u32) -> String {
        part_of(self.stem, self.extension, number, self.count)
    }
}

/// Returns the name of one of `count` shards.
pub(crate) fn part_of(stem: &str, extension: &str, number: u32, count: u32) -> String {
    format!("{stem}-{number:05}-of-{count:05}.{extension}")
}

/// Converts the name of an index to that of the unsharded checkpoint: from `model.safetensors.index.json`, or
/// for a variant from `model.safetensors.index.fp16.json`.
pub(crate) fn index_for(name: &str) -> Option<String> {
    if let Some(whole) = name.strip_suffix(ShardIndex::ENDING) {
        return Some(whole.to_owned());
    }
    let (whole, variant) = name.strip_suffix(".json")?.rsplit_once(".index.")?;
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
    let is_variant = !variant.is_empty() && variant.chars().all(is_word);
    let (stem, extension) = whole.rsplit_once('.')?;
    let is_tensors = format_of_path(Path::new(whole)).is_some();
    (is_variant && is_tensors).then(|| format!("{stem}.{variant}.{extension}"))
}

/// Returns whether a path has the name of a sharded checkpoint's index.
///
/// ```
/// use tensor_files::is_index;
///
/// assert!(is_index("hub/model.safetensors.index.json".as_ref()));
/// assert!(is_index("hub/model.safetensors.index.fp16.json".as_ref()));
/// assert!(!is_index("hub/config.json".as_ref()));
/// ```
#[must_use]
pub fn is_index(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| index_for(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let name = part_of("model", "safetensors", 2, 11);
        assert_eq!(name, "model-00002-of-00011.safetensors");
        for (name, whole) in [
            (&*name, Some("model.safetensors")),
            (
                "a-b-00001-of-00001.fp16.safetensors",
                Some("a-b.fp16.safetensors"),
            ),
            ("a.fp16-00001-of-00001.safetensors", Some("a.fp16.safetensors")),
            ("model.safetensors", None),
            ("a-of-b.zt", None),
            ("b-1-of-2.zt", None),
            ("b-00003-of-00002.zt", None),
            ("b-00000-of-00002.zt", None),
            ("b-00001-of-99999999999.zt", None),
            ("-of-.zt", None),
            ("noext-00001-of-00002", None),
        ] {
            let part = PartName::parse(name);
            assert_eq!(part.map(|part| part.whole()).as_deref(), whole, "{name}");
            assert!(part.is_none_or(|part| part.sibling(part.number) == name));
        }
    }

    #[test]
    fn names_of_indexes() {
        for (name, whole) in [
            ("model.safetensors.index.json", Some("model.safetensors")),
            (
                "pytorch_model.bin.index.fp16.json",
                Some("pytorch_model.fp16.bin"),
            ),
            ("docs.index.en.json", None),
            ("model.safetensors.index..json", None),
            ("index.json", None),
        ] {
            assert_eq!(index_for(name).as_deref(), whole, "{name}");
        }
    }
}
