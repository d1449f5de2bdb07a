//! Reads the required glibc version and the linked libraries from ELF files.

use std::{fmt, fs, path::Path};

use anyhow::{Context, Result, ensure};

/// A glibc version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glibc(pub(crate) u32, pub(crate) u32);

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Glibc {
    /// Returns the glibc version in a wheel's name, such as 2.17 in
    /// `x-1.0-cp311-abi3-manylinux_2_17_x86_64.whl`. If there are several, returns the lowest.
    pub(crate) fn of_wheel(name: &str) -> Option<Self> {
        let tags = name.split('.').flat_map(|part| part.split('-'));
        let versions = tags.filter_map(|tag| {
            let mut numbers = tag.strip_prefix("manylinux_")?.split('_');
            Some(Self(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
        });
        versions.min()
    }
}

/// Returns the oldest glibc version that a file works with. Returns `None` if the file is not an ELF file or
/// needs no glibc.
pub(crate) fn oldest_glibc(file: &Path) -> Result<Option<Glibc>> {
    let Some(needed) = of_elf(file, needed_versions)? else {
        return Ok(None);
    };
    Ok(needed.iter().filter_map(|version| glibc_of(version)).max())
}

/// Returns the version of glibc that first had a symbol version.
fn glibc_of(version: &str) -> Option<Glibc> {
    // Packed relocations, which older loaders do not know.
    if version == "GLIBC_ABI_DT_RELR" {
        return Some(Glibc(2, 36));
    }
    let (major, rest) = version.strip_prefix("GLIBC_")?.split_once('.')?;
    // Only the major and minor versions matter, so 2.2.5 counts as 2.2.
    let minor = rest.split('.').next()?;
    Some(Glibc(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the libraries that a file is linked with, such as `libc.so.6`. Returns `None` if the file is not
/// an ELF file.
pub(crate) fn libraries(file: &Path) -> Result<Option<Vec<String>>> {
    of_elf(file, needed_libraries)
}

fn of_elf<T>(file: &Path, read: impl FnOnce(&[u8]) -> Result<T>) -> Result<Option<T>> {
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    if !bytes.starts_with(MAGIC) {
        return Ok(None);
    }
    let found = read(&bytes).with_context(|| format!("{} is a malformed ELF file", file.display()))?;
    Ok(Some(found))
}

const MAGIC: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
/// Type of the section with required symbol versions (`SHT_GNU_verneed`).
const VERSIONS_NEEDED: u64 = 0x6fff_fffe;

/// Type of the dynamic section (`SHT_DYNAMIC`), which consists of pairs of tag and value, and the tags for a
/// required library (`DT_NEEDED`) and for the end (`DT_NULL`).
const DYNAMIC: u64 = 6;
const LIBRARY_NEEDED: u64 = 1;
const END: u64 = 0;

/// The fields of a section header that are used here.
struct Section {
    offset: u64,
    size: u64,
    /// Number of entries, for section types that store it.
    info: u64,
    /// Offset of the section's string table.
    names: u64,
}

fn sections(file: &[u8], wanted: u64) -> Result<Vec<Section>> {
    ensure!(
        file.get(4) == Some(&CLASS_64) && file.get(5) == Some(&LITTLE_ENDIAN),
        "expected 64 bits, little-endian"
    );
    let headers = number(file, 0x28, 8)?;
    let (size, count) = (number(file, 0x3a, 2)?, number(file, 0x3c, 2)?);
    let header = |index: u64| headers + index * size;
    let mut found = Vec::new();
    for index in 0..count {
        let section = header(index);
        if number(file, section + 0x04, 4)? == wanted {
            found.push(Section {
                offset: number(file, section + 0x18, 8)?,
                size: number(file, section + 0x20, 8)?,
                info: number(file, section + 0x2c, 4)?,
                names: number(file, header(number(file, section + 0x28, 4)?) + 0x18, 8)?,
            });
        }
    }
    Ok(found)
}

/// Returns the names of all required libraries.
fn needed_libraries(file: &[u8]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for section in sections(file, DYNAMIC)? {
        let end = section.offset.saturating_add(section.size);
        for entry in (section.offset..end).step_by(16) {
            match number(file, entry, 8)? {
                END => break,
                LIBRARY_NEEDED => found.push(text(file, section.names + number(file, entry + 8, 8)?)?),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Returns the names of all required symbol versions, such as `GLIBC_2.17`.
fn needed_versions(file: &[u8]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for section in sections(file, VERSIONS_NEEDED)? {
        let mut library = section.offset;
        for _ in 0..section.info {
            let mut version = library + number(file, library + 0x08, 4)?;
            for _ in 0..number(file, library + 0x02, 2)? {
                found.push(text(file, section.names + number(file, version + 0x08, 4)?)?);
                version += number(file, version + 0x0c, 4)?;
            }
            library += number(file, library + 0x0c, 4)?;
        }
    }
    Ok(found)
}

/// Reads a little-endian integer of `bytes` bytes at an offset.
fn number(file: &[u8], offset: u64, bytes: usize) -> Result<u64> {
    let start = usize::try_from(offset)?;
    let end = start.checked_add(bytes).context("an offset that overflows")?;
    let found = file.get(start..end);
    let found = found.with_context(|| format!("it has {} bytes, a number is at byte {start}", file.len()))?;
    Ok(found
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Reads a NUL-terminated string.
fn text(file: &[u8], offset: u64) -> Result<String> {
    let rest = file.get(usize::try_from(offset)?..);
    let rest = rest.with_context(|| format!("it has {} bytes, a name is at byte {offset}", file.len()))?;
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .context("a name without an end")?;
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_lowest_of_a_wheels_tags_counts() {
        let of = Glibc::of_wheel;
        assert_eq!(
            of("x-0.1.0-cp311-abi3-manylinux_2_34_x86_64.whl"),
            Some(Glibc(2, 34))
        );
        assert_eq!(
            of("x-0.1.0-cp311-abi3-manylinux_2_28_aarch64.manylinux_2_17_aarch64.manylinux2014_aarch64.whl"),
            Some(Glibc(2, 17))
        );
        assert_eq!(of("x-0.1.0-cp311-abi3-linux_x86_64.whl"), None);
        assert!(Glibc(2, 9) < Glibc(2, 17));
    }

    /// Returns a file like those that linkers write: two libraries, and symbol versions of one of them.
    pub(crate) fn file() -> Vec<u8> {
        let names = b"\0GLIBC_2.2.5\0GLIBC_2.17\0GCC_3.0\0libc.so.6\0libgcc_s.so.1\0";
        let mut file = vec![0; 0x40];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let put = |file: &mut Vec<u8>, number: u64, bytes: usize| file.extend(&number.to_le_bytes()[..bytes]);
        let names_at = file.len() as u64;
        file.extend(names);
        let needed_at = file.len() as u64;
        for (value, bytes) in [(1, 2), (3, 2), (0, 4), (16, 4), (0, 4)] {
            put(&mut file, value, bytes);
        }
        for (name, next) in [(1, 16), (13, 16), (24, 0)] {
            for (value, bytes) in [(0, 4), (0, 4), (name, 4), (next, 4)] {
                put(&mut file, value, bytes);
            }
        }
        let dynamic_at = file.len() as u64;
        // In the dynamic section, entries may follow the end marker.
        for (tag, value) in [
            (LIBRARY_NEEDED, 32),
            (0x0e, 1),
            (LIBRARY_NEEDED, 42),
            (END, 0),
            (LIBRARY_NEEDED, 1),
        ] {
            put(&mut file, tag, 8);
            put(&mut file, value, 8);
        }
        let size = file.len() as u64 - dynamic_at;
        let sections_at = file.len() as u64;
        // Each entry has name, type, flags, address, offset, size, link, info, alignment, entry size.
        let sections = [
            (3, names_at, 0, 0, 0),
            (DYNAMIC, dynamic_at, size, 0, 0),
            (VERSIONS_NEEDED, needed_at, 0, 0, 1),
        ];
        for (kind, offset, size, link, info) in sections {
            let fields = [
                (0, 4),
                (kind, 4),
                (0, 8),
                (0, 8),
                (offset, 8),
                (size, 8),
                (link, 4),
                (info, 4),
                (0, 8),
                (0, 8),
            ];
            fields
                .into_iter()
                .for_each(|(value, bytes)| put(&mut file, value, bytes));
        }
        file[0x28..0x30].copy_from_slice(&sections_at.to_le_bytes());
        file[0x3a..0x3c].copy_from_slice(&0x40u16.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&3u16.to_le_bytes());
        file
    }

    fn oldest(content: &[u8]) -> Result<Option<Glibc>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("file");
        fs::write(&path, content)?;
        oldest_glibc(&path)
    }

    #[test]
    fn the_newest_of_the_needed_versions_is_the_oldest_glibc() {
        let file = file();
        assert_eq!(
            needed_versions(&file).unwrap(),
            ["GLIBC_2.2.5", "GLIBC_2.17", "GCC_3.0"]
        );
        assert_eq!(oldest(&file).unwrap(), Some(Glibc(2, 17)));
        assert_eq!(glibc_of("GLIBC_ABI_DT_RELR"), Some(Glibc(2, 36)));
        assert_eq!(glibc_of("GCC_3.0"), None);
        assert_eq!(oldest(b"#!/bin/sh\n").unwrap(), None);
    }

    #[test]
    fn libraries_are_those_that_the_linker_wrote_down() {
        assert_eq!(needed_libraries(&file()).unwrap(), ["libc.so.6", "libgcc_s.so.1"]);
    }

    #[test]
    fn files_that_end_early_are_errors() {
        let file = file();
        // Truncations of the last 16 bytes are left out: only the type is read from the last section header,
        // so these truncations have no effect.
        for length in 4..file.len() - 16 {
            assert!(oldest(&file[..length]).is_err(), "{length}");
        }
        for length in 4..file.len() - 0x40 + 8 {
            assert!(needed_libraries(&file[..length]).is_err(), "{length}");
        }
    }

    #[test]
    #[cfg(all(
        target_os = "linux",
        target_env = "gnu",
        target_pointer_width = "64",
        target_endian = "little"
    ))]
    fn this_program_needs_a_glibc() {
        let own = std::env::current_exe().unwrap();
        assert!(oldest_glibc(&own).unwrap() >= Some(Glibc(2, 2)));
        let libraries = libraries(&own).unwrap().unwrap();
        assert!(libraries.iter().any(|name| name == "libc.so.6"), "{libraries:?}");
    }
}
