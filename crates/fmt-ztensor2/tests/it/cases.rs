//! The corpora of versions 1 and 2: small files, each valid or rejected for a single reason. The rules (O1
//! and so on) are in docs/formats/ztensor2.md.

use std::path::Path;

use fmt_core::{
    ErrorKind::{self, *},
    Format,
    testing::{CorpusFile, Verdict, check_corpus},
};
use fmt_ztensor2::{Ztensor1, Ztensor2};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{
    Version::{self, *},
    *,
};
use fmt_cbor::testing::{Map, array, bytes, dims, head, indefinite, text, uint};
use fmt_zstd::testing::{frame, sample};

struct Cases {
    version: Version,
    files: Vec<CorpusFile>,
}

impl Cases {
    fn add(&mut self, name: &str, verdict: Verdict, bytes: Vec<u8>) {
        self.files.push(CorpusFile {
            name: name.to_owned(),
            bytes,
            verdict,
        });
    }

    fn accept(&mut self, name: &str, bytes: Vec<u8>) {
        self.add(name, Verdict::Accept, bytes);
    }

    fn reject(&mut self, name: &str, kind: ErrorKind, rule: &'static str, bytes: Vec<u8>) {
        self.add(name, Verdict::Reject(kind, rule), bytes);
    }

    fn damaged(&mut self, name: &str, kind: ErrorKind, bytes: Vec<u8>) {
        self.add(name, Verdict::Damaged(kind), bytes);
    }
}

#[test]
fn files_of_version_1_are_judged_as_their_cases_say() {
    judge(&Ztensor1, V1, "corpus1", 60);
}

#[test]
fn files_of_version_2_are_judged_as_their_cases_say() {
    judge(&Ztensor2, V2, "corpus2", 90);
}

fn judge(format: &'static dyn Format, version: Version, folder: &str, least: usize) {
    let files = cases(version);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    check_corpus(format, &folder, &files);
    assert!(files.len() >= least, "{}", files.len());
}

pub(crate) fn cases(version: Version) -> Vec<CorpusFile> {
    let mut cases = Cases {
        version,
        files: Vec::new(),
    };
    cases.ends();
    cases.cbor();
    cases.objects();
    cases.parts();
    cases.layouts();
    cases.encodings();
    match version {
        V1 => cases.of_version_1(),
        V2 => cases.of_version_2(),
    }
    cases.files
}

impl Cases {
    /// Adds cases for the rules O1 and O2.
    fn ends(&mut self) {
        let version = self.version;
        let good = one(version, w(version));
        let len = good.len();
        self.accept("o1-three-floats", good.clone());
        self.accept("o1-no-objects", file(version, &[], &root(version, &[])));
        let changed = |at: usize, byte: u8| {
            let mut file = good.clone();
            file[at] = byte;
            file
        };
        for cut in [0, 7] {
            self.reject(&format!("o1-{cut}-bytes"), Truncated, "O1", good[..cut].to_vec());
        }
        self.reject("o1-only-the-magic", Truncated, "O1", good[..8].to_vec());
        self.reject("o1-another-magic", BadMagic, "O1", changed(3, b'X'));
        self.reject(
            "o1-another-magic-at-the-end",
            BadMagic,
            "O1",
            changed(len - 1, b'X'),
        );
        self.reject("o1-a-byte-behind", BadMagic, "O1", [&good[..], &[0]].concat());
        let (size_at, kind) = match version {
            V1 => (len - 16, Malformed),
            V2 => (len - 32, Malformed),
        };
        let sized = |size: u64| {
            let mut file = good.clone();
            file[size_at..size_at + 8].copy_from_slice(&size.to_le_bytes());
            file
        };
        self.reject("o2-a-manifest-of-no-bytes", kind, "O2", sized(0));
        self.reject(
            "o2-a-manifest-longer-than-the-file",
            OutOfBounds,
            "O2",
            sized(1 << 20),
        );
        self.reject(
            "o2-a-manifest-of-all-bytes-there-are",
            OutOfBounds,
            "O2",
            sized(u64::MAX),
        );
    }

    /// Adds cases for the rules O3 and O4.
    fn cbor(&mut self) {
        let version = self.version;
        let of = |manifest: &[u8]| file_of(version, &[&W], manifest);
        for (name, manifest) in [
            ("an-array", vec![0x80]),
            ("a-number", vec![0]),
            ("null", vec![0xf6]),
            ("a-text", text("x")),
        ] {
            self.reject(&format!("o4-{name}"), Malformed, "O4", of(&manifest));
        }
        let good = version.encode(&root(version, &[("w", w(version))]));
        self.reject(
            "o3-a-byte-behind-the-map",
            Malformed,
            "O3",
            of(&[&good[..], &[0]].concat()),
        );
        self.reject("o3-cut-off", Malformed, "O3", of(&good[..good.len() - 1]));
        let rule = version.key("O4", "O3");
        self.reject("o3-a-break", Malformed, rule, of(&[0xff]));
        self.reject("o3-a-reserved-head", Malformed, "O3", of(&[0xa1, 0x1c]));
        self.reject("o4-no-objects", Malformed, "O4", of(&[0xa0]));
        self.reject("o3-more-pairs-than-bytes", Malformed, "O3", {
            of(&[&[0xbb][..], &[0xff; 8]].concat())
        });
        let twice = Map::empty()
            .and(text("objects"), vec![0xa0])
            .and(text("objects"), vec![0xa0]);
        self.reject("o3-objects-twice", Malformed, "O3", of(&twice.encode()));
        let number = Map::empty()
            .and(uint(1), vec![0xa0])
            .and(text("objects"), vec![0xa0]);
        self.reject(
            "o4-a-key-that-is-a-number",
            Malformed,
            "O4",
            of(&version.encode(&number)),
        );
        let deep = [vec![0x81; 40], vec![0]].concat();
        let deep = root(version, &[]).with("x", deep);
        let rule = version.key("O2", "O3");
        self.reject("o3-deep-nesting", Malformed, rule, file(version, &[], &deep));
        let unknown = root(
            version,
            &[("w", w(version).with("future", array(&[uint(1), text("a")])))],
        );
        self.accept(
            "o4-keys-that-are-not-known",
            file(version, &[&W], &unknown.with("zz", bytes(&[1]))),
        );
        let attributes = Map::empty().with("unit", text("m")).with("n", uint(3));
        let attributes = version.encode(&attributes);
        let root = root(
            version,
            &[("w", w(version).with("attributes", attributes.clone()))],
        );
        self.accept(
            "o7-attributes",
            file(version, &[&W], &root.with("attributes", attributes)),
        );
        let list = Map::empty()
            .and(text("objects"), vec![0xa0])
            .with("attributes", vec![0x80]);
        self.reject(
            "o7-attributes-that-are-a-list",
            Malformed,
            "O4",
            of(&version.encode(&list)),
        );
        let odd = version.encode(&Map::empty().and(uint(1), uint(2)));
        let odd = Map::empty()
            .and(text("objects"), vec![0xa0])
            .with("attributes", odd);
        self.reject(
            "o7-an-attribute-with-a-number-for-a-key",
            Malformed,
            "O4",
            of(&version.encode(&odd)),
        );
    }

    /// Adds cases for the rules O4 to O7.
    fn objects(&mut self) {
        let version = self.version;
        let (layout, parts) = (
            version.key("format", "layout"),
            version.key("components", "parts"),
        );
        for key in ["shape", layout, parts] {
            let name = format!("o4-no-{key}");
            self.reject(&name, Malformed, "O4", one(version, w(version).without(key)));
        }
        let of = |object: Map| one(version, object);
        for (name, shape) in [
            ("a-text", text("3")),
            ("a-float", vec![0x81, 0xf9, 0x3c, 0]),
            ("a-negative-number", vec![0x81, 0x20]),
            ("a-map", vec![0xa0]),
        ] {
            self.reject(
                &format!("o5-a-shape-of-{name}"),
                Malformed,
                "O5",
                of(w(version).with("shape", shape)),
            );
        }
        self.reject(
            "o5-a-product-that-overflows",
            Overflow,
            "O5",
            of(w(version).with("shape", dims(&[1 << 32, 1 << 32]))),
        );
        self.reject("o5-bytes-that-overflow", Overflow, "O5", {
            of(w(version).with("shape", dims(&[1 << 62])))
        });
        self.reject(
            "o5-rank-65",
            TooLarge,
            "O5",
            of(w(version).with("shape", dims(&[1; 65]))),
        );
        let byte = |shape: &[u64]| dense(version, shape, part(version, "u8", 0, 1));
        self.accept("o5-rank-64", of(byte(&[1; 64])));
        self.accept("o5-a-scalar", of(byte(&[])));
        let nothing = dense(version, &[0, 1 << 63, 4], part(version, "f64", 0, 0));
        self.accept("o5-nothing-beside-what-would-overflow", of(nothing));
        let named = |name: &[u8]| {
            let objects = Map::empty().and(text(name), version.encode(&w(version)));
            let objects = version.encode(&objects);
            file(version, &[&W], &root(version, &[]).with("objects", objects))
        };
        self.reject("o6-a-name-with-a-zero-byte", BadName, "O6", named(b"a\0b"));
        self.reject("o6-a-name-that-is-no-utf-8", Malformed, "O3", named(b"a\xff"));
        self.accept("o6-a-path-for-a-name", named(b"../../etc/passwd"));
        let no_map = root(version, &[]).with("objects", Map::empty().and(text("w"), vec![0x80]).encode());
        self.reject(
            "o4-an-object-that-is-a-list",
            Malformed,
            "O4",
            file(version, &[], &no_map),
        );
    }

    /// Adds cases for the rules O8 to O10.
    fn parts(&mut self) {
        let version = self.version;
        let shaped =
            |offset: u64, len: u64| one(version, dense(version, &[3], at(version, "f32", offset, len)));
        let align = version.alignment();
        let rows: [(&str, ErrorKind, u64, u64); 6] = [
            ("misaligned", Misaligned, align + 1, 12),
            ("misaligned-by-half", Misaligned, align / 2, 12),
            ("at-byte-0", OutOfBounds, 0, 12),
            ("that-wraps", Overflow, u64::MAX - align + 1, 1 << 20),
            ("behind-the-data", OutOfBounds, 1 << 40, 12),
            ("that-ends-behind-the-data", OutOfBounds, align, 1 << 20),
        ];
        for (name, kind, offset, len) in rows {
            self.reject(&format!("o8-a-blob-{name}"), kind, "O8", shaped(offset, len));
        }
        let two = |a: Map, b: Map| {
            let objects = [("a", dense(version, &[8], a)), ("b", dense(version, &[8], b))];
            let room = vec![7; 3 * align as usize];
            file(version, &[&room], &root(version, &objects))
        };
        let long = |offset: u64| at(version, "u8", offset, 8);
        self.accept("o8-the-same-blob-twice", two(long(align), long(align)));
        let wide = at(version, "f64", align, 8 * align);
        let wide = dense(version, &[align], wide);
        let inner = dense(version, &[8], long(2 * align));
        let room = vec![7; 9 * align as usize];
        self.reject("o8-a-blob-within-another", Overlap, "O8", {
            file(version, &[&room], &root(version, &[("a", wide), ("b", inner)]))
        });
        for (name, size) in [
            ("f64", 8u64),
            ("f16", 2),
            ("bf16", 2),
            ("i64", 8),
            ("u32", 4),
            ("i8", 1),
        ] {
            let object = dense(version, &[1], part(version, name, 0, size));
            self.accept(&format!("o9-{name}"), one(version, object));
        }
        for len in [0, 11] {
            let object = dense(version, &[3], part(version, "f32", 0, len));
            self.reject(
                &format!("o10-{len}-bytes-for-12"),
                SizeMismatch,
                "O10",
                one(version, object),
            );
        }
        self.reject(
            "o9-no-dtype",
            Malformed,
            "O4",
            with_part(version, |part| part.without("dtype")),
        );
        let logical = |dtype: &str, logical: &str, len: u64, shape: &[u64]| {
            one(
                version,
                dense(
                    version,
                    shape,
                    part(version, dtype, 0, len).with("type", text(logical)),
                ),
            )
        };
        self.accept("o9-f8", logical("u8", "f8_e4m3fn", 3, &[3]));
        self.accept("o9-complex", logical("f32", "complex64", 8, &[1]));
        self.accept("o9-four-bits", logical("u8", "f4_e2m1", 2, &[4]));
        self.accept("o9-four-bits-and-half-a-byte", logical("u8", "f4_e2m1", 3, &[5]));
        self.accept(
            "o9-a-logical-type-that-is-not-known",
            logical("u8", "x.future", 3, &[9]),
        );
        self.reject(
            "o9-a-dtype-that-does-not-fit",
            Malformed,
            "O9",
            logical("f32", "f8_e5m2", 12, &[3]),
        );
        self.reject(
            "o10-complex-of-half-the-bytes",
            SizeMismatch,
            "O10",
            logical("f32", "complex64", 4, &[1]),
        );
        let digest = |text_of: &str| with_part(version, |part| part.with("digest", text(text_of)));
        for (name, text) in [
            ("o13-too-few-digits", "sha256:00"),
            ("o13-other-digits", "sha256:xyz"),
        ] {
            match version {
                V1 => self.accept(name, digest(text)),
                V2 => self.reject(name, Malformed, "O13", digest(text)),
            }
        }
        self.accept("o13-another-algorithm", digest("blake3:00ff"));
        let wrong = format!("sha256:{}", "0".repeat(64));
        self.damaged("o13-a-digest-that-does-not-hold", Corrupt, digest(&wrong));
    }

    /// Adds cases for the rules O11 and O14.
    fn layouts(&mut self) {
        let version = self.version;
        let data = || part(version, "f32", 0, 12);
        self.reject("o11-dense-without-data", Malformed, "O11", {
            one(version, object(version, "dense", &[3], &[("values", data())]))
        });
        self.reject("o11-dense-with-more", Malformed, "O11", {
            one(
                version,
                object(version, "dense", &[3], &[("data", data()), ("more", data())]),
            )
        });
        self.accept(
            "o14-another-layout",
            one(version, object(version, "x.own/1", &[3], &[("p", data())])),
        );

        // Two entries of a 2 by 3 matrix: (0, 1) and (1, 2).
        let words = |words: &[u64]| {
            words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let (coo, csr) = (
            version.key("sparse_coo", "zt.sparse_coo/1"),
            version.key("sparse_csr", "zt.sparse_csr/1"),
        );
        let values = [1.5f32, 2.5].map(f32::to_le_bytes).concat();
        let coo_of = |shape: &[u64], coords: &[u64], values_len: u64| {
            let coords = words(coords);
            let parts = [
                ("values", part(version, "f32", 0, values_len)),
                ("coords", part(version, "u64", 1, coords.len() as u64)),
            ];
            file(
                version,
                &[&values, &coords],
                &root(version, &[("m", object(version, coo, shape, &parts))]),
            )
        };
        self.accept("o11-coordinates", coo_of(&[2, 3], &[0, 1, 1, 2], 8));
        self.accept("o11-coordinates-in-no-order", coo_of(&[2, 3], &[1, 0, 2, 1], 8));
        self.reject(
            "o11-coordinates-of-a-scalar",
            Malformed,
            "O11",
            coo_of(&[], &[0], 8),
        );
        self.reject(
            "o11-half-a-coordinate",
            SizeMismatch,
            "O11",
            coo_of(&[2, 3], &[0, 1, 1], 8),
        );
        self.reject(
            "o11-fewer-values",
            SizeMismatch,
            "O11",
            coo_of(&[2, 3], &[0, 1, 1, 2], 4),
        );
        self.damaged(
            "o11-a-coordinate-outside",
            OutOfBounds,
            coo_of(&[2, 3], &[0, 1, 1, 3], 8),
        );
        self.damaged(
            "o11-a-coordinate-twice",
            Duplicate,
            coo_of(&[2, 3], &[1, 1, 2, 2], 8),
        );
        let csr_of = |indices: &[u64], indptr: &[u64]| {
            let (indices, indptr) = (words(indices), words(indptr));
            let parts = [
                ("values", part(version, "f32", 0, 8)),
                ("indices", part(version, "u64", 1, indices.len() as u64)),
                ("indptr", part(version, "u64", 2, indptr.len() as u64)),
            ];
            file(
                version,
                &[&values, &indices, &indptr],
                &root(version, &[("m", object(version, csr, &[2, 3], &parts))]),
            )
        };
        self.accept("o11-rows", csr_of(&[1, 2], &[0, 1, 2]));
        self.accept("o11-rows-of-which-one-is-empty", csr_of(&[1, 2], &[0, 0, 2]));
        self.reject("o11-too-few-rows", SizeMismatch, "O11", csr_of(&[1, 2], &[0, 2]));
        self.damaged(
            "o11-rows-that-do-not-begin-at-0",
            OutOfBounds,
            csr_of(&[1, 2], &[1, 1, 2]),
        );
        self.damaged("o11-rows-that-go-back", OutOfBounds, csr_of(&[1, 2], &[0, 2, 1]));
        self.damaged(
            "o11-rows-beyond-the-columns",
            OutOfBounds,
            csr_of(&[1, 2], &[0, 1, 3]),
        );
        self.damaged(
            "o11-rows-that-leave-some",
            OutOfBounds,
            csr_of(&[1, 2], &[0, 1, 1]),
        );
        self.damaged("o11-a-column-outside", OutOfBounds, csr_of(&[1, 3], &[0, 1, 2]));
        let signed = [
            ("values", part(version, "f32", 0, 8)),
            ("coords", part(version, "i64", 0, 8)),
        ];
        self.reject("o11-signed-coordinates", Malformed, "O11", {
            file(
                version,
                &[&values],
                &root(version, &[("m", object(version, coo, &[9], &signed))]),
            )
        });
        self.reject("o11-coordinates-without-values", Malformed, "O11", {
            let parts = [("coords", part(version, "u64", 0, 8))];
            file(
                version,
                &[&values],
                &root(version, &[("m", object(version, coo, &[9], &parts))]),
            )
        });
    }

    /// Adds cases for the rule O12.
    fn encodings(&mut self) {
        let version = self.version;
        let encoding = version.key("zstd", "zt.zstd-seekable/1");
        let decoded = version.key("uncompressed_length", "decoded_length");
        let content = sample(40);
        let blob = frame(&content);
        let of = |blob: &[u8], len: u64, said: u64| {
            let part = part(version, "u8", 0, blob.len() as u64)
                .with("encoding", text(encoding))
                .with(decoded, uint(said));
            file(
                version,
                &[blob],
                &root(version, &[("z", dense(version, &[len], part))]),
            )
        };
        self.accept("o12-compressed", of(&blob, 40, 40));
        self.reject("o12-another-length", SizeMismatch, "O10", of(&blob, 40, 41));
        self.damaged("o12-a-frame-of-more", Corrupt, of(&blob, 39, 39));
        self.damaged("o12-a-frame-of-less", Corrupt, of(&blob, 41, 41));
        self.damaged(
            "o12-a-frame-cut-off",
            Corrupt,
            of(&blob[..blob.len() - 1], 40, 40),
        );
        self.damaged("o12-no-frame", Corrupt, of(b"something else", 40, 40));
        self.damaged(
            "o12-more-than-so-few-bytes-hold",
            Corrupt,
            of(&blob, 8 << 20, 8 << 20),
        );
        self.damaged("o12-more-than-the-limit", TooLarge, of(&blob, 1 << 40, 1 << 40));
        let unknown = part(version, "u8", 0, 12)
            .with("encoding", text("lz4"))
            .with(decoded, uint(99));
        self.accept(
            "o14-another-encoding",
            one(version, dense(version, &[99], unknown)),
        );
    }

    fn of_version_1(&mut self) {
        // Version 1.0 stores the dtype with the object and has other keys.
        let old_part = Map::empty().with("offset", uint(64)).with("length", uint(12));
        let old = Map::empty()
            .with("dtype", text("float32"))
            .with("shape", dims(&[3]))
            .with("format", text("dense"))
            .with("components", named(V1, &[("data", old_part.clone())]));
        let old_root = |object: &Map| {
            Map::empty()
                .with("version", text("1.0"))
                .with("generator", text("by hand"))
                .with("attributes", vec![0xa0])
                .with("tensors", named(V1, &[("w", object.clone())]))
        };
        self.accept("o4-as-1-0-writes-it", file(V1, &[&W], &old_root(&old)));
        let unknown = old.clone().with("dtype", text("float8"));
        self.accept(
            "o9-a-dtype-of-1-0-that-is-not-known",
            file(V1, &[&W], &old_root(&unknown)),
        );
        self.reject("o9-no-dtype-at-all", Malformed, "O4", {
            file(V1, &[&W], &old_root(&old.clone().without("dtype")))
        });
        let nulls = with_part(V1, |part| {
            let part = part.with("type", vec![0xf6]).with("digest", vec![0xf6]);
            part.with("uncompressed_length", vec![0xf6])
        });
        self.accept("o4-nulls", nulls);
        let object = Map(vec![
            (text("shape"), indefinite(4, &[uint(3)])),
            (text("format"), indefinite(3, &[text("den"), text("se")])),
            (
                text("components"),
                indefinite(5, &[text("data"), part(V1, "f32", 0, 12).encode_indefinite()]),
            ),
        ]);
        let objects = indefinite(5, &[text("w"), object.encode_indefinite()]);
        let manifest = indefinite(5, &[text("objects"), objects]);
        self.accept("o3-without-lengths", file_of(V1, &[&W], &manifest));
        self.accept(
            "o9-a-dtype-that-is-not-known",
            with_part(V1, |part| part.with("dtype", text("f8"))),
        );
        self.accept("o9-bool", one(V1, dense(V1, &[12], part(V1, "bool", 0, 12))));
        let crc32c = format!("crc32c:0x{:08X}", crc32c::crc32c(&W));
        self.accept(
            "o13-crc32c",
            with_part(V1, |part| part.with("digest", text(&crc32c))),
        );
        self.damaged("o13-another-crc32c", Corrupt, {
            with_part(V1, |part| part.with("digest", text("crc32c:0x3D5D8B1E")))
        });
        let twice = Map::empty()
            .and(text("w"), w(V1).encode())
            .and(text("w"), w(V1).encode());
        self.reject("o6-two-objects-of-a-name", Duplicate, "O6", {
            file(V1, &[&W], &root(V1, &[]).with("objects", twice.encode()))
        });
        self.reject("o3-two-shapes", Malformed, "O3", {
            one(V1, w(V1).and(text("shape"), dims(&[3])))
        });
        self.reject("o3-two-offsets", Malformed, "O3", {
            with_part(V1, |part| part.and(text("offset"), uint(64)))
        });
        self.reject("o4-an-offset-that-is-a-text", Malformed, "O4", {
            with_part(V1, |part| part.with("offset", text("64")))
        });
        self.reject("o4-a-length-below-zero", Malformed, "O4", {
            with_part(V1, |part| part.with("length", head(1, 11)))
        });
        for key in ["offset", "length"] {
            self.reject(
                &format!("o4-no-{key}"),
                Malformed,
                "O4",
                with_part(V1, |part| part.without(key)),
            );
        }
        self.accept(
            "o8-nothing-at-byte-0",
            one(V1, dense(V1, &[0], at(V1, "f32", 0, 0))),
        );
        self.accept("o6-an-empty-name", file(V1, &[&W], &root(V1, &[("", w(V1))])));
        self.reject("o6-a-name-of-65537-bytes", BadName, "O6", {
            file(V1, &[&W], &root(V1, &[(&"n".repeat(65537), w(V1))]))
        });
    }

    fn of_version_2(&mut self) {
        let manifest = root(V2, &[("w", w(V2))]).encode_sorted();
        let ends = |offset: u64, hash: u64, version: u32| {
            let good = file_of(V2, &[&W], &manifest);
            let mut file = good[..good.len() - 40].to_vec();
            footer(&mut file, offset, manifest.len() as u64, hash, version);
            file.extend(V2.magic());
            file
        };
        let hash = xxh3_64(&manifest);
        self.reject("o1-version-3", BadVersion, "O1", ends(8192, hash, 3));
        self.reject("o2-another-hash", Corrupt, "O2", ends(8192, hash ^ 1, 2));
        self.reject(
            "o2-a-manifest-that-is-misaligned",
            Misaligned,
            "O2",
            ends(8190, hash, 2),
        );
        self.reject("o2-a-manifest-at-byte-0", Misaligned, "O2", ends(0, hash, 2));
        let mut reserved = file_of(V2, &[&W], &manifest);
        let at_reserved = reserved.len() - 12;
        reserved[at_reserved] = 1;
        self.accept("o1-reserved-bytes", reserved);
        let mut shard = V2.magic().to_vec();
        footer(&mut shard, 0, 0, 0, 2);
        shard.extend(V2.magic());
        self.reject("o15-a-shard-of-data", Unsupported, "O15", shard);

        let of = |manifest: &[u8]| file_of(V2, &[&W], manifest);
        let with_value = |value: &[u8]| {
            let attributes = Map::empty().with("x", value.to_vec()).encode();
            of(&root(V2, &[]).with("attributes", attributes).encode_sorted())
        };
        for (name, value) in [
            ("a-long-head", vec![0x18, 1]),
            ("a-tag", vec![0xc0, 0]),
            ("undefined", vec![0xf7]),
            ("a-simple-value", vec![0xf8, 40]),
            ("a-long-float", vec![0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]),
            ("another-nan", vec![0xf9, 0x7e, 1]),
            ("a-list-without-length", vec![0x9f, 0xff]),
            ("a-text-without-length", vec![0x7f, 0xff]),
            (
                "keys-in-another-order",
                [vec![0xa2], text("b"), vec![1], text("a"), vec![1]].concat(),
            ),
            (
                "a-key-twice",
                [vec![0xa2], text("a"), vec![1], text("a"), vec![1]].concat(),
            ),
        ] {
            self.reject(&format!("o3-{name}"), Malformed, "O3", with_value(&value));
        }
        for (name, value) in [
            ("null", vec![0xf6]),
            ("a-short-float", vec![0xf9, 0x3c, 0]),
            ("a-double", vec![0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 1]),
            ("nan", vec![0xf9, 0x7e, 0]),
            ("a-key-that-is-a-list", vec![0xa2, 0x01, 0x00, 0x81, 0x01, 0x00]),
        ] {
            self.accept(&format!("o3-{name}"), with_value(&value));
        }
        let key = |key: Vec<u8>| {
            let attributes = Map::empty().and(key, vec![1]).encode();
            of(&root(V2, &[]).with("attributes", attributes).encode_sorted())
        };
        self.reject("o7-an-empty-key", BadName, "O7", key(text("")));
        self.reject("o7-a-key-with-a-zero-byte", BadName, "O7", key(text("a\0")));
        self.reject(
            "o6-an-empty-name",
            BadName,
            "O6",
            file(V2, &[&W], &root(V2, &[("", w(V2))])),
        );
        self.reject("o6-a-name-of-1025-bytes", BadName, "O6", {
            file(V2, &[&W], &root(V2, &[(&"n".repeat(1025), w(V2))]))
        });
        self.accept(
            "o6-a-name-of-1024-bytes",
            file(V2, &[&W], &root(V2, &[(&"n".repeat(1024), w(V2))])),
        );
        self.reject("o6-an-empty-name-of-a-part", BadName, "O6", {
            one(V2, object(V2, "x/1", &[3], &[("", part(V2, "f32", 0, 12))]))
        });
        self.reject(
            "o4-no-parts-at-all",
            Malformed,
            "O4",
            one(V2, object(V2, "x/1", &[3], &[])),
        );
        self.reject("o4-three-numbers-for-a-blob", Malformed, "O4", {
            with_part(V2, |part| part.with("blob", dims(&[4096, 12, 0])))
        });
        self.reject(
            "o4-no-blob",
            Malformed,
            "O4",
            with_part(V2, |part| part.without("blob")),
        );
        self.reject("o9-a-dtype-that-is-not-known", Malformed, "O9", {
            with_part(V2, |part| part.with("dtype", text("bool")))
        });
        self.reject("o12-an-encoding-without-length", Malformed, "O12", {
            with_part(V2, |part| part.with("encoding", text("zt.zstd-seekable/1")))
        });
        self.reject("o12-a-length-without-encoding", Malformed, "O12", {
            with_part(V2, |part| part.with("decoded_length", uint(12)))
        });
        self.reject(
            "o8-nothing-at-byte-0",
            OutOfBounds,
            "O8",
            one(V2, dense(V2, &[0], at(V2, "f32", 0, 0))),
        );
        self.reject("o8-a-blob-over-the-manifest", Overlap, "O8", {
            one(V2, dense(V2, &[1], at(V2, "f32", 8192, 4)))
        });
        let digest = |digest: &str| with_part(V2, |part| part.with("digest", text(digest)));
        self.accept("o13-xxh3", digest(&format!("xxh3:{:016x}", xxh3_64(&W))));
        self.damaged("o13-another-xxh3", Corrupt, digest("xxh3:0000000000000000"));
        self.reject(
            "o13-upper-case",
            Malformed,
            "O13",
            digest("xxh3:00FF00FF00FF00FF"),
        );
        let bools = |bytes: &[u8]| {
            let data = part(V2, "u8", 0, bytes.len() as u64).with("type", text("bool"));
            let object = dense(V2, &[bytes.len() as u64], data);
            file(V2, &[bytes], &root(V2, &[("b", object)]))
        };
        self.accept("o17-booleans", bools(&[0, 1, 1]));
        self.damaged("o17-a-boolean-of-2", Corrupt, bools(&[0, 2, 1]));
        self.shards();
    }

    /// Adds cases for the rule O15.
    fn shards(&mut self) {
        let shard = |size: u64| {
            let digest = format!("sha256:{}", "0".repeat(64));
            Map::empty().with("size", uint(size)).with("digest", text(digest))
        };
        let with = |table: &[(&str, Map)], parts: &[(&str, u64, u64)]| {
            let objects: Vec<_> = parts
                .iter()
                .map(|(name, offset, len)| {
                    let data = at(V2, "u8", *offset, *len).with("shard", text("a"));
                    (*name, dense(V2, &[*len], data))
                })
                .collect();
            file(V2, &[], &root(V2, &objects).with("shards", named(V2, table)))
        };
        let one = [("x", 4096, 8)];
        self.accept("o15-data-in-a-shard", with(&[("a", shard(1 << 20))], &one));
        self.reject(
            "o15-a-shard-that-is-not-there",
            Malformed,
            "O15",
            with(&[("b", shard(1 << 20))], &one),
        );
        self.reject(
            "o15-data-behind-the-shard",
            OutOfBounds,
            "O8",
            with(&[("a", shard(4100))], &one),
        );
        self.reject(
            "o15-a-shard-too-small",
            Malformed,
            "O15",
            with(&[("a", shard(47))], &[]),
        );
        self.reject("o15-a-shard-without-size", Malformed, "O4", {
            with(&[("a", shard(1 << 20).without("size"))], &[])
        });
        self.reject("o15-a-shard-without-digest", Malformed, "O4", {
            with(&[("a", shard(1 << 20).without("digest"))], &[])
        });
        self.reject("o15-data-that-overlaps-in-a-shard", Overlap, "O8", {
            with(&[("a", shard(1 << 20))], &[("x", 4096, 5000), ("y", 8192, 8)])
        });
        for (what, name) in [
            ("a-path", "../x"),
            ("nothing", ""),
            ("a-dot-first", ".x"),
            ("65-letters", &"n".repeat(65)),
        ] {
            self.reject(
                &format!("o15-{what}-for-a-name"),
                BadName,
                "O15",
                with(&[(name, shard(1 << 20))], &[]),
            );
        }
    }
}
