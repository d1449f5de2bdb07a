//! Digests of tensors that are the same in every format: for signing, and for detecting changes of a
//! checkpoint.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Write as _,
    ops::ControlFlow,
};

use fmt_core::{Error, ErrorKind, Layout, TENSOR_STREAM_UNIT, TensorReader};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tensor_core::QuotedName;

/// Lists the dtype, the shape and the SHA-256 of the bytes of each tensor of a checkpoint.
///
/// The bytes are row-major and little-endian; for a sparse tensor they are its indices (`u64`, a row per
/// stored entry, sorted), then the values. Equal tensors therefore have equal manifests, whatever the format,
/// order, compression and number of files. Metadata is not part of a manifest.
///
/// For equal tensors, the text form is byte-identical, and so is the JSON form. Therefore either form can be
/// signed. docs/tensor.md describes both forms.
///
/// ```
/// use tensor_files::Manifest;
/// # use fmt_core::{Plan, PlannedEntry};
/// # use tensor_core::{DType, Shape, TensorSpec};
/// # fn main() -> Result<(), fmt_core::Error> {
/// # let format = tensor_files::format("safetensors").unwrap();
/// # let spec = TensorSpec::new(DType::U8, Shape::vector(3)).unwrap();
/// # let plan = Plan { entries: vec![PlannedEntry::dense("w", spec)], ..Plan::default() };
/// # let mut file = Vec::new();
/// # let mut writer = format.create(Box::new(&mut file), plan)?;
/// # writer.write(b"abc")?;
/// # writer.finish()?;
/// # let reader = format.open(std::sync::Arc::new(tensor_core::Bytes::from(file)), &Default::default())?;
/// let manifest = Manifest::of(&*reader)?;
/// let line = manifest.to_text().lines().nth(1).map(str::to_owned);
/// let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // of "abc"
/// assert_eq!(line, Some(format!("{sha256}  u8  [3]  \"w\"")));
/// assert_eq!(Manifest::parse(manifest.to_text().as_bytes())?, manifest);
/// assert_eq!(Manifest::parse(manifest.to_json().as_bytes())?, manifest);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    tensors: BTreeMap<String, ManifestEntry>,
}

/// A tensor in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestEntry {
    /// The dtype's name, such as `f32` or `bf16`; for opaque elements the file's own name, such as `F8_E4M3`.
    pub dtype: String,
    /// The dimensions.
    pub shape: Vec<u64>,
    /// Number of stored entries of a sparse tensor; `None` for a dense tensor.
    pub nnz: Option<u64>,
    /// The SHA-256 in lower-case hexadecimal digits.
    pub sha256: String,
}

/// The first line of the text form.
const HEAD: &str = "tensor-manifest 1 sha256";

impl Manifest {
    /// Reads all tensors in pieces; only sparse tensors are held in memory as a whole, for sorting.
    ///
    /// # Errors
    /// The errors of reading; [`ErrorKind::Unsupported`] for a tensor that cannot be read;
    /// [`ErrorKind::Duplicate`] when a name occurs twice.
    pub fn of(reader: &dyn TensorReader) -> Result<Self, Error> {
        Self::of_watched(reader, &|_| ControlFlow::Continue(()))
    }

    /// Creates a manifest like [`Manifest::of`], and calls `watch` with the number of bytes read.
    ///
    /// # Errors
    /// The errors of [`Manifest::of`]; [`ErrorKind::Io`] when `watch` aborted.
    pub fn of_watched(
        reader: &dyn TensorReader,
        watch: &dyn Fn(u64) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let mut tensors = BTreeMap::new();
        for index in 0..reader.entries().len() {
            let name = &reader.entries()[index].name;
            let entry = digest(reader, index, watch).map_err(|error| error.of_tensor(name))?;
            if tensors.insert(name.clone(), entry).is_some() {
                let error = Error::new(ErrorKind::Duplicate, "the name is in the file twice");
                return Err(error.of_tensor(name));
            }
        }
        Ok(Self { tensors })
    }

    /// Returns the tensors, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &ManifestEntry)> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Returns one digest for all tensors: the SHA-256 of their lines in the text form, each with its line
    /// feed.
    #[must_use]
    pub fn content_sha256(&self) -> String {
        hex(&Sha256::digest(self.lines()))
    }

    fn lines(&self) -> String {
        self.tensors
            .iter()
            .fold(String::new(), |mut text, (name, entry)| {
                let ManifestEntry {
                    dtype,
                    shape,
                    nnz,
                    sha256,
                } = entry;
                let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
                let sparse = nnz.map_or(String::new(), |nnz| format!("/coo={nnz}"));
                let name = serde_json::Value::from(name.as_str());
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{sha256}  {dtype}{sparse}  [{}]  {name}", shape.join(","));
                text
            })
    }

    /// Formats as text: a header, a line per tensor, sorted by name, and the digest of all tensors.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{HEAD}\n{}{}  content\n", self.lines(), self.content_sha256())
    }

    /// Formats as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let tensors = self.tensors.iter().map(|(name, entry)| JsonEntry {
            name: name.clone(),
            dtype: entry.dtype.clone(),
            shape: entry.shape.clone(),
            nnz: entry.nnz,
            sha256: entry.sha256.clone(),
        });
        let manifest = Json {
            tensor_manifest: 1,
            content_sha256: self.content_sha256(),
            tensors: tensors.collect(),
        };
        // Strings and numbers can always be serialized.
        let mut json = serde_json::to_string_pretty(&manifest).unwrap_or_default();
        json.push('\n');
        json
    }

    /// Parses the text form or the JSON form.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] when `bytes` is not a manifest, [`ErrorKind::BadVersion`] for another
    /// version, [`ErrorKind::Corrupt`] when the tensors do not match the manifest's digest.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let error_at = error.valid_up_to() as u64;
            malformed("the manifest is not text in UTF-8").at(error_at)
        })?;
        let (manifest, content) = match text.trim_start().starts_with('{') {
            true => of_json(text)?,
            false => of_text(text)?,
        };
        if manifest.content_sha256() != content {
            let error = Error::new(
                ErrorKind::Corrupt,
                "the manifest was modified: its digest differs",
            );
            return Err(error.expected(manifest.content_sha256()).found(content));
        }
        Ok(manifest)
    }

    /// Compares tensors with the manifest. Returns each difference with its tensor's name.
    #[must_use]
    pub fn differences(&self, found: &Self) -> Vec<(String, String)> {
        let mut differences = Vec::new();
        for (name, entry) in &self.tensors {
            let Some(other) = found.tensors.get(name) else {
                differences.push((name.clone(), "is missing".to_owned()));
                continue;
            };
            let form = |entry: &ManifestEntry| {
                let layout = if entry.nnz.is_some() { "sparse " } else { "" };
                format!("{layout}{}{:?}", entry.dtype, entry.shape)
            };
            if form(entry) != form(other) {
                let what = format!(
                    "is {} in the manifest and {} in the file",
                    form(entry),
                    form(other)
                );
                differences.push((name.clone(), what));
            } else if entry != other {
                differences.push((name.clone(), "has different content".to_owned()));
            }
        }
        let more = found
            .tensors
            .keys()
            .filter(|name| !self.tensors.contains_key(*name));
        differences.extend(more.map(|name| (name.clone(), "is not in the manifest".to_owned())));
        differences
    }
}

fn digest(
    reader: &dyn TensorReader,
    index: usize,
    watch: &dyn Fn(u64) -> ControlFlow<()>,
) -> Result<ManifestEntry, Error> {
    const PIECE: usize = 256 << 10;
    let entry = &reader.entries()[index];
    if let (Some(why), false) = (&entry.unsupported, entry.is_copied_only()) {
        return Err(Error::new(ErrorKind::Unsupported, why.clone()));
    }
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update(bytes);
        match watch(bytes.len() as u64) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::new(ErrorKind::Io, "the reading was stopped")),
        }
    };
    let nnz = match entry.layout {
        Layout::Coo { nnz } => Some(nnz),
        _ => None,
    };
    if nnz.is_some() {
        let sorted = reader.sparse(index)?.sorted();
        let sorted = sorted.map_err(|error| Error::new(ErrorKind::Duplicate, error.to_string()))?;
        add(sorted.indices().bytes())?;
        add(sorted.values().bytes())?;
    } else {
        let mut stream = reader.stream(index)?;
        let mut piece = vec![0; PIECE.next_multiple_of(TENSOR_STREAM_UNIT)];
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                len => add(&piece[..len])?,
            }
        }
    }
    Ok(ManifestEntry {
        dtype: entry.dtype.to_string(),
        shape: entry.shape.dims().to_vec(),
        nnz,
        sha256: hex(&hash.finalize()),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    tensor_manifest: u64,
    content_sha256: String,
    tensors: Vec<JsonEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nnz: Option<u64>,
    sha256: String,
}

fn malformed(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, what).expected("what `tensor manifest` prints, as text or JSON")
}

fn bad_version(found: impl std::fmt::Display) -> Error {
    let error = Error::new(ErrorKind::BadVersion, "the version of the manifest");
    error.expected(HEAD).found(found)
}

fn of_json(text: &str) -> Result<(Manifest, String), Error> {
    let json: Json = serde_json::from_str(text)
        .map_err(|error| malformed(format!("the manifest cannot be read: {error}")))?;
    if json.tensor_manifest != 1 {
        return Err(bad_version(json.tensor_manifest));
    }
    let mut manifest = Manifest {
        tensors: BTreeMap::new(),
    };
    for entry in json.tensors {
        let JsonEntry {
            name,
            dtype,
            shape,
            nnz,
            sha256,
        } = entry;
        manifest.add(
            name,
            ManifestEntry {
                dtype,
                shape,
                nnz,
                sha256,
            },
        )?;
    }
    Ok((manifest, json.content_sha256))
}

fn of_text(text: &str) -> Result<(Manifest, String), Error> {
    let mut lines = text.lines();
    match lines.next() {
        Some(HEAD) => {}
        Some(line) if line.starts_with("tensor-manifest ") => return Err(bad_version(QuotedName(line))),
        _ => return Err(malformed("the first line of the manifest")),
    }
    let mut manifest = Manifest {
        tensors: BTreeMap::new(),
    };
    for (number, line) in lines.by_ref().enumerate() {
        if let Some(content) = line.strip_suffix("  content") {
            if lines.next().is_some() {
                return Err(malformed("there are lines after the manifest's last"));
            }
            return Ok((manifest, content.to_owned()));
        }
        let parsed = tensor_of(line).ok_or_else(|| malformed(format!("line {} of the manifest", number + 2)));
        let (name, entry) = parsed?;
        manifest.add(name, entry)?;
    }
    Err(malformed(
        "the last line of the manifest is missing, with the digest of all",
    ))
}

fn tensor_of(line: &str) -> Option<(String, ManifestEntry)> {
    let mut parts = line.splitn(4, "  ");
    let (sha256, dtype) = (parts.next()?.to_owned(), parts.next()?);
    let (dtype, nnz) = match dtype.split_once("/coo=") {
        Some((dtype, nnz)) => (dtype, Some(nnz.parse().ok()?)),
        None => (dtype, None),
    };
    let shape = parts.next()?.strip_prefix('[')?.strip_suffix(']')?;
    let dims = shape.split(',').filter(|dim| !dim.is_empty());
    let shape = dims.map(|dim| dim.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let name = serde_json::from_str(parts.next()?).ok()?;
    let dtype = dtype.to_owned();
    Some((
        name,
        ManifestEntry {
            dtype,
            shape,
            nnz,
            sha256,
        },
    ))
}

impl Manifest {
    fn add(&mut self, name: String, entry: ManifestEntry) -> Result<(), Error> {
        match self.tensors.entry(name) {
            Entry::Vacant(place) => {
                place.insert(entry);
                Ok(())
            }
            Entry::Occupied(known) => {
                let error = Error::new(ErrorKind::Duplicate, "the manifest names it twice");
                Err(error.of_tensor(known.key()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let entry = |dtype: &str, shape: &[u64], nnz| ManifestEntry {
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            nnz,
            sha256: hex(&Sha256::digest(dtype)),
        };
        let tensors = [
            ("b \"\n\u{202e}", entry("f32", &[2, 3], None)),
            ("", entry("F8_E4M3", &[], None)),
            ("s  x", entry("i64", &[9], Some(2))),
        ];
        let tensors = tensors.map(|(name, entry)| (name.to_owned(), entry));
        Manifest {
            tensors: tensors.into(),
        }
    }

    #[test]
    fn both_forms_are_read_again() {
        let manifest = manifest();
        let text = manifest.to_text();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert_eq!(Manifest::parse(text.as_bytes()).unwrap(), manifest);
        assert_eq!(Manifest::parse(manifest.to_json().as_bytes()).unwrap(), manifest);
    }

    #[test]
    fn a_manifest_that_was_changed_is_refused() {
        let (text, json) = (manifest().to_text(), manifest().to_json());
        let kind = |text: &str| Manifest::parse(text.as_bytes()).unwrap_err().kind();
        assert_eq!(kind(&text.replace("[2,3]", "[3,2]")), ErrorKind::Corrupt);
        assert_eq!(kind(&json.replace("F8_E4M3", "F8_E5M2")), ErrorKind::Corrupt);
        assert_eq!(
            kind(&text.replace("manifest 1", "manifest 2")),
            ErrorKind::BadVersion
        );
        assert_eq!(
            kind(&json.replace("manifest\": 1", "manifest\": 2")),
            ErrorKind::BadVersion
        );
        for wrong in [
            "",
            "{}",
            "abc",
            &text[..text.len() - 30],
            &format!("{text}more\n"),
        ] {
            assert_eq!(kind(wrong), ErrorKind::Malformed, "{wrong}");
        }
        assert!(Manifest::parse(b"\xff").is_err());
    }

    #[test]
    fn what_differs_is_named() {
        let (expected, mut found) = (manifest(), manifest());
        assert!(expected.differences(&found).is_empty());
        let entry = found.tensors.remove("").unwrap();
        found.tensors.insert("new".to_owned(), entry);
        found.tensors.get_mut("s  x").unwrap().nnz = Some(3);
        found.tensors.get_mut("b \"\n\u{202e}").unwrap().shape = vec![6];
        let differences = expected.differences(&found);
        let whats: Vec<&str> = differences.iter().map(|(_, what)| what.as_str()).collect();
        assert_eq!(
            whats,
            [
                "is missing",
                "is f32[2, 3] in the manifest and f32[6] in the file",
                "has different content",
                "is not in the manifest"
            ]
        );
    }
}
