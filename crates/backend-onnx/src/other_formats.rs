//! Files that are no ONNX models, but that people put in a model's place: what each is, and what to do.

/// What a file is that is known not to be an ONNX model, in one sentence; `None` for everything else.
pub(crate) fn explain(content: &[u8]) -> Option<&'static str> {
    let has = |at: usize, mark: &[u8]| content.get(at..at + mark.len()) == Some(mark);
    let starts = |mark: &[u8]| has(0, mark);
    if starts(b"version https://git-lfs") {
        return Some(
            "the file is a pointer of Git LFS and not the model itself; run `git lfs pull` where it was cloned",
        );
    }
    // An ONNX model begins with its version, and may have any letters behind it.
    let is_onnx = starts(b"\x08");
    if has(4, b"ORTM") && !is_onnx {
        return Some(
            "the file is in ONNX Runtime's own format (.ort), which is not read; serve the ONNX file that it was made from",
        );
    }
    if has(4, b"TFL3") && !is_onnx {
        return Some(
            "the file is a TensorFlow Lite model; convert it with `python -m tf2onnx.convert --tflite`",
        );
    }
    if starts(b"GGUF") {
        return Some(
            "the file is a GGUF file: weights of a language model without a graph, which ONNX cannot take the place of",
        );
    }
    if starts(b"PK\x03\x04") {
        return Some(
            "the file is a ZIP archive, such as PyTorch's .pt and Keras' .keras; export the model with torch.onnx.export or \
             tf2onnx",
        );
    }
    if starts(b"\x89HDF\r\n") {
        return Some("the file is HDF5, as Keras' .h5; convert it with `python -m tf2onnx.convert --keras`");
    }
    // A pickle of protocol 2 or later; ONNX files do not begin with a field of this number.
    if content.first() == Some(&0x80) && matches!(content.get(1), Some(2..=5)) {
        return Some(
            "the file is a Python pickle, which would run code when it is read; export the model to ONNX (skl2onnx.to_onnx, \
             torch.onnx.export)",
        );
    }
    // The version of the schema, which is 1, and a graph; ONNX's own version is 3 at least.
    if starts(b"\x08\x01\x12") {
        return Some(
            "the file is a TensorFlow SavedModel; convert its folder with `python -m tf2onnx.convert --saved-model`",
        );
    }
    // The first field of a GraphDef is a node, where an ONNX model's is a number.
    if starts(b"\n") && content.len() > 16 {
        return Some(
            "the file is a TensorFlow graph (.pb); convert it with `python -m tf2onnx.convert --graphdef`",
        );
    }
    let header = content.first_chunk().map(|length| u64::from_le_bytes(*length));
    let is_safetensors = header.is_some_and(|length| length < content.len() as u64) && has(8, b"{");
    is_safetensors.then_some(
        "the file is a safetensors file: weights without a graph; export the model to ONNX (for transformers: `optimum-cli \
         export onnx`), or serve the tensors themselves as model.safetensors",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_known_by_its_beginning() {
        let cases: [(&[u8], &str); 10] = [
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0",
                "Git LFS",
            ),
            (b"\x18\0\0\0ORTM\0\0", ".ort"),
            (b"\x1c\0\0\0TFL3\0\0", "Lite"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"PK\x03\x04\x14\0", "ZIP"),
            (b"\x89HDF\r\n\x1a\n", "HDF5"),
            (b"\x80\x04\x95\x10\0\0", "pickle"),
            (b"\x08\x01\x12\xd3\x05\n", "SavedModel"),
            (b"\n\x1f\n\x05input\x12\x0bPlaceholder", "graph (.pb)"),
            (b"\x02\0\0\0\0\0\0\0{}\0\0", "safetensors"),
        ];
        for (content, expected) in cases {
            let found = explain(content);
            assert!(
                found.is_some_and(|text| text.contains(expected)),
                "{expected}: {found:?}"
            );
        }
        for content in [&b""[..], b"\x08\x08\x12\x08skl2onnx", b"no model", b"\n"] {
            assert_eq!(explain(content), None);
        }
    }
}
