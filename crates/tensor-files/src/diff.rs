use std::{collections::BTreeMap, fmt};

use fmt_core::{Error, ErrorKind, Layout, TensorReader, TensorStream};
use tensor_core::{DType, DTypeKind, Quoted, bf16, f16};

/// How far numbers may be apart and count as the same: `|a - b| <= absolute + relative * |b|`. By default they must be the
/// same bytes.
///
/// ```
/// let tolerance = tensor_files::Tolerance { absolute: 1e-6, relative: 1e-3 };
/// assert_ne!(tolerance, Default::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerance {
    /// In units of the elements.
    pub absolute: f64,
    /// As a part of the second file's element.
    pub relative: f64,
}

/// Where two files differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The tensor's name, or the metadata's key.
    pub name: String,
    /// In what.
    pub kind: DifferenceKind,
}

/// In what two files differ.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DifferenceKind {
    /// Only the first has such a tensor.
    OnlyInFirst,
    /// Only the second has such a tensor.
    OnlyInSecond,
    /// Dtype, shape or layout.
    Form {
        /// Of the first.
        first: String,
        /// Of the second.
        second: String,
    },
    /// Some elements.
    Values {
        /// How many.
        elements: u64,
        /// The farthest that two numbers are apart; NaN where one is NaN and the other is not. 0 where only bits differ:
        /// the signs of zeros, the kinds of NaN.
        farthest: f64,
    },
    /// A value of the metadata.
    Metadata,
    /// Which entries of a sparse tensor are stored, or what they are.
    Entries,
    /// One of the two cannot be read.
    Unreadable(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Quoted(&self.name);
        match &self.kind {
            DifferenceKind::OnlyInFirst => write!(f, "tensor {name} is only in the first file"),
            DifferenceKind::OnlyInSecond => write!(f, "tensor {name} is only in the second file"),
            DifferenceKind::Form { first, second } => write!(f, "tensor {name} is {first} and {second}"),
            DifferenceKind::Values { elements, farthest } => {
                let plural = if *elements == 1 { "element" } else { "elements" };
                write!(f, "tensor {name} differs in {elements} {plural}, ")?;
                match *farthest {
                    0.0 => f.write_str("in bits only: signs of zeros, kinds of NaN"),
                    far if far.is_nan() => f.write_str("not all of them numbers"),
                    // Without the digits of what is very small or very large.
                    far => write!(f, "at most by {far:?}"),
                }
            }
            DifferenceKind::Metadata => write!(f, "the metadata {name} differs"),
            DifferenceKind::Entries => write!(f, "tensor {name} has other entries"),
            DifferenceKind::Unreadable(why) => write!(f, "tensor {name} cannot be compared: {why}"),
        }
    }
}

/// Compares two files by name and content, whatever their formats are. What is stored differently but is the same is no
/// difference: order of tensors, compression, byte order.
#[must_use]
pub fn diff(first: &dyn TensorReader, second: &dyn TensorReader, tolerance: Tolerance) -> Vec<Difference> {
    let numbered = |reader: &dyn TensorReader| -> BTreeMap<String, usize> {
        let entries = reader.entries().iter().enumerate();
        entries
            .map(|(index, entry)| (entry.name.clone(), index))
            .collect()
    };
    let (firsts, mut seconds) = (numbered(first), numbered(second));
    let mut differences = Vec::new();
    for (name, index) in firsts {
        let kind = match seconds.remove(&name) {
            None => Some(DifferenceKind::OnlyInFirst),
            Some(other) => compare(first, index, second, other, tolerance),
        };
        differences.extend(kind.map(|kind| Difference { name, kind }));
    }
    let only_in_second = seconds.into_keys().map(|name| Difference {
        name,
        kind: DifferenceKind::OnlyInSecond,
    });
    differences.extend(only_in_second);
    let keys = first.metadata().keys().chain(second.metadata().keys());
    let mut keys: Vec<&String> = keys
        .filter(|key| first.metadata().get(*key) != second.metadata().get(*key))
        .collect();
    keys.sort();
    keys.dedup();
    differences.extend(keys.into_iter().map(|key| Difference {
        name: key.clone(),
        kind: DifferenceKind::Metadata,
    }));
    differences
}

fn compare(
    first: &dyn TensorReader,
    index: usize,
    second: &dyn TensorReader,
    other: usize,
    tolerance: Tolerance,
) -> Option<DifferenceKind> {
    let (a, b) = (&first.entries()[index], &second.entries()[other]);
    let form = |entry: &fmt_core::Entry| match &entry.layout {
        Layout::Dense => format!("{}{}", entry.dtype, entry.shape),
        Layout::Coo { .. } => format!("sparse {}{}", entry.dtype, entry.shape),
        other => format!("{}{} of layout {other:?}", entry.dtype, entry.shape),
    };
    if form(a) != form(b) {
        return Some(DifferenceKind::Form {
            first: form(a),
            second: form(b),
        });
    }
    let unreadable = |error: Error| Some(DifferenceKind::Unreadable(error.to_string()));
    if let Layout::Coo { .. } = a.layout {
        return match (first.sparse(index), second.sparse(other)) {
            (Ok(a), Ok(b)) if a == b || matches!((a.sorted(), b.sorted()), (Ok(a), Ok(b)) if a == b) => None,
            (Ok(_), Ok(_)) => Some(DifferenceKind::Entries),
            (Err(error), _) | (_, Err(error)) => unreadable(error),
        };
    }
    match (first.stream(index), second.stream(other)) {
        (Ok(mut x), Ok(mut y)) => match compare_streams(&mut *x, &mut *y, a.dtype.known(), tolerance) {
            Ok(found) => found,
            Err(error) => unreadable(error),
        },
        (Err(error), _) | (_, Err(error)) => unreadable(error),
    }
}

/// Compares two tensors of the same dtype and shape, a part at a time.
fn compare_streams(
    first: &mut dyn TensorStream,
    second: &mut dyn TensorStream,
    dtype: Option<DType>,
    tolerance: Tolerance,
) -> Result<Option<DifferenceKind>, Error> {
    /// A multiple of every element's size.
    const PART: usize = 256 << 10;
    let (mut a, mut b) = (vec![0; PART], vec![0; PART]);
    let mut found = Found::default();
    loop {
        let len = first.read(&mut a)?;
        if second.read(&mut b)? != len {
            let what = "the two have the same shape and another number of bytes";
            return Err(Error::new(ErrorKind::SizeMismatch, what));
        }
        if len == 0 {
            break;
        }
        if a[..len] != b[..len] {
            found.compare(&a[..len], &b[..len], dtype, tolerance);
        }
    }
    Ok((found.elements > 0).then_some(DifferenceKind::Values {
        elements: found.elements,
        farthest: found.farthest,
    }))
}

/// Differences between elements.
#[derive(Default)]
struct Found {
    elements: u64,
    farthest: f64,
}

/// How far two elements are apart that are not the same bytes.
enum Apart {
    /// So far; integers of 64 bits are subtracted before the difference is rounded.
    By(f64),
    /// Not at all: two zeros of different sign, two NaNs.
    InBits,
    /// There is no telling.
    Unknown,
}

impl Found {
    fn compare(&mut self, a: &[u8], b: &[u8], dtype: Option<DType>, tolerance: Tolerance) {
        let Some(dtype) = dtype else {
            // Bytes without a meaning.
            self.elements += a.iter().zip(b).filter(|(x, y)| x != y).count() as u64;
            self.farthest = f64::NAN;
            return;
        };
        let width = dtype.size();
        for (x, y) in a.chunks_exact(width).zip(b.chunks_exact(width)) {
            if x == y {
                continue;
            }
            let (apart, size) = apart(dtype, x, y);
            let is_exact = tolerance == Tolerance::default();
            let is_close = match apart {
                Apart::InBits => !is_exact,
                // No infinity is near anything but itself.
                Apart::By(apart) => {
                    apart.is_finite() && apart <= tolerance.absolute + tolerance.relative * size
                }
                Apart::Unknown => false,
            };
            if !is_exact && is_close {
                continue;
            }
            self.elements += 1;
            self.farthest = match apart {
                Apart::InBits => self.farthest,
                Apart::By(apart) if !self.farthest.is_nan() => self.farthest.max(apart),
                _ => f64::NAN,
            };
        }
    }
}

/// How far two elements are apart, and how large the second is.
fn apart(dtype: DType, x: &[u8], y: &[u8]) -> (Apart, f64) {
    fn word(bytes: &[u8]) -> u64 {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }
    let integer = |bytes: &[u8]| match dtype.kind() {
        DTypeKind::Signed => {
            let unused = 64 - 8 * bytes.len() as u32;
            Some(i128::from((word(bytes) << unused) as i64 >> unused))
        }
        // Not as bools: a byte of 2 is a difference from a byte of 1.
        DTypeKind::Unsigned | DTypeKind::Bool => Some(i128::from(word(bytes))),
        _ => None,
    };
    if let (Some(x), Some(y)) = (integer(x), integer(y)) {
        return (Apart::By((x - y).unsigned_abs() as f64), y.unsigned_abs() as f64);
    }
    let float = |bytes: &[u8]| match dtype {
        DType::F16 => f16::from_bits(word(bytes) as u16).to_f64(),
        DType::BF16 => bf16::from_bits(word(bytes) as u16).to_f64(),
        DType::F32 => f32::from_bits(word(bytes) as u32).into(),
        _ => f64::from_bits(word(bytes)),
    };
    let (x, y) = (float(x), float(y));
    let apart = if x == y || (x.is_nan() && y.is_nan()) {
        Apart::InBits
    } else if x.is_nan() || y.is_nan() {
        Apart::Unknown
    } else {
        Apart::By((x - y).abs())
    };
    (apart, y.abs())
}
