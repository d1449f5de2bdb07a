//! Converts floats between widths: rounds to nearest, ties to even.

use std::sync::atomic::{AtomicU64, Ordering};

use fmt_core::{Error, TENSOR_STREAM_UNIT, TensorStream};
use tensor_core::{DType, DTypeKind, bf16, f16};

/// A conversion between two float dtypes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cast {
    from: DType,
    to: DType,
}

impl Cast {
    /// Creates a conversion; `None` if one of the dtypes is not a float.
    pub(crate) fn new(from: DType, to: DType) -> Option<Self> {
        let are_floats = from.kind() == DTypeKind::Float && to.kind() == DTypeKind::Float;
        are_floats.then_some(Self { from, to })
    }

    /// Converts the elements in `bytes` and appends them to `out`. `bytes` must not end inside an element.
    /// Returns the number of finite elements that became infinite.
    fn append(self, bytes: &[u8], out: &mut Vec<u8>) -> u64 {
        match self.from {
            DType::F64 => each(
                bytes,
                out,
                self.to,
                f64::from_le_bytes,
                |out, to, value: f64| match to {
                    DType::F64 => put(out, value.to_le_bytes(), false),
                    DType::F32 => {
                        let new = value as f32;
                        put(out, new.to_le_bytes(), new.is_infinite() && value.is_finite())
                    }
                    _ => narrow(out, to, to_odd(value), value.is_finite()),
                },
            ),
            DType::F32 => each(bytes, out, self.to, f32::from_le_bytes, from_f32),
            DType::F16 => each(
                bytes,
                out,
                self.to,
                |bytes| f16::from_le_bytes(bytes).to_f32(),
                from_f32,
            ),
            _ => each(
                bytes,
                out,
                self.to,
                |bytes| bf16::from_le_bytes(bytes).to_f32(),
                from_f32,
            ),
        }
    }
}

fn each<const N: usize, T>(
    bytes: &[u8],
    out: &mut Vec<u8>,
    to: DType,
    read: impl Fn([u8; N]) -> T,
    write: impl Fn(&mut Vec<u8>, DType, T) -> bool,
) -> u64 {
    let (elements, _) = bytes.as_chunks::<N>();
    elements
        .iter()
        .map(|element| u64::from(write(out, to, read(*element))))
        .sum()
}

fn put<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N], is_beyond: bool) -> bool {
    out.extend_from_slice(&bytes);
    is_beyond
}

fn from_f32(out: &mut Vec<u8>, to: DType, value: f32) -> bool {
    match to {
        DType::F64 => put(out, f64::from(value).to_le_bytes(), false),
        DType::F32 => put(out, value.to_le_bytes(), false),
        _ => narrow(out, to, value, value.is_finite()),
    }
}

/// Appends `value` as a 16-bit float, `F16` or `BF16`. Returns whether a finite value became infinite.
fn narrow(out: &mut Vec<u8>, to: DType, value: f32, is_finite: bool) -> bool {
    if to == DType::F16 {
        let new = f16::from_f32(value);
        put(out, new.to_le_bytes(), new.is_infinite() && is_finite)
    } else {
        let new = bf16::from_f32(value);
        put(out, new.to_le_bytes(), new.is_infinite() && is_finite)
    }
}

/// Rounds an inexact value to the neighbour with an odd mantissa (round to odd). Rounding the result again,
/// to a precision that is at least two bits lower, gives the same number as rounding `value` once.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if value.is_nan() || f64::from(nearest) == value {
        return nearest;
    }
    let bits = nearest.to_bits();
    // Truncates the value, then makes the mantissa odd. Beyond the range, truncation gives the largest finite
    // number, which is odd.
    let cut = if f64::from(nearest).abs() > value.abs() {
        bits - 1
    } else {
        bits
    };
    f32::from_bits(cut | 1)
}

/// A stream of converted floats.
pub(crate) struct CastStream<'r> {
    inner: Box<dyn TensorStream + 'r>,
    cast: Cast,
    /// Counts finite elements that became infinite.
    beyond: &'r AtomicU64,
    source: Vec<u8>,
    /// Converted bytes that have not been returned yet.
    ready: Vec<u8>,
    at: usize,
}

impl<'r> CastStream<'r> {
    /// Number of source bytes converted per read.
    const PIECE: usize = 64 << 10;

    pub(crate) fn new(inner: Box<dyn TensorStream + 'r>, cast: Cast, beyond: &'r AtomicU64) -> Self {
        Self {
            inner,
            cast,
            beyond,
            source: vec![0; Self::PIECE.next_multiple_of(TENSOR_STREAM_UNIT)],
            ready: Vec::new(),
            at: 0,
        }
    }
}

impl TensorStream for CastStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.ready.len() {
                let read = self.inner.read(&mut self.source)?;
                if read == 0 {
                    break;
                }
                self.at = 0;
                self.ready.clear();
                let beyond = self.cast.append(&self.source[..read], &mut self.ready);
                self.beyond.fetch_add(beyond, Ordering::Relaxed);
            }
            let len = (out.len() - filled).min(self.ready.len() - self.at);
            out[filled..filled + len].copy_from_slice(&self.ready[self.at..self.at + len]);
            self.at += len;
            filled += len;
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use fmt_core::BytesStream;

    use super::*;

    fn cast(from: DType, to: DType, bytes: &[u8]) -> (Vec<u8>, u64) {
        let mut out = Vec::new();
        let beyond = Cast::new(from, to).unwrap().append(bytes, &mut out);
        (out, beyond)
    }

    /// Returns the neighbour closer to `value`, or the even one on a tie. Doubles represent both distances
    /// exactly.
    fn nearest(value: f64, below: f64, below_is_even: bool, above: f64) -> f64 {
        let (down, up) = (value - below, above - value);
        if down < up || (down == up && below_is_even) {
            below
        } else {
            above
        }
    }

    /// Rounds each positive 16-bit float, the midpoint between it and the next one, and the doubles next to
    /// both.
    #[test]
    fn rounding_is_to_the_nearest_and_even() {
        around_all(DType::F16, |bits| f16::from_bits(bits).to_f64(), 0x7bff);
        around_all(DType::BF16, |bits| bf16::from_bits(bits).to_f64(), 0x7f7f);
    }

    fn around_all(to: DType, decode: fn(u16) -> f64, largest: u16) {
        for bits in 0..largest {
            let (below, above) = (decode(bits), decode(bits + 1));
            let middle = below + (above - below) / 2.0;
            let near = [
                middle.next_down(),
                middle,
                middle.next_up(),
                below,
                below.next_up(),
            ];
            for value in near.into_iter().flat_map(|value| [value, -value]) {
                let expected = nearest(value.abs(), below, bits % 2 == 0, above).copysign(value);
                let (out, beyond) = cast(DType::F64, to, &value.to_le_bytes());
                let got = decode(u16::from_le_bytes([out[0], out[1]]) & 0x7fff).copysign(value);
                assert_eq!((got, beyond), (expected, 0), "{value:e} as {to}");
                let single = value as f32;
                let size = f64::from(single.abs());
                if size >= below && size <= above {
                    let expected = nearest(size, below, bits % 2 == 0, above);
                    let (out, _) = cast(DType::F32, to, &single.to_le_bytes());
                    let got = decode(u16::from_le_bytes([out[0], out[1]]) & 0x7fff);
                    assert_eq!(got, expected, "{single:e} as {to}");
                }
            }
        }
    }

    #[test]
    fn numbers_beyond_the_range_are_counted() {
        let values = [
            65519.0f64,
            65520.0,
            -1e300,
            f64::INFINITY,
            f64::NAN,
            3.5e38,
            1e-320,
        ];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (to, beyond) in [
            (DType::F16, 3),
            (DType::BF16, 2),
            (DType::F32, 2),
            (DType::F64, 0),
        ] {
            assert_eq!(cast(DType::F64, to, &bytes).1, beyond, "{to}");
        }
        let (out, _) = cast(DType::F64, DType::F16, &bytes);
        let halves: Vec<f16> = out
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f16::from_le_bytes(*bytes))
            .collect();
        assert_eq!(halves[0].to_f32(), 65504.0);
        assert!(halves[1].is_infinite() && halves[2].is_infinite() && halves[4].is_nan());
    }

    #[test]
    fn what_widens_is_exact() {
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for from in [DType::F16, DType::BF16] {
            for through in [DType::F32, DType::F64] {
                let (wide, _) = cast(from, through, &halves);
                let (back, _) = cast(through, from, &wide);
                let differ = |(a, b): &([u8; 2], [u8; 2])| a != b;
                let (a, b) = (
                    halves.as_chunks().0.iter().copied(),
                    back.as_chunks().0.iter().copied(),
                );
                for (a, b) in a.zip(b).filter(differ) {
                    // NaNs may differ: signalling NaNs become quiet.
                    let is_nan = |bytes: [u8; 2]| match from {
                        DType::F16 => f16::from_le_bytes(bytes).is_nan(),
                        _ => bf16::from_le_bytes(bytes).is_nan(),
                    };
                    assert!(is_nan(a) && is_nan(b), "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn buffers_of_any_size_are_filled() {
        let values: Vec<u8> = (0..100_003u32)
            .flat_map(|value| (value as f32).to_le_bytes())
            .collect();
        for (to, size) in [(DType::BF16, 16), (DType::F64, 48), (DType::F16, 1 << 20)] {
            let beyond = AtomicU64::new(0);
            let inner = Box::new(BytesStream::new(values.clone().into()));
            let mut stream = CastStream::new(inner, Cast::new(DType::F32, to).unwrap(), &beyond);
            let (mut all, mut buffer) = (Vec::new(), vec![0; size]);
            loop {
                let read = stream.read(&mut buffer).unwrap();
                all.extend_from_slice(&buffer[..read]);
                if read < size {
                    break;
                }
            }
            let expected = cast(DType::F32, to, &values);
            drop(stream);
            assert_eq!((all, beyond.into_inner()), expected);
        }
    }
}
