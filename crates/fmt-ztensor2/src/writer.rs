//! Writing files of version 2: dense tensors as they come, and the manifest behind them.

use std::io::Write;

use fmt_core::{Error, ErrorKind, Layout, Limits, Plan, PlannedEntry, Sink, StoredDType, TensorWriter};
use tensor_core::{DType, Shape};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{
    container::{FOOTER_VERSION, MAGIC_V2, Version},
    manifest::check_name_v2,
    types::{LOGICAL, joined},
};

/// Keys and values, both encoded.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A file of version 2 that is being written.
pub(crate) struct ObjectsWriter<'w> {
    sink: Sink<Box<dyn Write + Send + 'w>>,
    objects: Vec<Object>,
    metadata: Pairs,
    /// The object whose bytes come next, and how many of them are to come.
    current: usize,
    rest: u64,
    hasher: Xxh3,
}

/// A tensor as the manifest has it.
struct Object {
    name: String,
    shape: Shape,
    dtype: &'static str,
    logical: Option<&'static str>,
    attributes: Pairs,
    offset: u64,
    len: u64,
    hash: u64,
}

impl<'w> ObjectsWriter<'w> {
    /// Nothing is written if the format cannot hold the plan.
    pub(crate) fn planned(out: Box<dyn Write + Send + 'w>, plan: &Plan) -> Result<Self, Error> {
        let objects = plan
            .entries
            .iter()
            .map(Object::of)
            .collect::<Result<Vec<_>, _>>()?;
        let mut names: Vec<&str> = objects.iter().map(|object| &*object.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let error = Error::new(ErrorKind::Duplicate, "the name of the object").of_tensor(twice[0]);
            return Err(error.rule("O6").expected("a name of its own"));
        }
        let mut writer = Self {
            sink: Sink::new(out, 0),
            metadata: attributes(&plan.metadata)?,
            objects,
            current: 0,
            rest: 0,
            hasher: Xxh3::new(),
        };
        writer.check_manifest()?;
        writer.rest = writer.objects.first().map_or(0, |object| object.len);
        Ok(writer)
    }

    /// The manifest is not longer than a reader takes, wherever the blobs will be.
    fn check_manifest(&mut self) -> Result<(), Error> {
        let limits = Limits::default();
        let longest = self.manifest().len() as u64 + 8 * self.objects.len() as u64;
        let (what, most, found) = match self.objects.len() as u64 > limits.tensors {
            true => ("the number of objects", limits.tensors, self.objects.len() as u64),
            false => ("the length of the manifest", limits.index_bytes, longest),
        };
        if found > most {
            let error = Error::new(ErrorKind::TooLarge, what).rule("O2");
            return Err(error.expected(format_args!("at most {most}")).found(found));
        }
        Ok(())
    }

    /// Begins the blob of the current object.
    fn begin(&mut self) -> Result<(), Error> {
        if self.sink.position() == 0 {
            self.sink.write(&MAGIC_V2)?;
        }
        let alignment = Version::V2.alignment();
        let offset = self.sink.position().next_multiple_of(alignment);
        self.sink.pad_to(offset)?;
        self.hasher = Xxh3::new();
        if let Some(object) = self.objects.get_mut(self.current) {
            object.offset = offset;
        }
        Ok(())
    }

    /// Ends objects that have all their bytes, and begins those that have none.
    fn settle(&mut self) -> Result<(), Error> {
        while self.rest == 0 && self.current < self.objects.len() {
            if self.objects[self.current].len == 0 {
                self.begin()?;
            }
            self.objects[self.current].hash = self.hasher.digest();
            self.current += 1;
            self.rest = self.objects.get(self.current).map_or(0, |object| object.len);
        }
        Ok(())
    }

    /// The manifest as deterministic CBOR: keys in the order of their encoded bytes.
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
        while !bytes.is_empty() {
            self.settle()?;
            let Some(object) = self.objects.get(self.current) else {
                self.sink.fail();
                let error = Error::new(ErrorKind::SizeMismatch, "bytes behind the last tensor");
                return Err(error.at(self.sink.position()).found(bytes.len()));
            };
            if self.rest == object.len {
                self.begin()?;
            }
            let object = &self.objects[self.current];
            let len = usize::try_from(self.rest).map_or(bytes.len(), |rest| rest.min(bytes.len()));
            let (piece, others) = bytes.split_at(len);
            if object.logical == Some("bool") && piece.iter().any(|byte| *byte > 1) {
                self.sink.fail();
                let error = Error::new(ErrorKind::Unsupported, "a truth value").of_tensor(&object.name);
                return Err(error.rule("O17").expected("bytes of 0 and 1").found("others"));
            }
            self.hasher.update(piece);
            self.sink.write(piece)?;
            self.rest -= len as u64;
            bytes = others;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.settle()?;
        if let Some(object) = self.objects.get(self.current) {
            let error = Error::new(ErrorKind::SizeMismatch, "the bytes of the tensor");
            let error = error.of_tensor(&object.name).expected(object.len);
            return Err(error.found(object.len - self.rest));
        }
        self.begin()?;
        let (offset, manifest) = (self.sink.position(), self.manifest());
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
        let of_tensor = |error: Error| error.of_tensor(&entry.name);
        check_name_v2(&entry.name).map_err(of_tensor)?;
        if entry.layout != Layout::Dense {
            let error = Error::new(ErrorKind::Unsupported, "sparse tensors are not written").rule("O18");
            return Err(of_tensor(error));
        }
        let (stored, shape) = match &entry.opaque {
            Some((dtype, shape)) => (StoredDType::Opaque(dtype.clone()), shape.clone()),
            None => (StoredDType::Known(entry.spec.dtype()), entry.spec.shape().clone()),
        };
        let (dtype, logical) = names_of(&stored).ok_or_else(|| {
            let error = Error::new(ErrorKind::Unsupported, "the format has no place for the dtype");
            of_tensor(error.rule("O9").found(&stored))
        })?;
        Ok(Self {
            name: entry.name.clone(),
            shape,
            dtype,
            logical,
            attributes: attributes(&entry.attributes).map_err(of_tensor)?,
            offset: 0,
            len: entry.spec.byte_len(),
            hash: 0,
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut blob = head(4, 2);
        blob.extend(head(0, self.offset));
        blob.extend(head(0, self.len));
        let mut part = vec![
            (text("dtype"), text(self.dtype)),
            (text("blob"), blob),
            (text("digest"), text(&format!("xxh3:{:016x}", self.hash))),
        ];
        part.extend(self.logical.map(|logical| (text("type"), text(logical))));
        let dims = self.shape.dims();
        let mut shape = head(4, dims.len() as u64);
        dims.iter().for_each(|dim| shape.extend(head(0, *dim)));
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

/// What the format calls a dtype: the dtype of its bytes, and the logical type if that says more.
fn names_of(stored: &StoredDType) -> Option<(&'static str, Option<&'static str>)> {
    if let StoredDType::Known(dtype) = stored
        && *dtype != DType::Bool
    {
        return Some((dtype.name(), None));
    }
    let mut logical = LOGICAL.iter();
    let (name, takes) = logical.find_map(|(name, takes, ..)| {
        let found = joined(*takes, Some(name))?.ok()?;
        (found.dtype == *stored).then_some((*name, *takes))
    })?;
    Some((takes.name(), Some(name)))
}

/// Texts by key, both encoded.
fn attributes<'a>(texts: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Pairs, Error> {
    let encoded = texts.into_iter().map(|(key, value)| {
        check_name_v2(key).map_err(|error| error.rule("O7").within("the key of an attribute"))?;
        Ok((text(key), text(value)))
    });
    encoded.collect()
}

/// A map of encoded keys and values. An encoded text begins with its length, so that short keys come first.
fn map(mut pairs: Pairs) -> Vec<u8> {
    pairs.sort_unstable();
    let mut map = head(5, pairs.len() as u64);
    for (key, value) in pairs {
        map.extend(key);
        map.extend(value);
    }
    map
}

fn text(text: &str) -> Vec<u8> {
    let mut encoded = head(3, text.len() as u64);
    encoded.extend_from_slice(text.as_bytes());
    encoded
}

/// The head of an item: its major type and its number or length, as short as it can be.
fn head(major: u8, number: u64) -> Vec<u8> {
    let bytes = number.to_be_bytes();
    let (info, len) = match number {
        0..=23 => return vec![major << 5 | number as u8],
        24..=0xFF => (24, 1),
        0x100..=0xFFFF => (25, 2),
        0x1_0000..=0xFFFF_FFFF => (26, 4),
        _ => (27, 8),
    };
    [&[major << 5 | info], &bytes[8 - len..]].concat()
}
