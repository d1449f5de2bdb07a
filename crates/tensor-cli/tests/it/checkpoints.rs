//! Sharded Hugging Face checkpoints, tensor selection, casts, manifests.

use std::{fs, path::Path};

use fmt_core::{Format, OpaqueDType, Plan, PlannedEntry};
use serde_json::{Value, json};
use tensor_core::{Shape, Tensor, bf16};

use crate::support::{TestDir, matrix, vector};

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
}

/// Writes a directory with a configuration, two shards and an index.
fn folder(place: &TestDir) {
    place.write(
        "whole.safetensors",
        &[("format", "pt")],
        &[
            ("model.embed", &matrix()),
            ("model.norm", &floats(&[1.0, 1.0 + 1.0 / 256.0, -3.0])),
            ("model.steps", &vector()),
        ],
    );
    place.good(&["split", "whole.safetensors", "hub/", "--max-shard-size", "40"]);
    fs::write(place.path("hub/config.json"), "{}").unwrap();
    fs::write(place.path("hub/tokenizer.json"), "{}").unwrap();
}

#[test]
fn a_folder_is_a_file_for_every_command() {
    let place = TestDir::new();
    folder(&place);
    let index = "hub/model.safetensors.index.json";
    let second = "hub/model-00002-of-00002.safetensors";
    assert!(place.path(index).exists() && place.path(second).exists());
    for whole in ["hub", "hub/", index] {
        assert_eq!(place.good(&["diff", "whole.safetensors", whole]), "", "{whole}");
        let shown = place.good(&["inspect", whole]);
        assert!(shown.contains(": safetensors, 2 files, "), "{shown}");
        assert!(
            shown.contains("FILE\n") && shown.contains("  model-00002-of-00002.safetensors\n"),
            "{shown}"
        );
        assert!(
            place
                .good(&["verify", whole])
                .contains(": good: safetensors, 3 tensors")
        );
    }
    let shown = place.inspect("hub");
    assert_eq!(shown["tensors"][2]["file"], second);
    let sizes = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    .map(|name| fs::metadata(place.path("hub").join(name)).unwrap().len());
    let index_size = fs::metadata(place.path(index)).unwrap().len();
    assert_eq!(shown["file_bytes"], sizes[0] + sizes[1] + index_size);
    place.good(&["convert", "hub", "one.zt"]);
    place.good(&["merge", "hub", "-o", "merged.safetensors"]);
    assert_eq!(
        place.good(&["diff", "--metadata", "merged.safetensors", "whole.safetensors"]),
        ""
    );
    place.good(&["extract", "hub", "model.steps", "-o", "steps.npy"]);
    assert_eq!(place.inspect("steps.npy")["tensors"][0]["shape"], json!([4]));
    // A different split into the same directory removes the shards of the old one.
    place.good(&["split", "hub", "copy/", "--max-shard-size", "40"]);
    let told = place.good(&[
        "convert",
        "hub",
        "copy/model.safetensors",
        "--max-shard-size",
        "1",
    ]);
    assert_eq!(
        told,
        "3 files, and their index copy/model.safetensors.index.json\n"
    );
    assert!(!place.path("copy/model-00002-of-00002.safetensors").exists());
    assert_eq!(place.good(&["diff", "whole.safetensors", "copy"]), "");
    // A rename changes the shard and the index.
    place.good(&["rename", "hub", "model.steps", "steps"]);
    assert!(place.good(&["inspect", "hub"]).contains("\nsteps "));
    assert!(
        place
            .bad(&["rename", "hub", "steps", "model.norm"])
            .contains("taken")
    );
    assert!(
        place
            .bad(&["set", "hub", "a=b"])
            .contains("one file of the checkpoint")
    );
    // The shards form a checkpoint even without an index.
    fs::remove_file(place.path(index)).unwrap();
    let run = place.run(&["diff", "hub", "hub/model.safetensors"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.starts_with("note: hub: no index lists"), "{}", run.err);
    // An incomplete directory is not a checkpoint.
    fs::remove_file(place.path("hub/model-00001-of-00002.safetensors")).unwrap();
    let refused = place.bad(&["inspect", "hub"]);
    assert!(
        refused.contains("not complete") && refused.contains("model-00001-of-00002.safetensors"),
        "{refused}"
    );
}

/// A checkpoint cannot be split into its own directory: a process that is killed while it renames the shards
/// would leave neither the old checkpoint nor the new one.
#[test]
fn a_checkpoint_is_not_divided_into_its_own_files() {
    let place = TestDir::new();
    folder(&place);
    let first = "hub/model-00001-of-00002.safetensors";
    #[cfg(unix)]
    std::os::unix::fs::symlink("hub", place.path("link")).unwrap();
    let names = || {
        let entries = fs::read_dir(place.path("hub")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    for arguments in [
        &["split", "hub", "hub", "--max-shard-size", "1"][..],
        &["split", "hub", "hub/", "--max-shard-size", "40"],
        &["convert", "hub", "hub/model.safetensors", "--max-shard-size", "1"],
        &[
            "merge",
            first,
            "-o",
            "hub/model.safetensors",
            "--max-shard-size",
            "1",
        ],
        // The output is one of the inputs.
        &["merge", "hub", "-o", first],
        &["extract", "hub", "--include", "*norm", "-o", first],
        #[cfg(unix)]
        &["split", "hub", "link/", "--max-shard-size", "1"],
    ] {
        let refused = place.bad(arguments);
        assert!(
            refused.contains("expected another directory") && refused.contains("which is read"),
            "{arguments:?}: {refused}"
        );
        assert_eq!(names(), before);
        assert_eq!(place.good(&["diff", "whole.safetensors", "hub"]), "");
    }
    // A single file may be converted to itself: it is replaced atomically.
    place.good(&[
        "convert",
        "whole.safetensors",
        "whole.safetensors",
        "--dtype",
        "f64",
        "--keep-dtype",
        "*steps",
    ]);
    place.good(&[
        "diff",
        "--dtype",
        "f64",
        "--keep-dtype",
        "*steps",
        "whole.safetensors",
        "hub",
    ]);
}

/// llama.cpp takes shard numbers from metadata, and rejects a single file with shard numbers.
#[test]
fn models_of_gguf_in_many_files() {
    let place = TestDir::new();
    place.write(
        "whole.gguf",
        &[("general.name", "tiny"), ("general.file_type", "1")],
        &[("model.embed", &matrix()), ("model.steps", &vector())],
    );
    let told = place.good(&["split", "whole.gguf", "out/", "--max-shard-size", "24"]);
    assert_eq!(told, "2 files\n");
    let parts = ["out/model-00001-of-00002.gguf", "out/model-00002-of-00002.gguf"];
    let metadata = |file: &str| place.inspect(file)["metadata"].clone();
    assert_eq!(metadata(parts[1])["split.no"], "1");
    let whole = metadata("whole.gguf");
    assert_eq!(metadata("out"), whole);
    place.good(&["diff", "--metadata", "whole.gguf", "out"]);
    for (number, from) in [&["out"][..], &["out/model.gguf"], &parts]
        .into_iter()
        .enumerate()
    {
        let merged = format!("{number}.gguf");
        let told = place.good(&[&["merge"], from, &["-o", &merged, "--strict"]].concat());
        assert_eq!(told, "");
        assert_eq!(metadata(&merged), whole);
        place.good(&["diff", "whole.gguf", &merged]);
    }
    place.good(&["rename", "out", "model.steps", "steps"]);
    assert!(place.good(&["inspect", "out"]).contains("\nsteps "));
    assert!(
        place
            .bad(&["rename", "out", "steps", "model.embed"])
            .contains("taken")
    );
    fs::remove_file(place.path(parts[0])).unwrap();
    assert!(
        place
            .bad(&["inspect", "out"])
            .contains(&format!("expected '{}' as well", &parts[0][4..]))
    );
}

/// Tied weights are stored once if the format supports it, and otherwise duplicated with a note.
#[test]
fn tied_weights_are_not_doubled_without_a_word() {
    let place = TestDir::new();
    place.write("v.zt", &[], &[("whole", &matrix())]);
    let own = fs::read(place.path("v.zt")).unwrap().len();
    let mut writer = fmt_ztensor::ZtensorEditor::open(place.path("v.zt"))
        .unwrap()
        .append()
        .unwrap();
    let spec = tensor_core::TensorSpec::new(tensor_core::DType::F32, Shape::new(&[2, 3]).unwrap()).unwrap();
    writer.alias("again", &spec, "whole").unwrap();
    writer.finish().unwrap().persist().unwrap();
    assert_eq!(place.good(&["convert", "v.zt", "copy.zt", "--compress"]), "");
    assert!(fs::read(place.path("copy.zt")).unwrap().len() < own + 200);
    place.good(&["diff", "v.zt", "copy.zt"]);
    assert_eq!(
        place.good(&["convert", "copy.zt", "copy.safetensors"]),
        "written again, since the format cannot share bytes: 'again' with 'whole', 24 B together\n"
    );
    let report = place.good(&["convert", "copy.zt", "copy.npz", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["losses"][0]["kind"], "sharing");
}

/// PyTorch checkpoints consist of pickled shards and an index, whose total size may be a float.
#[test]
fn checkpoints_of_pytorch_are_read() {
    let place = TestDir::new();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fmt-torch/tests/corpus");
    fs::create_dir(place.path("hub")).unwrap();
    let (mut map, mut total) = (serde_json::Map::new(), 0.0);
    for (number, source) in ["state.pt", "one.pt"].into_iter().enumerate() {
        let file = format!("pytorch_model-{:05}-of-00002.bin", number + 1);
        fs::copy(corpus.join(source), place.path("hub").join(&file)).unwrap();
        for tensor in place.inspect(&format!("hub/{file}"))["tensors"]
            .as_array()
            .unwrap()
        {
            map.insert(tensor["name"].as_str().unwrap().to_owned(), json!(file));
            total += tensor["data_bytes"].as_f64().unwrap();
        }
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    fs::write(place.path("hub/pytorch_model.bin.index.json"), index.to_string()).unwrap();
    place.good(&["convert", "hub", "model.safetensors"]);
    assert_eq!(place.good(&["diff", "hub", "model.safetensors"]), "");
    assert_eq!(
        place.inspect("model.safetensors")["tensors"]
            .as_array()
            .unwrap()
            .len(),
        8
    );
    // If a directory has both PyTorch and safetensors files, safetensors takes precedence, as in Hugging
    // Face's libraries.
    fs::rename(
        place.path("model.safetensors"),
        place.path("hub/model.safetensors"),
    )
    .unwrap();
    assert_eq!(place.inspect("hub")["format"], "safetensors");
}

#[cfg(unix)]
#[test]
fn what_is_made_of_private_files_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let place = TestDir::new();
    folder(&place);
    let second = place.path("hub/model-00002-of-00002.safetensors");
    fs::set_permissions(second, fs::Permissions::from_mode(0o600)).unwrap();
    place.good(&["convert", "hub", "a.safetensors"]);
    place.good(&["split", "hub", "out/", "--max-shard-size", "40"]);
    for name in [
        "a.safetensors",
        "out/model-00001-of-00002.safetensors",
        "out/model.safetensors.index.json",
    ] {
        let mode = fs::metadata(place.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn targets_of_many_files() {
    let place = TestDir::new();
    folder(&place);
    for (arguments, told) in [
        (
            &["convert", "whole.safetensors", "hub"][..],
            "expected the name of a file, or --max-shard-size",
        ),
        (&["split", "whole.safetensors", "-"], "standard output"),
        (
            &[
                "split",
                "whole.safetensors",
                ".",
                "--max-shard-size",
                "1",
                "--to",
                "npy",
            ],
            "names",
        ),
        (
            &[
                "split",
                "--no-clobber",
                "whole.safetensors",
                "hub",
                "--max-shard-size",
                "40",
            ],
            "must not be replaced",
        ),
    ] {
        let refused = place.bad(arguments);
        assert!(refused.contains(told), "{arguments:?}: {refused}");
    }
    // The base name selects another format.
    place.good(&["split", "hub", "out/weights.tbuf", "--max-shard-size", "40"]);
    assert!(place.path("out/weights-00001-of-00002.tbuf").exists());
    assert_eq!(place.run(&["diff", "hub", "out"]).code, 0);
    let report: Value = serde_json::from_str(&place.good(&[
        "split",
        "hub",
        "json/",
        "--to",
        "ztensor",
        "--max-shard-size",
        "40",
        "--json",
    ]))
    .unwrap();
    assert_eq!(report["files"][0]["file"], "json/model-00001-of-00002.zt");
    assert_eq!(report["index"], "json/model.zt.index.json");
    assert_eq!(report["losses"][0]["key"], "format");
    assert!(report["elapsed_ms"].is_number());
}

#[test]
fn dtypes_change_on_the_way() {
    let place = TestDir::new();
    folder(&place);
    place.good(&[
        "convert",
        "hub",
        "b.safetensors",
        "--dtype",
        "bf16",
        "--keep-dtype",
        "*steps",
    ]);
    let shown = place.inspect("b.safetensors");
    let dtypes: Vec<&str> = shown["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["dtype"].as_str().unwrap())
        .collect();
    assert_eq!(dtypes, ["bfloat16", "bfloat16", "int64"]);
    // 1 + 1/256 is halfway between two bfloat16 numbers and is rounded to the even one.
    place.good(&["extract", "b.safetensors", "model.norm", "-o", "norm.raw"]);
    let expected = [1.0, 1.0, -3.0]
        .map(|value| bf16::from_f32(value).to_le_bytes())
        .concat();
    assert_eq!(fs::read(place.path("norm.raw")).unwrap(), expected);
    place.good(&[
        "extract",
        "hub",
        "model.norm",
        "--dtype",
        "bf16",
        "-o",
        "norm.raw",
    ]);
    assert_eq!(fs::read(place.path("norm.raw")).unwrap(), expected);
    place.good(&[
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
    assert_eq!(place.inspect("rows.npy")["tensors"][0]["dtype"], "float64");
    let changed = [
        "diff",
        "--dtype",
        "bf16",
        "--keep-dtype",
        "*steps",
        "hub",
        "b.safetensors",
    ];
    assert_eq!(place.good(&changed), "");
    assert_eq!(place.run(&["diff", "hub", "b.safetensors"]).code, 1);

    // Out-of-range values are reported, and nothing is written.
    place.write("large.safetensors", &[], &[("w", &floats(&[1e30, 2.0, -7e4]))]);
    let refused = place.bad(&["convert", "large.safetensors", "h.safetensors", "--dtype", "f16"]);
    assert!(refused.contains("2 numbers of tensor 'w'"), "{refused}");
    assert!(!place.path("h.safetensors").exists());
    let told = place.good(&[
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
        place
            .bad(&[
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
    assert!(!place.path("x.raw").exists());
    // The command fails although it has already written bytes to standard output.
    place.write("positive.safetensors", &[], &[("w", &floats(&[1e30, 2.0, 7e4]))]);
    let run = place.run(&[
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
        place
            .run(&["convert", "a", "b", "--dtype", "i8"])
            .err
            .contains("expected f16")
    );
}

#[test]
fn tensors_are_chosen_and_renamed() {
    let place = TestDir::new();
    folder(&place);
    let names = |file: &str| -> Vec<String> {
        let shown = place.inspect(file);
        let tensors = shown["tensors"].as_array().unwrap().iter();
        tensors
            .map(|tensor| tensor["name"].as_str().unwrap().to_owned())
            .collect()
    };
    place.good(&[
        "convert",
        "hub",
        "a.safetensors",
        "--exclude",
        "*.steps",
        "--rename",
        "model.*=>*",
    ]);
    assert_eq!(names("a.safetensors"), ["embed", "norm"]);
    place.good(&[
        "extract",
        "hub",
        "--include",
        "re:(norm|steps)$",
        "-o",
        "b.safetensors",
    ]);
    assert_eq!(names("b.safetensors"), ["model.norm", "model.steps"]);
    // `hub` has the old names and `a.safetensors` the new ones, and the patterns match both.
    let same = place.good(&[
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
        let refused = place.bad(&["convert", "hub", "c.zt", pattern[0], pattern[1]]);
        assert!(refused.contains(told), "{refused}");
    }
    assert_eq!(place.run(&["convert", "hub", "c.zt", "--include", "[a"]).code, 2);
}

#[test]
fn manifests_are_the_same_for_the_same_tensors() {
    let place = TestDir::new();
    folder(&place);
    let manifest = place.good(&["manifest", "hub"]);
    place.good(&["convert", "whole.safetensors", "c.zt", "--compress"]);
    assert_eq!(place.good(&["manifest", "c.zt"]), manifest);
    let lines: Vec<&str> = manifest.lines().collect();
    assert_eq!(lines[0], "tensor-manifest 1 sha256");
    // Python: hashlib.sha256(struct.pack("<6f", 1, 0, -2.5, 0, 0, 4)).hexdigest()
    assert_eq!(
        lines[1],
        "f45438785a6f73aa2e75ae4e54892ccd73f7dbb399f36b8c46010972764aa7ce  f32  [3,2]  \"model.embed\""
    );
    assert!(lines[4].ends_with("  content"), "{manifest}");
    fs::write(place.path("m.txt"), &manifest).unwrap();
    fs::write(place.path("m.json"), place.good(&["manifest", "--json", "hub"])).unwrap();
    for file in ["m.txt", "m.json"] {
        assert!(
            place
                .good(&["verify", "--manifest", file, "hub", "c.zt"])
                .contains("c.zt: good")
        );
    }
    place.write(
        "d.safetensors",
        &[],
        &[
            ("model.embed", &matrix()),
            ("model.norm", &floats(&[1.0, 1.0, -3.0])),
        ],
    );
    let run = place.run(&["verify", "--manifest", "m.txt", "d.safetensors"]);
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
    fs::write(place.path("m.txt"), manifest.replace("f32", "f64")).unwrap();
    assert!(
        place
            .bad(&["verify", "--manifest", "m.txt", "hub"])
            .starts_with("error[Corrupt]: m.txt")
    );

    let sums = place.good(&["manifest", "--files", "hub"]);
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
    let place = TestDir::new();
    folder(&place);
    place.write("other.zt", &[], &[("model.embed", &matrix())]);
    assert_eq!(place.run(&["diff", "hub", "whole.safetensors"]).code, 0);
    assert_eq!(place.run(&["diff", "hub", "other.zt"]).code, 1);
    assert_eq!(place.run(&["diff", "hub", "nothing.zt"]).code, 2);
    let told: Value = serde_json::from_str(&place.run(&["diff", "--json", "hub", "other.zt"]).out).unwrap();
    assert_eq!(told["is_same"], false);
    assert_eq!(told["differences"][0]["kind"], "only_in_first");
    assert_eq!(told["notes"][0]["key"], "format");
    let run = place.run(&["diff", "--json", "hub", "nothing.zt"]);
    let told: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, &told["error"]["kind"]), (2, &json!("Io")));
    assert_eq!(told["error"]["file"], "nothing.zt");
}

#[test]
fn programs_are_told_in_json() {
    let place = TestDir::new();
    folder(&place);
    let told = |arguments: &[&str]| -> Vec<Value> {
        let run = place.run(arguments);
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
    let size = fs::metadata(place.path("a.zt")).unwrap().len();
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
    place.write("nan.npy", &[], &[("0", &floats(&[f32::INFINITY, f32::NAN]))]);
    place.write("zero.npy", &[], &[("0", &floats(&[0.0, 0.0]))]);
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
    let place = TestDir::new();
    place.write("a.safetensors", &[("license", "MIT")], &[("a", &matrix())]);
    place.write("b.safetensors", &[("license", "GPL")], &[("b", &matrix())]);
    let told = place.good(&["merge", "-o", "c.safetensors", "a.safetensors", "b.safetensors"]);
    assert_eq!(
        told,
        "dropped metadata: 'license' of b.safetensors: an earlier file has another value\n"
    );
    assert_eq!(place.inspect("c.safetensors")["metadata"]["license"], "MIT");
    let refused = place.bad(&[
        "merge",
        "--strict",
        "-o",
        "d.safetensors",
        "a.safetensors",
        "b.safetensors",
    ]);
    assert!(refused.contains("different values for 'license'"), "{refused}");
}

/// Writes a GGUF file: 64 elements of `Q8_0` with scales 0.5 and 2 as two rows, 512 of `Q4_K`, 256 of `Q1_0`,
/// and plain floats.
fn quantised(place: &TestDir, name: &str) {
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
    fs::write(place.path(name), file).unwrap();
}

#[test]
fn quantised_blocks_become_floats_where_they_are_understood() {
    let place = TestDir::new();
    quantised(&place, "q.gguf");
    let f32s = |name: &str| -> Vec<f32> {
        place.good(&["extract", "f.safetensors", name, "-o", "x.raw"]);
        let raw = fs::read(place.path("x.raw")).unwrap();
        raw.as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    };
    // Blocks of a type without a decoder are reported, and nothing is written.
    let refused = place.bad(&["convert", "q.gguf", "f.safetensors", "--dtype", "f32"]);
    for words in ["'q1'", "Q1_0", "--keep-dtype"] {
        assert!(refused.contains(words), "{refused}");
    }
    // Blocks without a decoder can be excluded, or kept if the target format supports them.
    let refused = place.bad(&[
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
    assert!(!place.path("f.safetensors").exists());
    place.good(&[
        "convert",
        "q.gguf",
        "kept.gguf",
        "--dtype",
        "f16",
        "--keep-dtype",
        "{q1,q4k}",
    ]);
    let dtypes = |file: &str| -> Vec<String> {
        let shown = place.inspect(file);
        let tensors = shown["tensors"].as_array().unwrap();
        tensors
            .iter()
            .map(|t| t["dtype"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(dtypes("q.gguf"), ["Q8_0", "Q4_K", "Q1_0", "float32"]);
    assert_eq!(dtypes("kept.gguf"), ["float16", "Q4_K", "Q1_0", "float16"]);

    let floats = ["--dtype", "f32", "--exclude", "q1"];
    place.good(&[&["convert", "q.gguf", "f.safetensors"], &floats[..]].concat());
    let expected = |scale: f32| (0..32).map(move |i| scale * i as f32);
    assert_eq!(f32s("q8"), expected(0.5).chain(expected(2.0)).collect::<Vec<_>>());
    assert_eq!(f32s("q4k").len(), 512);
    assert_eq!(f32s("norm"), matrix().to_vec::<f32>().unwrap());

    // Every command computes with the same dequantised numbers.
    assert_eq!(
        place.good(&[&["diff", "q.gguf", "f.safetensors"], &floats[..]].concat()),
        ""
    );
    assert_eq!(
        place.good(&[&["diff", "f.safetensors", "q.gguf"], &floats[..]].concat()),
        ""
    );
    let manifest = place.good(&[&["manifest", "q.gguf"], &floats[..]].concat());
    assert_eq!(manifest, place.good(&["manifest", "f.safetensors"]));
    place.good(&[&["merge", "q.gguf", "-o", "m.zt"], &floats[..]].concat());
    assert_eq!(place.good(&["diff", "m.zt", "f.safetensors"]), "");
    place.good(&["extract", "q.gguf", "q8", "--dtype", "f32", "-o", "whole.raw"]);
    place.good(&[
        "extract", "q.gguf", "q8", "--dtype", "f32", "--rows", "1:", "-o", "row.raw",
    ]);
    let [whole, row] = ["whole.raw", "row.raw"].map(|file| fs::read(place.path(file)).unwrap());
    assert_eq!(whole[128..], row);
    let shown = place.good(&[
        "extract", "q.gguf", "q8", "--dtype", "bf16", "--rows", "0:1", "-o", "row.npy",
    ]);
    assert_eq!(shown, "");
    // Quantised tensors can be split and merged unchanged.
    place.good(&["split", "q.gguf", "parts.gguf", "--max-shard-size", "100"]);
    assert_eq!(place.good(&["diff", "q.gguf", "parts.gguf"]), "");

    // With a scale of 60,000, 30 of the block's elements exceed the range of f16, and the error counts them.
    let mut file = fs::read(place.path("q.gguf")).unwrap();
    let at = file.windows(2).rposition(|two| two == [0x00, 0x40]).unwrap();
    file[at..at + 2].copy_from_slice(&0x7B53_u16.to_le_bytes());
    fs::write(place.path("large.gguf"), file).unwrap();
    let halves = [
        "convert",
        "large.gguf",
        "h.safetensors",
        "--include",
        "q8",
        "--dtype",
        "f16",
    ];
    let refused = place.bad(&halves);
    assert!(refused.contains("30 numbers of tensor 'q8'"), "{refused}");
    assert!(!place.path("h.safetensors").exists());
    place.good(&[&halves[..], &["--allow-loss=range"]].concat());
}
