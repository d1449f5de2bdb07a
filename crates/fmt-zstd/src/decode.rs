//! Decodes whole Zstandard blobs into memory of exactly the right size.

use std::{cell::RefCell, ops::Range};

use fmt_core::{ByteSource, Error, ErrorKind, Limits};
use zstd::zstd_safe::DCtx;

use crate::{
    frames::{Look, MOST_PER_BYTE, Piece, Pieces, SeekTable, corrupt},
    parallel::for_each,
    rules::{FRAMES, MEMORY, TABLES},
};

/// Minimum decoded size for using several threads.
const WORTH_THREADS: usize = 2 << 20;
/// Minimum average decoded size of a frame for decoding it as a separate job.
const WORTH_A_JOB: usize = 64 << 10;

/// A frame with its position in the blob, and the memory to decode it into.
type Job<'b, 'o> = (&'b [u8], u64, &'o mut [u8]);

/// The source of a blob, and the reader's limits and settings for decoding.
#[derive(Clone, Copy)]
pub struct Decoding<'a> {
    /// The source of the file's bytes.
    pub source: &'a dyn ByteSource,
    /// Limits on memory and windows.
    pub limits: &'a Limits,
    /// Number of threads that decode the frames of one blob, or read and hash it.
    pub threads: usize,
}

/// Allocates zeroed memory for `len` bytes of decoded or converted elements.
///
/// # Errors
/// [`ErrorKind::TooLarge`] beyond [`Limits::decoded_bytes`] or the available memory.
pub fn memory(len: u64, limits: &Limits) -> Result<Box<[u8]>, Error> {
    let limit = limits.decoded_bytes;
    if len > limit {
        let error = Error::new(ErrorKind::TooLarge, "the tensor's bytes once decoded").rule(MEMORY);
        return Err(error
            .expected(format_args!("at most {limit}, the limit"))
            .found(len));
    }
    zeroed(len)
}

/// Allocates zeroed memory for data whose size was checked against the file.
pub(crate) fn zeroed(len: u64) -> Result<Box<[u8]>, Error> {
    let memory = usize::try_from(len)
        .ok()
        .and_then(|len| bytemuck::try_zeroed_slice_box(len).ok());
    memory.ok_or_else(|| {
        Error::new(ErrorKind::TooLarge, "not enough memory")
            .expected(format_args!("{len} bytes"))
            .rule(MEMORY)
    })
}

/// The properties of a blob that are known from its frame headers, before it is decoded.
pub(crate) struct Survey {
    pub(crate) frames: usize,
    /// Whether all frames declare their content size.
    pub(crate) is_sized: bool,
    pub(crate) have_checksums: bool,
    /// Whether the blob ends with a table of its frames.
    pub(crate) has_table: bool,
}

/// Decodes a blob at byte `start` of the file into `out`. Returns whether frame checksums cover the whole
/// blob.
pub(crate) fn decode(
    blob: &[u8],
    start: u64,
    out: &mut [u8],
    limits: &Limits,
    threads: usize,
) -> Result<bool, Error> {
    let table = SeekTable::of_blob(blob);
    let survey = survey(blob, table.as_ref(), start, out.len() as u64, limits)?;
    // Several threads are faster only for large frames. The minimum frame size also bounds the memory for
    // jobs.
    let are_large = out.len() / WORTH_A_JOB >= survey.frames;
    if survey.is_sized && are_large && threads > 1 && survey.frames > 1 && out.len() >= WORTH_THREADS {
        // `survey` has already parsed all frames, so no error is dropped here.
        let frames = Pieces::new(blob, start, limits).filter_map(|piece| match piece {
            Ok(Piece::Frame(frame)) => Some((frame.range, frame.content)),
            _ => None,
        });
        decode_frames(blob, start, frames, out, threads)?;
    } else {
        decode_one_after_the_other(blob, start, out, limits)?;
    }
    Ok(survey.have_checksums)
}

/// Checks that a blob of `stored` bytes can decode to `decoded` bytes.
pub(crate) fn check_ratio(stored: u64, decoded: u64, start: u64) -> Result<(), Error> {
    // Positions in a blob are `usize`, which has 32 bits on some machines.
    if usize::try_from(stored).is_err() {
        let error = Error::new(ErrorKind::TooLarge, "the compressed data")
            .at(start)
            .rule(MEMORY);
        return Err(error
            .expected(format_args!("at most {} bytes on this machine", usize::MAX))
            .found(stored));
    }
    let most = stored.saturating_mul(MOST_PER_BYTE);
    if decoded <= most {
        return Ok(());
    }
    let error = corrupt(start, "the compressed data");
    Err(error
        .expected(format_args!("{decoded} bytes"))
        .found(format_args!("{stored}, which hold {most} at most")))
}

/// Parses the frame headers and checks them against the expected size. Checks a seek table against the
/// frames, because reading a part by the table must give the same bytes as reading everything. Therefore the
/// table must be the only skippable frame: another one could hide frames from one of the two ways of reading.
pub(crate) fn survey(
    blob: impl Look,
    table: Option<&(usize, SeekTable)>,
    start: u64,
    expected: u64,
    limits: &Limits,
) -> Result<Survey, Error> {
    let mut listed = table.iter().flat_map(|(_, table)| &table.frames);
    let (mut fits_table, mut beside_table) = (true, None);
    let mut survey = Survey {
        frames: 0,
        is_sized: true,
        have_checksums: true,
        has_table: false,
    };
    let mut total = 0u64;
    for piece in Pieces::new(blob, start, limits) {
        match piece? {
            Piece::Skippable(range) => {
                // Bytes that look like a table may be data of the last frame.
                if table.is_some_and(|(at, _)| range.start == *at) {
                    survey.has_table = true;
                } else {
                    beside_table = Some(range.start);
                }
            }
            Piece::Frame(frame) => {
                survey.frames += 1;
                survey.is_sized &= frame.content.is_some();
                survey.have_checksums &= frame.has_checksum;
                let content = frame.content.unwrap_or(0);
                total = total.saturating_add(content);
                let claims = listed.next();
                let claims = claims.map(|(stored, decoded)| (u64::from(*stored), u64::from(*decoded)));
                fits_table &= frame.content.is_none() || claims == Some((frame.range.len() as u64, content));
            }
        }
    }
    // Frames without a declared size may decode to any number of bytes.
    if total > expected || (survey.is_sized && total != expected) {
        let error = corrupt(start, "the compressed data");
        return Err(error
            .expected(format_args!("{expected} bytes"))
            .found(format_args!("frames of {total}")));
    }
    if survey.frames == 0 {
        return Err(corrupt(start, "the compressed data has no frame"));
    }
    if let Some((at, _)) = table.filter(|_| survey.has_table) {
        if let Some(beside) = beside_table {
            let what = "a skippable frame other than the table of frames";
            return Err(corrupt(start + beside as u64, what).rule(TABLES));
        }
        if survey.is_sized && !(fits_table && listed.next().is_none()) {
            let what = "the table of frames does not fit the frames";
            return Err(corrupt(start + *at as u64, what).rule(TABLES));
        }
    }
    Ok(survey)
}

/// Decodes frames, each with its range in the blob and its declared size, into consecutive parts of `out`.
pub(crate) fn decode_frames(
    blob: &[u8],
    start: u64,
    frames: impl Iterator<Item = (Range<usize>, Option<u64>)>,
    mut out: &mut [u8],
    threads: usize,
) -> Result<(), Error> {
    let mut jobs = Vec::new();
    for (range, content) in frames {
        let content = content.and_then(|content| usize::try_from(content).ok());
        let split = content.and_then(|content| std::mem::take(&mut out).split_at_mut_checked(content));
        let (part, rest) = split.ok_or_else(|| corrupt(start, "the compressed data"))?;
        out = rest;
        jobs.push((&blob[range.clone()], start + range.start as u64, part));
    }
    for_each(jobs, threads, decode_frame)
}

/// Decodes a frame; fails unless its content fills the job's memory.
fn decode_frame((frame, at, out): Job<'_, '_>) -> Result<(), Error> {
    let expected = out.len();
    let written = decompress(frame, at, out)?;
    if written == expected {
        return Ok(());
    }
    let error = corrupt(at, "a frame");
    Err(error
        .expected(format_args!("{expected} bytes, as it says"))
        .found(written))
}

fn decode_one_after_the_other(blob: &[u8], start: u64, out: &mut [u8], limits: &Limits) -> Result<(), Error> {
    let expected = out.len();
    let mut written = 0;
    for piece in Pieces::new(blob, start, limits) {
        if let Piece::Frame(frame) = piece? {
            let at = start + frame.range.start as u64;
            written += decompress(&blob[frame.range], at, &mut out[written..])?;
        }
    }
    if written == expected {
        return Ok(());
    }
    let error = corrupt(start, "the compressed data");
    Err(error
        .expected(format_args!("{expected} bytes"))
        .found(format_args!("frames of {written}")))
}

fn decompress(frame: &[u8], at: u64, out: &mut [u8]) -> Result<usize, Error> {
    thread_local! {
        /// The decoder of this thread, because creating one takes longer than decoding a small tensor.
        static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    }
    let room = out.len();
    DECODER.with_borrow_mut(|decoder| {
        let decoder = match decoder {
            Some(decoder) => decoder,
            None => {
                let made = DCtx::try_create();
                decoder.insert(made.ok_or_else(|| {
                    let what = "not enough memory for a decoder";
                    Error::new(ErrorKind::TooLarge, what).rule(FRAMES)
                })?)
            }
        };
        decoder.decompress(out, frame).map_err(|code| {
            corrupt(at, "a frame cannot be decoded")
                .expected(format_args!("at most {room} bytes"))
                .found(zstd::zstd_safe::get_error_name(code))
        })
    })
}
