//! Combines tensors of one or more files into one reader: merges, selects and renames them, and reports the
//! progress of reading to a callback.

use std::{
    collections::{HashMap, hash_map},
    fmt,
    ops::Range,
};

use fmt_core::{
    Entry, Error, ErrorKind, Lint, Metadata, NameTable, TensorReader, TensorStream, Verification,
};
use tensor_core::{QuotedName, SparseCoo, Tensor};

use crate::split::remove_split;

/// Combines tensors of one or more readers into one reader, with its own names, order and metadata. Bytes are
/// read from the original readers.
///
/// ```
/// use fmt_core::{Format, TensorReader};
/// use tensor_files::Composite;
/// # use fmt_core::{Plan, PlannedEntry};
/// # use tensor_core::{DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), fmt_core::Error> {
/// # let file = |name: &str| -> Result<Vec<u8>, fmt_core::Error> {
/// #     let spec = TensorSpec::new(DType::U8, Shape::vector(1)).unwrap();
/// #     let plan = Plan { entries: vec![PlannedEntry::dense(name, spec)], ..Plan::default() };
/// #     let mut file = Vec::new();
/// #     let mut writer = tensor_files::format("safetensors").unwrap().create(Box::new(&mut file), plan)?;
/// #     writer.write(&[1])?;
/// #     writer.finish()?;
/// #     Ok(file)
/// # };
/// # let open = |file: Vec<u8>| tensor_files::format("safetensors").unwrap().open(std::sync::Arc::new(tensor_core::Bytes::from(file)), &Default::default());
/// # let (first, second) = (open(file("w")?)?, open(file("b")?)?);
/// let mut both = Composite::new("first.safetensors", first);
/// both.add("second.safetensors", second)?;
/// both.rename("b", "bias")?;
/// assert_eq!(both.find("bias"), Some(1));
/// assert_eq!(both.file_of(1), "second.safetensors");
/// # Ok(())
/// # }
/// ```
pub struct Composite<'r> {
    parts: Vec<Part<'r>>,
    /// The selected tensors; `None` if they are exactly those of the first file, so that millions of entries
    /// are not stored twice.
    chosen: Option<Selection>,
    names: NameTable,
    metadata: Metadata,
    foreign_parts: Vec<String>,
    lints: Vec<Lint>,
    conflicts: Vec<(String, usize)>,
    watch: Option<Watch<'r>>,
}

/// Selected tensors, with their order and names.
struct Selection {
    /// For each tensor, the index of its file in `parts`, and the tensor's index within that file.
    places: Vec<(usize, usize)>,
    entries: Vec<Entry>,
}

type Watch<'r> = Box<dyn Fn(u64) -> Result<(), Error> + Send + Sync + 'r>;

struct Part<'r> {
    label: String,
    reader: Source<'r>,
}

/// A reader that a [`Composite`] owns or borrows.
pub enum Source<'r> {
    /// An owned reader.
    Owned(Box<dyn TensorReader + 'r>),
    /// A borrowed reader.
    Borrowed(&'r dyn TensorReader),
}

impl<'r> From<Box<dyn TensorReader + 'r>> for Source<'r> {
    fn from(reader: Box<dyn TensorReader + 'r>) -> Self {
        Self::Owned(reader)
    }
}

impl<'r> From<&'r dyn TensorReader> for Source<'r> {
    fn from(reader: &'r dyn TensorReader) -> Self {
        Self::Borrowed(reader)
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reader().format())
    }
}

impl Source<'_> {
    fn reader(&self) -> &dyn TensorReader {
        match self {
            Self::Owned(reader) => &**reader,
            Self::Borrowed(reader) => *reader,
        }
    }
}

impl Selection {
    fn all_of(part: &Part<'_>) -> Self {
        let entries = part.reader.reader().entries();
        Self {
            places: (0..entries.len()).map(|index| (0, index)).collect(),
            entries: entries.to_vec(),
        }
    }
}

impl<'r> Composite<'r> {
    /// Creates a composite of one file. `label`, such as the file's name, appears in messages.
    pub fn new(label: impl Into<String>, reader: impl Into<Source<'r>>) -> Self {
        let source = reader.into();
        let all = 0..source.reader().entries().len();
        Self::chosen(label, source, all)
    }

    /// Creates a composite of the tensors at these indices in one file.
    pub(crate) fn chosen(
        label: impl Into<String>,
        reader: impl Into<Source<'r>>,
        indices: Range<usize>,
    ) -> Self {
        let source = reader.into();
        let file = source.reader();
        let is_all = indices == (0..file.entries().len());
        let chosen = (!is_all).then(|| Selection {
            entries: file.entries()[indices.clone()].to_vec(),
            places: indices.map(|index| (0, index)).collect(),
        });
        let mut composite = Self {
            chosen,
            names: NameTable::default(),
            metadata: file.metadata().clone(),
            foreign_parts: file.foreign_parts().to_vec(),
            lints: Vec::new(),
            conflicts: Vec::new(),
            watch: None,
            parts: vec![Part {
                label: label.into(),
                reader: source,
            }],
        };
        composite.find_names_anew();
        composite
    }

    /// Appends another file's tensors and metadata. If a metadata key has different values, the first one is
    /// kept; see [`Composite::conflicts`].
    ///
    /// # Errors
    /// See [`Composite::append`].
    pub fn add(&mut self, label: impl Into<String>, reader: impl Into<Source<'r>>) -> Result<(), Error> {
        self.append(Self::new(label, reader))
    }

    /// Appends another composite, like [`Composite::add`].
    ///
    /// # Errors
    /// [`ErrorKind::Duplicate`] when a name is in both; nothing is added.
    pub fn append(&mut self, mut other: Self) -> Result<(), Error> {
        for entry in other.entries() {
            if let Some(own) = self.find(&entry.name) {
                let error = Error::new(ErrorKind::Duplicate, "the name is in two of the files");
                let found = format!("in {} as well", self.file_of(own));
                return Err(error.of_tensor(&entry.name).found(found));
            }
        }
        // Shard numbers do not apply to the combined file.
        remove_split(&mut self.metadata);
        remove_split(&mut other.metadata);
        let first = self.parts.len();
        for (key, value) in &other.metadata {
            let known = self.metadata.entry(key.clone()).or_insert_with(|| value.clone());
            if known != value {
                self.conflicts.push((key.clone(), first));
            }
        }
        let moved = |(key, part): (String, usize)| (key, part + first);
        self.conflicts.extend(other.conflicts.into_iter().map(moved));
        let added = other.chosen.unwrap_or_else(|| Selection::all_of(&other.parts[0]));
        let own = self
            .chosen
            .get_or_insert_with(|| Selection::all_of(&self.parts[0]));
        let begin = own.entries.len();
        let places = added.places.iter().map(|(part, index)| (part + first, *index));
        own.places.extend(places);
        own.entries.extend(added.entries);
        let entries = &own.entries;
        for (index, entry) in entries.iter().enumerate().skip(begin) {
            // If a file has several tensors of the same name, lookups return the first one.
            let name_of = |other: u32| &*entries[other as usize].name;
            let _ = self.names.insert(index as u32, &entry.name, name_of);
        }
        self.foreign_parts.extend(other.foreign_parts);
        self.lints.extend(other.lints);
        self.parts.extend(other.parts);
        Ok(())
    }

    /// Returns the metadata keys whose values differ from those of an earlier file, each with the label of
    /// the later file. [`TensorReader::metadata`] has the first file's value.
    pub fn conflicts(&self) -> impl Iterator<Item = (&str, &str)> {
        let label = |part: &usize| self.parts[*part].label.as_str();
        self.conflicts
            .iter()
            .map(move |(key, part)| (key.as_str(), label(part)))
    }

    /// Returns the labels of the files, in order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.parts.iter().map(|part| part.label.as_str())
    }

    /// Returns the label of a tensor's file.
    ///
    /// # Panics
    /// When there is no tensor with this index.
    #[must_use]
    pub fn file_of(&self, index: usize) -> &str {
        &self.parts[self.place_of(index).0].label
    }

    /// Returns a tensor's original name in its file.
    ///
    /// # Panics
    /// When there is no tensor with this index.
    #[must_use]
    pub fn name_in_file(&self, index: usize) -> &str {
        let (reader, own) = self.place(index);
        &reader.entries()[own].name
    }

    /// Changes the labels of the files, for example to their paths.
    pub(crate) fn relabel(&mut self, label: impl Fn(&str) -> String) {
        for part in &mut self.parts {
            part.label = label(&part.label);
        }
    }

    /// Keeps the tensors for which `keep` returns true, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        let kept: Vec<bool> = self.entries().iter().map(&mut keep).collect();
        if kept.iter().all(|keep| *keep) {
            return;
        }
        let own = self.own_entries();
        let mut of_places = kept.iter();
        own.places.retain(|_| of_places.next().is_some_and(|keep| *keep));
        let mut of_entries = kept.iter();
        own.entries
            .retain(|_| of_entries.next().is_some_and(|keep| *keep));
        self.find_names_anew();
    }

    /// Renames tensors simultaneously, so that names can be swapped.
    ///
    /// # Errors
    /// [`ErrorKind::Duplicate`] when two tensors would get the same name. In this case, no name is changed.
    pub fn rename_all(&mut self, mut name: impl FnMut(&str) -> Option<String>) -> Result<(), Error> {
        let new: Vec<Option<String>> = self.entries().iter().map(|entry| name(&entry.name)).collect();
        if new.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut taken: HashMap<&str, usize> = HashMap::new();
        let entries = self.entries();
        for (index, entry) in entries.iter().enumerate() {
            let name = new[index].as_deref().unwrap_or(&entry.name);
            if let Some(other) = taken.insert(name, index)
                && (new[index].is_some() || new[other].is_some())
            {
                let (first, second) = (&entries[other].name, &entry.name);
                let error = Error::new(ErrorKind::Duplicate, "the new name is taken").of_tensor(name);
                return Err(error.found(format_args!("{} and {}", QuotedName(first), QuotedName(second))));
            }
        }
        for (entry, new) in self.own_entries().entries.iter_mut().zip(new) {
            entry.name = new.unwrap_or(std::mem::take(&mut entry.name));
        }
        self.find_names_anew();
        Ok(())
    }

    /// Renames one tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`] when there is no such tensor; otherwise the errors of
    /// [`Composite::rename_all`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        if self.find(from).is_none() {
            return Err(Error::new(ErrorKind::OutOfBounds, "there is no such tensor").of_tensor(from));
        }
        self.rename_all(|name| (name == from).then(|| to.to_owned()))
    }

    /// Returns the metadata for modification.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Returns suspicious findings about the files as a whole that did not prevent reading, such as an index
    /// that does not name all tensors. [`TensorReader::lints`] contains them too.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.lints.iter().map(|lint| lint.message.as_str())
    }

    /// Adds a lint about the files as a whole.
    pub(crate) fn add_lint(&mut self, message: String) {
        let (tensor, range) = (None, None);
        self.lints.push(Lint {
            message,
            tensor,
            range,
        });
    }

    /// Calls `watch` with the number of tensor bytes after each read; an error from `watch` becomes the
    /// read's error.
    #[must_use]
    pub fn watched(mut self, watch: impl Fn(u64) -> Result<(), Error> + Send + Sync + 'r) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// Returns the list of selected tensors for modification; creates the list on first use.
    fn own_entries(&mut self) -> &mut Selection {
        self.chosen
            .get_or_insert_with(|| Selection::all_of(&self.parts[0]))
    }

    fn find_names_anew(&mut self) {
        let entries = self.entries();
        // There are always fewer than 2^32 entries, because more would not fit into memory.
        let (names, _) = NameTable::of(entries.len(), |index| &entries[index as usize].name);
        self.names = names;
    }

    fn place_of(&self, index: usize) -> (usize, usize) {
        self.chosen
            .as_ref()
            .map_or((0, index), |chosen| chosen.places[index])
    }

    fn place(&self, index: usize) -> (&dyn TensorReader, usize) {
        let (part, index) = self.place_of(index);
        (self.parts[part].reader.reader(), index)
    }

    fn seen(&self, bytes: u64) -> Result<(), Error> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch(bytes))
    }
}

impl fmt::Debug for Composite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<&str> = self.files().collect();
        f.debug_struct("Composite")
            .field("files", &files)
            .field("tensors", &self.entries().len())
            .finish_non_exhaustive()
    }
}

impl TensorReader for Composite<'_> {
    fn format(&self) -> &'static str {
        self.parts[0].reader.reader().format()
    }

    fn entries(&self) -> &[Entry] {
        match &self.chosen {
            Some(chosen) => &chosen.entries,
            None => self.parts[0].reader.reader().entries(),
        }
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn find(&self, name: &str) -> Option<usize> {
        let entries = self.entries();
        let found = self.names.find(name, |index| &entries[index as usize].name);
        found.map(|index| index as usize)
    }

    fn tensor(&self, index: usize) -> Result<Tensor, Error> {
        let (reader, own) = self.place(index);
        let tensor = reader.tensor(own)?;
        self.seen(tensor.bytes().len() as u64)?;
        Ok(tensor)
    }

    fn sparse(&self, index: usize) -> Result<SparseCoo, Error> {
        let (reader, own) = self.place(index);
        let sparse = reader.sparse(own)?;
        self.seen(self.entries()[index].byte_len().unwrap_or(0))?;
        Ok(sparse)
    }

    fn rows(&self, index: usize, rows: Range<u64>) -> Result<Tensor, Error> {
        let (reader, own) = self.place(index);
        let tensor = reader.rows(own, rows)?;
        self.seen(tensor.bytes().len() as u64)?;
        Ok(tensor)
    }

    fn stream(&self, index: usize) -> Result<Box<dyn TensorStream + '_>, Error> {
        let (reader, own) = self.place(index);
        let inner = reader.stream(own)?;
        Ok(match &self.watch {
            None => inner,
            Some(watch) => Box::new(WatchedStream { inner, watch }),
        })
    }

    fn read_into(&self, index: usize, out: &mut [u8]) -> Result<(), Error> {
        let (reader, own) = self.place(index);
        reader.read_into(own, out)?;
        self.seen(out.len() as u64)
    }

    fn verify(&self, index: usize) -> Result<Verification, Error> {
        let (reader, own) = self.place(index);
        let verified = reader.verify(own)?;
        self.seen(self.entries()[index].byte_len().unwrap_or(0))?;
        Ok(verified)
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        let parts = self.parts.iter().map(|part| part.reader.reader().shared());
        let firsts: Vec<HashMap<usize, usize>> = parts.map(|shared| shared.into_iter().collect()).collect();
        if firsts.iter().all(HashMap::is_empty) {
            return Vec::new();
        }
        // `firsts` has the first tensor of the file with the same bytes, which may not be selected.
        let (mut chosen, mut shared) = (HashMap::new(), Vec::new());
        for index in 0..self.entries().len() {
            let (part, own) = self.place_of(index);
            let first = firsts[part].get(&own).copied().unwrap_or(own);
            match chosen.entry((part, first)) {
                hash_map::Entry::Occupied(known) => shared.push((index, *known.get())),
                hash_map::Entry::Vacant(free) => drop(free.insert(index)),
            }
        }
        shared
    }

    fn lints(&self) -> Result<Vec<Lint>, Error> {
        let mut lints = self.lints.clone();
        for part in &self.parts {
            let mut own = part.reader.reader().lints()?;
            if self.parts.len() > 1 {
                for lint in &mut own {
                    lint.message = format!("{}: {}", part.label, lint.message);
                }
            }
            lints.append(&mut own);
        }
        Ok(lints)
    }

    fn foreign_parts(&self) -> &[String] {
        &self.foreign_parts
    }
}

/// A stream that passes the number of bytes read to `watch`.
struct WatchedStream<'r> {
    inner: Box<dyn TensorStream + 'r>,
    watch: &'r Watch<'r>,
}

impl TensorStream for WatchedStream<'_> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize, Error> {
        let len = self.inner.read(out)?;
        (self.watch)(len as u64)?;
        Ok(len)
    }
}
