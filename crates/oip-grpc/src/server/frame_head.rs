//! The head of a gRPC message: whether the message is compressed, and its length.

use oip_types::ServiceError;

/// Length of a head, in bytes.
pub(crate) const HEAD: usize = 5;

/// Returns the head of a message of `len` bytes, which must fit into 32 bits.
pub(crate) fn frame_head(is_compressed: bool, len: usize) -> Result<[u8; HEAD], ServiceError> {
    let too_long = |_| ServiceError::internal(format!("a message of {len} bytes does not fit gRPC's frame"));
    let [a, b, c, d] = u32::try_from(len).map_err(too_long)?.to_be_bytes();
    Ok([u8::from(is_compressed), a, b, c, d])
}

/// A head that arrives in parts.
#[derive(Default)]
pub(crate) struct PartialHead {
    bytes: [u8; HEAD],
    len: usize,
}

impl PartialHead {
    /// Takes the missing bytes of the head from the front of `part`, and returns their number.
    pub(crate) fn take(&mut self, part: &[u8]) -> usize {
        let used = part.len().min(HEAD - self.len);
        self.bytes[self.len..self.len + used].copy_from_slice(&part[..used]);
        self.len += used;
        used
    }

    /// Returns the compression flag and the length of the message, once the head is complete.
    pub(crate) fn get(&self) -> Option<(u8, usize)> {
        let [flag, len @ ..] = self.bytes;
        (self.len == HEAD).then(|| (flag, u32::from_be_bytes(len) as usize))
    }
}
