//! `rename` and `set`, and what the program says of itself.

use std::fs;

use crate::support::{Place, matrix};

#[test]
fn names_change_and_content_stays() {
    let place = Place::new();
    place.write("a.tbuf", &[], &[("w", &matrix())]);
    let before = place.inspect("a.tbuf")["tensors"][0]["sha256"].clone();
    place.good(&["rename", "a.tbuf", "w", "weight"]);
    let after = place.inspect("a.tbuf")["tensors"][0].clone();
    assert_eq!((&after["name"], &after["sha256"]), (&"weight".into(), &before));
    let refused = place.bad(&["rename", "a.tbuf", "w", "x"]);
    assert!(
        refused.starts_with("error[") && refused.contains("'w'"),
        "{refused}"
    );
}

#[test]
fn a_file_says_what_is_set() {
    let place = Place::new();
    place.write("a.tbuf", &[], &[("w", &matrix())]);
    place.good(&["set", "a.tbuf", "model=tiny"]);
    assert_eq!(place.inspect("a.tbuf")["metadata"]["model"], "tiny");
    place.good(&["set", "a.tbuf", "model="]);
    assert_eq!(place.inspect("a.tbuf")["metadata"], serde_json::json!({}));
    assert!(
        place
            .bad(&["set", "a.tbuf", "licence=MIT"])
            .contains("expected 'model'")
    );
}

#[test]
fn ztensor_files_are_edited_too() {
    let place = Place::new();
    place.write("a.zt", &[], &[("w", &matrix())]);
    let before = place.inspect("a.zt")["tensors"][0]["sha256"].clone();
    place.good(&["rename", "a.zt", "w", "weight"]);
    place.good(&["set", "a.zt", "--tensor", "weight", "unit=metres"]);
    let after = place.inspect("a.zt")["tensors"][0].clone();
    assert_eq!((&after["name"], &after["sha256"]), (&"weight".into(), &before));
    assert!(after["attributes"]["unit"].as_str().unwrap().contains("metres"));
    place.good(&["set", "a.zt", "--tensor", "weight", "unit="]);
    assert!(place.inspect("a.zt")["tensors"][0].get("attributes").is_none());
}

/// Data stays where it is: what grows is the index.
#[test]
fn an_index_at_the_end_is_written_behind_the_old_one() {
    let place = Place::new();
    for name in ["a.tbuf", "a.zt"] {
        place.write(name, &[], &[("w", &matrix())]);
        let before = fs::read(place.path(name)).unwrap();
        place.good(&["rename", name, "w", "weight"]);
        let after = fs::read(place.path(name)).unwrap();
        assert_eq!(after[..before.len()], before, "{name}");
        // A change that did not come to an end is undone before the next.
        fs::write(
            place.path(&format!("{name}.append-journal")),
            format!("{}\n", after.len()),
        )
        .unwrap();
        fs::write(place.path(name), [&after[..], b"torn"].concat()).unwrap();
        place.good(&["rename", name, "weight", "w"]);
        assert_eq!(place.inspect(name)["tensors"][0]["name"], "w");
    }
}

#[cfg(unix)]
#[test]
fn an_index_at_the_beginning_is_written_over_where_there_is_room() {
    use std::os::unix::fs::MetadataExt;

    let place = Place::new();
    let inode = |name: &str| std::fs::metadata(place.path(name)).unwrap().ino();
    place.write("a.safetensors", &[], &[("w", &matrix())]);
    let license = format!("license={}", "many words ".repeat(20));
    place.good(&["set", "a.safetensors", &license]);
    // The file was written anew, with room for more.
    let before = inode("a.safetensors");
    place.good(&["set", "a.safetensors", "format=pt"]);
    place.good(&["rename", "a.safetensors", "w", "weight"]);
    assert_eq!(inode("a.safetensors"), before);
    assert_eq!(place.inspect("a.safetensors")["tensors"][0]["name"], "weight");

    // Values of GGUF keep their types.
    place.write("b.gguf", &[("general.file_type", "7")], &[("w", &matrix())]);
    let before = inode("b.gguf");
    place.good(&["set", "b.gguf", "general.file_type=8"]);
    assert_eq!(inode("b.gguf"), before);
    let refused = place.bad(&["set", "b.gguf", "general.file_type=eight"]);
    assert!(refused.contains("u32"), "{refused}");
    assert_eq!(place.inspect("b.gguf")["metadata"]["general.file_type"], "8");
}

#[test]
fn formats_with_a_fixed_index_are_edited_too() {
    let place = Place::new();
    place.write(
        "a.safetensors",
        &[("license", "MIT")],
        &[("w", &matrix()), ("v", &matrix())],
    );
    let before = place.inspect("a.safetensors")["tensors"][0]["sha256"].clone();
    place.good(&["rename", "a.safetensors", "w", "x"]);
    place.good(&["set", "a.safetensors", "format=pt"]);
    place.good(&["set", "a.safetensors", "license="]);
    let after = place.inspect("a.safetensors");
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
    assert!(
        place
            .bad(&["rename", "a.safetensors", "x", "v"])
            .contains("taken")
    );
}

#[test]
fn completions_and_manual_pages_are_written() {
    let place = Place::new();
    assert!(place.good(&["completions", "bash"]).contains("_tensor()"));
    place.good(&["man", "pages"]);
    assert!(
        fs::read_to_string(place.path("pages/tensor-inspect.1"))
            .unwrap()
            .contains("sha256")
    );
}
