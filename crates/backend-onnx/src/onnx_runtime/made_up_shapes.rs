//! Generates shapes for made-up inputs, the smallest ones first.

use onnx_graph::{Dim, Port};
use tensor_core::Shape;

/// Sizes to try for dimensions that are neither a batch nor an image's channels. The small sizes come first.
/// Larger sizes are for networks that reduce their input, and for audio, which has thousands of samples. The
/// last ones are the sizes of images and of text lines that certain networks require, although their files
/// leave these dimensions free.
const SIZES: &[u64] = &[
    1, 2, 8, 32, 64, 128, 320, 512, 640, 1600, 16000, 48, 96, 112, 160, 192, 224, 256, 336, 384, 448, 518,
];

/// Sizes of the first dimension to try after 1, since that dimension may be the steps of a sequence.
const ROWS: &[u64] = &[2, 8, 32, 64, 512];

/// Maximum number of elements of an input. Larger shapes are not tried.
const MAX_ELEMENTS: u64 = 1 << 24;

/// Returns the shapes to try, in this order; each item has one shape per input.
pub(super) fn shapes(inputs: &[Port]) -> Vec<Vec<Shape>> {
    let mut tried: Vec<Vec<Shape>> = Vec::new();
    let alone = SIZES.iter().map(|&size| (1, size));
    for (rows, size) in alone.chain(ROWS.iter().map(|&size| (size, size))) {
        for channels in [3, 1, size] {
            for (state_rows, past) in [(size, size), (1, size), (size, 0)] {
                let sizes = Sizes {
                    rows,
                    size,
                    channels,
                    state_rows,
                    past,
                };
                let shapes = inputs.iter().map(|port| shape(port, sizes));
                let shapes: Option<Vec<Shape>> = shapes.collect();
                if let Some(shapes) = shapes
                    && !tried.contains(&shapes)
                {
                    tried.push(shapes);
                }
            }
        }
    }
    tried
}

/// The sizes that replace free dimensions.
#[derive(Clone, Copy)]
struct Sizes {
    /// Size for the first of several dimensions, and for dimensions whose name contains "batch".
    rows: u64,
    size: u64,
    channels: u64,
    /// Size for the second dimension of an input that may be the state of a recurrent layer (layers, batch,
    /// units).
    state_rows: u64,
    /// The number of past tokens of a language model. With 0, the total length equals the new length.
    past: u64,
}

fn shape(port: &Port, sizes: Sizes) -> Option<Shape> {
    let dims = port.dims.as_ref()?;
    let rank = dims.len();
    let may_be_state = matches!(dims[..], [Dim::Fixed(_), _, Dim::Fixed(_)]);
    let dims: Vec<u64> = dims
        .iter()
        .enumerate()
        .map(|(axis, dim)| match dim {
            Dim::Fixed(dim) => *dim,
            // The last of several dimensions is never the batch, even if its name says so.
            Dim::Named(name) if is_batch(name) && (axis == 0 || axis + 1 < rank) => sizes.rows,
            _ if axis == 0 && rank > 1 => sizes.rows,
            Dim::Named(name) if is_past(name) => sizes.past,
            _ if axis == 1 && rank == 4 => sizes.channels,
            _ if may_be_state => sizes.state_rows,
            _ => sizes.size,
        })
        .collect();
    let shape = Shape::new(&dims).ok()?;
    (shape.element_count() <= MAX_ELEMENTS).then_some(shape)
}

fn is_batch(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("batch") && !name.contains("seq")
}

/// Returns whether the name is like `past_sequence_length`, and not a total of past and present.
fn is_past(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("past") && !name.contains("total") && !name.contains('+')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use onnx_graph::ElementType;
    use tensor_core::DType;

    use super::*;

    fn port(dims: Vec<Dim>) -> Port {
        Port::new("x", ElementType::Fixed(DType::F32), Some(dims))
    }

    #[test]
    fn small_sizes_come_first_and_fixed_ones_stay() {
        let image = port(vec![Dim::Free, Dim::Named("c".into()), Dim::Free, Dim::Fixed(7)]);
        let tried = shapes(std::slice::from_ref(&image));
        let dims: Vec<&[u64]> = tried.iter().take(4).map(|shapes| shapes[0].dims()).collect();
        assert_eq!(dims, [[1, 3, 1, 7], [1, 1, 1, 7], [1, 3, 2, 7], [1, 1, 2, 7]]);
        // Some exporters guess names of free dimensions. Here, the last dimension is named like a batch.
        let sound = port(vec![
            Dim::Fixed(1),
            Dim::Fixed(1),
            Dim::Named("batch_size".into()),
        ]);
        assert!(
            shapes(&[sound])
                .iter()
                .any(|shapes| shapes[0].dims() == [1, 1, 512])
        );
        // The first dimension is the number of steps of a sequence, and the second one is the number of
        // features per step.
        let steps = shapes(&[port(vec![Dim::Free, Dim::Fixed(80)])]);
        let dims: Vec<&[u64]> = steps.iter().map(|shapes| shapes[0].dims()).collect();
        assert_eq!(dims, [[1, 80], [2, 80], [8, 80], [32, 80], [64, 80], [512, 80]]);
        let fixed = port(vec![Dim::Fixed(2), Dim::Fixed(3)]);
        assert_eq!(shapes(std::slice::from_ref(&fixed)).len(), 1);
    }

    #[test]
    fn a_language_model_is_given_words_without_a_past() {
        let named = |name: &str| Dim::Named(name.into());
        let words = port(vec![named("batch_size"), named("sequence_length")]);
        let all = port(vec![
            named("batch_size"),
            named("past_sequence_length + sequence_length"),
        ]);
        let keys = port(vec![
            named("batch_size"),
            Dim::Fixed(2),
            named("past_sequence_length"),
            Dim::Fixed(8),
        ]);
        let tried = shapes(&[words, all, keys]);
        let has_no_past = |shapes: &Vec<Shape>| {
            shapes[0].dims() == [1, 2] && shapes[1].dims() == [1, 2] && shapes[2].dims() == [1, 2, 0, 8]
        };
        assert!(tried.iter().any(has_no_past));
    }

    #[test]
    fn sound_with_a_state_gets_one_row_of_state() {
        let sound = port(vec![Dim::Free, Dim::Free]);
        let state = port(vec![Dim::Fixed(2), Dim::Free, Dim::Fixed(128)]);
        let rate = Port::new("sr", ElementType::Fixed(DType::I64), Some(vec![]));
        let ports = [sound, state, rate];
        let tried = shapes(&ports);
        let dims: Vec<[&[u64]; 2]> = tried
            .iter()
            .map(|shapes| [shapes[0].dims(), shapes[1].dims()])
            .collect();
        assert!(dims.contains(&[&[1, 512], &[2, 1, 128]]), "{dims:?}");
        assert!(dims.contains(&[&[1, 512], &[2, 512, 128]]), "{dims:?}");
    }
}
