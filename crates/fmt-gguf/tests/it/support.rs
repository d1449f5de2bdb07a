//! Builds files byte by byte.

/// A tensor to write: name, dimensions in file order, GGML type number, data.
pub(crate) struct RawTensor<'a>(pub &'a str, pub &'a [u64], pub u32, pub Vec<u8>);

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.bytes());
}

/// Returns a version 3 file with encoded values (type and bytes) and tensors aligned to 32.
pub(crate) fn file(values: &[(&str, u32, Vec<u8>)], tensors: &[RawTensor<'_>]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    for (key, kind, value) in values {
        string(&mut out, key);
        out.extend(kind.to_le_bytes());
        out.extend(value);
    }
    let mut data = Vec::new();
    for RawTensor(name, dims, kind, bytes) in tensors {
        string(&mut out, name);
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    string(&mut out, text);
    out
}

/// Returns a file with the main features: plain and quantised tensors, values of several types.
pub(crate) fn sample() -> Vec<u8> {
    let mut tokens = 8u32.to_le_bytes().to_vec();
    tokens.extend(2u64.to_le_bytes());
    tokens.extend(text("<s>"));
    tokens.extend(text("\"a\""));
    let floats: Vec<u8> = (0..6u8)
        .flat_map(|element| f32::from(element).to_le_bytes())
        .collect();
    file(
        &[
            ("general.name", 8, text("tiny")),
            ("general.file_type", 4, 7u32.to_le_bytes().to_vec()),
            ("tiny.rope.scale", 6, 0.1f32.to_le_bytes().to_vec()),
            ("tiny.limit", 12, f64::INFINITY.to_le_bytes().to_vec()),
            ("tokenizer.tokens", 9, tokens),
        ],
        &[
            RawTensor("embed", &[3, 2], 0, floats),
            RawTensor("half", &[4], 1, (0..8).collect()),
            RawTensor("brain", &[2, 1, 2], 30, (8..16).collect()),
            RawTensor("quantised", &[32, 2], 8, vec![1; 68]),
            RawTensor(
                "ids",
                &[2],
                27,
                [7i64, -1].iter().flat_map(|id| id.to_le_bytes()).collect(),
            ),
        ],
    )
}
