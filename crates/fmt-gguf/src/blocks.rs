//! Decodes GGML's quantised blocks: one function per type, from the bytes of a block to its elements.
//!
//! Arithmetic is in `f32` and in the order of GGML's reference, so results are identical to the last bit. All
//! words are little-endian; `f16` scales are at the start or end of the block.

use crate::{
    grid_blocks,
    types::GgmlType,
    words::{Decode, float, half, word},
};

/// Returns the decoder of a type; `None` for types that are only copied.
pub(crate) fn undo_of(ggml: GgmlType) -> Option<Decode> {
    Some(match ggml.name {
        "Q4_0" => q4_0,
        "Q4_1" => q4_1,
        "Q5_0" => q5_0,
        "Q5_1" => q5_1,
        "Q8_0" => q8_0,
        "Q2_K" => q2_k,
        "Q3_K" => q3_k,
        "Q4_K" => q4_k,
        "Q5_K" => q5_k,
        "Q6_K" => q6_k,
        "Q8_K" => q8_k,
        "IQ4_NL" => iq4_nl,
        "IQ4_XS" => iq4_xs,
        "TQ1_0" => tq1_0,
        "TQ2_0" => tq2_0,
        "MXFP4" => mxfp4,
        "NVFP4" => nvfp4,
        _ => return grid_blocks::undo_of(ggml),
    })
}

fn nibbles(byte: u8) -> (i32, i32) {
    (i32::from(byte & 15), i32::from(byte >> 4))
}

/// Decodes 32 elements from 16 bytes: low nibbles are the first half, high nibbles the second.
fn halves(packed: &[u8], out: &mut [f32], element: impl Fn(usize, i32) -> f32) {
    let (first, second) = out.split_at_mut(packed.len());
    for (at, &byte) in packed.iter().enumerate() {
        let (low, high) = nibbles(byte);
        first[at] = element(at, low);
        second[at] = element(at + packed.len(), high);
    }
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    halves(&block[2..18], out, |_, q| float(q - 8) * scale);
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    halves(&block[4..20], out, |_, q| float(q) * scale + least);
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let (scale, fifth) = (half(block, 0), word(block, 2));
    halves(&block[6..22], out, |at, q| {
        float((q | ((fifth >> at & 1) << 4) as i32) - 16) * scale
    });
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (scale, least, fifth) = (half(block, 0), half(block, 2), word(block, 4));
    halves(&block[8..24], out, |at, q| {
        float(q | ((fifth >> at & 1) << 4) as i32) * scale + least
    });
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..34]) {
        *out = float(q.cast_signed().into()) * scale;
    }
}

/// Decodes sixteen groups of sixteen elements, each with a four-bit scale and offset.
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, packed) = (&block[..16], &block[16..80]);
    let (scale, least) = (half(block, 80), half(block, 82));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let (low, high) = nibbles(scales[group]);
        let (scale, least) = (scale * float(low), least * float(high));
        let (bytes, shift) = two_bits(packed, group);
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = scale * float((byte >> shift & 3).into()) - least;
        }
    }
}

/// Returns the bytes that contain a group of sixteen two-bit numbers, and their shift: each run of 32 bytes
/// holds two groups in bits 0-1 of its bytes, two more in bits 2-3, and so on.
fn two_bits(packed: &[u8], group: usize) -> (&[u8], usize) {
    let start = group / 8 * 32 + group % 2 * 16;
    (&packed[start..start + 16], group % 8 / 2 * 2)
}

/// Decodes like [`q2_k`], but each element has a third bit, in a mask, and scales are signed six-bit numbers.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let (mask, packed, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let scale = half(block, 108);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let low = scales[group % 8] >> (group / 8 * 4) & 15;
        let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = scale * float(i32::from(low | high << 4) - 32);
        let (bytes, shift) = two_bits(packed, group);
        let thirds = &mask[group % 2 * 16..];
        for ((out, byte), third) in out.iter_mut().zip(bytes).zip(thirds) {
            let is_set = third >> (group / 2) & 1 == 1;
            *out = scale * float(i32::from(byte >> shift & 3) - if is_set { 0 } else { 4 });
        }
    }
}

/// Returns the six-bit scale and offset of one of eight groups.
fn scale_and_least(scales: &[u8], group: usize) -> (f32, f32) {
    let (scale, least) = if group < 4 {
        (scales[group] & 63, scales[group + 4] & 63)
    } else {
        let low = scales[group + 4];
        (
            low & 15 | scales[group - 4] >> 6 << 4,
            low >> 4 | scales[group] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(least))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (own_scale, own_least) = scale_and_least(&block[4..16], group);
        let (scale, least) = (scale * own_scale, least * own_least);
        let packed = &block[16 + group / 2 * 32..];
        for (out, byte) in out.iter_mut().zip(packed) {
            *out = scale * f32::from(byte >> (group % 2 * 4) & 15) - least;
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (scale, least, fifths) = (half(block, 0), half(block, 2), &block[16..48]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (own_scale, own_least) = scale_and_least(&block[4..16], group);
        let (scale, least) = (scale * own_scale, least * own_least);
        let packed = &block[48 + group / 2 * 32..];
        for ((out, byte), fifth) in out.iter_mut().zip(packed).zip(fifths) {
            let q = byte >> (group % 2 * 4) & 15 | (fifth >> group & 1) << 4;
            *out = scale * f32::from(q) - least;
        }
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half(block, 208);
    for (at, out) in out.iter_mut().enumerate() {
        let (part, place) = (at / 128, at % 128);
        let byte = low[part * 64 + place % 64] >> (place / 64 * 4) & 15;
        let top = high[part * 32 + place % 32] >> (place / 32 * 2) & 3;
        let q = i32::from(byte | top << 4) - 32;
        *out = scale * float(scales[at / 16].cast_signed().into()) * float(q);
    }
}

fn q8_k(block: &[u8], out: &mut [f32]) {
    let scale = f32::from_bits(word(block, 0));
    for (out, &q) in out.iter_mut().zip(&block[4..260]) {
        *out = scale * float(q.cast_signed().into());
    }
}

const NOT_LINEAR: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

fn iq4_nl(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    halves(&block[2..18], out, |_, q| {
        scale * f32::from(NOT_LINEAR[q as usize])
    });
}

fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let (scale, high) = (half(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
        let own = i32::from(low) | i32::from(high >> (group * 2) & 3) << 4;
        let scale = scale * float(own - 32);
        let packed = &block[8 + group * 16..][..16];
        halves(packed, out, |_, q| scale * f32::from(NOT_LINEAR[q as usize]));
    }
}

/// Decodes five numbers from -1 to 1 per byte, as fractional base-three digits.
fn tq1_0(block: &[u8], out: &mut [f32]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let scale = half(block, 52);
    // Groups of bytes, each with the number of digits per byte.
    let groups = [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)];
    let digits = groups.into_iter().flat_map(|(bytes, digits)| {
        POWERS[..digits].iter().flat_map(move |power| {
            bytes
                .iter()
                .map(move |byte| ((u16::from(byte.wrapping_mul(*power)) * 3) >> 8) as i32 - 1)
        })
    });
    for (out, digit) in out.iter_mut().zip(digits) {
        *out = float(digit) * scale;
    }
}

fn tq2_0(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 64);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let bytes = &block[group / 4 * 32..];
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = float(i32::from(byte >> (group % 4 * 2) & 3) - 1) * scale;
        }
    }
}

/// The values of the sixteen four-bit floats, doubled to be integers.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Decodes OCP microscaling (MXFP4): a power-of-two scale and four-bit floats.
fn mxfp4(block: &[u8], out: &mut [f32]) {
    // The value is 2^(exponent - 128), half of the scale. The two smallest values are subnormal.
    let scale = match block[0] {
        small @ (0 | 1) => f32::from_bits(0x0020_0000 << small),
        exponent => f32::from_bits((u32::from(exponent) - 1) << 23),
    };
    halves(&block[1..17], out, |_, q| scale * f32::from(DOUBLED[q as usize]));
}

/// Decodes four groups of sixteen four-bit floats, each with an eight-bit scale of four exponent and three
/// mantissa bits.
fn nvfp4(block: &[u8], out: &mut [f32]) {
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let bits = block[group];
        let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
        let scale = match (bits, exponent) {
            (0 | 0x7f, _) => 0.0,
            (_, 0) => mantissa * (-9f32).exp2(),
            _ => (1.0 + mantissa / 8.0) * float(exponent - 7).exp2(),
        };
        let packed = &block[4 + group * 8..][..8];
        halves(packed, out, |_, q| scale * 0.5 * f32::from(DOUBLED[q as usize]));
    }
}
