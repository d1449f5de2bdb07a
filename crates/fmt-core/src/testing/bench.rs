//! Inputs and files of benchmarks of formats.

use std::{fs, path::PathBuf};

use tensor_core::{Shape, Tensor};

/// A file that is removed on drop. Benchmarks drop it outside the measured time, so that each alternative
/// starts with the same page cache.
#[derive(Debug)]
pub struct TempFile(pub PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        // If the file stays, the next alternative replaces it.
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns `count` tensor names like those of real models.
#[must_use]
pub fn model_names(count: usize) -> Vec<String> {
    let parts = [
        "attn.q_proj",
        "attn.k_proj",
        "attn.v_proj",
        "attn.o_proj",
        "mlp.up",
        "mlp.down",
    ];
    (0..count)
        .map(|number| format!("model.layers.{}.{}.weight", number / 6, parts[number % 6]))
        .collect()
}

/// Returns a tensor of 4 x 4 FP32 elements.
///
/// # Panics
/// Never: the shape fits the elements.
#[must_use]
#[expect(clippy::unwrap_used, reason = "the shape fits the elements")]
pub fn small_tensor() -> Tensor {
    Tensor::from_vec(Shape::new(&[4, 4]).unwrap(), vec![1.0f32; 16]).unwrap()
}

/// Returns `len` incompressible bytes, the same on each call; `len` is rounded up to a multiple of 8.
#[must_use]
pub fn random_bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}
