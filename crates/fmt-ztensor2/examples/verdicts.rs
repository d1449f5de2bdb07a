//! Prints for each file of version 1 or 2 the reason why the file is rejected, or a line for each of its
//! tensors, with the SHA-256 of its data or the reason why the tensor cannot be read. `cargo xtask interop`
//! compares the output with that of the Python packages.
#![allow(clippy::print_stdout, reason = "it prints what it finds")]

use std::{env, error::Error, sync::Arc};

use fmt_core::{FileSource, Format, ReadOptions, Sniff, TensorReader, read_range};
use fmt_ztensor2::{Ztensor1, Ztensor2};
use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    for path in env::args().skip(1) {
        match open(&path) {
            Err(error) => {
                let rule = error.broken_rule().unwrap_or("-");
                println!("{path}\treject\t{}\t{rule}\t{error}", error.kind());
            }
            Ok(reader) => {
                println!("{path}\taccept\t{}\t{}", reader.format(), reader.entries().len());
                list(&*reader);
            }
        }
    }
    Ok(())
}

fn open(path: &str) -> Result<Box<dyn TensorReader>, fmt_core::Error> {
    let source = Arc::new(FileSource::open(path.as_ref())?);
    let len = fmt_core::ByteSource::len(&*source);
    let head = read_range(&*source, 0..len.min(8), "the magic")?;
    let format: &dyn Format = match Ztensor1.sniff(&head, len) {
        Sniff::No => &Ztensor2,
        _ => &Ztensor1,
    };
    format.open(source, &ReadOptions::default())
}

fn list(reader: &dyn TensorReader) {
    for (index, entry) in reader.entries().iter().enumerate() {
        let content = match reader.sparse(index) {
            Ok(sparse) => Ok([&sparse.indices().bytes()[..], &sparse.values().bytes()[..]].concat()),
            Err(_) => read(reader, index),
        };
        let verified = reader.verify(index).map_or_else(
            |error| format!("{} {}", error.kind(), error.broken_rule().unwrap_or("-")),
            |verified| format!("{verified:?}"),
        );
        let content = content.map_or_else(
            |error| format!("{} {error}", error.kind()),
            |bytes| {
                Sha256::digest(bytes)
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect()
            },
        );
        println!(
            "\t{:?}\t{}{}\t{verified}\t{content}",
            entry.name, entry.dtype, entry.shape
        );
    }
}

/// Returns the bytes of a tensor, read as a stream.
fn read(reader: &dyn TensorReader, index: usize) -> Result<Vec<u8>, fmt_core::Error> {
    let mut stream = reader.stream(index)?;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(bytes),
            len => bytes.extend_from_slice(&buffer[..len]),
        }
    }
}
