//! Converts element order and byte order.

use fmt_core::{Error, ErrorKind};

use crate::header::Element;

/// Converts elements from column-major order, big-endian order, or both, to row-major little-endian bytes.
pub(crate) fn to_row_major(
    stored: &[u8],
    element: Element,
    dims: &[u64],
    is_column_major: bool,
    is_big_endian: bool,
) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    out.try_reserve_exact(stored.len())
        .map_err(|_| Error::new(ErrorKind::TooLarge, "not enough memory for the converted tensor"))?;
    if is_column_major && dims.len() > 1 {
        transpose(stored, element.size as usize, dims, &mut out);
    } else {
        out.extend_from_slice(stored);
    }
    if is_big_endian && element.word > 1 {
        out.chunks_exact_mut(element.word as usize)
            .for_each(<[u8]>::reverse);
    }
    Ok(out)
}

fn transpose(stored: &[u8], width: usize, dims: &[u64], out: &mut Vec<u8>) {
    match width {
        1 => transpose_by::<1>(stored, dims, out),
        2 => transpose_by::<2>(stored, dims, out),
        4 => transpose_by::<4>(stored, dims, out),
        8 => transpose_by::<8>(stored, dims, out),
        _ => in_row_major_order(dims, |at| out.extend_from_slice(&stored[at * width..][..width])),
    }
}

/// Transposes elements of a constant width, which is much faster.
fn transpose_by<const WIDTH: usize>(stored: &[u8], dims: &[u64], out: &mut Vec<u8>) {
    let (elements, _) = stored.as_chunks::<WIDTH>();
    in_row_major_order(dims, |at| out.extend_from_slice(&elements[at]));
}

/// Calls `visit` for each element in row-major order, with the element's index in column-major order.
fn in_row_major_order(dims: &[u64], mut visit: impl FnMut(usize)) {
    let Some((&last, outer)) = dims.split_last() else {
        return;
    };
    if dims.contains(&0) {
        return;
    }
    // Strides of the axes in the file, in elements. The array is in memory, so the strides fit `usize`.
    let mut strides = Vec::with_capacity(dims.len());
    let mut stride = 1;
    for &dim in dims {
        strides.push(stride);
        stride *= dim as usize;
    }
    let mut index = vec![0u64; outer.len()];
    let mut start = 0;
    loop {
        let row = (start..).step_by(strides[outer.len()]).take(last as usize);
        row.for_each(&mut visit);
        // Advances to the next row along the last outer axis that is not at its end.
        let Some(axis) = (0..outer.len()).rfind(|&axis| index[axis] + 1 < outer[axis]) else {
            return;
        };
        index[axis] += 1;
        index[axis + 1..].fill(0);
        start = index
            .iter()
            .zip(&strides)
            .map(|(index, stride)| *index as usize * stride)
            .sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows() {
        // The array is 2 x 3 x 2; element (i, j, k) is at i + 2j + 6k in the file.
        let element = Element { size: 2, word: 2 };
        let stored: Vec<u8> = (0..12u16).flat_map(u16::to_be_bytes).collect();
        let rows = to_row_major(&stored, element, &[2, 3, 2], true, true).unwrap();
        let wanted = [0u16, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11];
        assert_eq!(
            rows,
            wanted
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<_>>()
        );
        let empty = to_row_major(&[], element, &[2, 0, 2], true, true);
        assert!(empty.unwrap().is_empty());
        // Four elements of two words each.
        let element = Element { size: 4, word: 2 };
        let stored = [0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8];
        let rows = to_row_major(&stored, element, &[2, 2], true, true).unwrap();
        assert_eq!(rows, [1, 0, 2, 0, 5, 0, 6, 0, 3, 0, 4, 0, 7, 0, 8, 0]);
    }
}
