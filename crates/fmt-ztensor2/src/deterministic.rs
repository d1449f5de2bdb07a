//! Checks for deterministic CBOR (RFC 8949, section 4.2.1), which version 2 requires of its manifest (O3).

use std::ops::Range;

use fmt_core::{Cursor, Error, ErrorKind};

/// An array or map whose items are being read.
struct Level {
    /// Remaining items; in a map, keys and values count separately.
    rest: u64,
    is_map: bool,
    begin: usize,
    /// The last key of a map, as encoded.
    key: Range<usize>,
}

/// Checks that `bytes`, at byte `start` of a file, are one deterministically encoded item: shortest headers,
/// definite lengths, ascending keys without duplicates, shortest floats, no tags, and at most `depth` levels
/// of arrays and maps.
///
/// The caller checks that text strings are UTF-8 and that lengths do not exceed the bytes.
pub(crate) fn check(bytes: &[u8], start: u64, depth: u64) -> Result<(), Error> {
    let mut cursor = Cursor::new(bytes, start);
    let mut levels: Vec<Level> = Vec::new();
    loop {
        let at = (cursor.position() - start) as usize;
        // A nonempty array or map continues with its items; any other item is complete.
        if let Some((count, is_map)) = read_item(&mut cursor)? {
            if levels.len() as u64 >= depth {
                let error = malformed("the nesting of the manifest", start + at as u64);
                return Err(error.expected(format_args!("at most {depth} levels")));
            }
            let rest = if is_map { count.saturating_mul(2) } else { count };
            if rest > cursor.remaining() {
                let error = malformed("the number of items of an array or a map", start + at as u64);
                return Err(error.expected("as many as fit into the bytes left").found(count));
            }
            levels.push(Level {
                rest,
                is_map,
                begin: at,
                key: at..at,
            });
            if rest > 0 {
                continue;
            }
            levels.pop();
        }
        let item = at..(cursor.position() - start) as usize;
        if end_item(&mut levels, bytes, start, item)? {
            return match cursor.remaining() {
                0 => Ok(()),
                _ => Err(malformed("bytes after the manifest's map", cursor.position())),
            };
        }
    }
}

/// Reads a number, string or simple value, or the header of an array or map. For a header, returns the count
/// in it and whether it is a map's.
fn read_item(cursor: &mut Cursor<'_>) -> Result<Option<(u64, bool)>, Error> {
    let at = cursor.position();
    let first = cursor
        .u8("an item of the manifest")
        .map_err(|error| cut_off(&error))?;
    let (major, info) = (first >> 5, first & 0x1f);
    if major == 7 {
        check_simple(cursor, info).map_err(|what| malformed(what, at))?;
        return Ok(None);
    }
    let Some(number) = argument(cursor, info).map_err(|error| cut_off(&error))? else {
        let what = "a number that is not in its shortest form, or an indefinite length";
        return Err(malformed(what, at));
    };
    match major {
        2 | 3 => cursor
            .take(number, "a string of the manifest")
            .map(|_| None)
            .map_err(|error| cut_off(&error)),
        4 => Ok(Some((number, false))),
        5 => Ok(Some((number, true))),
        6 => Err(malformed("a tag", at)),
        _ => Ok(None),
    }
}

/// Completes the item at the range `item` of `bytes`, and the arrays and maps that end with it. Returns
/// whether the outermost item has ended.
fn end_item(
    levels: &mut Vec<Level>,
    bytes: &[u8],
    start: u64,
    mut item: Range<usize>,
) -> Result<bool, Error> {
    while let Some(level) = levels.last_mut() {
        // Before each key, an even number of a map's items remains.
        if level.is_map && level.rest.is_multiple_of(2) {
            let key = level.key.clone();
            if !key.is_empty() && bytes[key] >= bytes[item.clone()] {
                let what = "a duplicate key, or one that is not in ascending order";
                return Err(malformed(what, start + item.start as u64));
            }
            level.key = item.clone();
        }
        level.rest -= 1;
        if level.rest > 0 {
            return Ok(false);
        }
        item.start = level.begin;
        levels.pop();
    }
    Ok(true)
}

/// Reads the number in an item's header; `None` if the number is not in its shortest form.
fn argument(cursor: &mut Cursor<'_>, info: u8) -> Result<Option<u64>, Error> {
    const WHAT: &str = "a head of the manifest";
    Ok(match info {
        0..24 => Some(info.into()),
        24 => Some(u64::from(cursor.u8(WHAT)?)).filter(|number| *number >= 24),
        25 => Some(u64::from(u16::from_be_bytes(cursor.array(WHAT)?))).filter(|number| *number > 0xff),
        26 => Some(u64::from(u32::from_be_bytes(cursor.array(WHAT)?))).filter(|number| *number > 0xffff),
        27 => Some(u64::from_be_bytes(cursor.array(WHAT)?)).filter(|number| *number > 0xffff_ffff),
        _ => None,
    })
}

/// Checks a boolean, null, or a float in its shortest form.
fn check_simple(cursor: &mut Cursor<'_>, info: u8) -> Result<(), &'static str> {
    const CUT_OFF: &str = "a float that is truncated";
    let array = |found: Result<_, Error>| found.map_err(|_| CUT_OFF);
    let is_shortest = match info {
        20..=22 => true,
        25 => {
            let [a, b] = cursor.array("a float").map_err(|_| CUT_OFF)?;
            let is_nan = a & 0x7c == 0x7c && (a & 3, b) != (0, 0);
            !is_nan || [a, b] == [0x7e, 0]
        }
        26 => {
            let value = f32::from_be_bytes(array(cursor.array("a float"))?);
            let short = tensor_core::f16::from_f32(value);
            !value.is_nan() && short.to_f32().to_bits() != value.to_bits()
        }
        27 => {
            let value = f64::from_be_bytes(cursor.array("a float").map_err(|_| CUT_OFF)?);
            !value.is_nan() && f64::from(value as f32).to_bits() != value.to_bits()
        }
        _ => return Err("a simple value other than false, true and null"),
    };
    if is_shortest {
        return Ok(());
    }
    Err("a float that is not in its shortest form")
}

fn cut_off(error: &Error) -> Error {
    let at = error.byte().unwrap_or(0);
    malformed("an item of the manifest is truncated", at)
}

#[cold]
fn malformed(what: &str, at: u64) -> Error {
    Error::new(ErrorKind::Malformed, what).at(at).rule("O3")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(bytes: &[u8]) -> Result<(), String> {
        check(bytes, 100, 3).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_in_its_only_form() {
        for bytes in [
            &[0x00][..],
            &[0x17],
            &[0x18, 24],
            &[0x19, 1, 0],
            &[0x1a, 0, 1, 0, 0],
            &[0x1b, 0, 0, 0, 1, 0, 0, 0, 0],
            &[0x20],
            &[0x80],
            &[0xa0],
            &[0x81, 0x81, 0x80],
            &[0xa2, 0x61, b'a', 1, 0x62, b'a', b'a', 2],
            &[0xa1, 0x61, b'a', 0xa1, 0x61, b'a', 0xf6],
            &[0x82, 0xa1, 0x61, b'b', 1, 0xa1, 0x61, b'a', 1],
            &[0xf4],
            &[0xf9, 0x7e, 0],
            &[0xf9, 0x7c, 0],
            &[0xfa, 0x3f, 0x80, 0, 1],
            &[0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 1],
        ] {
            assert_eq!(judge(bytes), Ok(()), "{bytes:02x?}");
        }
    }

    #[test]
    fn what_is_not() {
        for bytes in [
            &[][..],
            &[0x18, 23],
            &[0x19, 0, 255],
            &[0x1a, 0, 0, 255, 255],
            &[0x1b, 0, 0, 0, 0, 255, 255, 255, 255],
            &[0x1c],
            &[0x5f, 0xff],
            &[0x9f, 0xff],
            &[0xbf, 0xff],
            &[0xc0, 0x00],
            &[0x62, b'a'],
            &[0x82, 0],
            &[0x9b, 255, 255, 255, 255, 255, 255, 255, 255],
            &[0xbb, 255, 255, 255, 255, 255, 255, 255, 255],
            &[0x00, 0x00],
            &[0x81, 0x81, 0x81, 0x80],
            &[0xa2, 0x61, b'b', 1, 0x61, b'a', 2],
            &[0xa2, 0x61, b'a', 1, 0x61, b'a', 2],
            &[0xa2, 0x62, b'a', b'a', 1, 0x61, b'b', 2],
            &[0xf7],
            &[0xf8, 32],
            &[0xff],
            &[0xf9, 0x7e, 1],
            &[0xf9, 0xfe, 0],
            &[0xfa, 0x7f, 0xc0, 0, 0],
            &[0xfa, 0x3f, 0x80, 0, 0],
            &[0xfb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0],
            &[0xfa, 0x3f],
        ] {
            assert!(judge(bytes).is_err(), "{bytes:02x?}");
        }
        let error = judge(&[0x82, 0, 0x18, 1]).unwrap_err();
        assert!(error.contains("at byte 102"), "{error}");
    }
}
