//! Integers with the order of numbers.

use half::f16;

/// Maps numbers to integers with the same order, so that one selection handles all types. Both zeros have the
/// same key, and NaN has the greatest key, as in NumPy.
pub(crate) trait Key {
    fn key(&self) -> u64;
}

macro_rules! keys {
    ($($type:ty: |$number:ident| $key:expr;)*) => {$(
        impl Key for $type {
            #[inline(always)]
            fn key(&self) -> u64 {
                let $number = *self;
                $key
            }
        }
    )*};
}

keys! {
    u8: |number| u64::from(number);
    u16: |number| u64::from(number);
    u32: |number| u64::from(number);
    u64: |number| number;
    i8: |number| i64::from(number).key();
    i16: |number| i64::from(number).key();
    i32: |number| i64::from(number).key();
    i64: |number| number.cast_unsigned() ^ (1 << 63);
    f16: |number| number.to_f64().key();
    f32: |number| f64::from(number).key();
    f64: |number| {
        // Adding 0 removes the sign of zero.
        let bits = (number + 0.0).to_bits();
        let sign = (bits.cast_signed() >> 63).cast_unsigned();
        let key = bits ^ (sign | 1 << 63);
        if number.is_nan() { u64::MAX } else { key }
    };
}

/// Writes the keys of consecutive elements.
pub(crate) fn write_keys<T: Key>(values: &[T], keys: &mut [u64]) {
    pulp::Arch::new().dispatch(Keys { values, keys });
}

struct Keys<'v, T> {
    values: &'v [T],
    keys: &'v mut [u64],
}

impl<T: Key> pulp::WithSimd for Keys<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let pairs = self.keys.iter_mut().zip(self.values);
        pairs.for_each(|(key, value)| *key = value.key());
    }
}
