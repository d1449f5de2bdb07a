//! Mutations of valid files, each opened and read on a small stack with a limit on memory.

use std::{sync::Arc, thread};

use bytes::Bytes;
use fmt_core::{
    Format, ReadOptions,
    testing::{Verdict, mutants, read_everything},
};
use fmt_ztensor2::{Ztensor1, Ztensor2};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    cases::cases,
    support::{
        self,
        Version::{self, *},
    },
};

/// Opens and reads each file; returns the number of files that opened.
fn open_all(format: &'static dyn Format, files: Vec<Vec<u8>>) -> usize {
    let work = move || {
        let mut opened = 0;
        for file in files {
            let source = Arc::new(Bytes::from(file));
            let mut reader = None;
            let allocated = allocation_counter::measure(|| {
                reader = format.open(source.clone() as _, &ReadOptions::default()).ok();
            });
            assert!(allocated.bytes_max <= (64 << 10) + 10 * source.len() as u64);
            if let Some(reader) = reader {
                opened += 1;
                read_everything(&*reader);
            }
        }
        opened
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(256 << 10)
            .spawn_scoped(scope, work);
        thread.unwrap().join().unwrap()
    })
}

/// Returns mutations of a file. In version 2 most of a file is padding, and the hash detects a changed
/// manifest, so only the manifest is changed, and the footer is recomputed.
fn mutants_of(version: Version, file: &[u8], count: usize) -> Vec<Vec<u8>> {
    if version == V1 {
        return mutants(file, count).collect();
    }
    let footer = file.len() - 40;
    let start = u64::from_le_bytes(*file[footer..].first_chunk().unwrap());
    let (blobs, manifest) = file[..footer].split_at(start as usize);
    mutants(manifest, count)
        .map(|manifest| {
            let mut file = [blobs, &manifest].concat();
            support::footer(&mut file, start, manifest.len() as u64, xxh3_64(&manifest), 2);
            file.extend(V2.magic());
            file
        })
        .collect()
}

/// Tests every truncation, every flipped bit and random combinations of changes to the accepted corpus files
/// named in `of`.
fn many(format: &'static dyn Format, version: Version, of: &[&str]) {
    const EACH: usize = 6_000;
    let bases: Vec<_> = cases(version)
        .into_iter()
        .filter(|case| case.verdict == Verdict::Accept && of.contains(&&*case.name))
        .collect();
    assert_eq!(bases.len(), of.len());
    for base in bases {
        let mutants = mutants_of(version, &base.bytes, EACH);
        let total = mutants.len();
        let opened = open_all(format, mutants);
        assert!(
            (total / 100..total - total / 100).contains(&opened),
            "{}: {opened} of {total}",
            base.name
        );
    }
}

const OF: [&str; 5] = [
    "o7-attributes",
    "o11-coordinates",
    "o11-rows",
    "o12-compressed",
    "o9-complex",
];

#[test]
fn mutants_of_version_1() {
    many(&Ztensor1, V1, &OF);
}

#[test]
fn mutants_of_version_2() {
    many(&Ztensor2, V2, &OF);
}
