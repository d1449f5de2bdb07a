//! `inspect`, `verify` and `diff`.

use std::{fs, path::Path};

use serde_json::json;
use tensor_core::{Shape, Tensor};

use crate::support::{TestDir, matrix, vector};

#[test]
fn inspect_shows_a_table() {
    let dir = TestDir::new();
    dir.write(
        "a.tbuf",
        &[("model", "tiny")],
        &[("layer.weight", &matrix()), ("steps", &vector())],
    );
    let shown = dir.good(&["inspect", "a.tbuf"]);
    assert!(shown.starts_with("a.tbuf: tbuf, "), "{shown}");
    assert!(shown.contains("  model: tiny\n"), "{shown}");
    assert!(
        shown.contains("\nlayer.weight  float32  [3, 2]  raw     24 B"),
        "{shown}"
    );
    assert!(
        shown.contains("\nsteps         int64    [4]     raw     32 B"),
        "{shown}"
    );
}

/// Values can be as large as the file: the text output shows only the beginning, and JSON contains
/// everything.
#[test]
fn inspect_shortens_long_metadata() {
    let dir = TestDir::new();
    let tokens = "ä".repeat(600);
    dir.write("a.safetensors", &[("tokens", &tokens)], &[("w", &matrix())]);
    let shown = dir.good(&["inspect", "a.safetensors"]);
    let expected = format!(
        "  tokens: {}… (100 characters more; --json has them)\n",
        "ä".repeat(500)
    );
    assert!(shown.contains(&expected), "{shown}");
    assert_eq!(dir.inspect("a.safetensors")["metadata"]["tokens"], tokens);
}

#[test]
fn inspect_gives_json() {
    let dir = TestDir::new();
    dir.write("a.safetensors", &[("license", "MIT")], &[("w", &matrix())]);
    let shown = dir.inspect("a.safetensors");
    assert_eq!(shown["format"], "safetensors");
    assert_eq!(shown["metadata"], json!({"license": "MIT"}));
    assert_eq!(
        shown["file_bytes"],
        fs::metadata(dir.path("a.safetensors")).unwrap().len()
    );
    let tensor = &shown["tensors"][0];
    // Python: hashlib.sha256(struct.pack("<6f", 1, 0, -2.5, 0, 0, 4)).hexdigest()
    assert_eq!(
        tensor["sha256"],
        "f45438785a6f73aa2e75ae4e54892ccd73f7dbb399f36b8c46010972764aa7ce"
    );
    for (key, value) in [
        ("index", json!(0)),
        ("name", json!("w")),
        ("dtype", json!("float32")),
        ("shape", json!([3, 2])),
        ("layout", json!("dense")),
        ("encoding", json!("raw")),
        ("stored_bytes", json!(24)),
        ("data_bytes", json!(24)),
        ("checksum", json!(null)),
    ] {
        assert_eq!(tensor[key], value, "{key}");
    }
}

#[test]
fn inspect_tells_sparse_tensors() {
    let dir = TestDir::new();
    dir.write_sparse("a.btf");
    let shown = dir.inspect("a.btf");
    assert_eq!(shown["tensors"][1]["layout"], "coo");
    assert_eq!(shown["tensors"][1]["nnz"], 3);
    assert_eq!(shown["tensors"][1]["data_bytes"], 3 * (2 * 8 + 4));
    assert!(
        dir.good(&["inspect", "--values", "a.btf", "--tensor", "1"])
            .contains("indices\n[[0 0]\n [1 0]\n [2 1]]\nvalues\n")
    );
}

#[test]
fn inspect_sums_values_up() {
    let dir = TestDir::new();
    let values =
        Tensor::from_vec(Shape::vector(5), vec![1.0f32, f32::NAN, -3.0, 0.0, f32::INFINITY]).unwrap();
    dir.write("a.npy", &[], &[("0", &values)]);
    let shown: serde_json::Value =
        serde_json::from_str(&dir.good(&["inspect", "--json", "--stats", "a.npy"])).unwrap();
    let stats = &shown["tensors"][0]["stats"];
    assert_eq!(stats["min"], -3.0);
    assert_eq!(stats["nan"], 1);
    assert_eq!(stats["infinite"], 1);
    assert_eq!(stats["zero"], 1);
    assert!((stats["mean"].as_f64().unwrap() + 2.0 / 3.0).abs() < 1e-9);
    assert!(dir.good(&["inspect", "--stats", "a.npy"]).contains('█'));
}

#[test]
fn unknown_tensors_are_told_with_a_guess() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("layer.0.weight", &matrix())]);
    assert_eq!(
        dir.bad(&["inspect", "a.tbuf", "--tensor", "weight"]),
        "error[OutOfBounds]: a.tbuf: tensor 'weight': there is no such tensor: expected perhaps 'layer.0.weight'"
    );
}

/// The program accepts the corpus files that the format's crate accepts, and rejects the others.
#[test]
fn corpora_are_judged_alike() {
    let dir = TestDir::new();
    let mut count = 0;
    for (format, accepted) in ["tbuf", "btf", "ztensor"]
        .into_iter()
        .flat_map(|format| [(format, true), (format, false)])
    {
        let side = if accepted { "accept" } else { "reject" };
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../fmt-{format}/tests/corpus/{side}"));
        for file in fs::read_dir(folder)
            .unwrap()
            .step_by(if accepted { 1 } else { 4 })
        {
            let path = file.unwrap().path();
            let path = path.to_str().unwrap();
            let run = dir.run(&["inspect", "--json", path]);
            if accepted {
                assert_eq!((run.code, &*run.err), (0, ""), "{path}");
            } else {
                assert_eq!(run.code, 1, "{path}");
                let told: serde_json::Value = serde_json::from_str(&run.out).unwrap();
                assert_eq!(told["error"]["file"], path);
                let start = format!("{path}: ");
                assert!(
                    run.err.starts_with("error[") && run.err.contains(&start),
                    "{}",
                    run.err
                );
                assert_eq!(run.err.lines().count(), 1, "{}", run.err);
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn verify_finds_damage_and_oddities() {
    let dir = TestDir::new();
    dir.write("good.tbuf", &[], &[("w", &matrix())]);
    assert!(
        dir.good(&["verify", "good.tbuf"])
            .contains("good.tbuf: good: tbuf, 1 tensor,")
    );
    let bytes = fs::read(dir.path("good.tbuf")).unwrap();
    fs::write(dir.path("cut.tbuf"), &bytes[..bytes.len() - 3]).unwrap();
    let run = dir.run(&["verify", "cut.tbuf", "good.tbuf"]);
    assert_eq!(run.code, 1);
    assert!(
        run.err.starts_with("error[") && run.err.contains("cut.tbuf: "),
        "{}",
        run.err
    );
    assert!(
        run.out.contains("good.tbuf: good"),
        "the others are looked at too: {}",
        run.out
    );
}

#[test]
fn diff_compares_across_formats() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix()), ("only.here", &vector())]);
    let changed = Tensor::from_vec(
        Shape::new(&[3, 2]).unwrap(),
        vec![1.0f32, 0.0, -2.5, 0.125, 0.0, 4.0],
    )
    .unwrap();
    dir.write("b.safetensors", &[], &[("w", &changed), ("there", &vector())]);
    let run = dir.run(&["diff", "a.tbuf", "b.safetensors"]);
    assert_eq!((run.code, &*run.err), (1, ""));
    assert_eq!(
        run.out,
        "tensor 'only.here' is only in the first file\n\
         tensor 'w' differs in 1 element, at most by 0.125, L2 0.125, relative 0.0259151, cosine 0.9996641\n\
         tensor 'there' is only in the second file\n"
    );
    dir.write("c.safetensors", &[], &[("only.here", &vector()), ("w", &changed)]);
    assert_eq!(
        dir.good(&["diff", "--atol", "0.2", "a.tbuf", "c.safetensors"]),
        ""
    );
    assert_eq!(
        dir.run(&["diff", "--atol", "0.1", "a.tbuf", "c.safetensors"])
            .code,
        1
    );
}

/// Colours and line width follow the terminal, which `CLICOLOR_FORCE` and `COLUMNS` simulate.
#[test]
fn help_has_the_terminals_colour_and_width() {
    let help = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tensor"));
        command.args(arguments).arg("--help");
        for name in ["CLICOLOR", "CLICOLOR_FORCE", "NO_COLOR", "COLUMNS"] {
            command.env_remove(name);
        }
        let output = command.envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for arguments in [&[][..], &["convert"], &["infer"]] {
        assert!(
            !help(arguments, &[]).contains('\x1b'),
            "{arguments:?}: colours in a pipe"
        );
        assert!(
            help(arguments, &[("CLICOLOR_FORCE", "1")]).contains("\x1b["),
            "{arguments:?}"
        );
        let both = [("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")];
        assert!(!help(arguments, &both).contains('\x1b'), "{arguments:?}");
    }
    let widest = |columns: &str| {
        let help = help(&["verify"], &[("COLUMNS", columns)]);
        help.lines().map(|line| line.chars().count()).max().unwrap()
    };
    assert!((41..=60).contains(&widest("60")), "{}", widest("60"));
    assert!((81..=100).contains(&widest("200")), "{}", widest("200"));
}
