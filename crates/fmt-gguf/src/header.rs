//! What `gguf-rs-lib` makes of a header, in the words of `fmt-core`.

use std::{
    io::{self, BufReader, Read, Seek, SeekFrom},
    sync::Arc,
};

use fmt_core::{ByteSource, Entry, Error, ErrorKind, Metadata, ReadOptions, StoredDType, read_range};
use gguf_rs_lib::{
    prelude::{GGUFError, GGUFFileReader, MetadataValue},
    reader::file_reader::GGUFReaderConfig,
    tensor::TensorInfo,
};
use serde_json::{Number, Value};
use tensor_core::Shape;

use crate::types::GgmlType;

pub(crate) const FORMAT: &str = "gguf";

/// Everything that a file says before its data.
pub(crate) struct Header {
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: Metadata,
}

impl Header {
    pub(crate) fn read(source: &Arc<dyn ByteSource>, options: &ReadOptions) -> Result<Self, Error> {
        check_counts(&**source)?;
        let limits = &options.limits;
        let most = usize::try_from(limits.index_bytes).unwrap_or(usize::MAX);
        let config = GGUFReaderConfig {
            max_metadata_size: most,
            max_decoded_metadata_size: most,
            ..GGUFReaderConfig::default()
        };
        let position = Position {
            source: Arc::clone(source),
            at: 0,
        };
        let file = GGUFFileReader::with_config(BufReader::new(position), config);
        let file = file.map_err(judged)?;
        let found = file.tensor_count() as u64;
        if found > limits.tensors {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors").rule("G2");
            return Err(error
                .expected(format_args!("at most {}, the reader's limit", limits.tensors))
                .found(found));
        }
        let start = file.tensor_data_offset();
        let entries = file
            .tensor_infos()
            .iter()
            .map(|info| entry(info, start, source.len()));
        let metadata = file
            .metadata()
            .iter()
            .map(|(key, value)| (key.clone(), text(value)));
        Ok(Self {
            entries: entries.collect::<Result<_, _>>()?,
            metadata: metadata.collect(),
        })
    }
}

/// Holds the counts at the beginning against what the file has room for: `gguf-rs-lib` makes room for as many values as are
/// announced, up to a limit of its own. What is wrong otherwise is its to say.
fn check_counts(source: &dyn ByteSource) -> Result<(), Error> {
    /// Magic, version, both counts.
    const START: u64 = 24;
    if source.len() < START {
        return Ok(());
    }
    let start = read_range(source, 0..START, "the beginning of the header")?;
    let room = source.len() - START;
    // The least that one takes: a tensor its lengths, type and offset, a value its length, type and one byte.
    for (what, at, least) in [("tensors", 8, 24), ("metadata values", 16, 13)] {
        let count = start[at..]
            .first_chunk()
            .map_or(0, |word| u64::from_le_bytes(*word));
        if count > room / least && start.starts_with(b"GGUF") {
            let error = Error::new(ErrorKind::Truncated, format!("the number of {what}"));
            return Err(error
                .at(at as u64)
                .rule("G2")
                .expected(format_args!(
                    "at most {}, for which the file has room",
                    room / least
                ))
                .found(count));
        }
    }
    Ok(())
}

/// A tensor that `gguf-rs-lib` has checked; what later reading relies on is proven here once more.
fn entry(info: &TensorInfo, data: u64, len: u64) -> Result<Entry, Error> {
    let malformed = |kind, what: &str| Error::new(kind, what).of_tensor(info.name()).rule("G3");
    // The dimension that changes fastest stands first in the file.
    let dims: Vec<u64> = info.shape().dims().iter().rev().copied().collect();
    let shape = Shape::new(&dims).map_err(|error| malformed(ErrorKind::Overflow, &error.to_string()))?;
    let size = info.checked_expected_data_size().map_err(judged)?;
    let range = data
        .checked_add(info.data_offset())
        .and_then(|start| Some(start..start.checked_add(size)?));
    let range = range.filter(|range| range.end <= len);
    let range =
        range.ok_or_else(|| malformed(ErrorKind::OutOfBounds, "the data lies behind the file's end"))?;
    let ggml = GgmlType::of_number(info.tensor_type() as u32);
    let stored = ggml.map_or_else(
        || StoredDType::Unknown(format!("{:?}", info.tensor_type())),
        GgmlType::stored,
    );
    let mut entry = Entry::new(info.name().to_owned(), stored, shape, range);
    match entry.spec() {
        None => {
            if entry.is_copied_only() && entry.byte_len() != Some(size) {
                let error = malformed(ErrorKind::SizeMismatch, "the size of the data");
                return Err(error
                    .expected(format_args!("whole blocks of {:?}", info.tensor_type()))
                    .found(size));
            }
            let reason = format!("it is quantised, as GGML's {:?}", info.tensor_type());
            entry.unsupported = Some(reason);
        }
        Some(spec) if spec.byte_len() != size => {
            let error = malformed(ErrorKind::SizeMismatch, "the size of the data");
            return Err(error.expected(spec.byte_len()).found(size));
        }
        Some(_) => {}
    }
    Ok(entry)
}

/// A value as text: a string as it is, everything else as JSON.
fn text(value: &MetadataValue) -> String {
    match value {
        MetadataValue::String(text) => text.clone(),
        other => json(other).to_string(),
    }
}

fn json(value: &MetadataValue) -> Value {
    // JSON has no NaN and no infinity.
    let float = |value: f64| Number::from_f64(value).map_or_else(|| value.to_string().into(), Value::Number);
    match value {
        MetadataValue::U8(value) => (*value).into(),
        MetadataValue::I8(value) => (*value).into(),
        MetadataValue::U16(value) => (*value).into(),
        MetadataValue::I16(value) => (*value).into(),
        MetadataValue::U32(value) => (*value).into(),
        MetadataValue::I32(value) => (*value).into(),
        MetadataValue::U64(value) => (*value).into(),
        MetadataValue::I64(value) => (*value).into(),
        MetadataValue::F32(value) => match value.to_string().parse() {
            // The shortest text that is this value, not the double that it is stored as.
            Ok(number) => Value::Number(number),
            Err(_) => float(f64::from(*value)),
        },
        MetadataValue::F64(value) => float(*value),
        MetadataValue::Bool(value) => (*value).into(),
        MetadataValue::String(value) => value.as_str().into(),
        MetadataValue::Array(values) => values.iter().map(json).collect(),
    }
}

/// What `gguf-rs-lib` found wrong. It says the place in words, if at all.
fn judged(error: GGUFError) -> Error {
    /// Characters of a message that are kept; the file's own names stand in some.
    const LONGEST: usize = 300;
    let (kind, rule) = match error {
        GGUFError::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            return Error::io("the header cannot be read", error);
        }
        GGUFError::Io(_) | GGUFError::UnexpectedEof => (ErrorKind::Truncated, "G2"),
        GGUFError::InvalidMagic { .. } => (ErrorKind::BadMagic, "G1"),
        GGUFError::UnsupportedVersion(_) => (ErrorKind::BadVersion, "G1"),
        _ => (ErrorKind::Malformed, "G2"),
    };
    let message = error.to_string();
    let shown = message.chars().take(LONGEST).flat_map(|character| {
        let escaped = character.is_control().then(|| character.escape_default());
        let plain = escaped.is_none().then_some(character);
        escaped.into_iter().flatten().chain(plain)
    });
    Error::new(kind, shown.collect::<String>()).rule(rule)
}

/// A source as something that is read from the beginning on.
struct Position {
    source: Arc<dyn ByteSource>,
    at: u64,
}

impl Read for Position {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.source.len().saturating_sub(self.at);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
        self.source.read_into(self.at, &mut out[..count])?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Position {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.source.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
