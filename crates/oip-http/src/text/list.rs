//! The texts of a request, decoded from JSON into the raw form of a BYTES tensor without a string for each text.

use std::{
    borrow::Cow,
    cell::Cell,
    fmt::{self, Write},
};

use oip_resources::Lease;
use oip_types::{BytesTensor, ErrorCode, ServiceError};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor, value::MapAccessDeserializer},
};
use tensor_core::Shape;

/// Maximum number of texts in a request. Text models have the same default, `TextOptions` of oip-text.
const MAX_TEXTS: usize = 16 << 10;

/// Maximum total size of the texts of a request in bytes. Text models have the same default.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// A list of texts. Texts beyond the limits are counted and not stored.
#[derive(Default)]
pub(crate) struct TextList {
    /// Each text with its length in front, as in [`BytesTensor`].
    raw: Vec<u8>,
    count: usize,
    bytes: usize,
}

impl TextList {
    fn push(&mut self, text: &str) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(text.len());
        if self.count <= MAX_TEXTS && self.bytes <= MAX_TEXT_BYTES {
            push_element(&mut self.raw, text);
        }
    }

    /// Converts the list into an input. Its limits must have been checked.
    fn into_tensor(self) -> Result<BytesTensor, ServiceError> {
        BytesTensor::new(Shape::vector(self.count as u64), self.raw.into())
    }
}

/// Appends a text of less than [`MAX_TEXT_BYTES`] with its length.
fn push_element(raw: &mut Vec<u8>, text: &str) {
    raw.extend_from_slice(&(text.len() as u32).to_le_bytes());
    raw.extend_from_slice(text.as_bytes());
}

/// The texts of a request.
pub(crate) enum Texts {
    /// Single texts.
    Single(TextList),
    /// Pairs of texts. Both lists have the same length.
    Pairs(TextList, TextList),
    /// Pairs of one query and each of the texts.
    Query(String, TextList),
}

impl Texts {
    /// Converts the texts into the inputs `text` and `text_pair`, after checking the limits on their number
    /// and their total size. Copies of a query are charged to the lease before they are made.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorCode::InvalidArgument) without texts, [`TooLarge`](ErrorCode::TooLarge) beyond
    /// a limit, and the errors of [`Lease::charge`].
    pub(crate) fn into_tensors(
        self,
        lease: &Lease,
    ) -> Result<(BytesTensor, Option<BytesTensor>), ServiceError> {
        match self {
            Self::Single(texts) => {
                check(texts.count, texts.bytes)?;
                Ok((texts.into_tensor()?, None))
            }
            Self::Pairs(texts, pairs) => {
                check(texts.count, texts.bytes.saturating_add(pairs.bytes))?;
                Ok((texts.into_tensor()?, Some(pairs.into_tensor()?)))
            }
            Self::Query(query, texts) => {
                let copies = query.len().saturating_mul(texts.count);
                check(texts.count, copies.saturating_add(texts.bytes))?;
                Ok((repeated(&query, texts.count, lease)?, Some(texts.into_tensor()?)))
            }
        }
    }
}

/// Creates an input of `count` copies of a text.
fn repeated(text: &str, count: usize, lease: &Lease) -> Result<BytesTensor, ServiceError> {
    let bytes = (BytesTensor::LENGTH_PREFIX + text.len()) * count;
    let charge = lease.charge(bytes as u64)?;
    let mut raw = Vec::with_capacity(bytes);
    for _ in 0..count {
        push_element(&mut raw, text);
    }
    BytesTensor::new(Shape::vector(count as u64), charge.own(raw))
}

/// Checks the number and the total size of the texts of a request.
fn check(count: usize, bytes: usize) -> Result<(), ServiceError> {
    if count == 0 {
        return Err(ServiceError::invalid("expected at least one text, found none"));
    }
    for (what, found, most) in [
        ("texts", count, MAX_TEXTS),
        ("bytes of text", bytes, MAX_TEXT_BYTES),
    ] {
        if found > most {
            let message =
                format!("the request has {found} {what}, expected at most {most}: send several requests");
            return Err(ServiceError::new(ErrorCode::TooLarge, message));
        }
    }
    Ok(())
}

/// Decodes the string member `query`; errors name the member.
pub(crate) fn query<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map_err(|error| Error::custom(format!("query: {error}")))
}

/// Decodes the member `texts`: strings.
pub(crate) fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TextList, D::Error> {
    read(deserializer, "texts", Kinds::STRINGS).map(|read| read.texts)
}

/// Decodes the member `documents`: strings, or objects with a string `text`.
pub(crate) fn documents<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TextList, D::Error> {
    read(deserializer, "documents", Kinds::DOCUMENTS).map(|read| read.texts)
}

/// Decodes the member `inputs` of `/embed`: a string or strings.
pub(crate) fn inputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TextList, D::Error> {
    read(deserializer, "inputs", Kinds::ONE_OR_MANY).map(|read| read.texts)
}

/// Token ids, or texts.
pub(crate) struct Input {
    /// The texts; token ids as JSON arrays.
    pub(crate) texts: TextList,
    pub(crate) are_ids: bool,
}

/// Decodes the member `input` of `/v1/embeddings`: a string, strings, token ids or lists of token ids.
pub(crate) fn input<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Input, D::Error> {
    let read = read(deserializer, "input", Kinds::EMBEDDINGS)?;
    Ok(Input {
        are_ids: matches!(read.kind, Some(Kind::Id | Kind::Ids)),
        texts: read.texts,
    })
}

/// The inputs of a classifier.
pub(crate) struct Sequences {
    pub(crate) texts: Texts,
    /// Whether the response is that of one input, without a list around it.
    pub(crate) is_one: bool,
}

/// Decodes the member `inputs` of `/predict`: a string, a list of one string or a pair, or a list of such
/// lists.
pub(crate) fn sequences<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Sequences, D::Error> {
    let read = read(deserializer, "inputs", Kinds::SEQUENCES)?;
    Ok(Sequences {
        is_one: read.kind != Some(Kind::List),
        texts: match read.width {
            2 => Texts::Pairs(read.texts, read.pairs),
            _ => Texts::Single(read.texts),
        },
    })
}

/// The elements that a member may have.
#[derive(Clone, Copy)]
struct Kinds {
    may_be_one: bool,
    may_be_object: bool,
    may_be_ids: bool,
    may_be_list: bool,
    expected: &'static str,
}

impl Kinds {
    const STRINGS: Self = Self {
        may_be_one: false,
        may_be_object: false,
        may_be_ids: false,
        may_be_list: false,
        expected: "a list of strings",
    };
    const ONE_OR_MANY: Self = Self {
        may_be_one: true,
        expected: "a string or a list of strings",
        ..Self::STRINGS
    };
    const DOCUMENTS: Self = Self {
        may_be_object: true,
        expected: "a list of strings, or of objects with a string text",
        ..Self::STRINGS
    };
    const EMBEDDINGS: Self = Self {
        may_be_one: true,
        may_be_ids: true,
        expected: "a string, a list of strings, a list of token ids or a list of such lists",
        ..Self::STRINGS
    };
    const SEQUENCES: Self = Self {
        may_be_one: true,
        may_be_list: true,
        expected: "a string, a list of one string or a pair, or a list of such lists",
        ..Self::STRINGS
    };
}

/// The kind of a list's elements; all elements of a list have the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A text.
    Text,
    /// A token id.
    Id,
    /// A list of token ids.
    Ids,
    /// A list of one text or of a pair.
    List,
}

/// Reads a member that has texts. Errors name the member, and the index of the element.
fn read<'de, D: Deserializer<'de>>(
    deserializer: D,
    member: &'static str,
    kinds: Kinds,
) -> Result<MemberTexts, D::Error> {
    let index = Cell::new(None);
    let reader = Reader {
        kinds,
        index: &index,
        read: MemberTexts::default(),
    };
    deserializer
        .deserialize_any(reader)
        .map_err(|error| match index.get() {
            Some(index) => Error::custom(format_args!("{member}[{index}]: {error}")),
            None => Error::custom(format_args!("{member}: {error}")),
        })
}

/// The texts of a member.
#[derive(Default)]
struct MemberTexts {
    texts: TextList,
    /// The second text of each pair.
    pairs: TextList,
    /// The token ids of the text that is being read, separated by commas.
    ids: String,
    /// The kind of the list's elements; `None` for a single string and for an empty list.
    kind: Option<Kind>,
    /// Number of texts in each sequence of a classifier; 0 before the first one.
    width: usize,
}

impl MemberTexts {
    fn push_id<E: Error>(&mut self, id: u64) -> Result<(), E> {
        let id = u32::try_from(id).map_err(|_| E::custom(format_args!("{id} is no token id")))?;
        let comma = if self.ids.is_empty() { "" } else { "," };
        write!(self.ids, "{comma}{id}").map_err(E::custom)
    }

    /// Appends the token ids read so far as a text.
    fn end_ids(&mut self) {
        self.texts.push(&format!("[{}]", self.ids));
        self.ids.clear();
    }

    /// Returns the list for the text at a position of a sequence.
    fn list<E: Error>(&mut self, position: usize) -> Result<&mut TextList, E> {
        match position {
            0 => Ok(&mut self.texts),
            1 => Ok(&mut self.pairs),
            _ => Err(E::custom(SEQUENCES)),
        }
    }
}

/// The message about sequences of different lengths, or of wrong ones.
const SEQUENCES: &str = "expected one text or a pair of texts in each list, and as many in all of them";

/// Reads a member: a string or a list.
struct Reader<'i> {
    kinds: Kinds,
    /// The index of the element that is being read.
    index: &'i Cell<Option<usize>>,
    read: MemberTexts,
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = MemberTexts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kinds.expected)
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<MemberTexts, E> {
        if !self.kinds.may_be_one {
            return Err(E::invalid_type(Unexpected::Str(""), &self));
        }
        self.read.texts.push(text);
        Ok(self.read)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<MemberTexts, A::Error> {
        for index in 0.. {
            self.index.set(Some(index));
            let element = Element {
                kinds: self.kinds,
                index,
                read: &mut self.read,
            };
            if seq.next_element_seed(element)?.is_none() {
                break;
            }
        }
        self.index.set(None);
        if self.read.kind == Some(Kind::Id) {
            self.read.end_ids();
        }
        Ok(self.read)
    }
}

/// Reads one element of a member's list.
struct Element<'r> {
    kinds: Kinds,
    index: usize,
    read: &'r mut MemberTexts,
}

impl Element<'_> {
    /// Checks that the element has the kind of those before it.
    fn set_kind<E: Error>(&mut self, kind: Kind) -> Result<(), E> {
        match *self.read.kind.get_or_insert(kind) == kind {
            true => Ok(()),
            false => Err(E::custom(format_args!("expected {}", self.kinds.expected))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kinds.expected)
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<(), E> {
        self.set_kind(Kind::Text)?;
        if self.kinds.may_be_list {
            // The list is one sequence.
            self.read.width = self.index + 1;
            self.read.list(self.index)?.push(text);
        } else {
            self.read.texts.push(text);
        }
        Ok(())
    }

    fn visit_u64<E: Error>(mut self, id: u64) -> Result<(), E> {
        if !self.kinds.may_be_ids {
            return Err(E::invalid_type(Unexpected::Unsigned(id), &self));
        }
        self.set_kind(Kind::Id)?;
        self.read.push_id(id)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, map: A) -> Result<(), A::Error> {
        #[derive(Deserialize)]
        struct Document<'a> {
            #[serde(borrow)]
            text: Cow<'a, str>,
        }

        if !self.kinds.may_be_object {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        self.set_kind(Kind::Text)?;
        let document = Document::deserialize(MapAccessDeserializer::new(map))?;
        self.read.texts.push(&document.text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        if self.kinds.may_be_ids {
            self.set_kind(Kind::Ids)?;
            while let Some(id) = seq.next_element()? {
                self.read.push_id(id)?;
            }
            self.read.end_ids();
            return Ok(());
        }
        if !self.kinds.may_be_list {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        self.set_kind(Kind::List)?;
        let mut width = 0;
        while seq.next_element_seed(Text(self.read, width))?.is_some() {
            width += 1;
        }
        if width == 0 || ![0, width].contains(&self.read.width) {
            return Err(A::Error::custom(SEQUENCES));
        }
        self.read.width = width;
        Ok(())
    }
}

/// Reads the text at a position of a sequence.
struct Text<'r>(&'r mut MemberTexts, usize);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.0.list(self.1)?.push(text);
        Ok(())
    }
}
