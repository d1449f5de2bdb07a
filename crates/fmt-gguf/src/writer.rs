//! Writes files sequentially: the header first, then each tensor's bytes with padding.

use std::{collections::BTreeSet, io::Write};

use fmt_core::{Error, ErrorKind, Layout, Limits, Plan, PlannedEntry, Sink, TensorWriter};

use crate::{
    header::{self, MOST_DIMS, PlannedTensor},
    types::GgmlType,
};

/// A file being written.
pub(crate) struct GgufWriter<W> {
    sink: Sink<W>,
    /// The header, until it is written.
    header: Option<Vec<u8>>,
    /// The remaining bytes of each incomplete tensor, the last tensor first.
    outstanding: Vec<u64>,
    /// Their sum.
    left: u64,
    alignment: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Starts a planned file. Writes nothing yet.
    pub(crate) fn planned(out: W, plan: &Plan) -> Result<Self, Error> {
        let limits = Limits::default();
        let alignment = header::alignment_of(&plan.metadata)?;
        let (mut names, mut offset, mut left) = (BTreeSet::new(), 0u64, 0);
        let mut announced = Vec::with_capacity(plan.entries.len());
        for entry in &plan.entries {
            let ggml = checked(entry, &limits).map_err(|error| error.of_tensor(&entry.name).rule("G8"))?;
            if !names.insert(&entry.name) {
                let error = Error::new(ErrorKind::Duplicate, "the name is given twice");
                return Err(error.of_tensor(&entry.name).rule("G2"));
            }
            announced.push(PlannedTensor {
                name: &entry.name,
                dims: dims_of(entry),
                ggml,
                offset,
            });
            // At most the offset, which is checked.
            left = entry.spec.byte_len().saturating_add(left);
            offset = offset
                .checked_add(entry.spec.byte_len())
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .filter(|end| *end < 1 << 63)
                .ok_or_else(|| {
                    let error = Error::new(ErrorKind::TooLarge, "the data of all tensors").rule("G8");
                    error.expected("less than 2^63 bytes")
                })?;
        }
        if announced.len() as u64 > limits.tensors {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("G2");
            return Err(error
                .expected(format_args!("at most {}", limits.tensors))
                .found(announced.len()));
        }
        let header = header::encode(&announced, &plan.metadata)?;
        let lens = plan.entries.iter().rev().map(|entry| entry.spec.byte_len());
        Ok(Self {
            sink: Sink::new(out, 0),
            header: Some(header),
            outstanding: lens.collect(),
            left,
            alignment,
        })
    }

    /// Pads the finished tensor, and skips empty ones.
    fn settle(&mut self) -> Result<(), Error> {
        if let Some(header) = self.header.take() {
            self.sink.write(&header)?;
        }
        while self.outstanding.last() == Some(&0) {
            self.outstanding.pop();
            let end = self.sink.position().next_multiple_of(self.alignment);
            self.sink.pad_to(end)?;
        }
        Ok(())
    }
}

impl<W: Write + Send> TensorWriter for GgufWriter<W> {
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 > self.left {
            let error = Error::new(ErrorKind::SizeMismatch, "more bytes than the tensors have");
            return Err(error
                .expected(format_args!("at most {}", self.left))
                .found(bytes.len()));
        }
        self.settle()?;
        self.left -= bytes.len() as u64;
        while let Some(left) = self.outstanding.last().copied().filter(|_| !bytes.is_empty()) {
            let len = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (now, rest) = bytes.split_at(len);
            self.sink.write(now)?;
            bytes = rest;
            if let Some(left) = self.outstanding.last_mut() {
                *left -= len as u64;
            }
            self.settle()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<u64, Error> {
        self.settle()?;
        if let Some(missing) = self.outstanding.last() {
            let error = Error::new(ErrorKind::SizeMismatch, "bytes of a tensor are missing");
            return Err(error.found(format_args!("{missing} bytes less")));
        }
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

/// Returns the type for a tensor, if the format supports it.
fn checked(entry: &PlannedEntry, limits: &Limits) -> Result<GgmlType, Error> {
    let unsupported = |what: &str| Error::new(ErrorKind::Unsupported, what);
    if let Some(key) = entry.attributes.keys().next() {
        let key = tensor_core::Quoted(key);
        return Err(unsupported(&format!(
            "the format has no place for the attribute {key}"
        )));
    }
    if entry.layout != Layout::Dense {
        return Err(unsupported("the layout")
            .expected("dense: the format has no other")
            .found(&entry.layout));
    }
    if entry.name.is_empty() || entry.name.len() as u64 > limits.name_bytes {
        let error = Error::new(ErrorKind::BadName, "the length of the name");
        return Err(error
            .expected(format_args!("1 to {} bytes", limits.name_bytes))
            .found(entry.name.len()));
    }
    let dims = dims_of(entry);
    if dims.len() > MOST_DIMS {
        return Err(unsupported("the rank")
            .expected(format_args!(
                "at most {MOST_DIMS} dimensions: the format has no more"
            ))
            .found(dims.len()));
    }
    let ggml = match &entry.opaque {
        Some((dtype, _)) => match GgmlType::of_opaque(dtype) {
            Some(ggml) => ggml,
            None => return entry.check_dtype().and(Err(unsupported("the dtype"))),
        },
        None => {
            let dtype = entry.spec.dtype();
            GgmlType::of_dtype(dtype).ok_or_else(|| {
                unsupported("the dtype")
                    .expected("one that GGML has: f16, bf16, f32, f64, i8 to i64, or blocks of its own")
                    .found(dtype)
            })?
        }
    };
    let row = dims.last().copied().unwrap_or(1);
    if !row.is_multiple_of(ggml.elements.into()) {
        return Err(unsupported("the last dimension")
            .expected(format_args!("whole blocks of {} elements", ggml.elements))
            .found(row));
    }
    Ok(ggml)
}
