//! An interpreter for the subset of pickle that checkpoints need. The interpreter builds values, runs no
//! code, and rejects unknown globals by name.

mod machine;
mod objects;
mod values;

use fmt_core::{Error, ErrorKind};

use crate::input::Input;

pub(crate) use machine::Classes;
pub(crate) use values::{LazyOperation, Node, PickleResult, Storage, StoredTensor, UnreadTensor, Value};

use machine::{Machine, VALUE};

/// How errors name an opcode's operand.
const OPERAND: &str = "an operand of the pickle";

/// Interprets one pickle to its end. `most` limits the memory for values, in bytes.
pub(crate) fn run(input: &mut Input<'_>, most: u64, classes: Classes) -> Result<PickleResult, Error> {
    let mut machine = Machine::new(most, classes);
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

impl Machine {
    /// Reads a UTF-8 string whose length is stored in `width` bytes.
    fn text(&mut self, width: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        let len = input.number(width, OPERAND)?;
        self.charge(len.saturating_mul(2))?;
        let bytes = input.take(len, "a text")?;
        let text = std::str::from_utf8(&bytes).map_err(|_| self.malformed("a string is not UTF-8"))?;
        self.push_node(Node::Text(text.into()))
    }

    /// Reads a Python 2 string, which need not be UTF-8, and whose length is stored in `width` bytes.
    fn string(&mut self, width: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        let len = input.number(width, OPERAND)?;
        self.charge(len.saturating_mul(2))?;
        let bytes = input.take(len, "a string")?;
        self.push_node(match std::str::from_utf8(&bytes) {
            Ok(text) => Node::Text(text.into()),
            Err(_) => Node::Other,
        })
    }

    /// Skips bytes whose number is stored in `width` bytes, and pushes a placeholder.
    fn bytes(&mut self, width: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        let len = input.number(width, OPERAND)?;
        self.charge(len)?;
        input.take(len, "bytes")?;
        self.push_node(Node::Other)
    }

    /// Stores the topmost value in the memo.
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

    /// Pushes a value from the memo.
    fn recall(&mut self, key: u64) -> Result<bool, Error> {
        let value = u32::try_from(key)
            .ok()
            .and_then(|key| self.memo.get(&key))
            .copied();
        let value = value.ok_or_else(|| self.malformed("the memo has no such key"))?;
        self.push(value)
    }

    /// Executes an opcode; returns true at the end of the pickle.
    fn step(&mut self, opcode: u8, input: &mut Input<'_>) -> Result<bool, Error> {
        match opcode {
            b'.' => Ok(true),
            // The opcodes PROTO and FRAME.
            0x80 => self.protocol(input),
            0x95 => input.take(8, OPERAND).map(|_| false),
            b'(' => self.mark(),
            b'0' => self.pop().map(|_| false),
            b'1' => self.pop_mark().map(|_| false),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'K' => self.unsigned(1, input),
            b'M' => self.unsigned(2, input),
            b'J' => self.signed(input),
            0x8a => self.long(1, input),
            0x8b => self.long(4, input),
            b'G' => self.float(input),
            b'X' => self.text(4, input),
            0x8c => self.text(1, input),
            0x8d => self.text(8, input),
            b'U' => self.string(1, input),
            b'T' => self.string(4, input),
            b'C' => self.bytes(1, input),
            b'B' => self.bytes(4, input),
            0x8e | 0x96 => self.bytes(8, input),
            // Sets and frozen sets are represented as lists.
            b']' | 0x8f => self.push_node(Node::List(Vec::new())),
            0x91 => self.frozen_set(),
            b'}' => self.push_node(Node::Dict(Vec::new())),
            b')' => self.tuple(Vec::new()),
            b't' => self.pop_mark().and_then(|values| self.tuple(values)),
            0x85..=0x87 => {
                let values = self.pop_many(usize::from(opcode - 0x84))?;
                self.tuple(values)
            }
            b'a' => self.pop().and_then(|value| self.append(vec![value])),
            b'e' | 0x90 => self.pop_mark().and_then(|values| self.append(values)),
            b's' => self.pop_many(2).and_then(|values| self.set_items(&values)),
            b'u' => self.pop_mark().and_then(|values| self.set_items(&values)),
            b'q' => input.number(1, OPERAND).and_then(|key| self.remember(key)),
            b'r' => input.number(4, OPERAND).and_then(|key| self.remember(key)),
            0x94 => self.remember(self.memo.len() as u64),
            b'h' => input.number(1, OPERAND).and_then(|key| self.recall(key)),
            b'j' => input.number(4, OPERAND).and_then(|key| self.recall(key)),
            b'c' => self.global_of_lines(input),
            0x93 => self.global_of_stack(),
            // A call, or the construction of an object.
            b'R' | 0x81 => self.reduce(),
            b'b' => self.build(),
            b'Q' => self.persistent(),
            other => Err(self.unsupported(other)),
        }
    }

    /// Reads the version of the protocol (P2).
    fn protocol(&self, input: &mut Input<'_>) -> Result<bool, Error> {
        match input.byte(OPERAND)? {
            2..=5 => Ok(false),
            version => {
                let error = Error::new(ErrorKind::BadVersion, "the protocol of the pickle").at(self.at);
                Err(error.rule("P2").expected("2 to 5").found(version))
            }
        }
    }

    /// Marks the top of the stack.
    fn mark(&mut self) -> Result<bool, Error> {
        self.charge(VALUE)?;
        self.marks.push(self.stack.len());
        Ok(false)
    }

    /// Creates a frozen set from the values above the last mark.
    fn frozen_set(&mut self) -> Result<bool, Error> {
        let values = self.pop_mark()?;
        self.charge(VALUE * values.len() as u64)?;
        self.push_node(Node::List(values))
    }

    /// Resolves a global whose module and name are two lines of the input.
    fn global_of_lines(&mut self, input: &mut Input<'_>) -> Result<bool, Error> {
        let (module, name) = (input.line("a name")?, input.line("a name")?);
        self.global(&module, &name)
    }

    /// Resolves a global whose module and name are the two topmost values of the stack.
    fn global_of_stack(&mut self) -> Result<bool, Error> {
        let names = self.pop_many(2)?;
        let text = |value| self.built.text(value).map(str::to_owned);
        let (Some(module), Some(name)) = (text(names[0]), text(names[1])) else {
            return Err(self.malformed("a name is not a string"));
        };
        self.global(&module, &name)
    }

    /// Returns the error for an opcode outside the supported subset (P3).
    fn unsupported(&self, opcode: u8) -> Error {
        let what = "an opcode of pickle that checkpoints do not need";
        let error = Error::new(ErrorKind::Unsupported, what).at(self.at);
        let shown = char::from(opcode).escape_default();
        error.rule("P3").found(format_args!("{opcode:#04x} ('{shown}')"))
    }

    /// Pushes an unsigned integer of `width` bytes.
    fn unsigned(&mut self, width: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        let number = input.number(width, OPERAND)?;
        self.push(Value::Int(number as i64))
    }

    /// Pushes a signed integer of 4 bytes.
    fn signed(&mut self, input: &mut Input<'_>) -> Result<bool, Error> {
        let number = input.number(4, OPERAND)?;
        self.push(Value::Int((number as u32 as i32).into()))
    }

    /// Pushes a big-endian float of 8 bytes.
    fn float(&mut self, input: &mut Input<'_>) -> Result<bool, Error> {
        let bits = input.number(8, OPERAND)?;
        self.push(Value::Float(f64::from_bits(bits.swap_bytes())))
    }

    /// Reads an integer of any size, whose length is stored in `width` bytes. Integers beyond 8 bytes are
    /// skipped.
    fn long(&mut self, width: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        let len = input.number(width, OPERAND)?;
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
}
