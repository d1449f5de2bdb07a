//! The frame of a file and the CBOR of its manifest.

use fmt_cbor::testing::{Map, array, bytes, text, uint};
use fmt_core::ErrorKind::*;

use super::Cases;
use crate::support::{Version::*, *};

impl Cases {
    /// Adds cases for the rules O1 and O2.
    pub(super) fn ends(&mut self) {
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
    pub(super) fn cbor(&mut self) {
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
}
