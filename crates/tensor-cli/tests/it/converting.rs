//! `convert`, `merge` and `extract`.

use std::{fs, process::Command};

use serde_json::Value;
use tensor_core::{Shape, Tensor};

use crate::{
    interrupting::{send_when_open, write_big},
    support::{TestDir, matrix, vector},
};

/// Returns the name and the hash of each tensor.
fn contents(shown: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let tensors = shown["tensors"].as_array().unwrap().iter();
    let mut contents: Vec<_> = tensors
        .map(|tensor| (text(&tensor["name"]), text(&tensor["sha256"])))
        .collect();
    contents.sort();
    contents
}

#[test]
fn conversion_keeps_names_and_content() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix()), ("steps", &vector())]);
    for [from, to] in [
        ["a.tbuf", "b.safetensors"],
        ["b.safetensors", "c.npz"],
        ["c.npz", "d.tbuf"],
    ] {
        assert_eq!(dir.good(&["convert", from, to]), "");
        assert_eq!(
            contents(&dir.inspect(from)),
            contents(&dir.inspect(to)),
            "{from} {to}"
        );
    }
    assert_eq!(dir.good(&["diff", "a.tbuf", "d.tbuf"]), "");
}

#[test]
fn what_a_format_cannot_hold_is_refused_or_told() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[("license", "MIT")], &[("w", &matrix())]);
    assert_eq!(
        dir.bad(&["convert", "--strict", "a.safetensors", "a.tbuf"]),
        "error[Unsupported]: a.tbuf: tbuf cannot hold the metadata 'license'"
    );
    assert!(!dir.path("a.tbuf").exists());
    assert_eq!(
        dir.good(&["convert", "a.safetensors", "a.tbuf"]),
        "dropped metadata: 'license'\n"
    );
    assert_eq!(
        contents(&dir.inspect("a.tbuf")),
        contents(&dir.inspect("a.safetensors"))
    );

    dir.write_sparse("s.btf");
    let refused = dir.bad(&["convert", "--allow-loss=tensors,names", "s.btf", "s.safetensors"]);
    assert!(refused.contains("that tensor '1' is sparse"), "{refused}");
    dir.good(&["convert", "--allow-loss", "s.btf", "s.safetensors"]);
    let tensors = dir.inspect("s.safetensors")["tensors"].clone();
    assert_eq!(
        tensors[0]["sha256"], tensors[1]["sha256"],
        "the sparse one became as dense as the other"
    );
}

/// Names and metadata, which BTF cannot hold, are stored in a sidecar file.
#[test]
fn btf_keeps_names() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[("license", "MIT")], &[("w", &matrix())]);
    assert_eq!(dir.good(&["convert", "a.safetensors", "a.btf"]), "");
    assert_eq!(dir.good(&["diff", "a.safetensors", "a.btf"]), "");
}

/// Without the sidecar file, BTF loses the names.
#[test]
fn btf_without_a_file_of_names() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[], &[("w", &matrix())]);
    let told = dir.good(&["convert", "a.safetensors", "a.btf", "--no-sidecar"]);
    assert!(told.contains("names"), "{told}");
    assert!(!dir.path("a.btf.names.json").exists());
    let refused = dir.bad(&["convert", "a.safetensors", "a.tbuf", "--no-sidecar"]);
    assert!(refused.contains("--no-sidecar"), "{refused}");
}

/// Other versions of zTensor are recognised by content in every command.
#[test]
fn the_other_ztensors_are_read() {
    let dir = TestDir::new();
    let real = concat!(env!("CARGO_MANIFEST_DIR"), "/../fmt-ztensor2/tests/real/");
    for file in [
        "1.2.3-dense.zt",
        "2.1.2-dense.zt",
        "2.1.2-zstd.zt",
        "2.1.2-types.zt",
    ] {
        let from = format!("{real}{file}");
        dir.good(&["verify", &from]);
        let listed = dir.good(&["inspect", &from]);
        assert!(
            listed.contains(if file.starts_with('1') {
                "ztensor1"
            } else {
                "ztensor2"
            }),
            "{listed}"
        );
        dir.good(&["convert", &from, "copy.safetensors"]);
        dir.good(&["diff", &from, "copy.safetensors"]);
    }
    let types = format!("{real}2.1.2-types.zt");
    dir.good(&["extract", &types, "mask", "-o", "mask.npy"]);
    let dense = format!("{real}2.1.2-dense.zt");
    dir.good(&["convert", &dense, "copy.zt"]);
    let copied = dir.good(&["inspect", "copy.zt"]);
    assert!(
        copied.contains("ztensor") && !copied.contains("ztensor2"),
        "{copied}"
    );
    dir.good(&["diff", &dense, "copy.zt"]);
    let sparse = format!("{real}2.1.2-sparse.zt");
    dir.good(&["convert", &sparse, "sparse.btf"]);
    dir.good(&["diff", &sparse, "sparse.btf"]);
    // Version 2.x can also be written, with file metadata.
    dir.write(
        "a.safetensors",
        &[("format", "pt")],
        &[("w", &matrix()), ("steps", &vector())],
    );
    dir.good(&["convert", "--strict", "a.safetensors", "b.zt", "--to", "ztensor2"]);
    assert!(
        dir.good(&["verify", "b.zt"])
            .contains("good: ztensor2, 2 tensors, 2 checked against checksums")
    );
    assert_eq!(dir.good(&["diff", "--metadata", "a.safetensors", "b.zt"]), "");
    dir.good(&["rename", "b.zt", "w", "v"]);
    dir.good(&["set", "b.zt", "format=np"]);
    let changed = dir.inspect("b.zt");
    assert_eq!(
        (&changed["format"], &changed["metadata"]["format"]),
        (&"ztensor2".into(), &"np".into())
    );
    let refused = dir.bad(&["convert", &dense, "copy", "--to", "ztensor1"]);
    assert!(refused.contains("read, not written"), "{refused}");
}

#[test]
fn ztensor_files_are_written_as_told() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[], &[("w", &matrix()), ("steps", &vector())]);
    let first = |name: &str| dir.inspect(name)["tensors"][0].clone();
    dir.good(&["convert", "--compress", "--level", "19", "a.safetensors", "a.zt"]);
    assert_eq!(first("a.zt")["encoding"], "zstd");
    dir.good(&["convert", "--checksum", "sha256", "a.zt", "b.zt"]);
    let checksum = first("b.zt")["checksum"].as_str().unwrap().to_owned();
    assert!(checksum.starts_with("sha256:"), "{checksum}");
    dir.good(&[
        "convert",
        "--endian",
        "big",
        "--strict-spec",
        "--checksum",
        "none",
        "b.zt",
        "c.zt",
    ]);
    assert_eq!(first("c.zt")["big_endian"], true);
    assert_eq!(first("c.zt")["checksum"], Value::Null);
    for file in ["a.zt", "b.zt", "c.zt"] {
        assert_eq!(dir.good(&["diff", "a.safetensors", file]), "");
        assert!(dir.good(&["verify", file]).contains(": good: ztensor"));
    }
    let refused = dir.bad(&["convert", "--compress", "a.zt", "a.tbuf"]);
    assert!(
        refused.contains("no setting for --compress: expected ztensor, found tbuf"),
        "{refused}"
    );
}

#[test]
fn a_target_is_untouched_by_failure() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    fs::write(dir.path("b.safetensors"), "precious").unwrap();
    fs::write(dir.path("broken.tbuf"), "nothing").unwrap();
    dir.bad(&["convert", "broken.tbuf", "b.safetensors"]);
    dir.bad(&["merge", "-o", "b.safetensors", "a.tbuf", "a.tbuf"]);
    assert_eq!(fs::read(dir.path("b.safetensors")).unwrap(), b"precious");
    let left: Vec<_> = fs::read_dir(dir.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// An interrupted conversion leaves the previous target file in place and removes its partial file.
#[test]
fn an_interrupted_conversion_leaves_the_target() {
    let dir = TestDir::new();
    write_big(&dir, "big.safetensors");
    fs::write(dir.path("b.zt"), "precious").unwrap();
    let mut converting = dir.spawn(&["convert", "big.safetensors", "b.zt"]);
    send_when_open(&dir, &mut converting, 2, "INT");
    assert_eq!(converting.wait().unwrap().code(), Some(130));
    assert_eq!(fs::read(dir.path("b.zt")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path("")).unwrap().count(), 2);
}

/// `--dtype` does not convert integers and bools, such as the positions in BERT models.
#[test]
fn integers_and_bools_stay_when_floats_get_another_dtype() {
    let dir = TestDir::new();
    let mask = Tensor::from_vec(Shape::vector(2), vec![true, false]).unwrap();
    let tensors = [("position_ids", &vector()), ("w", &matrix()), ("mask", &mask)];
    dir.write("a.safetensors", &[], &tensors);
    let convert = ["convert", "a.safetensors", "b.safetensors", "--dtype", "bf16"];
    let told = dir.good(&convert);
    assert!(
        told.starts_with("not floats, left as they are: ") && told.lines().count() == 1,
        "{told}"
    );
    assert!(
        told.contains("i64 of 'position_ids'") && told.contains("bool of 'mask'"),
        "{told}"
    );
    let written = dir.inspect("b.safetensors");
    for (name, dtype) in [("position_ids", "int64"), ("w", "bfloat16"), ("mask", "bool")] {
        let tensors = written["tensors"].as_array().unwrap();
        let tensor = tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
        assert_eq!(tensor["dtype"], dtype);
    }
    let report: Value = serde_json::from_str(&dir.good(&[&convert[..], &["--json"]].concat())).unwrap();
    assert_eq!(report["unconverted"].as_array().unwrap().len(), 2);
    assert_eq!(
        dir.good(&["diff", "--dtype", "bf16", "a.safetensors", "b.safetensors"]),
        ""
    );
}

/// Exceeding the system's file size limit is an error that leaves the target unchanged. The limit is 512 or
/// 1024 bytes, depending on the unit of the shell's `ulimit`.
#[test]
fn a_target_beyond_the_limit_of_the_system_is_an_error() {
    let dir = TestDir::new();
    let large = Tensor::from_vec(Shape::vector(100_000), vec![1u8; 100_000]).unwrap();
    dir.write("a.tbuf", &[], &[("w", &large)]);
    fs::write(dir.path("b.zt"), "precious").unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec '{}' convert a.tbuf b.zt",
        env!("CARGO_BIN_EXE_tensor")
    );
    let run = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir.path(""))
        .output()
        .unwrap();
    let err = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1), "{err}");
    assert!(
        err.starts_with("error[Io]: b.zt: ") && err.contains("File too large"),
        "{err}"
    );
    assert_eq!(fs::read(dir.path("b.zt")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(dir.path("")).unwrap().count(), 2);
}

#[test]
fn a_file_can_be_converted_onto_itself() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    let before = contents(&dir.inspect("a.tbuf"));
    dir.good(&["convert", "--to", "safetensors", "a.tbuf", "a.tbuf"]);
    let after = dir.inspect("a.tbuf");
    assert_eq!(after["format"], "safetensors", "content tells, not the extension");
    assert_eq!(contents(&after), before);
}

#[test]
fn unknown_formats_are_named() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    let refused = dir.bad(&["convert", "a.tbuf", "a.xyz"]);
    assert!(
        refused.contains("expected one of btf, ") && refused.ends_with("found 'xyz'"),
        "{refused}"
    );
}

#[test]
fn merge_takes_all_or_says_what_clashes() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    dir.write("b.safetensors", &[], &[("steps", &vector())]);
    dir.good(&["merge", "--output", "c.safetensors", "a.tbuf", "b.safetensors"]);
    let both = [
        contents(&dir.inspect("a.tbuf")),
        contents(&dir.inspect("b.safetensors")),
    ]
    .concat();
    let mut merged = contents(&dir.inspect("c.safetensors"));
    merged.reverse();
    assert_eq!(merged, both);
    assert_eq!(
        dir.bad(&["merge", "-o", "d.tbuf", "a.tbuf", "c.safetensors"]),
        "error[Duplicate]: c.safetensors: tensor 'w': the name is in two of the files: found in a.tbuf as well"
    );
}

#[test]
fn extract_writes_npy_or_bytes() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    dir.good(&["extract", "a.tbuf", "w", "--rows", "1:", "-o", "w.npy"]);
    let tensor = &dir.inspect("w.npy")["tensors"][0];
    assert_eq!(
        (&tensor["shape"], &tensor["dtype"]),
        (&serde_json::json!([2, 2]), &"float32".into())
    );
    dir.good(&["extract", "a.tbuf", "w", "--rows", ":1", "-o", "w.raw"]);
    assert_eq!(fs::read(dir.path("w.raw")).unwrap(), matrix().bytes()[..8]);
    dir.good(&["extract", "a.tbuf", "w", "-o", "w.bin"]);
    assert_eq!(fs::read(dir.path("w.bin")).unwrap(), matrix().bytes()[..]);
    assert_eq!(
        dir.bad(&["extract", "a.tbuf", "w", "--rows", "2:9", "-o", "x.npy"]),
        "error[OutOfBounds]: a.tbuf: tensor 'w': there are no such rows: expected rows within 0:3, found 2:9"
    );
    assert!(!dir.path("x.npy").exists());
}

#[test]
fn usage_is_told_with_code_2() {
    let dir = TestDir::new();
    for arguments in [
        &["convert", "a"][..],
        &["frobnicate"],
        &["extract", "a", "w", "--rows", "9:1", "-o", "b"],
        &["convert", "a", "b", "--level", "3"],
    ] {
        let run = dir.run(arguments);
        assert_eq!((run.code, &*run.out), (2, ""), "{arguments:?}");
        assert!(run.err.starts_with("error: "), "{}", run.err);
    }
}

/// Eight-bit floats and complex numbers are listed, copied, hashed, compared, extracted and merged; only
/// arithmetic is rejected.
#[test]
fn dtypes_without_arithmetic_are_carried() {
    let dir = TestDir::new();
    let header = r#"{"__metadata__":{"format":"pt"},"q":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[0,8]},"f":{"dtype":"F4","shape":[4],"data_offsets":[8,10]},"z":{"dtype":"C64","shape":[1],"data_offsets":[10,18]}}"#;
    let head = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let data: Vec<u8> = (1..=18).collect();
    fs::write(dir.path("a.safetensors"), [head, data.clone()].concat()).unwrap();
    dir.good(&["convert", "a.safetensors", "b.safetensors"]);
    assert_eq!(
        contents(&dir.inspect("a.safetensors")),
        contents(&dir.inspect("b.safetensors"))
    );
    assert_eq!(dir.good(&["diff", "a.safetensors", "b.safetensors"]), "");
    assert!(dir.good(&["verify", "b.safetensors"]).contains(": good: "));
    dir.good(&["extract", "b.safetensors", "q", "-o", "q.raw"]);
    assert_eq!(fs::read(dir.path("q.raw")).unwrap(), data[..8]);
    assert!(
        dir.bad(&["extract", "b.safetensors", "q", "-o", "q.npy"])
            .contains("cannot store")
    );
    let shown = dir.inspect("b.safetensors");
    assert_eq!(shown["tensors"][0]["dtype"], "F8_E4M3");
    assert_eq!(shown["metadata"]["format"], "pt");
    dir.good(&["inspect", "--stats", "--values", "b.safetensors"]);
    // If the format lacks the dtype, the error says so; `--as-bits` stores the elements as unsigned integers.
    let refused = dir.bad(&["convert", "a.safetensors", "a.zt"]);
    assert!(refused.contains("F8_E4M3"), "{refused}");
    assert_eq!(
        dir.good(&["convert", "--as-bits", "a.safetensors", "a.zt"]),
        "dropped metadata: 'format'\nstored as bits: F8_E4M3 of 'q', F4 of 'f', C64 of 'z'\n"
    );
    let told = dir.good(&["convert", "--as-bits", "--json", "a.safetensors", "a.zt"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["losses"][0]["kind"], "dtype");
    assert_eq!(told["losses"][0]["tensor"], "q");
    let tensors = dir.inspect("a.zt")["tensors"].clone();
    assert_eq!(tensors[0]["dtype"], "uint8");
    assert_eq!(tensors[1]["shape"], serde_json::json!([2]));
    let mut damaged = fs::read(dir.path("b.safetensors")).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(dir.path("b.safetensors"), damaged).unwrap();
    assert_eq!(dir.run(&["diff", "a.safetensors", "b.safetensors"]).code, 1);
}
