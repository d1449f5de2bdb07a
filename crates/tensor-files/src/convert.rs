//! A file written again in another format: what is planned, what would be lost, and how far it has come.

use std::{collections::HashMap, fmt, io::Write, ops::ControlFlow, path::Path};

#[cfg(feature = "btf")]
use fmt_core::behind_links;
use fmt_core::{
    AtomicFile, Entry, Error, ErrorKind, Format, Layout, Limits, Metadata, OpaqueDType, OutputFile,
    OutputOptions, Plan, PlannedEntry, StoredDType, TensorReader,
};
use tensor_core::Quoted;

use crate::{
    ahead::read_ahead,
    loss::{AllowedLoss, Loss},
    sources::SourceFiles,
    split::remove_split,
};

/// How a file is converted.
pub struct ConvertOptions<'a> {
    /// Losses that are allowed if the target cannot hold something. All others are errors before anything is written.
    pub allow_loss: AllowedLoss,
    /// Where the target has no names (BTF), keep names and metadata in a file beside it.
    pub names_beside: bool,
    /// Bytes that a sparse tensor may take when it is made dense, with `allow_loss`.
    pub dense_budget: u64,
    /// The files that are read, which the target does not put in danger.
    pub sources: SourceFiles,
    /// How the target is made: whether it may replace a file, and its permissions.
    pub output: OutputOptions,
    /// Told now and then how far it has come; the file is given up when it says [`ControlFlow::Break`].
    pub on_progress: Option<&'a dyn Fn(Progress) -> ControlFlow<()>>,
    /// Asked when all tensors are written, before the target appears: what the reader found to be lost on the way, such
    /// as [`Recast::losses`](crate::Recast::losses).
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

/// How far a conversion has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of tensors that have been written.
    pub done: u64,
    /// Bytes of tensors in all.
    pub total: u64,
}

/// The result of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Converted {
    /// The target's length in bytes.
    pub len: u64,
    /// What it does not hold.
    pub losses: Vec<Loss>,
}

/// What a target could not hold of a file, if it were converted with these options.
#[must_use]
pub fn losses(reader: &dyn TensorReader, target: &dyn Format, options: &ConvertOptions<'_>) -> Vec<Loss> {
    Adapted::new(reader, &own_metadata(reader), target, options).losses
}

/// Writes the tensors of a file into one of another format, which appears at `path` when it is complete.
///
/// Tensors are read and written in pieces, and checked against their checksums on the way. A device or a pipe is written
/// through, see [`OutputFile`]. A BTF file's names, which stand beside it, go when it is replaced.
///
/// # Errors
/// [`ErrorKind::Unsupported`] when the target cannot hold everything and loss is not allowed: the message says what.
/// [`ErrorKind::Exists`] when the target is one of several files of the source, [`ErrorKind::Changed`] when it is the
/// source, and another file has taken its name meanwhile. Else what reading and writing come to, and [`ErrorKind::Io`] when progress was told to stop. The target is untouched
/// then; where the new file is complete and cannot take its place, the names beside an old BTF file may be gone.
pub fn convert(
    reader: &dyn TensorReader,
    target: &dyn Format,
    path: &Path,
    options: &ConvertOptions<'_>,
) -> Result<Converted, Error> {
    let adapted = Adapted::new(reader, &own_metadata(reader), target, options);
    adapted.refuse(target, options.allow_loss)?;
    options.sources.check_target(path)?;
    let output = options.sources.output_for(path, &options.output);
    let mut file = OutputFile::create(path, &output)?;
    let len = adapted.write(reader, target, &mut file, options)?;
    let losses = adapted.all_losses(target, options)?;
    let beside = adapted.names_beside(reader, path)?;
    // The names beside another file are that file's.
    output.check_replaced(path)?;
    remove_names_beside(target, path)?;
    file.persist()?;
    if let Some(beside) = beside {
        beside.persist()?;
    }
    Ok(Converted { len, losses })
}

/// As [`convert`], into what is not a file, such as standard output. There is no place for names beside it.
///
/// # Errors
/// As [`convert`]; what was written by then is of no use.
pub fn convert_into(
    reader: &dyn TensorReader,
    target: &dyn Format,
    out: &mut (dyn Write + Send),
    options: &ConvertOptions<'_>,
) -> Result<Converted, Error> {
    let options = ConvertOptions {
        names_beside: false,
        sources: options.sources.clone(),
        output: options.output.clone(),
        ..*options
    };
    let adapted = Adapted::new(reader, &own_metadata(reader), target, &options);
    adapted.refuse(target, options.allow_loss)?;
    let len = adapted.write(reader, target, out, &options)?;
    let losses = adapted.all_losses(target, &options)?;
    Ok(Converted { len, losses })
}

/// What a file says of itself, without its place among the files of a model: what is made of it is one file.
fn own_metadata(reader: &dyn TensorReader) -> Metadata {
    let mut metadata = reader.metadata().clone();
    remove_split(&mut metadata);
    metadata
}

/// Fails for what may not be lost.
pub(crate) fn refuse(losses: &[Loss], target: &dyn Format, allowed: AllowedLoss) -> Result<(), Error> {
    const SHOWN: usize = 5;
    // Tensors that are refused for the same reason stand together.
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

/// A file's plan as the target can hold it, and what is lost by that.
pub(crate) struct Adapted {
    plan: Plan,
    /// For each planned tensor its index in the file.
    indices: Vec<usize>,
    pub(crate) losses: Vec<Loss>,
    /// Whether names and metadata go to a file beside the target.
    has_names_beside: bool,
    /// Why the target does not take the names, if it does not.
    pub(crate) bad_name: Option<Error>,
}

impl Adapted {
    /// Finds out by asking: a format is offered plans, and nothing is written.
    pub(crate) fn new(
        reader: &dyn TensorReader,
        metadata: &Metadata,
        target: &dyn Format,
        options: &ConvertOptions<'_>,
    ) -> Self {
        let accepts = |plan: Plan| target.create(Box::new(std::io::sink()), plan).map(drop);
        let alone = |entry: &PlannedEntry| {
            let plan = |name: &str| Plan {
                entries: vec![PlannedEntry {
                    name: name.to_owned(),
                    ..entry.clone()
                }],
                metadata: Metadata::new(),
            };
            // A format without names takes a number only.
            accepts(plan(&entry.name)).or_else(|error| match error.kind() {
                ErrorKind::BadName => accepts(plan("0")),
                _ => Err(error),
            })
        };
        let (mut entries, mut indices, mut losses) = (Vec::new(), Vec::new(), Vec::new());
        for (index, entry) in reader.entries().iter().enumerate() {
            let lost = |why: String| Loss::Tensor(entry.name.clone(), why);
            let planned = match planned(entry) {
                Ok(planned) => planned,
                Err(why) => {
                    losses.push(lost(why.to_string()));
                    continue;
                }
            };
            let bare = PlannedEntry {
                attributes: Default::default(),
                ..planned.clone()
            };
            let mut kept = bare.clone();
            if let Err(error) = alone(&bare) {
                let dense = PlannedEntry::dense(&*bare.name, bare.spec.clone());
                let can_be_dense = bare.layout != Layout::Dense
                    && bare.spec.byte_len() <= options.dense_budget
                    && alone(&dense).is_ok();
                if !can_be_dense {
                    losses.push(lost(without_name(&error, &entry.name)));
                    continue;
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
            let (held, lost) = held_by(planned.attributes, holds);
            kept.attributes = held;
            losses.extend(lost.map(|key| Loss::Attribute(entry.name.clone(), key)));
            entries.push(kept);
            indices.push(index);
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

    /// Bytes that tensors share are written once, where the target can say so.
    fn settle_sharing(&mut self, reader: &dyn TensorReader, target: &dyn Format) {
        for (index, first) in reader.shared() {
            // In order, as they were planned.
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

    /// Numbers for names, where the target has no names.
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
        // A name that is bad for other reasons is the format's to refuse.
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
            // There is something else that the format refuses, and writing will say it.
            self.plan.metadata = metadata.clone();
            return;
        }
        // One tensor stands for all: what a format says of a key does not depend on how many there are.
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

    /// Fails for what may not be lost, with the name that the target does not take.
    pub(crate) fn refuse(&self, target: &dyn Format, allowed: AllowedLoss) -> Result<(), Error> {
        refuse(&self.losses, target, allowed).map_err(|error| {
            let is_about_names = self.losses.contains(&Loss::Names) && !allowed.names;
            match self.bad_name.as_ref().filter(|_| is_about_names) {
                Some(bad_name) => Error::new(error.kind(), format!("{error} ({bad_name})")),
                None => error,
            }
        })
    }

    /// What is lost, now that all is written.
    fn all_losses(&self, target: &dyn Format, options: &ConvertOptions<'_>) -> Result<Vec<Loss>, Error> {
        let late = options.lost_on_the_way.map(|lost| lost()).unwrap_or_default();
        refuse(&late, target, options.allow_loss)?;
        Ok([&self.losses[..], &late].concat())
    }

    /// The indices of the tensors that are written, in order.
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

    /// The file beside the target, complete but not persisted.
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

/// Which texts a format holds, and the keys of the others. Each is offered alone where all together are refused.
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

/// What an error says, without the name of the tensor that it begins with.
fn without_name(error: &Error, name: &str) -> String {
    let text = error.to_string();
    let stripped = |name| text.strip_prefix(&format!("tensor {}: ", Quoted(name)));
    // A format without names knew the tensor by a number.
    let stripped = stripped(name).or_else(|| stripped("0")).map(str::to_owned);
    stripped.unwrap_or(text)
}

/// Removes the names of the file that is about to be replaced, beside it and beside a link to it: other tensors must not get them. If
/// the last steps fail, it is better to have no names than wrong ones.
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

/// Why a tensor cannot be read.
#[derive(Debug)]
enum Unplanned {
    Unsupported(String),
    /// Its elements are no whole blocks.
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

/// A tensor as it would be planned if the target could hold everything, or why it cannot be read.
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

/// Hands the bytes of one tensor on.
fn copy(
    reader: &dyn TensorReader,
    index: usize,
    planned: &PlannedEntry,
    options: &ConvertOptions<'_>,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    /// Small enough to stay in the processor's cache between reading and writing.
    const PIECE: usize = 1 << 20;
    let entry = &reader.entries()[index];
    if let Layout::Coo { .. } = entry.layout {
        // Sorted, as writers want it and as it compares best.
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
