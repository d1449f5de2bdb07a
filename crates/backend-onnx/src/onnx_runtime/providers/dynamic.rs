//! Reads the dependencies of a shared library from its ELF file, since the system's loader only reports the
//! first missing dependency.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

/// Returns the needed libraries from the dynamic section of a shared library (64-bit little-endian ELF), in
/// order. Returns an empty list for other files.
pub(super) fn needed(path: &Path) -> Vec<String> {
    File::open(path)
        .and_then(|mut file| read(&mut file))
        .unwrap_or_default()
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Maximum number of bytes to read from the dynamic section, and from a name.
const MOST_DYNAMIC: u64 = 64 << 10;
const MOST_NAME: usize = 256;

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    length: u64,
}

fn read(file: &mut File) -> io::Result<Vec<String>> {
    let head = bytes(file, 0, 64)?;
    // The ELF magic number, class 64, and little-endian byte order.
    if head.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Ok(Vec::new());
    }
    let (table, size, count) = (u64_at(&head, 32), u16_at(&head, 54), u16_at(&head, 56));
    let table = bytes(file, table, u64::from(size) * u64::from(count.min(256)))?;
    let segments: Vec<Segment> = table
        .chunks_exact(usize::from(size).max(56))
        .map(|entry| Segment {
            kind: u32_at(entry, 0),
            offset: u64_at(entry, 8),
            address: u64_at(entry, 16),
            length: u64_at(entry, 32),
        })
        .collect();
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
        return Ok(Vec::new());
    };
    let section = bytes(file, dynamic.offset, dynamic.length.min(MOST_DYNAMIC))?;
    let entries: Vec<(u64, u64)> = section
        .chunks_exact(16)
        .map(|entry| (u64_at(entry, 0), u64_at(entry, 8)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    // Converts the table's memory address into a file offset, using the segment that contains it.
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB);
    let strings = strings.and_then(|(_, address)| {
        let holds = |segment: &&Segment| {
            segment.kind == PT_LOAD
                && address
                    .checked_sub(segment.address)
                    .is_some_and(|within| within < segment.length)
        };
        let segment = segments.iter().find(holds)?;
        (address - segment.address).checked_add(segment.offset)
    });
    let Some(strings) = strings else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for (_, offset) in entries.iter().filter(|(tag, _)| *tag == DT_NEEDED) {
        let Some(at) = strings.checked_add(*offset) else {
            continue;
        };
        let text = bytes(file, at, MOST_NAME as u64)?;
        let end = text.iter().position(|byte| *byte == 0);
        if let Some(name) = end.and_then(|end| std::str::from_utf8(&text[..end]).ok()) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Reads `count` bytes at an offset, or fewer at the end of the file.
fn bytes(file: &mut File, offset: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset))?;
    file.take(count).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let field = bytes.get(at..at + width).unwrap_or_default();
    field
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    number(bytes, at, 2) as u16
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    number(bytes, at, 4) as u32
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    number(bytes, at, 8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    #[test]
    fn this_program_needs_the_c_library() {
        let names = needed(&std::env::current_exe().unwrap());
        assert!(names.contains(&"libc.so.6".to_owned()), "{names:?}");
    }

    #[test]
    fn damaged_files_need_nothing() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let head = &program[..4096.min(program.len())];
        let path = std::env::temp_dir().join(format!("needed-{}", std::process::id()));
        for index in 0..256 {
            let mut damaged = head.to_vec();
            damaged[index] = 0xff;
            std::fs::write(&path, &damaged).unwrap();
            let _ = needed(&path);
        }
        for length in [0, 3, 63, 64, 100] {
            std::fs::write(&path, &head[..length]).unwrap();
            assert_eq!(needed(&path), Vec::<String>::new());
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(needed(&path), Vec::<String>::new());
    }
}
