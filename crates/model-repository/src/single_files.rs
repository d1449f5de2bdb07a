//! Decides which single files in a repository's directory are models, if the extension is ambiguous.

use std::path::Path;

/// Number of bytes at the start of a file that are inspected.
pub(crate) const LOOKED_AT: u64 = 64 << 10;

/// Returns whether a file with a backend's extension looks like a model, by its name and first bytes. Only
/// the extensions `.json`, `.txt` and `.py` are ambiguous.
pub(crate) fn looks_like_a_model(name: &str, head: &[u8]) -> bool {
    let head = head.trim_ascii_start();
    match Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str())
    {
        // An XGBoost model is a JSON object whose first member is `learner`.
        Some("json") => head
            .strip_prefix(b"{")
            .is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\"learner\"")),
        // A LightGBM model starts with a line `tree`, followed by a line with its version.
        Some("txt") => {
            let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
            lines.next() == Some(b"tree") && lines.next().is_some_and(|line| line.starts_with(b"version="))
        }
        Some("py") => name == "model.py" || String::from_utf8_lossy(head).lines().any(is_model_class),
        _ => true,
    }
}

/// Returns whether a line of Python starts the definition of a model class.
fn is_model_class(line: &str) -> bool {
    ["Model", "TritonPythonModel"].iter().any(|class| {
        let rest = line
            .strip_prefix("class ")
            .and_then(|rest| rest.trim_start().strip_prefix(class));
        rest.is_some_and(|rest| rest.trim_start().starts_with([':', '(']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_recognised_by_their_first_bytes() {
        for (name, head) in [
            ("a.onnx", ""),
            ("clicks.json", "{\"learner\":{\"attributes\""),
            ("clicks.json", "\n{ \n \"learner\" : {"),
            ("clicks.txt", "tree\nversion=v4\n"),
            ("clicks.txt", "tree\r\nversion=v3\r\n"),
            ("model.py", ""),
            ("mine.py", "import json\n\n\nclass Model:\n    pass\n"),
            ("mine.py", "class Model(Base):"),
            ("mine.py", "class  TritonPythonModel :"),
        ] {
            assert!(looks_like_a_model(name, head.as_bytes()), "{name}: {head}");
        }
        for (name, head) in [
            ("labels.json", "{\"learners\": 1}"),
            ("labels.json", "[\"learner\"]"),
            ("labels.json", ""),
            ("labels.txt", "tree\nhouse\n"),
            ("labels.txt", "tree"),
            ("setup.py", "from setuptools import setup\n"),
            ("setup.py", "class ModelCard:\n"),
            ("setup.py", "if True:\n    class Model:\n"),
            ("setup.py", "# class Model:\n"),
        ] {
            assert!(!looks_like_a_model(name, head.as_bytes()), "{name}: {head}");
        }
    }
}
