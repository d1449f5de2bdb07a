//! Tests of every file format, and of the checks while a file is loaded.

use std::fs;

use backend_tensors::TensorsBackend;
use bytes::Bytes;
use fmt_core::{Plan, PlannedEntry};
use fmt_ztensor::{ChecksumKind, Compression, TensorOptions, WriteOptions, ZtensorWriter};
use oip_model::{Backend, Model};
use tensor_core::{DType, Shape, SparseCoo, Tensor, TensorSpec};

use crate::support::{embed, file, load, load_with, request, run, tensors, vector};

fn output(model: &dyn Model, name: &str) -> Tensor {
    tensors(run(model, request().with_output(name)).unwrap())
        .remove(0)
        .1
}

fn outputs(model: &dyn Model) -> Vec<&str> {
    let outputs = model.metadata().outputs.iter();
    outputs.map(|output| output.name.as_str()).collect()
}

fn is_within(part: &Bytes, whole: &Bytes) -> bool {
    whole.as_ptr_range().contains(&part.as_ptr())
}

#[test]
fn every_format_is_served_from_the_files_own_bytes() {
    let names = TensorsBackend::new();
    for name in names.file_names().iter().filter(|name| !name.ends_with("gguf")) {
        let content = file(name, &[("0", &embed())]);
        let model = load(name, content.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let whole = output(&*model, "0");
        assert_eq!(whole, embed(), "{name}");
        assert!(is_within(whole.bytes(), &content), "{name}: copied");
        let rows = run(&*model, request().with_input("0.rows", vector(&[1, 2]))).unwrap();
        let rows = tensors(rows).remove(0).1;
        assert_eq!(rows, embed().rows(1..3).unwrap(), "{name}");
        assert!(
            is_within(rows.bytes(), &content),
            "{name}: consecutive rows were copied"
        );
        let format = tensor_files::format_of_path(name.as_ref()).unwrap().id();
        assert_eq!(model.metadata().platform, format!("tensorferry_{format}"));
    }
}

#[test]
fn every_dtype_has_a_datatype() {
    for dtype in DType::ALL {
        let spec = TensorSpec::new(dtype, Shape::vector(4)).unwrap();
        let tensor = Tensor::new(spec.clone(), vec![0; spec.byte_len() as usize]).unwrap();
        let model = load("model.zt", file("model.zt", &[("t", &tensor)])).unwrap();
        assert_eq!(output(&*model, "t"), tensor);
    }
}

fn ztensor(options: &TensorOptions) -> Bytes {
    let mut writer = ZtensorWriter::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.tensor_with("embed", &embed(), options).unwrap();
    writer.finish().unwrap().into()
}

#[test]
fn what_is_stored_otherwise_is_decoded_once() {
    let compressed = TensorOptions {
        compression: Some(Compression::level(3)),
        ..TensorOptions::default()
    };
    let swapped = TensorOptions {
        big_endian: true,
        ..TensorOptions::default()
    };
    for options in [compressed, swapped] {
        let model = load("model.zt", ztensor(&options)).unwrap();
        let (first, second) = (output(&*model, "embed"), output(&*model, "embed"));
        assert_eq!(first, embed());
        assert_eq!(first.bytes().as_ptr(), second.bytes().as_ptr(), "decoded anew");
    }
}

/// Checksums are verified when the file is loaded, even for tensors that are served as stored.
#[test]
fn checksums_are_verified_at_load() {
    for kind in [ChecksumKind::Crc32c, ChecksumKind::Sha256] {
        let options = TensorOptions {
            checksum: Some(kind),
            ..TensorOptions::default()
        };
        let mut content = ztensor(&options).to_vec();
        assert!(load("model.zt", content.clone().into()).is_ok());
        // The first tensor's data starts at byte 64.
        content[64 + 4] ^= 1;
        let error = load("model.zt", content.into()).err().unwrap().to_string();
        assert!(
            error.starts_with("model.zt: tensor 'embed': ") && error.contains("checksum"),
            "{error}"
        );
    }
}

/// Loading stops when its deadline has passed.
#[test]
fn the_deadline_ends_loading() {
    let source =
        oip_model::ModelSource::new("m", "1", "/nowhere/model.zt", ztensor(&TensorOptions::default()));
    let mut cx = oip_model::LoadContext::default();
    cx.deadline.replace(std::time::Instant::now());
    let error = TensorsBackend::new().load(&source, &cx).err().unwrap();
    assert_eq!(error.to_string(), "model.zt: loading took too long");
}

#[test]
fn sparse_tensors_are_left_out() {
    let sparse = SparseCoo::from_dense(&embed().view());
    let plan = Plan {
        entries: vec![
            PlannedEntry::coo("0", sparse.spec().clone(), sparse.nnz()),
            PlannedEntry::dense("1", embed().spec().clone()),
        ],
        ..Plan::default()
    };
    let mut out = Vec::new();
    let mut writer = tensor_files::format("btf")
        .unwrap()
        .create(Box::new(&mut out), plan)
        .unwrap();
    for bytes in [sparse.indices().bytes(), sparse.values().bytes(), embed().bytes()] {
        writer.write(bytes).unwrap();
    }
    writer.finish().unwrap();
    let model = load("model.btf", out.into()).unwrap();
    assert_eq!(outputs(&*model), ["1"]);
    assert_eq!(output(&*model, "1"), embed());
}

/// Checks that tensors of an unknown dtype, which many files contain, are skipped.
#[test]
fn tensors_that_cannot_be_read_are_left_out() {
    let header = r#"{"f8":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},"ok":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#;
    let file = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &[1, 2, 3, 4],
    ]
    .concat();
    let model = load("model.safetensors", file.into()).unwrap();
    assert_eq!(outputs(&*model), ["ok"]);
    assert_eq!(output(&*model, "ok").to_vec::<u8>().unwrap(), [3, 4]);
}

#[test]
fn a_file_of_which_nothing_can_be_served_is_refused() {
    let reason = |name: &str, content: Bytes| load(name, content).err().unwrap().to_string();
    assert_eq!(
        reason("model.zt", file("model.zt", &[])),
        "model.zt: it has no tensors"
    );
    let header = r#"{"f8":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#;
    let unknown = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &[1, 2],
    ]
    .concat();
    let reason = reason("model.safetensors", unknown.into());
    assert!(
        reason.starts_with("model.safetensors: none of its 1 tensors can be served; 'f8': "),
        "{reason}"
    );
}

/// BTF files contain no tensor names; a separate file next to them does.
#[test]
fn names_beside_a_file_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.btf");
    let names = folder.path().join("model.btf.names.json");
    let load = || {
        load_with(
            &TensorsBackend::new(),
            &path,
            file("model.btf", &[("0", &embed())]),
        )
    };
    assert_eq!(outputs(&*load().unwrap()), ["0"]);
    fs::write(&names, r#"{"names":["embed"]}"#).unwrap();
    let named = load().unwrap();
    if outputs(&*named) != ["embed"] {
        panic!("{:?}", outputs(&*named));
    }
    // An invalid file with names is ignored.
    fs::write(&names, "[").unwrap();
    assert_eq!(outputs(&*load().unwrap()), ["0"]);
}

/// The file with the tensor names is not read through a link, and a pipe in its place does not block.
#[cfg(unix)]
#[test]
fn names_behind_a_link_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, r#"{"names":["secret"]}"#).unwrap();
    let path = folder.path().join("model.btf");
    let names = folder.path().join("model.btf.names.json");
    let load = || {
        load_with(
            &TensorsBackend::new(),
            &path,
            file("model.btf", &[("0", &embed())]),
        )
    };
    std::os::unix::fs::symlink(&secret, &names).unwrap();
    let error = load().err().unwrap();
    assert_eq!(
        error.to_string(),
        "model.btf.names.json is a link; it must be a file"
    );
    fs::remove_file(&names).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&names)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(outputs(&*load().unwrap()), ["0"]);
}
