//! The JSON file next to a BTF file with the names of its tensors.

use std::{
    ffi::OsString,
    mem,
    path::{Path, PathBuf},
};

use fmt_core::{Error, ErrorKind, Metadata, NameTable};
use serde::{Deserialize, Serialize};

/// Tensor names for a BTF file. The format cannot store names, so they are in a file next to the BTF file
/// (rule B14).
///
/// The names of `weights.btf` are in `weights.btf.names.json`: `{"names": [...], "metadata": {...}}`, with
/// one name per tensor in the file's order. Tools that convert to BTF write this file, and tools that convert
/// from BTF use the file if it matches. The BTF file itself never refers to its names file.
///
/// ```
/// use fmt_btf::Names;
///
/// let names = Names::new(vec!["weight".into(), "bias".into()], [("model".into(), "tiny".into())].into())?;
/// let json = names.to_json();
/// assert_eq!(json, "{\n  \"names\": [\n    \"weight\",\n    \"bias\"\n  ],\n  \"metadata\": {\n    \"model\": \"tiny\"\n  }\n}\n");
/// assert_eq!(Names::from_json(json.as_bytes(), 2)?, names);
/// // A names file with another number of names does not match.
/// assert!(Names::from_json(json.as_bytes(), 3).is_err());
/// assert_eq!(Names::path_for("a/weights.btf".as_ref()), std::path::Path::new("a/weights.btf.names.json"));
/// # Ok::<(), fmt_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    names: Vec<String>,
    #[serde(default)]
    metadata: Metadata,
}

impl Names {
    /// Creates names for the tensors of a file, in its order, with the file's metadata.
    ///
    /// # Errors
    /// [`ErrorKind::Duplicate`] when a name occurs twice.
    pub fn new(names: Vec<String>, metadata: Metadata) -> Result<Self, Error> {
        let names = Self { names, metadata };
        names.check()?;
        Ok(names)
    }

    /// Returns the path of the names file of the BTF file at `btf`.
    #[must_use]
    pub fn path_for(btf: &Path) -> PathBuf {
        let mut path: OsString = btf.into();
        path.push(".names.json");
        path.into()
    }

    /// Parses a names file for a BTF file with `tensors` tensors.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] unless `json` has the form of a names file, [`ErrorKind::SizeMismatch`] when
    /// the number of names is not `tensors`, [`ErrorKind::Duplicate`] when a name occurs twice.
    pub fn from_json(json: &[u8], tensors: usize) -> Result<Self, Error> {
        let names: Self = serde_json::from_slice(json).map_err(|error| {
            let what = format!("the file of names is invalid: {error}");
            Error::new(ErrorKind::Malformed, what).rule("B14")
        })?;
        names.check_count(tensors)?;
        names.check()?;
        Ok(names)
    }

    /// Formats the names as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings and maps with string keys can always be serialized.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }

    /// Returns the names in the file's order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the file's metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(crate) fn take_metadata(&mut self) -> Metadata {
        mem::take(&mut self.metadata)
    }

    pub(crate) fn check_count(&self, tensors: usize) -> Result<(), Error> {
        if self.names.len() == tensors {
            return Ok(());
        }
        let error = Error::new(ErrorKind::SizeMismatch, "the number of names").rule("B14");
        Err(error
            .expected(format_args!("{tensors}, one for each tensor"))
            .found(self.names.len()))
    }

    fn check(&self) -> Result<(), Error> {
        let name = |number: u32| &*self.names[number as usize];
        match NameTable::of(self.names.len(), name) {
            (_, None) => Ok(()),
            (_, Some((_, number))) => {
                let error = Error::new(ErrorKind::Duplicate, "the name is given twice");
                Err(error.of_tensor(name(number)).rule("B14"))
            }
        }
    }
}
