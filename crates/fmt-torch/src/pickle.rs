//! A machine for the part of pickle that checkpoints need. It builds values, runs nothing, and refuses what it does not
//! know by name.

use std::collections::HashMap;

use fmt_core::{Error, ErrorKind};
use tensor_core::Quoted;

use crate::{
    globals::{self, Elements, Global},
    input::Input,
};

/// A value: small ones as they are, others by their number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Node(u32),
}

/// A value that has parts, or a name.
#[derive(Debug)]
pub(crate) enum Node {
    Text(Box<str>),
    Tuple(Box<[Value]>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global(Global),
    Storage(Storage),
    Tensor(StoredTensor),
    /// Something that is passed over, such as bytes.
    Other,
}

/// Bytes that tensors are views of.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    pub(crate) key: Box<str>,
    pub(crate) elements: Elements,
    /// Elements in it.
    pub(crate) count: u64,
}

/// A tensor as a view of a storage.
#[derive(Clone, Debug)]
pub(crate) struct StoredTensor {
    pub(crate) storage: Storage,
    pub(crate) elements: Elements,
    /// In elements, as the strides.
    pub(crate) offset: u64,
    pub(crate) dims: Vec<u64>,
    pub(crate) strides: Vec<u64>,
}

/// What running a pickle came to.
#[derive(Debug)]
pub(crate) struct Unpickled {
    pub(crate) nodes: Vec<Node>,
    pub(crate) root: Value,
}

impl Unpickled {
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

/// Runs one pickle, up to its end. `most` bounds the memory for values.
pub(crate) fn run(input: &mut Input<'_>, most: u64) -> Result<Unpickled, Error> {
    let mut machine = Machine {
        built: Unpickled {
            nodes: Vec::new(),
            root: Value::None,
        },
        stack: Vec::new(),
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
            machine.built.root = machine.pop()?;
            return Ok(machine.built);
        }
    }
}

struct Machine {
    built: Unpickled,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    /// Memory that may still be used.
    left: u64,
    most: u64,
    /// Where the opcode stands.
    at: u64,
}

/// Memory of one value on the stack, in a list or in the memo, generously.
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
        self.charge(VALUE)?;
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
        self.charge(2 * len)?;
        let bytes = input.take(len, "a text")?;
        let text = std::str::from_utf8(&bytes).map_err(|_| self.malformed("a text is not UTF-8"))?;
        self.push_node(Node::Text(text.into()))
    }

    fn tuple(&mut self, values: Vec<Value>) -> Result<bool, Error> {
        self.charge(VALUE * values.len() as u64)?;
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

    /// Does what an opcode says; true at the end.
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
            // The attributes of an object are passed over; those of a dictionary of tensors say which version wrote it.
            b'0' | b'b' => self.pop().map(|_| false),
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
            // Also the texts of Python 2, as far as they are UTF-8.
            b'X' | b'T' => {
                let len = input.number(4, WHAT)?;
                self.text(len, input)
            }
            0x8c | b'U' => {
                let len = input.number(1, WHAT)?;
                self.text(len, input)
            }
            0x8d => {
                let len = input.number(8, WHAT)?;
                self.text(len, input)
            }
            b'C' | b'B' => {
                let len = input.number(if opcode == b'C' { 1 } else { 4 }, WHAT)?;
                self.charge(len)?;
                input.take(len, "bytes")?;
                self.push_node(Node::Other)
            }
            b']' => self.push_node(Node::List(Vec::new())),
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
            b'e' => {
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
            b'R' => self.reduce(),
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

    /// The value that is added to.
    fn last(&mut self) -> Option<&mut Node> {
        match self.stack.last()? {
            Value::Node(number) => self.built.nodes.get_mut(*number as usize),
            _ => None,
        }
    }

    fn append(&mut self, values: Vec<Value>) -> Result<bool, Error> {
        self.charge(VALUE * values.len() as u64)?;
        if let Some(Node::List(list)) = self.last() {
            list.extend(values);
            return Ok(false);
        }
        Err(self.malformed("the value that is added to is no list"))
    }

    fn set_items(&mut self, values: &[Value]) -> Result<bool, Error> {
        self.charge(VALUE * values.len() as u64)?;
        let (pairs, rest) = values.as_chunks::<2>();
        if let (Some(Node::Dict(dict)), []) = (self.last(), rest) {
            dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            return Ok(false);
        }
        Err(self.malformed("the value that is added to is no dictionary, or a key has no value"))
    }

    fn global(&mut self, module: &str, name: &str) -> Result<bool, Error> {
        let Some(global) = globals::find(module, name) else {
            let what = "the checkpoint wants to use code, which is never run here";
            let error = Error::new(ErrorKind::Unsupported, what).at(self.at).rule("P3");
            let found = format!("{module}.{name}");
            return Err(error
                .expected("tensors in dictionaries, as torch.save(model.state_dict(), ...) writes them")
                .found(Quoted(&found)));
        };
        self.push_node(Node::Global(global))
    }

    fn reduce(&mut self) -> Result<bool, Error> {
        let [callable, arguments] = self.pop_many(2)?[..] else {
            return Err(self.malformed("a call"));
        };
        let Some(&Node::Global(global)) = self.built.node(callable) else {
            return Err(self.malformed("what is called is no function"));
        };
        let arguments = self.tuple_of(arguments)?;
        match global {
            Global::OrderedDict => {
                let pairs = match arguments.first().and_then(|list| self.built.node(*list)) {
                    None => Vec::new(),
                    Some(Node::List(pairs)) => pairs.clone(),
                    Some(_) => return Err(self.malformed("what a dictionary is made of")),
                };
                self.charge(2 * VALUE * pairs.len() as u64)?;
                let pairs: Result<Vec<_>, _> = pairs
                    .into_iter()
                    .map(|pair| match self.tuple_of(pair)?[..] {
                        [key, value] => Ok((key, value)),
                        _ => Err(self.malformed("what a dictionary is made of")),
                    })
                    .collect();
                let pairs = pairs?;
                self.push_node(Node::Dict(pairs))
            }
            Global::Parameter => {
                let tensor = arguments.first().copied();
                let tensor = tensor.ok_or_else(|| self.malformed("a parameter without a tensor"))?;
                self.push(tensor)
            }
            Global::Size => {
                let dims = arguments.first().copied();
                let dims = dims.ok_or_else(|| self.malformed("a size without dimensions"))?;
                let dims = self.tuple_of(dims)?;
                self.tuple(dims)
            }
            Global::Tensor | Global::TypedTensor => {
                let tensor = self.tensor(&arguments, global == Global::TypedTensor)?;
                self.charge(16 * tensor.dims.len() as u64 + 64)?;
                self.push_node(Node::Tensor(tensor))
            }
            Global::Inert | Global::Elements(_) => self.push_node(Node::Other),
        }
    }

    /// The values of a tuple or a list.
    fn tuple_of(&mut self, value: Value) -> Result<Vec<Value>, Error> {
        let values = match self.built.node(value) {
            Some(Node::Tuple(values)) => values.to_vec(),
            Some(Node::List(values)) => values.clone(),
            _ => return Err(self.malformed("a value is no tuple")),
        };
        // The copy lives shortly, but calls with the same long tuple could be many.
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
        let storage = storage.clone();
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
        Ok(StoredTensor {
            storage,
            elements,
            offset,
            dims: self.numbers(*dims)?,
            strides: self.numbers(*strides)?,
        })
    }

    /// A storage: `('storage', type, key, location, count)`, and `None` for what is a view of another.
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
        self.charge(storage.key.len() as u64)?;
        self.push_node(Node::Storage(storage))
    }
}
