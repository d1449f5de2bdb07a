//! Measures products of the sizes that occur in transformers and classification heads.
//!
//! ```text
//! cargo bench -p onnx-gemm
//! ```
//!
//! The benchmark measures FP32 with a packed second factor, FP32 with two factors that are not packed, and
//! 8-bit integers. It runs on one thread, with warm data in memory.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark fails by panicking and prints its figures"
)]

use bench_kit::Comparison;
use onnx_gemm::{Order, PackedIntegers, PackedMatrix, Unpaced, gemm};

/// Rows, depth and columns of the measured products.
const SIZES: [[usize; 3]; 8] = [
    [1, 384, 384],
    [1, 1024, 1000],
    [8, 384, 1536],
    [32, 384, 384],
    [128, 64, 128],
    [128, 384, 1536],
    [128, 1536, 384],
    [200, 768, 3072],
];

fn main() {
    for [rows, depth, columns] in SIZES {
        let work = (rows * depth * columns) as f64;
        let calls = ((1e8 / work) as usize).clamp(1, 500);
        let (a, b) = (numbers(rows * depth), numbers(depth * columns));
        let integers = |numbers: &[f32]| numbers.iter().map(|&number| number as i16).collect::<Vec<i16>>();
        let (a_integers, b_integers) = (integers(&a), integers(&b));
        let packed = PackedMatrix::new(&b, [depth, columns], Order::RowMajor);
        let packed_integers = PackedIntegers::new(&b_integers, [depth, columns]);
        let mut outputs = [(); 2].map(|()| vec![0.0; rows * columns]);
        let [of_packed, of_computed] = &mut outputs;
        let mut sums = vec![0; rows * columns];
        let mut comparison =
            Comparison::new(format!("{rows} x {depth} x {columns}: {calls} calls")).rounds(21);
        comparison.add("FP32, packed", || {
            (0..calls).for_each(|_| packed.multiply(&a, of_packed, &mut Unpaced).unwrap());
        });
        comparison.add("FP32, computed", || {
            (0..calls).for_each(|_| gemm(&a, &b, [rows, depth, columns], of_computed, &mut Unpaced).unwrap());
        });
        comparison.add("8 bits, packed", || {
            (0..calls).for_each(|_| {
                packed_integers
                    .multiply(&a_integers, &mut sums, &mut Unpaced)
                    .unwrap();
            });
        });
        for time in comparison.run() {
            let call = time.as_secs_f64() / calls as f64;
            println!(
                "  {:.1} us a call, {:.1} GFLOP/s",
                call * 1e6,
                2.0 * work / call / 1e9
            );
        }
    }
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index * 7919 % 17) as f32 - 8.0).collect()
}
