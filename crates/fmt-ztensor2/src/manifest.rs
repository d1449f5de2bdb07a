//! The manifest: a CBOR map with one map for each object, in the schemas of versions 1.0, 1.1 to 1.2, and 2
//! (O3 to O8).

use std::{borrow::Cow, ops::Range};

use fmt_cbor::{DuplicateKey, Fields, FieldsBuilder, Items};
use fmt_core::{Entry, Error, ErrorKind, Limits, NameTable, ReadOptions, check_name, check_overlaps};
use tensor_core::QuotedName;

use crate::{
    container::{Container, RULES, Version},
    deterministic,
    entries::{self, Content, Draft},
    pairs::{Pairs, missing, twice},
    parts::{DraftPart, Part},
    shards::Shards,
};

/// The validated contents of a manifest.
#[derive(Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) entries: Vec<Entry>,
    /// The content of each entry, in the order of `entries`.
    pub(crate) contents: Vec<Content>,
    /// The attributes of the file, not of its objects.
    pub(crate) attributes: Fields,
    /// The ranges of blobs in this file.
    pub(crate) blobs: Vec<Range<u64>>,
    names: NameTable,
}

/// Maximum length of a name in bytes, from the specification of version 2.
const NAME_V2: u64 = 1024;
/// Maximum number of parts of an object; the known layouts have at most three.
const MOST_PARTS: usize = 64;

impl Manifest {
    /// Parses and validates a manifest.
    pub(crate) fn parse(bytes: &[u8], container: &Container, options: &ReadOptions) -> Result<Self, Error> {
        Self::proven(bytes, container, options).map_err(|error| error.rename_rule(RULES))
    }

    fn proven(bytes: &[u8], container: &Container, options: &ReadOptions) -> Result<Self, Error> {
        let start = container.manifest.start;
        if container.version == Version::V2 {
            deterministic::check(bytes, start, options.limits.depth)?;
        }
        let mut parser = Parser {
            items: Items::new(bytes, start),
            container,
            options,
            manifest: Self::default(),
            shards: Shards::default(),
        };
        parser.root()?;
        let Parser {
            manifest, mut shards, ..
        } = parser;
        if !options.lenient || container.version == Version::V2 {
            let mut ranges = manifest.blobs.clone();
            ranges.push(container.manifest.clone());
            check_overlaps(&ranges).map_err(|error| error.rule("O8"))?;
            shards.check_overlaps()?;
        }
        Ok(manifest)
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.find_entry(name, &self.entries)
    }
}

struct Parser<'a> {
    items: Items<'a>,
    container: &'a Container,
    options: &'a ReadOptions,
    manifest: Manifest,
    shards: Shards,
}

impl<'a> Parser<'a> {
    fn limits(&self) -> &'a Limits {
        &self.options.limits
    }

    fn is_v2(&self) -> bool {
        self.container.version == Version::V2
    }

    fn root(&mut self) -> Result<(), Error> {
        let limits = &self.options.limits;
        let at = self.items.position();
        let (mut has_objects, mut has_attributes, mut has_shards) = (false, false, false);
        let mut pairs = Pairs::begin(&mut self.items, "the manifest")?;
        while let Some(key) = pairs.next(&mut self.items)? {
            let is_v2 = self.is_v2();
            let seen = match &*key {
                "objects" => &mut has_objects,
                "tensors" if !is_v2 => &mut has_objects,
                "attributes" => &mut has_attributes,
                "shards" if is_v2 => &mut has_shards,
                _ => {
                    self.items.skip(self.limits().depth, "a value of the manifest")?;
                    continue;
                }
            };
            if std::mem::replace(seen, true) {
                return Err(twice(&key).at(pairs.at));
            }
            match &*key {
                "attributes" => self.manifest.attributes = self.fields()?.unwrap_or_default(),
                "shards" => self.shards = Shards::read(&mut self.items, limits)?,
                _ => self.objects()?,
            }
        }
        if !self.items.is_empty() {
            let error = Error::new(ErrorKind::Malformed, "the manifest").at(self.items.position());
            return Err(error.rule("O3").expected("its end").found("bytes after the map"));
        }
        if !has_objects {
            return Err(missing("objects", "the manifest").at(at).rule("O4"));
        }
        Ok(())
    }

    fn objects(&mut self) -> Result<(), Error> {
        let mut pairs = Pairs::begin(&mut self.items, "objects")?;
        while let Some(name) = pairs.next(&mut self.items)? {
            let limit = self.limits().tensors;
            if self.manifest.entries.len() as u64 >= limit {
                let error = Error::new(ErrorKind::TooLarge, "the number of objects").at(pairs.at);
                return Err(error
                    .rule("O2")
                    .expected(format_args!("at most {limit}, the limit")));
            }
            self.name(&name)
                .map_err(|error| error.at(pairs.at).of_tensor(&name))?;
            self.object(&name)
                .map_err(|error| error.of_tensor(&name).at(pairs.at))?;
            // The limit on tensors is below 2^32, unless the caller raised it beyond any available memory.
            let last = self.manifest.entries.len() - 1;
            let number = u32::try_from(last)
                .map_err(|_| Error::new(ErrorKind::TooLarge, "the number of objects").rule("O2"))?;
            let Manifest { entries, names, .. } = &mut self.manifest;
            let name_of = |number: u32| &*entries[number as usize].name;
            let is_taken = names.insert(number, &name, name_of).is_err();
            if is_taken && (!self.options.lenient || self.container.version == Version::V2) {
                let error = Error::new(ErrorKind::Duplicate, "the name of the object");
                return Err(error
                    .of_tensor(&name)
                    .at(pairs.at)
                    .rule("O6")
                    .expected("a unique name"));
            }
        }
        Ok(())
    }

    fn name(&self, name: &str) -> Result<(), Error> {
        if !self.is_v2() {
            return check_name(name, self.options).map_err(|error| error.rule("O6"));
        }
        check_name_v2(name)
    }

    fn object(&mut self, name: &str) -> Result<(), Error> {
        let mut draft = Draft::default();
        let (is_v2, limits) = (self.is_v2(), &self.options.limits);
        let mut pairs = Pairs::begin(&mut self.items, "an object")?;
        while let Some(key) = pairs.next(&mut self.items)? {
            let is_new = match &*key {
                "shape" => draft
                    .shape
                    .replace(self.items.shape(limits).map_err(of_shape)?)
                    .is_none(),
                "layout" if is_v2 => draft.layout.replace(self.items.text("layout")?).is_none(),
                "format" if !is_v2 => draft.layout.replace(self.items.text("format")?).is_none(),
                "dtype" if !is_v2 => draft.dtype.replace(self.items.text("dtype")?).is_none(),
                "attributes" => {
                    let fields = self.fields()?.unwrap_or_default();
                    draft.attributes.replace(fields).is_none()
                }
                "parts" if is_v2 => draft.parts.replace(self.parts()?).is_none(),
                "components" if !is_v2 => draft.parts.replace(self.parts()?).is_none(),
                _ => {
                    self.items.skip(self.limits().depth, "a value of an object")?;
                    true
                }
            };
            if !is_new {
                return Err(twice(&key).at(pairs.at));
            }
        }
        let attributes = draft.attributes.take().unwrap_or_default();
        let mut parts = Vec::new();
        for (role, part) in draft.parts.as_deref().unwrap_or_default() {
            let shared = draft.dtype.as_deref().map(|dtype| (dtype, &**role));
            let part = Part::prove(part, shared, self.container, &self.shards);
            parts.push(part.map_err(|error| about_part(error, role))?);
        }
        for part in &parts {
            match &part.shard {
                None => self.manifest.blobs.push(part.range.clone()),
                Some(shard) => self.shards.refer(*shard, part.range.clone()),
            }
        }
        let (mut entry, content) = entries::made_of(name, &draft, parts, self.container.version)?;
        entry.attributes = attributes.attributes();
        self.manifest.entries.push(entry);
        self.manifest.contents.push(content);
        Ok(())
    }

    fn parts(&mut self) -> Result<Vec<(Cow<'a, str>, DraftPart<'a>)>, Error> {
        let mut parts: Vec<(Cow<'a, str>, DraftPart<'a>)> = Vec::new();
        let mut pairs = Pairs::begin(&mut self.items, "the parts of an object")?;
        while let Some(role) = pairs.next(&mut self.items)? {
            if self.is_v2() {
                check_name_v2(&role).map_err(|error| error.at(pairs.at))?;
            }
            if parts.iter().any(|(other, _)| *other == role) {
                return Err(twice(&role).at(pairs.at));
            }
            if parts.len() >= MOST_PARTS {
                let error = Error::new(ErrorKind::TooLarge, "the number of parts").at(pairs.at);
                return Err(error
                    .rule("O2")
                    .expected(format_args!("at most {MOST_PARTS}, the limit")));
            }
            let limits = &self.options.limits;
            let part = DraftPart::read(&mut self.items, self.container.version, limits);
            parts.push((
                role.clone(),
                part.map_err(|error| about_part(error, &role).at(pairs.at))?,
            ));
        }
        Ok(parts)
    }

    /// Reads a map of attributes; `None` for null, which version 1 allows.
    fn fields(&mut self) -> Result<Option<Fields>, Error> {
        if !self.is_v2() && self.items.null() {
            return Ok(None);
        }
        let limit = self.limits().fields;
        let mut fields = FieldsBuilder::default();
        let mut pairs = Pairs::begin(&mut self.items, "attributes")?;
        while let Some(key) = pairs.next(&mut self.items)? {
            if self.is_v2() {
                check_name_v2(&key).map_err(|error| error.at(pairs.at).rule("O7"))?;
            }
            let value = self
                .items
                .skip(self.limits().depth, "the value of an attribute")?;
            if fields.len() as u64 >= limit {
                let error = Error::new(ErrorKind::TooLarge, "the number of attributes").at(pairs.at);
                return Err(error
                    .rule("O7")
                    .expected(format_args!("at most {limit}, the limit")));
            }
            fields.push(&key, value);
        }
        let fields = fields.finish();
        fields
            .map(Some)
            .map_err(|DuplicateKey(key)| twice(&key).at(pairs.at).rule("O7"))
    }
}

/// Checks a name by the rule of version 2.
pub(crate) fn check_name_v2(name: &str) -> Result<(), Error> {
    let bad = |expected: &str, found: String| {
        let error = Error::new(ErrorKind::BadName, "the name").rule("O6");
        Err(error.expected(expected).found(found))
    };
    if name.is_empty() {
        return bad("at least one byte", "none".to_owned());
    }
    if name.len() as u64 > NAME_V2 {
        return bad("at most 1024 bytes", name.len().to_string());
    }
    match name.bytes().position(|byte| byte == 0) {
        Some(at) => bad("no zero byte", format!("one at its byte {at}")),
        None => Ok(()),
    }
}

fn of_shape(error: Error) -> Error {
    error.rule("O5")
}

#[cold]
fn about_part(error: Error, role: &str) -> Error {
    error.within(&format!("part {}", QuotedName(role)))
}
