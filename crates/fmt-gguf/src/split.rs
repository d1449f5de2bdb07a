//! Shard metadata: `split.no`, `split.count` and `split.tensors.count`.

use fmt_core::{Error, ErrorKind, Metadata};
use serde_json::{Map, Value};
use tensor_core::QuotedName;

use crate::header::{ALIGNMENT_KEY, TYPES_KEY};

/// A file's position among the shards of a model, as llama.cpp writes it into each shard.
///
/// This metadata describes the sharding rather than the model, so a file that is merged from shards lacks it.
///
/// ```
/// use fmt_core::Metadata;
/// use fmt_gguf::Split;
///
/// let split = Split { number: 1, count: 3, tensors: 291 };
/// let mut metadata = Metadata::from([("general.name".to_owned(), "tiny".to_owned())]);
/// split.put(&mut metadata);
/// assert_eq!(metadata["split.count"], "3");
/// assert_eq!(Split::of(&metadata)?, Some(split));
/// Split::remove(&mut metadata);
/// assert_eq!(metadata.len(), 1);
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the three keys that the format has")]
pub struct Split {
    /// Index of the shard, from zero.
    pub number: u16,
    /// Number of shards.
    pub count: u16,
    /// Number of tensors in all shards together.
    pub tensors: u32,
}

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// The keys, and the types that llama.cpp requires.
const KEYS: [(&str, &str); 3] = [(NUMBER, "u16"), (COUNT, "u16"), (TENSORS, "i32")];

impl Split {
    /// Reads the shard metadata of a file, if it is a shard. Strings under these keys in files of other
    /// formats are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] when a number is missing or malformed.
    pub fn of(metadata: &Metadata) -> Result<Option<Self>, Error> {
        let has_type = types(metadata).is_some_and(|types| types.contains_key(COUNT));
        if !has_type {
            return Ok(None);
        }
        fn number<N: std::str::FromStr>(metadata: &Metadata, key: &str) -> Result<N, Error> {
            let text = metadata.get(key).map(String::as_str);
            text.and_then(|text| text.parse().ok()).ok_or_else(|| {
                let what = format!("the metadata {}", QuotedName(key));
                let error = Error::new(ErrorKind::Malformed, what).rule("G10");
                error
                    .expected("a number: the file is one of several")
                    .found(text.unwrap_or("nothing"))
            })
        }
        Ok(Some(Self {
            number: number(metadata, NUMBER)?,
            count: number(metadata, COUNT)?,
            tensors: number(metadata, TENSORS)?,
        }))
    }

    /// Adds the shard metadata with its types.
    pub fn put(&self, metadata: &mut Metadata) {
        let numbers = [
            self.number.to_string(),
            self.count.to_string(),
            self.tensors.to_string(),
        ];
        let mut types = types(metadata).unwrap_or_default();
        for ((key, kind), number) in KEYS.into_iter().zip(numbers) {
            metadata.insert(key.to_owned(), number);
            types.insert(key.to_owned(), kind.into());
        }
        put_types(metadata, types);
    }

    /// Removes the shard metadata and its types.
    pub fn remove(metadata: &mut Metadata) {
        let Some(mut types) = types(metadata).filter(|types| types.contains_key(COUNT)) else {
            return;
        };
        for (key, _) in KEYS {
            metadata.remove(key);
            types.remove(key);
        }
        put_types(metadata, types);
    }

    /// Returns the metadata of a shard: the first shard has all of `whole`, every other shard only the data
    /// alignment.
    #[must_use]
    pub fn metadata_of(&self, whole: &Metadata) -> Metadata {
        let mut own = whole.clone();
        Self::remove(&mut own);
        if self.number > 0 {
            let mut types = types(&own).unwrap_or_default();
            types.retain(|key, _| key == ALIGNMENT_KEY);
            own.retain(|key, _| key == ALIGNMENT_KEY);
            put_types(&mut own, types);
        }
        self.put(&mut own);
        own
    }
}

fn types(metadata: &Metadata) -> Option<Map<String, Value>> {
    serde_json::from_str(metadata.get(TYPES_KEY)?).ok()
}

fn put_types(metadata: &mut Metadata, types: Map<String, Value>) {
    if types.is_empty() {
        metadata.remove(TYPES_KEY);
    } else {
        metadata.insert(TYPES_KEY.to_owned(), Value::Object(types).to_string());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_first_file_says_everything_and_the_others_their_own() {
        let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let types = r#"{"general.alignment":"u32","tiny.layers":"u32"}"#;
        let whole = Metadata::from([
            text("general.name", "tiny"),
            text("tiny.layers", "2"),
            text(ALIGNMENT_KEY, "64"),
            text(TYPES_KEY, types),
        ]);
        let of = |number| {
            Split {
                number,
                count: 2,
                tensors: 5,
            }
            .metadata_of(&whole)
        };
        let (mut first, second) = (of(0), of(1));
        assert_eq!(second.len(), 5);
        assert_eq!(second[ALIGNMENT_KEY], "64");
        assert_eq!(Split::of(&second).unwrap().unwrap().number, 1);
        // Split the merged model again.
        let again = Split {
            number: 0,
            count: 2,
            tensors: 5,
        };
        assert_eq!(again.metadata_of(&first), first);
        Split::remove(&mut first);
        assert_eq!(first, whole);
    }

    #[test]
    fn texts_of_other_formats_are_no_places_among_files() {
        let mut metadata = Metadata::from([("split.count".to_owned(), "train/test".to_owned())]);
        assert_eq!(Split::of(&metadata).unwrap(), None);
        let before = metadata.clone();
        Split::remove(&mut metadata);
        assert_eq!(metadata, before);
        metadata.insert(TYPES_KEY.to_owned(), r#"{"split.count":"u16"}"#.to_owned());
        assert_eq!(Split::of(&metadata).unwrap_err().kind(), ErrorKind::Malformed);
    }
}
