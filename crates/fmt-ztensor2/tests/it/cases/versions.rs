//! What only version 1 or version 2 has.

use fmt_cbor::testing::{Map, dims, head, indefinite, text, uint};
use fmt_core::ErrorKind::*;
use xxhash_rust::xxh3::xxh3_64;

use super::Cases;
use crate::support::{Version::*, *};

impl Cases {
    pub(super) fn of_version_1(&mut self) {
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

    pub(super) fn of_version_2(&mut self) {
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
}
