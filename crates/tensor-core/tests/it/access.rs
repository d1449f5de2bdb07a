//! Typed access: every dtype at every alignment gives exact values, in place where promised.

use std::borrow::Cow;

use proptest::prelude::*;
use tensor_core::{
    Bytes, CastError, DType, Element, Shape, SpecError, Tensor, TensorSpec, TensorView, bf16, f16,
};

/// Returns bytes that start `offset` after an 8-byte boundary.
fn at_offset(offset: usize, bytes: &[u8]) -> (Vec<u64>, usize) {
    let mut words = vec![0u64; (offset + bytes.len()).div_ceil(8)];
    let start: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    start[offset..offset + bytes.len()].copy_from_slice(bytes);
    (words, offset)
}

fn check_every_alignment<T: Element>(elements: &[T]) {
    let tensor = Tensor::from_vec(Shape::vector(elements.len() as u64), elements.to_vec()).unwrap();
    let bytes = tensor.bytes();
    for offset in 0..8 {
        let (words, start) = at_offset(offset, bytes);
        let all: &[u8] = bytemuck::cast_slice(&words);
        let view = TensorView::new(tensor.spec().clone(), &all[start..][..bytes.len()]).unwrap();
        let in_place = view.as_slice::<T>();
        let cow = view.to_cow::<T>().unwrap();
        assert_eq!(&*cow, elements);
        assert_eq!(view.iter::<T>().unwrap().collect::<Vec<_>>(), elements);
        if offset % T::DTYPE.size() == 0 {
            assert_eq!(in_place.unwrap(), elements);
            assert!(matches!(cow, Cow::Borrowed(_)));
        } else {
            assert_eq!(in_place, Err(CastError::Misaligned { dtype: T::DTYPE }));
            assert!(matches!(cow, Cow::Owned(_)));
        }
    }
}

#[test]
fn every_dtype_reads_at_every_alignment() {
    check_every_alignment(&[true, false, true]);
    check_every_alignment(&[0u8, 1, u8::MAX]);
    check_every_alignment(&[0u16, 0x1234, u16::MAX]);
    check_every_alignment(&[0u32, 0x1234_5678, u32::MAX]);
    check_every_alignment(&[0u64, 0x1234_5678_9abc_def0, u64::MAX]);
    check_every_alignment(&[i8::MIN, -1, i8::MAX]);
    check_every_alignment(&[i16::MIN, -2, i16::MAX]);
    check_every_alignment(&[i32::MIN, -3, i32::MAX]);
    check_every_alignment(&[i64::MIN, -4, i64::MAX]);
    check_every_alignment(&[f16::MIN, f16::from_f32(0.1), f16::INFINITY]);
    check_every_alignment(&[bf16::MIN, bf16::from_f32(0.1), bf16::INFINITY]);
    check_every_alignment(&[f32::MIN, 0.1, f32::INFINITY]);
    check_every_alignment(&[f64::MIN, 0.1, f64::INFINITY]);
}

#[test]
fn elements_are_little_endian() {
    let tensor = Tensor::from_vec(Shape::vector(2), vec![1u32, 0x0a0b_0c0d]).unwrap();
    assert_eq!(tensor.bytes()[..], [1, 0, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a]);
    assert_eq!(Tensor::scalar(bf16::ONE).bytes()[..], [0x80, 0x3f]);
}

#[test]
fn other_dtypes_are_refused_not_reinterpreted() {
    let tensor = Tensor::scalar(1.5f32);
    let error = CastError::DType {
        expected: DType::U32,
        found: DType::F32,
    };
    assert_eq!(tensor.view().as_slice::<u32>(), Err(error.clone()));
    assert_eq!(tensor.view().to_cow::<u32>(), Err(error.clone()));
    assert!(tensor.view().iter::<u32>().is_err());
    assert_eq!(tensor.to_vec::<u32>(), Err(error.clone()));
    assert_eq!(error.to_string(), "expected a tensor of u32, found f32");
}

#[test]
fn bool_bytes_are_checked_in_place_and_normalised_in_copies() {
    let spec = TensorSpec::new(DType::Bool, Shape::vector(4)).unwrap();
    let tensor = Tensor::new(spec, vec![0u8, 1, 2, 0xff]).unwrap();
    assert_eq!(
        tensor.view().as_slice::<bool>(),
        Err(CastError::NotBool { index: 2, byte: 2 })
    );
    assert_eq!(tensor.to_vec::<bool>().unwrap(), [false, true, true, true]);
    assert_eq!(tensor.bytes()[..], [0, 1, 2, 0xff]);
}

#[test]
fn a_vector_becomes_a_tensor_in_place() {
    let elements = vec![1.0f64, 2.0, 3.0];
    let address = elements.as_ptr() as usize;
    let tensor = Tensor::from_vec(Shape::vector(3), elements).unwrap();
    assert_eq!(tensor.bytes().as_ptr() as usize, address);
}

#[test]
fn wrong_lengths_name_both_figures() {
    let spec = TensorSpec::new(DType::I64, Shape::new(&[2, 2]).unwrap()).unwrap();
    for found in [0, 31, 33] {
        let error = Tensor::new(spec.clone(), Bytes::from(vec![0; found])).unwrap_err();
        assert_eq!(
            error,
            SpecError::LengthMismatch {
                dtype: DType::I64,
                shape: spec.shape().clone(),
                expected: 32,
                found: found as u64
            }
        );
        assert!(TensorView::new(spec.clone(), &vec![0; found]).is_err());
    }
}

proptest! {
    #[test]
    fn any_bytes_survive_the_way_through_elements(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let whole = bytes.len() / 8 * 8;
        let shape = Shape::vector(whole as u64 / 8);
        let tensor = Tensor::new(TensorSpec::new(DType::F64, shape.clone()).unwrap(), bytes[..whole].to_vec()).unwrap();
        let again = Tensor::from_vec(shape, tensor.to_vec::<f64>().unwrap()).unwrap();
        prop_assert_eq!(again, tensor);
    }
}
