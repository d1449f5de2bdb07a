//! Converts a blob, the stored bytes of a tensor, to tensor data.

use std::ops::Range;

use fmt_core::{Error, TensorStream, Verification, read_into, read_range};
use tensor_core::Bytes;

use crate::{
    checksum::{Claim, Hasher},
    decode::{Decoding, check_ratio, decode, memory, zeroed},
    hashed::{CHUNK, read_and_hash},
    rows::ProvenTables,
    stream::{CheckedStream, DecodedStream, StoredStream, check_booleans, swap},
};

/// The stored bytes of a tensor, or of a part of a tensor. The reader sets every field.
///
/// ```
/// use fmt_core::{Limits, Verification};
/// use fmt_zstd::{Blob, ChecksumOf, Decoding};
/// use tensor_core::Bytes;
///
/// let file = Bytes::from_static(b"head123456789");
/// let blob = Blob {
///     decoding: Decoding { source: &file, limits: &Limits::default(), threads: 1 },
///     tensor: "digits",
///     range: 4..13,
///     len: 9,
///     is_zstd: false,
///     swapped: 1,
///     checksum: Some("crc32c:0xE3069283"),
///     checksum_is_of: ChecksumOf::Stored,
///     is_zero_or_one: false,
///     rules: &[],
/// };
/// assert_eq!(blob.verify()?, Verification::Ok);
/// assert_eq!(blob.bytes()?, "123456789");
/// # Ok::<(), fmt_core::Error>(())
/// ```
pub struct Blob<'a> {
    /// The file, the limits, and the number of threads for decoding.
    pub decoding: Decoding<'a>,
    /// The tensor's name, for errors.
    pub tensor: &'a str,
    /// The range of the stored bytes in the file.
    pub range: Range<u64>,
    /// The number of bytes once decoded.
    pub len: u64,
    /// Whether the bytes are Zstandard frames.
    pub is_zstd: bool,
    /// Width in bytes of elements that must be byte-swapped; 1 if no swap is needed.
    pub swapped: usize,
    /// The checksum that the file declares, as a string.
    pub checksum: Option<&'a str>,
    /// Which bytes the checksum covers; this also determines its notation.
    pub checksum_is_of: ChecksumOf,
    /// Whether every byte must be 0 or 1, as some formats require of booleans.
    pub is_zero_or_one: bool,
    /// The format's names for the rules in errors ([`Error::rename_rule`]).
    pub rules: &'static [(&'static str, &'static str)],
}

/// The bytes that a checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumOf {
    /// The stored bytes; parsed by [`Claim::parse`].
    Stored,
    /// The decoded bytes; parsed by [`Claim::parse_digest`].
    Decoded,
}

impl<'a> Blob<'a> {
    /// Returns whether the bytes are stored as in memory: neither compressed nor byte-swapped.
    fn is_plain(&self) -> bool {
        !self.is_zstd && self.swapped <= 1
    }

    /// Returns the checksum of the stored bytes, if its kind is known, and a hasher for it.
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

    /// Returns the checksum of the decoded bytes and a hasher for it, if the blob is compressed and has such
    /// a checksum.
    fn claim_of_decoded(&self) -> Option<(Claim, Hasher)> {
        if !self.is_zstd || self.checksum_is_of == ChecksumOf::Stored {
            return None;
        }
        let claim = Claim::parse_digest(self.checksum?).ok()?;
        let hasher = claim.hasher()?;
        Some((claim, hasher))
    }

    /// Adds the tensor's name to an error, and renames the error's rule.
    fn named<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|error| error.rename_rule(self.rules).of_tensor(self.tensor))
    }

    /// Returns all decoded bytes. Plain bytes in memory are not copied, and their checksum is not verified.
    /// All other checksums are verified.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fmt_core::ErrorKind::Corrupt) for damaged frames and checksum mismatches,
    /// [`ErrorKind::TooLarge`](fmt_core::ErrorKind::TooLarge) beyond the limits; otherwise the errors of
    /// [`read_range`].
    pub fn bytes(&self) -> Result<Bytes, Error> {
        self.named(self.all())
    }

    fn all(&self) -> Result<Bytes, Error> {
        let is_copied = !self.decoding.source.is_in_memory();
        if self.is_plain() && !(is_copied && self.claim_of_stored().is_some()) {
            let bytes = read_range(self.decoding.source, self.range.clone(), "the data")?;
            self.check_elements(&bytes)?;
            return Ok(bytes);
        }
        let mut memory = if self.is_plain() {
            // The file's size bounds the allocation.
            zeroed(self.len)?
        } else {
            memory(self.len, self.decoding.limits)?
        };
        self.fill_checked(&mut memory)?;
        Ok(memory.into())
    }

    /// Reads, decodes and byte-swaps into `out`, which has the decoded length. Returns whether the frames had
    /// checksums.
    ///
    /// # Errors
    /// The errors of [`Blob::bytes`].
    pub fn fill(&self, out: &mut [u8]) -> Result<bool, Error> {
        self.named(self.fill_checked(out))
    }

    fn fill_checked(&self, out: &mut [u8]) -> Result<bool, Error> {
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

    /// Returns a part of the decoded bytes; only the checksums of frames are verified. `index` is the
    /// tensor's index in `tables`.
    ///
    /// # Errors
    /// The errors of [`Blob::bytes`].
    pub fn part(&self, tables: &ProvenTables, index: usize, wanted: Range<u64>) -> Result<Bytes, Error> {
        self.named(self.some(tables, index, wanted))
    }

    fn some(&self, tables: &ProvenTables, index: usize, wanted: Range<u64>) -> Result<Bytes, Error> {
        let source = self.decoding.source;
        let part = if self.is_zstd {
            let by_table = tables.read(self.decoding, index, &self.range, self.len, wanted.clone())?;
            match by_table {
                Some(bytes) => bytes,
                // `all` has returned the whole tensor in memory, so the range fits `usize`.
                None => self.all()?.slice(wanted.start as usize..wanted.end as usize),
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

    /// Returns a stream of all decoded bytes, which verifies all checksums.
    ///
    /// # Errors
    /// The errors of [`Blob::bytes`].
    pub fn stream(&self) -> Result<Box<dyn TensorStream + 'a>, Error> {
        let inner = self.named(self.parts())?;
        Ok(Box::new(NamedStream {
            inner,
            tensor: self.tensor,
            rules: self.rules,
        }))
    }

    fn parts(&self) -> Result<Box<dyn TensorStream + 'a>, Error> {
        let inner: Box<dyn TensorStream + 'a> = if self.is_zstd {
            Box::new(self.compressed()?)
        } else {
            let claim = self.claim_of_stored();
            Box::new(StoredStream::new(
                self.decoding.source,
                self.range.clone(),
                self.swapped,
                claim,
            ))
        };
        Ok(self.checked(inner))
    }

    fn compressed(&self) -> Result<DecodedStream<'a>, Error> {
        let claim = self.claim_of_stored();
        DecodedStream::new(self.decoding, self.range.clone(), self.len, claim)
    }

    /// Wraps the stream `inner` to verify the checksum of the decoded bytes and the values of booleans, if
    /// the blob requires either.
    fn checked(&self, inner: Box<dyn TensorStream + 'a>) -> Box<dyn TensorStream + 'a> {
        let claim = self.claim_of_decoded();
        if claim.is_none() && !self.is_zero_or_one {
            return inner;
        }
        Box::new(CheckedStream::new(
            inner,
            self.len,
            self.range.start,
            claim,
            self.is_zero_or_one,
        ))
    }

    /// Reads the whole blob and verifies all checksums.
    ///
    /// # Errors
    /// The errors of [`Blob::bytes`].
    pub fn verify(&self) -> Result<Verification, Error> {
        self.named(self.verify_all())
    }

    fn verify_all(&self) -> Result<Verification, Error> {
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
            self.drain(self.parts()?)?;
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

/// A stream whose errors contain the tensor's name.
struct NamedStream<'a> {
    inner: Box<dyn TensorStream + 'a>,
    tensor: &'a str,
    rules: &'static [(&'static str, &'static str)],
}

impl TensorStream for NamedStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let read = self.inner.read(out);
        read.map_err(|error| error.rename_rule(self.rules).of_tensor(self.tensor))
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
