//! Writes a file: the JSON header from the planned tensors, followed by their bytes.

use std::{fmt, io::Write};

use fmt_core::{
    Entry, Error, ErrorKind, Limits, Metadata, Outstanding, Plan, PlannedEntry, Sink, StoredDType,
    TensorWriter,
};
use serde::{Serialize, ser::SerializeMap};
use tensor_core::{Naming, Shape, TensorSpec};

use crate::{
    capabilities::CAPABILITIES,
    layout::{LENGTH, LONGEST_HEADER, METADATA, bits_of},
};

/// Writes a safetensors file sequentially to any [`Write`].
///
/// The header comes first, so all tensors are planned in advance, and unsupported tensors are rejected before
/// the first byte. The tensors' bytes are then written in planned order, in pieces of any size. The same
/// tensors in the same order give the same bytes.
///
/// The data is aligned to 64 bytes; the format has no padding between tensors. Tensors with wide elements
/// should come first: after narrow elements, their data may be misaligned and then cannot be viewed in place
/// (S9).
///
/// See the crate documentation for an example.
pub struct SafetensorsWriter<W> {
    sink: Sink<W>,
    /// The encoded header; `None` once it is written.
    header: Option<Vec<u8>>,
    /// The bytes that are still expected for the tensors.
    outstanding: Outstanding,
}

impl<W: Write> SafetensorsWriter<W> {
    /// Creates a writer for these tensors. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] and [`ErrorKind::Duplicate`] for invalid names, [`ErrorKind::TooLarge`] for
    /// sizes that readers would reject.
    pub fn new(out: W, tensors: &[(String, TensorSpec)], metadata: &Metadata) -> Result<Self, Error> {
        let entries = tensors.iter();
        let entries = entries.map(|(name, spec)| PlannedEntry::dense(name, spec.clone()));
        let plan = Plan {
            entries: entries.collect(),
            metadata: metadata.clone(),
        };
        Self::planned(out, plan)
    }

    /// Creates a writer for a plan. Nothing is written yet.
    ///
    /// # Errors
    /// The errors of [`SafetensorsWriter::new`]; [`ErrorKind::Unsupported`] for tensor attributes and sparse
    /// tensors.
    pub fn planned(out: W, plan: Plan) -> Result<Self, Error> {
        plan.check(&CAPABILITIES, &Limits::default())?;
        let data_len = plan.entries.iter().map(|entry| entry.spec.byte_len()).sum();
        let tensors: Vec<PlannedTensor> = plan.entries.into_iter().map(PlannedTensor::planned).collect();
        for tensor in &tensors {
            check_bits(tensor).map_err(|error| error.of_tensor(&tensor.name))?;
        }
        let header = head(&tensors, &plan.metadata, |len| len.next_multiple_of(ALIGNMENT))?;
        let mut outstanding = Outstanding::default();
        outstanding.announce(0, data_len);
        Ok(Self {
            sink: Sink::new(out, 0),
            header: Some(header),
            outstanding,
        })
    }

    /// Writes the next bytes of the planned tensors, row-major and little-endian. A piece may end one tensor
    /// and begin the next.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when there are more bytes than the tensors have, in which case no byte is
    /// written; [`ErrorKind::Io`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.sink.check()?;
        self.outstanding.admit(bytes)?;
        if let Some(header) = self.header.take() {
            self.sink.write(&header)?;
        }
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            self.sink.write(piece.bytes)?;
        }
        Ok(())
    }

    /// Finishes the file and returns the sink without flushing it.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when bytes are missing; [`ErrorKind::Io`].
    pub fn finish(mut self) -> Result<W, Error> {
        self.complete()?;
        Ok(self.sink.into_inner())
    }

    fn complete(&mut self) -> Result<(), Error> {
        self.write(&[])?;
        self.outstanding.complete(|_| None)
    }
}

/// Alignment of the start of the data.
pub(crate) const ALIGNMENT: u64 = 64;

/// Encodes all bytes before the data; `padded` maps the minimum number of these bytes to the padded number.
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

pub(crate) fn check_bits(tensor: &PlannedTensor) -> Result<(), Error> {
    // The reference crate multiplies the dimensions from left to right and counts bits, so it fails if the
    // product overflows before a dimension of 0.
    let bits = tensor
        .shape
        .dims()
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
    /// Creates a planned tensor from an entry of a file, with any dtype.
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

    /// Creates a planned tensor from an entry that the format can hold.
    fn planned(entry: PlannedEntry) -> Self {
        let len = entry.spec.byte_len();
        let (dtype, bits, shape) = match entry.opaque {
            Some((dtype, shape)) => {
                let name = dtype.name().to_owned();
                let bits = bits_of(&name).unwrap_or(8);
                (name, bits, shape)
            }
            None => {
                let (dtype, shape) = entry.spec.into_parts();
                let name = dtype.name_in(Naming::Safetensors).to_owned();
                (name, 8 * dtype.size() as u64, shape)
            }
        };
        Self {
            name: entry.name,
            dtype,
            shape,
            bits,
            len,
        }
    }
}

/// The contents of the header, serialized with the tensors in data order.
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
            // The sum of all lengths fits in 64 bits: plans are checked for this, and edited files have a
            // valid length.
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
        self.sink.flush()?;
        Ok(self.sink.position())
    }
}

impl<W> fmt::Debug for SafetensorsWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetensorsWriter")
            .field("position", &self.sink.position())
            .field("outstanding", &self.outstanding.bytes())
            .finish()
    }
}
