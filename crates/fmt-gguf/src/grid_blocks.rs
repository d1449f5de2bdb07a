//! Decodes GGML's types of one to three bits, IQ1 to IQ3: groups of four or eight elements are points of a
//! lattice codebook.
//!
//! Operations are in the order of GGML's reference, as in `blocks`.

use crate::{
    grids,
    types::GgmlType,
    words::{Decode, float, half, word},
};

/// Returns the decoder of a type; `None` for types that this module does not decode.
pub(crate) fn undo_of(ggml: GgmlType) -> Option<Decode> {
    Some(match ggml.name {
        "IQ1_S" => iq1_s,
        "IQ1_M" => iq1_m,
        "IQ2_XXS" => iq2_xxs,
        "IQ2_XS" => iq2_xs,
        "IQ2_S" => iq2_s,
        "IQ3_XXS" => iq3_xxs,
        "IQ3_S" => iq3_s,
        _ => return None,
    })
}

/// The element values of IQ2's points.
const OF_IQ2: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
const OF_IQ3_XXS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const OF_IQ3_S: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
/// The offset added to or subtracted from IQ1's points.
const DELTA: f32 = 0.125;

fn short(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Decodes eight two-bit elements with signs.
fn eight(out: &mut [f32], point: u16, signs: u8, scale: f32) {
    for (at, out) in out.iter_mut().enumerate() {
        let value = scale * OF_IQ2[usize::from(point >> (2 * at) & 3)];
        *out = if signs >> at & 1 == 0 { value } else { -value };
    }
}

/// Decodes four three-bit elements with signs.
fn four(out: &mut [f32], point: u16, values: &[f32; 8], signs: u8, scale: f32) {
    for (at, out) in out.iter_mut().enumerate() {
        let value = scale * values[usize::from(point >> (4 * at) & 7)];
        *out = if signs >> at & 1 == 0 { value } else { -value };
    }
}

/// Decodes eight elements from -1 to 1 with an offset.
fn moved(out: &mut [f32], point: u16, delta: f32, scale: f32) {
    for (at, out) in out.iter_mut().enumerate() {
        *out = scale * (float(i32::from(point >> (2 * at) & 3) - 1) + delta);
    }
}

/// Expands seven signs to eight; the eighth sign makes the number of negative signs even.
fn even_signs(packed: u32) -> u8 {
    let seven = (packed & 0x7f) as u8;
    seven | ((seven.count_ones() & 1) as u8) << 7
}

/// Returns the nibble at index `number` as a float.
fn nibble(bytes: &[u8], number: usize) -> f32 {
    f32::from(bytes[number / 2] >> (number % 2 * 4) & 15)
}

fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let packed = &block[2 + 8 * group..][..8];
        let signs = word(packed, 4);
        let scale = scale * (0.5 + (signs >> 28) as f32) * 0.25;
        for (at, out) in out.chunks_exact_mut(8).enumerate() {
            let point = grids::IQ2_XXS[usize::from(packed[at])];
            eight(out, point, even_signs(signs >> (7 * at)), scale);
        }
    }
}

fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (at, out) in out.chunks_exact_mut(8).enumerate() {
        let packed = short(block, 2 + 2 * at);
        let scale = scale * (0.5 + nibble(&block[66..], at / 2)) * 0.25;
        let point = grids::IQ2_XS[usize::from(packed & 511)];
        eight(out, point, even_signs((packed >> 9).into()), scale);
    }
}

fn iq2_s(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (at, out) in out.chunks_exact_mut(8).enumerate() {
        let high = usize::from(block[66 + at / 4] >> (at % 4 * 2) & 3);
        let scale = scale * (0.5 + nibble(&block[74..], at / 2)) * 0.25;
        let point = grids::IQ2_S[usize::from(block[2 + at]) | high << 8];
        eight(out, point, block[34 + at], scale);
    }
}

fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let signs = word(block, 66 + 4 * group);
        let scale = scale * (0.5 + (signs >> 28) as f32) * 0.5;
        for (at, out) in out.chunks_exact_mut(4).enumerate() {
            let point = grids::IQ3_XXS[usize::from(block[2 + 8 * group + at])];
            let signs = even_signs(signs >> (at / 2 * 7)) >> (at % 2 * 4);
            four(out, point, &OF_IQ3_XXS, signs, scale);
        }
    }
}

fn iq3_s(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (at, out) in out.chunks_exact_mut(4).enumerate() {
        let high = usize::from(block[66 + at / 8] >> (at % 8) & 1);
        let scale = scale * (1.0 + 2.0 * nibble(&block[106..], at / 8));
        let point = grids::IQ3_S[usize::from(block[2 + at]) | high << 8];
        let signs = block[74 + at / 2] >> (at % 2 * 4);
        four(out, point, &OF_IQ3_S, signs, scale);
    }
}

fn iq1_s(block: &[u8], out: &mut [f32]) {
    let scale = half(block, 0);
    for (at, out) in out.chunks_exact_mut(8).enumerate() {
        let packed = short(block, 34 + at / 4 * 2);
        let scale = scale * f32::from(2 * (packed >> 12 & 7) + 1);
        let high = usize::from(packed >> (at % 4 * 3) & 7);
        let delta = if packed & 0x8000 == 0 { DELTA } else { -DELTA };
        moved(
            out,
            grids::IQ1[usize::from(block[2 + at]) | high << 8],
            delta,
            scale,
        );
    }
}

/// Decodes `IQ1_M`, whose block scale is spread over the top four bits of four words.
fn iq1_m(block: &[u8], out: &mut [f32]) {
    let scales = [48, 50, 52, 54].map(|at| short(block, at));
    let scale = (0..4).fold(0, |scale, at| scale | (scales[at] >> 12) << (4 * at));
    let scale = tensor_core::f16::from_bits(scale).to_f32();
    for (at, out) in out.chunks_exact_mut(8).enumerate() {
        let own = scales[at / 8] >> (at / 2 % 4 * 3) & 7;
        let packed = block[32 + at / 2] >> (at % 2 * 4);
        let delta = if packed & 8 == 0 { DELTA } else { -DELTA };
        let point = grids::IQ1[usize::from(block[at]) | usize::from(packed & 7) << 8];
        moved(out, point, delta, scale * f32::from(2 * own + 1));
    }
}
