//! The index of a sharded checkpoint: `{"metadata": {"total_size": 123}, "weight_map": {"name":
//! "model-00001-of-00002.safetensors"}}`.

use std::{collections::BTreeMap, fmt, path::Path};

use fmt_core::{Error, ErrorKind};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Value};
use tensor_core::QuotedName;

/// The index of a sharded checkpoint: maps each tensor to its file.
///
/// ```
/// use tensor_files::ShardIndex;
///
/// let json = br#"{"metadata": {"total_size": 8}, "weight_map": {"w": "a-00001-of-00002.safetensors"}}"#;
/// let index = ShardIndex::from_json(json)?;
/// assert_eq!(index.file_of("w"), Some("a-00001-of-00002.safetensors"));
/// // Files are next to the index or below it.
/// assert!(ShardIndex::from_json(br#"{"weight_map": {"w": "../other.safetensors"}}"#).is_err());
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardIndex {
    /// `total_size`, the size of all tensors in bytes, and other entries written by tools.
    #[serde(default)]
    metadata: Map<String, Value>,
    #[serde(deserialize_with = "without_duplicates")]
    weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Suffix of an index's file name.
    pub(crate) const ENDING: &'static str = ".index.json";

    /// Creates an index from tensor names and their file names.
    pub(crate) fn new(weight_map: BTreeMap<String, String>, total_size: u64) -> Self {
        let metadata = [("total_size".to_owned(), total_size.into())]
            .into_iter()
            .collect();
        Self { metadata, weight_map }
    }

    /// Creates an index from tensor names and their file names, with the total size in bytes.
    #[must_use]
    pub fn of_files(weight_map: BTreeMap<String, String>, total_size: u64) -> Self {
        Self::new(weight_map, total_size)
    }

    /// Returns whether `other` maps each tensor to the same file, and has the same total size, if both have
    /// one.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        let is_same_size = match (self.total_size(), other.total_size()) {
            (Some(size), Some(other)) => (size - other).abs() < 1.0,
            _ => true,
        };
        is_same_size && self.weight_map == other.weight_map
    }

    /// Adds the metadata of `other`, except the total size.
    #[must_use]
    pub fn with_texts_of(mut self, other: &Self) -> Self {
        for (key, value) in &other.metadata {
            self.metadata.entry(key.clone()).or_insert_with(|| value.clone());
        }
        self
    }

    /// Parses an index.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] unless `json` has the form of an index, [`ErrorKind::Duplicate`] when a name
    /// occurs twice, [`ErrorKind::BadName`] when a file's name leads out of the directory.
    pub fn from_json(json: &[u8]) -> Result<Self, Error> {
        let index: Self = serde_json::from_slice(json).map_err(|error| {
            let kind = match error.to_string().starts_with(TWICE) {
                true => ErrorKind::Duplicate,
                false => ErrorKind::Malformed,
            };
            let error = Error::new(kind, format!("the index of the checkpoint's files: {error}"));
            error.expected(r#"{"weight_map": {"NAME": "FILE", ...}}"#)
        })?;
        for (name, file) in &index.weight_map {
            if !leads_below(file) {
                let error = Error::new(ErrorKind::BadName, "the file that the index names for it");
                let error = error
                    .of_tensor(name)
                    .expected("a file next to the index or below it");
                return Err(error.found(QuotedName(file)));
            }
        }
        if index.weight_map.is_empty() {
            return Err(Error::new(ErrorKind::Malformed, "the index names no tensor"));
        }
        Ok(index)
    }

    /// Formats the index as JSON, deterministically.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and maps with string keys can always be serialized.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }

    /// Returns the name of a tensor's file.
    #[must_use]
    pub fn file_of(&self, tensor: &str) -> Option<&str> {
        self.weight_map.get(tensor).map(String::as_str)
    }

    /// Renames a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when the index has no such tensor, [`ErrorKind::Duplicate`] when the new
    /// name is already in use.
    pub fn renamed(mut self, from: &str, to: &str) -> Result<Self, Error> {
        let file = self.weight_map.remove(from);
        let file = file
            .ok_or_else(|| Error::new(ErrorKind::OutOfBounds, "there is no such tensor").of_tensor(from))?;
        if self.weight_map.insert(to.to_owned(), file).is_some() {
            return Err(Error::new(ErrorKind::Duplicate, "the new name is taken").of_tensor(to));
        }
        Ok(self)
    }

    /// Returns the name of each tensor and of its file, sorted by tensor name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &str)> {
        let map = self.weight_map.iter();
        map.map(|(name, file)| (name.as_str(), file.as_str()))
    }

    /// Returns the names of all files, sorted, without duplicates.
    #[must_use]
    pub fn files(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self.weight_map.values().map(String::as_str).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns the declared total size of all tensors in bytes. Some tools count fractions of bytes, so the
    /// size is a double.
    pub(crate) fn total_size(&self) -> Option<f64> {
        self.metadata.get("total_size")?.as_f64()
    }

    /// Returns the string entries of the metadata.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let metadata = self.metadata.iter();
        metadata.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }
}

/// Returns whether a file name stays below its base directory on every system.
fn leads_below(file: &str) -> bool {
    use std::path::Component;
    let mut components = Path::new(file).components();
    !file.is_empty()
        && !file.contains(['\\', '\0', ':'])
        && !file.starts_with('/')
        && components.all(|component| matches!(component, Component::Normal(_)))
}

const TWICE: &str = "the tensor's name occurs twice";

/// Deserializes a map without duplicate keys; serde's own implementation keeps the last duplicate.
fn without_duplicates<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Once;

    impl<'de> Visitor<'de> for Once {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map from tensors to files")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::<String, String>::new();
            while let Some((name, file)) = from.next_entry::<String, String>()? {
                if let Some(known) = map.get(&name) {
                    let what = format!(
                        "{TWICE}: {}, in {} and {}",
                        QuotedName(&name),
                        QuotedName(known),
                        QuotedName(&file)
                    );
                    return Err(serde::de::Error::custom(what));
                }
                map.insert(name, file);
            }
            Ok(map)
        }
    }

    from.deserialize_map(Once)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_index_is_refused() {
        for (json, kind) in [
            ("[]", ErrorKind::Malformed),
            ("{}", ErrorKind::Malformed),
            (r#"{"weight_map": {}}"#, ErrorKind::Malformed),
            (r#"{"weight_map": {"w": 1}}"#, ErrorKind::Malformed),
            (r#"{"weight_map": {"w": "a", "w": "b"}}"#, ErrorKind::Duplicate),
            (r#"{"weight_map": {"w": ""}}"#, ErrorKind::BadName),
            (r#"{"weight_map": {"w": "../a"}}"#, ErrorKind::BadName),
            (r#"{"weight_map": {"w": "a/../../b"}}"#, ErrorKind::BadName),
            (r#"{"weight_map": {"w": "/etc/passwd"}}"#, ErrorKind::BadName),
            (r#"{"weight_map": {"w": "C:\\a"}}"#, ErrorKind::BadName),
            (r#"{"weight_map": {"w": "a\u0000"}}"#, ErrorKind::BadName),
        ] {
            assert_eq!(
                ShardIndex::from_json(json.as_bytes()).unwrap_err().kind(),
                kind,
                "{json}"
            );
        }
    }

    #[test]
    fn an_index_is_written_as_it_is_read() {
        let map = [("b", "y"), ("a", "x")].map(|(name, file)| (name.to_owned(), file.to_owned()));
        let index = ShardIndex::new(map.into_iter().collect(), 12);
        let json = index.to_json();
        assert_eq!(
            json,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n    \"a\": \"x\",\n    \"b\": \"y\"\n  }\n}\n"
        );
        assert_eq!(ShardIndex::from_json(json.as_bytes()).unwrap(), index);
        assert_eq!(index.files(), ["x", "y"]);
        assert_eq!(index.total_size(), Some(12.0));
    }
}
