//! Tests of constructors, views, and memory ownership.

use onnx_tensor::prelude::*;

/// Returns bytes of numbers that start `offset` bytes after an aligned address.
fn bytes_at(offset: usize, numbers: &[u8]) -> Bytes {
    let mut words = vec![0u64; (offset + numbers.len()).div_ceil(8)];
    bytemuck::cast_slice_mut(&mut words)[offset..][..numbers.len()].copy_from_slice(numbers);
    Tensor::from_vec(&[words.len()], words)
        .unwrap()
        .into_bytes()
        .unwrap()
        .slice(offset..offset + numbers.len())
}

#[test]
fn vectors_are_taken_over_and_given_back_in_place() {
    fn check<T: Element>(elements: Vec<T>) {
        let (address, count, expected) = (elements.as_ptr().addr(), elements.len(), elements.clone());
        let tensor = Tensor::from_vec(&[1, count], elements).unwrap();
        assert_eq!(tensor.element_type(), T::element_type());
        let tensor = tensor.into_shape(&[count, 1]).unwrap();
        assert_eq!(tensor.as_slice::<T>().unwrap(), expected);
        if let Ok(bytes) = tensor.as_bytes() {
            assert_eq!(bytes.as_ptr().addr(), address, "{}", T::element_type());
        }
        let elements = tensor.into_vec::<T>().unwrap();
        assert_eq!(elements.as_ptr().addr(), address, "{}", T::element_type());
        assert_eq!(elements, expected);
    }
    check(vec![1u8, 2, 3]);
    check(vec![1i8, -2]);
    check(vec![true, false, true]);
    check(vec![1u16, 2]);
    check(vec![f16::ONE, f16::NEG_INFINITY]);
    check(vec![1i32, -2]);
    check(vec![1.5f32, -0.0]);
    check(vec![u64::MAX]);
    check(vec![1.5f64, 2.5, 3.5]);
    check(vec![String::from("a"), String::new()]);
}

#[test]
fn booleans_are_bytes_of_0_and_1() {
    let tensor = Tensor::vector(&[true, false]);
    assert_eq!(tensor.as_bytes().unwrap(), [1, 0]);
    assert_eq!(tensor.clone().into_vec::<bool>().unwrap(), [true, false]);
    let made = Tensor::from_units(ElementType::Bool, &[2], vec![1u8, 0]).unwrap();
    assert_eq!(made, tensor);
    let error = Tensor::from_units(ElementType::Bool, &[2], vec![1u8, 2]).unwrap_err();
    assert_eq!(error.to_string(), "the bytes are not valid elements of BOOL");

    let mut broken = tensor;
    broken.as_bytes_mut().unwrap()[1] = 7;
    assert!(broken.as_slice::<bool>().is_err());
    assert!(broken.as_slice_mut::<bool>().is_err());
    assert_ne!(format!("{broken:?}"), "");
}

#[test]
fn aligned_bytes_are_shared_until_they_are_written_to() {
    let numbers = [1.0f32, -2.0, 3.0];
    let bytes = bytes_at(4, bytemuck::cast_slice(&numbers));
    let mut tensor = Tensor::from_bytes(ElementType::F32, &[3], bytes.clone()).unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap(), numbers);
    assert_eq!(tensor.as_bytes().unwrap().as_ptr(), bytes.as_ptr());
    assert_eq!(tensor.as_units::<u32>().unwrap()[0], 1.0f32.to_bits());
    assert_eq!(tensor.clone().into_bytes().unwrap().as_ptr(), bytes.as_ptr());
    assert_eq!(tensor.clone().into_vec::<f32>().unwrap(), numbers);
    assert_eq!(tensor, Tensor::vector(&numbers));

    tensor.as_slice_mut::<f32>().unwrap()[0] = 9.0;
    assert_eq!(tensor.as_slice::<f32>().unwrap(), [9.0, -2.0, 3.0]);
    assert_ne!(tensor.as_bytes().unwrap().as_ptr(), bytes.as_ptr());
    assert_eq!(bytes, bytemuck::cast_slice(&numbers));
}

#[test]
fn unaligned_bytes_are_copied() {
    let numbers = [1i64, -2];
    for offset in 1..8 {
        let bytes = bytes_at(offset, bytemuck::cast_slice(&numbers));
        let tensor = Tensor::from_bytes(ElementType::I64, &[2], bytes.clone()).unwrap();
        assert_eq!(tensor.as_slice::<i64>().unwrap(), numbers);
        assert_ne!(tensor.as_bytes().unwrap().as_ptr(), bytes.as_ptr());
        // UINT8 elements need no alignment, so the bytes are shared.
        let tensor = Tensor::from_bytes(ElementType::U8, &[16], bytes.clone()).unwrap();
        assert_eq!(tensor.as_bytes().unwrap().as_ptr(), bytes.as_ptr());
    }
}

#[test]
fn bytes_of_booleans_are_copied_only_if_they_are_others_than_0_and_1() {
    let bytes = Bytes::from(vec![0, 1, 1]);
    let tensor = Tensor::from_bytes(ElementType::Bool, &[3], bytes.clone()).unwrap();
    assert_eq!(tensor.as_slice::<bool>().unwrap(), [false, true, true]);
    assert_eq!(tensor.as_bytes().unwrap().as_ptr(), bytes.as_ptr());
    assert_eq!(tensor.into_vec::<bool>().unwrap(), [false, true, true]);

    let bytes = Bytes::from(vec![0, 255, 2]);
    let tensor = Tensor::from_bytes(ElementType::Bool, &[3], bytes.clone()).unwrap();
    assert_eq!(tensor, Tensor::vector(&[false, true, true]));
    assert_eq!(tensor.as_bytes().unwrap(), [0, 1, 1]);
    assert_eq!(bytes, vec![0, 255, 2]);
}

#[test]
fn bytes_leave_without_a_copy_and_keep_their_tensor_alive() {
    let tensor = Tensor::vector(&[1.0f64, 2.0]);
    let address = tensor.as_bytes().unwrap().as_ptr();
    let tensor = Arc::new(tensor);
    let shared = tensor.shared_bytes().unwrap();
    assert_eq!((shared.as_ptr(), Arc::strong_count(&tensor)), (address, 2));
    drop(shared);
    let bytes = Arc::into_inner(tensor).unwrap().into_bytes().unwrap();
    assert_eq!((bytes.as_ptr(), bytes.len()), (address, 16));

    let request = bytes_at(0, &[1, 2, 3, 4]);
    let borrowed = Arc::new(Tensor::from_bytes(ElementType::U16, &[2], request.clone()).unwrap());
    assert_eq!(borrowed.shared_bytes().unwrap().as_ptr(), request.as_ptr());
    assert_eq!(Arc::strong_count(&borrowed), 1);
}

#[test]
fn tensors_without_elements_have_views_of_every_type() {
    for element_type in ElementType::ALL {
        let empty = Tensor::zero_of(element_type, &[3, 0]).unwrap();
        assert!(empty.is_empty() && empty.rank() == 2, "{element_type}");
        assert_eq!(empty, empty.clone().into_shape(&[3, 0]).unwrap());
        assert!(with_unit!(element_type, U => empty.as_units::<U>().unwrap().is_empty()));
        if element_type.is_copy() {
            // The bytes start at an odd address.
            let bytes = bytes_at(1, &[5, 5]).slice(2..);
            let mut empty = Tensor::from_bytes(element_type, &[0], bytes).unwrap();
            assert_eq!(empty.as_bytes_mut().unwrap().len(), 0);
            assert!(with_unit!(element_type, U => empty.as_units::<U>().unwrap().is_empty()));
            assert_eq!(empty.into_bytes().unwrap().len(), 0);
        }
    }
    // The tensor is empty, although the product of the other dimensions overflows 64 bits.
    let shape = [usize::MAX, usize::MAX, 0];
    assert_eq!(Tensor::zero::<f32>(&shape).unwrap().len(), 0);
}

#[test]
fn scalars_have_rank_0() {
    let scalar = Tensor::scalar(7i64);
    assert_eq!((scalar.rank(), scalar.len(), scalar.shape()), (0, 1, &[][..]));
    assert_eq!(Tensor::zero::<f32>(&[]).unwrap(), Tensor::scalar(0.0f32));
    assert_eq!(scalar.into_shape(&[1, 1]).unwrap(), Tensor::matrix(&[[7i64]]));
}

#[test]
fn strings_have_no_bytes() {
    let mut words = Tensor::from_vec(&[1, 2], vec!["a".to_owned(), "bc".to_owned()]).unwrap();
    words.as_slice_mut::<String>().unwrap()[0].push('!');
    assert_eq!(words.as_slice::<String>().unwrap(), ["a!", "bc"]);
    assert_eq!(words.as_slice::<String>().unwrap()[1].contents(), 2);
    assert!(words.as_bytes().is_err() && words.as_bytes_mut().is_err());
    assert!(words.clone().into_bytes().is_err() && Arc::new(words).shared_bytes().is_err());
    assert!(Tensor::from_bytes(ElementType::String, &[0], Bytes::new()).is_err());
    assert_eq!(
        Tensor::zero::<String>(&[1]).unwrap(),
        Tensor::vector(&[String::new()])
    );
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let error = Tensor::from_vec(&[2, 3], vec![1.0f32; 5]).unwrap_err();
    assert_eq!(error.to_string(), "the shape [2, 3] has 6 elements, found 5");
    assert!(Tensor::from_shape(&[0], &[1u8]).is_err());
    assert!(Tensor::from_units(ElementType::F32, &[2], vec![1u32]).is_err());
    let error = Tensor::from_bytes(ElementType::F32, &[2], Bytes::from(vec![0; 7])).unwrap_err();
    assert_eq!(error.to_string(), "the shape [2] of FP32 has 8 bytes, found 7");
    let error = Tensor::vector(&[1u8, 2]).into_shape(&[3]).unwrap_err();
    assert_eq!(error.to_string(), "the shape [2] has 2 elements, [3] has 3");
    for shape in [&[usize::MAX, 2][..], &[usize::MAX / 4], &[1 << 32, 1 << 32]] {
        assert!(Tensor::zero::<f64>(shape).is_err(), "{shape:?}");
        assert!(Tensor::from_vec::<f64>(shape, vec![]).is_err(), "{shape:?}");
    }
}

#[test]
fn views_of_another_type_are_refused() {
    let mut tensor = Tensor::vector(&[1.0f32]);
    let error = tensor.as_slice::<i32>().unwrap_err();
    assert_eq!(error.to_string(), "expected elements of INT32, found FP32");
    assert!(tensor.as_slice_mut::<f64>().is_err() && tensor.clone().into_vec::<u32>().is_err());
    let error = tensor.as_units::<u64>().unwrap_err();
    assert_eq!(error.to_string(), "UINT64 is not the unit of FP32");
    assert!(tensor.as_units_mut::<String>().is_err());
    assert!(Tensor::from_units(ElementType::F32, &[1], vec![1u16]).is_err());
    tensor.as_units_mut::<u32>().unwrap()[0] = 2.0f32.to_bits();
    assert_eq!(tensor, Tensor::vector(&[2.0f32]));
}

#[test]
fn each_type_has_one_unit() {
    fn is_unit<U: Unit>(element_type: ElementType) -> bool {
        U::is_unit_of(element_type)
    }
    for element_type in ElementType::ALL {
        let units = [
            is_unit::<u8>,
            is_unit::<u16>,
            is_unit::<u32>,
            is_unit::<u64>,
            is_unit::<String>,
        ];
        assert_eq!(
            units.iter().filter(|unit| unit(element_type)).count(),
            1,
            "{element_type}"
        );
        assert!(with_unit!(element_type, U => U::is_unit_of(element_type)));
    }
}

#[test]
fn tensors_are_equal_by_value_and_nan_equals_nan() {
    assert_eq!(
        Tensor::vector(&[f32::NAN, 0.0]),
        Tensor::vector(&[-f32::NAN, -0.0])
    );
    assert_eq!(Tensor::scalar(f16::NAN), Tensor::scalar(f16::NAN));
    assert_ne!(Tensor::scalar(f64::NAN), Tensor::scalar(0.0f64));
    assert_ne!(Tensor::vector(&[1i32, 2]), Tensor::vector(&[1i32, 3]));
    assert_ne!(Tensor::vector(&[1i32]), Tensor::vector(&[1u32]));
    assert_ne!(Tensor::vector(&[1i32]), Tensor::scalar(1i32));
    let word = |word: &str| Tensor::scalar(word.to_owned());
    assert!(word("a") == word("a") && word("a") != word("b"));
}

#[test]
fn debug_output_is_short() {
    assert_eq!(
        format!("{:?}", Tensor::matrix(&[[1.0f32, 2.5]])),
        "F32 [1, 2] [1.0, 2.5]"
    );
    assert_eq!(
        format!("{:?}", Tensor::scalar("a".to_owned())),
        "String [] [\"a\"]"
    );
    assert_eq!(format!("{:?}", Tensor::vector(&[true])), "Bool [1] [true]");
    let long = format!("{:?}", Tensor::zero::<u8>(&[1000]).unwrap());
    assert_eq!(long, format!("U8 [1000] [{}..]", "0, ".repeat(12)));
}
