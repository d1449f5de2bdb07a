//! Tests regions over files in a temporary directory.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use oip_service::{
    SystemSharedMemory,
    oip_types::{ErrorCode, ReadSharedMemory, ServiceError, SharedMemoryRegion, SharedMemorySlice},
};
use oip_shm::{Regions, RegionsConfig};

fn regions(folder: &Path) -> Regions {
    let mut config = RegionsConfig::default();
    config.folder = folder.to_owned();
    config.max_regions = 4;
    config.max_transfer_bytes = 1 << 20;
    Regions::new(config)
}

fn region(name: &str, key: &str, offset: u64, byte_size: u64) -> SharedMemoryRegion {
    SharedMemoryRegion {
        name: name.into(),
        key: key.into(),
        offset,
        byte_size,
    }
}

fn slice(region: &str, offset: u64, byte_size: u64) -> SharedMemorySlice {
    SharedMemorySlice {
        region: region.into(),
        offset,
        byte_size,
    }
}

fn code<T>(result: Result<T, ServiceError>) -> ErrorCode {
    result.err().unwrap().code()
}

#[test]
fn bytes_go_in_and_out_at_their_places() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k");
    fs::write(&path, (0..16).collect::<Vec<u8>>()).unwrap();
    let regions = regions(folder.path());
    regions.register(region("r", "/k", 4, 8)).unwrap();
    assert_eq!(
        regions.read(&slice("r", 0, 8)).unwrap(),
        (4..12).collect::<Vec<u8>>()
    );
    assert_eq!(regions.read(&slice("r", 7, 1)).unwrap(), [11][..]);
    regions.write(&slice("r", 2, 4), &[90, 91]).unwrap();
    let whole = fs::read(&path).unwrap();
    assert_eq!((&whole[5..9], whole.len()), (&[5, 90, 91, 8][..], 16));

    assert_eq!(regions.status(None).unwrap(), [region("r", "/k", 4, 8)]);
    assert_eq!(regions.status(Some("r")).unwrap().len(), 1);
    assert_eq!(code(regions.status(Some("other"))), ErrorCode::NotFound);
    assert_eq!(
        code(regions.register(region("r", "k", 0, 1))),
        ErrorCode::InvalidArgument
    );
    regions.unregister(Some("other"));
    regions.unregister(Some("r"));
    assert_eq!(code(regions.read(&slice("r", 0, 1))), ErrorCode::InvalidArgument);
}

#[test]
fn slices_stay_within_their_region() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("k"), vec![7; 4 << 20]).unwrap();
    let regions = regions(folder.path());
    regions.register(region("r", "k", 8, 2 << 20)).unwrap();
    for (offset, byte_size) in [(0, u64::MAX), (u64::MAX, 2), (2 << 20, 1), ((2 << 20) - 1, 2)] {
        assert!(regions.read(&slice("r", offset, byte_size)).is_err());
        assert!(regions.write(&slice("r", offset, byte_size), &[1, 2]).is_err());
    }
    assert_eq!(
        code(regions.read(&slice("r", 0, (1 << 20) + 1))),
        ErrorCode::TooLarge
    );
    assert_eq!(
        code(regions.write(&slice("r", 0, 1), &[1, 2])),
        ErrorCode::InvalidArgument
    );
    assert_eq!(fs::read(folder.path().join("k")).unwrap(), vec![7; 4 << 20]);
}

#[test]
fn keys_are_names_of_plain_files() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("shm");
    fs::create_dir_all(inner.join("folder")).unwrap();
    fs::write(folder.path().join("secret"), [1; 64]).unwrap();
    fs::write(inner.join("short"), [1; 7]).unwrap();
    symlink(folder.path().join("secret"), inner.join("link")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(inner.join("pipe"))
            .status()
            .unwrap()
            .success()
    );
    let regions = regions(&inner);
    let mut messages = Vec::new();
    for key in [
        "../secret",
        "/../secret",
        "link",
        "pipe",
        "folder",
        ".",
        "..",
        "",
        "/",
        "a\0b",
        "missing",
        "short",
    ] {
        let error = regions.register(region("r", key, 0, 8)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{key}");
        messages.push(error.message().to_owned());
    }
    // The messages do not reveal whether the object exists.
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(regions.register(region("r", "short", u64::MAX, 8)).is_err());
    assert!(regions.register(region("r", "short", 0, 0)).is_err());
    assert!(regions.register(region("", "short", 0, 7)).is_err());
    assert!(regions.status(None).unwrap().is_empty());
}

#[test]
fn a_client_that_shrinks_its_memory_gets_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k");
    fs::write(&path, [1; 4096]).unwrap();
    let regions = regions(folder.path());
    regions.register(region("r", "k", 0, 4096)).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(100)
        .unwrap();
    assert_eq!(
        code(regions.read(&slice("r", 0, 4096))),
        ErrorCode::InvalidArgument
    );
    assert_eq!(
        code(regions.write(&slice("r", 96, 8), &[0; 8])),
        ErrorCode::InvalidArgument
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), 100);
    assert_eq!(regions.read(&slice("r", 0, 100)).unwrap().len(), 100);
}

#[test]
fn the_number_of_regions_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("k"), [1; 8]).unwrap();
    let regions = regions(folder.path());
    for index in 0..4 {
        regions.register(region(&index.to_string(), "k", 0, 8)).unwrap();
    }
    assert_eq!(
        code(regions.register(region("4", "k", 0, 8))),
        ErrorCode::Overloaded
    );
    regions.unregister(None);
    assert!(regions.register(region("4", "k", 0, 8)).is_ok());
}
