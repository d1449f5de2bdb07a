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

#[test]
fn formats_with_a_fixed_index_say_what_to_do() {
    let place = Place::new();
    place.write("a.safetensors", &[], &[("w", &matrix())]);
    assert!(
        place
            .bad(&["rename", "a.safetensors", "w", "x"])
            .contains("`tensor convert`")
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
