//! What two files do not have in common, by name and content.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use fmt_core::{Error, ErrorKind, Layout, Metadata, TensorReader, TensorStream};
use tensor_core::{DType, DTypeKind, Quoted, bf16, f16};

use crate::distance::{Distance, Sums};

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
        /// How far the two are apart as vectors. `None` where that is not known: elements without a meaning as numbers, or
        /// some that are not finite.
        distance: Option<Distance>,
    },
    /// A value of the metadata.
    Metadata,
    /// What the files say about a tensor under this key.
    Attribute(String),
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
                    // Without the digits of what is very small or very large.
                    far => write!(f, "at most by {far:?}"),
                }?;
                match distance {
                    Some(distance) if *farthest != 0.0 => write!(f, ", {distance}"),
                    _ => Ok(()),
                }
            }
            DifferenceKind::Attribute(key) => {
                write!(f, "the attribute {} of tensor {name} differs", Quoted(key))
            }
            DifferenceKind::Metadata => write!(f, "the metadata {name} differs"),
            DifferenceKind::Entries => write!(f, "tensor {name} has other entries"),
            DifferenceKind::Unreadable(why) => write!(f, "tensor {name} cannot be compared: {why}"),
        }
    }
}

/// Compares two files by name and content, whatever their formats are. What is stored differently but is the same is no
/// difference: order of tensors, compression, byte order. Of tensors with the same name, which lenient readers take, the
/// first is compared with the first, the second with the second.
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

/// The index of each tensor, by its name and how many before it have the same.
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

/// The keys under which two say different things, or only one says something; sorted.
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
    // Equal parts at the front have no part in the sums yet.
    found.add_front(&mut *first.stream(index)?, dtype)?;
    Ok(Some(DifferenceKind::Values {
        elements: found.elements,
        farthest: found.farthest,
        distance: dtype.and_then(|_| found.sums.distance()),
    }))
}

/// Bytes that are compared at a time: a multiple of every element's size.
const PART: usize = 256 << 10;

/// Compares two tensors of the same dtype and shape, a part at a time.
fn compare_streams(
    first: &mut dyn TensorStream,
    second: &mut dyn TensorStream,
    dtype: Option<DType>,
    tolerance: Tolerance,
) -> Result<Found, Error> {
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
        } else if found.elements == 0 {
            found.front += len as u64;
        } else {
            found.add_equal(&a[..len], dtype);
        }
    }
    Ok(found)
}

/// Differences between elements.
#[derive(Default)]
struct Found {
    elements: u64,
    farthest: f64,
    /// Bytes at the front that are the same in both.
    front: u64,
    /// Over all elements behind these.
    sums: Sums,
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

    fn add_equal(&mut self, part: &[u8], dtype: Option<DType>) {
        let Some(dtype) = dtype else { return };
        for element in part.chunks_exact(dtype.size()) {
            let value = to_f64(dtype, element);
            self.sums.add(value, value, 0.0);
        }
    }

    /// Adds the parts at the front, which are the same in both.
    fn add_front(&mut self, stream: &mut dyn TensorStream, dtype: Option<DType>) -> Result<(), Error> {
        let mut part = vec![0; PART];
        while self.front > 0 {
            let len = stream.read(&mut part)?;
            // A part that was equal may come in pieces of other lengths now.
            let equal = self.front.min(len as u64);
            self.add_equal(&part[..equal as usize], dtype);
            self.front = if len == 0 { 0 } else { self.front - equal };
        }
        Ok(())
    }
}

/// An element as a double.
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

/// Up to 8 bytes as a number.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// How far two elements are apart, and how large the second is.
fn apart(dtype: DType, x: &[u8], y: &[u8]) -> (Apart, f64) {
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
