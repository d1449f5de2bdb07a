//! Builds frames for tests.

use zstd::zstd_safe::{CCtx, CParameter};

/// Builds a Zstandard frame with or without content size and checksum.
///
/// # Panics
/// When the library fails.
#[must_use]
pub fn frame_with(data: &[u8], has_size: bool, has_checksum: bool) -> Vec<u8> {
    let mut context = CCtx::create();
    context
        .set_parameter(CParameter::ContentSizeFlag(has_size))
        .expect("the library takes it");
    context
        .set_parameter(CParameter::ChecksumFlag(has_checksum))
        .expect("the library takes it");
    let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(data.len()));
    context.compress2(&mut frame, data).expect("the library takes it");
    frame
}

/// Builds a frame with content size and checksum.
///
/// # Panics
/// When the library fails.
#[must_use]
pub fn frame(data: &[u8]) -> Vec<u8> {
    frame_with(data, true, true)
}

/// Builds a skippable frame.
#[must_use]
pub fn skippable(content: &[u8]) -> Vec<u8> {
    [
        &[0x50, 0x2a, 0x4d, 0x18][..],
        &(content.len() as u32).to_le_bytes(),
        content,
    ]
    .concat()
}

/// Builds the table of the seekable format for frames of these stored and decoded lengths.
#[must_use]
pub fn table(frames: &[(usize, usize)]) -> Vec<u8> {
    let mut content = Vec::new();
    for (stored, decoded) in frames {
        content.extend((*stored as u32).to_le_bytes());
        content.extend((*decoded as u32).to_le_bytes());
    }
    content.extend((frames.len() as u32).to_le_bytes());
    content.extend([0, 0xb1, 0xea, 0x92, 0x8f]);
    let mut frame = skippable(&content);
    frame[0] = 0x5e;
    frame
}

/// Returns `len` bytes that compress moderately.
#[must_use]
pub fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * at / 97 + at / 7) as u8).collect()
}
