//! Objects of the manifest, and the parts of objects.

use fmt_cbor::testing::{Map, dims, text};
use fmt_core::ErrorKind::{self, *};

use super::Cases;
use crate::support::{Version::*, *};

impl Cases {
    /// Adds cases for the rules O4 to O7.
    pub(super) fn objects(&mut self) {
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
    pub(super) fn parts(&mut self) {
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
}
