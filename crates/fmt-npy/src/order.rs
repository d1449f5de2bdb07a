use fmt_core::{Error, ErrorKind};
use tensor_core::TensorSpec;

/// Row-major little-endian bytes of elements that are stored in column-major order, big-endian, or both.
pub(crate) fn to_row_major(
    stored: &[u8],
    spec: &TensorSpec,
    is_column_major: bool,
    is_big_endian: bool,
) -> Result<Vec<u8>, Error> {
    let width = spec.dtype().size();
    let mut out = Vec::new();
    out.try_reserve_exact(stored.len())
        .map_err(|_| Error::new(ErrorKind::TooLarge, "there is no memory for the converted tensor"))?;
    if is_column_major && spec.shape().rank() > 1 {
        match width {
            1 => transpose::<1>(stored, spec.shape().dims(), &mut out),
            2 => transpose::<2>(stored, spec.shape().dims(), &mut out),
            4 => transpose::<4>(stored, spec.shape().dims(), &mut out),
            _ => transpose::<8>(stored, spec.shape().dims(), &mut out),
        }
    } else {
        out.extend_from_slice(stored);
    }
    if is_big_endian && width > 1 {
        out.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    Ok(out)
}

fn transpose<const WIDTH: usize>(stored: &[u8], dims: &[u64], out: &mut Vec<u8>) {
    let (elements, _) = stored.as_chunks::<WIDTH>();
    let Some((&last, outer)) = dims.split_last() else {
        return;
    };
    if elements.is_empty() {
        return;
    }
    // How far apart in the file neighbours along each axis are. All of it is in memory, so it fits.
    let mut strides = Vec::with_capacity(dims.len());
    let mut stride = 1;
    for &dim in dims {
        strides.push(stride);
        stride *= dim as usize;
    }
    let mut index = vec![0u64; outer.len()];
    let mut start = 0;
    loop {
        let row = elements[start..]
            .iter()
            .step_by(strides[outer.len()])
            .take(last as usize);
        row.for_each(|element| out.extend_from_slice(element));
        // The next row: the last of the outer axes that has one more.
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
    use tensor_core::{DType, Shape};

    use super::*;

    #[test]
    fn columns_become_rows() {
        // 2 x 3 x 2; element (i, j, k) is i + 2j + 6k in the file.
        let spec = TensorSpec::new(DType::U16, Shape::new(&[2, 3, 2]).unwrap()).unwrap();
        let stored: Vec<u8> = (0..12u16).flat_map(u16::to_be_bytes).collect();
        let rows = to_row_major(&stored, &spec, true, true).unwrap();
        let wanted = [0u16, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11];
        assert_eq!(
            rows,
            wanted
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<_>>()
        );
        let empty = TensorSpec::new(DType::U16, Shape::new(&[2, 0, 2]).unwrap()).unwrap();
        assert!(to_row_major(&[], &empty, true, true).unwrap().is_empty());
    }
}
