//! Layouts of objects, and encodings of parts.

use fmt_cbor::testing::{text, uint};
use fmt_core::ErrorKind::*;
use fmt_zstd::testing::{frame, sample};

use super::Cases;
use crate::support::*;

impl Cases {
    /// Adds cases for the rules O11 and O14.
    pub(super) fn layouts(&mut self) {
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
    pub(super) fn encodings(&mut self) {
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
}
