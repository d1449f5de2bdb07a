use std::{collections::BTreeMap, fmt};

use fmt_core::{Error, Layout, TensorReader};
use tensor_core::{DType, Quoted, Tensor, TensorView, bf16, f16};

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
        /// The farthest that two numbers are apart; NaN where one is NaN and the other is not.
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
                write!(
                    f,
                    "tensor {name} differs in {elements} elements, at most by {farthest}"
                )
            }
            DifferenceKind::Metadata => write!(f, "the metadata {name} differ"),
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
    match (first.tensor(index), second.tensor(other)) {
        (Ok(a), Ok(b)) => compare_values(&a, &b, tolerance),
        (Err(error), _) | (_, Err(error)) => unreadable(error),
    }
}

fn compare_values(a: &Tensor, b: &Tensor, tolerance: Tolerance) -> Option<DifferenceKind> {
    if a.bytes() == b.bytes() {
        return None;
    }
    let is_exact = tolerance == Tolerance::default();
    let width = a.spec().dtype().size();
    let pairs = a.bytes().chunks_exact(width).zip(b.bytes().chunks_exact(width));
    let (mut elements, mut farthest) = (0, 0.0f64);
    for ((x, y), (stored, other)) in numbers(&a.view()).zip(numbers(&b.view())).zip(pairs) {
        if stored == other {
            continue;
        }
        let apart = (x - y).abs();
        let is_close = apart <= tolerance.absolute + tolerance.relative * y.abs();
        let is_same_nan = x.is_nan() && y.is_nan();
        if !is_exact && (is_close || is_same_nan) {
            continue;
        }
        elements += 1;
        farthest = if apart.is_nan() || farthest.is_nan() {
            f64::NAN
        } else {
            farthest.max(apart)
        };
    }
    (elements > 0).then_some(DifferenceKind::Values { elements, farthest })
}

/// The elements as numbers; those of 64 bits are rounded.
fn numbers<'a>(view: &TensorView<'a>) -> Box<dyn Iterator<Item = f64> + 'a> {
    macro_rules! of {
        ($element:ty, $to_f64:expr) => {
            match view.iter::<$element>() {
                Ok(elements) => Box::new(elements.map($to_f64)),
                // The dtype is the one that was asked for.
                Err(_) => Box::new(std::iter::empty()),
            }
        };
    }
    match view.spec().dtype() {
        // Not as bools: a byte of 2 is a difference from a byte of 1.
        DType::Bool => Box::new(view.bytes().iter().map(|byte| f64::from(*byte))),
        DType::U8 => of!(u8, f64::from),
        DType::U16 => of!(u16, f64::from),
        DType::U32 => of!(u32, f64::from),
        DType::U64 => of!(u64, |element| element as f64),
        DType::I8 => of!(i8, f64::from),
        DType::I16 => of!(i16, f64::from),
        DType::I32 => of!(i32, f64::from),
        DType::I64 => of!(i64, |element| element as f64),
        DType::F16 => of!(f16, f16::to_f64),
        DType::BF16 => of!(bf16, bf16::to_f64),
        DType::F32 => of!(f32, f64::from),
        DType::F64 => of!(f64, |element| element),
        // Without a number behind each element, the bytes are what can differ.
        _ => Box::new(view.bytes().iter().map(|byte| f64::from(*byte))),
    }
}
