//! Invalid files, and files that exceed limits.

use std::time::{Duration, Instant};

use backend_tensors::TensorsBackend;
use bytes::Bytes;
use fmt_core::testing::mutants;
use fmt_ztensor::{Compression, TensorOptions, WriteOptions, ZtensorWriter};
use oip_model::Backend;
use tensor_core::{Shape, Tensor};

use crate::support::{embed, file, load, load_with, request, run};

fn formats() -> Vec<&'static str> {
    let names = [
        "model.safetensors",
        "model.zt",
        "model.tbuf",
        "model.btf",
        "model.npz",
        "model.npy",
    ];
    let known = TensorsBackend::new();
    assert!(names.iter().all(|name| known.file_names().contains(name)));
    names.to_vec()
}

/// Time limit for a refusal in tests. One second is required; the rest is a margin for busy machines.
const QUICKLY: Duration = Duration::from_secs(5);

/// Truncated files and other formats are refused quickly, with the format's reason.
#[test]
fn broken_files_are_refused() {
    let refused = |name: &str, content: Bytes| {
        let len = content.len();
        let start = Instant::now();
        let error = load(name, content)
            .err()
            .unwrap_or_else(|| panic!("{name} of {len} bytes was loaded"));
        assert!(start.elapsed() < QUICKLY);
        assert!(error.message().starts_with(&format!("{name}: ")), "{error}");
    };
    let random: Vec<u8> = (0..1u64 << 17)
        .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    for name in formats() {
        let whole = file(name, &[("0", &embed())]);
        for len in [whole.len() / 10, whole.len() / 2, whole.len() - 1, 0] {
            refused(name, whole.slice(..len));
        }
        refused(name, random.clone().into());
        refused(
            name,
            Bytes::from_static(b"# Model\n\nThis is a text about a model.\n"),
        );
    }
    refused("model.gguf", Bytes::from_static(b"GGUF\x03\0\0\0"));
}

/// Loading any file ends with a model that matches its metadata, or with an error.
#[test]
fn thousands_of_mutants() {
    let backend = TensorsBackend::new().with_memory(1 << 20);
    for name in formats() {
        let whole = file(name, &[("0", &embed())]);
        for mutant in mutants(&whole, 2000) {
            let path = std::path::Path::new("/nowhere").join(name);
            if let Ok(model) = load_with(&backend, &path, mutant.into()) {
                run(&*model, request()).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }
}

/// The decoded size is checked before decoding. This file is a few KB in size and decodes to 1 GiB of zeros.
#[test]
fn more_than_there_is_memory_for() {
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    let zeros = Tensor::from_vec(Shape::new(&[1 << 10, 1 << 16]).unwrap(), vec![0u8; 1 << 26]).unwrap();
    let options = TensorOptions {
        compression: Some(Compression::level(3)),
        ..TensorOptions::default()
    };
    for index in 0..16 {
        writer
            .tensor_with(&format!("zeros.{index}"), &zeros, &options)
            .unwrap();
    }
    let content = Bytes::from(writer.finish().unwrap());
    assert!(content.len() < 1 << 20, "{}", content.len());
    let path = "/nowhere/model.zt".as_ref();
    let backend = TensorsBackend::new().with_memory(512 << 20);
    let start = Instant::now();
    let error = load_with(&backend, path, content.clone()).err().unwrap();
    assert_eq!(
        error.to_string(),
        "model.zt: its tensors take 1073741824 bytes once decoded, and 536870912 are free"
    );
    assert!(start.elapsed() < QUICKLY);

    // Tensors that are served as stored take no memory in addition to the file.
    let raw = file("model.safetensors", &[("zeros", &zeros)]);
    let backend = TensorsBackend::new().with_memory(0);
    assert!(load_with(&backend, "/nowhere/model.safetensors".as_ref(), raw).is_ok());
}
