//! Reads and hashes in one pass, while the bytes are in the CPU cache.

use fmt_core::{ByteSource, Error, read_into};

use crate::{
    checksum::{Claim, Hasher, State},
    parallel::for_each,
};

/// Bytes read and hashed at once.
pub(crate) const CHUNK: usize = 256 << 10;
/// Number of bytes that a thread reads and hashes per job.
const TURN: usize = 4 << 20;

/// Fills `out` with the bytes starting at `start`, and returns their checksum. The CRC-32C of many bytes is
/// computed by several threads, which together read and hash about as fast as one thread reads.
pub(crate) fn read_and_hash(
    source: &dyn ByteSource,
    start: u64,
    out: &mut [u8],
    mut hasher: Hasher,
    threads: usize,
) -> Result<Claim, Error> {
    let mut at = start;
    if threads > 1 && out.len() > TURN && matches!(hasher.0, State::Crc32c(_)) {
        let mut turns: Vec<(u64, usize, u32)> = Vec::with_capacity(out.len().div_ceil(TURN));
        for turn in out.chunks(TURN) {
            turns.push((at, turn.len(), 0));
            at += turn.len() as u64;
        }
        let jobs = turns.iter_mut().zip(out.chunks_mut(TURN)).collect();
        for_each(
            jobs,
            threads,
            |((at, _, crc), turn): (&mut (u64, usize, u32), &mut [u8])| {
                for chunk in turn.chunks_mut(CHUNK) {
                    read_into(source, *at, chunk, "the data")?;
                    *crc = crc32c::crc32c_append(*crc, chunk);
                    *at += chunk.len() as u64;
                }
                Ok(())
            },
        )?;
        let whole = turns.into_iter().fold(0, |before, (_, len, crc)| {
            crc32c::crc32c_combine(before, crc, len)
        });
        return Ok(Claim::Crc32c(whole));
    }
    for chunk in out.chunks_mut(CHUNK) {
        read_into(source, at, chunk, "the data")?;
        hasher.update(chunk);
        at += chunk.len() as u64;
    }
    Ok(hasher.finish())
}
