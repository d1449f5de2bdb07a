//! Opens arbitrary bytes as a GGUF file and reads all tensors in every way. The content is then written and
//! read again.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use fmt_core::{
    Format, Plan, PlannedEntry, ReadOptions, Sniff, StoredDType, TensorReader, testing::read_everything,
};
use fmt_gguf::{Dequantizer, Gguf, GgufReader};
use libfuzzer_sys::fuzz_target;
use tensor_core::DType;

fuzz_target!(|data: &[u8]| {
    let source = Arc::new(Bytes::copy_from_slice(data));
    let Ok(reader) = GgufReader::open(source, &ReadOptions::default()) else {
        return;
    };
    assert_eq!(Gguf.sniff(&data[..data.len().min(512)], data.len() as u64), Sniff::Certain);
    read_everything(&reader);
    for (index, entry) in reader.entries().iter().enumerate() {
        assert_eq!(reader.find(&entry.name), Some(index), "a name occurs twice");
        assert_eq!(reader.tensor(index).is_ok(), entry.unsupported.is_none());
        if let StoredDType::Opaque(dtype) = &entry.dtype
            && let Some(dequantizer) = Dequantizer::of(dtype)
        {
            let blocks = reader.stream(index).expect("blocks can be copied");
            let mut floats = dequantizer.stream(blocks, DType::F32).expect("a float");
            let (mut len, mut buffer) = (0, [0; 4096]);
            loop {
                match floats.read(&mut buffer).expect("whole blocks") {
                    0 => break,
                    read => len += read as u64,
                }
            }
            assert_eq!(len, 4 * entry.shape.element_count());
        }
    }
    // Writes only the header, from a plan of the same tensors.
    let entries = reader.entries().iter().map(|entry| match &entry.dtype {
        StoredDType::Opaque(dtype) => PlannedEntry::opaque(&*entry.name, dtype.clone(), entry.shape.clone()),
        _ => entry.spec().map(|spec| PlannedEntry::dense(&*entry.name, spec)),
    });
    let Some(entries) = entries.collect::<Option<Vec<_>>>() else {
        return;
    };
    let len: u64 = entries.iter().filter_map(PlannedEntry::byte_len).sum();
    let plan = Plan { entries, metadata: reader.metadata().clone() };
    let mut out = Vec::new();
    let Ok(mut writer) = Gguf.create(Box::new(&mut out), plan) else {
        return;
    };
    if len > 1 << 20 {
        return;
    }
    writer.write(&vec![0; len as usize]).expect("the plan's length");
    writer.finish().expect("all is written");
    let again = GgufReader::from_bytes(out).expect("what is written can be read");
    assert_eq!(again.metadata(), reader.metadata());
    for (one, other) in again.entries().iter().zip(reader.entries()) {
        assert_eq!((&one.name, &one.dtype, &one.shape), (&other.name, &other.dtype, &other.shape));
    }
});
