//! Copies a matrix into the groups of columns that products read.

use crate::microkernel::GROUP;

/// The memory order of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The elements of a row are contiguous.
    RowMajor,
    /// The elements of a column are contiguous: the input is the transpose in row-major order.
    ColumnMajor,
}

/// Copies a matrix into groups of [`GROUP`] columns, each row-major. The last group is padded with zeros.
pub(crate) struct PackGroups<'p> {
    pub(crate) matrix: &'p [f32],
    pub(crate) depth: usize,
    pub(crate) columns: usize,
    pub(crate) order: Order,
    /// As many elements as all groups have.
    pub(crate) groups: &'p mut [f32],
}

impl pulp::WithSimd for PackGroups<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Self {
            matrix,
            depth,
            columns,
            order,
            groups,
        } = self;
        if depth == 0 {
            return;
        }
        let firsts = (0..columns).step_by(GROUP);
        for (first, group) in firsts.zip(groups.chunks_exact_mut(GROUP * depth)) {
            let (lines, _) = group.as_chunks_mut::<GROUP>();
            let used = GROUP.min(columns - first);
            match (order, used) {
                (Order::RowMajor, GROUP) => {
                    for (to, line) in lines.iter_mut().zip(matrix.chunks_exact(columns)) {
                        if let Some(line) = line[first..].first_chunk::<GROUP>() {
                            *to = *line;
                        }
                    }
                }
                (Order::RowMajor, _) => {
                    for (to, line) in lines.iter_mut().zip(matrix.chunks_exact(columns)) {
                        to[..used].copy_from_slice(&line[first..][..used]);
                        to[used..].fill(0.0);
                    }
                }
                (Order::ColumnMajor, GROUP) => {
                    let columns: [&[f32]; GROUP] =
                        std::array::from_fn(|column| &matrix[(first + column) * depth..][..depth]);
                    for (term, to) in lines[..depth].iter_mut().enumerate() {
                        *to = columns.map(|column| column[term]);
                    }
                }
                (Order::ColumnMajor, _) => {
                    lines.iter_mut().for_each(|to| to[used..].fill(0.0));
                    let columns = matrix[first * depth..].chunks_exact(depth).take(used);
                    for (at, column) in columns.enumerate() {
                        lines
                            .iter_mut()
                            .zip(column)
                            .for_each(|(to, number)| to[at] = *number);
                    }
                }
            }
        }
    }
}
