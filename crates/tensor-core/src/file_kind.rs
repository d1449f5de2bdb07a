//! Identifies files of the wrong kind by their first bytes.

use std::fmt;

use crate::QuotedName;

/// The kind of a file, detected from its first bytes and its length. Every reader that fails to open a file
/// reports the kind, so that the user learns that the file is, for example, a Git LFS pointer or an error
/// page instead of a model.
///
/// ```
/// use tensor_core::FileKind;
///
/// let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868416\n";
/// let kind = FileKind::of(pointer, pointer.len() as u64).unwrap();
/// assert_eq!(kind.to_string(), "a pointer of Git LFS to a file of 90868416 bytes");
/// assert!(kind.advice().unwrap().contains("git lfs pull"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// No bytes.
    Empty,
    /// All zeros, which no format starts with.
    Zeros,
    /// A Git LFS pointer to a file of this many bytes.
    LfsPointer(Option<u64>),
    /// An HTML page.
    Html,
    /// Text, such as an error message, with its beginning.
    Text(String),
    /// A compressed file, with the name of the program that compressed it.
    Compressed(&'static str),
    /// A tar archive.
    Tar,
    /// Any zip archive that none of the variants below describes.
    Zip,
    /// A NumPy archive of arrays.
    Npz,
    /// A PyTorch checkpoint.
    TorchCheckpoint,
    /// A `TorchScript` program.
    TorchScript,
    /// Any Python pickle that is not a checkpoint.
    Pickle,
    /// HDF5, such as Keras' `.h5`.
    Hdf5,
    /// A safetensors file.
    Safetensors,
    /// A llama.cpp model (GGUF).
    Gguf,
    /// A NumPy array.
    Npy,
    /// A zTensor file of any version.
    Ztensor,
    /// A TensorBuffers file.
    TensorBuffers,
    /// An ONNX model.
    Onnx,
    /// A model in ONNX Runtime's format.
    Ort,
    /// A TensorFlow Lite model.
    TfLite,
    /// TensorFlow's `saved_model.pb`.
    SavedModel,
    /// A frozen TensorFlow graph.
    GraphDef,
    /// A CatBoost model.
    CatBoost,
}

impl FileKind {
    /// Detects the kind of a file of `len` bytes that starts with `head`, of which 512 bytes suffice. Returns
    /// `None` for an unknown kind.
    #[must_use]
    pub fn of(head: &[u8], len: u64) -> Option<Self> {
        let has = |at: usize, mark: &[u8]| head.get(at..at + mark.len()) == Some(mark);
        let starts = |mark: &[u8]| has(0, mark);
        Some(match head {
            _ if len == 0 => Self::Empty,
            _ if starts(b"version https://git-lfs") => Self::LfsPointer(size_of_pointer(head)),
            _ if starts(b"GGUF") => Self::Gguf,
            _ if starts(b"\x93NUMPY") => Self::Npy,
            _ if starts(b"ZTEN") || starts(b"\x89ZT2") => Self::Ztensor,
            _ if starts(b"TBS1") => Self::TensorBuffers,
            _ if starts(b"PK\x03\x04") => of_archive(head),
            _ if starts(b"\x89HDF\r\n") => Self::Hdf5,
            _ if starts(b"\x1f\x8b") => Self::Compressed("gzip"),
            _ if starts(b"\x28\xb5\x2f\xfd") => Self::Compressed("zstd"),
            _ if starts(b"\xfd7zXZ\0") => Self::Compressed("xz"),
            _ if starts(b"BZh") => Self::Compressed("bzip2"),
            _ if starts(b"CBM1") => Self::CatBoost,
            _ if has(257, b"ustar") => Self::Tar,
            _ if is_safetensors(head) => Self::Safetensors,
            // PyTorch's magic number, which is the first object in its pickles.
            _ if starts(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") => Self::TorchCheckpoint,
            // A pickle of protocol 2 to 5, followed by an opcode.
            [0x80, 2..=5, opcode, ..] if *opcode != 0 => Self::Pickle,
            // The schema version, which is 1; the IR version of an ONNX model is 2 or more.
            _ if starts(b"\x08\x01\x12") => Self::SavedModel,
            // The IR version, followed by a field of the model.
            [8, 2..=20, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42, ..] => Self::Onnx,
            _ if has(4, b"ORTM") => Self::Ort,
            _ if has(4, b"TFL3") => Self::TfLite,
            // A GraphDef starts with a node, and a node with its name.
            [b'\n', 1..=0x7f, b'\n', ..] if len > 16 && !is_text(head) => Self::GraphDef,
            [b'\n', 0x80..=0xff, 1..=0x7f, b'\n', ..] => Self::GraphDef,
            _ if head.iter().all(|byte| *byte == 0) => Self::Zeros,
            _ if is_text(head) => of_text(head),
            _ => return None,
        })
    }

    /// Returns advice to append to an error message; `None` if the advice would depend on what the user
    /// wanted.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Empty | Self::Zeros => "copy or download it again",
            Self::LfsPointer(_) => "run `git lfs pull` where it was cloned, or download the file itself",
            Self::Html => {
                "it was downloaded instead of the file; download that again, with a token if it takes one"
            }
            Self::Text(_) => "it was downloaded instead of the file; download that again",
            Self::Compressed(_) => "decompress it first",
            Self::Tar | Self::Zip => "unpack it first",
            Self::Pickle => {
                "reading it would run code; save the tensors themselves, such as with safetensors"
            }
            Self::Hdf5 => "read it with h5py and save the arrays with numpy.savez",
            _ => return None,
        })
    }

    /// Returns the short name of the format, if it is supported.
    #[must_use]
    pub fn format(&self) -> Option<&'static str> {
        Some(match self {
            Self::Npz => "npz",
            Self::Npy => "npy",
            Self::TorchCheckpoint | Self::TorchScript => "torch",
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Ztensor => "ztensor",
            Self::TensorBuffers => "tbuf",
            Self::Onnx => "onnx",
            _ => return None,
        })
    }
}

/// Formats as a noun phrase: `a zip archive`.
impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LfsPointer(Some(size)) => {
                return write!(f, "a pointer of Git LFS to a file of {size} bytes");
            }
            Self::Text(beginning) => return write!(f, "text that begins with {}", QuotedName(beginning)),
            Self::Compressed(program) => return write!(f, "a file compressed with {program}"),
            Self::Empty => "an empty file",
            Self::Zeros => "a file that begins with zeros, such as an incomplete download",
            Self::LfsPointer(None) => "a pointer of Git LFS",
            Self::Html => "an HTML page",
            Self::Tar => "a tar archive",
            Self::Zip => "a zip archive",
            Self::Npz => "NumPy's .npz",
            Self::TorchCheckpoint => "a checkpoint of PyTorch",
            Self::TorchScript => "a TorchScript program",
            Self::Pickle => "a Python pickle",
            Self::Hdf5 => "an HDF5 file, such as Keras' .h5",
            Self::Safetensors => "a safetensors file",
            Self::Gguf => "a GGUF file",
            Self::Npy => "NumPy's .npy",
            Self::Ztensor => "a zTensor file",
            Self::TensorBuffers => "a TensorBuffers file",
            Self::Onnx => "an ONNX model",
            Self::Ort => "a model in ONNX Runtime's own format (.ort)",
            Self::TfLite => "a TensorFlow Lite model",
            Self::SavedModel => "a TensorFlow SavedModel",
            Self::GraphDef => "a TensorFlow graph (.pb)",
            Self::CatBoost => "a CatBoost model",
        })
    }
}

/// Parses the size in a Git LFS pointer.
fn size_of_pointer(head: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(head).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("size ")?.parse().ok())
}

/// Detects the kind by the name of an archive's first member.
fn of_archive(head: &[u8]) -> FileKind {
    let len = match head.get(26..28) {
        Some(len) => usize::from(len[0]) | usize::from(len[1]) << 8,
        None => 0,
    };
    let rest = head.get(30..).unwrap_or(&[]);
    let name = rest.get(..len).unwrap_or(&[]);
    match name {
        _ if name.ends_with(b".npy") => FileKind::Npz,
        _ if name.ends_with(b"/data.pkl") => FileKind::TorchCheckpoint,
        // `torch.jit.save` writes storages, or constants and code, first.
        _ if name.ends_with(b"/data/0") || name.ends_with(b"/constants.pkl") => FileKind::TorchScript,
        _ => FileKind::Zip,
    }
}

/// Returns whether `head` starts with a header length and the first brace of a JSON header.
fn is_safetensors(head: &[u8]) -> bool {
    const LONGEST: u64 = 100_000_000;
    let length = head.first_chunk().map(|length| u64::from_le_bytes(*length));
    length.is_some_and(|length| (2..=LONGEST).contains(&length)) && head.get(8) == Some(&b'{')
}

/// Returns whether the bytes are text, allowing for a truncated character at the end.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or("")
        }
        Err(_) => return false,
    };
    !text.is_empty()
        && text
            .chars()
            .all(|char| !char.is_control() || char.is_ascii_whitespace())
}

fn of_text(head: &[u8]) -> FileKind {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim();
    let lower = text
        .get(..64.min(text.len()))
        .unwrap_or(text)
        .to_ascii_lowercase();
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") {
        return FileKind::Html;
    }
    FileKind::Text(text.chars().take(QuotedName::MAX_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(head: &[u8]) -> Option<FileKind> {
        FileKind::of(head, head.len() as u64)
    }

    #[test]
    fn each_is_known_by_its_beginning() {
        let member = |name: &str| {
            [
                &b"PK\x03\x04"[..],
                &[0; 22],
                &[name.len() as u8, 0, 0, 0],
                name.as_bytes(),
            ]
            .concat()
        };
        let tar = [&[1; 257][..], b"ustar\0"].concat();
        let cases: [(&[u8], FileKind); 26] = [
            (b"", FileKind::Empty),
            (&[0; 100], FileKind::Zeros),
            (
                b"version https://git-lfs.github.com/spec/v1\nsize 7",
                FileKind::LfsPointer(Some(7)),
            ),
            (b"\n <!DOCTYPE HTML><html>", FileKind::Html),
            (
                "Entry not found: Grüße".as_bytes(),
                FileKind::Text("Entry not found: Grüße".into()),
            ),
            (b"\x1f\x8b\x08\0", FileKind::Compressed("gzip")),
            (&tar, FileKind::Tar),
            (&member("a/b.txt"), FileKind::Zip),
            (&member("w.npy"), FileKind::Npz),
            (&member("archive/data.pkl"), FileKind::TorchCheckpoint),
            (&member("net/data/0"), FileKind::TorchScript),
            (
                b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                FileKind::TorchCheckpoint,
            ),
            (b"\x80\x04\x95\x10\0\0", FileKind::Pickle),
            (b"\x89HDF\r\n\x1a\n", FileKind::Hdf5),
            (b"\x02\0\0\0\0\0\0\0{}\0\0", FileKind::Safetensors),
            (b"GGUF\x03\0\0\0", FileKind::Gguf),
            (b"\x93NUMPY\x01\0", FileKind::Npy),
            (b"ZTEN0001", FileKind::Ztensor),
            (b"TBS1\0\0", FileKind::TensorBuffers),
            (b"\x08\x08\x12\x08skl2onnx", FileKind::Onnx),
            (b"\x18\0\0\0ORTM\0\0", FileKind::Ort),
            (b"\x1c\0\0\0TFL3\0\0", FileKind::TfLite),
            (b"\x08\x01\x12\xd3\x05\n", FileKind::SavedModel),
            (b"\n\x1f\n\x05input\x12\x0bPlaceholder", FileKind::GraphDef),
            (b"CBM1\x10\0", FileKind::CatBoost),
            (b"\x28\xb5\x2f\xfd\0", FileKind::Compressed("zstd")),
        ];
        for (head, expected) in cases {
            assert_eq!(kind(head).as_ref(), Some(&expected), "{expected}");
        }
        // Files that begin like BTF (a tensor count, and the offset of the first record) have no known kind,
        // whatever bytes the count has.
        for tensors in [8u64, 640, 0x0308, 10, 0x010a] {
            let head = [tensors, 8 * tensors + 8].map(u64::to_le_bytes).concat();
            assert_eq!(kind(&head), None, "{tensors}");
        }
        assert_eq!(kind(b"\xff\xfe\x01\x02"), None);
    }
}
