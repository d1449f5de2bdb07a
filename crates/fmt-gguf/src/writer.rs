//! Writes files sequentially: the header first, then each tensor's bytes with padding.

use std::io::Write;

use fmt_core::{Error, ErrorKind, Limits, Outstanding, Plan, PlannedEntry, Sink, TensorWriter};

use crate::{
    capabilities::CAPABILITIES,
    header::{self, PlannedTensor},
    types::GgmlType,
};

/// Writes a GGUF file: the header, then the tensors in the order of the plan.
pub(crate) struct GgufWriter<W> {
    sink: Sink<W>,
    /// The encoded header; `None` once it is written.
    header: Option<Vec<u8>>,
    outstanding: Outstanding,
    alignment: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Creates a writer for a plan. Nothing is written yet.
    pub(crate) fn planned(out: W, plan: &Plan) -> Result<Self, Error> {
        plan.check(&CAPABILITIES, &Limits::default())?;
        let alignment = header::alignment_of(&plan.metadata)?;
        let (mut offset, mut outstanding) = (0u64, Outstanding::default());
        let mut announced = Vec::with_capacity(plan.entries.len());
        for (number, entry) in plan.entries.iter().enumerate() {
            let dims = dims_of(entry);
            let ggml = type_of(entry, dims).map_err(|error| error.of_tensor(&entry.name).rule("G8"))?;
            announced.push(PlannedTensor {
                name: &entry.name,
                dims,
                ggml,
                offset,
            });
            let len = entry.spec.byte_len();
            outstanding.announce(number, len);
            offset = offset
                .checked_add(len)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .filter(|end| *end < 1 << 63)
                .ok_or_else(|| {
                    let error = Error::new(ErrorKind::TooLarge, "the data of all tensors").rule("G8");
                    error.expected("less than 2^63 bytes")
                })?;
        }
        let header = header::encode(&announced, &plan.metadata)?;
        Ok(Self {
            sink: Sink::new(out, 0),
            header: Some(header),
            outstanding,
            alignment,
        })
    }
}

impl<W: Write + Send> TensorWriter for GgufWriter<W> {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        self.sink.check()?;
        self.outstanding.admit(bytes)?;
        if let Some(header) = self.header.take() {
            self.sink.write(&header)?;
        }
        while let Some(piece) = self.outstanding.take(&mut bytes) {
            self.sink.write(piece.bytes)?;
            if piece.ends {
                let end = self.sink.position().next_multiple_of(self.alignment);
                self.sink.pad_to(end)?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.write(&[])?;
        self.outstanding.complete(|_| None)?;
        self.sink.flush()?;
        Ok(self.sink.position())
    }
}

fn dims_of(entry: &PlannedEntry) -> &[u64] {
    match &entry.opaque {
        Some((_, shape)) => shape.dims(),
        None => entry.spec.shape().dims(),
    }
}

/// Returns the type that a tensor is written as. Its rows must be whole blocks.
fn type_of(entry: &PlannedEntry, dims: &[u64]) -> Result<GgmlType, Error> {
    let unsupported = |what: &str| Error::new(ErrorKind::Unsupported, what);
    let ggml = match &entry.opaque {
        Some((dtype, _)) => GgmlType::of_opaque(dtype),
        None => GgmlType::of_dtype(entry.spec.dtype()),
    };
    let ggml = ggml.ok_or_else(|| unsupported("the dtype"))?;
    let row = dims.last().copied().unwrap_or(1);
    if !row.is_multiple_of(ggml.elements.into()) {
        return Err(unsupported("the last dimension")
            .expected(format_args!("whole blocks of {} elements", ggml.elements))
            .found(row));
    }
    Ok(ggml)
}
