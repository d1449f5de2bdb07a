//! Parses the untrusted bytes of an index into validated entries.

use std::ops::Range;

use flatbuffers::{ErrorTraceDetail, InvalidFlatbuffer, Table, VOffsetT, VerifierOptions, root_with_opts};
use fmt_core::{Entry, Error, ErrorKind, ReadOptions, StoredDType, check_name, reserve};
use tensor_core::{Shape, SpecError, TensorSpec};

use crate::{
    generated::tensor_buffers::{DataType, TensorBuffersMetadata, TensorMetadata},
    layout::{DATA_START, dtype_of},
    names::NameTable,
};

/// The validated contents of an index.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) version: String,
    pub(crate) model: Option<String>,
    pub(crate) entries: Vec<Entry>,
    /// For each tensor, in the order of `entries`, the data that [`Entry`] lacks.
    pub(crate) stored: Vec<StoredTensor>,
    names: NameTable,
    /// Whether the root table has unknown fields.
    root_has_unknown_fields: bool,
}

/// Additional data of a tensor in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) id: u64,
    pub(crate) dtype: DataType,
    /// Whether the tensor's table has unknown fields.
    pub(crate) has_unknown_fields: bool,
}

impl Index {
    /// Parses and validates an index at byte `start` of its file. All tensor data must end before `start`.
    pub(crate) fn parse(bytes: &[u8], start: u64, options: &ReadOptions) -> Result<Self, Error> {
        let root = verify(bytes, start, options)?;
        let tensors = root.tensors().unwrap_or_default();
        let count = tensors.len();
        let limit = options.limits.tensors;
        if count as u64 > limit {
            let error = Error::new(ErrorKind::TooLarge, "the number of tensors")
                .at(start)
                .rule("T20");
            return Err(error
                .expected(format_args!("at most {limit}, the reader's limit"))
                .found(count));
        }
        // The verifier rejects larger counts, since a vector's length has 32 bits.
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let name = |number: u32| tensors.get(number as usize).name();

        // Names are checked before entries are allocated: an index may refer to one table many times, so
        // entries can take much more memory than the index.
        let names = NameTable::new(count, name);
        if !options.lenient {
            check_names(&names, &tensors, start, name)?;
        }
        let mut check = Check {
            start,
            options,
            ranges: room_for(count, start)?,
            dims: [0; Shape::MAX_RANK],
        };
        let mut entries = room_for(count, start)?;
        let mut stored = room_for(count, start)?;
        for tensor in tensors {
            entries.push(
                check
                    .entry(&tensor)
                    .map_err(|error| error.of_tensor(tensor.name()))?,
            );
            stored.push(StoredTensor {
                id: tensor.id(),
                dtype: tensor.data_type(),
                has_unknown_fields: has_fields_behind(&tensor._tab, TensorMetadata::VT_DATA_SIZE),
            });
        }
        if !options.lenient {
            check.overlaps(&entries)?;
        }
        Ok(Self {
            version: root.version().to_owned(),
            model: root.model().map(str::to_owned),
            entries,
            stored,
            names,
            root_has_unknown_fields: has_fields_behind(&root._tab, TensorBuffersMetadata::VT_TENSORS),
        })
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let name_of = |number: u32| &*self.entries[number as usize].name;
        Some(self.names.find(name, name_of)? as usize)
    }

    /// Returns whether any table of the index has fields that the schema does not define.
    pub(crate) fn has_unknown_fields(&self) -> bool {
        self.root_has_unknown_fields || self.stored.iter().any(|stored| stored.has_unknown_fields)
    }
}

/// Allocates a vector for `count` items. Fails if memory is exhausted.
fn room_for<T>(count: u32, start: u64) -> Result<Vec<T>, Error> {
    let mut room = Vec::new();
    reserve(&mut room, count.into()).map_err(|error| error.at(start).rule("T20"))?;
    Ok(room)
}

/// Returns whether a table has a field after the last field of the schema.
fn has_fields_behind(table: &Table<'_>, last: VOffsetT) -> bool {
    let vtable = table.vtable();
    let len = vtable.num_bytes();
    (usize::from(last) + 2..len)
        .step_by(2)
        .any(|at| VOffsetT::try_from(at).is_ok_and(|at| vtable.get(at) != 0))
}

/// Verifies that all fields of the schema are in bounds, and that traversing the index takes time
/// proportional to its size.
fn verify<'a>(
    bytes: &'a [u8],
    start: u64,
    options: &ReadOptions,
) -> Result<TensorBuffersMetadata<'a>, Error> {
    let tensors = usize::try_from(options.limits.tensors).unwrap_or(usize::MAX);
    let opts = VerifierOptions {
        // Tables nest two levels deep: the root and its tensors.
        max_depth: 2,
        // Each distinct tensor takes more than 16 bytes: its slot in the vector, its table, its name.
        max_tables: (bytes.len() / 16).min(tensors).saturating_add(1),
        // Tables, vtables, shapes and names may be shared, but traversing them must stay bounded. The
        // verifier adds sizes before it compares, so the limit leaves headroom on 32-bit systems.
        max_apparent_size: bytes.len().saturating_mul(16).min(usize::MAX / 2),
        ignore_missing_null_terminator: false,
    };
    root_with_opts::<TensorBuffersMetadata<'_>>(&opts, bytes)
        .map_err(|error| broken(error, start, bytes.len()))
}

/// Converts the verifier's error to one with the position in the file and the broken rule.
fn broken(error: InvalidFlatbuffer, start: u64, len: usize) -> Error {
    let in_file = |at: usize| start.saturating_add(at as u64);
    let malformed =
        |what: &str, trace: &[ErrorTraceDetail], at, rule| malformed(start, what, trace, at, rule);
    let outside = |what: &str, trace: &[ErrorTraceDetail], at| {
        malformed(what, trace, at, "F1").expected(format_args!("bytes within {} to {}", start, in_file(len)))
    };
    match error {
        InvalidFlatbuffer::RangeOutOfBounds { range, error_trace } => outside(
            "leads outside of it",
            error_trace.as_ref(),
            range.start,
        )
        .found(format_args!("{} to {}", in_file(range.start), in_file(range.end))),
        InvalidFlatbuffer::SignedOffsetOutOfBounds {
            soffset,
            position,
            error_trace,
        } => outside(
            "has its list of fields outside of it",
            error_trace.as_ref(),
            position,
        )
        .found(format_args!("{soffset} bytes before byte {}", in_file(position))),
        InvalidFlatbuffer::Unaligned {
            position,
            unaligned_type,
            error_trace,
        } => {
            let error = malformed("is not aligned", error_trace.as_ref(), position, "F2");
            error
                .expected(format_args!(
                    "a place for {unaligned_type} relative to byte {start}"
                ))
                .found(format_args!("byte {}", in_file(position)))
        }
        InvalidFlatbuffer::Utf8Error {
            error,
            range,
            error_trace,
        } => {
            let at = range.start.saturating_add(error.valid_up_to());
            malformed("is not UTF-8", error_trace.as_ref(), at, "F3")
                .found(format_args!("byte {} that is not", in_file(at)))
        }
        InvalidFlatbuffer::MissingNullTerminator { range, error_trace } => malformed(
            "does not end with a zero byte",
            error_trace.as_ref(),
            range.end,
            "F4",
        ),
        InvalidFlatbuffer::MissingRequiredField {
            required,
            error_trace,
        } => malformed(
            &format!("lacks its field '{required}'"),
            error_trace.as_ref(),
            0,
            "F5",
        ),
        InvalidFlatbuffer::TooManyTables => too_large(start, "lists more tensors than it has room for"),
        InvalidFlatbuffer::ApparentSizeTooLarge => too_large(start, "refers to the same bytes repeatedly"),
        // The schema has neither unions nor tables within tensors.
        InvalidFlatbuffer::InconsistentUnion { error_trace, .. } => {
            malformed("has an unexpected type", error_trace.as_ref(), 0, "F6")
        }
        InvalidFlatbuffer::DepthLimitReached => too_large(start, "is nested too deeply"),
    }
}

/// Creates the error for a field that breaks a rule. `at` is its offset in the index, for paths without one.
fn malformed(start: u64, what: &str, trace: &[ErrorTraceDetail], at: usize, rule: &'static str) -> Error {
    let (path, field) = path(trace);
    let error = Error::new(ErrorKind::Malformed, format!("the index: {path} {what}"));
    let at = field.unwrap_or(at) as u64;
    error.at(start.saturating_add(at)).rule(rule)
}

/// Returns the path to where the verifier stopped, such as `tensors[3].name`, and the position of its last
/// field.
fn path(steps: &[ErrorTraceDetail]) -> (String, Option<usize>) {
    let mut path = String::new();
    // The innermost step comes first.
    for step in steps.iter().rev() {
        match step {
            ErrorTraceDetail::VectorElement { index, .. } => path.push_str(&format!("[{index}]")),
            ErrorTraceDetail::TableField { field_name, .. } => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(field_name);
            }
            ErrorTraceDetail::UnionVariant { variant, .. } => path.push_str(variant),
        }
    }
    if path.is_empty() {
        path.push_str("the root");
    }
    let field = steps.first().map(|step| match step {
        ErrorTraceDetail::VectorElement { position, .. }
        | ErrorTraceDetail::TableField { position, .. }
        | ErrorTraceDetail::UnionVariant { position, .. } => *position,
    });
    (path, field)
}

fn too_large(start: u64, what: &str) -> Error {
    Error::new(ErrorKind::TooLarge, format!("the index {what}"))
        .at(start)
        .rule("F6")
}

/// The vector of tensors in an index.
type Tensors<'a> = flatbuffers::Vector<'a, flatbuffers::ForwardsUOffset<TensorMetadata<'a>>>;

/// Checks that names are unique.
fn check_names<'a>(
    names: &NameTable,
    tensors: &Tensors<'a>,
    start: u64,
    name: impl Fn(u32) -> &'a str,
) -> Result<(), Error> {
    let Some((first, second)) = names.duplicate(&name) else {
        return Ok(());
    };
    let what = format!("tensors {first} and {second} have the same name");
    let error = Error::new(ErrorKind::Duplicate, what).of_tensor(name(second));
    let at = tensors.get(second as usize)._tab.loc();
    Err(error.at(start + at as u64).rule("T7"))
}

/// Checks tensors one by one, and collects the ranges of their data.
struct Check<'o> {
    /// The start of the index: data must be before it.
    start: u64,
    options: &'o ReadOptions,
    /// Data ranges of nonempty tensors: the start in the upper 32 bits, the length in the lower 32 bits.
    ranges: Vec<u64>,
    /// Buffer for the dimensions of one tensor.
    dims: [u64; Shape::MAX_RANK],
}

impl Check<'_> {
    fn entry(&mut self, tensor: &TensorMetadata<'_>) -> Result<Entry, Error> {
        let positions = FieldPositions {
            start: self.start,
            table: &tensor._tab,
        };
        let name = tensor.name();
        check_name(name, self.options)
            .map_err(|error| error.at(positions.of(TensorMetadata::VT_NAME)).rule("T19"))?;
        let shape = self.shape(tensor, &positions)?;
        let (offset, size) = (u64::from(tensor.data_offset()), u64::from(tensor.data_size()));
        let number = tensor.data_type();
        let Some(dtype) = dtype_of(number) else {
            let range = self.range(offset, size, &positions)?;
            let dtype = StoredDType::Unknown(number.0.to_string());
            let mut entry = Entry::new(name.to_owned(), dtype, shape, range);
            entry.unsupported = Some(format!("the dtype {} is not one of the format's", number.0));
            return Ok(entry);
        };
        let spec = TensorSpec::new(dtype, shape).map_err(|error| positions.overflow(&error))?;
        let expected = spec.byte_len();
        if expected != size {
            let error = Error::new(ErrorKind::SizeMismatch, "the size of the data");
            let error = error
                .expected(format_args!("{expected} bytes for {spec}"))
                .found(size);
            return Err(error.at(positions.of(TensorMetadata::VT_DATA_SIZE)).rule("T18"));
        }
        let range = self.range(offset, size, &positions)?;
        let (dtype, shape) = spec.into_parts();
        Ok(Entry::new(
            name.to_owned(),
            StoredDType::Known(dtype),
            shape,
            range,
        ))
    }

    fn shape(&mut self, tensor: &TensorMetadata<'_>, positions: &FieldPositions<'_>) -> Result<Shape, Error> {
        let Some(dims) = tensor.shape() else {
            return Ok(Shape::scalar());
        };
        let limit = self.options.limits.rank.min(Shape::MAX_RANK as u64);
        if dims.len() as u64 > limit {
            let error = Error::new(ErrorKind::TooLarge, "the rank");
            let error = error.at(positions.of(TensorMetadata::VT_SHAPE)).rule("T20");
            return Err(error
                .expected(format_args!("at most {limit}, the reader's limit"))
                .found(dims.len()));
        }
        for (dim, stored) in self.dims.iter_mut().zip(dims) {
            *dim = u64::from(stored);
        }
        Shape::new(&self.dims[..dims.len()]).map_err(|error| positions.overflow(&error))
    }

    /// Checks that data lies between the magic and the index; the offset of an empty tensor only has to be
    /// before the index.
    fn range(&mut self, offset: u64, size: u64, positions: &FieldPositions<'_>) -> Result<Range<u64>, Error> {
        let end = offset + size;
        let is_inside = end <= self.start && (size == 0 || offset >= DATA_START);
        if !is_inside {
            let error = Error::new(ErrorKind::OutOfBounds, "the data lies outside");
            return Err(error
                .at(positions.of(TensorMetadata::VT_DATA_OFFSET))
                .expected(format_args!("bytes {DATA_START} to {}", self.start))
                .found(format_args!("bytes {offset} to {end}"))
                .rule(if size == 0 { "T11" } else { "T13" }));
        }
        if size > 0 {
            self.ranges.push(offset << 32 | size);
        }
        Ok(offset..end)
    }

    /// Checks that ranges are disjoint or equal. Start and length are packed into one 64-bit word, because
    /// sorting words is much faster than sorting ranges. Sorting takes a large part of the time to open a
    /// file.
    fn overlaps(mut self, entries: &[Entry]) -> Result<(), Error> {
        let range = |packed: u64| (packed >> 32)..(packed >> 32) + (packed & u64::from(u32::MAX));
        self.ranges.sort_unstable();
        let shares_a_part = |pair: &&[u64]| pair[0] != pair[1] && range(pair[1]).start < range(pair[0]).end;
        let Some(pair) = self.ranges.windows(2).find(shares_a_part) else {
            return Ok(());
        };
        let (first, second) = (range(pair[0]), range(pair[1]));
        let named = |range: &Range<u64>| {
            entries
                .iter()
                .find(|entry| entry.range == *range)
                .map_or("", |entry| &entry.name)
        };
        let what = format!(
            "the data overlaps that of tensor {}",
            tensor_core::QuotedName(named(&first))
        );
        let error = Error::new(ErrorKind::Overlap, what)
            .of_tensor(named(&second))
            .at(second.start);
        let found = format!(
            "bytes {} to {} and {} to {}",
            first.start, first.end, second.start, second.end
        );
        Err(error
            .expected("ranges apart or the same")
            .found(found)
            .rule("T12"))
    }
}

/// Finds positions of a table's fields, for errors.
struct FieldPositions<'a> {
    /// The start of the index.
    start: u64,
    table: &'a Table<'a>,
}

impl FieldPositions<'_> {
    fn of(&self, field: VOffsetT) -> u64 {
        self.start + self.table.loc() as u64 + u64::from(self.table.vtable().get(field))
    }

    fn overflow(&self, error: &SpecError) -> Error {
        let error = Error::new(ErrorKind::Overflow, error.to_string());
        error.at(self.of(TensorMetadata::VT_SHAPE)).rule("T21")
    }
}
