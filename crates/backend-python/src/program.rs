//! The program that the interpreter runs: our modules, which are sent before any protocol message.

use bytes::Bytes;

/// The code that the interpreter is started with: it reads the modules from the socket and runs the first
/// one.
pub(crate) const BOOTSTRAP: &str = include_str!("../python/bootstrap.py");

const MODULES: [(&str, &str); 6] = [
    (
        "tensorferry_worker",
        include_str!("../python/tensorferry_worker.py"),
    ),
    (
        "tensorferry_model",
        include_str!("../python/tensorferry_model.py"),
    ),
    (
        "tensorferry_tensors",
        include_str!("../python/tensorferry_tensors.py"),
    ),
    (
        "tensorferry_calls",
        include_str!("../python/tensorferry_calls.py"),
    ),
    (
        "tensorferry_forms",
        include_str!("../python/tensorferry_forms.py"),
    ),
    (
        "tensorferry_triton",
        include_str!("../python/tensorferry_triton.py"),
    ),
];

/// Returns the modules as they are sent: a JSON object, after its length as 8 bytes, little-endian.
pub(crate) fn modules() -> Bytes {
    let sources = MODULES
        .into_iter()
        .map(|(name, source)| (name.to_owned(), source.into()));
    let json = serde_json::Value::Object(sources.collect()).to_string();
    let length = (json.len() as u64).to_le_bytes();
    [&length[..], json.as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_are_sent_whole() {
        let sent = modules();
        let (length, json) = sent.split_first_chunk::<8>().unwrap();
        assert_eq!(u64::from_le_bytes(*length), json.len() as u64);
        let sources: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json).unwrap();
        assert_eq!(sources.len(), MODULES.len());
        assert!(
            sources["tensorferry_worker"]
                .as_str()
                .unwrap()
                .contains("def main(")
        );
        // The bootstrap code must fit on the command line.
        assert!(BOOTSTRAP.len() < 16 << 10);
    }
}
