//! Parses and validates the parts of objects: their blobs, dtypes, encodings and digests (O8 to O13).

use std::{borrow::Cow, ops::Range};

use fmt_cbor::{Header, Items, wrong_type};
use fmt_core::{Encoding, Error, ErrorKind, Limits};
use fmt_zstd::Claim;
use tensor_core::{DType, QuotedName};

use crate::{
    container::{Container, Version},
    pairs::{Pairs, bad_digest, missing, twice},
    shards::Shards,
    types::{PartType, dtype_of, dtype_of_v1_0, joined},
};

/// A part as described in the manifest.
#[derive(Default)]
pub(crate) struct DraftPart<'a> {
    dtype: Option<Cow<'a, str>>,
    logical: Option<Cow<'a, str>>,
    offset: Option<u64>,
    length: Option<u64>,
    encoding: Option<Cow<'a, str>>,
    decoded: Option<u64>,
    digest: Option<Cow<'a, str>>,
    shard: Option<Cow<'a, str>>,
}

impl<'a> DraftPart<'a> {
    pub(crate) fn read(items: &mut Items<'a>, version: Version, limits: &Limits) -> Result<Self, Error> {
        let mut part = Self::default();
        let mut pairs = Pairs::begin(items, "a part")?;
        let is_v2 = version == Version::V2;
        while let Some(key) = pairs.next(items)? {
            // Version 1 allows null for optional keys.
            let is_optional = matches!(&*key, "type" | "encoding" | "digest" | "uncompressed_length");
            if !is_v2 && is_optional && items.null() {
                continue;
            }
            let is_new = match &*key {
                "dtype" => part.dtype.replace(items.text("dtype")?).is_none(),
                "type" => part.logical.replace(items.text("type")?).is_none(),
                "encoding" => part.encoding.replace(items.text("encoding")?).is_none(),
                "digest" => part.digest.replace(items.text("digest")?).is_none(),
                "offset" if !is_v2 => part.offset.replace(items.unsigned("offset")?).is_none(),
                "length" if !is_v2 => part.length.replace(items.unsigned("length")?).is_none(),
                "uncompressed_length" if !is_v2 => part
                    .decoded
                    .replace(items.unsigned("uncompressed_length")?)
                    .is_none(),
                "decoded_length" if is_v2 => {
                    part.decoded.replace(items.unsigned("decoded_length")?).is_none()
                }
                "shard" if is_v2 => part.shard.replace(items.text("shard")?).is_none(),
                "blob" if is_v2 => {
                    let (offset, length) = blob(items)?;
                    part.length = Some(length);
                    part.offset.replace(offset).is_none()
                }
                _ => {
                    items.skip(limits.depth, "a value of a part")?;
                    true
                }
            };
            if !is_new {
                return Err(twice(&key).at(pairs.at));
            }
        }
        Ok(part)
    }
}

/// Reads offset and length of a blob.
fn blob(items: &mut Items<'_>) -> Result<(u64, u64), Error> {
    let at = items.position();
    match items.header("blob")? {
        Header::Array(Some(2)) => Ok((items.unsigned("offset")?, items.unsigned("length")?)),
        other => Err(wrong_type("blob", at, "an array of offset and length", &other)),
    }
}

/// A part that has passed all checks that do not involve other parts of its object.
#[derive(Debug)]
pub(crate) struct Part {
    /// The range of the part's bytes, in this file or in a shard.
    pub(crate) range: Range<u64>,
    pub(crate) encoding: Encoding,
    /// The decoded size, if it is declared or the part is not encoded.
    pub(crate) decoded: Option<u64>,
    pub(crate) digest: Option<String>,
    /// The index of the shard with the bytes; `None` for this file.
    pub(crate) shard: Option<u32>,
    /// The type of the part's elements, or the reason why the type is unknown.
    pub(crate) types: Result<PartType, Unknown>,
}

/// An unknown dtype or logical type.
#[derive(Debug)]
pub(crate) struct Unknown {
    pub(crate) name: String,
    pub(crate) reason: String,
}

impl Part {
    /// Validates a part. In version 1.0, where parts have no dtypes, `shared` is the object's dtype and the
    /// part's role.
    pub(crate) fn prove(
        draft: &DraftPart<'_>,
        shared: Option<(&str, &str)>,
        container: &Container,
        shards: &Shards,
    ) -> Result<Self, Error> {
        let version = container.version;
        let place = match version {
            Version::V1 => ["offset", "length"],
            Version::V2 => ["blob", "blob"],
        };
        let offset = draft.offset.ok_or_else(|| missing(place[0], "a part"))?;
        let length = draft.length.ok_or_else(|| missing(place[1], "a part"))?;
        let shard = draft
            .shard
            .as_deref()
            .map(|name| shards.number(name))
            .transpose()?;
        let end = match shard {
            None => container.data_end,
            Some(shard) => shards.data_end(shard, version),
        };
        let range = check_place(offset, length, end, version)?;
        let encoding = match (draft.encoding.as_deref(), version) {
            (None, _) | (Some("raw"), Version::V1) => Encoding::Raw,
            (Some("zstd"), Version::V1) | (Some("zt.zstd-seekable/1"), Version::V2) => Encoding::Zstd,
            (Some(other), _) => Encoding::Unknown(other.to_owned()),
        };
        if version == Version::V2 && draft.encoding.is_some() != draft.decoded.is_some() {
            let error = Error::new(ErrorKind::Malformed, "decoded_length").rule("O12");
            return Err(error
                .expected("it where there is an encoding, and only there")
                .found(match draft.decoded {
                    Some(_) => "no encoding",
                    None => "an encoding",
                }));
        }
        let decoded = match encoding {
            Encoding::Raw => Some(length),
            _ => draft.decoded,
        };
        if let Some(text) = &draft.digest {
            // Only version 2 specifies the form of digests.
            if version == Version::V2 {
                Claim::parse_digest(text).map_err(|expected| bad_digest(text, expected))?;
            }
        }
        let types = types_of(draft, shared, version)?;
        Ok(Self {
            range,
            encoding,
            decoded,
            digest: draft.digest.as_deref().map(str::to_owned),
            shard,
            types,
        })
    }

    /// Returns the reason why the part's bytes cannot be read, if any.
    pub(crate) fn unsupported(&self) -> Option<String> {
        if self.shard.is_some() {
            return Some("data in another file, a shard".to_owned());
        }
        match (&self.encoding, &self.types) {
            (Encoding::Unknown(encoding), _) => Some(format!("the encoding {}", QuotedName(encoding))),
            (_, Err(unknown)) => Some(unknown.reason.clone()),
            _ => None,
        }
    }

    /// Checks the part's declared decoded size, if any, against the expected size `len`.
    pub(crate) fn check_len(&self, len: Option<u64>, of: &str) -> Result<(), Error> {
        if self.decoded.is_none() || self.decoded == len {
            return Ok(());
        }
        let error = Error::new(ErrorKind::SizeMismatch, "the size of the data").rule("O10");
        let found = self.decoded.unwrap_or_default();
        let expected = len.map_or("a number".to_owned(), |len| len.to_string());
        Err(error
            .expected(format_args!("{expected} bytes for {of}"))
            .found(found))
    }
}

fn types_of(
    draft: &DraftPart<'_>,
    shared: Option<(&str, &str)>,
    version: Version,
) -> Result<Result<PartType, Unknown>, Error> {
    let unknown = |name: &str, what: &str| {
        let reason = format!("the {what} {}", QuotedName(name));
        let name = name.to_owned();
        Ok(Err(Unknown { name, reason }))
    };
    let dtype = match (draft.dtype.as_deref(), shared) {
        (Some(name), _) => match dtype_of(name, version) {
            Some(dtype) => dtype,
            // Version 2 does not allow dtypes that the specification lacks.
            None if version == Version::V2 => {
                let error = Error::new(ErrorKind::Malformed, "the dtype").rule("O9");
                return Err(error.expected("one of the twelve").found(QuotedName(name)));
            }
            None => return unknown(name, "dtype"),
        },
        // In version 1.0, coordinates are 64-bit integers whatever the dtype of the elements.
        (None, Some((_, "indices" | "indptr" | "coords"))) => DType::U64,
        (None, Some((name, _))) => match dtype_of_v1_0(name) {
            Some(dtype) => dtype,
            None => return unknown(name, "dtype"),
        },
        (None, None) => return Err(missing("dtype", "a part")),
    };
    match joined(dtype, draft.logical.as_deref()) {
        Some(Ok(types)) => Ok(Ok(types)),
        Some(Err(takes)) => {
            let error = Error::new(ErrorKind::Malformed, "the dtype of the logical type").rule("O9");
            Err(error.expected(takes.name()).found(dtype.name()))
        }
        None => unknown(draft.logical.as_deref().unwrap_or_default(), "logical type"),
    }
}

/// Checks offset and length of a blob that must end by `end`, and returns its range.
fn check_place(offset: u64, length: u64, end: u64, version: Version) -> Result<Range<u64>, Error> {
    let error = |kind, what: &str| Error::new(kind, what).rule("O8");
    let alignment = version.alignment();
    if !offset.is_multiple_of(alignment) {
        return Err(error(ErrorKind::Misaligned, "the offset")
            .expected(format_args!("a multiple of {alignment}"))
            .found(offset));
    }
    // Version 1 does not restrict the location of empty blobs.
    if offset < alignment && (length > 0 || version == Version::V2) {
        return Err(error(ErrorKind::OutOfBounds, "the offset")
            .expected(format_args!("at least {alignment}"))
            .found(offset));
    }
    let Some(blob_end) = offset.checked_add(length) else {
        return Err(error(ErrorKind::Overflow, "offset and length together")
            .expected("less than 2^64")
            .found(format_args!("{offset} + {length}")));
    };
    if blob_end > end {
        return Err(error(ErrorKind::OutOfBounds, "the end of the data")
            .expected(format_args!("at most {end}"))
            .found(blob_end));
    }
    Ok(offset..blob_end)
}
