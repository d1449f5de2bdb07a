//! Files that are no models of XGBoost or LightGBM, but that people put in their place: what each is, and what to do.

/// Describes in one sentence a file of a known format that is not served.
pub(crate) fn explain(content: &[u8]) -> &'static str {
    let starts = |mark: &[u8]| content.starts_with(mark);
    if starts(b"version https://git-lfs") {
        return "the file is a pointer of Git LFS and not the model itself; run `git lfs pull` where it was cloned";
    }
    if content.first() == Some(&0x80) && matches!(content.get(1), Some(2..=5)) {
        return "the file is a Python pickle, which would run code when it is read; save the booster itself: \
                model.get_booster().save_model(\"model.ubj\") (XGBoost), model.booster_.save_model(\"model.txt\") (LightGBM)";
    }
    if starts(b"CBM1") {
        return "the file is a CatBoost model; export it with model.save_model(\"model.onnx\", format=\"onnx\")";
    }
    if content.is_empty() {
        return "the file is empty";
    }
    // XGBoost's old format has no name at its beginning, but in its first versions and in what R saves.
    "the file is neither XGBoost's UBJSON or JSON nor LightGBM's text; XGBoost's old binary format is read by XGBoost up to \
     3.0: load it there and call booster.save_model(\"model.ubj\")"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_known_by_its_beginning() {
        let cases: [(&[u8], &str); 5] = [
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
                "Git LFS",
            ),
            (b"\x80\x04\x95\x10\0\0", "pickle"),
            (b"CBM1\x10\0", "CatBoost"),
            (b"", "empty"),
            (b"\0\0\0\x3f\x04\0\0\0", "old binary"),
        ];
        for (content, expected) in cases {
            assert!(explain(content).contains(expected), "{expected}");
        }
    }
}
