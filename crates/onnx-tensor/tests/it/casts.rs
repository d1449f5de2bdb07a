//! Tests of casts between element types.

use onnx_tensor::prelude::*;

fn cast<S: Element, T: Element>(from: &[S]) -> Vec<T> {
    Tensor::vector(from)
        .cast_to::<T>()
        .unwrap()
        .into_owned()
        .into_vec::<T>()
        .unwrap()
}

#[test]
fn floats_are_truncated_and_clamped_to_the_range_of_integers() {
    let numbers = [
        1.9f32,
        -1.9,
        -0.0,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        300.0,
    ];
    assert_eq!(cast::<f32, u8>(&numbers), [1, 0, 0, 0, 255, 0, 255]);
    assert_eq!(cast::<f32, i8>(&numbers), [1, -1, 0, 0, 127, -128, 127]);
    assert_eq!(cast::<f32, i64>(&numbers), [1, -1, 0, 0, i64::MAX, i64::MIN, 300]);
    assert_eq!(
        cast::<f64, i32>(&[1e300, -1e300, f64::NAN]),
        [i32::MAX, i32::MIN, 0]
    );
    assert_eq!(cast::<f64, f32>(&[1e300, 0.1]), [f32::INFINITY, 0.1]);
}

#[test]
fn integers_wrap_to_narrower_ones() {
    assert_eq!(cast::<i64, u8>(&[256, -1, 511]), [0, 255, 255]);
    assert_eq!(cast::<u64, i64>(&[u64::MAX]), [-1]);
    assert_eq!(cast::<i8, u32>(&[-1]), [u32::MAX]);
    assert_eq!(cast::<u64, f64>(&[u64::MAX]), [18_446_744_073_709_551_615.0]);
}

#[test]
fn fp16_is_cast_by_way_of_fp32() {
    assert_eq!(cast::<f32, f16>(&[1.5, 1e9]), [f16::from_f32(1.5), f16::INFINITY]);
    assert_eq!(cast::<f16, i32>(&[f16::from_f32(-2.5), f16::NAN]), [-2, 0]);
    assert_eq!(cast::<f16, f64>(&[f16::MAX]), [65504.0]);
    assert_eq!(
        cast::<u64, f16>(&[u64::MAX, 2048]),
        [f16::INFINITY, f16::from_f32(2048.0)]
    );
    // The cast goes through FP32, which rounds this number to the midpoint of two FP16 numbers. The second
    // rounding then picks the even one.
    let above_half = 1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40);
    assert_eq!(cast::<f64, f16>(&[above_half]), [f16::ONE]);
}

#[test]
fn booleans_are_0_and_1() {
    assert_eq!(cast::<bool, i64>(&[true, false]), [1, 0]);
    assert_eq!(cast::<bool, f16>(&[true, false]), [f16::ONE, f16::ZERO]);
    let numbers = [0.0f32, -0.0, 0.1, f32::NAN];
    assert_eq!(cast::<f32, bool>(&numbers), [false, false, true, true]);
    assert_eq!(cast::<f16, bool>(&[f16::NEG_ZERO, f16::EPSILON]), [false, true]);
    assert_eq!(cast::<u64, bool>(&[1 << 63, 0]), [true, false]);
}

#[test]
fn casts_keep_shapes_and_borrow_what_has_the_type() {
    let table = Tensor::matrix(&[[1i32, 2], [3, 4]]);
    assert_eq!(
        *table.cast_to::<f64>().unwrap(),
        Tensor::matrix(&[[1.0f64, 2.0], [3.0, 4.0]])
    );
    assert!(matches!(
        table.cast_to::<i32>().unwrap(),
        std::borrow::Cow::Borrowed(_)
    ));
    let address = table.as_bytes().unwrap().as_ptr();
    let table = table.into_type(ElementType::I32).unwrap();
    assert_eq!(table.as_bytes().unwrap().as_ptr(), address);
    assert_eq!(
        table.into_type(ElementType::U8).unwrap(),
        Tensor::matrix(&[[1u8, 2], [3, 4]])
    );
}

#[test]
fn all_types_but_strings_are_cast_to_each_other() {
    for from in ElementType::ALL {
        for to in ElementType::ALL {
            let one = Tensor::scalar(true).into_type(from);
            let cast = one.and_then(|one| one.into_type(to));
            match from.is_copy() && to.is_copy() {
                true => assert_eq!(cast.unwrap().cast_to_scalar::<u8>().unwrap(), 1, "{from} {to}"),
                false => assert!(cast.is_err(), "{from} {to}"),
            }
        }
    }
    let word = Tensor::scalar("1".to_owned());
    assert_eq!(word.clone().into_type(ElementType::String).unwrap(), word);
    let error = word.cast_to::<i64>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot cast BYTES to INT64: strings are not cast"
    );
}

#[test]
fn the_first_element_is_a_scalar_of_any_type() {
    assert_eq!(Tensor::vector(&[7.5f32, 8.0]).cast_to_scalar::<i64>().unwrap(), 7);
    assert_eq!(
        Tensor::scalar("a".to_owned()).cast_to_scalar::<String>().unwrap(),
        "a"
    );
    for nothing in [
        Tensor::zero::<f64>(&[0]).unwrap(),
        Tensor::zero::<i64>(&[3, 0]).unwrap(),
    ] {
        let error = nothing.cast_to_scalar::<f64>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected an element at index 0, found 0 elements"
        );
    }
}
