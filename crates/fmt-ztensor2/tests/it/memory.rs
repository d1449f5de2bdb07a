//! Compares the memory that opening a file takes with the size of its manifest.

use bytes::Bytes;
use fmt_cbor::testing::{Map, tiny_fields};
use fmt_core::testing::check_opening;
use fmt_ztensor2::ObjectsReader;

use crate::support::{Version::*, file, object, part, root};

/// Checks the memory for opening files with many small attributes or many small objects.
#[test]
fn attributes_of_objects_take_no_more_than_their_bytes() {
    let mut attributes = Map::empty();
    attributes.0 = tiny_fields(60_000);
    let attributes = attributes.encode_sorted();
    let names: Vec<_> = (0..2_000).map(|number| format!("{number:05}")).collect();
    let mut files = Vec::new();
    for version in [V1, V2] {
        let with_attributes = root(version, &[]).with("attributes", attributes.clone());
        files.push((version, "attributes", file(version, &[], &with_attributes)));
        let small = |name: &'static str| {
            let data = part(version, "u8", 0, 0);
            (name, object(version, "dense", &[0], &[("data", data)]))
        };
        let objects: Vec<_> = names.iter().map(|name| small(name.clone().leak())).collect();
        files.push((
            version,
            "objects",
            file(version, &[b""], &root(version, &objects)),
        ));
    }
    for (version, what, file) in files {
        let file = Bytes::from(file);
        let range = ObjectsReader::from_bytes(file.clone()).unwrap().manifest_range();
        check_opening(
            &format!("{version:?}, {what}"),
            (range.end - range.start) as usize,
            || {
                ObjectsReader::from_bytes(file.clone()).unwrap();
            },
        );
    }
}
