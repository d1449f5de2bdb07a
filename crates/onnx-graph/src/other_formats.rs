//! Recognizes files of other formats that users mistake for ONNX models.

use tensor_core::FileKind;

/// Describes the format of `content`, which is not an ONNX model, and says how to use such a file.
pub(crate) fn explain(content: &[u8]) -> Option<String> {
    let kind = FileKind::of(&content[..content.len().min(512)], content.len() as u64)?;
    let advice = match &kind {
        FileKind::Onnx => return None,
        FileKind::Ort => "it is not read; serve the ONNX file that it was made from",
        FileKind::TfLite => "convert it with `python -m tf2onnx.convert --tflite`",
        FileKind::Gguf => {
            "it has the weights of a language model and no graph, which ONNX cannot take the place of"
        }
        FileKind::Zip | FileKind::TorchCheckpoint | FileKind::TorchScript => {
            "export the model with torch.onnx.export (PyTorch) or tf2onnx (Keras)"
        }
        FileKind::Hdf5 => "convert it with `python -m tf2onnx.convert --keras`",
        FileKind::Pickle => {
            "it would run code when it is read; export the model to ONNX (skl2onnx.to_onnx, torch.onnx.export)"
        }
        FileKind::SavedModel => "convert its directory with `python -m tf2onnx.convert --saved-model`",
        FileKind::GraphDef => "convert it with `python -m tf2onnx.convert --graphdef`",
        FileKind::Safetensors => {
            "it has weights and no graph; export the model to ONNX (for transformers: `optimum-cli export onnx`), or serve \
             the tensors themselves as model.safetensors"
        }
        kind => kind.advice().unwrap_or("an ONNX model is expected"),
    };
    Some(format!("the file is {kind}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_known_by_its_beginning() {
        let cases: [(&[u8], &str); 11] = [
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
                "Git LFS",
            ),
            (b"\x18\0\0\0ORTM\0\0", ".ort"),
            (b"\x1c\0\0\0TFL3\0\0", "Lite"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"PK\x03\x04\x14\0", "zip archive"),
            (b"<!doctype html>", "HTML"),
            (b"\x89HDF\r\n\x1a\n", "HDF5"),
            (b"\x80\x04\x95\x10\0\0", "pickle"),
            (b"\x08\x01\x12\xd3\x05\n", "SavedModel"),
            (b"\n\x1f\n\x05input\x12\x0bPlaceholder", "graph (.pb)"),
            (b"\x02\0\0\0\0\0\0\0{}\0\0", "safetensors"),
        ];
        for (content, expected) in cases {
            let found = explain(content);
            assert!(
                found.as_ref().is_some_and(|text| text.contains(expected)),
                "{expected}: {found:?}"
            );
        }
        for content in [&b"\x08\x08\x12\x08skl2onnx"[..], b"\xff\xff"] {
            assert_eq!(explain(content), None);
        }
    }
}
