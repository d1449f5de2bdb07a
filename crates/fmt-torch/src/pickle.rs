//! An interpreter for the subset of pickle that checkpoints need. It builds values, runs no code, and rejects
//! unknown globals by name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fmt_core::{Error, ErrorKind};
use tensor_core::Quoted;

use crate::{
    globals::{self, Elements, Global, UnreadKind},
    input::Input,
};

/// A value: small ones inline, others by node number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Node(u32),
}

/// A composite or named value.
#[derive(Debug)]
pub(crate) enum Node {
    Text(Box<str>),
    Tuple(Box<[Value]>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    /// An object of an unknown class: its attributes.
    Object(Vec<(Value, Value)>),
    Global(Global),
    Storage(Box<Storage>),
    Tensor(Box<StoredTensor>),
    Unread(Box<UnreadTensor>),
    /// An ignored object, such as bytes.
    Other,
}

/// Bytes of which tensors are views.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) key: Box<str>,
    pub(crate) elements: Elements,
    /// Number of elements.
    pub(crate) count: u64,
}

/// A tensor as a view of a storage.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) storage: Storage,
    pub(crate) elements: Elements,
    /// The offset in elements, like the strides.
    pub(crate) offset: u64,
    pub(crate) dims: Vec<u64>,
    pub(crate) strides: Vec<u64>,
    /// A lazy operation on the elements, which is not applied here.
    pub(crate) pending: Option<LazyOperation>,
}

/// A tensor or array that is listed but not read.
#[derive(Debug)]
pub(crate) struct UnreadTensor {
    pub(crate) kind: UnreadKind,
    /// The dimensions, if known.
    pub(crate) dims: Option<Vec<u64>>,
    /// Its attributes, which may include the tensors it consists of.
    pub(crate) attributes: Vec<(Value, Value)>,
}

/// A lazy operation that PyTorch applies when elements are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LazyOperation {
    Conj,
    Neg,
}

/// Which unknown classes are accepted. Their objects are represented by attributes; none of their code is
/// run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classes {
    /// No class: the first unknown one is rejected by name.
    Known,
    /// The classes of a `TorchScript` program, which the archive describes.
    TorchScript,
    /// All classes.
    All,
}

/// The result of interpreting a pickle.
#[derive(Debug)]
pub(crate) struct PickleResult {
    pub(crate) nodes: Vec<Node>,
    pub(crate) root: Value,
    /// Unknown globals that were ignored.
    pub(crate) unknown: BTreeSet<String>,
    /// Unknown tensor subclasses. Their tensors are read like plain ones.
    pub(crate) tensor_classes: BTreeSet<String>,
}

impl PickleResult {
    pub(crate) fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(number) => self.nodes.get(number as usize),
            _ => None,
        }
    }

    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        match self.node(value)? {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Interprets one pickle to its end. `most` limits the memory for values.
pub(crate) fn run(input: &mut Input<'_>, most: u64, classes: Classes) -> Result<PickleResult, Error> {
    let mut machine = Machine {
        built: PickleResult {
            nodes: Vec::new(),
            root: Value::None,
            unknown: BTreeSet::new(),
            tensor_classes: BTreeSet::new(),
        },
        classes,
        refused: BTreeMap::new(),
        stack: Vec::new(),
        deepest: 0,
        marks: Vec::new(),
        memo: HashMap::new(),
        left: most,
        most,
        at: 0,
    };
    loop {
        machine.at = input.position();
        let opcode = input.byte("the pickle")?;
        if machine.step(opcode, input)? {
            if let Some((_, (_, error))) = machine.refused.pop_first() {
                return Err(error);
            }
            machine.built.root = machine.pop()?;
            return Ok(machine.built);
        }
    }
}

struct Machine {
    built: PickleResult,
    classes: Classes,
    /// Rejected globals, by node number, with their errors; they are only accepted as tensor subclasses.
    refused: BTreeMap<u32, (String, Error)>,
    stack: Vec<Value>,
    /// Maximum stack depth reached so far.
    deepest: usize,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    /// Remaining memory budget.
    left: u64,
    most: u64,
    /// Offset of the current opcode.
    at: u64,
}

/// Memory of a value on the stack, in a list or in the memo, and of a node: vectors have up to twice the
/// needed capacity.
const VALUE: u64 = 2 * size_of::<Value>() as u64;
const NODE: u64 = 2 * size_of::<Node>() as u64;

impl Machine {
    fn malformed(&self, what: &str) -> Error {
        Error::new(ErrorKind::Malformed, what).at(self.at).rule("P2")
    }

    fn charge(&mut self, bytes: u64) -> Result<(), Error> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| {
            let error = Error::new(ErrorKind::TooLarge, "the values of the pickle").at(self.at);
            error
                .rule("P4")
                .expected(format_args!("at most {} bytes in memory", self.most))
        })?;
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<bool, Error> {
        // Stack capacity is charged once and kept when values are popped.
        if self.stack.len() >= self.deepest {
            self.charge(VALUE)?;
            self.deepest = self.stack.len() + 1;
        }
        self.stack.push(value);
        Ok(false)
    }

    fn push_node(&mut self, node: Node) -> Result<bool, Error> {
        self.charge(NODE)?;
        let number = u32::try_from(self.built.nodes.len()).map_err(|_| self.malformed("too many values"))?;
        self.built.nodes.push(node);
        self.push(Value::Node(number))
    }

    fn pop(&mut self) -> Result<Value, Error> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.malformed("a value is taken from an empty stack"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.malformed("a value is taken from an empty stack"))
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Value>, Error> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self
            .stack
            .len()
            .checked_sub(count)
            .filter(|start| *start >= floor);
        let start = start.ok_or_else(|| self.malformed("values are taken from an empty stack"))?;
        Ok(self.stack.split_off(start))
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>, Error> {
        let mark = self.marks.pop();
        let mark = mark.ok_or_else(|| self.malformed("there is no mark on the stack"))?;
        Ok(self.stack.split_off(mark))
    }

    fn text(&mut self, len: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        self.charge(len.saturating_mul(2))?;
        let bytes = input.take(len, "a text")?;
        let text = std::str::from_utf8(&bytes).map_err(|_| self.malformed("a text is not UTF-8"))?;
        self.push_node(Node::Text(text.into()))
    }

    /// Reads a Python 2 string, which may be bytes.
    fn string(&mut self, len: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        self.charge(len.saturating_mul(2))?;
        let bytes = input.take(len, "a string")?;
        self.push_node(match std::str::from_utf8(&bytes) {
            Ok(text) => Node::Text(text.into()),
            Err(_) => Node::Other,
        })
    }

    fn bytes(&mut self, len: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        self.charge(len)?;
        input.take(len, "bytes")?;
        self.push_node(Node::Other)
    }

    fn tuple(&mut self, values: Vec<Value>) -> Result<bool, Error> {
        self.charge(size_of_val(&values[..]) as u64)?;
        self.push_node(Node::Tuple(values.into()))
    }

    fn remember(&mut self, key: u64) -> Result<bool, Error> {
        self.charge(2 * VALUE)?;
        let value = *self
            .stack
            .last()
            .ok_or_else(|| self.malformed("nothing to remember"))?;
        let key = u32::try_from(key).map_err(|_| self.malformed("a key of the memo"))?;
        self.memo.insert(key, value);
        Ok(false)
    }

    fn recall(&mut self, key: u64) -> Result<bool, Error> {
        let value = u32::try_from(key)
            .ok()
            .and_then(|key| self.memo.get(&key))
            .copied();
        let value = value.ok_or_else(|| self.malformed("the memo has no such key"))?;
        self.push(value)
    }

    /// Executes an opcode; returns true at the end.
    fn step(&mut self, opcode: u8, input: &mut Input<'_>) -> Result<bool, Error> {
        const WHAT: &str = "an operand of the pickle";
        match opcode {
            b'.' => Ok(true),
            // PROTO, FRAME
            0x80 => match input.byte(WHAT)? {
                2..=5 => Ok(false),
                version => {
                    let error = Error::new(ErrorKind::BadVersion, "the protocol of the pickle").at(self.at);
                    Err(error.rule("P2").expected("2 to 5").found(version))
                }
            },
            0x95 => input.take(8, WHAT).map(|_| false),
            b'(' => {
                self.charge(VALUE)?;
                self.marks.push(self.stack.len());
                Ok(false)
            }
            b'0' => self.pop().map(|_| false),
            b'b' => self.build(),
            b'1' => self.pop_mark().map(|_| false),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'K' => {
                let number = input.number(1, WHAT)?;
                self.push(Value::Int(number as i64))
            }
            b'M' => {
                let number = input.number(2, WHAT)?;
                self.push(Value::Int(number as i64))
            }
            b'J' => {
                let number = input.number(4, WHAT)?;
                self.push(Value::Int((number as u32 as i32).into()))
            }
            0x8a => {
                let len = input.number(1, WHAT)?;
                self.long(len, input)
            }
            0x8b => {
                let len = input.number(4, WHAT)?;
                self.long(len, input)
            }
            b'G' => {
                let bits = input.number(8, WHAT)?;
                self.push(Value::Float(f64::from_bits(bits.swap_bytes())))
            }
            b'X' => {
                let len = input.number(4, WHAT)?;
                self.text(len, input)
            }
            0x8c => {
                let len = input.number(1, WHAT)?;
                self.text(len, input)
            }
            b'T' | b'U' => {
                let len = input.number(if opcode == b'U' { 1 } else { 4 }, WHAT)?;
                self.string(len, input)
            }
            0x8d => {
                let len = input.number(8, WHAT)?;
                self.text(len, input)
            }
            b'C' | b'B' => {
                let len = input.number(if opcode == b'C' { 1 } else { 4 }, WHAT)?;
                self.bytes(len, input)
            }
            0x8e | 0x96 => {
                let len = input.number(8, WHAT)?;
                self.bytes(len, input)
            }
            // Sets, also frozen ones, are represented as lists.
            b']' | 0x8f => self.push_node(Node::List(Vec::new())),
            0x91 => {
                let values = self.pop_mark()?;
                self.charge(VALUE * values.len() as u64)?;
                self.push_node(Node::List(values))
            }
            b'}' => self.push_node(Node::Dict(Vec::new())),
            b')' => self.tuple(Vec::new()),
            b't' => {
                let values = self.pop_mark()?;
                self.tuple(values)
            }
            0x85..=0x87 => {
                let values = self.pop_many(usize::from(opcode - 0x84))?;
                self.tuple(values)
            }
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])
            }
            b'e' | 0x90 => {
                let values = self.pop_mark()?;
                self.append(values)
            }
            b's' => {
                let values = self.pop_many(2)?;
                self.set_items(&values)
            }
            b'u' => {
                let values = self.pop_mark()?;
                self.set_items(&values)
            }
            b'q' => {
                let key = input.number(1, WHAT)?;
                self.remember(key)
            }
            b'r' => {
                let key = input.number(4, WHAT)?;
                self.remember(key)
            }
            0x94 => self.remember(self.memo.len() as u64),
            b'h' => {
                let key = input.number(1, WHAT)?;
                self.recall(key)
            }
            b'j' => {
                let key = input.number(4, WHAT)?;
                self.recall(key)
            }
            b'c' => {
                let (module, name) = (input.line("a name")?, input.line("a name")?);
                self.global(&module, &name)
            }
            0x93 => {
                let names = self.pop_many(2)?;
                let text = |value| self.built.text(value).map(str::to_owned);
                let (Some(module), Some(name)) = (text(names[0]), text(names[1])) else {
                    return Err(self.malformed("a name is not a text"));
                };
                self.global(&module, &name)
            }
            // A call, or the construction of an object.
            b'R' | 0x81 => self.reduce(),
            b'Q' => self.persistent(),
            other => {
                let error = Error::new(
                    ErrorKind::Unsupported,
                    "an opcode of pickle that checkpoints do not need",
                );
                let shown = char::from(other).escape_default();
                Err(error
                    .at(self.at)
                    .rule("P3")
                    .found(format_args!("{other:#04x} ('{shown}')")))
            }
        }
    }

    fn long(&mut self, len: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        if len > 8 {
            self.charge(len)?;
            input.take(len, "a large number")?;
            return self.push_node(Node::Other);
        }
        let number = input.number(len, "a large number")?;
        let unused = 64 - 8 * len as u32;
        let number = if len == 0 {
            0
        } else {
            (number << unused) as i64 >> unused
        };
        self.push(Value::Int(number))
    }

    /// Returns the container to append to.
    fn last(&mut self) -> Option<&mut Node> {
        match self.stack.last()? {
            Value::Node(number) => self.built.nodes.get_mut(*number as usize),
            _ => None,
        }
    }

    fn append(&mut self, values: Vec<Value>) -> Result<bool, Error> {
        self.charge(VALUE * values.len() as u64)?;
        match self.last() {
            Some(Node::List(list)) => list.extend(values),
            // Append to an object of a list subclass.
            Some(Node::Object(pairs)) => {
                let first = pairs.len() as i64;
                pairs.extend((first..).map(Value::Int).zip(values));
            }
            _ => return Err(self.malformed("the target is not a list")),
        }
        Ok(false)
    }

    fn set_items(&mut self, values: &[Value]) -> Result<bool, Error> {
        self.charge(VALUE * values.len() as u64)?;
        let (pairs, rest) = values.as_chunks::<2>();
        if let (Some(Node::Dict(dict) | Node::Object(dict)), []) = (self.last(), rest) {
            dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            return Ok(false);
        }
        Err(self.malformed("the target is not a dictionary, or a key has no value"))
    }

    /// Sets an object's attributes. Attributes of known values are ignored: for example, a state dictionary
    /// records module versions in some.
    fn build(&mut self) -> Result<bool, Error> {
        let state = self.pop()?;
        match self.last() {
            Some(Node::Object(_)) => {}
            Some(Node::Unread(unread)) if unread.kind == UnreadKind::NumPy => {
                return self.shape_of_array(state);
            }
            _ => return Ok(false),
        }
        // Attributes, or a pair: instance dictionary and slots.
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
    fn shape_of_array(&mut self, state: Value) -> Result<bool, Error> {
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

    fn global(&mut self, module: &str, name: &str) -> Result<bool, Error> {
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
                         lenient reading passes over what is not known",
                    )
                    .found(Quoted(&full));
                // Charge for the name and the strings of the error.
                self.charge(2 * full.len() as u64 + 1024)?;
                // Take the number of the next node.
                let number = u32::try_from(self.built.nodes.len());
                let number = number.map_err(|_| self.malformed("too many values"))?;
                self.refused.insert(number, (full, error));
            }
        }
        self.push_node(Node::Global(Global::Class))
    }

    fn reduce(&mut self) -> Result<bool, Error> {
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

    /// Fails for globals that may not be called.
    fn check_allowed(&mut self, callable: Value) -> Result<(), Error> {
        match callable {
            Value::Node(number) => self
                .refused
                .remove(&number)
                .map_or(Ok(()), |(_, error)| Err(error)),
            _ => Ok(()),
        }
    }

    /// Records the class of a tensor without calling it; an unknown class is only reported.
    fn note_tensor_class(&mut self, class: Value) {
        if let Value::Node(number) = class
            && let Some((name, _)) = self.refused.remove(&number)
        {
            self.built.tensor_classes.insert(name);
        }
    }

    fn call(&mut self, global: Global, arguments: &[Value], depth: u32) -> Result<bool, Error> {
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
            Global::FromType => {
                let [callable, class, arguments, ref rest @ ..] = *arguments else {
                    return Err(self.malformed("the arguments of a tensor of a type"));
                };
                let (function, kind) = (self.built.node(callable), self.built.node(class));
                let (
                    Some(&Node::Global(function)),
                    Some(Node::Global(Global::TensorType | Global::Class)),
                    0,
                ) = (function, kind, depth)
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

    /// Returns the dimensions of a tensor that is not read, if its arguments include them.
    fn dims_of_unread(&mut self, kind: UnreadKind, arguments: &[Value]) -> Result<Option<Vec<u64>>, Error> {
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

    /// Sets the attributes of a tensor that is not read: a dictionary, or a pair of dictionary and slots.
    fn attributes_of_unread(&mut self, state: Value) -> Result<bool, Error> {
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

    /// Returns the pairs to construct a dictionary from.
    fn pairs(&mut self, of: Option<Value>) -> Result<Vec<(Value, Value)>, Error> {
        let pairs = match of.and_then(|list| self.built.node(list)) {
            None => Vec::new(),
            Some(Node::Dict(pairs)) => {
                let pairs = pairs.clone();
                self.charge(2 * VALUE * pairs.len() as u64)?;
                return Ok(pairs);
            }
            Some(Node::List(pairs)) => pairs.clone(),
            Some(_) => return Err(self.malformed("what a dictionary is made of")),
        };
        self.charge(2 * VALUE * pairs.len() as u64)?;
        let pairs = pairs.into_iter().map(|pair| match self.tuple_of(pair)?[..] {
            [key, value] => Ok((key, value)),
            _ => Err(self.malformed("what a dictionary is made of")),
        });
        pairs.collect()
    }

    /// Returns the values of a tuple or list.
    fn tuple_of(&mut self, value: Value) -> Result<Vec<Value>, Error> {
        let values = match self.built.node(value) {
            Some(Node::Tuple(values)) => values.to_vec(),
            Some(Node::List(values)) => values.clone(),
            _ => return Err(self.malformed("a value is not a tuple")),
        };
        // The copy is short-lived, but there could be many calls with the same long tuple.
        self.charge(values.len() as u64)?;
        Ok(values)
    }

    fn numbers(&mut self, value: Value) -> Result<Vec<u64>, Error> {
        let numbers = self.tuple_of(value)?.into_iter().map(|value| match value {
            Value::Int(number) => u64::try_from(number).ok(),
            _ => None,
        });
        let numbers: Option<Vec<u64>> = numbers.collect();
        numbers.ok_or_else(|| self.malformed("sizes and strides are numbers from 0"))
    }

    fn tensor(&mut self, arguments: &[Value], is_typed: bool) -> Result<StoredTensor, Error> {
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
        // The metadata follows the hooks, or the dtype.
        let pending = match rest
            .get(if is_typed { 3 } else { 2 })
            .map(|notes| self.built.node(*notes))
        {
            Some(Some(Node::Dict(notes))) => {
                let (pending, count) = (self.pending(notes), notes.len());
                // The metadata is scanned for each tensor, and tensors may share it.
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
    fn pending(&self, notes: &[(Value, Value)]) -> Option<LazyOperation> {
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

    /// Resolves a persistent id to a storage: `('storage', type, key, location, count)`, plus `None` for a
    /// view of another.
    fn persistent(&mut self) -> Result<bool, Error> {
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
