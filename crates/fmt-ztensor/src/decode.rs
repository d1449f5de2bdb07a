//! Zstandard blobs, decoded in one go into memory of exactly the right size (Z15).

use std::cell::RefCell;

use fmt_core::{Error, Limits};
use zstd_safe::DCtx;

use crate::{
    frames::{MOST_PER_BYTE, Piece, Pieces, SeekTable, corrupt},
    parallel::for_each,
};

/// Decoded bytes from which on several threads pay.
const WORTH_THREADS: usize = 2 << 20;
/// Decoded bytes of a frame, on average, for which it may be a job of its own.
const WORTH_A_JOB: usize = 64 << 10;

/// A frame and the memory that it decodes into.
type Job<'b, 'o> = (&'b [u8], u64, &'o mut [u8]);

/// What is known of a blob before it is decoded.
struct Survey {
    frames: usize,
    /// Whether all frames say what they hold.
    is_sized: bool,
    have_checksums: bool,
}

/// Decodes a blob that stands at byte `start` of the file; says whether all of it is under checksums of its frames.
pub(crate) fn decode(
    blob: &[u8],
    start: u64,
    out: &mut [u8],
    limits: &Limits,
    threads: usize,
) -> Result<bool, Error> {
    let survey = survey(blob, start, out.len(), limits)?;
    // Threads pay for large frames only, and memory for jobs is bounded so.
    let are_large = out.len() / WORTH_A_JOB >= survey.frames;
    if survey.is_sized && are_large && threads > 1 && survey.frames > 1 && out.len() >= WORTH_THREADS {
        let jobs = jobs(blob, start, out, limits)?;
        for_each(jobs, threads, decode_frame)?;
    } else {
        decode_one_after_the_other(blob, start, out, limits)?;
    }
    Ok(survey.have_checksums)
}

/// Whether a blob could hold so many bytes at all.
pub(crate) fn check_ratio(stored: u64, decoded: u64, start: u64) -> Result<(), Error> {
    let most = stored.saturating_mul(MOST_PER_BYTE);
    if decoded <= most {
        return Ok(());
    }
    let error = corrupt(start, "the compressed data");
    Err(error
        .expected(format_args!("{decoded} bytes"))
        .found(format_args!("{stored}, which hold {most} at most")))
}

/// Walks over the frames and holds them against what they should come to, and against their table if there is one:
/// who reads a part by a table must get the bytes that whoever reads everything gets (Z16).
fn survey(blob: &[u8], start: u64, expected: usize, limits: &Limits) -> Result<Survey, Error> {
    let table = SeekTable::of_blob(blob);
    let mut listed = table.iter().flat_map(|(_, table)| &table.frames);
    let mut fits_table = true;
    let mut is_seekable = table.is_some();
    let mut survey = Survey {
        frames: 0,
        is_sized: true,
        have_checksums: true,
    };
    let mut total = 0u64;
    for piece in Pieces::new(blob, start, limits) {
        match piece? {
            Piece::Skippable(range) => {
                is_seekable &= table.as_ref().is_some_and(|(at, _)| range.start == *at);
            }
            Piece::Frame(frame) => {
                survey.frames += 1;
                survey.is_sized &= frame.content.is_some();
                survey.have_checksums &= frame.has_checksum;
                let content = frame.content.unwrap_or(0);
                total = total.saturating_add(content);
                let claims = listed.next();
                let claims = claims.map(|(stored, decoded)| (u64::from(*stored), u64::from(*decoded)));
                fits_table &= claims == Some((frame.range.len() as u64, content));
            }
        }
    }
    // Frames that do not say what they hold hold something or nothing.
    if total > expected as u64 || (survey.is_sized && total != expected as u64) {
        let error = corrupt(start, "the compressed data");
        return Err(error
            .expected(format_args!("{expected} bytes"))
            .found(format_args!("frames of {total}")));
    }
    if survey.frames == 0 {
        return Err(corrupt(start, "the compressed data has no frame"));
    }
    if let Some((at, _)) = table
        && is_seekable
        && survey.is_sized
        && !(fits_table && listed.next().is_none())
    {
        let what = "the table of frames does not fit the frames";
        return Err(corrupt(start + at as u64, what).rule("Z16"));
    }
    Ok(survey)
}

/// Each frame with its part of the memory.
fn jobs<'b, 'o>(
    blob: &'b [u8],
    start: u64,
    mut out: &'o mut [u8],
    limits: &Limits,
) -> Result<Vec<Job<'b, 'o>>, Error> {
    let mut jobs = Vec::new();
    for piece in Pieces::new(blob, start, limits) {
        let Piece::Frame(frame) = piece? else { continue };
        let content = frame.content.and_then(|content| usize::try_from(content).ok());
        // The survey has added them up.
        let split = content.and_then(|content| std::mem::take(&mut out).split_at_mut_checked(content));
        let (part, rest) = split.ok_or_else(|| corrupt(start, "the compressed data"))?;
        out = rest;
        let at = start + frame.range.start as u64;
        jobs.push((&blob[frame.range], at, part));
    }
    Ok(jobs)
}

/// Decodes a frame that must fill the memory it is given.
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
        /// Making a decoder takes longer than decoding a small tensor.
        static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    }
    let room = out.len();
    DECODER.with_borrow_mut(|decoder| {
        let decoder = match decoder {
            Some(decoder) => decoder,
            None => {
                let made = DCtx::try_create();
                decoder.insert(made.ok_or_else(|| {
                    let what = "memory does not suffice for a decoder";
                    Error::new(fmt_core::ErrorKind::TooLarge, what).rule("Z15")
                })?)
            }
        };
        decoder.decompress(out, frame).map_err(|code| {
            corrupt(at, "a frame cannot be decoded")
                .expected(format_args!("at most {room} bytes"))
                .found(zstd_safe::get_error_name(code))
        })
    })
}
