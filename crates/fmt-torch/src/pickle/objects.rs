//! Builds the objects that a pickle creates by calling known globals: tensors, storages, containers and
//! attributes. No code of the pickle is run.

use fmt_core::{Error, ErrorKind};
use tensor_core::QuotedName;

use crate::{
    globals::{self, Global, UnreadKind},
    pickle::{
        machine::{Classes, Machine, VALUE},
        values::{LazyOperation, Node, Storage, StoredTensor, UnreadTensor, Value},
    },
};

impl Machine {
    /// Sets an object's attributes. Attributes of known values are ignored: for example, a state dictionary
    /// records module versions in an attribute.
    pub(super) fn build(&mut self) -> Result<bool, Error> {
        let state = self.pop()?;
        match self.last() {
            Some(Node::Object(_)) => {}
            Some(Node::Unread(unread)) if unread.kind == UnreadKind::NumPy => {
                return self.shape_of_array(state);
            }
            _ => return Ok(false),
        }
        // The state is a dictionary of attributes, or a pair of that dictionary and slots.
        let states = match self.built.node(state) {
            Some(Node::Tuple(states)) => states.to_vec(),
            _ => vec![state],
        };
        self.charge(VALUE * states.len() as u64)?;
        for state in states {
            let attributes = match self.built.node(state) {
                Some(Node::Dict(attributes)) => attributes.clone(),
                _ => continue,
            };
            self.charge(2 * VALUE * attributes.len() as u64)?;
            if let Some(Node::Object(pairs)) = self.last() {
                pairs.extend(attributes);
            }
        }
        Ok(false)
    }

    /// Extracts the shape of a NumPy array from its state: version, shape, dtype, order and data.
    pub(super) fn shape_of_array(&mut self, state: Value) -> Result<bool, Error> {
        let shape = match self.tuple_of(state)?[..] {
            [_, shape, ..] => Some(self.numbers(shape)?),
            _ => None,
        };
        self.charge(8 * shape.as_ref().map_or(0, Vec::len) as u64)?;
        if let Some(Node::Unread(array)) = self.last() {
            array.dims = shape;
        }
        Ok(false)
    }

    pub(super) fn global(&mut self, module: &str, name: &str) -> Result<bool, Error> {
        if let Some(global) = globals::find(module, name) {
            return self.push_node(Node::Global(global));
        }
        let full = format!("{module}.{name}");
        let is_script = module == "__torch__" || module.starts_with("__torch__.");
        match self.classes {
            Classes::TorchScript if is_script => {}
            Classes::All => {
                self.charge(2 * full.len() as u64)?;
                self.built.unknown.insert(full);
            }
            _ => {
                let error = Error::new(ErrorKind::Unsupported, globals::refused(module, name));
                let error = error
                    .at(self.at)
                    .rule("P3")
                    .expected(
                        "tensors in dictionaries, as torch.save(model.state_dict(), ...) writes them; \
                         lenient reading skips unknown values",
                    )
                    .found(QuotedName(&full));
                // Charges the memory for the name and for the error's strings to the budget.
                self.charge(2 * full.len() as u64 + 1024)?;
                // The placeholder gets the number of the next node.
                let number = u32::try_from(self.built.nodes.len());
                let number = number.map_err(|_| self.malformed("too many values"))?;
                self.refused.insert(number, (full, error));
            }
        }
        self.push_node(Node::Global(Global::Class))
    }

    pub(super) fn reduce(&mut self) -> Result<bool, Error> {
        let [callable, arguments] = self.pop_many(2)?[..] else {
            return Err(self.malformed("a call"));
        };
        let Some(&Node::Global(global)) = self.built.node(callable) else {
            return Err(self.malformed("the called value is not a function"));
        };
        self.check_allowed(callable)?;
        let arguments = self.tuple_of(arguments)?;
        self.call(global, &arguments, 0)
    }

    /// Checks that the global `callable` may be called.
    pub(super) fn check_allowed(&mut self, callable: Value) -> Result<(), Error> {
        match callable {
            Value::Node(number) => self
                .refused
                .remove(&number)
                .map_or(Ok(()), |(_, error)| Err(error)),
            _ => Ok(()),
        }
    }

    /// Records the class of a tensor without calling it; an unknown class is only reported.
    pub(super) fn note_tensor_class(&mut self, class: Value) {
        if let Value::Node(number) = class
            && let Some((name, _)) = self.refused.remove(&number)
        {
            self.built.tensor_classes.insert(name);
        }
    }

    pub(super) fn call(&mut self, global: Global, arguments: &[Value], depth: u32) -> Result<bool, Error> {
        match global {
            Global::Dict => {
                let pairs = self.pairs(arguments.first().copied())?;
                self.push_node(Node::Dict(pairs))
            }
            Global::DefaultDict => {
                let pairs = self.pairs(arguments.get(1).copied())?;
                self.push_node(Node::Dict(pairs))
            }
            Global::List => {
                let values = match arguments.first() {
                    None => Vec::new(),
                    Some(list) => self.tuple_of(*list)?,
                };
                self.charge(VALUE * values.len() as u64)?;
                self.push_node(Node::List(values))
            }
            Global::Parameter | Global::TypeTag => {
                let value = arguments.first().copied();
                let value = value.ok_or_else(|| self.malformed("a parameter without a tensor"))?;
                self.push(value)
            }
            Global::FromType => self.call_from_type(arguments, depth),
            Global::Unread(kind) => {
                let dims = self.dims_of_unread(kind, arguments)?;
                self.charge(8 * dims.as_ref().map_or(0, Vec::len) as u64 + size_of::<UnreadTensor>() as u64)?;
                let attributes = Vec::new();
                self.push_node(Node::Unread(Box::new(UnreadTensor {
                    kind,
                    dims,
                    attributes,
                })))
            }
            Global::Size => {
                let dims = arguments.first().copied();
                let dims = dims.ok_or_else(|| self.malformed("a size without dimensions"))?;
                let dims = self.tuple_of(dims)?;
                self.tuple(dims)
            }
            Global::Tensor | Global::TypedTensor => {
                let tensor = self.tensor(arguments, global == Global::TypedTensor)?;
                self.charge(16 * tensor.dims.len() as u64 + size_of::<StoredTensor>() as u64 + 64)?;
                self.push_node(Node::Tensor(Box::new(tensor)))
            }
            Global::Class => {
                self.charge(2 * VALUE * arguments.len() as u64)?;
                let numbered = (0..).map(Value::Int).zip(arguments.iter().copied());
                self.push_node(Node::Object(numbered.collect()))
            }
            Global::Inert | Global::TensorType | Global::Elements(_) => self.push_node(Node::Other),
        }
    }

    /// Calls the function that rebuilds a tensor that has attributes or belongs to a subclass. `arguments`
    /// are the function, the class, the function's arguments and the attributes.
    fn call_from_type(&mut self, arguments: &[Value], depth: u32) -> Result<bool, Error> {
        let [callable, class, arguments, ref rest @ ..] = *arguments else {
            return Err(self.malformed("the arguments of a tensor of a type"));
        };
        let (function, kind) = (self.built.node(callable), self.built.node(class));
        let (Some(&Node::Global(function)), Some(Node::Global(Global::TensorType | Global::Class)), 0) =
            (function, kind, depth)
        else {
            return Err(self.malformed("the arguments of a tensor of a type"));
        };
        self.check_allowed(callable)?;
        self.note_tensor_class(class);
        let arguments = self.tuple_of(arguments)?;
        self.call(function, &arguments, depth + 1)?;
        // Attributes of a tensor are ignored, like those of other known values.
        match (self.last(), rest.first()) {
            (Some(Node::Unread(_)), Some(state)) => self.attributes_of_unread(*state),
            _ => Ok(false),
        }
    }

    /// Returns the dimensions of a tensor that is not read, if its arguments include them.
    pub(super) fn dims_of_unread(
        &mut self,
        kind: UnreadKind,
        arguments: &[Value],
    ) -> Result<Option<Vec<u64>>, Error> {
        let dims = match (kind, arguments) {
            (UnreadKind::Quantised | UnreadKind::Wrapper, [_, _, dims, ..])
            | (UnreadKind::NoData, [_, dims, ..]) => *dims,
            // The arguments are the layout and a tuple: indices, values and size, possibly with one more
            // index vector.
            (UnreadKind::Sparse, [_, parts, ..]) => match self.tuple_of(*parts)?[..] {
                [_, _, size] | [_, _, size, Value::Bool(_)] | [_, _, _, size, ..] => size,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        self.numbers(dims).map(Some)
    }

    /// Sets the attributes of a tensor that is not read. The state is a dictionary, or a pair of a dictionary
    /// and slots.
    pub(super) fn attributes_of_unread(&mut self, state: Value) -> Result<bool, Error> {
        let states = match self.built.node(state) {
            Some(Node::Tuple(states)) => states.to_vec(),
            _ => vec![state],
        };
        self.charge(VALUE * states.len() as u64)?;
        for state in states {
            let Some(Node::Dict(pairs)) = self.built.node(state) else {
                continue;
            };
            let pairs = pairs.clone();
            self.charge(2 * VALUE * pairs.len() as u64)?;
            if let Some(Node::Unread(tensor)) = self.last() {
                tensor.attributes.extend(pairs);
            }
        }
        Ok(false)
    }

    pub(super) fn tensor(&mut self, arguments: &[Value], is_typed: bool) -> Result<StoredTensor, Error> {
        let [storage, Value::Int(offset), dims, strides, rest @ ..] = arguments else {
            return Err(self.malformed("the arguments of a tensor"));
        };
        let Some(Node::Storage(storage)) = self.built.node(*storage) else {
            return Err(self.malformed("a tensor without a storage"));
        };
        let storage = Storage::clone(storage);
        self.charge(storage.key.len() as u64)?;
        let elements = if is_typed {
            match rest.get(2).and_then(|dtype| self.built.node(*dtype)) {
                Some(Node::Global(Global::Elements(elements))) => *elements,
                _ => return Err(self.malformed("a tensor without a dtype")),
            }
        } else {
            storage.elements
        };
        let offset = u64::try_from(*offset).map_err(|_| self.malformed("the offset of a tensor"))?;
        // In the arguments, the metadata follows the hooks or, for a typed tensor, the dtype.
        let pending = match rest
            .get(if is_typed { 3 } else { 2 })
            .map(|notes| self.built.node(*notes))
        {
            Some(Some(Node::Dict(notes))) => {
                let (pending, count) = (self.pending(notes), notes.len());
                // The metadata is scanned for each tensor, and tensors may share the dictionary.
                self.charge(count as u64)?;
                pending
            }
            _ => None,
        };
        Ok(StoredTensor {
            pending,
            storage,
            elements,
            offset,
            dims: self.numbers(*dims)?,
            strides: self.numbers(*strides)?,
        })
    }

    /// Returns the lazy operation recorded in a tensor's metadata.
    pub(super) fn pending(&self, notes: &[(Value, Value)]) -> Option<LazyOperation> {
        let is_set = |name| {
            let mut notes = notes.iter();
            notes.any(|(key, value)| self.built.text(*key) == Some(name) && *value != Value::Bool(false))
        };
        match (is_set("conj"), is_set("neg")) {
            (true, _) => Some(LazyOperation::Conj),
            (_, true) => Some(LazyOperation::Neg),
            _ => None,
        }
    }

    /// Resolves a persistent id to a storage: `('storage', type, key, location, count)`. In the legacy
    /// layout, the id has one more value: `None`, unless the storage is a view of another storage, which is
    /// refused.
    pub(super) fn persistent(&mut self) -> Result<bool, Error> {
        let id = self.pop()?;
        let id = self.tuple_of(id)?;
        let [kind, elements, key, _location, Value::Int(count), ref rest @ ..] = id[..] else {
            return Err(self.malformed("the name of a storage"));
        };
        let is_storage = self.built.text(kind) == Some("storage");
        let (Some(Node::Global(Global::Elements(elements))), Some(key), true, Ok(count)) = (
            self.built.node(elements),
            self.built.text(key),
            is_storage,
            u64::try_from(count),
        ) else {
            return Err(self.malformed("the name of a storage"));
        };
        if rest.first().is_some_and(|view| *view != Value::None) {
            let error = Error::new(ErrorKind::Unsupported, "a storage that is a view of another").at(self.at);
            return Err(error.rule("P3"));
        }
        let storage = Storage {
            key: key.into(),
            elements: *elements,
            count,
        };
        self.charge((size_of::<Storage>() + storage.key.len()) as u64)?;
        self.push_node(Node::Storage(Box::new(storage)))
    }
}
