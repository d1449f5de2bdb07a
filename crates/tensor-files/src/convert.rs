//! Converts a file to another format: plans the target, finds losses, and reports progress.

use std::{collections::HashMap, fmt, io::Write, ops::ControlFlow, path::Path};

#[cfg(feature = "btf")]
use fmt_core::behind_links;
use fmt_core::{
    AtomicFile, Entry, Error, ErrorKind, Format, Layout, Limits, Metadata, OpaqueDType, OutputFile,
    OutputOptions, Plan, PlannedEntry, StoredDType, TensorReader,
};
use tensor_core::QuotedName;

use crate::{
    loss::{AllowedLoss, Loss},
    read_ahead::read_ahead,
    sources::SourceFiles,
    split::remove_split,
};

/// Options for a conversion.
pub struct ConvertOptions<'a> {
    /// Losses to accept where the target format cannot store something. Any other loss is an error, and then
    /// nothing is written.
    pub allow_loss: AllowedLoss,
    /// Whether to write names and metadata to a file next to the target, if the target has no names (BTF).
    pub names_beside: bool,
    /// Maximum size in bytes of a sparse tensor that is made dense under `allow_loss`.
    pub dense_budget: u64,
    /// The source files; [`SourceFiles`] defines which of them the target may replace.
    pub sources: SourceFiles,
    /// Options for the target: whether it may replace a file, and its permissions.
    pub output: OutputOptions,
    /// Called from time to time with the progress; [`ControlFlow::Break`] aborts the conversion.
    pub on_progress: Option<&'a dyn Fn(Progress) -> ControlFlow<()>>,
    /// Called when all tensors are written, before the target appears. Returns losses found while reading,
    /// such as [`Recast::losses`](crate::Recast::losses).
    pub lost_on_the_way: Option<&'a dyn Fn() -> Vec<Loss>>,
}

impl Default for ConvertOptions<'_> {
    fn default() -> Self {
        Self {
            allow_loss: AllowedLoss::NONE,
            names_beside: true,
            dense_budget: Limits::default().decoded_bytes,
            sources: SourceFiles::default(),
            output: OutputOptions::default(),
            on_progress: None,
            lost_on_the_way: None,
        }
    }
}

impl fmt::Debug for ConvertOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConvertOptions")
            .field("allow_loss", &self.allow_loss)
            .field("names_beside", &self.names_beside)
            .field("dense_budget", &self.dense_budget)
            .finish_non_exhaustive()
    }
}

/// Progress of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Tensor bytes written so far.
    pub done: u64,
    /// Total tensor bytes.
    pub total: u64,
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conversion {
    /// The target's length in bytes.
    pub len: u64,
    /// The parts of the source that the target does not contain, or stores differently.
    pub losses: Vec<Loss>,
}

/// Returns what would be lost in a conversion to `target` with these options.
#[must_use]
pub fn losses(reader: &dyn TensorReader, target: &dyn Format, options: &ConvertOptions<'_>) -> Vec<Loss> {
    AdaptedPlan::new(reader, &own_metadata(reader), target, options).losses
}

/// Converts a file to another format. The target appears at `path` when it is complete.
///
/// Tensors are read and written in pieces, and their checksums are verified. Devices and pipes are written
/// directly; see [`OutputFile`]. When a BTF file is replaced, the names file next to it is removed.
///
/// # Errors
/// [`ErrorKind::Unsupported`] when the target cannot store everything and the loss is not allowed; the
/// message says what. [`ErrorKind::Exists`] when the target is one of several source files,
/// [`ErrorKind::Changed`] when it is the source and was replaced during the conversion. Otherwise the errors
/// of reading and writing, and [`ErrorKind::Io`] when `on_progress` aborted. After an error the target is
/// unchanged; if only the final rename failed, the names file of an old BTF file may already be removed.
pub fn convert(
    reader: &dyn TensorReader,
    target: &dyn Format,
    path: &Path,
    options: &ConvertOptions<'_>,
) -> Result<Conversion, Error> {
    let adapted = AdaptedPlan::new(reader, &own_metadata(reader), target, options);
    adapted.refuse(target, options.allow_loss)?;
    options.sources.check_target(path)?;
    let output = options.sources.output_for(path, &options.output);
    let mut file = OutputFile::create(path, &output)?;
    let len = adapted.write(reader, target, &mut file, options)?;
    let losses = adapted.all_losses(target, options)?;
    let beside = adapted.names_beside(reader, path)?;
    // If another file has replaced the target, that file's names file must not be touched.
    output.check_replaced(path)?;
    remove_names_beside(target, path)?;
    file.persist()?;
    if let Some(beside) = beside {
        beside.persist()?;
    }
    Ok(Conversion { len, losses })
}

/// Converts like [`convert`], but to an output that is not a file, such as standard output. No names file is
/// written.
///
/// # Errors
/// See [`convert`]; on failure the partial output is unusable.
pub fn convert_into(
    reader: &dyn TensorReader,
    target: &dyn Format,
    out: &mut (dyn Write + Send),
    options: &ConvertOptions<'_>,
) -> Result<Conversion, Error> {
    let options = ConvertOptions {
        names_beside: false,
        sources: options.sources.clone(),
        output: options.output.clone(),
        ..*options
    };
    let adapted = AdaptedPlan::new(reader, &own_metadata(reader), target, &options);
    adapted.refuse(target, options.allow_loss)?;
    let len = adapted.write(reader, target, out, &options)?;
    let losses = adapted.all_losses(target, &options)?;
    Ok(Conversion { len, losses })
}

/// Returns a file's metadata without its shard numbers: the target is a single file.
fn own_metadata(reader: &dyn TensorReader) -> Metadata {
    let mut metadata = reader.metadata().clone();
    remove_split(&mut metadata);
    metadata
}

/// Checks that `allowed` permits all losses.
pub(crate) fn refuse(losses: &[Loss], target: &dyn Format, allowed: AllowedLoss) -> Result<(), Error> {
    const SHOWN: usize = 5;
    // Tensors refused for the same reason are listed together.
    let mut reasons: Vec<(String, u64)> = Vec::new();
    let mut places = HashMap::new();
    for loss in losses.iter().filter(|loss| !allowed.allows(loss)) {
        let reason = match loss {
            Loss::Tensor(_, why) => Some(why),
            _ => None,
        };
        match reason.and_then(|why| places.get(why)) {
            Some(&place) => {
                let (_, more): &mut (String, u64) = &mut reasons[place];
                *more += 1;
            }
            None => {
                places.extend(reason.map(|why| (why, reasons.len())));
                reasons.push((loss.to_string(), 0));
            }
        }
    }
    if reasons.is_empty() {
        return Ok(());
    }
    let text = |(first, more): &(String, u64)| match more {
        0 => first.clone(),
        1 => format!("{first} and another one"),
        more => format!("{first} and {more} others"),
    };
    let mut shown: Vec<String> = reasons.iter().take(SHOWN).map(text).collect();
    if reasons.len() > SHOWN {
        shown.push(format!("{} more", reasons.len() - SHOWN));
    }
    let what = format!("{} cannot hold {}", target.id(), shown.join(", "));
    Err(Error::new(ErrorKind::Unsupported, what))
}

/// A plan for the target, reduced to what the target can store, with the losses.
pub(crate) struct AdaptedPlan {
    plan: Plan,
    /// For each planned tensor, its index in the source.
    indices: Vec<usize>,
    pub(crate) losses: Vec<Loss>,
    /// Whether names and metadata go to a file next to the target.
    has_names_beside: bool,
    /// The reason why the target rejects the names, if it does.
    pub(crate) bad_name: Option<Error>,
}

impl AdaptedPlan {
    /// Finds out what the target can store by passing plans to the format, without writing anything.
    pub(crate) fn new(
        reader: &dyn TensorReader,
        metadata: &Metadata,
        target: &dyn Format,
        options: &ConvertOptions<'_>,
    ) -> Self {
        let accepts = |plan: Plan| target.create(Box::new(std::io::sink()), plan).map(drop);
        let alone = |entry: &PlannedEntry| accepts_alone(&accepts, entry);
        let (mut entries, mut indices, mut losses) = (Vec::new(), Vec::new(), Vec::new());
        for (index, entry) in reader.entries().iter().enumerate() {
            match storable(entry, options.dense_budget, alone) {
                Ok((kept, lost)) => {
                    losses.extend(lost);
                    entries.push(kept);
                    indices.push(index);
                }
                Err(lost) => losses.push(lost),
            }
        }
        let mut adapted = Self {
            plan: Plan {
                entries,
                metadata: Metadata::new(),
            },
            indices,
            losses,
            has_names_beside: false,
            bad_name: None,
        };
        adapted.settle_sharing(reader, target);
        adapted.settle_names(target, &accepts, options);
        adapted.settle_metadata(metadata, &accepts);
        let foreign = reader.foreign_parts().iter().cloned().map(Loss::ForeignPart);
        adapted.losses.extend(foreign);
        adapted
    }

    /// Plans to write shared bytes only once if the target can share them; otherwise records the loss.
    fn settle_sharing(&mut self, reader: &dyn TensorReader, target: &dyn Format) {
        for (index, first) in reader.shared() {
            // The indices are in ascending order, because tensors were planned in this order.
            let [number, same_as] = [index, first].map(|index| self.indices.binary_search(&index));
            let (Ok(number), Ok(same_as)) = (number, same_as) else {
                continue;
            };
            if target.shares_bytes() {
                self.plan.entries[number].same_as = Some(same_as);
                continue;
            }
            let [name, of] = [index, first].map(|index| reader.entries()[index].name.clone());
            let bytes = self.plan.entries[number].byte_len().unwrap_or(u64::MAX);
            self.losses.push(Loss::Sharing(name, of, bytes));
        }
    }

    /// Replaces names with indices if the target has no names.
    fn settle_names(
        &mut self,
        target: &dyn Format,
        accepts: &dyn Fn(Plan) -> Result<(), Error>,
        options: &ConvertOptions<'_>,
    ) {
        let refused = accepts(self.plan.clone()).err();
        let Some(bad_name) = refused.filter(|error| error.kind() == ErrorKind::BadName) else {
            return;
        };
        let mut numbered = self.plan.clone();
        for (number, entry) in numbered.entries.iter_mut().enumerate() {
            entry.name = number.to_string();
        }
        // If indices are rejected too, the plan keeps the names, and creating the file reports the error.
        if accepts(numbered.clone()).is_err() {
            return;
        }
        self.plan = numbered;
        self.has_names_beside = options.names_beside && cfg!(feature = "btf") && target.id() == "btf";
        if !self.has_names_beside {
            self.losses.push(Loss::Names);
        }
        self.bad_name = Some(bad_name);
    }

    fn settle_metadata(&mut self, metadata: &Metadata, accepts: &dyn Fn(Plan) -> Result<(), Error>) {
        if accepts(self.plan.clone()).is_err() {
            // The format refuses something other than the metadata; the writer will report it.
            self.plan.metadata = metadata.clone();
            return;
        }
        // A plan with one tensor is enough, since a format accepts a metadata key regardless of the number of
        // tensors.
        let entries = &self.plan.entries[..self.plan.entries.len().min(1)];
        let holds = |metadata: Metadata| {
            let entries = entries.to_vec();
            accepts(Plan { entries, metadata }).is_ok()
        };
        let (held, lost) = held_by(metadata.clone(), holds);
        self.plan.metadata = held;
        if !self.has_names_beside {
            self.losses.extend(lost.map(Loss::Metadata));
        }
    }

    /// Checks that `allowed` permits all losses. If names would be lost, the error contains the name that the
    /// target rejects.
    pub(crate) fn refuse(&self, target: &dyn Format, allowed: AllowedLoss) -> Result<(), Error> {
        refuse(&self.losses, target, allowed).map_err(|error| {
            let is_about_names = self.losses.contains(&Loss::Names) && !allowed.names;
            match self.bad_name.as_ref().filter(|_| is_about_names) {
                Some(bad_name) => Error::new(error.kind(), format!("{error} ({bad_name})")),
                None => error,
            }
        })
    }

    /// Returns all losses, including those found while reading; called after all tensors are written.
    fn all_losses(&self, target: &dyn Format, options: &ConvertOptions<'_>) -> Result<Vec<Loss>, Error> {
        let late = options.lost_on_the_way.map(|lost| lost()).unwrap_or_default();
        refuse(&late, target, options.allow_loss)?;
        Ok([&self.losses[..], &late].concat())
    }

    /// Returns the indices of the tensors to write, in order.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.indices.iter().copied()
    }

    pub(crate) fn write(
        &self,
        reader: &dyn TensorReader,
        target: &dyn Format,
        out: &mut (dyn Write + Send),
        options: &ConvertOptions<'_>,
    ) -> Result<u64, Error> {
        let lens = self
            .plan
            .entries
            .iter()
            .map(|entry| entry.byte_len().unwrap_or(u64::MAX));
        let mut progress = Progress {
            done: 0,
            total: lens.fold(0, u64::saturating_add),
        };
        let mut writer = target.create(Box::new(out), self.plan.clone())?;
        let planned = self.plan.entries.iter().zip(&self.indices);
        for (planned, &index) in planned.filter(|(planned, _)| planned.same_as.is_none()) {
            let mut write = |bytes: &[u8]| {
                writer.write(bytes)?;
                progress.done += bytes.len() as u64;
                match options.on_progress.map(|tell| tell(progress)) {
                    Some(ControlFlow::Break(())) => {
                        Err(Error::new(ErrorKind::Io, "the conversion was stopped"))
                    }
                    _ => Ok(()),
                }
            };
            let named = |error: Error| error.of_tensor(&reader.entries()[index].name);
            copy(reader, index, planned, options, &mut write).map_err(named)?;
        }
        writer.finish()
    }

    /// Writes the names file next to the target, complete but not persisted.
    #[cfg(feature = "btf")]
    pub(crate) fn names_beside(
        &self,
        reader: &dyn TensorReader,
        path: &Path,
    ) -> Result<Option<AtomicFile>, Error> {
        if !self.has_names_beside {
            return Ok(None);
        }
        let names = self
            .indices
            .iter()
            .map(|index| reader.entries()[*index].name.clone());
        let names = fmt_btf::Names::new(names.collect(), own_metadata(reader))?;
        let mut file = AtomicFile::create(&fmt_btf::Names::path_for(&behind_links(path)))?;
        let written = file.write_all(names.to_json().as_bytes());
        written.map_err(|error| Error::io("the file of names cannot be written", error))?;
        Ok(Some(file))
    }

    #[cfg(not(feature = "btf"))]
    pub(crate) fn names_beside(
        &self,
        _reader: &dyn TensorReader,
        _path: &Path,
    ) -> Result<Option<AtomicFile>, Error> {
        Ok(None)
    }
}

/// Checks that a format accepts a plan with the single tensor `entry`.
fn accepts_alone(accepts: &impl Fn(Plan) -> Result<(), Error>, entry: &PlannedEntry) -> Result<(), Error> {
    let plan = |name: &str| Plan {
        entries: vec![PlannedEntry {
            name: name.to_owned(),
            ..entry.clone()
        }],
        metadata: Metadata::new(),
    };
    // A format without names accepts only indices.
    accepts(plan(&entry.name)).or_else(|error| match error.kind() {
        ErrorKind::BadName => accepts(plan("0")),
        _ => Err(error),
    })
}

/// Plans to store as much of the tensor `entry` as a format can, and returns the plan with the losses. An
/// `Err` means that the whole tensor is lost. A sparse tensor of at most `dense_budget` bytes may become
/// dense. `alone` checks whether the format accepts a tensor.
fn storable(
    entry: &Entry,
    dense_budget: u64,
    alone: impl Fn(&PlannedEntry) -> Result<(), Error>,
) -> Result<(PlannedEntry, Vec<Loss>), Loss> {
    let lost = |why: String| Loss::Tensor(entry.name.clone(), why);
    let mut kept = planned(entry).map_err(|why| lost(why.to_string()))?;
    let attributes = std::mem::take(&mut kept.attributes);
    let mut losses = Vec::new();
    if let Err(error) = alone(&kept) {
        let dense = PlannedEntry::dense(&*kept.name, kept.spec.clone());
        let can_be_dense =
            kept.layout != Layout::Dense && kept.spec.byte_len() <= dense_budget && alone(&dense).is_ok();
        if !can_be_dense {
            return Err(lost(without_name(&error, &entry.name)));
        }
        losses.push(Loss::Sparsity(entry.name.clone()));
        kept = dense;
    }
    let without = kept.clone();
    let holds = |attributes: Metadata| {
        let with = PlannedEntry {
            attributes,
            ..without.clone()
        };
        alone(&with).is_ok()
    };
    let (held, lost) = held_by(attributes, holds);
    kept.attributes = held;
    losses.extend(lost.map(|key| Loss::Attribute(entry.name.clone(), key)));
    Ok((kept, losses))
}

/// Splits `texts` into the entries that a format can store and the keys of all others. If the format refuses
/// all of them together, tries each entry alone.
fn held_by(texts: Metadata, holds: impl Fn(Metadata) -> bool) -> (Metadata, impl Iterator<Item = String>) {
    if texts.is_empty() || holds(texts.clone()) {
        return (texts, Vec::new().into_iter());
    }
    let (held, lost): (Vec<_>, Vec<_>) = texts
        .into_iter()
        .partition(|(key, value)| holds([(key.clone(), value.clone())].into()));
    let lost: Vec<String> = lost.into_iter().map(|(key, _)| key).collect();
    (held.into_iter().collect(), lost.into_iter())
}

/// Returns an error's message without the leading tensor name.
fn without_name(error: &Error, name: &str) -> String {
    let text = error.to_string();
    let stripped = |name| text.strip_prefix(&format!("tensor {}: ", QuotedName(name)));
    // A format without names identifies the tensor by index.
    let stripped = stripped(name).or_else(|| stripped("0")).map(str::to_owned);
    stripped.unwrap_or(text)
}

/// Removes the names files next to the file to be replaced and next to a link to it, because the new tensors
/// must not get the old names. The old file is replaced afterwards: if that fails, a file without names is
/// better than a file with wrong names.
#[cfg(feature = "btf")]
pub(crate) fn remove_names_beside(target: &dyn Format, path: &Path) -> Result<(), Error> {
    if target.id() != "btf" {
        return Ok(());
    }
    for path in [&behind_links(path), path] {
        match std::fs::remove_file(fmt_btf::Names::path_for(path)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let message = "the names of the file that is replaced cannot be removed";
                return Err(Error::io(message, error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(not(feature = "btf"))]
pub(crate) fn remove_names_beside(_target: &dyn Format, _path: &Path) -> Result<(), Error> {
    Ok(())
}

/// The reason why a tensor cannot be planned.
#[derive(Debug)]
enum Unplanned {
    Unsupported(String),
    /// The tensor's elements do not fill whole blocks.
    Blocks(OpaqueDType),
    DType(StoredDType),
    Layout,
}

impl fmt::Display for Unplanned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(why) => f.write_str(why),
            Self::Blocks(dtype) => write!(f, "its elements are not whole blocks of {dtype}"),
            Self::DType(dtype) => write!(f, "its dtype is {dtype}"),
            Self::Layout => f.write_str("its layout is not known"),
        }
    }
}

/// Plans a tensor as if the target could store everything; fails if the tensor cannot be read.
fn planned(entry: &Entry) -> Result<PlannedEntry, Unplanned> {
    if let (StoredDType::Opaque(dtype), true) = (&entry.dtype, entry.is_copied_only()) {
        let planned = PlannedEntry::opaque(&*entry.name, dtype.clone(), entry.shape.clone());
        let mut planned = planned.ok_or_else(|| Unplanned::Blocks(dtype.clone()))?;
        planned.attributes = entry.attributes.to_map();
        return Ok(planned);
    }
    if let Some(why) = &entry.unsupported {
        return Err(Unplanned::Unsupported(why.clone()));
    }
    let spec = entry
        .spec()
        .ok_or_else(|| Unplanned::DType(entry.dtype.clone()))?;
    let mut planned = match entry.layout {
        Layout::Dense => PlannedEntry::dense(&*entry.name, spec),
        Layout::Coo { nnz } => PlannedEntry::coo(&*entry.name, spec, nnz),
        _ => return Err(Unplanned::Layout),
    };
    planned.attributes = entry.attributes.to_map();
    Ok(planned)
}

/// Copies the bytes of one tensor.
fn copy(
    reader: &dyn TensorReader,
    index: usize,
    planned: &PlannedEntry,
    options: &ConvertOptions<'_>,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    /// Bytes per piece, few enough to stay in the CPU cache between reading and writing.
    const PIECE: usize = 1 << 20;
    let entry = &reader.entries()[index];
    if let Layout::Coo { .. } = entry.layout {
        // Writers require sorted entries, which also compress best.
        let sparse = reader.sparse(index)?.sorted();
        let sparse = sparse.map_err(|error| Error::new(ErrorKind::Duplicate, error.to_string()))?;
        if planned.layout == Layout::Dense {
            let dense = sparse.to_dense(options.dense_budget);
            let dense = dense.map_err(|error| Error::new(ErrorKind::TooLarge, error.to_string()))?;
            return in_pieces(dense.bytes(), PIECE, write);
        }
        write(sparse.indices().bytes())?;
        return write(sparse.values().bytes());
    }
    read_ahead(reader, index, write)
}

fn in_pieces(
    bytes: &[u8],
    piece: usize,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    bytes.chunks(piece).try_for_each(write)
}
