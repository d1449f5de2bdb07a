//! One blob of a file: how the bytes that are stored become those of a tensor, in all versions of the format.

use std::ops::Range;

use fmt_core::{Error, TensorStream, Verification, read_range};
use tensor_core::Bytes;

use crate::{
    checksum::{Claim, Hasher},
    decode::{Decoding, check_ratio, decode, memory, zeroed},
    footer::read_into,
    hashed::{CHUNK, read_and_hash},
    rows::ProvenTables,
    stream::{Checked, Compressed, Stored, check_booleans, swap},
};

/// The bytes of a tensor, or of a part of one.
pub(crate) struct Blob<'a> {
    pub(crate) decoding: Decoding<'a>,
    /// Where in the file they stand.
    pub(crate) range: Range<u64>,
    /// How many they are once decoded.
    pub(crate) len: u64,
    pub(crate) is_zstd: bool,
    /// Bytes of an element where elements are stored most significant byte first, else 1.
    pub(crate) swapped: usize,
    /// Their checksum as the file has it.
    pub(crate) checksum: Option<&'a str>,
    pub(crate) checksum_is_of: ChecksumOf,
    /// Whether every byte is 0 or 1, which the format says of some tensors of booleans (O17).
    pub(crate) is_zero_or_one: bool,
}

/// Which bytes a checksum is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumOf {
    /// Those that stand in the file (0.1 and 1.x).
    Stored,
    /// Those that are decoded (2.x).
    Decoded,
}

impl<'a> Blob<'a> {
    /// Whether the bytes stand in the file as they are in memory.
    fn is_plain(&self) -> bool {
        !self.is_zstd && self.swapped <= 1
    }

    /// What is claimed of the bytes as they are stored, if it is of a kind that is known, and what to hash them with.
    fn claim_of_stored(&self) -> Option<(Claim, Hasher)> {
        let text = self.checksum?;
        let claim = match self.checksum_is_of {
            ChecksumOf::Stored => Claim::parse(text),
            ChecksumOf::Decoded if self.is_zstd => return None,
            ChecksumOf::Decoded => Claim::parse_digest(text).ok()?,
        };
        let hasher = claim.hasher()?;
        Some((claim, hasher))
    }

    /// What is claimed of decoded bytes that are stored otherwise.
    fn claim_of_decoded(&self) -> Option<(Claim, Hasher)> {
        if !self.is_zstd || self.checksum_is_of == ChecksumOf::Stored {
            return None;
        }
        let claim = Claim::parse_digest(self.checksum?).ok()?;
        let hasher = claim.hasher()?;
        Some((claim, hasher))
    }

    /// All bytes; without a copy where they are plain and in memory, else checked against what is claimed of them.
    pub(crate) fn bytes(&self) -> Result<Bytes, Error> {
        let is_copied = !self.decoding.source.is_in_memory();
        if self.is_plain() && !(is_copied && self.claim_of_stored().is_some()) {
            let bytes = read_range(self.decoding.source, self.range.clone(), "the data")?;
            self.check_elements(&bytes)?;
            return Ok(bytes);
        }
        let mut memory = if self.is_plain() {
            // The file has as many bytes as it says; that is limit enough.
            zeroed(self.len)?
        } else {
            memory(self.len, self.decoding.limits)?
        };
        self.fill(&mut memory)?;
        Ok(memory.into())
    }

    /// Reads, decodes and swaps into memory of the right length; says whether frames had checksums of their own.
    pub(crate) fn fill(&self, out: &mut [u8]) -> Result<bool, Error> {
        let Decoding {
            source,
            limits,
            threads,
        } = self.decoding;
        let start = self.range.start;
        let mut have_checksums = false;
        if self.is_zstd {
            check_ratio(self.range.end - start, out.len() as u64, start)?;
            let blob = read_range(source, self.range.clone(), "the compressed data")?;
            check(self.claim_of_stored(), &blob, start)?;
            have_checksums = decode(&blob, start, out, limits, threads)?;
            check(self.claim_of_decoded(), out, start)?;
        } else {
            match self.claim_of_stored() {
                Some((claim, hasher)) => {
                    let found = read_and_hash(source, start, out, hasher, threads)?;
                    claim.check(&found).map_err(|error| error.at(start))?;
                }
                None => read_into(source, start, out, "the data")?,
            }
            swap(out, self.swapped);
        }
        self.check_elements(out)?;
        Ok(have_checksums)
    }

    /// Some of the decoded bytes, which are checked against no claim but those of frames.
    pub(crate) fn part(
        &self,
        tables: &ProvenTables,
        index: usize,
        wanted: Range<u64>,
    ) -> Result<Bytes, Error> {
        let source = self.decoding.source;
        let part = if self.is_zstd {
            let by_table = tables.read(self.decoding, index, &self.range, self.len, wanted.clone())?;
            match by_table {
                Some(bytes) => bytes,
                // As large as the tensor in memory, whose bytes these are.
                None => self.bytes()?.slice(wanted.start as usize..wanted.end as usize),
            }
        } else {
            let range = self.range.start + wanted.start..self.range.start + wanted.end;
            if self.is_plain() {
                read_range(source, range, "the data")?
            } else {
                let mut memory = memory(range.end - range.start, self.decoding.limits)?;
                read_into(source, range.start, &mut memory, "the data")?;
                swap(&mut memory, self.swapped);
                memory.into()
            }
        };
        self.check_elements(&part)?;
        Ok(part)
    }

    /// All bytes one part after the other, checked against all claims.
    pub(crate) fn stream(&self) -> Result<Box<dyn TensorStream + 'a>, Error> {
        let inner: Box<dyn TensorStream + 'a> = if self.is_zstd {
            Box::new(self.compressed()?)
        } else {
            let claim = self.claim_of_stored();
            Box::new(Stored::new(
                self.decoding.source,
                self.range.clone(),
                self.swapped,
                claim,
            ))
        };
        Ok(self.checked(inner))
    }

    fn compressed(&self) -> Result<Compressed<'a>, Error> {
        let claim = self.claim_of_stored();
        Compressed::new(self.decoding, self.range.clone(), self.len, claim)
    }

    /// The stream with what is claimed of decoded bytes, if anything is.
    fn checked(&self, inner: Box<dyn TensorStream + 'a>) -> Box<dyn TensorStream + 'a> {
        let claim = self.claim_of_decoded();
        if claim.is_none() && !self.is_zero_or_one {
            return inner;
        }
        Box::new(Checked::new(
            inner,
            self.len,
            self.range.start,
            claim,
            self.is_zero_or_one,
        ))
    }

    /// Checks all bytes against all claims.
    pub(crate) fn verify(&self) -> Result<Verification, Error> {
        let is_claimed = self.claim_of_stored().is_some() || self.claim_of_decoded().is_some();
        let mut have_checksums = false;
        let source = self.decoding.source;
        if self.is_zstd {
            let stream = self.compressed()?;
            have_checksums = stream.have_checksums();
            self.drain(self.checked(Box::new(stream)))?;
        } else if source.is_in_memory() {
            let bytes = read_range(source, self.range.clone(), "the data")?;
            check(self.claim_of_stored(), &bytes, self.range.start)?;
            self.check_elements(&bytes)?;
        } else if is_claimed || self.is_zero_or_one {
            self.drain(self.stream()?)?;
        }
        Ok(match self.checksum {
            _ if have_checksums || is_claimed => Verification::Ok,
            Some(text) => Verification::UnknownChecksum(text.to_owned()),
            None => Verification::Unchecked,
        })
    }

    fn drain(&self, mut stream: Box<dyn TensorStream + '_>) -> Result<(), Error> {
        let len = usize::try_from(self.len).map_or(CHUNK, |len| len.clamp(1, CHUNK));
        let mut buffer = vec![0; len.next_multiple_of(fmt_core::TENSOR_STREAM_UNIT)];
        while stream.read(&mut buffer)? > 0 {}
        Ok(())
    }

    fn check_elements(&self, bytes: &[u8]) -> Result<(), Error> {
        if self.is_zero_or_one {
            return check_booleans(bytes).map_err(|error| error.at(self.range.start));
        }
        Ok(())
    }
}

fn check(claim: Option<(Claim, Hasher)>, bytes: &[u8], at: u64) -> Result<(), Error> {
    match claim {
        Some((claim, mut hasher)) => {
            hasher.update(bytes);
            claim.check(&hasher.finish()).map_err(|error| error.at(at))
        }
        None => Ok(()),
    }
}
