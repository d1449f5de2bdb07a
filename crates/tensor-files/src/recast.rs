//! Changes dtypes of tensors while they are read: rounds floats, dequantizes blocks, or reinterprets bits.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use fmt_core::{
    Encoding, Entry, Error, ErrorKind, Format, Layout, Limits, Lint, Metadata, OpaqueDType, Plan,
    PlannedEntry, StoredDType, TENSOR_STREAM_UNIT, TensorReader, TensorStream, Verification,
};
use tensor_core::{DType, DTypeKind, Shape, SparseCoo, Tensor, TensorSpec};

use crate::{
    cast::{Cast, CastStream},
    loss::Loss,
    scaling::Scaling,
};

/// A reader that changes the dtype of some tensors.
///
/// ```
/// use fmt_core::TensorReader;
/// use tensor_core::DType;
/// # use fmt_core::{Plan, PlannedEntry};
/// # use tensor_core::{Shape, TensorSpec};
/// # fn main() -> Result<(), fmt_core::Error> {
/// # let format = tensor_files::format("safetensors").unwrap();
/// # let spec = TensorSpec::new(DType::F32, Shape::vector(1)).unwrap();
/// # let plan = Plan { entries: vec![PlannedEntry::dense("w", spec)], ..Plan::default() };
/// # let mut file = Vec::new();
/// # let mut writer = format.create(Box::new(&mut file), plan)?;
/// # writer.write(&1e9f32.to_le_bytes())?;
/// # writer.finish()?;
/// # let reader = format.open(std::sync::Arc::new(tensor_core::Bytes::from(file)), &Default::default())?;
/// let halves = tensor_files::Recast::to_float(&*reader, DType::F16, |_| false)?;
/// assert_eq!(halves.entries()[0].dtype.known(), Some(DType::F16));
/// halves.tensor(0)?;
/// // Values beyond the range of the dtype became infinite.
/// assert_eq!(halves.losses().len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct Recast<'r> {
    inner: &'r dyn TensorReader,
    entries: Vec<Entry>,
    /// The index of each tensor in the inner reader, in order.
    indices: Vec<usize>,
    changes: Vec<Change>,
    /// For each tensor, the number of finite elements that became infinite when they were read.
    beyond: Vec<AtomicU64>,
    unconverted: Vec<(String, DType)>,
}

#[derive(Clone, Copy)]
enum Change {
    None,
    /// Keeps the bytes, and changes only the dtype.
    Bits,
    Float(Cast),
    /// 8-bit floats multiplied by their scales.
    Scaled(Scaling, Cast),
    #[cfg(feature = "gguf")]
    Blocks(fmt_gguf::Dequantizer, Cast),
}

impl<'r> Recast<'r> {
    /// Converts floats, and quantized blocks of known types, to the float dtype `dtype`, except the tensors
    /// for whose index `stays` returns true. Rounds to nearest, ties to even. 8-bit floats are multiplied by
    /// their scales, `NAME_scale_inv` (DeepSeek) or `NAME_scale` (compressed-tensors), which are omitted from
    /// the result. Integers and bools keep their dtype, because they are positions, steps or masks; see
    /// [`Recast::unconverted`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for sparse tensors and opaque elements, unless `stays` excepts them, and
    /// for a `dtype` that is not a float.
    pub fn to_float(
        inner: &'r dyn TensorReader,
        dtype: DType,
        stays: impl Fn(usize) -> bool,
    ) -> Result<Self, Error> {
        if dtype.kind() != DTypeKind::Float {
            let error = Error::new(ErrorKind::Unsupported, "the dtype to convert to");
            return Err(error.expected("f16, bf16, f32 or f64").found(dtype));
        }
        let mut recast = Self::unchanged(inner);
        // Scales that were applied are left out, because a later reader would otherwise apply them again.
        let mut taken = BTreeSet::new();
        let tensors = recast.entries.iter_mut().zip(&mut recast.changes);
        for (index, (entry, change)) in tensors.enumerate() {
            if stays(index) || entry.dtype.known() == Some(dtype) {
                continue;
            }
            if let (Some(own), Layout::Dense) = (entry.dtype.known(), &entry.layout)
                && own.kind() != DTypeKind::Float
            {
                recast.unconverted.push((entry.name.clone(), own));
                continue;
            }
            *change = match (Scaling::of(inner, entry)?, Cast::new(DType::F32, dtype)) {
                (Some(scaled), Some(cast)) => {
                    taken.insert(scaled.scales);
                    Change::Scaled(scaled, cast)
                }
                _ => to_float(entry, dtype)?,
            };
            entry.dtype = StoredDType::Known(dtype);
            entry.unsupported = None;
            forget_bytes(entry);
        }
        recast.drop_tensors(&taken);
        Ok(recast)
    }

    fn drop_tensors(&mut self, dropped: &BTreeSet<usize>) {
        if dropped.is_empty() {
            return;
        }
        fn kept<T>(list: &mut Vec<T>, dropped: &BTreeSet<usize>) {
            let mut index = 0..;
            list.retain(|_| index.next().is_some_and(|index| !dropped.contains(&index)));
        }
        kept(&mut self.entries, dropped);
        kept(&mut self.indices, dropped);
        kept(&mut self.changes, dropped);
        kept(&mut self.beyond, dropped);
    }

    /// Returns a tensor's original entry.
    fn before(&self, index: usize) -> &Entry {
        &self.inner.entries()[self.indices[index]]
    }

    /// Reinterprets elements of dtypes that a format lacks as unsigned integers of the same width, bit for
    /// bit; opaque elements of any width but one byte become bytes along the last axis.
    /// [`losses`](Self::losses) names these tensors.
    pub fn as_bits(inner: &'r dyn TensorReader, format: &dyn Format) -> Self {
        let takes = |entry: Option<PlannedEntry>| {
            let plan = |entry| Plan {
                entries: vec![entry],
                ..Plan::default()
            };
            entry.is_some_and(|entry| format.create(Box::new(io::sink()), plan(entry)).is_ok())
        };
        let mut recast = Self::unchanged(inner);
        let entries = recast.entries.iter_mut().zip(&mut recast.changes);
        for (entry, change) in entries.filter(|(entry, _)| entry.layout == Layout::Dense) {
            let bits = match &entry.dtype {
                StoredDType::Opaque(dtype) => {
                    let is_taken = takes(PlannedEntry::opaque("0", dtype.clone(), entry.shape.clone()));
                    bytes_of(dtype, &entry.shape).filter(|_| !is_taken)
                }
                StoredDType::Known(dtype) => {
                    let is_taken = takes(entry.spec().map(|spec| PlannedEntry::dense("0", spec)));
                    let bits = bits_of(*dtype).filter(|_| !is_taken);
                    bits.map(|bits| (bits, entry.shape.clone()))
                }
                StoredDType::Unknown(_) => None,
            };
            if let Some((dtype, shape)) = bits {
                *change = Change::Bits;
                (entry.dtype, entry.shape, entry.unsupported) = (StoredDType::Known(dtype), shape, None);
            }
        }
        recast
    }

    fn unchanged(inner: &'r dyn TensorReader) -> Self {
        let entries = inner.entries().to_vec();
        Self {
            changes: vec![Change::None; entries.len()],
            beyond: entries.iter().map(|_| AtomicU64::new(0)).collect(),
            indices: (0..entries.len()).collect(),
            entries,
            inner,
            unconverted: Vec::new(),
        }
    }

    /// Returns the integers and bools that were kept although floats were requested, with their dtypes.
    #[must_use]
    pub fn unconverted(&self) -> Vec<(String, DType)> {
        self.unconverted.clone()
    }

    /// Returns a loss for each reinterpreted tensor, and one for each tensor in which numbers beyond the
    /// range of the new dtype were read. A tensor that is read twice is counted twice.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        let lost = |index: usize| match (&self.changes[index], self.before(index), &self.beyond[index]) {
            (Change::Bits, entry, _) => Some(Loss::DType(entry.name.clone(), entry.dtype.to_string())),
            (_, entry, beyond) => {
                let count = beyond.load(Ordering::Relaxed);
                (count > 0).then(|| Loss::Range(entry.name.clone(), count))
            }
        };
        (0..self.entries.len()).filter_map(lost).collect()
    }

    /// Returns a part of a tensor's converted bytes.
    fn part(&self, index: usize, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let (mut bytes, most) = (Vec::new(), Limits::default().decoded_bytes);
        let len = range.end - range.start;
        let has_room = len <= most && bytes.try_reserve_exact(len as usize).is_ok();
        if !has_room {
            let error = Error::new(ErrorKind::TooLarge, "the converted rows");
            let error = error.of_tensor(&self.entries[index].name);
            return Err(error.expected(format_args!("at most {most} bytes")).found(len));
        }
        let mut stream = self.stream(index)?;
        let mut piece = vec![0; 64 << 10];
        let mut at = 0;
        while at < range.end {
            let read = stream.read(&mut piece)? as u64;
            if read == 0 {
                break;
            }
            let start = range.start.clamp(at, at + read) - at;
            let end = range.end.min(at + read) - at;
            bytes.extend_from_slice(&piece[start as usize..(end as usize).max(start as usize)]);
            at += read;
        }
        Ok(bytes)
    }

    /// Returns a tensor from its converted bytes.
    fn of_spec(
        &self,
        index: usize,
        shape: Shape,
        bytes: impl Into<tensor_core::Bytes>,
    ) -> Result<Tensor, Error> {
        let entry = &self.entries[index];
        let unsupported =
            || Error::new(ErrorKind::Unsupported, "the dtype has no values").of_tensor(&entry.name);
        let dtype = entry.dtype.known().ok_or_else(unsupported)?;
        let spec = TensorSpec::new(dtype, shape);
        let tensor = spec.and_then(|spec| Tensor::new(spec, bytes));
        tensor.map_err(|error| Error::new(ErrorKind::SizeMismatch, error.to_string()).of_tensor(&entry.name))
    }
}

/// Determines how a tensor is converted to a float dtype.
fn to_float(entry: &Entry, dtype: DType) -> Result<Change, Error> {
    let refused = |found: String| {
        let error = Error::new(
            ErrorKind::Unsupported,
            format!("it cannot be converted to {dtype}"),
        );
        let error = error.of_tensor(&entry.name).found(found);
        Err(error.expected("floats, or that it keeps its dtype (--keep-dtype)"))
    };
    if entry.layout != Layout::Dense {
        return refused("a sparse tensor".to_owned());
    }
    match &entry.dtype {
        StoredDType::Known(from) => match Cast::new(*from, dtype) {
            Some(cast) => Ok(Change::Float(cast)),
            None => refused(from.to_string()),
        },
        #[cfg(feature = "gguf")]
        StoredDType::Opaque(blocks) => {
            match (fmt_gguf::Dequantizer::of(blocks), Cast::new(DType::F32, dtype)) {
                (Some(dequantizer), Some(cast)) => Ok(Change::Blocks(dequantizer, cast)),
                _ => refused(blocks.to_string()),
            }
        }
        other => refused(other.to_string()),
    }
}

/// Resets the properties of a tensor's stored bytes, which do not apply to the converted bytes.
fn forget_bytes(entry: &mut Entry) {
    entry.encoding = Encoding::Raw;
    entry.is_big_endian = false;
    entry.checksum = None;
}

/// Returns the dtype and shape with which opaque elements are stored as `u8`. Elements of one byte keep the
/// shape; wider elements and blocks become several bytes along the last axis.
fn bytes_of(dtype: &OpaqueDType, shape: &Shape) -> Option<(DType, Shape)> {
    let (elements, bytes) = (u64::from(dtype.block_elements()), u64::from(dtype.block_bytes()));
    if (elements, bytes) == (1, 1) {
        return Some((DType::U8, shape.clone()));
    }
    let mut dims = shape.dims().to_vec();
    let last = dims.last_mut()?;
    *last = last
        .is_multiple_of(elements)
        .then(|| (*last / elements).checked_mul(bytes))??;
    Some((DType::U8, Shape::new(&dims).ok()?))
}

/// Returns the unsigned integer dtype with the width of `dtype`.
fn bits_of(dtype: DType) -> Option<DType> {
    match dtype.size() {
        1 => Some(DType::U8),
        2 => Some(DType::U16),
        4 => Some(DType::U32),
        8 => Some(DType::U64),
        _ => None,
    }
}

impl TensorReader for Recast<'_> {
    fn format(&self) -> &'static str {
        self.inner.format()
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.indices.binary_search(&self.inner.find(name)?).ok()
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        if let Change::None = self.changes[index] {
            return self.inner.tensor(self.indices[index]);
        }
        let entry = &self.entries[index];
        let len = entry.byte_len().unwrap_or(u64::MAX);
        let most = Limits::default().decoded_bytes;
        let mut bytes = Vec::new();
        let has_room = len <= most && bytes.try_reserve_exact(len as usize).is_ok();
        if !has_room {
            let error = Error::new(ErrorKind::TooLarge, "the converted tensor").of_tensor(&entry.name);
            return Err(error.expected(format_args!("at most {most} bytes")).found(len));
        }
        bytes.resize(len as usize, 0);
        self.read_into(index, &mut bytes)?;
        self.of_spec(index, entry.shape.clone(), bytes)
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        self.inner.sparse(self.indices[index])
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        match self.changes[index] {
            Change::None => self.inner.rows(self.indices[index], rows),
            Change::Bits if self.before(index).spec().is_some() => {
                let tensor = self.inner.rows(self.indices[index], rows)?;
                self.of_spec(index, tensor.shape().clone(), tensor.into_bytes())
            }
            Change::Float(cast) => {
                let tensor = self.inner.rows(self.indices[index], rows)?;
                let shape = tensor.shape().clone();
                let beyond = &self.beyond[index];
                let whole = Box::new(fmt_core::BytesStream::new(tensor.into_bytes()));
                let len =
                    shape.element_count() as usize * self.entries[index].dtype.known().map_or(0, DType::size);
                let mut bytes = vec![0; len.next_multiple_of(TENSOR_STREAM_UNIT)];
                let read = CastStream::new(whole, cast, beyond).read(&mut bytes)?;
                bytes.truncate(read);
                self.of_spec(index, shape, bytes)
            }
            // A block may contain elements of several rows, so the elements before the requested rows are
            // read and skipped.
            _ => {
                let (shape, dtype) = (&self.entries[index].shape, self.entries[index].dtype.known());
                let spec = TensorSpec::new(dtype.unwrap_or(DType::U8), shape.clone());
                let spec = spec.map_err(|error| Error::new(ErrorKind::Overflow, error.to_string()))?;
                let (part, range) = fmt_core::row_range(&spec, rows)?;
                let bytes = self.part(index, range)?;
                self.of_spec(index, part.shape().clone(), bytes)
            }
        }
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let inner = self.inner.stream(self.indices[index])?;
        let beyond = &self.beyond[index];
        Ok(match self.changes[index] {
            Change::None | Change::Bits => inner,
            Change::Float(cast) => Box::new(CastStream::new(inner, cast, beyond)),
            Change::Scaled(scaled, cast) => {
                Box::new(CastStream::new(scaled.stream(self.inner, inner)?, cast, beyond))
            }
            #[cfg(feature = "gguf")]
            Change::Blocks(blocks, cast) => {
                Box::new(CastStream::new(blocks.stream(inner, DType::F32)?, cast, beyond))
            }
        })
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        if let Change::None = self.changes[index] {
            return self.inner.read_into(self.indices[index], out);
        }
        let entry = &self.entries[index];
        let wrong_length = |found: usize| {
            let error =
                Error::new(ErrorKind::SizeMismatch, "the length of the buffer").of_tensor(&entry.name);
            error.expected(entry.byte_len().unwrap_or(u64::MAX)).found(found)
        };
        if entry.byte_len() != Some(out.len() as u64) {
            return Err(wrong_length(out.len()));
        }
        let mut stream = self.stream(index)?;
        let mut piece = vec![0; 64 << 10];
        let mut filled = 0;
        loop {
            let read = stream.read(&mut piece)?;
            if read == 0 {
                break;
            }
            let part = out.get_mut(filled..filled + read);
            part.ok_or_else(|| wrong_length(filled + read))?
                .copy_from_slice(&piece[..read]);
            filled += read;
        }
        if filled == out.len() {
            Ok(())
        } else {
            Err(wrong_length(filled))
        }
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        self.inner.verify(self.indices[index])
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        let own = |index: usize| self.indices.binary_search(&index).ok();
        let shared = self.inner.shared().into_iter();
        let mut shared: Vec<_> = shared
            .filter_map(|(index, first)| Some((own(index)?, own(first)?)))
            .collect();
        // Shared bytes differ after conversion if dtypes or scales differ.
        let is_scaled = |index: usize| matches!(self.changes[index], Change::Scaled(..));
        shared.retain(|&(index, first)| {
            self.entries[index].dtype == self.entries[first].dtype && !is_scaled(index) && !is_scaled(first)
        });
        shared
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        self.inner.lints()
    }

    fn foreign_parts(&self) -> &[String] {
        self.inner.foreign_parts()
    }
}
