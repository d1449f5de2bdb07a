use std::{collections::BTreeSet, fmt, io::Write};

use fmt_core::{
    Entry, Error, ErrorKind, Layout, Limits, Metadata, Plan, PlannedEntry, StoredDType, TensorWriter,
};
use serde::{Serialize, ser::SerializeMap};
use tensor_core::{Naming, Shape, TensorSpec};

use crate::layout::{LENGTH, LONGEST_HEADER, METADATA, bits_of};

/// A safetensors file that is being written, front to back, to anything that takes bytes.
///
/// The header comes first, so all tensors are announced when writing begins, and what the format cannot hold is refused
/// before the first byte. Their bytes then come in any pieces, in the order in which they were announced. The same tensors
/// in the same order give the same bytes.
///
/// Data begins on a multiple of 64; behind that the format has no padding. Tensors with wide elements should come first,
/// or those behind narrow ones cannot be viewed in place (S9).
///
/// The crate's page has an example.
pub struct SafetensorsWriter<W> {
    out: W,
    /// The header, until it is written.
    header: Option<Vec<u8>>,
    /// Bytes that are still to come.
    outstanding: u64,
    position: u64,
    /// It is unknown how many bytes arrived.
    has_failed: bool,
}

impl<W: Write> SafetensorsWriter<W> {
    /// Begins a file with these tensors. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] and [`ErrorKind::Duplicate`] for names, [`ErrorKind::TooLarge`] for what readers would not
    /// take.
    pub fn new(out: W, tensors: &[(String, TensorSpec)], metadata: &Metadata) -> Result<Self, Error> {
        let tensors: Vec<Announced> = tensors
            .iter()
            .map(|(name, spec)| Announced::new(name.clone(), spec))
            .collect();
        Self::announced(out, &tensors, metadata)
    }

    fn announced(out: W, tensors: &[Announced], metadata: &Metadata) -> Result<Self, Error> {
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

    /// Begins a file that a tool has planned.
    ///
    /// # Errors
    /// As [`SafetensorsWriter::new`]; [`ErrorKind::Unsupported`] for attributes of tensors and for sparse tensors.
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
            tensors.push(Announced::planned(entry)?);
        }
        Self::announced(out, &tensors, &plan.metadata)
    }

    /// Writes the next bytes of the tensors that were announced, row-major and little-endian, as many or few as there
    /// are. They may end one tensor and begin the next.
    ///
    /// # Errors
    /// [`ErrorKind::SizeMismatch`] when that is more than the tensors have; nothing is written then. [`ErrorKind::Io`].
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

    /// Ends the file and gives the sink back, which has not been flushed.
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

/// What the beginning of the data is a multiple of.
pub(crate) const ALIGNMENT: u64 = 64;

/// All before the data, with white space behind the header up to the length that `padded` makes of the shortest one.
pub(crate) fn head(
    tensors: &[Announced],
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

pub(crate) fn check(tensor: &Announced, limits: &Limits) -> Result<(), Error> {
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
    // The home crate multiplies from the left, so that a zero comes too late for what overflows before it; and counts bits.
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

/// A tensor that is going to be written.
pub(crate) struct Announced {
    pub(crate) name: String,
    dtype: String,
    shape: Shape,
    /// Bits of an element.
    bits: u64,
    /// Bytes of all.
    len: u64,
}

impl Announced {
    fn new(name: String, spec: &TensorSpec) -> Self {
        Self {
            name,
            dtype: spec.dtype().name_in(Naming::Safetensors).to_owned(),
            shape: spec.shape().clone(),
            bits: 8 * spec.dtype().size() as u64,
            len: spec.byte_len(),
        }
    }

    /// A tensor that is in a file, whatever its dtype is.
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

    /// Of an opaque dtype those fit that the home crate knows, as wide as it knows them.
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

/// What the header says, in the order of the data.
struct HeaderText<'a> {
    tensors: &'a [Announced],
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
            // The sum has been proven to fit.
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
