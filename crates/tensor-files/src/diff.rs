//! Compares two files by tensor name and content.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use fmt_core::{Error, ErrorKind, Layout, Metadata, TensorReader, TensorStream};
use tensor_core::{DType, DTypeKind, QuotedName, bf16, f16};

use crate::distance::{Distance, Sums};

/// Tolerance for comparing numbers: `|a - b| <= absolute + relative * |b|`. By default the bytes must be
/// equal.
///
/// ```
/// let tolerance = tensor_files::Tolerance { absolute: 1e-6, relative: 1e-3 };
/// assert_ne!(tolerance, Default::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerance {
    /// The absolute tolerance, in units of the elements.
    pub absolute: f64,
    /// The tolerance relative to the second file's element.
    pub relative: f64,
}

/// A difference between two files.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The tensor's name or the metadata key.
    pub name: String,
    /// The kind of difference.
    pub kind: DifferenceKind,
}

/// The kinds of differences between two files.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DifferenceKind {
    /// Only the first file has this tensor.
    OnlyInFirst,
    /// Only the second file has this tensor.
    OnlyInSecond,
    /// Dtype, shape or layout differ.
    Form {
        /// Dtype, shape and layout in the first file.
        first: String,
        /// Dtype, shape and layout in the second file.
        second: String,
    },
    /// Some elements differ.
    Values {
        /// Number of different elements.
        elements: u64,
        /// Maximum absolute difference; NaN if one element is NaN and the other is not. 0 if only bits
        /// differ: signs of zeros, NaN payloads.
        farthest: f64,
        /// The distance between the tensors as vectors; `None` if elements are not numeric or not finite.
        distance: Option<Distance>,
    },
    /// The values of a metadata key differ.
    Metadata,
    /// The tensor's attributes with this key differ.
    Attribute(String),
    /// The stored entries of a sparse tensor differ, in coordinates or values.
    Entries,
    /// One of the two tensors cannot be read.
    Unreadable(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = QuotedName(&self.name);
        match &self.kind {
            DifferenceKind::OnlyInFirst => write!(f, "tensor {name} is only in the first file"),
            DifferenceKind::OnlyInSecond => write!(f, "tensor {name} is only in the second file"),
            DifferenceKind::Form { first, second } => write!(f, "tensor {name} is {first} and {second}"),
            DifferenceKind::Values {
                elements,
                farthest,
                distance,
            } => {
                let plural = if *elements == 1 { "element" } else { "elements" };
                write!(f, "tensor {name} differs in {elements} {plural}, ")?;
                match *farthest {
                    0.0 => f.write_str("in bits only: signs of zeros, kinds of NaN"),
                    far if far.is_nan() => f.write_str("not all of them numbers"),
                    // Prints very small and very large numbers with an exponent instead of many digits.
                    far => write!(f, "at most by {far:?}"),
                }?;
                match distance {
                    Some(distance) if *farthest != 0.0 => write!(f, ", {distance}"),
                    _ => Ok(()),
                }
            }
            DifferenceKind::Attribute(key) => {
                write!(f, "the attribute {} of tensor {name} differs", QuotedName(key))
            }
            DifferenceKind::Metadata => write!(f, "the metadata {name} differs"),
            DifferenceKind::Entries => write!(f, "tensor {name} has other entries"),
            DifferenceKind::Unreadable(why) => write!(f, "tensor {name} cannot be compared: {why}"),
        }
    }
}

/// Compares two files by name and content, whatever their formats. Differences in storage are ignored, such
/// as the order of tensors, compression and byte order. Tensors with duplicate names, which lenient readers
/// accept, are compared in order.
#[must_use]
pub fn diff(first: &dyn TensorReader, second: &dyn TensorReader, tolerance: Tolerance) -> Vec<Difference> {
    let (firsts, mut seconds) = (by_name(first), by_name(second));
    let mut differences = Vec::new();
    for ((name, occurrence), index) in firsts {
        let mut found = |kind| {
            let name = name.to_owned();
            differences.push(Difference { name, kind });
        };
        let Some(other) = seconds.remove(&(name, occurrence)) else {
            found(DifferenceKind::OnlyInFirst);
            continue;
        };
        compare(first, index, second, other, tolerance).map(&mut found);
        let (a, b) = (
            &first.entries()[index].attributes,
            &second.entries()[other].attributes,
        );
        if !(a.is_empty() && b.is_empty()) {
            let keys = different_keys(&a.to_map(), &b.to_map());
            keys.into_iter()
                .map(DifferenceKind::Attribute)
                .for_each(&mut found);
        }
    }
    let only_in_second = seconds.into_keys().map(|(name, _)| Difference {
        name: name.to_owned(),
        kind: DifferenceKind::OnlyInSecond,
    });
    differences.extend(only_in_second);
    let keys = different_keys(first.metadata(), second.metadata());
    differences.extend(keys.into_iter().map(|name| Difference {
        name,
        kind: DifferenceKind::Metadata,
    }));
    differences
}

/// Indexes tensors by name and by the number of earlier tensors with that name.
fn by_name(reader: &dyn TensorReader) -> BTreeMap<(&str, usize), usize> {
    let mut numbered = BTreeMap::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, entry) in reader.entries().iter().enumerate() {
        let occurrence = seen.entry(&entry.name).or_default();
        numbered.insert((entry.name.as_str(), *occurrence), index);
        *occurrence += 1;
    }
    numbered
}

/// Returns the keys that only one of the maps has, or whose values differ, sorted.
fn different_keys(first: &Metadata, second: &Metadata) -> Vec<String> {
    let keys: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let differ = keys.into_iter().filter(|key| first.get(*key) != second.get(*key));
    differ.cloned().collect()
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
    let compared = compare_dense(first, index, second, other, tolerance);
    compared.unwrap_or_else(unreadable)
}

fn compare_dense(
    first: &dyn TensorReader,
    index: usize,
    second: &dyn TensorReader,
    other: usize,
    tolerance: Tolerance,
) -> Result<Option<DifferenceKind>, Error> {
    let dtype = first.entries()[index].dtype.known();
    let (mut x, mut y) = (first.stream(index)?, second.stream(other)?);
    let mut found = compare_streams(&mut *x, &mut *y, dtype, tolerance)?;
    if found.elements == 0 {
        return Ok(None);
    }
    drop((x, y));
    // The sums do not yet include the equal parts at the front.
    found.add_front(&mut *first.stream(index)?, dtype)?;
    Ok(Some(DifferenceKind::Values {
        elements: found.elements,
        farthest: found.farthest,
        distance: dtype.and_then(|_| found.sums.distance()),
    }))
}

/// Bytes compared at once: a multiple of every element size.
const PART: usize = 256 << 10;

/// Compares two tensors of equal dtype and shape in parts.
fn compare_streams(
    first: &mut dyn TensorStream,
    second: &mut dyn TensorStream,
    dtype: Option<DType>,
    tolerance: Tolerance,
) -> Result<ElementDifferences, Error> {
    let (mut a, mut b) = (vec![0; PART], vec![0; PART]);
    let mut found = ElementDifferences::default();
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
        } else if found.elements == 0 {
            found.front += len as u64;
        } else {
            found.add_equal(&a[..len], dtype);
        }
    }
    Ok(found)
}

/// Accumulated differences between elements.
#[derive(Default)]
struct ElementDifferences {
    elements: u64,
    farthest: f64,
    /// Length of the equal prefix in bytes.
    front: u64,
    /// Sums over all elements after the equal prefix.
    sums: Sums,
}

/// The difference between two elements with different bytes.
enum Apart {
    /// The absolute difference; 64-bit integers are subtracted before rounding.
    By(f64),
    /// Only the bits differ: zeros of different sign, or two NaNs.
    InBits,
    /// Unknown: the elements are not numeric.
    Unknown,
}

impl ElementDifferences {
    fn compare(&mut self, a: &[u8], b: &[u8], dtype: Option<DType>, tolerance: Tolerance) {
        let Some(dtype) = dtype else {
            // The elements are not numeric, so different bytes are counted.
            self.elements += a.iter().zip(b).filter(|(x, y)| x != y).count() as u64;
            self.farthest = f64::NAN;
            return;
        };
        let width = dtype.size();
        for (x, y) in a.chunks_exact(width).zip(b.chunks_exact(width)) {
            let (first, second) = (to_f64(dtype, x), to_f64(dtype, y));
            if x == y {
                self.sums.add(first, second, 0.0);
                continue;
            }
            let (apart, size) = apart(dtype, x, y);
            let difference = match apart {
                Apart::By(apart) => apart,
                Apart::InBits => 0.0,
                Apart::Unknown => f64::NAN,
            };
            self.sums.add(first, second, difference);
            let is_exact = tolerance == Tolerance::default();
            let is_close = match apart {
                Apart::InBits => !is_exact,
                // An infinity is close only to itself.
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

    fn add_equal(&mut self, part: &[u8], dtype: Option<DType>) {
        let Some(dtype) = dtype else { return };
        for element in part.chunks_exact(dtype.size()) {
            let value = to_f64(dtype, element);
            self.sums.add(value, value, 0.0);
        }
    }

    /// Adds the equal prefix to the sums.
    fn add_front(&mut self, stream: &mut dyn TensorStream, dtype: Option<DType>) -> Result<(), Error> {
        let mut part = vec![0; PART];
        while self.front > 0 {
            let len = stream.read(&mut part)?;
            // The stream may return pieces of other lengths than in the first pass, so the last piece may
            // exceed the prefix.
            let equal = self.front.min(len as u64);
            self.add_equal(&part[..equal as usize], dtype);
            self.front = if len == 0 { 0 } else { self.front - equal };
        }
        Ok(())
    }
}

/// Converts an element to a double.
fn to_f64(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype.kind() {
        DTypeKind::Signed => {
            let unused = 64 - 8 * bytes.len() as u32;
            ((word(bytes) << unused) as i64 >> unused) as f64
        }
        DTypeKind::Unsigned | DTypeKind::Bool => word(bytes) as f64,
        _ => match dtype {
            DType::F16 => f16::from_bits(word(bytes) as u16).to_f64(),
            DType::BF16 => bf16::from_bits(word(bytes) as u16).to_f64(),
            DType::F32 => f32::from_bits(word(bytes) as u32).into(),
            _ => f64::from_bits(word(bytes)),
        },
    }
}

/// Reads up to 8 bytes as an integer.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Returns the difference of two elements, and the absolute value of the second.
fn apart(dtype: DType, x: &[u8], y: &[u8]) -> (Apart, f64) {
    let integer = |bytes: &[u8]| match dtype.kind() {
        DTypeKind::Signed => {
            let unused = 64 - 8 * bytes.len() as u32;
            Some(i128::from((word(bytes) << unused) as i64 >> unused))
        }
        // Bools are compared as bytes: 2 differs from 1.
        DTypeKind::Unsigned | DTypeKind::Bool => Some(i128::from(word(bytes))),
        _ => None,
    };
    if let (Some(x), Some(y)) = (integer(x), integer(y)) {
        return (Apart::By((x - y).unsigned_abs() as f64), y.unsigned_abs() as f64);
    }
    let (x, y) = (to_f64(dtype, x), to_f64(dtype, y));
    let apart = if x == y || (x.is_nan() && y.is_nan()) {
        Apart::InBits
    } else if x.is_nan() || y.is_nan() {
        Apart::Unknown
    } else {
        Apart::By((x - y).abs())
    };
    (apart, y.abs())
}
