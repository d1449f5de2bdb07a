//! The stack and the containers of a pickle, within a memory budget.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fmt_core::{Error, ErrorKind};

use crate::pickle::values::{Node, PickleResult, Value};

/// The unknown classes to accept. Their objects are represented by attributes; none of their code is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classes {
    /// No unknown classes: the first one is rejected, and the error names it.
    Known,
    /// The classes of a `TorchScript` program, which the archive describes.
    TorchScript,
    /// All classes.
    All,
}

/// The stack machine: its values, and the memory that they take.
pub(super) struct Machine {
    pub(super) built: PickleResult,
    pub(super) classes: Classes,
    /// Rejected globals, by node number, with their errors; such a global is accepted only as a tensor
    /// subclass.
    pub(super) refused: BTreeMap<u32, (String, Error)>,
    pub(super) stack: Vec<Value>,
    /// Maximum stack depth reached so far.
    deepest: usize,
    pub(super) marks: Vec<usize>,
    pub(super) memo: HashMap<u32, Value>,
    /// Remaining memory budget.
    left: u64,
    most: u64,
    /// Offset of the current opcode.
    pub(super) at: u64,
}

/// Bytes counted toward the memory budget for a value on the stack, in a list or in the memo: twice its size,
/// since vectors may reserve up to twice the needed capacity.
pub(super) const VALUE: u64 = 2 * size_of::<Value>() as u64;
const NODE: u64 = 2 * size_of::<Node>() as u64;

impl Machine {
    /// Creates a machine. `most` limits the memory for values, in bytes.
    pub(super) fn new(most: u64, classes: Classes) -> Self {
        Self {
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
        }
    }

    pub(super) fn malformed(&self, what: &str) -> Error {
        Error::new(ErrorKind::Malformed, what).at(self.at).rule("P2")
    }

    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), Error> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| {
            let error = Error::new(ErrorKind::TooLarge, "the values of the pickle").at(self.at);
            error
                .rule("P4")
                .expected(format_args!("at most {} bytes in memory", self.most))
        })?;
        Ok(())
    }

    pub(super) fn push(&mut self, value: Value) -> Result<bool, Error> {
        // Stack capacity is charged to the budget once, and kept when values are popped.
        if self.stack.len() >= self.deepest {
            self.charge(VALUE)?;
            self.deepest = self.stack.len() + 1;
        }
        self.stack.push(value);
        Ok(false)
    }

    pub(super) fn push_node(&mut self, node: Node) -> Result<bool, Error> {
        self.charge(NODE)?;
        let number = u32::try_from(self.built.nodes.len()).map_err(|_| self.malformed("too many values"))?;
        self.built.nodes.push(node);
        self.push(Value::Node(number))
    }

    pub(super) fn pop(&mut self) -> Result<Value, Error> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.malformed("a value is popped from an empty stack"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.malformed("a value is popped from an empty stack"))
    }

    pub(super) fn pop_many(&mut self, count: usize) -> Result<Vec<Value>, Error> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self
            .stack
            .len()
            .checked_sub(count)
            .filter(|start| *start >= floor);
        let start = start.ok_or_else(|| self.malformed("values are popped from an empty stack"))?;
        Ok(self.stack.split_off(start))
    }

    pub(super) fn pop_mark(&mut self) -> Result<Vec<Value>, Error> {
        let mark = self.marks.pop();
        let mark = mark.ok_or_else(|| self.malformed("there is no mark on the stack"))?;
        Ok(self.stack.split_off(mark))
    }

    pub(super) fn tuple(&mut self, values: Vec<Value>) -> Result<bool, Error> {
        self.charge(size_of_val(&values[..]) as u64)?;
        self.push_node(Node::Tuple(values.into()))
    }

    /// Returns the node on top of the stack, which opcodes append to.
    pub(super) fn last(&mut self) -> Option<&mut Node> {
        match self.stack.last()? {
            Value::Node(number) => self.built.nodes.get_mut(*number as usize),
            _ => None,
        }
    }

    pub(super) fn append(&mut self, values: Vec<Value>) -> Result<bool, Error> {
        self.charge(VALUE * values.len() as u64)?;
        match self.last() {
            Some(Node::List(list)) => list.extend(values),
            // An object of a list subclass: the values become pairs with consecutive numbers.
            Some(Node::Object(pairs)) => {
                let first = pairs.len() as i64;
                pairs.extend((first..).map(Value::Int).zip(values));
            }
            _ => return Err(self.malformed("the target is not a list")),
        }
        Ok(false)
    }

    pub(super) fn set_items(&mut self, values: &[Value]) -> Result<bool, Error> {
        self.charge(VALUE * values.len() as u64)?;
        let (pairs, rest) = values.as_chunks::<2>();
        if let (Some(Node::Dict(dict) | Node::Object(dict)), []) = (self.last(), rest) {
            dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            return Ok(false);
        }
        Err(self.malformed("the target is not a dictionary, or a key has no value"))
    }

    /// Returns the pairs for a dictionary that is constructed from `of`.
    pub(super) fn pairs(&mut self, of: Option<Value>) -> Result<Vec<(Value, Value)>, Error> {
        let pairs = match of.and_then(|list| self.built.node(list)) {
            None => Vec::new(),
            Some(Node::Dict(pairs)) => {
                let pairs = pairs.clone();
                self.charge(2 * VALUE * pairs.len() as u64)?;
                return Ok(pairs);
            }
            Some(Node::List(pairs)) => pairs.clone(),
            Some(_) => return Err(self.malformed("the items of a dictionary")),
        };
        self.charge(2 * VALUE * pairs.len() as u64)?;
        let pairs = pairs.into_iter().map(|pair| match self.tuple_of(pair)?[..] {
            [key, value] => Ok((key, value)),
            _ => Err(self.malformed("the items of a dictionary")),
        });
        pairs.collect()
    }

    /// Returns the values of a tuple or list.
    pub(super) fn tuple_of(&mut self, value: Value) -> Result<Vec<Value>, Error> {
        let values = match self.built.node(value) {
            Some(Node::Tuple(values)) => values.to_vec(),
            Some(Node::List(values)) => values.clone(),
            _ => return Err(self.malformed("a value is not a tuple")),
        };
        // The copy is short-lived, but a pickle could copy the same long tuple many times.
        self.charge(values.len() as u64)?;
        Ok(values)
    }

    pub(super) fn numbers(&mut self, value: Value) -> Result<Vec<u64>, Error> {
        let numbers = self.tuple_of(value)?.into_iter().map(|value| match value {
            Value::Int(number) => u64::try_from(number).ok(),
            _ => None,
        });
        let numbers: Option<Vec<u64>> = numbers.collect();
        numbers.ok_or_else(|| self.malformed("sizes and strides are numbers from 0"))
    }
}
