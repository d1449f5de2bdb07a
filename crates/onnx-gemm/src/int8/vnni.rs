//! Integer products by AVX-512 VNNI's `vpdpbusd`, which adds four products of a `u8` and an `i8` to an `i32`.
//!
//! Elements are `i16`, because 8-bit numbers minus a zero point have 9 bits. All elements in a row of the
//! first factor share one zero point, and so do all elements in a column of the second factor. A shift per
//! row and column therefore reduces the elements to 8 bits again. The sums of rows and columns correct the
//! product for the shifts, so the result is exact modulo 2^32.
#![allow(
    unsafe_code,
    reason = "a function for a target feature is called once the feature is detected"
)]

use std::{
    arch::x86_64::{
        __m512i, _mm512_add_epi32, _mm512_dpbusd_epi32, _mm512_mullo_epi32, _mm512_set1_epi32,
        _mm512_setzero_si512,
    },
    ops::Range,
};

use crate::Pace;

/// The number of columns in a vector, one per 32-bit lane.
const LANES: usize = 16;

/// The number of vectors in a panel.
const VECTORS: usize = 3;

/// The column count of a panel.
const COLUMNS: usize = VECTORS * LANES;

/// The row count of a tile. With 3 vectors per row, 24 of the 32 registers hold sums.
const ROWS: usize = 8;

/// The number of terms that one instruction adds to a lane.
const TERMS: usize = 4;

/// The number of bytes of the first factor that are converted to 8 bits at once. The converted bytes stay in
/// the L2 cache for all panels.
const PART: usize = 1 << 18;

/// The number of multiplications in one step of [`Pace`].
const PER_STEP: u64 = 64;

/// A token that proves that the processor supports AVX-512 VNNI.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vnni(());

impl Vnni {
    pub(super) fn detect() -> Option<Self> {
        let has_all = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("avx512vnni");
        has_all.then_some(Self(()))
    }

    /// Writes the product of all `rows` with `panel` to `c`.
    fn multiply_panel(self, rows: &Rows, panel: &Panel<'_>, c: &mut [i32]) {
        // SAFETY: a `Vnni` is created only after these features were detected.
        unsafe { multiply_panel(rows, panel, c) }
    }
}

/// Four terms of each of 16 columns. The terms of a column are adjacent.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Vector([[i8; TERMS]; LANES]);

/// A right-hand matrix in panels of at most 48 columns. Within a panel, groups of four rows follow each
/// other.
#[derive(Debug)]
pub(super) struct PackedBytes {
    vectors: Vec<Vector>,
    /// The value subtracted from the elements of each column.
    shifts: Vec<i32>,
    /// The sum of the shifted elements of each column.
    sums: Vec<i32>,
    depth: usize,
    columns: usize,
}

impl PackedBytes {
    /// Packs the row-major `matrix`. Returns `None` if the elements of a column span more than 8 bits.
    pub(super) fn new(matrix: &[i16], depth: usize, columns: usize) -> Option<Self> {
        let (mut least, mut greatest) = (vec![i16::MAX; columns], vec![i16::MIN; columns]);
        for row in matrix.chunks_exact(columns.max(1)) {
            for ((least, greatest), &number) in least.iter_mut().zip(&mut greatest).zip(row) {
                *least = number.min(*least);
                *greatest = number.max(*greatest);
            }
        }
        let mut shifts = vec![0; columns.next_multiple_of(LANES)];
        for ((shift, &least), &greatest) in shifts.iter_mut().zip(&least).zip(&greatest) {
            let (least, greatest) = (i32::from(least), i32::from(greatest));
            if least < i8::MIN.into() || greatest > i8::MAX.into() {
                *shift = greatest - i32::from(i8::MAX);
            }
            if least - *shift < i8::MIN.into() {
                return None;
            }
        }
        let mut packed = Self {
            vectors: vec![Vector([[0; TERMS]; LANES]); depth.div_ceil(TERMS) * columns.div_ceil(LANES)],
            sums: vec![0; shifts.len()],
            shifts,
            depth,
            columns,
        };
        if depth > 0 {
            pulp::Arch::new().dispatch(Fill {
                packed: &mut packed,
                matrix,
            });
        }
        Some(packed)
    }

    /// Returns the size of the matrix in memory, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.vectors[..]) + size_of_val(&self.shifts[..]) + size_of_val(&self.sums[..])
    }

    /// Writes the product of the rows of `a` and this matrix. Neither the depth nor the column count may be
    /// 0.
    pub(super) fn multiply<P: Pace>(
        &self,
        vnni: Vnni,
        a: &[i16],
        part: Range<usize>,
        c: &mut [i32],
        pace: &mut P,
    ) -> Result<(), P::Stopped> {
        let (depth, columns) = (self.depth, part.len());
        let rows = (PART / depth).next_multiple_of(ROWS).max(ROWS);
        let mut bytes = Rows::default();
        for (a, c) in a.chunks(rows * depth).zip(c.chunks_mut(rows * columns)) {
            pace.spend(a.len() as u64 / PER_STEP + 1)?;
            bytes.shift(a, depth);
            for first in part.clone().step_by(COLUMNS) {
                let panel = self.panel(first, &part);
                pace.spend((a.len() * COLUMNS) as u64 / PER_STEP + 1)?;
                vnni.multiply_panel(&bytes, &panel, c);
            }
            for (row, a) in a.chunks_exact(depth).enumerate() {
                if bytes.is_wide[row] {
                    pace.spend((depth * columns) as u64)?;
                    self.multiply_wide(a, &part, &mut c[row * columns..][..columns]);
                }
            }
        }
        Ok(())
    }

    /// Returns the panel that begins at column `first`, for a product of the columns `part`.
    fn panel(&self, first: usize, part: &Range<usize>) -> Panel<'_> {
        let groups = self.depth.div_ceil(TERMS);
        let count = VECTORS.min((self.columns - first).div_ceil(LANES));
        Panel {
            vectors: &self.vectors[first / LANES * groups..][..count * groups],
            count,
            shifts: &self.shifts[first..][..count * LANES],
            sums: &self.sums[first..][..count * LANES],
            first: first - part.start,
            columns: part.len(),
        }
    }

    /// Writes the product of one row whose elements span more than 8 bits.
    fn multiply_wide(&self, a: &[i16], part: &Range<usize>, c: &mut [i32]) {
        for (column, c) in part.clone().zip(c) {
            let panel = self.panel(column / COLUMNS * COLUMNS, part);
            let at = column % COLUMNS;
            let vectors = panel.vectors.chunks_exact(panel.count);
            let elements = vectors.flat_map(|vectors| vectors[at / LANES].0[at % LANES]);
            *c = a.iter().zip(elements).fold(0, |sum: i32, (&a, element)| {
                sum.wrapping_add(i32::from(a).wrapping_mul(i32::from(element) + panel.shifts[at]))
            });
        }
    }
}

/// Writes the elements of a matrix, shifted to 8 bits, to the vectors of a packed one.
struct Fill<'f> {
    packed: &'f mut PackedBytes,
    matrix: &'f [i16],
}

impl pulp::WithSimd for Fill<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "the loops are vectorised only where every index is a constant"
    )]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let PackedBytes {
            vectors,
            shifts,
            sums,
            depth,
            columns,
        } = self.packed;
        let (depth, columns) = (*depth, *columns);
        let groups = depth.div_ceil(TERMS);
        let lines = shifts
            .as_chunks::<LANES>()
            .0
            .iter()
            .zip(sums.as_chunks_mut::<LANES>().0);
        for (at, (shifts, sums)) in lines.enumerate() {
            let first = at * LANES;
            let width = LANES.min(columns - first);
            let shifts = shifts.map(|shift| shift as i16);
            // Within a panel, the vectors of the first group of terms come first, then those of the second
            // group, and so on.
            let panel = at / VECTORS * VECTORS;
            let count = VECTORS.min(columns.div_ceil(LANES) - panel);
            let vectors = vectors[panel * groups + at - panel..].iter_mut().step_by(count);
            for (group, vector) in vectors.take(groups).enumerate() {
                // Padding elements are 0 after the shift.
                let mut elements = [shifts; TERMS];
                for (term, elements) in (group * TERMS..depth).zip(&mut elements) {
                    let row = &self.matrix[term * columns + first..][..width];
                    match row.first_chunk() {
                        Some(row) => *elements = *row,
                        None => elements[..width].copy_from_slice(row),
                    }
                }
                for lane in 0..LANES {
                    for term in 0..TERMS {
                        let shifted = elements[term][lane].wrapping_sub(shifts[lane]) as i8;
                        vector.0[lane][term] = shifted;
                        sums[lane] = sums[lane].wrapping_add(shifted.into());
                    }
                }
            }
        }
    }
}

/// A panel of columns of a right-hand matrix.
struct Panel<'p> {
    vectors: &'p [Vector],
    /// The number of vectors per group of terms.
    count: usize,
    /// The shift of each column; see [`PackedBytes`].
    shifts: &'p [i32],
    sums: &'p [i32],
    /// The first column, and the column count of the matrix.
    first: usize,
    columns: usize,
}

/// Rows of a left-hand matrix, converted to 8 bits.
#[derive(Default)]
struct Rows {
    /// The elements in row-major order, in groups of four terms. The last group of a row is padded with
    /// zeros.
    bytes: Vec<[u8; TERMS]>,
    /// The number of groups per row.
    groups: usize,
    /// The value subtracted from the elements of each row.
    shifts: Vec<i32>,
    /// The sum of each row's elements, for correcting the product by the shifts of the columns.
    sums: Vec<i32>,
    /// For each row, whether its elements span more than 8 bits. The `bytes` of such a row are meaningless.
    is_wide: Vec<bool>,
}

impl Rows {
    /// Replaces the rows with those of `a`, converted to 8 bits.
    fn shift(&mut self, a: &[i16], depth: usize) {
        let rows = a.len() / depth;
        self.groups = depth.div_ceil(TERMS);
        self.bytes.clear();
        self.bytes.resize(rows * self.groups, [0; TERMS]);
        self.shifts.clear();
        self.sums.clear();
        self.is_wide.clear();
        pulp::Arch::new().dispatch(Shift { rows: self, a, depth });
    }
}

struct Shift<'s> {
    rows: &'s mut Rows,
    a: &'s [i16],
    depth: usize,
}

impl pulp::WithSimd for Shift<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let lines = self.rows.bytes.chunks_exact_mut(self.rows.groups);
        for (a, bytes) in self.a.chunks_exact(self.depth).zip(lines) {
            let least = a.iter().fold(i16::MAX, |least, &number| number.min(least));
            let greatest = a.iter().fold(i16::MIN, |greatest, &number| number.max(greatest));
            let is_plain = least >= 0 && greatest <= u8::MAX.into();
            let shift = if is_plain { 0 } else { least };
            let bytes = bytes.as_flattened_mut();
            let mut sum = 0i32;
            for (byte, &number) in bytes.iter_mut().zip(a) {
                *byte = number.wrapping_sub(shift) as u8;
                sum = sum.wrapping_add(number.into());
            }
            self.rows.shifts.push(shift.into());
            self.rows.sums.push(sum);
            let width = i32::from(greatest) - i32::from(least);
            self.rows.is_wide.push(width > u8::MAX.into());
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn multiply_panel(rows: &Rows, panel: &Panel<'_>, c: &mut [i32]) {
    match panel.count {
        1 => multiply_rows::<1>(rows, panel, c),
        2 => multiply_rows::<2>(rows, panel, c),
        _ => multiply_rows::<VECTORS>(rows, panel, c),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn multiply_rows<const COUNT: usize>(rows: &Rows, panel: &Panel<'_>, c: &mut [i32]) {
    let (vectors, _) = panel.vectors.as_chunks::<COUNT>();
    let (count, mut row) = (rows.shifts.len(), 0);
    while row < count {
        match count - row {
            1 => row = multiply_tile::<1, COUNT>(rows, row, vectors, panel, c),
            2..4 => row = multiply_tile::<2, COUNT>(rows, row, vectors, panel, c),
            4..ROWS => row = multiply_tile::<4, COUNT>(rows, row, vectors, panel, c),
            _ => row = multiply_tile::<ROWS, COUNT>(rows, row, vectors, panel, c),
        }
    }
}

/// Writes the product of up to [`ROWS`] rows and one panel. Returns the index of the next row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[allow(
    clippy::needless_range_loop,
    reason = "the sums stay in registers only where every index is a constant"
)]
fn multiply_tile<const HEIGHT: usize, const COUNT: usize>(
    rows: &Rows,
    first: usize,
    vectors: &[[Vector; COUNT]],
    panel: &Panel<'_>,
    c: &mut [i32],
) -> usize {
    let groups = vectors.len();
    let mut lines: [&[[u8; TERMS]]; HEIGHT] = [&[]; HEIGHT];
    for row in 0..HEIGHT {
        lines[row] = &rows.bytes[(first + row) * groups..][..groups];
    }
    let mut registers: [[__m512i; COUNT]; HEIGHT] = [[_mm512_setzero_si512(); COUNT]; HEIGHT];
    for group in 0..groups {
        let mut elements = [_mm512_setzero_si512(); COUNT];
        for vector in 0..COUNT {
            elements[vector] = pulp::cast(vectors[group][vector].0);
        }
        for row in 0..HEIGHT {
            let factor = _mm512_set1_epi32(i32::from_le_bytes(lines[row][group]));
            for vector in 0..COUNT {
                registers[row][vector] =
                    _mm512_dpbusd_epi32(registers[row][vector], factor, elements[vector]);
            }
        }
    }
    let (shifts, sums) = (
        panel.shifts.as_chunks::<LANES>().0,
        panel.sums.as_chunks::<LANES>().0,
    );
    for row in 0..HEIGHT {
        let shift = _mm512_set1_epi32(rows.shifts[first + row]);
        let sum = _mm512_set1_epi32(rows.sums[first + row]);
        let c = &mut c[(first + row) * panel.columns + panel.first..];
        for vector in 0..COUNT {
            // The result is the sum of (a + row shift) * (b + column shift), with the converted elements a
            // and b.
            let of_row = _mm512_mullo_epi32(shift, pulp::cast(sums[vector]));
            let of_columns = _mm512_mullo_epi32(sum, pulp::cast(shifts[vector]));
            let corrections = _mm512_add_epi32(of_row, of_columns);
            let found: [i32; LANES] = pulp::cast(_mm512_add_epi32(registers[row][vector], corrections));
            let column = vector * LANES;
            let width = LANES.min(panel.columns - panel.first - column);
            match c[column..].first_chunk_mut() {
                Some(c) if width == LANES => *c = found,
                _ => c[column..][..width].copy_from_slice(&found[..width]),
            }
        }
    }
    first + HEIGHT
}
