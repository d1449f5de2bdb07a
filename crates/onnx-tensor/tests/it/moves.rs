//! Tests of slices, concatenation and broadcasting.

use onnx_tensor::prelude::*;

fn words(shape: &[usize], words: &[&str]) -> Tensor {
    Tensor::from_vec(shape, words.iter().map(ToString::to_string).collect()).unwrap()
}

#[test]
fn slices_lie_within_their_axis() {
    let table = Tensor::matrix(&[[1u16, 2, 3], [4, 5, 6]]);
    assert_eq!(table.slice(0, 1, 2).unwrap(), Tensor::matrix(&[[4u16, 5, 6]]));
    assert_eq!(
        table.slice(1, 0, 2).unwrap(),
        Tensor::matrix(&[[1u16, 2], [4, 5]])
    );
    assert_eq!(table.slice(1, 3, 3).unwrap().shape(), [2, 0]);
    assert_eq!(
        words(&[3], &["a", "b", "c"]).slice(0, 1, 3).unwrap(),
        words(&[2], &["b", "c"])
    );
    let empty = Tensor::zero::<bool>(&[0, usize::MAX, usize::MAX]).unwrap();
    assert_eq!(empty.slice(1, 1, 4).unwrap().shape(), [0, 3, usize::MAX]);
    for (axis, start, end) in [(0, 0, 3), (1, 2, 1), (2, 0, 1), (0, usize::MAX, usize::MAX)] {
        assert!(table.slice(axis, start, end).is_err(), "{axis} {start} {end}");
    }
}

#[test]
fn tensors_are_joined_along_an_axis() {
    let (a, b) = (
        Tensor::matrix(&[[true, false], [false, true]]),
        Tensor::matrix(&[[true], [true]]),
    );
    let joined = Tensor::concat(1, &[&a, &b]).unwrap();
    assert_eq!(
        joined,
        Tensor::matrix(&[[true, false, true], [false, true, true]])
    );
    assert_eq!(
        Tensor::concat(0, &[b.clone(), b.clone()]).unwrap().shape(),
        [4, 1]
    );
    let joined = Tensor::concat(0, &[words(&[1], &["a"]), words(&[0], &[]), words(&[1], &["b"])]).unwrap();
    assert_eq!(joined, words(&[2], &["a", "b"]));
    let empty = Tensor::zero::<f32>(&[usize::MAX, usize::MAX, 0]).unwrap();
    assert_eq!(Tensor::concat(2, &[empty]).unwrap().len(), 0);

    assert!(Tensor::concat(0, &[&a, &b]).is_err());
    assert!(Tensor::concat(2, &[&a]).is_err());
    assert!(Tensor::concat(0, &[] as &[Tensor]).is_err());
    assert!(Tensor::concat(0, &[Tensor::vector(&[1u8]), Tensor::vector(&[1i8])]).is_err());
    assert!(Tensor::concat(0, &[Tensor::vector(&[1u8]), Tensor::scalar(1u8)]).is_err());
}

#[test]
fn tensors_are_broadcast_along_axes_of_1_element() {
    let table = Tensor::matrix(&[[1.0f32], [2.0]]);
    let numbers = [1.0f32, 1.0, 1.0, 2.0, 2.0, 2.0];
    let expected = Tensor::from_vec(&[2, 2, 3], numbers.repeat(2)).unwrap();
    assert_eq!(table.broadcast_to(&[2, 2, 3]).unwrap(), expected);
    let row = words(&[2], &["a", "b"]).broadcast_to(&[2, 2]).unwrap();
    assert_eq!(row, words(&[2, 2], &["a", "b", "a", "b"]));
    let middle = Tensor::from_vec(&[2, 1, 2], vec![1u8, 2, 3, 4]).unwrap();
    let expected = Tensor::from_vec(&[2, 2, 2], vec![1u8, 2, 1, 2, 3, 4, 3, 4]).unwrap();
    assert_eq!(middle.broadcast_to(&[2, 2, 2]).unwrap(), expected);
    assert_eq!(
        Tensor::scalar(5i8).broadcast_to(&[3]).unwrap(),
        Tensor::vector(&[5i8; 3])
    );
    assert_eq!(table.broadcast_to(&[0, 2, 0]).unwrap().shape(), [0, 2, 0]);
    for shape in [&[3, 1][..], &[2], &[1, 1], &[]] {
        assert!(table.broadcast_to(shape).is_err(), "{shape:?}");
    }
}

#[test]
fn broadcast_elements_are_those_of_their_indices() {
    let sizes = [
        [2, 1, 3, 1],
        [1, 2, 1, 3],
        [2, 2, 3, 3],
        [1, 1, 1, 1],
        [1, 2, 3, 3],
        [2, 2, 1, 1],
    ];
    let shape = [2, 2, 3, 3];
    for from in sizes {
        let count = from.iter().product::<usize>();
        let numbers: Vec<u32> = (0..count as u32).collect();
        let made = Tensor::from_vec(&from, numbers)
            .unwrap()
            .broadcast_to(&shape)
            .unwrap();
        for (at, &found) in made.as_slice::<u32>().unwrap().iter().enumerate() {
            let index = [at / 18, at / 9 % 2, at / 3 % 3, at % 3];
            let axes = index.iter().zip(&from);
            let expected = axes.fold(0, |expected, (&at, &size)| expected * size + at % size);
            assert_eq!(found as usize, expected, "{from:?} at {index:?}");
        }
    }
}

#[test]
fn single_elements_are_scalars() {
    let table = Tensor::matrix(&[[1.5f32, 2.5]]);
    assert_eq!(table.nth(1).unwrap(), Tensor::scalar(2.5f32));
    assert_eq!(
        table.nth(2).unwrap_err().to_string(),
        "expected an element at index 2, found 2 elements"
    );
}
