//! Builds files from a header, or with the crate's writer.

use fmt_core::{Error, ErrorKind, Metadata};
use fmt_safetensors::{SafetensorsReader, SafetensorsWriter};
use tensor_core::{DType, Shape, Tensor, TensorSpec};

/// Returns a file with this header and `data` bytes of data: 0, 1, 2 and so on.
pub(crate) fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data).map(|byte| byte as u8));
    bytes
}

pub(crate) fn open(bytes: &[u8]) -> Result<SafetensorsReader, Error> {
    SafetensorsReader::from_bytes(bytes.to_vec())
}

/// Returns the kind and the rule of the error for invalid bytes.
pub(crate) fn refusal(bytes: &[u8]) -> (ErrorKind, &'static str) {
    let error = open(bytes).unwrap_err();
    (error.kind(), error.broken_rule().unwrap())
}

pub(crate) fn counting(dtype: DType, dims: &[u64]) -> Tensor {
    let spec = TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap();
    let bytes: Vec<u8> = (0..spec.byte_len()).map(|byte| byte as u8).collect();
    Tensor::new(spec, bytes).unwrap()
}

pub(crate) fn written(tensors: &[(&str, &Tensor)], metadata: &Metadata) -> Vec<u8> {
    let specs = tensors
        .iter()
        .map(|(name, tensor)| ((*name).to_owned(), tensor.spec().clone()));
    let mut writer = SafetensorsWriter::new(Vec::new(), &specs.collect::<Vec<_>>(), metadata).unwrap();
    for (_, tensor) in tensors {
        writer.write(tensor.bytes()).unwrap();
    }
    writer.finish().unwrap()
}
