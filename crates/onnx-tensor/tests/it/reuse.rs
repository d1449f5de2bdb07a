//! Tests that a run reuses the memory of its values.

use std::sync::Arc;

use onnx_tensor::{
    ElementType, Tensor,
    cancelling::Pace,
    reuse,
    split::{self, LINE},
    threads,
};

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

#[test]
fn bytes_of_a_request_are_replaced_in_a_copy() {
    let plus_line = |first: usize, values: &mut [u8], pace: &mut Pace| {
        pace.over(values, |_| {})?;
        for (line, values) in (first..).zip(values.chunks_mut(LINE)) {
            values.iter_mut().for_each(|value| *value = line as u8);
        }
        Ok(())
    };
    for count in [1, LINE, 3 * COUNT + 7] {
        let wanted: Vec<u8> = (0..count).map(|at| (at / LINE) as u8).collect();
        let bytes = bytes::Bytes::from(vec![7; count]);
        let shared = || Tensor::from_bytes(ElementType::U8, &[count], bytes.clone()).unwrap();
        let owned = || Tensor::vector(&vec![7u8; count]);
        assert!(owned().is_owned() && !shared().is_owned());
        for threads in [1, 4] {
            for value in [shared(), owned()] {
                let (_threads, _run, value) = (threads::start(threads), reuse::start(), Arc::new(value));
                let other = value.clone();
                for value in [value.clone(), value] {
                    let work = [count as u64, 1];
                    let made = split::replaced(value, LINE, work, plus_line).unwrap();
                    assert_eq!(made.as_slice::<u8>().unwrap(), wanted);
                    // The second time, memory of the run is reused.
                    made.release();
                }
                assert_eq!(other.as_slice::<u8>().unwrap(), vec![7; count]);
            }
        }
    }
}

#[test]
fn a_tensor_and_its_other_shape_share_elements_that_stay() {
    let _run = reuse::start();
    let numbers: Vec<u32> = (0..COUNT as u32).collect();
    let value = Arc::new(Tensor::vector(&numbers));
    let first = address(&value);
    let other = Arc::new(value.clone().with_shape(&[2, COUNT / 2]).unwrap());
    assert_eq!((address(&other), other.shape()), (first, &[2, COUNT / 2][..]));
    assert!(value.clone().with_shape(&[COUNT - 1]).is_err());
    // Neither is written over, and the memory is not reused, while the other one is read.
    let plus_one = |_: usize, values: &mut [u32], _: &mut Pace| {
        values.iter_mut().for_each(|value| *value += 1);
        Ok(())
    };
    let made = split::replaced(other.clone(), LINE, [1, 2], plus_one).unwrap();
    value.release();
    let new = Tensor::unset_of(ElementType::U32, &[COUNT]).unwrap();
    assert_ne!(address(&new), first);
    assert_eq!(other.as_slice::<u32>().unwrap(), numbers);
    assert_eq!(made.as_slice::<u32>().unwrap()[..3], [1, 2, 3]);
    // Without other references, the shape changes in place.
    let made = (
        made.with_shape(&[COUNT]).unwrap(),
        other.with_shape(&[COUNT]).unwrap(),
    );
    assert!(made.0.is_owned() && address(&made.1) == first);
}
