//! Token sequences as a tensor: rows of equal length, padded at their ends.

use std::iter::repeat_n;

use crate::tokenizer::Tokens;

/// The property of the tokens that a tensor contains: ids, mask, types or positions.
#[derive(Clone, Copy)]
pub(crate) enum Aspect {
    Ids,
    Mask,
    Types,
    Positions,
}

impl Aspect {
    /// Returns the values of a batch in row-major order; each row has `length` values. `pad` is the id of the
    /// padding token.
    pub(crate) fn values<T: Clone>(
        self,
        batch: &[&Tokens],
        length: usize,
        pad: u32,
        convert: fn(u32) -> T,
    ) -> Vec<T> {
        let mut values = Vec::with_capacity(batch.len() * length);
        for (row, tokens) in batch.iter().enumerate() {
            let fill = match self {
                Self::Ids => {
                    values.extend(tokens.ids.iter().map(|id| convert(*id)));
                    pad
                }
                Self::Mask => {
                    values.extend(repeat_n(convert(1), tokens.ids.len()));
                    0
                }
                Self::Types => {
                    values.extend(tokens.type_ids.iter().map(|kind| convert(*kind)));
                    0
                }
                Self::Positions => {
                    values.extend((0..length).map(|at| convert(at as u32)));
                    0
                }
            };
            values.resize((row + 1) * length, convert(fill));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_at_their_ends() {
        let long = Tokens {
            ids: vec![7, 8, 9],
            type_ids: vec![0, 1, 1],
            ..Tokens::default()
        };
        let short = Tokens {
            ids: vec![5],
            type_ids: vec![1],
            ..Tokens::default()
        };
        let values = |aspect: Aspect| aspect.values(&[&long, &short], 3, 4, i64::from);
        assert_eq!(values(Aspect::Ids), [7, 8, 9, 5, 4, 4]);
        assert_eq!(values(Aspect::Mask), [1, 1, 1, 1, 0, 0]);
        assert_eq!(values(Aspect::Types), [0, 1, 1, 1, 0, 0]);
        assert_eq!(values(Aspect::Positions), [0, 1, 2, 0, 1, 2]);
    }
}
