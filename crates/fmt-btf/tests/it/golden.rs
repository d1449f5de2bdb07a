//! Reads test files of TFRT. The expected contents follow from the operators that the files test.

use fmt_btf::{BtfReader, BtfWriter, RecordSpec, WriteOptions};
use fmt_core::TensorReader;
use tensor_core::{Element, Tensor};

fn golden(name: &str) -> (BtfReader, Vec<u8>) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    (
        BtfReader::from_path(&path).unwrap(),
        std::fs::read(&path).unwrap(),
    )
}

fn tensors(reader: &BtfReader) -> Vec<Tensor> {
    (0..reader.len())
        .map(|index| reader.tensor(index).unwrap())
        .collect()
}

#[test]
fn bt_29_test_tensor() {
    let (reader, _) = golden("test_tensor.btf");
    let tensors = tensors(&reader);
    let shown: Vec<String> = tensors.iter().map(|tensor| tensor.spec().to_string()).collect();
    assert_eq!(shown, ["i32[2, 2]", "i32[5]", "i32[0]"]);
    assert_eq!(tensors[0].to_vec::<i32>().unwrap(), [1, 2, 3, 4]);
    assert_eq!(tensors[1].to_vec::<i32>().unwrap(), [0, 1, 2, 3, 4]);
    assert!(tensors[2].bytes().is_empty());
    assert_eq!(reader.lints().unwrap(), []);
}

/// Returns the matrix product of `a` and `b`.
fn product<T: Element + Into<f64>>(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let (rows, inner) = (a.shape().dims()[0] as usize, a.shape().dims()[1] as usize);
    let columns = b.shape().dims()[1] as usize;
    let (a, b) = (a.to_vec::<T>().unwrap(), b.to_vec::<T>().unwrap());
    let cell = |row: usize, column: usize| -> f64 {
        (0..inner)
            .map(|k| a[row * inner + k].into() * b[k * columns + column].into())
            .sum()
    };
    (0..rows)
        .flat_map(|row| (0..columns).map(move |column| (row, column)))
        .map(|(row, column)| cell(row, column))
        .collect()
}

/// The third matrix is the product of the first two.
#[test]
fn bt_29_matrices() {
    let ints = tensors(&golden("matmul_test_i32.btf").0);
    let wanted: Vec<f64> = ints[2]
        .to_vec::<i32>()
        .unwrap()
        .into_iter()
        .map(f64::from)
        .collect();
    assert_eq!(product::<i32>(&ints[0], &ints[1]), wanted);

    let floats = tensors(&golden("matmul_test_f32.btf").0);
    let wanted = floats[2].to_vec::<f32>().unwrap();
    let found = product::<f32>(&floats[0], &floats[1]);
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.into_iter().zip(wanted) {
        assert!((found - f64::from(wanted)).abs() < 1e-5, "{found} {wanted}");
    }
}

/// Each output of a global pooling is the maximum of its channel.
#[test]
fn bt_29_poolings() {
    let (reader, _) = golden("max_pool.btf");
    let tensors = tensors(&reader);
    let shapes: Vec<&[u64]> = tensors.iter().map(|tensor| tensor.shape().dims()).collect();
    assert_eq!(shapes, [[2, 3, 3, 6], [2, 1, 1, 6], [2, 5, 5, 6], [2, 3, 3, 6]]);
    let (input, output) = (&tensors[0], tensors[1].to_vec::<f32>().unwrap());
    let input = input.to_vec::<f32>().unwrap();
    for image in 0..2 {
        for channel in 0..6 {
            let places = (0..9).map(|place| input[(image * 9 + place) * 6 + channel]);
            let found = places.fold(f32::MIN, f32::max);
            assert_eq!(found, output[image * 6 + channel]);
        }
    }
}

/// Writing the tensors of TFRT's files again gives the same bytes.
#[test]
fn writing_them_again_gives_the_same_bytes() {
    for name in [
        "test_tensor.btf",
        "matmul_test_f32.btf",
        "matmul_test_i32.btf",
        "max_pool.btf",
    ] {
        let (reader, bytes) = golden(name);
        let tensors = tensors(&reader);
        let records = tensors.iter().map(RecordSpec::from).collect();
        let options = WriteOptions {
            strict_spec: true,
            ..WriteOptions::default()
        };
        let mut writer = BtfWriter::new(Vec::new(), records, options).unwrap();
        for tensor in &tensors {
            writer.tensor(tensor).unwrap();
        }
        assert!(writer.finish().unwrap() == bytes, "{name}");
    }
}
