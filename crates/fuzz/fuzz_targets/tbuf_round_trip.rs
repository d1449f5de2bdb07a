//! Arbitrary tensors that are written as a TensorBuffers file must be read back equal, and writing them again
//! must give the same bytes. Tensors that are refused must be refused before anything is written.
#![no_main]

use arbitrary::Arbitrary;
use fmt_core::{Plan, PlannedEntry, TensorReader};
use fmt_tbuf::{TbufReader, TbufWriter, WriteOptions};
use libfuzzer_sys::fuzz_target;
use tensor_core::{DType, Shape, TensorSpec};

#[derive(Arbitrary, Debug)]
struct Input {
    alignment: u8,
    model: Option<String>,
    tensors: Vec<(String, u8, Vec<u8>)>,
    piece: u8,
}

fuzz_target!(|input: Input| {
    let alignment = 1 << (input.alignment % 9);
    let options = WriteOptions {
        alignment,
        ..WriteOptions::default()
    };
    let mut plan = Plan::default();
    plan.metadata.extend(input.model.map(|model| ("model".to_owned(), model)));
    // More tensors would take longer, but would not find more bugs.
    for (name, dtype, dims) in input.tensors.into_iter().take(6) {
        let dims: Vec<u64> = dims.iter().map(|dim| u64::from(dim % 5)).collect();
        let dtype = DType::ALL[usize::from(dtype) % DType::ALL.len()];
        let spec = Shape::new(&dims).and_then(|shape| TensorSpec::new(dtype, shape));
        let Some(spec) = spec.ok().filter(|spec| spec.byte_len() < 1 << 8) else {
            return;
        };
        plan.entries.push(PlannedEntry::dense(name, spec));
    }
    let mut file = Vec::new();
    let Ok(mut writer) = TbufWriter::planned(&mut file, &plan, options.clone()) else {
        assert!(file.is_empty());
        return;
    };
    let total: u64 = plan.entries.iter().map(|entry| entry.spec.byte_len()).sum();
    let data: Vec<u8> = (0..total).map(|byte| byte as u8 | 1).collect();
    for piece in data.chunks(usize::from(input.piece) + 1) {
        writer.write(piece).expect("there is room for every byte");
    }
    writer.finish().expect("every byte was written");

    let reader = TbufReader::from_bytes(file.clone()).expect("what is written can be read");
    assert_eq!(*reader.metadata(), plan.metadata);
    assert_eq!(reader.entries().len(), plan.entries.len());
    assert!(!reader.has_unknown_fields());
    let mut again = TbufWriter::new(Vec::new(), options).expect("the options were good before");
    if let Some(model) = reader.model() {
        again.set_model(model).expect("the model was good before");
    }
    let mut rest = &data[..];
    for entry in &plan.entries {
        let index = reader.find(&entry.name).expect("every tensor is there");
        let tensor = reader.tensor(index).expect("every tensor can be read");
        let (expected, later) = rest.split_at(tensor.bytes().len());
        assert_eq!((tensor.spec(), &tensor.bytes()[..]), (&entry.spec, expected));
        assert_eq!(reader.entries()[index].range.start % u64::from(alignment), 0);
        again.tensor(&entry.name, &tensor).expect("the tensor was good before");
        rest = later;
    }
    assert_eq!(again.finish().expect("every byte was written"), file);
    // The data may be misaligned for typed access; no other lint is allowed.
    let lints = reader.lints().expect("bytes in memory can be read");
    assert!(lints.iter().all(|lint| lint.message.ends_with("(T3)")), "{lints:?}");
});
