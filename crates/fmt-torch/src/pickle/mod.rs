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
    fn text(&mut self, len: u64, input: &mut Input<'_>) -> Result<bool, Error> {
        self.charge(len.saturating_mul(2))?;
        let bytes = input.take(len, "a text")?;
        let text = std::str::from_utf8(&bytes).map_err(|_| self.malformed("a text is not UTF-8"))?;
        self.push_node(Node::Text(text.into()))
    }

    /// Reads a Python 2 string, which need not be UTF-8.
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

    /// Executes an opcode; returns true at the end of the pickle.
    fn step(&mut self, opcode: u8, input: &mut Input<'_>) -> Result<bool, Error> {
        const WHAT: &str = "an operand of the pickle";
        match opcode {
            b'.' => Ok(true),
            // The opcodes PROTO and FRAME.
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
            // Sets and frozen sets are represented as lists.
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
}
