//! Parts in other files.

use fmt_cbor::testing::{Map, text, uint};
use fmt_core::ErrorKind::*;

use super::Cases;
use crate::support::{Version::*, *};

impl Cases {
    /// Adds cases for the rule O15.
    pub(super) fn shards(&mut self) {
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
