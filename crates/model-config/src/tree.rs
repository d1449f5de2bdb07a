//! A configuration as an untyped tree of names and values.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use crate::Position;

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    /// Byte offset in the file; `None` for formats whose parsers report no offset.
    pub(crate) at: Option<usize>,
}

/// A value, with its type as far as the syntax shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// A number or a bare word such as `true` or `TYPE_FP32`, as written.
    Word(String),
    /// A string.
    Text(String),
    /// The fields of a message in order; names may repeat.
    Message(Vec<(String, Node)>),
    /// A list.
    List(Vec<Node>),
}

/// Converts the byte offset `at` to a line and a column.
pub(crate) fn place(text: &str, at: usize) -> Position {
    let before = &text[..text.floor_char_boundary(at)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    let column = before[line_start..].chars().count() + 1;
    Position { line, column }
}

impl Value {
    /// Describes the value for error messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Word(word) => tensor_core::QuotedName(word).to_string(),
            Self::Text(text) => format!("the text {}", tensor_core::QuotedName(text)),
            Self::Message(_) => "a message".to_owned(),
            Self::List(_) => "a list".to_owned(),
        }
    }
}

/// Deserializes from JSON and TOML. Null members count as absent; duplicates are kept and rejected later.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = deserializer.deserialize_any(Reader)?;
        Ok(Self { value, at: None })
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Word(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Word(value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Word(value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Word(value.to_string()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    /// Reads null as an empty list.
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::List(Vec::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(member) = members.next_entry()? {
            fields.push(member);
        }
        Ok(Value::Message(fields))
    }
}
