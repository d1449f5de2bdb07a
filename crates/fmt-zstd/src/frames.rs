//! Parses headers of Zstandard frames (RFC 8878, section 3.1), and the table of the seekable format.

use std::ops::Range;

use fmt_core::{ByteSource, Error, ErrorKind, Limits, read_range};
use tensor_core::Bytes;

use crate::rules::FRAMES;

/// The magic number of frames with data.
const MAGIC: u32 = 0xfd2f_b528;
/// The magic number of skippable frames; the last four bits may have any value.
const SKIPPABLE: u32 = 0x184d_2a50;
/// The magic number of a skippable frame that contains a seek table.
const TABLE: u32 = 0x184d_2a5e;
/// The magic number at the end of a seek table.
const TABLE_END: u32 = 0x8f92_eab1;
/// Maximum size of a frame header in bytes.
pub(crate) const MAX_HEAD: usize = 18;
/// Size of a table before its entries: magic and length.
const TABLE_HEAD: usize = 8;
/// Size of a table after its entries: their number, a byte of flags, magic.
pub(crate) const TABLE_FOOT: usize = 9;
/// Maximum expansion: a block takes at least four bytes and holds at most 128 KiB.
pub(crate) const MOST_PER_BYTE: u64 = 32 << 10;

/// A frame of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Frame(Frame),
    /// A frame that decoders skip.
    Skippable(Range<usize>),
}

/// A frame with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The range of the frame, with its header, in the blob.
    pub(crate) range: Range<usize>,
    /// The declared content size of the frame, if any.
    pub(crate) content: Option<u64>,
    pub(crate) has_checksum: bool,
    /// Whether the frame is decoded into a single buffer for all of its content.
    pub(crate) is_single_segment: bool,
}

/// The header of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    len: usize,
    pub(crate) content: Option<u64>,
    /// Maximum history in bytes that decoding needs, unless the frame is decoded into a single buffer.
    window: Option<u64>,
    has_dictionary: bool,
    has_checksum: bool,
}

impl Head {
    /// Parses a header; `None` if it is truncated or invalid.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (&descriptor, mut rest) = rest.split_first()?;
        let is_reserved_bit_set = descriptor & 0b1000 != 0;
        if u32::from_le_bytes(*magic) != MAGIC || is_reserved_bit_set {
            return None;
        }
        let is_single_segment = descriptor & 0b10_0000 != 0;
        let window = if is_single_segment {
            None
        } else {
            let (&window, behind) = rest.split_first()?;
            rest = behind;
            // The window is at most 2^41 plus seven eighths of that, so the sum does not overflow.
            let base = 1u64 << (10 + (window >> 3));
            Some(base + base / 8 * u64::from(window & 7))
        };
        let dictionary = little_endian(&mut rest, [0, 1, 2, 4][usize::from(descriptor & 3)])?;
        let content = match descriptor >> 6 {
            0 if !is_single_segment => None,
            0 => Some(little_endian(&mut rest, 1)?),
            1 => Some(little_endian(&mut rest, 2)? + 256),
            2 => Some(little_endian(&mut rest, 4)?),
            _ => Some(little_endian(&mut rest, 8)?),
        };
        Some(Self {
            len: bytes.len() - rest.len(),
            content,
            window,
            has_dictionary: dictionary != 0,
            has_checksum: descriptor & 0b100 != 0,
        })
    }
}

fn little_endian(bytes: &mut &[u8], len: usize) -> Option<u64> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let mut word = [0; 8];
    word[..len].copy_from_slice(taken);
    Some(u64::from_le_bytes(word))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// A blob whose frame headers are read a few bytes at a time.
pub(crate) trait Look {
    fn len(&self) -> usize;

    /// Returns `most` bytes starting at `at`, or fewer at the end of the blob.
    fn look(&mut self, at: usize, most: usize) -> Result<&[u8], Error>;
}

impl Look for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn look(&mut self, at: usize, most: usize) -> Result<&[u8], Error> {
        let rest = self.get(at..).unwrap_or_default();
        Ok(&rest[..rest.len().min(most)])
    }
}

/// A blob in a file, read through a small buffer, so that a sequential scan reads hardly any byte twice.
pub(crate) struct Window<'a> {
    source: &'a dyn ByteSource,
    blob: Range<u64>,
    /// The offset in the blob of the buffered bytes.
    start: usize,
    bytes: Bytes,
    /// Bytes per read: few if headers are far apart, many if headers are close together.
    len: usize,
}

impl<'a> Window<'a> {
    const SHORTEST: usize = 32;
    const LONGEST: usize = 64 << 10;

    pub(crate) fn new(source: &'a dyn ByteSource, blob: Range<u64>) -> Self {
        Self {
            source,
            blob,
            start: 0,
            bytes: Bytes::new(),
            len: Self::SHORTEST,
        }
    }
}

impl Look for Window<'_> {
    fn len(&self) -> usize {
        usize::try_from(self.blob.end - self.blob.start).unwrap_or(usize::MAX)
    }

    fn look(&mut self, at: usize, most: usize) -> Result<&[u8], Error> {
        let most = most.min(self.len().saturating_sub(at));
        let is_at_hand = at >= self.start && at + most <= self.start + self.bytes.len();
        if !is_at_hand {
            let is_next = at <= self.start + self.bytes.len() + Self::SHORTEST;
            self.len = if is_next {
                (2 * self.len).min(Self::LONGEST)
            } else {
                Self::SHORTEST
            };
            let start = self.blob.start + at as u64;
            let end = self.blob.end.min(start + self.len.max(most) as u64);
            self.bytes = read_range(self.source, start..end.max(start), "the compressed data")?;
            self.start = at;
        }
        let from = at - self.start;
        Ok(&self.bytes[from..from + most])
    }
}

/// Iterates over the frames of a blob without decoding them.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<B> {
    blob: B,
    /// The position of the blob in the file.
    start: u64,
    at: usize,
    window_log: u32,
}

impl<B: Look> Pieces<B> {
    pub(crate) fn new(blob: B, start: u64, limits: &Limits) -> Self {
        Self {
            blob,
            start,
            at: 0,
            window_log: limits.window_log,
        }
    }

    fn next_piece(&mut self) -> Result<Piece, Error> {
        let (start, begin, len) = (self.start, self.at, self.blob.len());
        let corrupt = |at: usize, what: &str| corrupt(start + at as u64, what);
        let rest = self.blob.look(begin, MAX_HEAD)?;
        let magic = word(rest, 0).ok_or_else(|| corrupt(begin, "the magic of a frame is truncated"))?;
        if magic & !0xf == SKIPPABLE {
            let size = word(rest, 4).and_then(|size| usize::try_from(size).ok()?.checked_add(8));
            let size = size.filter(|size| *size <= len - begin);
            let size = size.ok_or_else(|| corrupt(begin, "a skippable frame is truncated"))?;
            return Ok(Piece::Skippable(begin..begin + size));
        }
        if magic != MAGIC {
            return Err(corrupt(begin, "what should be a frame")
                .expected(format_args!("{MAGIC:#010x} or a skippable frame's magic"))
                .found(format_args!("{magic:#010x}")));
        }
        let head = Head::parse(rest).ok_or_else(|| corrupt(begin, "the header of a frame is malformed"))?;
        self.check(&head)?;
        let mut at = begin + head.len;
        loop {
            let block = self.blob.look(at, 3)?.first_chunk::<3>();
            let [a, b, c] = *block.ok_or_else(|| corrupt(at, "a block of a frame is truncated"))?;
            let block = u32::from_le_bytes([a, b, c, 0]);
            let size = match (block >> 1) & 3 {
                // A run (RLE) takes one byte, whatever its length.
                1 => 1,
                3 => return Err(corrupt(at, "a block of a frame has the reserved type")),
                _ => block as usize >> 3,
            };
            // The sum saturates, because a blob may end at the last address on 32-bit systems.
            at = at.saturating_add(3 + size);
            if block & 1 != 0 {
                break;
            }
        }
        at = at.saturating_add(if head.has_checksum { 4 } else { 0 });
        if at > len {
            return Err(corrupt(len, "a frame is truncated"));
        }
        Ok(Piece::Frame(Frame {
            range: begin..at,
            content: head.content,
            has_checksum: head.has_checksum,
            is_single_segment: head.window.is_none(),
        }))
    }

    fn check(&self, head: &Head) -> Result<(), Error> {
        let at = self.start + self.at as u64;
        if head.has_dictionary {
            let error = Error::new(ErrorKind::Unsupported, "a frame that needs a dictionary").at(at);
            return Err(error.rule(FRAMES));
        }
        let most = 1u64.checked_shl(self.window_log).unwrap_or(u64::MAX);
        match head.window {
            Some(window) if window > most => {
                let error = Error::new(ErrorKind::TooLarge, "the window of a frame").at(at);
                Err(error
                    .expected(format_args!("at most {most} bytes, the limit"))
                    .found(window)
                    .rule(FRAMES))
            }
            _ => Ok(()),
        }
    }
}

impl<B: Look> Iterator for Pieces<B> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.blob.len() {
            return None;
        }
        let piece = self.next_piece();
        self.at = match &piece {
            Ok(Piece::Frame(Frame { range, .. }) | Piece::Skippable(range)) => range.end,
            Err(_) => self.blob.len(),
        };
        Some(piece)
    }
}

pub(crate) fn corrupt(at: u64, what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what).at(at).rule(FRAMES)
}

/// The table of the seekable format: compressed and decoded size of each frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeekTable {
    /// For each frame, its stored size and its decoded size in bytes.
    pub(crate) frames: Vec<(u32, u32)>,
}

impl SeekTable {
    /// Maximum decoded size of a frame in a table.
    pub(crate) const MAX_FRAME: u64 = 1 << 30;

    /// Returns the size of the table in a blob that ends with `foot`; `None` if `foot` is not the end of a
    /// table.
    pub(crate) fn len_by_foot(foot: &[u8]) -> Option<u64> {
        let foot: &[u8; TABLE_FOOT] = foot.last_chunk()?;
        let (count, flags) = (word(foot, 0)?, foot[4]);
        // Bits 2 to 6 are reserved.
        if word(foot, 5)? != TABLE_END || flags & 0b111_1100 != 0 {
            return None;
        }
        Some((TABLE_HEAD + TABLE_FOOT) as u64 + u64::from(count) * Self::entry_len(flags))
    }

    fn entry_len(flags: u8) -> u64 {
        // The highest bit indicates checksums in the table, which are ignored, because frames have their own
        // checksums.
        if flags & 0x80 != 0 { 12 } else { 8 }
    }

    /// Parses a skippable frame as a table; `None` if the frame contains anything else.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let len = Self::len_by_foot(bytes)?;
        let is_whole = word(bytes, 0)? == TABLE
            && len == bytes.len() as u64
            && u64::from(word(bytes, 4)?) + TABLE_HEAD as u64 == len;
        if !is_whole {
            return None;
        }
        let entries = &bytes[TABLE_HEAD..bytes.len() - TABLE_FOOT];
        let entry_len = Self::entry_len(bytes[bytes.len() - 5]) as usize;
        let frames = entries
            .chunks_exact(entry_len)
            .map(|entry| Some((word(entry, 0)?, word(entry, 4)?)))
            .collect::<Option<_>>()?;
        Some(Self { frames })
    }

    /// Returns the table at the end of a blob, and its offset.
    pub(crate) fn of_blob(blob: &[u8]) -> Option<(usize, Self)> {
        let len = usize::try_from(Self::len_by_foot(blob)?).ok()?;
        let at = blob.len().checked_sub(len)?;
        Some((at, Self::parse(&blob[at..])?))
    }

    /// Encodes the table as a skippable frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let count = self.frames.len() as u32;
        let mut bytes = Vec::with_capacity(TABLE_HEAD + TABLE_FOOT + 8 * self.frames.len());
        bytes.extend_from_slice(&TABLE.to_le_bytes());
        bytes.extend_from_slice(&(8 * count + TABLE_FOOT as u32).to_le_bytes());
        for (stored, decoded) in &self.frames {
            bytes.extend_from_slice(&stored.to_le_bytes());
            bytes.extend_from_slice(&decoded.to_le_bytes());
        }
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&TABLE_END.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(blob: &[u8]) -> Result<Vec<Piece>, String> {
        Pieces::new(blob, 0, &Limits::default())
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn frames_of_the_library_are_walked_over_exactly() {
        for len in [0usize, 1, 255, 256, 70_000, 300_000] {
            let data: Vec<u8> = (0..len).map(|at| (at * at / 7) as u8).collect();
            let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(len));
            zstd::zstd_safe::compress(&mut frame, &data, 3).unwrap();
            let mut blob = frame.clone();
            blob.extend_from_slice(&[0x53, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9]);
            blob.extend_from_slice(&frame);
            let found = pieces(&blob).unwrap();
            let end = frame.len();
            let whole = |range| {
                Piece::Frame(Frame {
                    range,
                    content: Some(len as u64),
                    has_checksum: false,
                    is_single_segment: true,
                })
            };
            assert_eq!(
                found,
                [
                    whole(0..end),
                    Piece::Skippable(end..end + 10),
                    whole(end + 10..blob.len())
                ]
            );
            for cut in 1..frame.len().min(40) {
                assert!(pieces(&frame[..cut]).is_err(), "{len}: {cut}");
            }
        }
    }

    #[test]
    fn tables_are_read_as_they_are_written() {
        let table = SeekTable {
            frames: vec![(100, 1 << 20), (7, 3)],
        };
        let bytes = table.encode();
        assert_eq!(SeekTable::len_by_foot(&bytes), Some(bytes.len() as u64));
        assert_eq!(SeekTable::parse(&bytes), Some(table));
        assert_eq!(SeekTable::parse(&bytes[1..]), None);
        assert_eq!(SeekTable::parse(&[]), None);
        // A table with checksums, which are ignored.
        let with_checksums =
            b"\x5e\x2a\x4d\x18\x15\0\0\0\x0a\0\0\0\x14\0\0\0cccc\x01\0\0\0\x80\xb1\xea\x92\x8f";
        assert_eq!(SeekTable::parse(with_checksums).unwrap().frames, [(10, 20)]);
    }

    #[test]
    fn heads_of_every_form() {
        let head = |bytes: &[u8]| Head::parse(&[&[0x28, 0xb5, 0x2f, 0xfd], bytes].concat());
        // The reference implementation writes this header when it streams: window of 2 MiB, no content size.
        let streamed = head(&[0x00, 0x58]).unwrap();
        assert_eq!(
            (streamed.window, streamed.content, streamed.len),
            (Some(2 << 20), None, 6)
        );
        let single = head(&[0x20, 5]).unwrap();
        assert_eq!((single.window, single.content, single.len), (None, Some(5), 6));
        assert_eq!(head(&[0x60, 1, 0]).unwrap().content, Some(257));
        assert_eq!(head(&[0xe4, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap().content, Some(1));
        assert!(head(&[0x23, 1, 0, 0, 0, 5]).unwrap().has_dictionary);
        assert!(!head(&[0x23, 0, 0, 0, 0, 5]).unwrap().has_dictionary);
        assert_eq!(head(&[0x00, 0xff]).unwrap().window, Some((1 << 41) / 8 * 15));
        assert_eq!(head(&[0x28, 5]), None);
        assert_eq!(head(&[0x60, 1]), None);
    }
}
