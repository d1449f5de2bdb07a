//! Opens arbitrary bytes as a BTF file, strictly and leniently, reads all tensors in every way, and writes
//! them again.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use fmt_btf::{Btf, BtfReader, BtfWriter, RecordSpec, WriteOptions};
use fmt_core::{Format, Layout, ReadOptions, Sniff, TensorReader, testing::read_everything};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let source = Arc::new(Bytes::copy_from_slice(data));
    let open = |lenient: bool| {
        let options = ReadOptions {
            lenient,
            ..ReadOptions::default()
        };
        BtfReader::open(source.clone(), &options)
    };
    let Ok(lenient) = open(true) else {
        assert!(open(false).is_err(), "strict readers take what lenient ones refuse");
        return;
    };
    read_everything(&lenient);
    let Ok(strict) = open(false) else {
        return;
    };
    let head = &data[..data.len().min(512)];
    // A BTF file without tensors is too short to be recognized if other bytes follow.
    if !strict.is_empty() {
        assert_eq!(Btf.sniff(head, data.len() as u64), Sniff::Possible);
    }
    read_everything(&strict);
    write_again(&strict);
});

fn write_again(reader: &BtfReader) {
    if (0..reader.len()).any(|index| reader.verify(index).is_err()) || reader.len() > 1000 {
        return;
    }
    let is_sparse = |index: usize| matches!(reader.entries()[index].layout, Layout::Coo { .. });
    let record = |index: usize| {
        if is_sparse(index) {
            RecordSpec::from(&reader.sparse(index).unwrap())
        } else {
            RecordSpec::from(&reader.tensor(index).unwrap())
        }
    };
    let records = (0..reader.len()).map(record).collect();
    let mut writer = BtfWriter::new(Vec::new(), records, WriteOptions::default()).unwrap();
    for index in 0..reader.len() {
        if is_sparse(index) {
            writer.sparse(&reader.sparse(index).unwrap()).unwrap();
        } else {
            writer.tensor(&reader.tensor(index).unwrap()).unwrap();
        }
    }
    let again = BtfReader::from_bytes(writer.finish().unwrap()).unwrap();
    for index in 0..reader.len() {
        if is_sparse(index) {
            assert_eq!(again.sparse(index).unwrap(), reader.sparse(index).unwrap().sorted().unwrap());
        } else {
            assert_eq!(again.tensor(index).unwrap(), reader.tensor(index).unwrap());
        }
    }
}
