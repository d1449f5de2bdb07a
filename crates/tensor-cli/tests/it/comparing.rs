//! Manifests, differences of checkpoints, reports as JSON, and metadata that differs between merged files.

use std::fs;

use serde_json::{Value, json};

use crate::{
    checkpoints::{floats, folder},
    support::{TestDir, matrix},
};

#[test]
fn manifests_are_the_same_for_the_same_tensors() {
    let dir = TestDir::new();
    folder(&dir);
    let manifest = dir.good(&["manifest", "hub"]);
    dir.good(&["convert", "whole.safetensors", "c.zt", "--compress"]);
    assert_eq!(dir.good(&["manifest", "c.zt"]), manifest);
    let lines: Vec<&str> = manifest.lines().collect();
    assert_eq!(lines[0], "tensor-manifest 1 sha256");
    // Python: hashlib.sha256(struct.pack("<6f", 1, 0, -2.5, 0, 0, 4)).hexdigest()
    assert_eq!(
        lines[1],
        "f45438785a6f73aa2e75ae4e54892ccd73f7dbb399f36b8c46010972764aa7ce  f32  [3,2]  \"model.embed\""
    );
    assert!(lines[4].ends_with("  content"), "{manifest}");
    fs::write(dir.path("m.txt"), &manifest).unwrap();
    fs::write(dir.path("m.json"), dir.good(&["manifest", "--json", "hub"])).unwrap();
    for file in ["m.txt", "m.json"] {
        assert!(
            dir.good(&["verify", "--manifest", file, "hub", "c.zt"])
                .contains("c.zt: good")
        );
    }
    dir.write(
        "d.safetensors",
        &[],
        &[
            ("model.embed", &matrix()),
            ("model.norm", &floats(&[1.0, 1.0, -3.0])),
        ],
    );
    let run = dir.run(&["verify", "--manifest", "m.txt", "d.safetensors"]);
    assert_eq!(run.code, 1);
    assert!(
        run.out
            .contains("error[Changed]: tensor 'model.norm' has different content\n"),
        "{}",
        run.out
    );
    assert!(
        run.out
            .contains("error[Changed]: tensor 'model.steps' is missing\n"),
        "{}",
        run.out
    );
    fs::write(dir.path("m.txt"), manifest.replace("f32", "f64")).unwrap();
    assert!(
        dir.bad(&["verify", "--manifest", "m.txt", "hub"])
            .starts_with("error[Corrupt]: m.txt")
    );

    let sums = dir.good(&["manifest", "--files", "hub"]);
    assert_eq!(sums.lines().count(), 3, "{sums}");
    assert!(
        sums.contains("  hub/model-00001-of-00002.safetensors\n"),
        "{sums}"
    );
    let is_digest = |line: &str| {
        line.split_once("  ")
            .is_some_and(|(digest, _)| digest.len() == 64)
    };
    assert!(sums.lines().all(is_digest), "{sums}");
}

#[test]
fn diff_exits_as_its_users_expect() {
    let dir = TestDir::new();
    folder(&dir);
    dir.write("other.zt", &[], &[("model.embed", &matrix())]);
    assert_eq!(dir.run(&["diff", "hub", "whole.safetensors"]).code, 0);
    assert_eq!(dir.run(&["diff", "hub", "other.zt"]).code, 1);
    assert_eq!(dir.run(&["diff", "hub", "nothing.zt"]).code, 2);
    let told: Value = serde_json::from_str(&dir.run(&["diff", "--json", "hub", "other.zt"]).out).unwrap();
    assert_eq!(told["is_same"], false);
    assert_eq!(told["differences"][0]["kind"], "only_in_first");
    assert_eq!(told["notes"][0]["key"], "format");
    let run = dir.run(&["diff", "--json", "hub", "nothing.zt"]);
    let told: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &told["error"]["kind"]), (2, &json!("Io")));
    assert_eq!(told["error"]["file"], "nothing.zt");
}

#[test]
fn programs_are_told_in_json() {
    let dir = TestDir::new();
    folder(&dir);
    let told = |arguments: &[&str]| -> Vec<Value> {
        let run = dir.run(arguments);
        run.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    let shown = told(&["inspect", "--json", "hub", "whole.safetensors"]);
    assert_eq!((shown.len(), &shown[1]["file"]), (2, &json!("whole.safetensors")));
    assert_eq!(shown[1]["tensors"][2]["data_bytes"], 32);
    let verdict = told(&["verify", "--json", "hub"]);
    assert_eq!(
        (&verdict[0]["is_good"], &verdict[0]["tensors"]),
        (&json!(true), &json!(3))
    );
    let written = told(&["convert", "--json", "whole.safetensors", "a.zt"]);
    let size = fs::metadata(dir.path("a.zt")).unwrap().len();
    assert_eq!(written[0]["files"], json!([{"file": "a.zt", "file_bytes": size}]));
    assert_eq!(written[0]["losses"][0]["kind"], "metadata");
    assert_eq!(
        told(&["extract", "--json", "hub", "model.norm", "-o", "n.npy"])[0]["tensors"],
        1
    );
    assert_eq!(
        told(&["rename", "--json", "a.zt", "model.norm", "n"])[0]["file"],
        "a.zt"
    );
    assert_eq!(
        told(&["set", "--json", "a.zt", "--tensor", "n", "k=v"])[0]["file"],
        "a.zt"
    );
    assert_eq!(told(&["merge", "--json", "-o", "m.zt", "a.zt"])[0]["tensors"], 3);
    // Numbers that JSON cannot express are strings.
    dir.write("nan.npy", &[], &[("0", &floats(&[f32::INFINITY, f32::NAN]))]);
    dir.write("zero.npy", &[], &[("0", &floats(&[0.0, 0.0]))]);
    let stats = told(&["inspect", "--json", "--stats", "nan.npy"])[0]["tensors"][0]["stats"].clone();
    assert_eq!((&stats["max"], &stats["mean"]), (&json!("inf"), &Value::Null));
    assert_eq!(
        told(&["diff", "--json", "nan.npy", "zero.npy"])[0]["differences"][0]["farthest"],
        "nan"
    );
    let failed = told(&["convert", "--json", "nothing", "a.zt"]);
    assert_eq!(failed[0]["error"]["kind"], "Io");
}

#[test]
fn what_merged_files_say_differently_is_told() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[("license", "MIT")], &[("a", &matrix())]);
    dir.write("b.safetensors", &[("license", "GPL")], &[("b", &matrix())]);
    let told = dir.good(&["merge", "-o", "c.safetensors", "a.safetensors", "b.safetensors"]);
    assert_eq!(
        told,
        "dropped metadata: 'license' of b.safetensors: an earlier file has another value\n"
    );
    assert_eq!(dir.inspect("c.safetensors")["metadata"]["license"], "MIT");
    let refused = dir.bad(&[
        "merge",
        "--strict",
        "-o",
        "d.safetensors",
        "a.safetensors",
        "b.safetensors",
    ]);
    assert!(refused.contains("different values for 'license'"), "{refused}");
}
