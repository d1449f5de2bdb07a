//! Remote files give the same tensors as local files, with few requests.

use std::{
    fs::File,
    io::Write,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fmt_core::{ByteSource, ErrorKind, FileSource, Format, Plan, PlannedEntry, ReadOptions, TensorReader};
use fmt_safetensors::{Safetensors, SafetensorsReader};
use tensor_core::{DType, Shape, TensorSpec};
use tensor_remote::{IndexPlace, RemoteOptions, RemoteSource, open};

use crate::server::{Server, content, quick, serve, throwaway_tls, unused_address};

/// Returns a safetensors file with one tensor for each element of `rows`. The element is the number of rows
/// of the tensor; a row is 1 KiB.
fn safetensors(rows: &[u64]) -> Bytes {
    let spec = |rows| TensorSpec::new(DType::U8, Shape::new(&[rows, 1024]).unwrap()).unwrap();
    let entries = rows.iter().enumerate();
    let entries = entries.map(|(number, rows)| PlannedEntry::dense(format!("t{number:06}"), spec(*rows)));
    let plan = Plan {
        entries: entries.collect(),
        ..Plan::default()
    };
    let mut file = Vec::new();
    let mut writer = Safetensors.create(Box::new(&mut file), plan).unwrap();
    for (number, rows) in rows.iter().enumerate() {
        writer
            .write(&vec![number as u8; (*rows * 1024) as usize])
            .unwrap();
    }
    writer.finish().unwrap();
    file.into()
}

fn reader(source: &Arc<RemoteSource>) -> SafetensorsReader {
    SafetensorsReader::open(Arc::clone(source) as _, &ReadOptions::default()).unwrap()
}

#[test]
fn tensors_over_https_with_an_authority_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let tls = throwaway_tls(folder.path());
    let file = safetensors(&[1, 700, 3]);
    let server = Server::start_with(
        move |request, out| serve(request, &file, "\"one\"", out),
        Some(tls),
    );
    let url = format!("https://localhost:{}/m.safetensors", server.address.port());

    let error = open(&url, &quick()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("certificate"), "{error}");
    assert_eq!(server.count(), 0);

    let options = quick().with_authorities(&folder.path().join("ca.pem")).unwrap();
    let source = Arc::new(open(&url, &options).unwrap());
    let reader = reader(&source);
    assert_eq!(reader.tensor(1).unwrap().bytes(), &vec![1; 700 << 10]);
    assert_eq!(reader.tensor(2).unwrap().bytes(), &vec![2; 3 << 10]);

    // The host in the URL must match the certificate.
    let url = format!("https://{}/m.safetensors", server.address);
    assert!(
        open(&url, &options)
            .unwrap_err()
            .to_string()
            .contains("certificate")
    );
}

#[test]
fn an_index_is_one_request_and_a_tensor_is_one_more() {
    let file = safetensors(&[1, 700, 3, 9000, 1]);
    let server = Server::of(file);
    let source = Arc::new(open(&server.url("m.safetensors"), &quick()).unwrap());
    let reader = reader(&source);
    assert_eq!(source.traffic().requests, 1);
    assert_eq!(source.traffic().bytes, 256 << 10);

    // Streaming in small pieces does not send one request per piece.
    let mut stream = reader.stream(3).unwrap();
    let mut piece = vec![0; 1 << 16];
    let mut streamed = 0;
    loop {
        let len = stream.read(&mut piece).unwrap();
        if len == 0 {
            break;
        }
        assert!(piece[..len].iter().all(|byte| *byte == 3));
        streamed += len;
    }
    assert_eq!(streamed, 9000 << 10);
    assert_eq!((source.traffic().requests, server.count()), (2, 2));

    // Reading a few rows does not fetch the whole tensor.
    let before = source.traffic().bytes;
    assert_eq!(reader.rows(3, 5..7).unwrap().bytes(), &vec![3; 2 << 10]);
    let after = source.traffic();
    assert_eq!((after.requests, after.bytes - before), (3, 32 << 10));
}

#[test]
fn many_small_tensors_are_few_requests() {
    let file = safetensors(&vec![1; 20_000]);
    let server = Server::of(file.clone());
    let source = Arc::new(open(&server.url("m.safetensors"), &quick()).unwrap());
    let reader = reader(&source);
    for index in 0..20_000 {
        let tensor = reader.tensor(index).unwrap();
        assert!(tensor.bytes().iter().all(|byte| *byte == index as u8));
    }
    let traffic = source.traffic();
    assert!(traffic.requests <= 16, "{traffic:?}");
    assert!(traffic.bytes <= file.len() as u64 + (1 << 20), "{traffic:?}");
}

#[test]
fn the_index_of_twenty_gigabytes() {
    let header_len = 200_u64 * 64;
    let tensors: Vec<_> = (0..200_u64)
        .map(|number| {
            let (start, end) = (number * 100_000_000, (number + 1) * 100_000_000);
            format!(
                "\"t{number}\":{{\"dtype\":\"U8\",\"shape\":[100000000],\"data_offsets\":[{start},{end}]}}"
            )
        })
        .collect();
    let mut header = format!("{{{}}}", tensors.join(",")).into_bytes();
    header.resize(header.len().max(header_len as usize), b' ');
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + 20_000_000_000).unwrap();
    let server = Server::of(FileSource::new(file).unwrap());

    let source = Arc::new(open(&server.url("m.safetensors"), &quick()).unwrap());
    assert_eq!(reader(&source).entries().len(), 200);
    assert_eq!((server.count(), source.traffic().bytes), (1, 256 << 10));

    // With this option, the index is larger than the part that is requested first.
    let options = quick().with_index_place(IndexPlace::Front(1 << 10));
    let source = Arc::new(open(&server.url("m.safetensors"), &options).unwrap());
    assert_eq!(reader(&source).entries().len(), 200);
    assert_eq!(source.traffic().requests, 2);
    assert!(source.traffic().bytes < 40 << 10, "{:?}", source.traffic());
}

#[test]
fn an_index_at_the_end_is_two_requests() {
    let bytes = content(3 << 20);
    let server = Server::of(bytes.clone());
    for (name, kept) in [
        ("m.zt", 256 << 10),
        ("m.npz", 128 << 10),
        ("m.tbuf", 256 << 10),
        ("m.pt", 128 << 10),
    ] {
        let source = open(&server.url(name), &quick()).unwrap();
        let (len, start) = (source.len(), bytes.len() - kept);
        assert_eq!(source.read(start as u64..len).unwrap(), bytes.slice(start..));
        assert_eq!(source.read(0..512).unwrap(), bytes.slice(..512));
        assert_eq!(source.traffic().requests, 2, "{name}");
        assert_eq!(source.name(), name);
        // For a longer index only the missing part is requested.
        let start = bytes.len() - 400_000;
        assert_eq!(source.read(start as u64..len).unwrap(), bytes.slice(start..));
        assert_eq!(source.traffic().requests, 3, "{name}");
        assert_eq!(source.traffic().bytes, 400_000 + (32 << 10), "{name}");
    }
    // Short files need one or two requests.
    for (len, requests) in [(32 << 10, 1), ((32 << 10) + 1, 2), (288 << 10, 2)] {
        let bytes = content(len);
        let server = Server::of(bytes.clone());
        let source = open(&server.url("m.zt"), &quick()).unwrap();
        assert_eq!(source.read(0..len as u64).unwrap(), bytes);
        assert_eq!(
            (source.traffic().requests, source.traffic().bytes),
            (requests, len as u64)
        );
        assert_eq!(server.count(), requests);
    }
}

/// A file of 20 GB with 20,000 tensors has an index of more than 2 MB at its end, so a longer part of its end
/// is requested.
#[test]
fn a_long_file_is_asked_for_more_of_its_end() {
    let file = tempfile::tempfile().unwrap();
    let len = 20_000_000_000;
    file.set_len(len).unwrap();
    let server = Server::of(FileSource::new(file).unwrap());
    let source = open(&server.url("m.zt"), &quick()).unwrap();
    source.read(len - 2_200_000..len).unwrap();
    source.read(0..8).unwrap();
    assert_eq!((server.count(), source.traffic().requests), (2, 2));
    assert_eq!(source.traffic().bytes, (32 << 10) + len / 8192);
    source.read(10_000_000_000..10_000_001_000).unwrap();
    assert_eq!(
        (server.count(), source.traffic().bytes),
        (3, (64 << 10) + len / 8192)
    );
}

#[test]
fn an_empty_file_has_no_bytes() {
    let server = Server::of(Bytes::new());
    for name in ["m.safetensors", "m.zt"] {
        let source = open(&server.url(name), &quick()).unwrap();
        assert!(source.is_empty());
        assert!(source.read(0..1).is_err());
    }
}

/// Random reads by several threads return the correct bytes.
#[test]
fn every_range_is_that_of_the_file() {
    let bytes = content(5 << 20);
    let server = Server::of(bytes.clone());
    let source = Arc::new(open(&server.url("m.safetensors"), &quick()).unwrap());
    let threads: Vec<_> = (1..5_u64)
        .map(|seed| {
            let (source, bytes) = (Arc::clone(&source), bytes.clone());
            thread::spawn(move || {
                let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let mut next = |most: u64| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) % most
                };
                for _ in 0..60 {
                    let mut at = next(bytes.len() as u64);
                    // Some reads continue where the previous one ended.
                    for _ in 0..next(4) {
                        let most = [100, 40_000, 700_000][next(3) as usize];
                        let end = (at + next(most)).min(bytes.len() as u64);
                        let wanted = bytes.slice(at as usize..end as usize);
                        if next(2) == 0 {
                            source.will_read(at..end);
                        }
                        assert_eq!(source.read(at..end).unwrap(), wanted);
                        let mut into = vec![0; wanted.len()];
                        source.read_into(at, &mut into).unwrap();
                        assert_eq!(into, wanted);
                        at = end;
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(source.read(0..bytes.len() as u64 + 1).is_err());
}

#[test]
fn nobody_there() {
    let url = format!("http://{}/m.zt", unused_address());
    let start = Instant::now();
    let error = open(&url, &RemoteOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(
        error.to_string().contains("no response from 127.0.0.1"),
        "{error}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "a mistyped port is not tried again"
    );
    for (location, kind) in [
        ("http://example.org/m.zt", ErrorKind::Unsupported),
        ("hf://owner", ErrorKind::Malformed),
        ("https://user:word@127.0.0.1/m.zt", ErrorKind::Malformed),
    ] {
        assert_eq!(open(location, &quick()).unwrap_err().kind(), kind, "{location}");
    }
}

#[test]
fn authorities_must_be_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    assert_eq!(quick().with_authorities(&path).unwrap_err().kind(), ErrorKind::Io);
    let mut file = File::create(&path).unwrap();
    file.write_all(b"no certificate").unwrap();
    assert_eq!(
        quick().with_authorities(&path).unwrap_err().kind(),
        ErrorKind::Malformed
    );
}
