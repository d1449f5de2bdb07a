//! Recognizes files of frameworks that are not served directly, so that log messages can explain how to
//! convert the models.

use std::path::Path;

/// Returns the framework whose models have to be exported first, if `name` is one of its files or
/// directories.
pub(crate) fn framework(name: &str) -> Option<&'static str> {
    // The case matters: Core ML's files have the extension `mlmodel`.
    if name == "MLmodel" {
        return Some("MLflow");
    }
    let name = name.to_ascii_lowercase();
    if name == "saved_model.pb" {
        return Some("TensorFlow");
    }
    match Path::new(&name).extension()?.to_str()? {
        "pt" | "pth" => Some("PyTorch"),
        "mar" => Some("TorchServe"),
        "graphdef" | "savedmodel" => Some("TensorFlow"),
        "tflite" => Some("TensorFlow Lite"),
        "h5" | "keras" => Some("Keras"),
        "plan" | "engine" => Some("TensorRT"),
        "pdmodel" => Some("PaddlePaddle"),
        "cbm" => Some("CatBoost"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frameworks_are_told_by_names() {
        for (name, found) in [
            ("net.PT", Some("PyTorch")),
            ("saved_model.pb", Some("TensorFlow")),
            ("MLmodel", Some("MLflow")),
            ("input_0.pb", None),
            ("model.savedmodel", Some("TensorFlow")),
            ("model.onnx", None),
            ("notes.txt", None),
            ("pt", None),
        ] {
            assert_eq!(framework(name), found, "{name}");
        }
    }
}
