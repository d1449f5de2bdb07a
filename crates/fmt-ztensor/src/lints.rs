//! Finds valid but suspicious contents of a file.

use std::ops::Range;

use fmt_core::{ByteSource, Encoding, Error, Layout, Lint, StoredDType, lint_holes};
use fmt_zstd::Claim;

use crate::{index::Index, layout::MAGIC};

/// Up to this many zero bytes between tensors count as alignment padding.
const PADDING: u64 = 4096;

/// Collects the lints of a file whose index starts at byte `index_start`.
pub(crate) fn of(index: &Index, index_start: u64, source: &dyn ByteSource) -> Result<Vec<Lint>, Error> {
    let mut lints = Vec::new();
    of_tensors(index, &mut lints);
    let ranges: Vec<Range<u64>> = index.entries.iter().map(|entry| entry.range.clone()).collect();
    lints.extend(lint_holes(
        source,
        &ranges,
        MAGIC.len() as u64..index_start,
        PADDING,
        "Z10",
    )?);
    Ok(lints)
}

fn of_tensors(index: &Index, lints: &mut Vec<Lint>) {
    for (number, (entry, details)) in index.entries.iter().zip(&index.details).enumerate() {
        let mut about = |message: String| {
            lints.push(Lint {
                message,
                tensor: Some(entry.name.clone()),
                range: Some(entry.range.clone()),
            });
        };
        if index.find(&entry.name) != Some(number) {
            about("an earlier tensor has the same name (Z9)".to_owned());
        }
        if let Some(reason) = &entry.unsupported {
            about(format!("{reason} is not in the specification (Z14)"));
        }
        let means_nothing = match (&entry.dtype, &entry.encoding) {
            (StoredDType::Known(dtype), Encoding::Raw) => dtype.size() == 1,
            _ => true,
        };
        if details.says_big.is_some() && means_nothing && entry.layout == Layout::Dense {
            about(
                "data_endianness has no effect on data that is compressed or of single bytes (Z7)".to_owned(),
            );
        }
        if let Some(text) = &entry.checksum
            && Claim::parse(text) == Claim::Unknown
        {
            let text = tensor_core::QuotedName(text);
            about(format!(
                "the checksum {text} cannot be checked: its form is unknown (Z5)"
            ));
        }
    }
}
