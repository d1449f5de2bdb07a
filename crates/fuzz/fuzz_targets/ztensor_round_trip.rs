//! Arbitrary tensors that are written as a zTensor file must be read back equal, and writing them again must
//! give the same bytes. Tensors that are refused must be refused before anything is written.
#![no_main]

use arbitrary::Arbitrary;
use fmt_core::{Encoding, TensorReader, Verification};
use fmt_ztensor::{
    CborValue, ChecksumKind, Compression, CustomField, TensorOptions, WriteOptions, ZtensorReader, ZtensorWriter,
};
use libfuzzer_sys::fuzz_target;
use tensor_core::{DType, Shape, Tensor, TensorSpec};

#[derive(Arbitrary, Debug)]
struct Input {
    alignment: u8,
    strict_spec: bool,
    tensors: Vec<PlannedTensor>,
    piece: u8,
}

#[derive(Arbitrary, Debug)]
struct PlannedTensor {
    name: String,
    dtype: u8,
    dims: Vec<u8>,
    compression: Option<u8>,
    checksum: Option<bool>,
    big_endian: bool,
    fields: Vec<(String, Value)>,
}

#[derive(Arbitrary, Debug)]
enum Value {
    Text(String),
    Number(u64),
    Float(f64),
    Truth(bool),
    Bytes(Vec<u8>),
    Cbor(Vec<u8>),
}

/// Returns the tensor and its storage options. Returns `None` if the tensor is too large or cannot be stored.
fn planned(planned: &PlannedTensor) -> Option<(Tensor, TensorOptions)> {
    let dims: Vec<u64> = planned.dims.iter().map(|dim| u64::from(dim % 5)).collect();
    let dtype = DType::ALL[usize::from(planned.dtype) % DType::ALL.len()];
    let spec = TensorSpec::new(dtype, Shape::new(&dims).ok()?).ok()?;
    let len = Some(spec.byte_len()).filter(|len| *len < 1 << 12)?;
    let bytes: Vec<u8> = (0..len).map(|byte| byte as u8 | 1).collect();
    let mut fields = Vec::new();
    for (key, value) in &planned.fields {
        let value = match value {
            Value::Text(text) => CborValue::from(&**text),
            Value::Number(number) => CborValue::from(*number),
            Value::Float(number) => CborValue::from(*number),
            Value::Truth(truth) => CborValue::from(*truth),
            Value::Bytes(bytes) => CborValue::from(&**bytes),
            Value::Cbor(bytes) => CborValue::from_cbor(bytes).ok()?,
        };
        // Formatting must not fail for any value.
        let _ = value.to_string();
        fields.push(CustomField::new(key, value).ok()?);
    }
    let options = TensorOptions {
        compression: planned.compression.map(|level| Compression::level(i32::from(level % 4))),
        checksum: planned.checksum.map(|is_long| {
            if is_long { ChecksumKind::Sha256 } else { ChecksumKind::Crc32c }
        }),
        big_endian: planned.big_endian,
        fields,
    };
    Some((Tensor::new(spec, bytes).ok()?, options))
}

fn write(tensors: &[(&str, Tensor, TensorOptions)], options: &WriteOptions, piece: usize) -> Vec<u8> {
    let mut writer = ZtensorWriter::new(Vec::new(), options.clone()).expect("the options are good");
    for (name, tensor, options) in tensors {
        writer.begin_with(name, tensor.spec(), options).expect("the tensor was good before");
        for piece in tensor.bytes().chunks(piece) {
            writer.write(piece).expect("there is room for every byte");
        }
    }
    writer.finish().expect("every byte was written")
}

fuzz_target!(|input: Input| {
    let options = WriteOptions {
        alignment: 64 << (input.alignment % 4),
        strict_spec: input.strict_spec,
        ..WriteOptions::default()
    };
    let mut tensors = Vec::new();
    let mut trial = ZtensorWriter::new(Vec::new(), options.clone()).expect("the options are good");
    for plan in &input.tensors {
        let Some((tensor, options)) = planned(plan) else {
            return;
        };
        if trial.begin_with(&plan.name, tensor.spec(), &options).is_err() {
            continue;
        }
        trial.write(tensor.bytes()).expect("there is room for every byte");
        tensors.push((&*plan.name, tensor, options));
    }
    let trial = trial.finish().expect("every byte was written");
    let file = write(&tensors, &options, usize::from(input.piece) + 1);
    // Refused tensors must leave no trace in the file.
    assert_eq!(file, trial);

    let reader = ZtensorReader::from_bytes(file.clone()).expect("what is written can be read");
    assert_eq!(reader.entries().len(), tensors.len());
    let mut again = Vec::new();
    for (index, (name, tensor, options)) in tensors.iter().enumerate() {
        assert_eq!(reader.find(name), Some(index));
        let entry = &reader.entries()[index];
        let read = reader.tensor(index).expect("every tensor can be read");
        assert_eq!(read, *tensor);
        let is_checked = entry.checksum.is_some() || entry.encoding == Encoding::Zstd;
        let expected = if is_checked { Verification::Ok } else { Verification::Unchecked };
        assert_eq!(reader.verify(index).expect("nothing is corrupt"), expected);
        let options = TensorOptions {
            big_endian: entry.is_big_endian,
            fields: reader.fields(index),
            ..options.clone()
        };
        again.push((*name, read, options));
    }
    assert_eq!(write(&again, &options, 1 << 20), file);
    assert!(reader.lints().expect("bytes in memory can be read").is_empty());
});
