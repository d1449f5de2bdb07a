//! Summary statistics of a tensor's values.

use fmt_core::{Error, ErrorKind, Layout, TensorReader};
use serde::{Serialize, Serializer};
use tensor_core::{DType, Element, Shape, TensorSpec, TensorView, bf16, f16};

use crate::{histogram::Histogram, report};

/// Statistics of a tensor's values. Bools count as 0 and 1; large integers are rounded to doubles.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stats {
    /// The minimum, ignoring NaN.
    #[serde(serialize_with = "number")]
    pub(crate) min: Option<f64>,
    /// The maximum, ignoring NaN.
    #[serde(serialize_with = "number")]
    pub(crate) max: Option<f64>,
    /// The mean of the finite values.
    #[serde(serialize_with = "number")]
    pub(crate) mean: Option<f64>,
    /// The number of NaNs.
    pub(crate) nan: u64,
    /// The number of infinities.
    pub(crate) infinite: u64,
    /// The number of zeros.
    pub(crate) zero: u64,
    #[serde(skip)]
    pub(crate) histogram: Option<Histogram>,
}

/// Serializes with [`report::number`].
fn number<S: Serializer>(value: &Option<f64>, out: S) -> Result<S::Ok, S::Error> {
    value.map(report::number).serialize(out)
}

impl Stats {
    /// Computes statistics of a dense tensor's elements, or of a sparse tensor's stored values.
    pub(crate) fn of(reader: &dyn TensorReader, index: usize) -> Result<Self, Error> {
        let mut stats = Self {
            min: None,
            max: None,
            mean: None,
            nan: 0,
            infinite: 0,
            zero: 0,
            histogram: None,
        };
        let (mut sum, mut finite) = (0.0, 0u64);
        each(reader, index, |value| {
            if value.is_nan() {
                stats.nan += 1;
                return;
            }
            stats.min = Some(stats.min.map_or(value, |min| min.min(value)));
            stats.max = Some(stats.max.map_or(value, |max| max.max(value)));
            if value.is_infinite() {
                stats.infinite += 1;
                return;
            }
            stats.zero += u64::from(value == 0.0);
            sum += value;
            finite += 1;
        })?;
        stats.mean = (finite > 0).then(|| sum / finite as f64);
        if let (Some(min), Some(max)) = (stats.min, stats.max) {
            let mut histogram = Histogram::new(min, max);
            each(reader, index, |value| histogram.add(value))?;
            stats.histogram = Some(histogram);
        }
        Ok(stats)
    }
}

fn each(reader: &dyn TensorReader, index: usize, mut see: impl FnMut(f64)) -> Result<(), Error> {
    if let Layout::Coo { .. } = reader.entries()[index].layout {
        see_all(&reader.sparse(index)?.values().view(), &mut see);
        return Ok(());
    }
    let Some(dtype) = reader.entries()[index].dtype.known() else {
        return Ok(());
    };
    tensor_files::read_ahead(reader, index, &mut |part| {
        let spec = TensorSpec::new(dtype, Shape::vector((part.len() / dtype.size()) as u64));
        let elements = spec.and_then(|spec| TensorView::new(spec, part));
        let elements = elements.map_err(|error| Error::new(ErrorKind::SizeMismatch, error.to_string()))?;
        see_all(&elements, &mut see);
        Ok(())
    })
}

/// Passes all elements to `see` as doubles.
pub(crate) fn see_all(tensor: &TensorView<'_>, see: &mut impl FnMut(f64)) {
    fn elements<T: Element>(tensor: &TensorView<'_>, see: &mut impl FnMut(f64), to_f64: impl Fn(T) -> f64) {
        // The type matches the tensor's dtype.
        if let Ok(elements) = tensor.iter::<T>() {
            elements.for_each(|element| see(to_f64(element)));
        }
    }
    match tensor.spec().dtype() {
        DType::Bool => elements::<bool>(tensor, see, f64::from),
        DType::U8 => elements::<u8>(tensor, see, f64::from),
        DType::U16 => elements::<u16>(tensor, see, f64::from),
        DType::U32 => elements::<u32>(tensor, see, f64::from),
        DType::U64 => elements::<u64>(tensor, see, |value| value as f64),
        DType::I8 => elements::<i8>(tensor, see, f64::from),
        DType::I16 => elements::<i16>(tensor, see, f64::from),
        DType::I32 => elements::<i32>(tensor, see, f64::from),
        DType::I64 => elements::<i64>(tensor, see, |value| value as f64),
        DType::F16 => elements::<f16>(tensor, see, f16::to_f64),
        DType::BF16 => elements::<bf16>(tensor, see, bf16::to_f64),
        DType::F32 => elements::<f32>(tensor, see, f64::from),
        DType::F64 => elements::<f64>(tensor, see, |value| value),
        // Tensors with a dtype without arithmetic have no statistics.
        _ => {}
    }
}
