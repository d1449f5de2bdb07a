//! Corpus files that must open, and whose tensors can be read unless they are damaged.

use fmt_core::{
    ErrorKind,
    testing::{CorpusFile, Verdict},
};

use crate::support::*;

/// Returns the accepted and the damaged files of the corpus.
pub(crate) fn cases() -> Vec<CorpusFile> {
    let mut files = frame_of_the_file();
    files.extend(cbor());
    files.extend(schema());
    files.extend(data());
    files.extend(zstd());
    files.into_iter().map(accepted).chain(damaged()).collect()
}

type Case = (&'static str, Vec<u8>);

fn accepted((name, bytes): Case) -> CorpusFile {
    CorpusFile {
        name: name.to_owned(),
        bytes,
        verdict: Verdict::Accept,
    }
}

/// Returns a file without tensors, with this index.
fn without_data(index: &[u8]) -> Vec<u8> {
    [b"ZTEN0001", index, &(index.len() as u64).to_le_bytes()].concat()
}

fn frame_of_the_file() -> Vec<Case> {
    let mut example = w().with("checksum", text("crc32c:0x384DE783"));
    example.0.insert(4, (text("layout"), text("dense")));
    vec![
        ("example", one(&example)),
        ("zt-01-no-tensors", without_data(&[0x80])),
        ("zt-01-no-tensors-behind-padding", file(&[], &[0x80])),
        (
            "zt-03-index-of-two-bytes-behind-the-magic",
            without_data(&[0x98, 0]),
        ),
        ("zt-08-no-tensors-indefinite", without_data(&[0x9f, 0xff])),
        ("z10-a-hole-at-the-end", file(&[0; 200], &array(&[w().encode()]))),
        (
            "z10-a-hole-in-the-middle",
            file_of(
                &[0; 268],
                &[w(), w().with("name", text("v")).with("offset", uint(320))],
            ),
        ),
        (
            "z10-entries-in-another-order-than-data",
            file_of(
                &[1; 76],
                &[w().with("name", text("v")).with("offset", uint(128)), w()],
            ),
        ),
    ]
}

fn cbor() -> Vec<Case> {
    let chunked = |name: &[&str]| indefinite(3, &name.iter().map(text).collect::<Vec<_>>());
    let wide = |major: u8, number: u64| [&[major << 5 | 27][..], &number.to_be_bytes()].concat();
    vec![
        (
            "zt-08-indefinite-maps",
            file(&W, &array(&[w().encode_indefinite()])),
        ),
        (
            "zt-08-indefinite-array",
            file(&W, &indefinite(4, &[w().encode()])),
        ),
        ("zt-08-everything-indefinite", {
            let entry = w()
                .with("name", chunked(&["w"]))
                .with("dtype", chunked(&["flo", "", "at32"]))
                .with("shape", indefinite(4, &[uint(3)]));
            file(&W, &indefinite(4, &[entry.encode_indefinite()]))
        }),
        ("zt-08-text-of-no-chunks-in-a-custom-field", custom(&chunked(&[]))),
        (
            "zt-08-a-key-in-chunks",
            one(&w().without("size").and(chunked(&["si", "ze"]), uint(12))),
        ),
        ("z2-integers-wider-than-they-need-be", {
            let entry = w()
                .with("offset", wide(0, 64))
                .with("size", wide(0, 12))
                .with("shape", array(&[wide(0, 3)]));
            one(&entry)
        }),
        ("z2-lengths-wider-than-they-need-be", {
            let name = [wide(3, 1), b"w".to_vec()].concat();
            let shape = [wide(4, 1), uint(3)].concat();
            one(&w().with("name", name).with("shape", shape))
        }),
        ("z2-keys-in-another-order", {
            let mut entry = w();
            entry.0.reverse();
            one(&entry)
        }),
        (
            "zt-35-custom-integers",
            one(&w()
                .with("a", uint(u64::MAX))
                .with("b", head(1, 0))
                .with("c", head(1, u64::MAX))),
        ),
        ("zt-35-custom-float16-nan", custom(&[0xf9, 0x7e, 0x00])),
        (
            "zt-35-custom-floats",
            one(&w()
                .with("a", vec![0xfa, 0x3f, 0x80, 0, 0])
                .with("b", vec![0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0])),
        ),
        (
            "zt-35-custom-tag-0",
            custom(&[&[0xc0][..], &text("2025-06-04T00:00:00Z")].concat()),
        ),
        (
            "zt-35-custom-bignum",
            custom(&[0xc2, 0x49, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
        ),
        ("zt-35-custom-bytes", custom(&bytes(&[0, 255, 7]))),
        (
            "zt-35-custom-bytes-in-chunks",
            custom(&indefinite(2, &[bytes(&[1]), bytes(&[2, 3])])),
        ),
        (
            "zt-35-custom-simple-values",
            custom(&array(&[
                vec![0xf4],
                vec![0xf5],
                vec![0xf6],
                vec![0xf7],
                vec![0xe0],
                vec![0xf8, 32],
            ])),
        ),
        (
            "zt-35-custom-map-with-odd-keys",
            custom(&[head(5, 2), array(&[]), uint(1), vec![0xf6], vec![0xf6]].concat()),
        ),
        (
            "zt-35-custom-map-with-a-key-twice",
            custom(&[head(5, 2), uint(1), uint(1), uint(1), uint(2)].concat()),
        ),
        ("zt-35-custom-key-that-is-empty", one(&w().with("", uint(1)))),
        ("zt-07-depth-32", custom(&[vec![0x81; 32], vec![0]].concat())),
        (
            "zt-07-depth-32-of-tags",
            custom(&[vec![0xc1; 32], vec![0]].concat()),
        ),
        (
            "zt-07-depth-32-indefinite",
            custom(&[vec![0x9f; 32], vec![0xff; 32]].concat()),
        ),
    ]
}

fn schema() -> Vec<Case> {
    let dtype = |name: &str, width: u64| file_of(&[1; 16], &[entry("t", 64, 2 * width, name, &[2], "raw")]);
    vec![
        (
            "zt-18-a-name-of-1024-bytes",
            one(&w().with("name", text("n".repeat(1024)))),
        ),
        (
            "zt-18-a-name-beyond-ascii",
            one(&w().with("name", text("größe.日本"))),
        ),
        (
            "zt-18-a-name-with-line-breaks",
            one(&w().with("name", text("a\r\nb\u{202e}"))),
        ),
        ("z18-bool", dtype("bool", 1)),
        ("z18-float16", dtype("float16", 2)),
        ("z18-bfloat16", dtype("bfloat16", 2)),
        ("z18-float32", dtype("float32", 4)),
        ("z18-float64", dtype("float64", 8)),
        ("z18-int8", dtype("int8", 1)),
        ("z18-int16", dtype("int16", 2)),
        ("z18-int32", dtype("int32", 4)),
        ("z18-int64", dtype("int64", 8)),
        ("z18-uint8", dtype("uint8", 1)),
        ("z18-uint16", dtype("uint16", 2)),
        ("z18-uint32", dtype("uint32", 4)),
        ("z18-uint64", dtype("uint64", 8)),
        ("zt-19-dtype-float8", one(&w().with("dtype", text("float8")))),
        (
            "zt-19-dtype-in-capitals",
            one(&w().with("dtype", text("Float32"))),
        ),
        (
            "zt-19-dtype-of-another-naming",
            one(&w().with("dtype", text("f32"))),
        ),
        ("zt-19-dtype-empty", one(&w().with("dtype", text("")))),
        (
            "zt-19-the-others-load",
            file_of(
                &W,
                &[w().with("dtype", text("complex64")), w().with("name", text("v"))],
            ),
        ),
        ("zt-20-encoding-lz4", one(&w().with("encoding", text("lz4")))),
        (
            "zt-20-encoding-in-capitals",
            one(&w().with("encoding", text("ZSTD"))),
        ),
        (
            "zt-20-encoding-empty-of-any-size",
            one(&w().with("encoding", text("")).with("size", uint(5))),
        ),
        ("z1-layout-dense", one(&w().with("layout", text("dense")))),
        (
            "z1-layout-sparsecoo-of-any-size",
            one(&w().with("layout", text("sparsecoo")).with("size", uint(5))),
        ),
        ("z1-layout-that-is-no-text", one(&w().with("layout", uint(1)))),
        ("zt-33-no-checksum", one(&w())),
        (
            "zt-32-crc32c-upper-case",
            one(&w().with("checksum", text("crc32c:0x384DE783"))),
        ),
        (
            "zt-32-crc32c-lower-case",
            one(&w().with("checksum", text("crc32c:0x384de783"))),
        ),
        (
            "zt-32-crc32c-without-0x",
            one(&w().with("checksum", text("crc32c:384de783"))),
        ),
        (
            "zt-32-crc32c-of-seven-digits",
            file_of(
                &[0xa, 0, 0, 0],
                &[entry("n", 64, 4, "uint32", &[], "raw").with("checksum", text("crc32c:0x1440BA0"))],
            ),
        ),
        ("zt-32-sha256", one(&w().with("checksum", text(SHA256)))),
        (
            "zt-32-sha256-upper-case-with-0x",
            one(&w().with(
                "checksum",
                text(format!("sha256:0x{}", SHA256[7..].to_uppercase())),
            )),
        ),
        (
            "zt-32-another-algorithm",
            one(&w().with("checksum", text("md5:00"))),
        ),
        ("zt-32-no-algorithm", one(&w().with("checksum", text("none")))),
        (
            "zt-32-crc32c-of-letters",
            one(&w().with("checksum", text("crc32c:xyz"))),
        ),
        (
            "zt-32-crc32c-of-nothing",
            one(&w().with("checksum", text("crc32c:"))),
        ),
        (
            "zt-32-crc32c-of-0x",
            one(&w().with("checksum", text("crc32c:0x"))),
        ),
        (
            "zt-32-crc32c-of-nine-digits",
            one(&w().with("checksum", text("crc32c:0x012345678"))),
        ),
        (
            "zt-32-crc32c-with-a-blank",
            one(&w().with("checksum", text("crc32c: 12345678"))),
        ),
        (
            "zt-32-crc32c-with-a-sign",
            one(&w().with("checksum", text("crc32c:+1234567"))),
        ),
        (
            "zt-32-sha256-of-63-digits",
            one(&w().with("checksum", text(format!("sha256:{}", "0".repeat(63))))),
        ),
        (
            "zt-32-sha256-of-65-digits",
            one(&w().with("checksum", text(format!("sha256:{}", "0".repeat(65))))),
        ),
        (
            "zt-32-sha256-of-other-letters",
            one(&w().with("checksum", text(format!("sha256:{}", "g".repeat(64))))),
        ),
        (
            "zt-32-sha256-of-wide-letters",
            one(&w().with("checksum", text(format!("sha256:{}", "é".repeat(32))))),
        ),
    ]
}

/// The SHA-256 of [`W`].
const SHA256: &str = "sha256:8e628779e6a74ee0b36991c10158f63cafec7d340ad4e075592502c8708524dd";

fn data() -> Vec<Case> {
    let big = |dtype: &str, data: &[u8]| {
        let entry = entry("b", 64, data.len() as u64, dtype, &[1], "raw");
        file_of(data, &[entry.with("data_endianness", text("big"))])
    };
    vec![
        (
            "zt-16-an-alias",
            file_of(&W, &[w(), w().with("name", text("tied"))]),
        ),
        (
            "zt-16-an-alias-of-another-dtype",
            file_of(&W, &[w(), entry("bits", 64, 12, "uint32", &[3], "raw")]),
        ),
        (
            "zt-16-nothing-inside-another",
            file_of(
                &[0; 192],
                &[
                    entry("a", 64, 192, "uint8", &[192], "raw"),
                    entry("b", 128, 0, "uint8", &[0], "raw"),
                ],
            ),
        ),
        (
            "zt-24-nothing-where-the-index-begins",
            file_of(&[], &[entry("a", 64, 0, "float32", &[0, 7], "raw")]),
        ),
        (
            "zt-24-a-scalar",
            file_of(&[0; 8], &[entry("s", 64, 8, "float64", &[], "raw")]),
        ),
        (
            "zt-24-nothing-beside-what-would-overflow",
            file_of(&[], &[entry("a", 64, 0, "float64", &[1 << 63, 4, 0], "raw")]),
        ),
        (
            "z12-rank-64",
            file_of(&[7], &[entry("r", 64, 1, "uint8", &[1; 64], "raw")]),
        ),
        (
            "z10-nothing-at-byte-0",
            file_of(&[], &[entry("a", 0, 0, "float32", &[0], "raw")]),
        ),
        (
            "zt-18-an-empty-name",
            file_of(&[7], &[entry("", 64, 1, "uint8", &[1], "raw")]),
        ),
        ("zt-21-big-float32", big("float32", &[0x3f, 0x80, 0, 0])),
        (
            "zt-21-big-float64",
            big("float64", &[0x3f, 0xf0, 0, 0, 0, 0, 0, 1]),
        ),
        ("zt-21-big-int16", big("int16", &[0xff, 0xfe])),
        ("zt-21-big-uint8-means-nothing", big("uint8", &[3])),
        (
            "zt-21-little-said",
            one(&w().with("data_endianness", text("little"))),
        ),
        ("zt-21-big-with-checksum-over-stored-bytes", {
            let entry = entry("b", 64, 4, "float32", &[1], "raw").with("data_endianness", text("big"));
            file_of(
                &[0x3f, 0x80, 0, 0],
                &[entry.with("checksum", text("crc32c:0x1245421E"))],
            )
        }),
        (
            "zt-31-bool-of-other-bytes",
            file_of(&[0, 1, 2, 255], &[entry("b", 64, 4, "bool", &[4], "raw")]),
        ),
        ("zt-34-padding-that-is-not-zero", {
            let mut file = file_of(
                &[0xff; 76],
                &[w(), w().with("name", text("v")).with("offset", uint(128))],
            );
            file[8..64].fill(0xff);
            file
        }),
    ]
}

fn zstd() -> Vec<Case> {
    let (a, b) = (sample(500), sample(300));
    let (first, second) = (frame(&a), frame(&b));
    let float = |blob: &[u8], endianness: &str| {
        let entry = entry("z", 64, blob.len() as u64, "float32", &[1], "zstd");
        file_of(blob, &[entry.with("data_endianness", text(endianness))])
    };
    vec![
        ("z15-one-frame", zstd_of(&first, 500)),
        (
            "z15-a-frame-without-checksum",
            zstd_of(&frame_with(&a, true, false), 500),
        ),
        (
            "z15-a-frame-without-size",
            zstd_of(&frame_with(&a, false, false), 500),
        ),
        ("zt-24-no-elements-in-a-frame", zstd_of(&frame(&[]), 0)),
        (
            "zt-24-no-elements-as-the-first-implementation-writes-them",
            zstd_of(&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0], 0),
        ),
        ("zt-29-two-frames", zstd_of(&[&first[..], &second].concat(), 800)),
        (
            "zt-29-two-frames-without-sizes",
            zstd_of(
                &[frame_with(&a, false, true), frame_with(&b, false, true)].concat(),
                800,
            ),
        ),
        (
            "zt-29-frames-with-and-without-size",
            zstd_of(&[frame_with(&a, false, true), second.clone()].concat(), 800),
        ),
        (
            "zt-29-a-frame-of-nothing-between",
            zstd_of(&[first.clone(), frame(&[]), second.clone()].concat(), 800),
        ),
        (
            "zt-29-a-skippable-frame-in-front",
            zstd_of(&[skippable(b"note"), first.clone()].concat(), 500),
        ),
        (
            "zt-29-a-skippable-frame-behind",
            zstd_of(&[first.clone(), skippable(b"")].concat(), 500),
        ),
        (
            "z16-a-table",
            zstd_of(
                &[
                    &first[..],
                    &second,
                    &table(&[(first.len(), 500), (second.len(), 300)]),
                ]
                .concat(),
                800,
            ),
        ),
        ("zt-21-little-zstd", float(&frame(&[1, 2, 3, 4]), "little")),
        (
            "zt-21-big-zstd-is-not-supported",
            float(&frame(&[1, 2, 3, 4]), "big"),
        ),
        ("zt-29-a-dictionary-is-not-supported", zstd_of(&dictionary(), 3)),
        ("z7-big-zstd-of-single-bytes", {
            let blob = frame(&[1, 2, 3]);
            let entry = entry("z", 64, blob.len() as u64, "int8", &[3], "zstd");
            file_of(&blob, &[entry.with("data_endianness", text("big"))])
        }),
    ]
}

/// Returns a frame that requires dictionary 1: one block of three raw bytes.
fn dictionary() -> Vec<u8> {
    vec![0x28, 0xb5, 0x2f, 0xfd, 0x21, 1, 3, 0x19, 0, 0, 1, 2, 3]
}

/// Returns files whose damage is detected only when their data is read.
fn damaged() -> Vec<CorpusFile> {
    let a = sample(500);
    let whole = frame(&a);
    let cut = |len: usize| zstd_of(&whole[..len], 500);
    let flipped = |at: usize| {
        let mut blob = whole.clone();
        blob[at] ^= 0x40;
        zstd_of(&blob, 500)
    };
    let crc = |text_of: &str| one(&w().with("checksum", text(text_of)));
    let corrupt = ErrorKind::Corrupt;
    let cases = vec![
        ("zt-25-a-bomb", corrupt, zstd_of(&frame(&[0; 200_000]), 4)),
        (
            "zt-25-a-bomb-that-hides-its-size",
            corrupt,
            zstd_of(&frame_with(&[0; 200_000], false, false), 4),
        ),
        (
            "zt-26-one-byte-short",
            corrupt,
            zstd_of(&frame(&sample(499)), 500),
        ),
        (
            "zt-26-one-byte-short-without-size",
            corrupt,
            zstd_of(&frame_with(&sample(499), false, true), 500),
        ),
        ("zt-26-no-bytes-at-all", corrupt, zstd_of(&frame(&[]), 500)),
        (
            "zt-26-skippable-frames-only",
            corrupt,
            zstd_of(&skippable(b"nothing"), 500),
        ),
        (
            "zt-26-skippable-frames-only-for-no-elements",
            corrupt,
            zstd_of(&skippable(b"nothing"), 0),
        ),
        (
            "zt-27-a-tebibyte-from-a-few-bytes",
            ErrorKind::TooLarge,
            zstd_of(&whole, 1 << 40),
        ),
        (
            "zt-27-more-than-the-bytes-can-hold",
            corrupt,
            zstd_of(&whole, 1 << 30),
        ),
        (
            "zt-28-a-window-of-two-gibibytes",
            ErrorKind::TooLarge,
            zstd_of(&[0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 1, 0, 0], 0),
        ),
        (
            "zt-28-a-content-of-an-exbibyte",
            corrupt,
            zstd_of(
                &[0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 0, 0],
                0,
            ),
        ),
        ("zt-29-another-magic", corrupt, flipped(0)),
        (
            "zt-29-an-older-format",
            corrupt,
            zstd_of(&[0x27, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0, 0, 0], 1),
        ),
        ("zt-29-another-checksum", corrupt, flipped(whole.len() - 1)),
        ("zt-29-another-byte-in-a-block", corrupt, flipped(whole.len() / 2)),
        ("zt-29-cut-in-the-magic", corrupt, cut(3)),
        ("zt-29-cut-in-the-head", corrupt, cut(5)),
        ("zt-29-cut-in-a-block-head", corrupt, cut(8)),
        ("zt-29-cut-in-a-block", corrupt, cut(whole.len() / 2)),
        ("zt-29-cut-in-the-checksum", corrupt, cut(whole.len() - 1)),
        (
            "zt-29-bytes-behind-the-frame",
            corrupt,
            zstd_of(&[&whole[..], b"more"].concat(), 500),
        ),
        (
            "zt-29-a-byte-behind-the-frame",
            corrupt,
            zstd_of(&[&whole[..], b"m"].concat(), 500),
        ),
        (
            "zt-29-a-skippable-frame-cut-off",
            corrupt,
            zstd_of(&[&whole[..], &skippable(b"1234")[..10]].concat(), 500),
        ),
        (
            "zt-29-a-reserved-block",
            corrupt,
            zstd_of(&[0x28, 0xb5, 0x2f, 0xfd, 0x20, 1, 0x0f, 0, 0, 7], 1),
        ),
        (
            "zt-29-a-reserved-bit",
            corrupt,
            zstd_of(&[0x28, 0xb5, 0x2f, 0xfd, 0x28, 1, 9, 0, 0, 7], 1),
        ),
        (
            "z16-a-table-beside-a-skippable-frame",
            corrupt,
            zstd_of(
                &[
                    skippable(b"in the way"),
                    whole.clone(),
                    table(&[(whole.len(), 500)]),
                ]
                .concat(),
                500,
            ),
        ),
        // The table refers to a frame that is hidden in a skippable frame. Decoding the whole blob skips the
        // hidden frame; a row must not be read from it either.
        ("z16-a-frame-that-is-swallowed", corrupt, {
            let (second, hidden) = (frame(&a[..100]), frame(&a[100..200]));
            let table = table(&[(whole.len() + second.len() + 8, 500), (hidden.len(), 100)]);
            zstd_of(&[&whole[..], &second, &skippable(&hidden), &table].concat(), 600)
        }),
        ("z16-a-table-of-other-sizes", corrupt, {
            let second = frame(&a[..100]);
            let table = table(&[(whole.len(), 100), (second.len(), 500)]);
            zstd_of(&[&whole[..], &second, &table].concat(), 600)
        }),
        (
            "z16-a-table-of-fewer-frames",
            corrupt,
            zstd_of(
                &[&whole[..], &whole, &table(&[(2 * whole.len(), 1000)])].concat(),
                1000,
            ),
        ),
        (
            "z16-a-table-of-more-frames",
            corrupt,
            zstd_of(&[&whole[..], &table(&[(whole.len(), 500), (0, 0)])].concat(), 500),
        ),
        ("zt-32-another-crc32c", corrupt, crc("crc32c:0xDEADBEEF")),
        ("zt-32-crc32c-of-one-digit", corrupt, crc("crc32c:1")),
        (
            "zt-32-another-sha256",
            corrupt,
            crc(&format!("sha256:{}", "0".repeat(64))),
        ),
        ("zt-32-another-crc32c-of-a-frame", corrupt, {
            let entry = entry("z", 64, whole.len() as u64, "uint8", &[500], "zstd");
            file_of(&whole, &[entry.with("checksum", text("crc32c:0x00000000"))])
        }),
    ];
    cases
        .into_iter()
        .map(|(name, kind, bytes)| CorpusFile {
            name: name.to_owned(),
            bytes,
            verdict: Verdict::Damaged(kind),
        })
        .collect()
}
