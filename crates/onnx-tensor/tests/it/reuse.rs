//! Tests that a run reuses the memory of its values.

use std::sync::Arc;

use onnx_tensor::{ElementType, Tensor, reuse};

const COUNT: usize = 1 << 14;

fn address(tensor: &Tensor) -> usize {
    tensor.as_bytes().unwrap().as_ptr().addr()
}

#[test]
fn memory_is_reused_once_nothing_refers_to_it() {
    let _run = reuse::start();
    let value = Arc::new(Tensor::vector(&vec![1.0f32; COUNT]));
    let first = address(&value);
    let reader = value.clone();
    value.release();
    let other = Tensor::unset_of(ElementType::F32, &[COUNT]).unwrap();
    assert_ne!(address(&other), first);
    assert_eq!(reader.as_slice::<f32>().unwrap(), vec![1.0; COUNT]);
    reader.release();
    let reused = Tensor::unset_of(ElementType::I32, &[2, COUNT / 2 - 1]).unwrap();
    assert_eq!(address(&reused), first);
    assert_eq!(reused.as_slice::<i32>().unwrap().len(), COUNT - 2);
}

#[test]
fn bytes_of_a_request_are_not_overwritten() {
    let _run = reuse::start();
    let bytes = bytes::Bytes::from(vec![7; 4 * COUNT]);
    let value = Tensor::from_bytes(ElementType::U8, &[4 * COUNT], bytes.clone()).unwrap();
    Arc::new(value).release();
    let other = Tensor::unset_of(ElementType::U8, &[4 * COUNT]).unwrap();
    assert_ne!(address(&other), bytes.as_ptr().addr());
}
