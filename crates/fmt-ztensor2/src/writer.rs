//! Writes files of version 2: dense tensors as they arrive, followed by the manifest.

use std::io::Write;

use fmt_cbor::{Header, push_head};
use fmt_core::{Error, ErrorKind, Limits, Outstanding, Plan, PlannedEntry, StoredDType, TensorWriter};
use fmt_zstd::{ChecksumKind, Hasher, HashingSink};
use tensor_core::Shape;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    capabilities::CAPABILITIES,
    container::{FOOTER_VERSION, MAGIC_V2, Version},
    manifest::check_name_v2,
    types::names_of,
};

/// Keys and values of a map, all encoded as CBOR.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Writes a file of version 2: a blob for each tensor, then the manifest.
pub(crate) struct ObjectsWriter<'w> {
    sink: HashingSink<Box<dyn Write + Send + 'w>>,
    objects: Vec<Object>,
    metadata: Pairs,
    outstanding: Outstanding,
}

/// A tensor in the manifest.
struct Object {
    name: String,
    shape: Shape,
    dtype: &'static str,
    logical: Option<&'static str>,
    attributes: Pairs,
    offset: u64,
    len: u64,
    /// The digest of the tensor's bytes; `None` until all of them are written.
    digest: Option<String>,
}

impl<'w> ObjectsWriter<'w> {
    /// Creates a writer. Nothing is written if the format cannot store the plan.
    pub(crate) fn planned(out: Box<dyn Write + Send + 'w>, plan: &Plan) -> Result<Self, Error> {
        let limits = Limits::default();
        plan.check(&CAPABILITIES, &limits)?;
        let objects = plan.entries.iter().map(Object::of);
        let objects = objects.collect::<Result<Vec<_>, _>>()?;
        let mut outstanding = Outstanding::default();
        for (number, object) in objects.iter().enumerate() {
            outstanding.announce(number, object.len);
        }
        let writer = Self {
            sink: HashingSink::new(out, 0),
            metadata: attributes(&plan.metadata)?,
            objects,
            outstanding,
        };
        writer.check_manifest(limits.index_bytes)?;
        Ok(writer)
    }

    /// Checks that the manifest will take at most `most` bytes, the limit of readers.
    fn check_manifest(&self, most: u64) -> Result<(), Error> {
        let longest = self.manifest().len() as u64 + 8 * self.objects.len() as u64;
        if longest <= most {
            return Ok(());
        }
        let error = Error::new(ErrorKind::TooLarge, "the length of the manifest").rule("O2");
        Err(error.expected(format_args!("at most {most}")).found(longest))
    }

    /// Begins a blob, and returns its offset.
    fn begin(&mut self) -> Result<u64, Error> {
        if self.sink.position() == 0 {
            self.sink.write(&MAGIC_V2)?;
        }
        let offset = self.sink.position().next_multiple_of(Version::V2.alignment());
        self.sink.pad_to(offset)?;
        Ok(offset)
    }

    /// Encodes the manifest as deterministic CBOR: keys in the order of their encoded bytes.
    fn manifest(&self) -> Vec<u8> {
        let objects = self
            .objects
            .iter()
            .map(|object| (text(&object.name), object.encode()));
        let mut root = vec![(text("objects"), map(objects.collect()))];
        if !self.metadata.is_empty() {
            root.push((text("attributes"), map(self.metadata.clone())));
        }
        map(root)
    }
}

impl TensorWriter for ObjectsWriter<'_> {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.sink.check()?;
        self.outstanding.admit(bytes)?;
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            if piece.begins {
                self.objects[piece.number].offset = self.begin()?;
                self.sink.hash(Some(Hasher::new(ChecksumKind::Xxh3)));
            }
            let object = &mut self.objects[piece.number];
            if object.logical == Some("bool") && piece.bytes.iter().any(|byte| *byte > 1) {
                self.sink.fail();
                let error = Error::new(ErrorKind::Unsupported, "a truth value").of_tensor(&object.name);
                return Err(error.rule("O17").expected("bytes of 0 and 1").found("others"));
            }
            self.sink.write(piece.bytes)?;
            if piece.ends {
                object.digest = self.sink.take_claim().map(|claim| claim.to_string());
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.write(&[])?;
        self.outstanding
            .complete(|number| Some(self.objects[number].name.clone()))?;
        let offset = self.begin()?;
        let manifest = self.manifest();
        self.sink.write(&manifest)?;
        for word in [offset, manifest.len() as u64, xxh3_64(&manifest)] {
            self.sink.write(&word.to_le_bytes())?;
        }
        self.sink.write(&FOOTER_VERSION.to_le_bytes())?;
        self.sink.write(&[0; 4])?;
        self.sink.write(&MAGIC_V2)?;
        self.sink.flush()?;
        Ok(self.sink.position())
    }
}

impl Object {
    fn of(entry: &PlannedEntry) -> Result<Self, Error> {
        let (stored, shape) = match &entry.opaque {
            Some((dtype, shape)) => (StoredDType::Opaque(dtype.clone()), shape.clone()),
            None => (StoredDType::Known(entry.spec.dtype()), entry.spec.shape().clone()),
        };
        let (dtype, logical) = names_of(&stored).ok_or_else(|| {
            let error = Error::new(ErrorKind::Unsupported, "the dtype").of_tensor(&entry.name);
            error.rule("O9").found(&stored)
        })?;
        Ok(Self {
            name: entry.name.clone(),
            shape,
            dtype,
            logical,
            attributes: attributes(&entry.attributes).map_err(|error| error.of_tensor(&entry.name))?,
            offset: 0,
            len: entry.spec.byte_len(),
            digest: None,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let digest = self.digest.as_deref().unwrap_or("xxh3:0000000000000000");
        let mut blob = head(Header::Array(Some(2)));
        push_head(&mut blob, Header::Positive(self.offset));
        push_head(&mut blob, Header::Positive(self.len));
        let mut part = vec![
            (text("dtype"), text(self.dtype)),
            (text("blob"), blob),
            (text("digest"), text(digest)),
        ];
        part.extend(self.logical.map(|logical| (text("type"), text(logical))));
        let dims = self.shape.dims();
        let mut shape = head(Header::Array(Some(dims.len())));
        dims.iter()
            .for_each(|dim| push_head(&mut shape, Header::Positive(*dim)));
        let mut object = vec![
            (text("shape"), shape),
            (text("layout"), text("dense")),
            (text("parts"), map(vec![(text("data"), map(part))])),
        ];
        if !self.attributes.is_empty() {
            object.push((text("attributes"), map(self.attributes.clone())));
        }
        map(object)
    }
}

/// Encodes a map of strings.
fn attributes<'a>(texts: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Pairs, Error> {
    let encoded = texts.into_iter().map(|(key, value)| {
        check_name_v2(key).map_err(|error| error.rule("O7").within("the key of an attribute"))?;
        Ok((text(key), text(value)))
    });
    encoded.collect()
}

/// Encodes a map of encoded keys and values. An encoded text begins with its length, so shorter keys come
/// first.
fn map(mut pairs: Pairs) -> Vec<u8> {
    pairs.sort_unstable();
    let mut map = head(Header::Map(Some(pairs.len())));
    for (key, value) in pairs {
        map.extend(key);
        map.extend(value);
    }
    map
}

fn text(text: &str) -> Vec<u8> {
    let mut encoded = head(Header::Text(Some(text.len())));
    encoded.extend_from_slice(text.as_bytes());
    encoded
}

/// Encodes the header of an item.
fn head(header: Header) -> Vec<u8> {
    let mut head = Vec::new();
    push_head(&mut head, header);
    head
}
