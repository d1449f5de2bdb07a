//! The table of other files that contain some of the blobs (O15).

use std::ops::Range;

use fmt_cbor::Items;
use fmt_core::{Error, ErrorKind, Limits, check_overlaps};
use fmt_zstd::Claim;
use tensor_core::QuotedName;

use crate::{
    container::Version,
    pairs::{Pairs, bad_digest, missing, twice},
};

/// Shards by name, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    table: Vec<(String, u64)>,
    /// Referenced blobs, each with the index of its shard.
    references: Vec<(u32, Range<u64>)>,
}

/// Maximum number of shards of a file.
const MOST_SHARDS: usize = 65_536;
/// Maximum length of a shard's name in bytes.
const LONGEST_NAME: usize = 64;
/// Minimum size of a shard in bytes: magic number and footer.
const SHORTEST_FILE: u64 = 48;

impl Shards {
    pub(crate) fn read(items: &mut Items<'_>, limits: &Limits) -> Result<Self, Error> {
        let mut shards = Self::default();
        let mut pairs = Pairs::begin(items, "the table of shards")?;
        while let Some(name) = pairs.next(items)? {
            check_shard_name(&name).map_err(|error| error.at(pairs.at))?;
            if shards.table.len() >= MOST_SHARDS {
                let error = Error::new(ErrorKind::TooLarge, "the number of shards").at(pairs.at);
                return Err(error
                    .rule("O2")
                    .expected(format_args!("at most {MOST_SHARDS}, the limit")));
            }
            let size = shard(items, limits).map_err(|error| error.at(pairs.at))?;
            shards.table.push((name.into_owned(), size));
        }
        // Deterministic CBOR puts shorter keys first, but the binary search needs alphabetical order.
        shards.table.sort_unstable();
        Ok(shards)
    }

    pub(crate) fn number(&self, name: &str) -> Result<u32, Error> {
        let found = self.table.binary_search_by(|(known, _)| (**known).cmp(name));
        let number = found.ok().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| {
            let error = Error::new(ErrorKind::Malformed, "the shard of the part").rule("O15");
            error.expected("one of the table").found(QuotedName(name))
        })
    }

    /// Returns the maximum offset in a shard at which a blob may end.
    pub(crate) fn data_end(&self, number: u32, version: Version) -> u64 {
        self.table[number as usize].1.saturating_sub(version.footer())
    }

    pub(crate) fn refer(&mut self, number: u32, range: Range<u64>) {
        self.references.push((number, range));
    }

    /// Checks that the blobs of a shard are disjoint or equal.
    pub(crate) fn check_overlaps(&mut self) -> Result<(), Error> {
        self.references.sort_unstable_by_key(|(number, _)| *number);
        for group in self.references.chunk_by(|a, b| a.0 == b.0) {
            let ranges: Vec<Range<u64>> = group.iter().map(|(_, range)| range.clone()).collect();
            check_overlaps(&ranges).map_err(|error| {
                let name = &self.table[group[0].0 as usize].0;
                error.within(&format!("shard {}", QuotedName(name))).rule("O8")
            })?;
        }
        Ok(())
    }
}

/// Reads the description of a shard, and returns the shard's size in bytes.
fn shard(items: &mut Items<'_>, limits: &Limits) -> Result<u64, Error> {
    let (mut size, mut has_digest) = (None, false);
    let mut pairs = Pairs::begin(items, "a shard")?;
    while let Some(key) = pairs.next(items)? {
        let is_new = match &*key {
            "size" => size.replace(items.unsigned("size")?).is_none(),
            "digest" => {
                let digest = items.text("digest")?;
                Claim::parse_digest(&digest).map_err(|expected| bad_digest(&digest, expected))?;
                !std::mem::replace(&mut has_digest, true)
            }
            _ => {
                items.skip(limits.depth, "a value of a shard")?;
                true
            }
        };
        if !is_new {
            return Err(twice(&key).at(pairs.at));
        }
    }
    let size = size.ok_or_else(|| missing("size", "a shard"))?;
    if !has_digest {
        return Err(missing("digest", "a shard"));
    }
    if size < SHORTEST_FILE {
        let error = Error::new(ErrorKind::Malformed, "the size of a shard").rule("O15");
        return Err(error
            .expected(format_args!("at least {SHORTEST_FILE}"))
            .found(size));
    }
    Ok(size)
}

fn check_shard_name(name: &str) -> Result<(), Error> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_good =
        (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_allowed) && !name.starts_with('.');
    if is_good {
        return Ok(());
    }
    let error = Error::new(ErrorKind::BadName, "the name of a shard").rule("O15");
    Err(error
        .expected("1 to 64 letters, digits, '.', '_' and '-', not beginning with '.'")
        .found(QuotedName(name)))
}
