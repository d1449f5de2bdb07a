//! Conversion to and from `ndarray` arrays.

use ndarray::{Array, ArrayD, ArrayViewD, Axis, Slice, arr0, array};
use tensor_core::{CastError, DType, Shape, Tensor, TensorSpec, bf16};

#[test]
fn elements_stay_where_they_are() {
    let array = array![[1i64, 2], [3, 4], [5, 6]];
    let at = array.as_ptr().cast::<u8>();
    let tensor = Tensor::try_from(array).unwrap();
    assert_eq!(tensor.spec().to_string(), "i64[3, 2]");
    assert_eq!(tensor.bytes().as_ptr(), at);
    let view: ArrayViewD<'_, i64> = (&tensor).try_into().unwrap();
    assert_eq!(view.as_ptr().cast::<u8>(), at);
    assert_eq!(view[[2, 1]], 6);
    let copy: ArrayD<i64> = (&tensor).try_into().unwrap();
    assert_eq!(copy, view);
}

#[test]
fn parts_and_other_orders_are_row_major() {
    let array = array![[1u8, 2, 3], [4, 5, 6]];
    let bytes = |tensor: Tensor| tensor.to_vec::<u8>().unwrap();
    assert_eq!(bytes(Tensor::try_from(&array.t()).unwrap()), [1, 4, 2, 5, 3, 6]);
    assert_eq!(
        bytes(Tensor::try_from(&array.slice_axis(Axis(1), Slice::new(0, None, -2))).unwrap()),
        [3, 1, 6, 4]
    );
    // These owned arrays are transposed, reversed, or slices of a larger allocation.
    assert_eq!(
        bytes(Tensor::try_from(array.clone().reversed_axes()).unwrap()),
        [1, 4, 2, 5, 3, 6]
    );
    let mut second = array.clone();
    second.slice_axis_inplace(Axis(0), Slice::from(1..2));
    assert_eq!(bytes(Tensor::try_from(second).unwrap()), [4, 5, 6]);
    let mut column = array.clone();
    column.slice_axis_inplace(Axis(1), Slice::from(1..2));
    assert_eq!(bytes(Tensor::try_from(column).unwrap()), [2, 5]);
    assert_eq!(
        bytes(Tensor::try_from(array.index_axis_move(Axis(0), 1)).unwrap()),
        [4, 5, 6]
    );
    let mut turned = array![1u8, 2, 3];
    turned.invert_axis(Axis(0));
    assert_eq!(bytes(Tensor::try_from(turned).unwrap()), [3, 2, 1]);
}

#[test]
fn scalars_and_empty_arrays() {
    let scalar = Tensor::try_from(arr0(bf16::ONE)).unwrap();
    assert_eq!(scalar.shape().rank(), 0);
    assert_eq!(scalar.view().to_array_view::<bf16>().unwrap().len(), 1);
    let empty = Tensor::try_from(Array::<f32, _>::zeros((2, 0, 3))).unwrap();
    assert_eq!(empty.view().to_array::<f32>().unwrap().shape(), [2, 0, 3]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let tensor = Tensor::from_slice([2], &[1.0f32, 2.0]).unwrap();
    let error = ArrayViewD::<i32>::try_from(&tensor).unwrap_err();
    assert_eq!(
        error,
        CastError::DType {
            expected: DType::I32,
            found: DType::F32
        }
    );
    // The tensor has no elements, but a dimension beyond `ndarray`'s limit.
    let shape = Shape::new(&[0, u64::MAX, 4]).unwrap();
    let spec = TensorSpec::new(DType::U8, shape).unwrap();
    let tensor = Tensor::new(spec, Vec::new()).unwrap();
    assert!(matches!(
        tensor.view().to_array_view::<u8>(),
        Err(CastError::Shape { .. })
    ));
}
