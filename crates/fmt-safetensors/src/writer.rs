//! Writes safetensors files as a stream.

use std::{collections::BTreeSet, fmt, io::Write};

use fmt_core::{
    Entry, Error, ErrorKind, Layout, Limits, Metadata, Plan, PlannedEntry, StoredDType, TensorWriter,
};
use serde::{Serialize, ser::SerializeMap};
use tensor_core::{Naming, Shape, TensorSpec};

use crate::layout::{LENGTH, LONGEST_HEADER, METADATA, bits_of};

/// A safetensors file being written sequentially to any sink.
///
/// The header comes first, so all tensors are planned up front, and unsupported ones are rejected before the
/// first byte. Their bytes are then written in planned order, in pieces of any size. The same tensors in the
/// same order give the same bytes.
///
/// The data is aligned to 64; the format has no padding between tensors. Tensors with wide elements should
/// come first, or they may not be viewable in place after narrow ones (S9).
///
/// The crate's page has an example.
pub struct SafetensorsWriter<W> {
    out: W,
    /// The header, until it is written.
    header: Option<Vec<u8>>,
    /// Remaining bytes.
    outstanding: u64,
    position: u64,
    /// A write failed, so it is unknown how many bytes arrived.
    has_failed: bool,
}

impl<W: Write> SafetensorsWriter<W> {
    /// Starts a file with these tensors. Writes nothing yet.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] and [`ErrorKind::Duplicate`] for names, [`ErrorKind::TooLarge`] for what
    /// readers would reject.
    pub fn new(out: W, tensors: &[(String, TensorSpec)], metadata: &Metadata) -> Result<Self, Error> {
        let tensors: Vec<PlannedTensor> = tensors
            .iter()
            .map(|(name, spec)| PlannedTensor::new(name.clone(), spec))
            .collect();
        Self::announced(out, &tensors, metadata)
    }

    fn announced(out: W, tensors: &[PlannedTensor], metadata: &Metadata) -> Result<Self, Error> {
        let limits = Limits::default();
        let (mut names, mut data_len) = (BTreeSet::new(), 0u64);
        let too_large = |what: &str| Error::new(ErrorKind::TooLarge, what);
        for tensor in tensors {
            let name = &tensor.name;
            check(tensor, &limits).map_err(|error| error.of_tensor(name))?;
            if !names.insert(name.as_str()) {
                let error = Error::new(ErrorKind::Duplicate, "the name is given twice");
                return Err(error.of_tensor(name).rule("S3"));
            }
            data_len = data_len
                .checked_add(tensor.len)
                .filter(|len| *len < 1 << 63)
                .ok_or_else(|| {
                    too_large("the data of all tensors")
                        .expected("less than 2^63 bytes")
                        .rule("S6")
                })?;
        }
        if tensors.len() as u64 > limits.tensors {
            let error = too_large("the number of tensors").rule("S8");
            return Err(error
                .expected(format_args!("at most {}", limits.tensors))
                .found(tensors.len()));
        }
        let header = head(tensors, metadata, |len| len.next_multiple_of(ALIGNMENT))?;
        Ok(Self {
            out,
            header: Some(header),
            outstanding: data_len,
            position: 0,
            has_failed: false,
        })
    }

    /// Starts a file from a plan.
    ///
    /// # Errors
    /// Those of [`SafetensorsWriter::new`]; [`ErrorKind::Unsupported`] for tensor attributes and sparse
    /// tensors.
    pub fn planned(out: W, plan: Plan) -> Result<Self, Error> {
        let mut tensors = Vec::with_capacity(plan.entries.len());
        for entry in plan.entries {
            let unsupported = |what: String| Error::new(ErrorKind::Unsupported, what).of_tensor(&entry.name);
            if let Some(key) = entry.attributes.keys().next() {
                let key = tensor_core::Quoted(key);
                let error = unsupported(format!("the format has no place for the attribute {key}"));
                return Err(error.rule("S7"));
            }
            if entry.layout != Layout::Dense {
                return Err(unsupported("the layout".to_owned())
                    .rule("S4")
                    .expected("dense: the format has no other")
                    .found(&entry.layout));
            }
            tensors.push(PlannedTensor::planned(entry)?);
        }
        Self::announced(out, &tensors, &plan.metadata)
    }

    /// Writes the next bytes of the planned tensors, row-major and little-endian. A piece may end one tensor
    /// and begin the next.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when there are more bytes than planned; nothing is written then.
    /// [`ErrorKind::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 > self.outstanding {
            let error = Error::new(ErrorKind::SizeMismatch, "more bytes than the tensors have");
            return Err(error
                .expected(format_args!("at most {}", self.outstanding))
                .found(bytes.len()));
        }
        if let Some(header) = self.header.take() {
            self.put(&header)?;
        }
        self.put(bytes)?;
        self.outstanding -= bytes.len() as u64;
        Ok(())
    }

    /// Finishes the file and returns the sink, which is not flushed.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes are missing; [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        self.complete()?;
        Ok(self.out)
    }

    fn complete(&mut self) -> Result<(), Error> {
        self.write(&[])?;
        if self.outstanding > 0 {
            let error = Error::new(ErrorKind::SizeMismatch, "bytes of the last tensors are missing");
            return Err(error.found(format_args!("{} bytes less", self.outstanding)));
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.has_failed {
            let error = Error::new(ErrorKind::Io, "the file is incomplete since writing failed");
            return Err(error.at(self.position));
        }
        self.out.write_all(bytes).map_err(|error| {
            self.has_failed = true;
            Error::io("the file cannot be written", error).at(self.position)
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

/// Alignment of the start of the data.
pub(crate) const ALIGNMENT: u64 = 64;

/// Encodes everything before the data; `padded` maps the minimum header length to the padded one.
pub(crate) fn head(
    tensors: &[PlannedTensor],
    metadata: &Metadata,
    padded: impl FnOnce(u64) -> u64,
) -> Result<Vec<u8>, Error> {
    let mut json = serde_json::to_vec(&HeaderText { tensors, metadata }).map_err(|error| {
        let what = format!("the header cannot be written: {error}");
        Error::new(ErrorKind::Unsupported, what).rule("S2")
    })?;
    let shortest = LENGTH + json.len() as u64;
    let header_len = padded(shortest).max(shortest) - LENGTH;
    if header_len > LONGEST_HEADER {
        let error = Error::new(ErrorKind::TooLarge, "the header").rule("S1");
        return Err(error
            .expected(format_args!("at most {LONGEST_HEADER} bytes"))
            .found(header_len));
    }
    json.resize(header_len as usize, b' ');
    Ok([&header_len.to_le_bytes()[..], &json].concat())
}

pub(crate) fn check(tensor: &PlannedTensor, limits: &Limits) -> Result<(), Error> {
    let name = &tensor.name;
    if name == METADATA {
        let error = Error::new(ErrorKind::BadName, "the name");
        return Err(error
            .rule("S3")
            .expected("another: the format has a meaning for this one"));
    }
    if name.len() as u64 > limits.name_bytes {
        let error = Error::new(ErrorKind::BadName, "the length of the name").rule("S8");
        return Err(error
            .expected(format_args!("at most {} bytes", limits.name_bytes))
            .found(name.len()));
    }
    let dims = tensor.shape.dims();
    if dims.len() as u64 > limits.rank {
        let error = Error::new(ErrorKind::TooLarge, "the rank").rule("S8");
        return Err(error
            .expected(format_args!("at most {}", limits.rank))
            .found(dims.len()));
    }
    // The reference crate multiplies from the left, so a zero does not prevent an earlier overflow; and it
    // counts bits.
    let bits = dims
        .iter()
        .try_fold(1u64, |product, dim| product.checked_mul(*dim))
        .and_then(|product| product.checked_mul(tensor.bits));
    if bits.is_none() {
        let error = Error::new(ErrorKind::TooLarge, "the dimensions").rule("S6");
        return Err(error
            .expected("a length in bits that fits 64 bits, whatever is multiplied first")
            .found(format_args!("{}{}", tensor.dtype, tensor.shape)));
    }
    Ok(())
}

/// A tensor to be written.
pub(crate) struct PlannedTensor {
    pub(crate) name: String,
    dtype: String,
    shape: Shape,
    /// Bits per element.
    bits: u64,
    /// Size of all elements in bytes.
    len: u64,
}

impl PlannedTensor {
    fn new(name: String, spec: &TensorSpec) -> Self {
        Self {
            name,
            dtype: spec.dtype().name_in(Naming::Safetensors).to_owned(),
            shape: spec.shape().clone(),
            bits: 8 * spec.dtype().size() as u64,
            len: spec.byte_len(),
        }
    }

    /// Creates one for an existing entry of any dtype.
    pub(crate) fn stored(entry: &Entry) -> Self {
        let (len, count) = (entry.stored_size(), entry.shape.element_count());
        let dtype = match &entry.dtype {
            StoredDType::Known(dtype) => dtype.name_in(Naming::Safetensors).to_owned(),
            StoredDType::Opaque(dtype) => dtype.name().to_owned(),
            StoredDType::Unknown(name) => name.clone(),
        };
        Self {
            name: entry.name.clone(),
            bits: bits_of(&dtype).unwrap_or_else(|| (8 * len).checked_div(count).unwrap_or(8)),
            dtype,
            shape: entry.shape.clone(),
            len,
        }
    }

    /// Accepts opaque dtypes that the reference crate supports, with the same width.
    fn planned(entry: PlannedEntry) -> Result<Self, Error> {
        let Some((dtype, shape)) = &entry.opaque else {
            return Ok(Self::new(entry.name, &entry.spec));
        };
        let bits = bits_of(dtype.name());
        let fits = bits.and_then(|bits| shape.element_count().checked_mul(bits));
        match (bits, fits) {
            (Some(bits), Some(all)) if all.is_multiple_of(8) && all / 8 == entry.spec.byte_len() => {
                Ok(Self {
                    dtype: dtype.name().to_owned(),
                    shape: shape.clone(),
                    bits,
                    len: entry.spec.byte_len(),
                    name: entry.name,
                })
            }
            _ => entry.check_dtype().map(|()| Self::new(entry.name, &entry.spec)),
        }
    }
}

/// The header's contents in data order.
struct HeaderText<'a> {
    tensors: &'a [PlannedTensor],
    metadata: &'a Metadata,
}

#[derive(Serialize)]
struct TensorText<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

impl Serialize for HeaderText<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        let mut start = 0;
        for tensor in self.tensors {
            // The sum was checked.
            let end = start + tensor.len;
            let text = TensorText {
                dtype: &tensor.dtype,
                shape: tensor.shape.dims(),
                data_offsets: [start, end],
            };
            map.serialize_entry(&tensor.name, &text)?;
            start = end;
        }
        map.end()
    }
}

impl<W: Write + Send> TensorWriter for SafetensorsWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        Self::write(self, bytes)
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.complete()?;
        let flushed = self.out.flush();
        flushed.map_err(|error| Error::io("the file cannot be written", error).at(self.position))?;
        Ok(self.position)
    }
}

impl<W> fmt::Debug for SafetensorsWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetensorsWriter")
            .field("position", &self.position)
            .field("outstanding", &self.outstanding)
            .finish()
    }
}
