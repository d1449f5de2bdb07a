//! Finds valid but suspicious contents of a file.

use fmt_core::{ByteSource, Error, Lint, read_range};

use crate::{
    index::Index,
    layout::{COO_OF_TFRT, FIRST_EXTENSION, WORD, dtype_of, padding},
};

/// Finds valid but suspicious contents of a file (rules B1, B2, B4, B6, B7).
pub(crate) fn of(index: &Index, source: &dyn ByteSource) -> Result<Vec<Lint>, Error> {
    let mut lints = Vec::new();
    for number in 0..index.len() {
        let stored = index.get(number);
        let mut say = |message: &str| {
            lints.push(Lint {
                message: message.to_owned(),
                tensor: Some(number.to_string()),
                range: Some(stored.offset..stored.body()),
            });
        };
        if stored.layout == COO_OF_TFRT {
            say("the layout is 1, which TFRT uses for COO; the specification says 2 (B1)");
        }
        if stored.dtype >= FIRST_EXTENSION && dtype_of(stored.dtype).is_some() {
            say("the dtype is unsigned, which TFRT supports but the specification does not (B2)");
        }
        if stored.has_reserved_bits {
            say("reserved bytes of the header are not zero (B6)");
        }
        if !stored.offset.is_multiple_of(WORD) {
            say("the record does not begin on a multiple of 8 (B4)");
        }
    }
    // Checks the bytes between each record and the next record or the end of the file: at most 7 are padding.
    let mut covered = index.table_end;
    let mut len = 0;
    let mut is_known = true;
    let ends = index
        .records()
        .iter()
        .map(|stored| (stored.offset, Some(stored)))
        .chain([(source.len(), None)]);
    for (start, stored) in ends {
        if is_known {
            let padded = covered.saturating_add(padding(len)).min(start);
            let bytes = read_range(source, covered..padded, "the padding")?;
            if bytes.iter().any(|byte| *byte != 0) {
                lints.push(between("padding is not zero (B7)", covered, padded));
            }
            if padded < start {
                let what = if stored.is_some() {
                    "unused bytes between records (B4)"
                } else {
                    "unused bytes after the last record (B7)"
                };
                lints.push(between(what, padded, start));
            }
        }
        if let Some(stored) = stored {
            // A record that cannot be read has an unknown end, so the bytes after it are not checked.
            is_known = stored.readable_dtype().is_some();
            covered = index.data(stored).end;
            len = covered - stored.offset;
        }
    }
    Ok(lints)
}

fn between(message: &str, start: u64, end: u64) -> Lint {
    Lint {
        message: message.to_owned(),
        tensor: None,
        range: Some(start..end),
    }
}
