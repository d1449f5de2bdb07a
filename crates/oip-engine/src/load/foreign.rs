//! Files of frameworks whose models are not served as they are: recognised by their names, so that the log can say what to do.

use std::path::Path;

/// The framework whose file or folder this is by its name, where its models have to be exported before they are served.
pub(crate) fn framework(name: &str) -> Option<&'static str> {
    // By case: Core ML's files end in the same letters.
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
