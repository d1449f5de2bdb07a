//! Sharded Hugging Face checkpoints, and checkpoints of many files in other formats.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tensor_core::{Shape, Tensor};

use crate::support::{TestDir, matrix, vector};

pub(crate) fn floats(values: &[f32]) -> Tensor {
    Tensor::from_vec(Shape::vector(values.len() as u64), values.to_vec()).unwrap()
}

/// Writes a directory with a configuration, two shards and an index.
pub(crate) fn folder(dir: &TestDir) {
    dir.write(
        "whole.safetensors",
        &[("format", "pt")],
        &[
            ("model.embed", &matrix()),
            ("model.norm", &floats(&[1.0, 1.0 + 1.0 / 256.0, -3.0])),
            ("model.steps", &vector()),
        ],
    );
    dir.good(&["split", "whole.safetensors", "hub/", "--max-shard-size", "40"]);
    fs::write(dir.path("hub/config.json"), "{}").unwrap();
    fs::write(dir.path("hub/tokenizer.json"), "{}").unwrap();
}

#[test]
fn a_folder_is_a_file_for_every_command() {
    let dir = TestDir::new();
    folder(&dir);
    let index = "hub/model.safetensors.index.json";
    let second = "hub/model-00002-of-00002.safetensors";
    assert!(dir.path(index).exists() && dir.path(second).exists());
    for whole in ["hub", "hub/", index] {
        assert_eq!(dir.good(&["diff", "whole.safetensors", whole]), "", "{whole}");
        let shown = dir.good(&["inspect", whole]);
        assert!(shown.contains(": safetensors, 2 files, "), "{shown}");
        assert!(
            shown.contains("FILE\n") && shown.contains("  model-00002-of-00002.safetensors\n"),
            "{shown}"
        );
        assert!(
            dir.good(&["verify", whole])
                .contains(": good: safetensors, 3 tensors")
        );
    }
    let shown = dir.inspect("hub");
    assert_eq!(shown["tensors"][2]["file"], second);
    let sizes = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    .map(|name| fs::metadata(dir.path("hub").join(name)).unwrap().len());
    let index_size = fs::metadata(dir.path(index)).unwrap().len();
    assert_eq!(shown["file_bytes"], sizes[0] + sizes[1] + index_size);
    dir.good(&["convert", "hub", "one.zt"]);
    dir.good(&["merge", "hub", "-o", "merged.safetensors"]);
    assert_eq!(
        dir.good(&["diff", "--metadata", "merged.safetensors", "whole.safetensors"]),
        ""
    );
    dir.good(&["extract", "hub", "model.steps", "-o", "steps.npy"]);
    assert_eq!(dir.inspect("steps.npy")["tensors"][0]["shape"], json!([4]));
    // A different split into the same directory removes the shards of the old one.
    dir.good(&["split", "hub", "copy/", "--max-shard-size", "40"]);
    let told = dir.good(&[
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
    assert!(!dir.path("copy/model-00002-of-00002.safetensors").exists());
    assert_eq!(dir.good(&["diff", "whole.safetensors", "copy"]), "");
    // A rename changes the shard and the index.
    dir.good(&["rename", "hub", "model.steps", "steps"]);
    assert!(dir.good(&["inspect", "hub"]).contains("\nsteps "));
    assert!(
        dir.bad(&["rename", "hub", "steps", "model.norm"])
            .contains("taken")
    );
    assert!(
        dir.bad(&["set", "hub", "a=b"])
            .contains("one file of the checkpoint")
    );
    // The shards form a checkpoint even without an index.
    fs::remove_file(dir.path(index)).unwrap();
    let run = dir.run(&["diff", "hub", "hub/model.safetensors"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.starts_with("note: hub: no index lists"), "{}", run.err);
    // An incomplete directory is not a checkpoint.
    fs::remove_file(dir.path("hub/model-00001-of-00002.safetensors")).unwrap();
    let refused = dir.bad(&["inspect", "hub"]);
    assert!(
        refused.contains("not complete") && refused.contains("model-00001-of-00002.safetensors"),
        "{refused}"
    );
}

/// A checkpoint cannot be split into its own directory: a process that is killed while it renames the shards
/// would leave neither the old checkpoint nor the new one.
#[test]
fn a_checkpoint_is_not_divided_into_its_own_files() {
    let dir = TestDir::new();
    folder(&dir);
    let first = "hub/model-00001-of-00002.safetensors";
    #[cfg(unix)]
    std::os::unix::fs::symlink("hub", dir.path("link")).unwrap();
    let names = || {
        let entries = fs::read_dir(dir.path("hub")).unwrap();
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
        let refused = dir.bad(arguments);
        assert!(
            refused.contains("expected another directory") && refused.contains("which is read"),
            "{arguments:?}: {refused}"
        );
        assert_eq!(names(), before);
        assert_eq!(dir.good(&["diff", "whole.safetensors", "hub"]), "");
    }
    // A single file may be converted to itself: it is replaced atomically.
    dir.good(&[
        "convert",
        "whole.safetensors",
        "whole.safetensors",
        "--dtype",
        "f64",
        "--keep-dtype",
        "*steps",
    ]);
    dir.good(&[
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
    let dir = TestDir::new();
    dir.write(
        "whole.gguf",
        &[("general.name", "tiny"), ("general.file_type", "1")],
        &[("model.embed", &matrix()), ("model.steps", &vector())],
    );
    let told = dir.good(&["split", "whole.gguf", "out/", "--max-shard-size", "24"]);
    assert_eq!(told, "2 files\n");
    let parts = ["out/model-00001-of-00002.gguf", "out/model-00002-of-00002.gguf"];
    let metadata = |file: &str| dir.inspect(file)["metadata"].clone();
    assert_eq!(metadata(parts[1])["split.no"], "1");
    let whole = metadata("whole.gguf");
    assert_eq!(metadata("out"), whole);
    dir.good(&["diff", "--metadata", "whole.gguf", "out"]);
    for (number, from) in [&["out"][..], &["out/model.gguf"], &parts]
        .into_iter()
        .enumerate()
    {
        let merged = format!("{number}.gguf");
        let told = dir.good(&[&["merge"], from, &["-o", &merged, "--strict"]].concat());
        assert_eq!(told, "");
        assert_eq!(metadata(&merged), whole);
        dir.good(&["diff", "whole.gguf", &merged]);
    }
    dir.good(&["rename", "out", "model.steps", "steps"]);
    assert!(dir.good(&["inspect", "out"]).contains("\nsteps "));
    assert!(
        dir.bad(&["rename", "out", "steps", "model.embed"])
            .contains("taken")
    );
    fs::remove_file(dir.path(parts[0])).unwrap();
    assert!(
        dir.bad(&["inspect", "out"])
            .contains(&format!("expected '{}' as well", &parts[0][4..]))
    );
}

/// Tied weights are stored once if the format supports it, and otherwise duplicated with a note.
#[test]
fn tied_weights_are_not_doubled_without_a_word() {
    let dir = TestDir::new();
    dir.write("v.zt", &[], &[("whole", &matrix())]);
    let own = fs::read(dir.path("v.zt")).unwrap().len();
    let mut writer = fmt_ztensor::ZtensorEditor::open(dir.path("v.zt"))
        .unwrap()
        .append()
        .unwrap();
    let spec = tensor_core::TensorSpec::new(tensor_core::DType::F32, Shape::new(&[2, 3]).unwrap()).unwrap();
    writer.alias("again", &spec, "whole").unwrap();
    writer.finish().unwrap().persist().unwrap();
    assert_eq!(dir.good(&["convert", "v.zt", "copy.zt", "--compress"]), "");
    assert!(fs::read(dir.path("copy.zt")).unwrap().len() < own + 200);
    dir.good(&["diff", "v.zt", "copy.zt"]);
    assert_eq!(
        dir.good(&["convert", "copy.zt", "copy.safetensors"]),
        "written again, since the format cannot share bytes: 'again' with 'whole', 24 B together\n"
    );
    let report = dir.good(&["convert", "copy.zt", "copy.npz", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["losses"][0]["kind"], "sharing");
}

/// PyTorch checkpoints consist of pickled shards and an index, whose total size may be a float.
#[test]
fn checkpoints_of_pytorch_are_read() {
    let dir = TestDir::new();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fmt-torch/tests/corpus");
    fs::create_dir(dir.path("hub")).unwrap();
    let (mut map, mut total) = (serde_json::Map::new(), 0.0);
    for (number, source) in ["state.pt", "one.pt"].into_iter().enumerate() {
        let file = format!("pytorch_model-{:05}-of-00002.bin", number + 1);
        fs::copy(corpus.join(source), dir.path("hub").join(&file)).unwrap();
        for tensor in dir.inspect(&format!("hub/{file}"))["tensors"].as_array().unwrap() {
            map.insert(tensor["name"].as_str().unwrap().to_owned(), json!(file));
            total += tensor["data_bytes"].as_f64().unwrap();
        }
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    fs::write(dir.path("hub/pytorch_model.bin.index.json"), index.to_string()).unwrap();
    dir.good(&["convert", "hub", "model.safetensors"]);
    assert_eq!(dir.good(&["diff", "hub", "model.safetensors"]), "");
    assert_eq!(
        dir.inspect("model.safetensors")["tensors"]
            .as_array()
            .unwrap()
            .len(),
        8
    );
    // If a directory has both PyTorch and safetensors files, safetensors takes precedence, as in Hugging
    // Face's libraries.
    fs::rename(dir.path("model.safetensors"), dir.path("hub/model.safetensors")).unwrap();
    assert_eq!(dir.inspect("hub")["format"], "safetensors");
}

#[cfg(unix)]
#[test]
fn what_is_made_of_private_files_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TestDir::new();
    folder(&dir);
    let second = dir.path("hub/model-00002-of-00002.safetensors");
    fs::set_permissions(second, fs::Permissions::from_mode(0o600)).unwrap();
    dir.good(&["convert", "hub", "a.safetensors"]);
    dir.good(&["split", "hub", "out/", "--max-shard-size", "40"]);
    for name in [
        "a.safetensors",
        "out/model-00001-of-00002.safetensors",
        "out/model.safetensors.index.json",
    ] {
        let mode = fs::metadata(dir.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn targets_of_many_files() {
    let dir = TestDir::new();
    folder(&dir);
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
        let refused = dir.bad(arguments);
        assert!(refused.contains(told), "{arguments:?}: {refused}");
    }
    // The base name selects another format.
    dir.good(&["split", "hub", "out/weights.tbuf", "--max-shard-size", "40"]);
    assert!(dir.path("out/weights-00001-of-00002.tbuf").exists());
    assert_eq!(dir.run(&["diff", "hub", "out"]).code, 0);
    let report: Value = serde_json::from_str(&dir.good(&[
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
