//! Exact convolution of 8-bit images: sums of products of packed filters with windows that are read in place
//! (implicit im2col).
//!
//! The image is an array of [`Quad`]s, each of four terms. A window at position `p` reads the quads at
//! `p + offset`, for a list of offsets that all positions share, so a vector of adjacent positions is one
//! load.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::int8::{pair_filters, vnni, vnni_filters};
use crate::{
    Pace,
    int8::{
        filter_block::{Block, HEIGHT, LANES, Output, Quad, TERMS, TILE},
        plain_filters,
    },
};

/// The number of multiplications in one step of [`Pace`].
const PER_STEP: usize = 64;

/// The filters of a convolution in 8 bits minus zero points, packed once in the layout in which the kernel
/// reads them.
///
/// ```
/// use onnx_gemm::{IntegerFilters, SumBuffer, SumTile, Unpaced, Windows};
///
/// // One filter, whose window has two adjacent pixels of four channels.
/// let filters = IntegerFilters::new(&[[1, -1, 2, 0], [3, 0, 0, 0]], [1, 1, 2]);
/// let mut image = vec![[10, 20, 30, 40], [50, 60, 70, 80], [90, 10, 10, 10]];
/// image.resize(3 + Windows::slack(), [0; 4]);
/// let windows = Windows { image: &image, offsets: &[0, 1], positions: 2, row_stride: 0, zero_point: 0 };
/// let mut found = vec![];
/// let mut take = |tile: &SumTile<'_>| found.extend_from_slice(tile.row(0));
/// let results = (&mut SumBuffer::default(), &mut take);
/// filters.convolve(0, 0..1, &windows, Some(&[1000]), results, &mut Unpaced).unwrap();
/// assert_eq!(found, [1000 + 50 + 150, 1000 + 130 + 270]);
/// ```
#[derive(Debug)]
pub struct IntegerFilters {
    rows: usize,
    steps: usize,
    /// The number of rows in a block.
    height: usize,
    /// The sum of each row's terms, with the rows of each group padded to whole blocks.
    totals: Vec<i32>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The layout for AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Bytes(vnni::Vnni, vnni_filters::ByteFilters),
    /// The layout for AVX2.
    #[cfg(target_arch = "x86_64")]
    Pairs(pulp::x86::V3, Vec<[i16; TERMS]>),
    /// The layout for all other processors.
    Plain(Vec<[i16; TERMS]>),
}

/// An image, and where the windows are in it.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'w> {
    /// The quads of the image, and [`slack`](Self::slack) quads that are read but not used.
    pub image: &'w [Quad],
    /// For each step of the filters, the distance of its quad from the position.
    pub offsets: &'w [usize],
    /// The number of positions, from 0 on.
    pub positions: usize,
    /// The distance between the images of two adjacent rows; 0 if all rows have the same image.
    pub row_stride: usize,
    /// The number that is subtracted from all terms of the image.
    pub zero_point: u8,
}

impl Windows<'_> {
    /// Returns the number of quads that an image has after the last quad of a window.
    #[must_use]
    pub const fn slack() -> usize {
        LANES - 1
    }
}

/// A buffer for the sums of a tile.
#[derive(Debug)]
pub struct SumBuffer([i32; TILE]);

impl Default for SumBuffer {
    fn default() -> Self {
        Self([0; TILE])
    }
}

/// The sums of a few rows at adjacent positions.
#[derive(Debug)]
pub struct SumTile<'t> {
    sums: &'t [i32],
    stride: usize,
    /// The rows within the group.
    pub rows: Range<usize>,
    /// The positions.
    pub positions: Range<usize>,
}

impl SumTile<'_> {
    /// Returns the sums of row `rows.start + row`.
    ///
    /// # Panics
    /// Panics if there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[i32] {
        &self.vectors(row)[..self.positions.len()]
    }

    /// Returns the sums of row `rows.start + row`, and arbitrary numbers up to the end of the last vector.
    ///
    /// # Panics
    /// Panics if there is no such row.
    #[must_use]
    #[inline(always)]
    pub fn vectors(&self, row: usize) -> &[i32] {
        assert!(row < self.rows.len(), "row {row} of {}", self.rows.len());
        &self.sums[row * self.stride..][..self.positions.len().next_multiple_of(LANES)]
    }
}

impl IntegerFilters {
    /// Packs row-major filters: `rows` filters of `steps` quads for each of `groups` groups.
    ///
    /// # Panics
    /// Panics if the number of quads is not `groups * rows * steps`, or if one of these is 0.
    #[must_use]
    pub fn new(filters: &[[i16; TERMS]], [groups, rows, steps]: [usize; 3]) -> Self {
        Self::of(filters, [groups, rows, steps], Kind::of)
    }

    fn of(
        filters: &[[i16; TERMS]],
        [groups, rows, steps]: [usize; 3],
        kind: impl FnOnce(Vec<[i16; TERMS]>, usize, usize) -> Kind,
    ) -> Self {
        let count = groups.checked_mul(rows).and_then(|all| all.checked_mul(steps));
        assert!(
            count == Some(filters.len()) && count != Some(0),
            "{} quads for {groups} groups of {rows} rows of {steps} steps",
            filters.len()
        );
        let height = rows.next_power_of_two().min(HEIGHT);
        let padded = rows.next_multiple_of(height);
        let mut totals = vec![0i32; groups * padded];
        let mut blocks = vec![[0; TERMS]; groups * padded * steps];
        for (index, filter) in filters.chunks_exact(steps).enumerate() {
            let row = index / rows * padded + index % rows;
            let block = &mut blocks[row / height * height * steps..][..height * steps];
            for (to, from) in block.chunks_exact_mut(height).zip(filter) {
                to[row % height] = *from;
            }
            let terms = filter.as_flattened().iter();
            totals[row] = terms.fold(0, |sum, &term| sum.wrapping_add(term.into()));
        }
        Self {
            rows,
            steps,
            height,
            totals,
            kind: kind(blocks, height, steps),
        }
    }

    /// Returns the bytes that packed filters take: the maximum over all processors.
    #[must_use]
    pub fn bytes([groups, rows, steps]: [usize; 3]) -> u64 {
        let height = rows
            .checked_next_power_of_two()
            .map_or(HEIGHT, |rows| rows.min(HEIGHT));
        let padded = (rows as u64).saturating_add(height as u64 - 1);
        let rows = padded.saturating_mul(groups as u64);
        let of_row = (steps as u64).saturating_mul(8).saturating_add(8);
        rows.saturating_mul(of_row)
    }

    /// Returns the number of rows that are computed together.
    #[must_use]
    pub fn height(&self) -> usize {
        self.height
    }

    /// Computes the sums of `rows` of a group at all positions, and passes tiles of them to `take`, in the order
    /// of the positions. The rows are in one block of [`height`](Self::height) rows. The image of the first of
    /// them begins at the first quad.
    ///
    /// A sum is that of the products of a filter and the image minus its zero point, plus the bias of the row,
    /// modulo 2^32. `bias` has one element for each of `rows`. The contents of the buffer are overwritten.
    ///
    /// # Errors
    /// Returns the error of [`Pace::spend`].
    ///
    /// # Panics
    /// Panics if there are no such rows, if there are not as many offsets as steps, if there are not as many
    /// biases as rows, or if a window is not inside of the image.
    pub fn convolve<P: Pace>(
        &self,
        group: usize,
        rows: Range<usize>,
        windows: &Windows<'_>,
        bias: Option<&[i32]>,
        (SumBuffer(sums), take): (&mut SumBuffer, &mut impl FnMut(&SumTile<'_>)),
        pace: &mut P,
    ) -> Result<(), P::Stopped> {
        let (height, steps, positions) = (self.height, self.steps, windows.positions);
        let padded = self.rows.next_multiple_of(height);
        assert!(
            rows.start / height == rows.end.saturating_sub(1) / height && rows.end <= self.rows,
            "rows {rows:?} are not in one block of {height} of {} rows",
            self.rows
        );
        assert!(
            windows.offsets.len() == steps && bias.is_none_or(|bias| bias.len() == rows.len()),
            "{} offsets and a bias for {steps} steps and {} rows",
            windows.offsets.len(),
            rows.len()
        );
        let row = group * padded + rows.start / height * height;
        let within = rows.start % height..rows.start % height + rows.len();
        let mut first = [0i32; HEIGHT];
        for (index, row) in within.clone().enumerate() {
            let total = self.totals[group * padded + rows.start + index];
            let bias = bias.map_or(0, |bias| bias[index]);
            first[row] = bias.wrapping_sub(total.wrapping_mul(windows.zero_point.into()));
        }
        let stride = TILE / height;
        for position in (0..positions).step_by(stride) {
            let width = stride.min(positions - position);
            pace.spend((rows.len() * width * steps * TERMS / PER_STEP + 1) as u64)?;
            let mut output = Output { sums, stride };
            let mut compute = |within: Range<usize>, start: usize| {
                let part = Part {
                    row,
                    within,
                    windows,
                    start,
                    positions: width.next_multiple_of(LANES),
                    first: &first,
                };
                self.compute(&part, &mut output);
            };
            match windows.row_stride {
                0 => compute(within.clone(), position),
                row_stride => {
                    for (index, row) in within.clone().enumerate() {
                        compute(row..row + 1, index * row_stride + position);
                    }
                }
            }
            take(&SumTile {
                sums: &sums[within.start * stride..],
                stride,
                rows: rows.clone(),
                positions: position..position + width,
            });
        }
        Ok(())
    }

    fn compute(&self, part: &Part<'_>, output: &mut Output<'_>) {
        match &self.kind {
            #[cfg(target_arch = "x86_64")]
            Kind::Bytes(vnni, filters) => {
                let shifts = &filters.shifts[part.row..][..self.height];
                filters.compute(*vnni, &self.block(part, &filters.terms), shifts, output);
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Pairs(simd, filters) => pair_filters::compute(*simd, &self.block(part, filters), output),
            Kind::Plain(filters) => plain_filters::compute(&self.block(part, filters), output),
        }
    }

    fn block<'b, T>(&self, part: &Part<'b>, filters: &'b [[T; TERMS]]) -> Block<'b, T> {
        Block {
            filters: &filters[part.row * self.steps..][..self.height * self.steps],
            height: self.height,
            rows: part.within.clone(),
            offsets: part.windows.offsets,
            image: &part.windows.image[part.start..],
            positions: part.positions,
            first: part.first,
        }
    }
}

/// The part of the sums that one call of a kernel computes.
struct Part<'p> {
    /// The first row of the block among all packed rows.
    row: usize,
    within: Range<usize>,
    windows: &'p Windows<'p>,
    /// Where the first position is in the image.
    start: usize,
    positions: usize,
    first: &'p [i32; HEIGHT],
}

impl Kind {
    fn of(blocks: Vec<[i16; TERMS]>, height: usize, steps: usize) -> Self {
        let made = Self::bytes(&blocks, height, steps).or_else(|| Self::pairs(&blocks));
        made.unwrap_or(Self::Plain(blocks))
    }

    #[cfg(target_arch = "x86_64")]
    fn bytes(blocks: &[[i16; TERMS]], height: usize, steps: usize) -> Option<Self> {
        let vnni = vnni::Vnni::detect()?;
        let filters = vnni_filters::ByteFilters::new(blocks, height, steps)?;
        Some(Self::Bytes(vnni, filters))
    }

    #[cfg(target_arch = "x86_64")]
    fn pairs(blocks: &[[i16; TERMS]]) -> Option<Self> {
        Some(Self::Pairs(
            pulp::x86::V3::try_new()?,
            pair_filters::packed(blocks),
        ))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn bytes(_: &[[i16; TERMS]], _: usize, _: usize) -> Option<Self> {
        None
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn pairs(_: &[[i16; TERMS]]) -> Option<Self> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::{
        Unpaced,
        pace::{Budget, Exhausted},
    };

    /// Returns packed filters in each layout that this processor supports.
    fn packed(filters: &[[i16; TERMS]], sizes: [usize; 3]) -> Vec<IntegerFilters> {
        type Choice = fn(&[[i16; TERMS]], usize, usize) -> Option<Kind>;
        let choices: [Choice; 3] = [
            Kind::bytes,
            |blocks, _, _| Kind::pairs(blocks),
            |blocks, _, _| Some(Kind::Plain(blocks.to_vec())),
        ];
        let all = choices.into_iter().filter_map(|choice| {
            let mut is_supported = true;
            let made = IntegerFilters::of(filters, sizes, |blocks, height, steps| {
                let kind = choice(&blocks, height, steps);
                is_supported = kind.is_some();
                kind.unwrap_or(Kind::Plain(blocks))
            });
            is_supported.then_some(made)
        });
        all.collect()
    }

    /// A sequence of pseudo-random numbers.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) as usize % end
        }

        fn pick<T: Copy>(&mut self, from: &[T]) -> T {
            from[self.below(from.len())]
        }
    }

    /// Returns all sums of a group, row by row.
    fn found(
        filters: &IntegerFilters,
        group: usize,
        windows: &Windows<'_>,
        bias: Option<&[i32]>,
        step: usize,
    ) -> Vec<i32> {
        let positions = windows.positions;
        let mut found = vec![1; filters.rows * positions];
        let (mut start, mut buffer) = (0, SumBuffer::default());
        while start < filters.rows {
            let end = (start / filters.height + 1) * filters.height;
            let rows = start..end.min(filters.rows).min(start + step);
            start = rows.end;
            let bias = bias.map(|bias| &bias[rows.clone()]);
            let windows = &Windows {
                image: &windows.image[rows.start * windows.row_stride..],
                ..*windows
            };
            let mut take = |tile: &SumTile<'_>| {
                for (index, row) in tile.rows.clone().enumerate() {
                    let to = &mut found[row * positions..][tile.positions.clone()];
                    to.copy_from_slice(tile.row(index));
                }
            };
            let all = filters.convolve(group, rows, windows, bias, (&mut buffer, &mut take), &mut Unpaced);
            all.unwrap();
        }
        found
    }

    fn check(random: &mut Random) {
        let groups = 1 + random.below(3);
        let rows = 1 + random.pick(&[0, 1, 2, 3, 6, 7, 8, 12, 20]);
        let (steps, positions) = (
            1 + random.below(12),
            random.pick(&[1, 2, 15, 16, 17, 47, 49, 96, 193, 2000]),
        );
        let zero_point = random.pick(&[0, 1, 128, 255]);
        let zeros: Vec<usize> = (0..groups * rows)
            .map(|_| random.pick(&[0, 3, 127, 128, 129, 255]))
            .collect();
        let is_extreme = random.below(3) == 0;
        let byte = |random: &mut Random| match is_extreme {
            true => random.pick(&[0, 255]),
            false => random.below(256),
        };
        let terms = groups * rows * steps * TERMS;
        let terms = (0..terms).map(|at| byte(random) as i16 - zeros[at / (steps * TERMS)] as i16);
        let filters: Vec<[i16; TERMS]> = terms.collect::<Vec<_>>().as_chunks().0.to_vec();
        let offsets: Vec<usize> = (0..steps).map(|_| random.below(40)).collect();
        let row_stride = random.pick(&[0, 0, 7, 61]);
        let length = (rows - 1) * row_stride + 39 + positions + Windows::slack();
        let image: Vec<Quad> = (0..length)
            .map(|_| [(); TERMS].map(|()| byte(random) as u8))
            .collect();
        let windows = Windows {
            image: &image,
            offsets: &offsets,
            positions,
            row_stride,
            zero_point,
        };
        let bias: Vec<i32> = (0..rows)
            .map(|row| (row as i32 - 2).wrapping_mul(1_000_000_007))
            .collect();
        let bias = (random.below(2) == 0).then_some(&bias[..]);
        let all = packed(&filters, [groups, rows, steps]);
        for one in &all {
            let terms = match &one.kind {
                #[cfg(target_arch = "x86_64")]
                Kind::Bytes(_, filters) => size_of_val(&filters.terms[..]) + size_of_val(&filters.shifts[..]),
                #[cfg(target_arch = "x86_64")]
                Kind::Pairs(_, terms) => size_of_val(&terms[..]),
                Kind::Plain(terms) => size_of_val(&terms[..]),
            };
            let taken = terms + size_of_val(&one.totals[..]);
            assert!(taken as u64 <= IntegerFilters::bytes([groups, rows, steps]));
        }
        let group = random.below(groups);
        let mut expected = vec![0i32; rows * positions];
        for (at, expected) in expected.iter_mut().enumerate() {
            let (row, position) = (at / positions, at % positions);
            let filter = &filters[(group * rows + row) * steps..][..steps];
            let start = row * row_stride + position;
            let quads = offsets.iter().map(|offset| image[start + offset]);
            let terms = filter.as_flattened().iter().zip(quads.flatten());
            *expected = terms.fold(bias.map_or(0, |bias| bias[row]), |sum, (&filter, term)| {
                sum.wrapping_add(i32::from(filter) * (i32::from(term) - i32::from(zero_point)))
            });
        }
        for filters in all {
            for step in [HEIGHT, 1, 3] {
                let found = found(&filters, group, &windows, bias, step);
                let kind = std::mem::discriminant(&filters.kind);
                assert_eq!(
                    found, expected,
                    "{rows} rows of {steps} steps at {positions} by {kind:?}"
                );
            }
        }
    }

    #[test]
    fn sums_are_those_of_plain_loops_on_every_architecture() {
        let mut random = Random(7);
        let count = if cfg!(miri) { 3 } else { 400 };
        (0..count).for_each(|_| check(&mut random));
    }

    /// Checks sums of the largest products: neither pairs nor quads may saturate.
    #[test]
    fn the_largest_products_do_not_saturate() {
        for (filter, image, zero_point) in [(-255, 255, 0), (255, 255, 0), (255, 0, 255), (-255, 0, 255)] {
            let steps = 1000;
            let quads = vec![[image as u8; TERMS]; 1 + Windows::slack()];
            let windows = Windows {
                image: &quads,
                offsets: &vec![0; steps],
                positions: 1,
                row_stride: 0,
                zero_point,
            };
            for filters in packed(&vec![[filter; TERMS]; steps], [1, 1, steps]) {
                let sum = 4000 * i32::from(filter) * (image - i32::from(zero_point));
                assert_eq!(found(&filters, 0, &windows, None, 1), [sum]);
            }
        }
    }

    #[test]
    fn a_convolution_stops_with_its_budget() {
        let filters = IntegerFilters::new(&[[1; TERMS]; 100], [1, 1, 100]);
        let image = vec![[1; TERMS]; 10_000 + Windows::slack()];
        let windows = Windows {
            image: &image,
            offsets: &[0; 100],
            positions: 10_000,
            row_stride: 0,
            zero_point: 0,
        };
        let mut tiles = 0;
        let mut take = |_: &SumTile<'_>| tiles += 1;
        let results = (&mut SumBuffer::default(), &mut take);
        let stopped = filters.convolve(0, 0..1, &windows, None, results, &mut Budget(10_000));
        assert_eq!(stopped, Err(Exhausted));
        assert!(tiles > 0 && tiles < 10);
    }

    #[test]
    #[should_panic(expected = "range")]
    fn windows_outside_of_the_image_are_refused() {
        let filters = IntegerFilters::new(&[[1; TERMS]; 2], [1, 1, 2]);
        let windows = Windows {
            image: &[[1; TERMS]; 16],
            offsets: &[0, 1],
            positions: 16,
            row_stride: 0,
            zero_point: 0,
        };
        let results = (&mut SumBuffer::default(), &mut |_: &SumTile<'_>| {});
        let _ = filters.convolve(0, 0..1, &windows, None, results, &mut Unpaced);
    }
}
