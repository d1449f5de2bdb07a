//! Discrete Fourier transforms of any length, in FP64.
//!
//! Lengths with small prime factors use the Cooley-Tukey algorithm in Stockham order, which needs no
//! permutation. A transform of any other length is computed as a convolution with a chirp (Bluestein's
//! algorithm), by transforms whose length is a power of two.

use std::f64::consts::TAU;

use onnx_tensor::prelude::*;

use onnx_tensor::cancelling::{PART, Pace};

/// A complex number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Complex {
    pub(crate) re: f64,
    pub(crate) im: f64,
}

impl Complex {
    const fn new(re: f64, im: f64) -> Self {
        Self { re, im }
    }

    /// Returns the root of unity at `index` of `count`, clockwise.
    fn root(index: usize, count: usize) -> Self {
        let (sin, cos) = (TAU * (index % count) as f64 / count as f64).sin_cos();
        Self::new(cos, -sin)
    }

    fn conjugate(self) -> Self {
        Self::new(self.re, -self.im)
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self::new(self.re + other.re, self.im + other.im)
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        Self::new(self.re - other.re, self.im - other.im)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Self::new(
            self.re * other.re - self.im * other.im,
            self.re * other.im + self.im * other.re,
        )
    }
}

/// Radices with a direct butterfly.
const RADICES: [usize; 7] = [4, 2, 3, 5, 7, 11, 13];

/// A transform of one length, with its tables and buffers.
pub(crate) struct Transform {
    length: usize,
    is_inverse: bool,
    kind: Kind,
}

enum Kind {
    Factors {
        stages: Vec<Stage>,
        scratch: Vec<Complex>,
    },
    Chirp(Box<Chirp>),
}

/// One stage of the Cooley-Tukey algorithm.
struct Stage {
    radix: usize,
    /// Roots of unity of the radix.
    roots: Vec<Complex>,
    /// Twiddle factors of all butterfly outputs but the first, for each group.
    twiddles: Vec<Complex>,
    groups: usize,
    /// Number of adjacent elements with the same twiddle factors.
    stride: usize,
}

struct Chirp {
    chirp: Vec<Complex>,
    /// Fourier transform of the chirp's conjugate, with which lines are convolved.
    kernel: Vec<Complex>,
    padded: Vec<Complex>,
    transform: Transform,
}

/// Upper bound on the number of complex numbers that a [`Transform`] stores per element of a line.
const TABLES: u64 = 24;

impl Transform {
    /// Returns the bytes that a transform of `length` takes.
    pub(crate) fn bytes(length: usize) -> u64 {
        (length as u64).saturating_mul(TABLES * size_of::<Complex>() as u64)
    }

    /// Prepares a forward transform, or an inverse transform that does not scale by `1 / length`.
    pub(crate) fn new(length: usize, is_inverse: bool, pace: &mut Pace) -> Result<Self> {
        let kind = match factors(length) {
            Some(factors) => Kind::Factors {
                stages: stages(length, &factors, pace)?,
                scratch: vec![Complex::default(); length],
            },
            None => Kind::Chirp(Box::new(Chirp::new(length, pace)?)),
        };
        Ok(Self {
            length,
            is_inverse,
            kind,
        })
    }

    /// Transforms a line of `length` elements in place.
    pub(crate) fn run(&mut self, line: &mut [Complex], pace: &mut Pace) -> Result<()> {
        debug_assert_eq!(line.len(), self.length);
        let conjugate = |line: &mut [Complex]| line.iter_mut().for_each(|x| *x = x.conjugate());
        if self.is_inverse {
            conjugate(line);
        }
        match &mut self.kind {
            Kind::Factors { stages, scratch } => by_factors(stages, line, scratch, pace)?,
            Kind::Chirp(chirp) => chirp.run(line, pace)?,
        }
        if self.is_inverse {
            conjugate(line);
        }
        Ok(())
    }
}

/// Factors the length into [`RADICES`]; `None` if it has another prime factor.
fn factors(mut length: usize) -> Option<Vec<usize>> {
    let mut factors = Vec::new();
    for radix in RADICES {
        while length > 1 && length.is_multiple_of(radix) {
            factors.push(radix);
            length /= radix;
        }
    }
    (length <= 1).then_some(factors)
}

fn stages(length: usize, factors: &[usize], pace: &mut Pace) -> Result<Vec<Stage>> {
    let (mut rest, mut stride) = (length, 1);
    let mut stages = Vec::with_capacity(factors.len());
    for &radix in factors {
        pace.spend(8 * rest as u64)?;
        let groups = rest / radix;
        let of_group = |group: usize| (1..radix).map(move |at| Complex::root(group * at, rest));
        stages.push(Stage {
            radix,
            roots: (0..radix).map(|at| Complex::root(at, radix)).collect(),
            twiddles: (0..groups).flat_map(of_group).collect(),
            groups,
            stride,
        });
        (rest, stride) = (groups, stride * radix);
    }
    Ok(stages)
}

fn by_factors(
    stages: &[Stage],
    line: &mut [Complex],
    scratch: &mut [Complex],
    pace: &mut Pace,
) -> Result<()> {
    let (mut from, mut to) = (&mut *line, &mut *scratch);
    for stage in stages {
        stage.run(from, to, pace)?;
        (from, to) = (to, from);
    }
    // After an odd number of stages the result is in the scratch buffer.
    if !stages.len().is_multiple_of(2) {
        pace.pairs(scratch, line, |from, to| to.copy_from_slice(from))?;
    }
    Ok(())
}

/// Number of butterflies between two calls of [`Pace::spend`].
const TOGETHER: usize = 1 << 10;

impl Stage {
    fn run(&self, from: &[Complex], to: &mut [Complex], pace: &mut Pace) -> Result<()> {
        let (radix, stride) = (self.radix, self.stride);
        let mut terms = [Complex::default(); 13];
        for group in 0..self.groups {
            let twiddles = &self.twiddles[group * (radix - 1)..][..radix - 1];
            for at in 0..stride {
                if at % TOGETHER == 0 {
                    pace.spend((radix * TOGETHER.min(stride - at)) as u64)?;
                }
                let term = |k: usize| from[at + stride * (group + self.groups * k)];
                let terms = &mut terms[..radix];
                match radix {
                    2 => {
                        let (a, b) = (term(0), term(1));
                        terms.copy_from_slice(&[a.plus(b), a.minus(b)]);
                    }
                    4 => {
                        let (a, b, c, d) = (term(0), term(1), term(2), term(3));
                        let (even, odd) = (a.plus(c), b.plus(d));
                        let (other, turned) = (a.minus(c), b.minus(d));
                        // Multiplies the difference by -i.
                        let turned = Complex::new(turned.im, -turned.re);
                        terms.copy_from_slice(&[
                            even.plus(odd),
                            other.plus(turned),
                            even.minus(odd),
                            other.minus(turned),
                        ]);
                    }
                    _ => {
                        for (j, sum) in terms.iter_mut().enumerate() {
                            let products = (1..radix).map(|k| term(k).times(self.roots[j * k % radix]));
                            *sum = products.fold(term(0), Complex::plus);
                        }
                    }
                }
                let to = &mut to[at + stride * radix * group..];
                to[0] = terms[0];
                for (j, (term, twiddle)) in terms[1..].iter().zip(twiddles).enumerate() {
                    to[stride * (j + 1)] = term.times(*twiddle);
                }
            }
        }
        Ok(())
    }
}

impl Chirp {
    fn new(length: usize, pace: &mut Pace) -> Result<Self> {
        // Takes squares modulo the period, so that the angles of the chirp stay exact.
        let period = 2 * length as u64;
        let square = |at: usize| ((at as u64).pow(2) % period) as usize;
        let roots = (0..length).map(|at| Complex::root(square(at), 2 * length));
        let chirp: Vec<Complex> = pace.collect(roots)?;
        let size = (2 * length - 1).next_power_of_two();
        let mut kernel = vec![Complex::default(); size];
        for (first, chirp) in (0..).step_by(PART).zip(chirp.chunks(PART)) {
            pace.spend(2 * chirp.len() as u64)?;
            for (at, root) in (first..).zip(chirp) {
                kernel[at] = root.conjugate();
                kernel[(size - at) % size] = root.conjugate();
            }
        }
        let mut transform = Transform::new(size, false, pace)?;
        transform.run(&mut kernel, pace)?;
        Ok(Self {
            chirp,
            kernel,
            padded: vec![Complex::default(); size],
            transform,
        })
    }

    fn run(&mut self, line: &mut [Complex], pace: &mut Pace) -> Result<()> {
        let padded = &mut self.padded;
        pace.over(padded, |padded| padded.fill(Complex::default()))?;
        let parts = line.chunks(PART).zip(self.chirp.chunks(PART));
        for (padded, (line, chirp)) in padded.chunks_mut(PART).zip(parts) {
            pace.spend(line.len() as u64)?;
            for ((to, x), root) in padded.iter_mut().zip(line).zip(chirp) {
                *to = x.times(*root);
            }
        }
        self.transform.run(padded, pace)?;
        // Computes the inverse transform as a forward transform between two conjugations.
        pace.pairs(&self.kernel, padded, |kernel, padded| {
            for (x, factor) in padded.iter_mut().zip(kernel) {
                *x = x.times(*factor).conjugate();
            }
        })?;
        self.transform.run(padded, pace)?;
        let scale = 1.0 / padded.len() as f64;
        let parts = padded.chunks(PART).zip(self.chirp.chunks(PART));
        for (line, (padded, chirp)) in line.chunks_mut(PART).zip(parts) {
            pace.spend(line.len() as u64)?;
            for ((to, x), root) in line.iter_mut().zip(padded).zip(chirp) {
                let x = x.conjugate().times(*root);
                *to = Complex::new(x.re * scale, x.im * scale);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn line(length: usize) -> Vec<Complex> {
        let number = |at: usize| (at * 67 % 211) as f64 / 100.0 - 1.0;
        (0..length)
            .map(|at| Complex::new(number(at), number(at + 17)))
            .collect()
    }

    fn transformed(length: usize, is_inverse: bool, mut line: Vec<Complex>) -> Vec<Complex> {
        let pace = &mut Pace::default();
        let mut transform = Transform::new(length, is_inverse, pace).unwrap();
        transform.run(&mut line, pace).unwrap();
        line
    }

    fn assert_close(found: &[Complex], wanted: &[Complex], length: usize) {
        for (found, wanted) in found.iter().zip(wanted) {
            let error = (found.re - wanted.re).abs().max((found.im - wanted.im).abs());
            assert!(
                error < 1e-11 * length as f64,
                "{found:?} and {wanted:?} of {length}"
            );
        }
    }

    #[test]
    fn transforms_are_sums_of_turned_numbers() {
        for length in (1..=40).chain([64, 97, 100, 143, 400, 408, 512, 1009]) {
            let line = line(length);
            let sum = |bin: usize| {
                let terms = line.iter().enumerate();
                let terms = terms.map(|(at, x)| x.times(Complex::root(at * bin % length, length)));
                terms.fold(Complex::default(), Complex::plus)
            };
            let wanted: Vec<Complex> = (0..length).map(sum).collect();
            let found = transformed(length, false, line.clone());
            assert_close(&found, &wanted, length);
            let back = transformed(length, true, found);
            let scaled = line
                .iter()
                .map(|x| Complex::new(x.re * length as f64, x.im * length as f64));
            assert_close(&back, &scaled.collect::<Vec<_>>(), length);
        }
    }

    #[test]
    fn tables_take_no_more_than_what_is_asked_for() {
        for length in [1, 2, 17, 257, 1021, 1024, 1031] {
            let size = match factors(length) {
                Some(_) => length,
                None => (2 * length - 1).next_power_of_two(),
            };
            // The twiddle factors of all stages take less than `2 * size` elements. A chirp transform stores
            // the chirp, its kernel and the padded line in addition to the scratch buffer.
            let taken = 3 * size + if size == length { 0 } else { length + 2 * size };
            assert!(taken as u64 <= TABLES * length as u64, "{length}");
        }
    }
}
