//! Taking rows and reshaping share the tensor's bytes and stay within them.

use proptest::prelude::*;
use tensor_core::{DType, Shape, SpecError, Tensor, TensorSpec};

fn numbered(dims: &[u64]) -> Tensor {
    let shape = Shape::new(dims).unwrap();
    let count = shape.element_count() as u32;
    Tensor::from_vec(shape, (0..count).collect()).unwrap()
}

#[test]
fn rows_share_the_bytes() {
    let tensor = numbered(&[4, 3]);
    let rows = tensor.rows(1..3).unwrap();
    assert_eq!(rows.shape().dims(), [2, 3]);
    assert_eq!(rows.to_vec::<u32>().unwrap(), [3, 4, 5, 6, 7, 8]);
    assert_eq!(rows.bytes().as_ptr(), tensor.bytes()[12..].as_ptr());
    assert_eq!(
        tensor.view().rows(1..3).unwrap().bytes().as_ptr(),
        rows.bytes().as_ptr()
    );
    assert_eq!(tensor.rows(4..4).unwrap().shape().dims(), [0, 3]);
}

#[test]
#[expect(
    clippy::reversed_empty_ranges,
    reason = "a range that ends before it starts is the point"
)]
fn rows_outside_are_errors() {
    let tensor = numbered(&[4, 3]);
    for rows in [3..5, 5..5, 2..1, 0..u64::MAX] {
        assert_eq!(
            tensor.rows(rows.clone()),
            Err(SpecError::RowsOutOfRange { rows, available: 4 })
        );
    }
    assert_eq!(Tensor::scalar(1u8).rows(0..1), Err(SpecError::ScalarHasNoRows));
}

#[test]
fn tensors_without_elements_have_empty_rows() {
    for dims in [&[0, 1 << 63, 1 << 63][..], &[0], &[5, 0], &[1 << 63, 0]] {
        let spec = TensorSpec::new(DType::F64, Shape::new(dims).unwrap()).unwrap();
        let tensor = Tensor::new(spec, Vec::new()).unwrap();
        assert_eq!(tensor.rows(0..dims[0]).unwrap(), tensor);
    }
}

#[test]
fn reshaping_shares_the_bytes() {
    let tensor = numbered(&[4, 3]);
    let reshaped = tensor.reshape(Shape::new(&[2, 6]).unwrap()).unwrap();
    assert_eq!(reshaped.bytes().as_ptr(), tensor.bytes().as_ptr());
    let error = tensor.reshape(Shape::new(&[5]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "shape [4, 3] has 12 elements, shape [5] has 5");
}

proptest! {
    #[test]
    fn cutting_anywhere_and_joining_gives_the_tensor_back(
        rows in 0u64..20, columns in 0u64..5, cut in any::<prop::sample::Index>(),
    ) {
        let tensor = numbered(&[rows, columns]);
        let cut = cut.index(rows as usize + 1) as u64;
        let (head, tail) = (tensor.rows(0..cut).unwrap(), tensor.rows(cut..rows).unwrap());
        let joined = [head.bytes().as_ref(), tail.bytes().as_ref()].concat();
        prop_assert_eq!(&joined[..], &tensor.bytes()[..]);
        prop_assert_eq!(head.shape().dims()[0] + tail.shape().dims()[0], rows);
    }
}
