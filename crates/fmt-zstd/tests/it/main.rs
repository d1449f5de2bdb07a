//! Blobs compressed by this crate and frames from other encoders: read in every way, truncated, and damaged.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use fmt_core::{Error, ErrorKind, Limits, Verification};
use fmt_zstd::{Blob, ChecksumOf, Compression, Compressor, Decoding, HashingSink, ProvenTables};
use proptest::prelude::*;
use tensor_core::Bytes;

const RULES: &[(&str, &str)] = &[
    (fmt_zstd::FRAMES, "X1"),
    (fmt_zstd::TABLES, "X2"),
    (fmt_zstd::MEMORY, "X3"),
];

/// Returns `len` bytes that compress moderately.
fn sample(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * at / 97 + at / 7) as u8).collect()
}

fn compressed(data: &[u8], options: Compression, piece: usize) -> Bytes {
    let mut sink = HashingSink::new(Vec::new(), 0);
    let mut compressor = Compressor::new().unwrap();
    compressor.begin(&options, data.len() as u64).unwrap();
    for piece in data.chunks(piece) {
        compressor.write(piece, &mut sink).unwrap();
    }
    compressor.finish(&mut sink).unwrap();
    sink.into_inner().into()
}

fn with_blob<T>(file: &Bytes, len: u64, limits: &Limits, read: impl Fn(&Blob<'_>) -> T) -> T {
    read(&Blob {
        decoding: Decoding {
            source: file,
            limits,
            threads: 2,
        },
        tensor: "t",
        range: 0..file.len() as u64,
        len,
        is_zstd: true,
        swapped: 1,
        checksum: None,
        checksum_is_of: ChecksumOf::Stored,
        is_zero_or_one: false,
        rules: RULES,
    })
}

fn streamed(blob: &Blob<'_>) -> Result<Vec<u8>, Error> {
    let (mut stream, mut bytes, mut buffer) = (blob.stream()?, Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(bytes),
            len => bytes.extend_from_slice(&buffer[..len]),
        }
    }
}

/// Tests a blob of more than 4 MiB, which has several frames and a table.
#[test]
fn a_blob_of_many_frames_is_read_in_every_way() {
    let data = sample(5 << 20);
    let options = Compression::level(1).with_frames_of(300_000);
    let file = compressed(&data, options, 77_777);
    assert_eq!(file, compressed(&data, options.with_threads(1), data.len()));
    let len = data.len() as u64;
    with_blob(&file, len, &Limits::default(), |blob| {
        assert_eq!(blob.bytes().unwrap(), data);
        assert_eq!(streamed(blob).unwrap(), data);
        assert_eq!(blob.verify().unwrap(), Verification::Ok);
        let tables = ProvenTables::default();
        for range in [0..1, 299_999..300_001, len - 1..len, 7..7, 0..len] {
            let part = blob.part(&tables, 0, range.clone()).unwrap();
            assert_eq!(part, data[range.start as usize..range.end as usize]);
        }
    });
}

#[test]
fn errors_name_the_tensor_and_the_rule_of_the_format() {
    let file: Bytes = compressed(&sample(1000), Compression::default(), 1000);
    let told = |len, limits: &Limits| {
        with_blob(&file, len, limits, |blob| {
            let error = blob.bytes().unwrap_err();
            assert_eq!(error.tensor(), Some("t"));
            (error.kind(), error.broken_rule())
        })
    };
    assert_eq!(told(999, &Limits::default()), (ErrorKind::Corrupt, Some("X1")));
    assert_eq!(told(1001, &Limits::default()), (ErrorKind::Corrupt, Some("X1")));
    let limits = Limits {
        decoded_bytes: 999,
        ..Limits::default()
    };
    assert_eq!(told(1000, &limits), (ErrorKind::TooLarge, Some("X3")));
}

proptest! {
    /// Checks that any bytes survive a round trip, and that a truncated or damaged blob never decodes to
    /// different bytes.
    #[test]
    fn any_bytes(data in prop::collection::vec(0u8..9, 0..5000), piece in 1usize..600, at in any::<prop::sample::Index>()) {
        let file = compressed(&data, Compression::default(), piece);
        let len = data.len() as u64;
        let limits = Limits::default();
        prop_assert_eq!(with_blob(&file, len, &limits, |blob| blob.bytes().unwrap()), &data[..]);
        let cut = file.slice(..at.index(file.len()));
        prop_assert!(with_blob(&cut, len, &limits, |blob| blob.bytes().is_err()));
        let mut damaged = file.to_vec();
        let place = at.index(file.len());
        damaged[place] ^= 1;
        let damaged = Bytes::from(damaged);
        if let Some(read) = with_blob(&damaged, len, &limits, |blob| blob.bytes().ok()) {
            prop_assert_eq!(read, &data[..]);
        }
    }
}
