//! Validates the indices of sparse tensors as they are written.

use std::cmp::Ordering;

use fmt_core::{Error, ErrorKind};

/// Checks the indices of a sparse tensor, in pieces of any length, against its shape and the order required
/// in files (rules B10 and B11).
#[derive(Debug, Default)]
pub(crate) struct IndexCheck {
    /// Bytes of an incomplete index.
    partial: Vec<u8>,
    /// Coordinates of the current entry that have been read so far.
    current: Vec<u64>,
    /// Coordinates of the previous entry.
    last: Vec<u64>,
    entries: u64,
}

impl IndexCheck {
    /// Checks the next index bytes of a tensor whose dimensions are `dims`; the tensor is not a scalar.
    pub(crate) fn take(&mut self, mut bytes: &[u8], dims: &[u64]) -> Result<(), Error> {
        if !self.partial.is_empty() {
            let missing = (8 - self.partial.len()).min(bytes.len());
            self.partial.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if let Some(word) = self.partial.first_chunk() {
                let index = u64::from_le_bytes(*word);
                self.partial.clear();
                self.push(index, dims)?;
            }
        }
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.push(u64::from_le_bytes(*word), dims)?;
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    fn push(&mut self, index: u64, dims: &[u64]) -> Result<(), Error> {
        let axis = self.current.len();
        let dim = dims.get(axis).copied().unwrap_or_default();
        if index >= dim {
            let what = format!("the index of entry {} on axis {axis}", self.entries);
            let error = Error::new(ErrorKind::OutOfBounds, what).rule("B10");
            return Err(error.expected(format_args!("less than {dim}")).found(index));
        }
        self.current.push(index);
        if self.current.len() < dims.len() {
            return Ok(());
        }
        let wrong = match self.last.cmp(&self.current) {
            Ordering::Less => None,
            Ordering::Equal => Some((ErrorKind::Duplicate, "coordinates that do not repeat")),
            Ordering::Greater => Some((ErrorKind::Malformed, "coordinates in ascending row-major order")),
        };
        if let Some((kind, expected)) = wrong {
            let error = Error::new(kind, format!("the coordinates of entry {}", self.entries));
            return Err(error
                .rule("B11")
                .expected(expected)
                .found(format_args!("{:?} behind {:?}", self.current, self.last)));
        }
        std::mem::swap(&mut self.last, &mut self.current);
        self.current.clear();
        self.entries += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks indices in pieces of `piece` bytes.
    fn take(indices: &[u64], dims: &[u64], piece: usize) -> Result<u64, ErrorKind> {
        let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        let mut check = IndexCheck::default();
        for piece in bytes.chunks(piece) {
            check.take(piece, dims).map_err(|error| error.kind())?;
        }
        Ok(check.entries)
    }

    #[test]
    fn indices_are_checked_in_pieces_of_any_length() {
        for piece in 1..50 {
            assert_eq!(take(&[0, 1, 0, 2, 1, 0], &[2, 3], piece), Ok(3));
            assert_eq!(take(&[0, 1, 0, 3], &[2, 3], piece), Err(ErrorKind::OutOfBounds));
            assert_eq!(take(&[0, 1, 0, 1], &[2, 3], piece), Err(ErrorKind::Duplicate));
            assert_eq!(take(&[1, 0, 0, 1], &[2, 3], piece), Err(ErrorKind::Malformed));
        }
    }

    /// The first coordinates may be all zero, because there are no previous coordinates.
    #[test]
    fn nothing_comes_before_the_origin() {
        assert_eq!(take(&[0, 0], &[1, 1], 8), Ok(1));
    }
}
