//! Tensor selection, new names, and casts, also of quantised blocks.

use std::fs;

use fmt_core::{Format, OpaqueDType, Plan, PlannedEntry};
use tensor_core::{Shape, bf16};

use crate::{
    checkpoints::{floats, folder},
    support::{TestDir, matrix},
};

#[test]
fn dtypes_change_on_the_way() {
    let dir = TestDir::new();
    folder(&dir);
    dir.good(&[
        "convert",
        "hub",
        "b.safetensors",
        "--dtype",
        "bf16",
        "--keep-dtype",
        "*steps",
    ]);
    let shown = dir.inspect("b.safetensors");
    let dtypes: Vec<&str> = shown["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["dtype"].as_str().unwrap())
        .collect();
    assert_eq!(dtypes, ["bfloat16", "bfloat16", "int64"]);
    // 1 + 1/256 is halfway between two bfloat16 numbers and is rounded to the even one.
    dir.good(&["extract", "b.safetensors", "model.norm", "-o", "norm.raw"]);
    let expected = [1.0, 1.0, -3.0]
        .map(|value| bf16::from_f32(value).to_le_bytes())
        .concat();
    assert_eq!(fs::read(dir.path("norm.raw")).unwrap(), expected);
    dir.good(&[
        "extract",
        "hub",
        "model.norm",
        "--dtype",
        "bf16",
        "-o",
        "norm.raw",
    ]);
    assert_eq!(fs::read(dir.path("norm.raw")).unwrap(), expected);
    dir.good(&[
        "extract",
        "hub",
        "model.embed",
        "--rows",
        "1:",
        "--dtype",
        "f64",
        "-o",
        "rows.npy",
    ]);
    assert_eq!(dir.inspect("rows.npy")["tensors"][0]["dtype"], "float64");
    let changed = [
        "diff",
        "--dtype",
        "bf16",
        "--keep-dtype",
        "*steps",
        "hub",
        "b.safetensors",
    ];
    assert_eq!(dir.good(&changed), "");
    assert_eq!(dir.run(&["diff", "hub", "b.safetensors"]).code, 1);

    // Out-of-range values are reported, and nothing is written.
    dir.write("large.safetensors", &[], &[("w", &floats(&[1e30, 2.0, -7e4]))]);
    let refused = dir.bad(&["convert", "large.safetensors", "h.safetensors", "--dtype", "f16"]);
    assert!(refused.contains("2 numbers of tensor 'w'"), "{refused}");
    assert!(!dir.path("h.safetensors").exists());
    let told = dir.good(&[
        "convert",
        "large.safetensors",
        "h.safetensors",
        "--dtype",
        "f16",
        "--allow-loss=range",
    ]);
    assert_eq!(
        told,
        "lost: 2 numbers of tensor 'w', beyond the range of the dtype\n"
    );
    assert!(
        dir.bad(&[
            "extract",
            "large.safetensors",
            "w",
            "--dtype",
            "f16",
            "-o",
            "x.raw"
        ])
        .contains("2 numbers")
    );
    assert!(!dir.path("x.raw").exists());
    // The command fails although it has already written bytes to standard output.
    dir.write("positive.safetensors", &[], &[("w", &floats(&[1e30, 2.0, 7e4]))]);
    let run = dir.run(&[
        "extract",
        "positive.safetensors",
        "w",
        "--dtype",
        "f16",
        "-o",
        "-",
    ]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("2 numbers"), "{}", run.err);
    assert!(
        dir.run(&["convert", "a", "b", "--dtype", "i8"])
            .err
            .contains("expected f16")
    );
}

#[test]
fn tensors_are_chosen_and_renamed() {
    let dir = TestDir::new();
    folder(&dir);
    let names = |file: &str| -> Vec<String> {
        let shown = dir.inspect(file);
        let tensors = shown["tensors"].as_array().unwrap().iter();
        tensors
            .map(|tensor| tensor["name"].as_str().unwrap().to_owned())
            .collect()
    };
    dir.good(&[
        "convert",
        "hub",
        "a.safetensors",
        "--exclude",
        "*.steps",
        "--rename",
        "model.*=>*",
    ]);
    assert_eq!(names("a.safetensors"), ["embed", "norm"]);
    dir.good(&[
        "extract",
        "hub",
        "--include",
        "re:(norm|steps)$",
        "-o",
        "b.safetensors",
    ]);
    assert_eq!(names("b.safetensors"), ["model.norm", "model.steps"]);
    // `hub` has the old names and `a.safetensors` the new ones, and the patterns match both.
    let same = dir.good(&[
        "diff",
        "hub",
        "a.safetensors",
        "--rename",
        "model.*=>*",
        "--exclude",
        "*steps",
    ]);
    assert_eq!(same, "");
    for (pattern, told) in [
        (["--include", "nothing*"], "matches no tensor"),
        (["--rename", "model.{embed,norm}=>same"], "the new name is taken"),
    ] {
        let refused = dir.bad(&["convert", "hub", "c.zt", pattern[0], pattern[1]]);
        assert!(refused.contains(told), "{refused}");
    }
    assert_eq!(dir.run(&["convert", "hub", "c.zt", "--include", "[a"]).code, 2);
}

/// Writes a GGUF file: 64 elements of `Q8_0` with scales 0.5 and 2 as two rows, 512 of `Q4_K`, 256 of `Q1_0`,
/// and plain floats.
fn quantised(dir: &TestDir, name: &str) {
    let opaque = |name: &str, dtype: OpaqueDType, dims: &[u64]| {
        PlannedEntry::opaque(name, dtype, Shape::new(dims).unwrap()).unwrap()
    };
    let plan = Plan {
        entries: vec![
            opaque("q8", OpaqueDType::new("Q8_0", 32, 34), &[2, 32]),
            opaque("q4k", OpaqueDType::new("Q4_K", 256, 144), &[1, 512]),
            opaque("q1", OpaqueDType::new("Q1_0", 128, 18), &[256]),
            PlannedEntry::dense("norm", matrix().spec().clone()),
        ],
        ..Plan::default()
    };
    let block = |scale: u16| [&scale.to_le_bytes()[..], &(0..32).collect::<Vec<u8>>()].concat();
    let mut file = Vec::new();
    let mut writer = fmt_gguf::Gguf.create(Box::new(&mut file), plan).unwrap();
    writer.write(&[block(0x3800), block(0x4000)].concat()).unwrap();
    // A block of `Q4_K`: scale 1, minimum 0, six-bit scales and four-bit elements.
    let k = [&[0x00, 0x3C, 0, 0][..], &[1; 12], &[0x21; 128]].concat();
    writer.write(&[&k[..], &k].concat()).unwrap();
    writer.write(&[7; 36]).unwrap();
    writer.write(matrix().bytes()).unwrap();
    writer.finish().unwrap();
    fs::write(dir.path(name), file).unwrap();
}

#[test]
fn quantised_blocks_become_floats_where_they_are_understood() {
    let dir = TestDir::new();
    quantised(&dir, "q.gguf");
    let f32s = |name: &str| -> Vec<f32> {
        dir.good(&["extract", "f.safetensors", name, "-o", "x.raw"]);
        let raw = fs::read(dir.path("x.raw")).unwrap();
        raw.as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    };
    // Blocks of a type without a decoder are reported, and nothing is written.
    let refused = dir.bad(&["convert", "q.gguf", "f.safetensors", "--dtype", "f32"]);
    for words in ["'q1'", "Q1_0", "--keep-dtype"] {
        assert!(refused.contains(words), "{refused}");
    }
    // Blocks without a decoder can be excluded, or kept if the target format supports them.
    let refused = dir.bad(&[
        "convert",
        "q.gguf",
        "f.safetensors",
        "--dtype",
        "f32",
        "--keep-dtype",
        "q1",
    ]);
    assert!(
        refused.contains("safetensors cannot hold tensor 'q1'"),
        "{refused}"
    );
    assert!(!dir.path("f.safetensors").exists());
    dir.good(&[
        "convert",
        "q.gguf",
        "kept.gguf",
        "--dtype",
        "f16",
        "--keep-dtype",
        "{q1,q4k}",
    ]);
    let dtypes = |file: &str| -> Vec<String> {
        let shown = dir.inspect(file);
        let tensors = shown["tensors"].as_array().unwrap();
        tensors
            .iter()
            .map(|t| t["dtype"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(dtypes("q.gguf"), ["Q8_0", "Q4_K", "Q1_0", "float32"]);
    assert_eq!(dtypes("kept.gguf"), ["float16", "Q4_K", "Q1_0", "float16"]);

    let floats = ["--dtype", "f32", "--exclude", "q1"];
    dir.good(&[&["convert", "q.gguf", "f.safetensors"], &floats[..]].concat());
    let expected = |scale: f32| (0..32).map(move |i| scale * i as f32);
    assert_eq!(f32s("q8"), expected(0.5).chain(expected(2.0)).collect::<Vec<_>>());
    assert_eq!(f32s("q4k").len(), 512);
    assert_eq!(f32s("norm"), matrix().to_vec::<f32>().unwrap());

    // Every command computes with the same dequantised numbers.
    assert_eq!(
        dir.good(&[&["diff", "q.gguf", "f.safetensors"], &floats[..]].concat()),
        ""
    );
    assert_eq!(
        dir.good(&[&["diff", "f.safetensors", "q.gguf"], &floats[..]].concat()),
        ""
    );
    let manifest = dir.good(&[&["manifest", "q.gguf"], &floats[..]].concat());
    assert_eq!(manifest, dir.good(&["manifest", "f.safetensors"]));
    dir.good(&[&["merge", "q.gguf", "-o", "m.zt"], &floats[..]].concat());
    assert_eq!(dir.good(&["diff", "m.zt", "f.safetensors"]), "");
    dir.good(&["extract", "q.gguf", "q8", "--dtype", "f32", "-o", "whole.raw"]);
    dir.good(&[
        "extract", "q.gguf", "q8", "--dtype", "f32", "--rows", "1:", "-o", "row.raw",
    ]);
    let [whole, row] = ["whole.raw", "row.raw"].map(|file| fs::read(dir.path(file)).unwrap());
    assert_eq!(whole[128..], row);
    let shown = dir.good(&[
        "extract", "q.gguf", "q8", "--dtype", "bf16", "--rows", "0:1", "-o", "row.npy",
    ]);
    assert_eq!(shown, "");
    // Quantised tensors can be split and merged unchanged.
    dir.good(&["split", "q.gguf", "parts.gguf", "--max-shard-size", "100"]);
    assert_eq!(dir.good(&["diff", "q.gguf", "parts.gguf"]), "");

    // With a scale of 60,000, 30 of the block's elements exceed the range of f16, and the error counts them.
    let mut file = fs::read(dir.path("q.gguf")).unwrap();
    let at = file.windows(2).rposition(|two| two == [0x00, 0x40]).unwrap();
    file[at..at + 2].copy_from_slice(&0x7B53_u16.to_le_bytes());
    fs::write(dir.path("large.gguf"), file).unwrap();
    let halves = [
        "convert",
        "large.gguf",
        "h.safetensors",
        "--include",
        "q8",
        "--dtype",
        "f16",
    ];
    let refused = dir.bad(&halves);
    assert!(refused.contains("30 numbers of tensor 'q8'"), "{refused}");
    assert!(!dir.path("h.safetensors").exists());
    dir.good(&[&halves[..], &["--allow-loss=range"]].concat());
}
