//! `rename` and `set`, and the program's help.

use std::fs;

use tensor_core::{Shape, Tensor};

use crate::support::{TestDir, matrix, vector};

#[test]
fn names_change_and_content_stays() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    let before = dir.inspect("a.tbuf")["tensors"][0]["sha256"].clone();
    dir.good(&["rename", "a.tbuf", "w", "weight"]);
    let after = dir.inspect("a.tbuf")["tensors"][0].clone();
    assert_eq!((&after["name"], &after["sha256"]), (&"weight".into(), &before));
    let refused = dir.bad(&["rename", "a.tbuf", "w", "x"]);
    assert!(
        refused.starts_with("error[") && refused.contains("'w'"),
        "{refused}"
    );
}

#[test]
fn a_file_says_what_is_set() {
    let dir = TestDir::new();
    dir.write("a.tbuf", &[], &[("w", &matrix())]);
    dir.good(&["set", "a.tbuf", "model=tiny"]);
    assert_eq!(dir.inspect("a.tbuf")["metadata"]["model"], "tiny");
    dir.good(&["set", "a.tbuf", "model="]);
    assert_eq!(dir.inspect("a.tbuf")["metadata"], serde_json::json!({}));
    assert!(
        dir.bad(&["set", "a.tbuf", "licence=MIT"])
            .contains("expected 'model'")
    );
}

#[test]
fn ztensor_files_are_edited_too() {
    let dir = TestDir::new();
    dir.write("a.zt", &[], &[("w", &matrix())]);
    let before = dir.inspect("a.zt")["tensors"][0]["sha256"].clone();
    dir.good(&["rename", "a.zt", "w", "weight"]);
    dir.good(&["set", "a.zt", "--tensor", "weight", "unit=metres"]);
    let after = dir.inspect("a.zt")["tensors"][0].clone();
    assert_eq!((&after["name"], &after["sha256"]), (&"weight".into(), &before));
    assert!(after["attributes"]["unit"].as_str().unwrap().contains("metres"));
    dir.good(&["set", "a.zt", "--tensor", "weight", "unit="]);
    assert!(dir.inspect("a.zt")["tensors"][0].get("attributes").is_none());
}

/// Edits leave the data of the file in place and append a new index.
#[test]
fn an_index_at_the_end_is_written_behind_the_old_one() {
    let dir = TestDir::new();
    for name in ["a.tbuf", "a.zt"] {
        dir.write(name, &[], &[("w", &matrix())]);
        let before = fs::read(dir.path(name)).unwrap();
        dir.good(&["rename", name, "w", "weight"]);
        let after = fs::read(dir.path(name)).unwrap();
        assert_eq!(after[..before.len()], before, "{name}");
        // An interrupted edit is rolled back before the next edit.
        fs::write(
            dir.path(&format!("{name}.append-journal")),
            format!("{}\n", after.len()),
        )
        .unwrap();
        fs::write(dir.path(name), [&after[..], b"torn"].concat()).unwrap();
        dir.good(&["rename", name, "weight", "w"]);
        assert_eq!(dir.inspect(name)["tensors"][0]["name"], "w");
    }
}

#[cfg(unix)]
#[test]
fn an_index_at_the_beginning_is_written_over_where_there_is_room() {
    use std::os::unix::fs::MetadataExt;

    let dir = TestDir::new();
    let inode = |name: &str| std::fs::metadata(dir.path(name)).unwrap().ino();
    dir.write("a.safetensors", &[], &[("w", &matrix())]);
    let license = format!("license={}", "many words ".repeat(20));
    dir.good(&["set", "a.safetensors", &license]);
    // The rewritten file has spare room, so the next edits happen in place.
    let before = inode("a.safetensors");
    dir.good(&["set", "a.safetensors", "format=pt"]);
    dir.good(&["rename", "a.safetensors", "w", "weight"]);
    assert_eq!(inode("a.safetensors"), before);
    assert_eq!(dir.inspect("a.safetensors")["tensors"][0]["name"], "weight");

    // Values that are set in a GGUF file keep their types.
    dir.write("b.gguf", &[("general.file_type", "7")], &[("w", &matrix())]);
    let before = inode("b.gguf");
    dir.good(&["set", "b.gguf", "general.file_type=8"]);
    assert_eq!(inode("b.gguf"), before);
    let refused = dir.bad(&["set", "b.gguf", "general.file_type=eight"]);
    assert!(refused.contains("u32"), "{refused}");
    assert_eq!(dir.inspect("b.gguf")["metadata"]["general.file_type"], "8");
}

#[test]
fn formats_with_a_fixed_index_are_edited_too() {
    let dir = TestDir::new();
    dir.write(
        "a.safetensors",
        &[("license", "MIT")],
        &[("w", &matrix()), ("v", &matrix())],
    );
    let before = dir.inspect("a.safetensors")["tensors"][0]["sha256"].clone();
    dir.good(&["rename", "a.safetensors", "w", "x"]);
    dir.good(&["set", "a.safetensors", "format=pt"]);
    dir.good(&["set", "a.safetensors", "license="]);
    let after = dir.inspect("a.safetensors");
    assert_eq!(after["metadata"], serde_json::json!({"format": "pt"}));
    let names: Vec<_> = after["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| &tensor["name"])
        .collect();
    assert!(
        names.contains(&&"x".into()) && names.contains(&&"v".into()),
        "{names:?}"
    );
    assert_eq!(after["tensors"][0]["sha256"], before);
    assert!(dir.bad(&["rename", "a.safetensors", "x", "v"]).contains("taken"));
}

#[test]
fn completions_and_manual_pages_are_written() {
    let dir = TestDir::new();
    let script = dir.good(&["completions", "bash"]);
    assert!(script.contains("_tensor()"));
    for values in ["f16 bf16 f32 f64", "gguf npy npz safetensors"] {
        assert!(script.contains(values), "{values}");
    }
    dir.good(&["man", "pages"]);
    let page = fs::read_to_string(dir.path("pages/tensor-inspect.1")).unwrap();
    assert!(page.contains("sha256"));
    let footer = concat!("\"tensor ", env!("CARGO_PKG_VERSION"), "\"");
    assert!(
        page.lines()
            .any(|line| line.starts_with(".TH") && line.contains(footer)),
        "{page}"
    );
}

/// Options known from other programs get a tip.
#[test]
fn unknown_options_are_told_with_what_may_have_been_meant() {
    let dir = TestDir::new();
    for (arguments, tip) in [
        (
            &["ls", "http://127.0.0.1:9"][..],
            Some("tip: the server's URL has an option: 'tensor ls --url http://127.0.0.1:9'"),
        ),
        (
            &["--lenient", "show", "--model", "digits"],
            Some("tip: the model's name needs no option: 'tensor show MODEL'"),
        ),
        (
            &["convert", "a.npy", "b.zt", "--force"],
            Some("tip: an existing file is replaced, unless '--no-clobber' is given"),
        ),
        (
            &["inspect", "a.npy", "--jsno"],
            Some("tip: a similar argument exists: '--json'"),
        ),
        (&["inspect", "a.npy", "--colour"], None),
    ] {
        let run = dir.run(arguments);
        assert_eq!(run.code, 2, "{}", run.err);
        let found = run
            .err
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("tip:"));
        assert_eq!(found, tip, "{}", run.err);
    }
}

#[test]
fn a_missing_folder_of_a_file_to_write_is_named() {
    let dir = TestDir::new();
    dir.write("a.npy", &[], &[("0", &vector())]);
    let line = dir.bad(&["convert", "a.npy", "no/dir/out.zt"]);
    assert!(
        line.ends_with("the directory 'no/dir' does not exist: create it first"),
        "{line}"
    );
}

#[test]
fn a_repository_of_models_is_told_with_a_file_of_it() {
    let dir = TestDir::new();
    fs::create_dir_all(dir.path("shop/digits/1")).unwrap();
    dir.write("shop/digits/1/model.npy", &[], &[("0", &vector())]);
    let line = dir.bad(&["inspect", "shop"]);
    let file = "as a model repository it has shop/digits/1/model.npy, which can be given directly";
    assert!(
        line.contains("no checkpoint in the directory") && line.ends_with(file),
        "{line}"
    );
    fs::create_dir(dir.path("empty")).unwrap();
    let line = dir.bad(&["inspect", "empty"]);
    assert!(
        line.ends_with("expected a tensor file, or files and their index"),
        "{line}"
    );
}

/// `put` replaces a tensor and `append` adds one; neither copies the metadata of the source file.
#[test]
fn one_tensor_is_put_and_appended() {
    let dir = TestDir::new();
    let double = Tensor::from_vec(Shape::vector(2), vec![1.5f64, -2.5]).unwrap();
    dir.write("new.npy", &[], &[("0", &double)]);
    dir.write(
        "two.safetensors",
        &[("license", "GPL")],
        &[("w", &double), ("v", &vector())],
    );
    for name in ["a.safetensors", "a.zt", "a.npz"] {
        dir.write(name, &[], &[("w", &matrix()), ("steps", &vector())]);
        assert_eq!(dir.good(&["put", name, "w", "new.npy"]), "");
        assert_eq!(
            dir.good(&["append", name, "more", "two.safetensors", "--tensor", "v"]),
            ""
        );
        let shown = dir.inspect(name);
        let tensors = shown["tensors"].as_array().unwrap();
        let mut found: Vec<_> = tensors
            .iter()
            .map(|tensor| {
                format!(
                    "{} {}",
                    tensor["name"].as_str().unwrap(),
                    tensor["dtype"].as_str().unwrap()
                )
            })
            .collect();
        found.sort();
        assert_eq!(found, ["more int64", "steps int64", "w float64"], "{name}");
        assert_eq!(shown["metadata"].as_object().unwrap().len(), 0, "{name}");
        let again = dir.bad(&["append", name, "more", "new.npy"]);
        assert!(again.contains("a tensor with this name exists"), "{again}");
        let which = dir.bad(&["put", name, "more", "two.safetensors"]);
        assert!(
            which.contains("--tensor NAME") && which.contains("2 tensors"),
            "{which}"
        );
    }
}

/// `tensor index` reports an index that does not match its shards, and with `--write` rewrites it or writes a
/// missing one.
#[test]
fn an_index_is_written_anew() {
    let dir = TestDir::new();
    dir.write(
        "a.safetensors",
        &[("format", "pt")],
        &[("w", &matrix()), ("steps", &vector())],
    );
    dir.good(&["split", "a.safetensors", "out/", "--max-shard-size", "24B"]);
    let path = dir.path("out/model.safetensors.index.json");
    assert!(dir.good(&["index", "out"]).contains("fits the files"));
    let right = std::fs::read(&path).unwrap();

    // Adds a tensor to the first shard; the index does not list it.
    dir.good(&[
        "append",
        "out/model-00001-of-00002.safetensors",
        "new",
        "a.safetensors",
        "--tensor",
        "steps",
    ]);
    let told = dir.run(&["index", "out"]);
    assert_eq!((told.code, std::fs::read(&path).unwrap()), (1, right));
    assert!(told.out.contains("does not fit the files"), "{}", told.out);
    assert!(
        dir.good(&["index", "out", "--write"])
            .ends_with("does not fit the files: written\n")
    );
    assert_eq!(dir.inspect("out")["tensors"].as_array().unwrap().len(), 3);

    std::fs::remove_file(&path).unwrap();
    assert!(
        dir.good(&["index", "out", "--write"])
            .ends_with("is missing: written\n")
    );
    assert!(
        dir.good(&["index", "out", "--write"])
            .ends_with("fits the files\n")
    );
    std::fs::remove_file(dir.path("out/model-00002-of-00002.safetensors")).unwrap();
    let missing = dir.bad(&["index", "out", "--write"]);
    assert!(
        missing.contains("'model-00002-of-00002.safetensors'"),
        "{missing}"
    );
}
