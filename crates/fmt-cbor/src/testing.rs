//! Builds CBOR for tests item by item, including ill-formed input.

/// Encodes the header of a CBOR item in its shortest form.
#[must_use]
pub fn head(major: u8, number: u64) -> Vec<u8> {
    let major = major << 5;
    match number {
        0..24 => vec![major | number as u8],
        24..0x100 => vec![major | 24, number as u8],
        0x100..0x1_0000 => [&[major | 25][..], &(number as u16).to_be_bytes()].concat(),
        0x1_0000..0x1_0000_0000 => [&[major | 26][..], &(number as u32).to_be_bytes()].concat(),
        _ => [&[major | 27][..], &number.to_be_bytes()].concat(),
    }
}

/// Encodes an unsigned integer.
#[must_use]
pub fn uint(number: u64) -> Vec<u8> {
    head(0, number)
}

/// Encodes a text string, which may be invalid UTF-8.
#[must_use]
pub fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    [&head(3, text.as_ref().len() as u64)[..], text.as_ref()].concat()
}

/// Encodes a byte string.
#[must_use]
pub fn bytes(bytes: &[u8]) -> Vec<u8> {
    [&head(2, bytes.len() as u64)[..], bytes].concat()
}

/// Encodes an array of encoded items.
#[must_use]
pub fn array(items: &[Vec<u8>]) -> Vec<u8> {
    [head(4, items.len() as u64), items.concat()].concat()
}

/// Encodes an array of unsigned integers.
#[must_use]
pub fn dims(dims: &[u64]) -> Vec<u8> {
    array(&dims.iter().map(|dim| uint(*dim)).collect::<Vec<_>>())
}

/// Encodes an item of indefinite length: header, contents, and a break.
#[must_use]
pub fn indefinite(major: u8, items: &[Vec<u8>]) -> Vec<u8> {
    [vec![major << 5 | 31], items.concat(), vec![0xff]].concat()
}

/// A map: encoded keys and values in insertion order.
#[derive(Clone, Debug, Default)]
pub struct Map(pub Vec<(Vec<u8>, Vec<u8>)>);

impl Map {
    /// Sets the value of a new or existing key.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        let key = text(key);
        let value = value.into();
        match self.0.iter_mut().find(|(old, _)| *old == key) {
            Some(pair) => pair.1 = value,
            None => self.0.push((key, value)),
        }
        self
    }

    /// Adds a pair, even if the key exists.
    #[must_use]
    pub fn and(mut self, key: Vec<u8>, value: Vec<u8>) -> Self {
        self.0.push((key, value));
        self
    }

    /// Removes the pairs with this key.
    #[must_use]
    pub fn without(mut self, key: &str) -> Self {
        let key = text(key);
        self.0.retain(|(old, _)| *old != key);
        self
    }

    /// Creates an empty map.
    #[must_use]
    pub fn empty() -> Self {
        Self(Vec::new())
    }

    /// Encodes the map with keys in the order of deterministic CBOR.
    #[must_use]
    pub fn encode_sorted(&self) -> Vec<u8> {
        let mut sorted = self.clone();
        sorted.0.sort();
        sorted.encode()
    }

    fn pairs(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|(key, value)| [&key[..], value].concat())
            .collect()
    }

    /// Encodes the map with a definite length.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [head(5, self.0.len() as u64), self.pairs()].concat()
    }

    /// Encodes the map with an indefinite length.
    #[must_use]
    pub fn encode_indefinite(&self) -> Vec<u8> {
        [vec![0xbf], self.pairs(), vec![0xff]].concat()
    }
}

/// Returns pairs of distinct keys of three characters and nulls, the smallest possible values.
#[must_use]
pub fn tiny_fields(count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let letter = |number: usize| b'A' + (number % 58) as u8;
    let key = |number: usize| vec![letter(number), letter(number / 58), letter(number / 58 / 58)];
    (0..count).map(|number| (text(key(number)), vec![0xf6])).collect()
}
