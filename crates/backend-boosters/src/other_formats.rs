//! Recognizes files that are neither XGBoost nor LightGBM models, and explains how to get a supported file.

use tensor_core::FileKind;

/// Returns an error message that names the unsupported format of `content` and how to get a supported file.
pub(crate) fn explain(content: &[u8]) -> String {
    // XGBoost's old format has no magic number, except in its first versions and in files saved by R.
    const UNKNOWN: &str = "the file is neither XGBoost's UBJSON or JSON nor LightGBM's text; XGBoost's old binary format is \
                           read by XGBoost up to 3.0: load it there and call booster.save_model(\"model.ubj\")";
    let kind = FileKind::of(&content[..content.len().min(512)], content.len() as u64);
    // XGBoost's old format may start with any bytes, including zeros.
    let Some(kind) = kind.filter(|kind| *kind != FileKind::Zeros) else {
        return UNKNOWN.to_owned();
    };
    let advice = match &kind {
        FileKind::Pickle => {
            "reading it would run code; save the booster itself: model.get_booster().save_model(\"model.ubj\") (XGBoost), \
             model.booster_.save_model(\"model.txt\") (LightGBM)"
        }
        FileKind::CatBoost => "export it with model.save_model(\"model.onnx\", format=\"onnx\")",
        kind => kind
            .advice()
            .unwrap_or("a model of XGBoost or LightGBM is expected"),
    };
    format!("the file is {kind}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_known_by_its_beginning() {
        let cases: [(&[u8], &str); 6] = [
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
                "Git LFS",
            ),
            (b"\x80\x04\x95\x10\0\0", "pickle"),
            (b"CBM1\x10\0", "CatBoost"),
            (b"", "empty"),
            (b"<html><body>", "HTML"),
            (b"\0\0\0\x3f\x04\0\0\0", "old binary"),
        ];
        for (content, expected) in cases {
            assert!(explain(content).contains(expected), "{expected}");
        }
    }
}
