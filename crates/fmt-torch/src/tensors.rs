//! Finds the tensors of a checkpoint by key path, and checks that each lies in its storage.

use fmt_core::{Encoding, Entry, Error, ErrorKind, Limits, Metadata, StoredDType};
use tensor_core::{DType, QuotedName, Shape};

use crate::{
    checkpoint::{Checkpoint, StorageLocation},
    globals::Elements,
    pickle::{LazyOperation, Node, PickleResult, Storage, StoredTensor, UnreadTensor, Value},
};

/// The location of a tensor's elements.
pub(crate) struct TensorLocation {
    pub(crate) place: StorageLocation,
    /// Bytes per element.
    pub(crate) width: u64,
    /// Size in bytes of the words to byte-swap.
    pub(crate) word: u64,
    /// The strides in elements.
    pub(crate) strides: Vec<u64>,
    pub(crate) is_contiguous: bool,
}

/// The tensors and metadata found in a checkpoint.
#[derive(Default)]
pub(crate) struct CheckpointContents {
    pub(crate) entries: Vec<Entry>,
    pub(crate) stored: Vec<TensorLocation>,
    pub(crate) metadata: Metadata,
}

/// The traversal of a checkpoint's values: values still to visit, with their names.
struct Walk {
    open: Vec<(String, Value, u64)>,
    /// Lists and dictionaries may be shared many times, so the number of steps and the total name length are
    /// limited.
    steps: u64,
    texts: u64,
    longest: u64,
}

impl Walk {
    /// Starts at the root of `pickle`, with step and name limits proportional to the number of its values.
    fn new(pickle: &PickleResult, limits: &Limits) -> Self {
        let values = |node: &Node| match node {
            Node::Tuple(items) => items.len(),
            Node::List(items) => items.len(),
            Node::Dict(pairs) | Node::Object(pairs) => pairs.len(),
            Node::Unread(tensor) => tensor.attributes.len(),
            _ => 0,
        };
        let nodes = pickle.nodes.iter();
        let count = nodes.map(|node| 1 + values(node) as u64).sum::<u64>();
        Self {
            open: vec![(String::new(), pickle.root, 0)],
            steps: 4 * count + 1000,
            texts: 64 * count + (32 << 10),
            longest: limits.name_bytes,
        }
    }

    /// Queues a value whose name is `name`, extended by `key` if there is one.
    fn push(&mut self, name: &str, key: Option<&str>, value: Value, depth: u64) -> Result<(), Error> {
        let dot = if name.is_empty() || key.is_none() { "" } else { "." };
        let key = key.unwrap_or("");
        let len = (name.len() + dot.len() + key.len()) as u64;
        if len > self.longest {
            let error = Error::new(ErrorKind::BadName, "the length of the name").rule("P4");
            return Err(error
                .expected(format_args!("at most {} bytes", self.longest))
                .found(len));
        }
        let too_many = || {
            let what = "the checkpoint holds the same values too many times";
            Error::new(ErrorKind::TooLarge, what).rule("P4")
        };
        self.steps = self.steps.checked_sub(1).ok_or_else(too_many)?;
        self.texts = self.texts.checked_sub(len).ok_or_else(too_many)?;
        self.open.push((format!("{name}{dot}{key}"), value, depth));
        Ok(())
    }

    /// Queues the values of a dictionary or an object whose keys are integers or strings.
    fn push_pairs(
        &mut self,
        pickle: &PickleResult,
        name: &str,
        node: &Node,
        depth: u64,
    ) -> Result<(), Error> {
        let (Node::Dict(pairs) | Node::Object(pairs)) = node else {
            return Ok(());
        };
        let is_object = matches!(node, Node::Object(_));
        for (key, value) in pairs.iter().rev() {
            match (key, pickle.text(*key)) {
                (Value::Int(number), _) => self.push(name, Some(&number.to_string()), *value, depth)?,
                // These keys of a module do not become part of parameter names.
                (_, Some("_parameters" | "_buffers" | "_modules")) if is_object => {
                    self.push(name, None, *value, depth)?;
                }
                (_, Some(key)) => self.push(name, Some(key), *value, depth)?,
                _ => {}
            }
        }
        Ok(())
    }
}

impl CheckpointContents {
    pub(crate) fn of(checkpoint: &Checkpoint, limits: &Limits) -> Result<Self, Error> {
        let mut found = Self::default();
        let mut walk = Walk::new(&checkpoint.value, limits);
        while let Some((name, value, depth)) = walk.open.pop() {
            if depth > limits.depth {
                let error = Error::new(ErrorKind::TooLarge, "the nesting")
                    .of_tensor(&name)
                    .rule("P4");
                return Err(error.expected(format_args!("at most {}, the limit", limits.depth)));
            }
            let values = match checkpoint.value.node(value) {
                Some(Node::Tensor(tensor)) => {
                    // The checkpoint is a single tensor.
                    let name = if depth == 0 { "0".to_owned() } else { name };
                    found.add(checkpoint, &name, tensor, limits)?;
                    continue;
                }
                Some(Node::Unread(tensor)) => {
                    for (key, value) in tensor.attributes.iter().rev() {
                        if let Some(key) = checkpoint.value.text(*key) {
                            walk.push(&name, Some(key), *value, depth + 1)?;
                        }
                    }
                    let name = if depth == 0 { "0".to_owned() } else { name };
                    found.add_unread(name, tensor, limits)?;
                    continue;
                }
                // The value is a storage that no tensor uses, such as bytes.
                Some(Node::Storage(storage)) => {
                    found.add(checkpoint, &name, &whole_storage(storage), limits)?;
                    continue;
                }
                Some(node @ (Node::Dict(_) | Node::Object(_))) => {
                    walk.push_pairs(&checkpoint.value, &name, node, depth + 1)?;
                    continue;
                }
                Some(Node::List(values)) => &values[..],
                Some(Node::Tuple(values)) => &values[..],
                Some(Node::Text(text)) => {
                    found.metadata.insert(name, text.to_string());
                    continue;
                }
                Some(_) => continue,
                None => {
                    let text = match value {
                        Value::Bool(truth) => truth.to_string(),
                        Value::Int(number) => number.to_string(),
                        Value::Float(number) => number.to_string(),
                        Value::None | Value::Node(_) => continue,
                    };
                    found.metadata.insert(name, text);
                    continue;
                }
            };
            for (number, value) in values.iter().enumerate().rev() {
                walk.push(&name, Some(&number.to_string()), *value, depth + 1)?;
            }
        }
        Ok(found)
    }

    /// Adds an entry for a tensor that is listed but not read.
    fn add_unread(&mut self, name: String, tensor: &UnreadTensor, limits: &Limits) -> Result<(), Error> {
        self.check_room(&name, limits)?;
        let (dtype, reason) = tensor.kind.texts();
        // An unknown shape is listed as empty.
        let dims = tensor.dims.as_deref().unwrap_or(&[0]);
        let shape = Shape::new(dims).ok().filter(|_| dims.len() as u64 <= limits.rank);
        let shape = shape.ok_or_else(|| {
            let error = Error::new(ErrorKind::TooLarge, "the shape").of_tensor(&name);
            error.rule("P5").found(format_args!("{} dimensions", dims.len()))
        })?;
        let mut entry = Entry::new(name, StoredDType::Unknown(dtype.to_owned()), shape, 0..0);
        let reason = Some(format!("{reason} (P3)"));
        entry.unsupported.clone_from(&reason);
        self.entries.push(entry);
        self.stored.push(TensorLocation {
            place: StorageLocation {
                start: 0,
                len: 0,
                crc: None,
                unsupported: reason,
            },
            width: 1,
            word: 1,
            strides: Vec::new(),
            is_contiguous: true,
        });
        Ok(())
    }

    fn check_room(&self, name: &str, limits: &Limits) -> Result<(), Error> {
        if (self.entries.len() as u64) < limits.tensors {
            return Ok(());
        }
        let error = Error::new(ErrorKind::TooLarge, "the number of tensors").of_tensor(name);
        Err(error
            .rule("P5")
            .expected(format_args!("at most {}, the limit", limits.tensors)))
    }

    fn add(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        tensor: &StoredTensor,
        limits: &Limits,
    ) -> Result<(), Error> {
        let wrong = |kind, what: &str| Error::new(kind, what).of_tensor(name).rule("P5");
        self.check_room(name, limits)?;
        let shape = shape_of(tensor, name, limits)?;
        let (place, end) = storage_of(checkpoint, name, tensor)?;
        let width = tensor.elements.size();
        let is_contiguous = is_contiguous(&tensor.dims, &tensor.strides);
        let dtype = tensor.elements.dtype();
        let shape = match tensor.elements {
            Elements::PairsOfF4 => doubled(&shape, is_contiguous).ok_or_else(|| {
                wrong(
                    ErrorKind::Unsupported,
                    "pairs of F4 that are not in row-major order",
                )
            })?,
            _ => shape,
        };
        // Strides are not negative, so this range covers all elements.
        let range = match end {
            0 => place.start..place.start,
            _ => place.start + tensor.offset * width..place.start + end,
        };
        let mut entry = Entry::new(name.to_owned(), dtype, shape, range);
        if entry.byte_len().is_none() && tensor.elements != Elements::Untyped {
            return Err(wrong(
                ErrorKind::Overflow,
                "the length of the tensor does not fit 64 bits",
            ));
        }
        entry.is_big_endian = checkpoint.is_big_endian && width > 1;
        entry.unsupported = place.unsupported.clone();
        note_unsupported(&mut entry, tensor.pending);
        if !is_contiguous {
            entry.encoding = Encoding::Strided;
        }
        self.entries.push(entry);
        self.stored.push(TensorLocation {
            place: place.clone(),
            width,
            word: tensor.elements.word(),
            strides: tensor.strides.clone(),
            is_contiguous,
        });
        Ok(())
    }
}

/// Returns the storage of a tensor, and the offset in it at which the elements end.
fn storage_of<'c>(
    checkpoint: &'c Checkpoint,
    name: &str,
    tensor: &StoredTensor,
) -> Result<(&'c StorageLocation, u64), Error> {
    let wrong = |what: &str| {
        let error = Error::new(ErrorKind::OutOfBounds, what).of_tensor(name);
        error.rule("P5")
    };
    let place = checkpoint.storages.get(&*tensor.storage.key).ok_or_else(|| {
        let error = wrong("the storage is not in the file");
        error.found(QuotedName(&tensor.storage.key))
    })?;
    let end = end_of_elements(tensor).filter(|end| *end <= place.len);
    let end = end.ok_or_else(|| {
        let error = wrong("the tensor extends beyond its storage");
        error
            .at(place.start)
            .expected(format_args!("elements within {} bytes", place.len))
    })?;
    Ok((place, end))
}

/// Represents a storage that no tensor uses as a one-dimensional tensor, of bytes if the storage is untyped.
fn whole_storage(storage: &Storage) -> StoredTensor {
    let elements = match storage.elements {
        Elements::Untyped => Elements::Known(DType::U8),
        elements => elements,
    };
    StoredTensor {
        storage: Storage::clone(storage),
        elements,
        offset: 0,
        dims: vec![storage.count],
        strides: vec![1],
        pending: None,
    }
}

/// Returns the stored shape of a tensor, after checking its rank and the number of its strides.
fn shape_of(tensor: &StoredTensor, name: &str, limits: &Limits) -> Result<Shape, Error> {
    let wrong = |kind, what: &str| Error::new(kind, what).of_tensor(name).rule("P5");
    if tensor.dims.len() as u64 > limits.rank {
        let error = wrong(ErrorKind::TooLarge, "the rank");
        return Err(error
            .expected(format_args!("at most {}, the limit", limits.rank))
            .found(tensor.dims.len()));
    }
    if tensor.strides.len() != tensor.dims.len() {
        return Err(wrong(ErrorKind::SizeMismatch, "the number of strides")
            .expected(tensor.dims.len())
            .found(tensor.strides.len()));
    }
    Shape::new(&tensor.dims).map_err(|error| wrong(ErrorKind::Overflow, &error.to_string()))
}

/// Returns the byte offset of the end of the tensor's last element in the storage; `None` if it overflows.
fn end_of_elements(tensor: &StoredTensor) -> Option<u64> {
    if tensor.dims.contains(&0) {
        return Some(0);
    }
    let steps = tensor.dims.iter().zip(&tensor.strides);
    let mut last = steps.map(|(dim, stride)| (dim - 1).checked_mul(*stride));
    let last = last.try_fold(tensor.offset, |end, step| end.checked_add(step?))?;
    last.checked_add(1)?.checked_mul(tensor.elements.size())
}

/// Records why the elements of `entry` cannot be read, if its dtype or the operation `pending` is the reason.
fn note_unsupported(entry: &mut Entry, pending: Option<LazyOperation>) {
    if let Some(pending) = pending {
        let step = match pending {
            LazyOperation::Conj => "conj",
            LazyOperation::Neg => "neg",
        };
        // The stored elements are those before the operation. The unknown dtype prevents even copying them.
        entry.dtype = StoredDType::Unknown(format!("{} before {step}()", entry.dtype));
        let reason =
            format!("its elements are those before {step}(); call resolve_{step}() and save it again");
        entry.unsupported.get_or_insert(reason);
    }
    match &entry.dtype {
        StoredDType::Known(_) => {}
        StoredDType::Opaque(dtype) => {
            entry.unsupported.get_or_insert(dtype.reason());
        }
        StoredDType::Unknown(_) => {
            entry
                .unsupported
                .get_or_insert("it is a storage without a dtype".to_owned());
        }
    }
}

/// Returns the shape in elements of a tensor that stores two elements per byte: the last dimension doubles.
fn doubled(shape: &Shape, is_contiguous: bool) -> Option<Shape> {
    let mut dims = shape.dims().to_vec();
    let last = dims.last_mut().filter(|_| is_contiguous)?;
    *last = last.checked_mul(2)?;
    Shape::new(&dims).ok()
}

/// Returns whether elements are row-major and contiguous. Strides of axes of length one do not matter.
fn is_contiguous(dims: &[u64], strides: &[u64]) -> bool {
    if dims.contains(&0) {
        return true;
    }
    let mut expected = 1u64;
    dims.iter().zip(strides).rev().all(|(&dim, &stride)| {
        let fits = dim == 1 || stride == expected;
        expected = expected.saturating_mul(dim);
        fits
    })
}
