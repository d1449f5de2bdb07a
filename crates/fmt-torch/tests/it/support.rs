//! Builds checkpoints byte by byte.

use std::io::Write;

use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// A pickle under construction.
#[derive(Clone, Default)]
pub(crate) struct Pickle(pub(crate) Vec<u8>);

impl Pickle {
    pub(crate) fn new() -> Self {
        Self(b"\x80\x02".to_vec())
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(self, text: &str) -> Self {
        let len = (text.len() as u32).to_le_bytes();
        self.raw(b"X").raw(&len).raw(text.as_bytes())
    }

    pub(crate) fn int(self, number: i32) -> Self {
        self.raw(b"J").raw(&number.to_le_bytes())
    }

    pub(crate) fn ints(self, numbers: &[i32]) -> Self {
        let marked = self.raw(b"(");
        numbers
            .iter()
            .fold(marked, |pickle, number| pickle.int(*number))
            .raw(b"t")
    }

    pub(crate) fn global(self, module: &str, name: &str) -> Self {
        self.raw(format!("c{module}\n{name}\n").as_bytes())
    }

    /// Appends a call of `_rebuild_tensor_v2`, as in a state dictionary.
    pub(crate) fn tensor(self, view: &View<'_>) -> Self {
        self.global("torch._utils", "_rebuild_tensor_v2")
            .raw(b"((")
            .text("storage")
            .global("torch", view.kind)
            .text(view.key)
            .text("cpu")
            .int(view.count)
            .raw(b"tQ")
            .int(view.offset)
            .ints(view.dims)
            .ints(view.strides)
            .raw(b"\x89ccollections\nOrderedDict\n)RtR")
    }

    /// Creates a dictionary of tensors by name, like `model.state_dict()`.
    pub(crate) fn state(tensors: &[(&str, View<'_>)]) -> Self {
        let begun = Self::new().global("collections", "OrderedDict").raw(b")Rq\x00(");
        let filled = tensors
            .iter()
            .fold(begun, |pickle, (name, view)| pickle.text(name).tensor(view));
        // Modules set the attribute `_metadata`.
        filled.raw(b"u}").text("_metadata").raw(b"}sb.")
    }
}

/// A tensor as a view of a storage.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) kind: &'a str,
    pub(crate) key: &'a str,
    pub(crate) count: i32,
    pub(crate) offset: i32,
    pub(crate) dims: &'a [i32],
    pub(crate) strides: &'a [i32],
}

/// A matrix of two rows with six floats in total.
pub(crate) const MATRIX: View<'_> = View {
    kind: "FloatStorage",
    key: "0",
    count: 6,
    offset: 0,
    dims: &[2, 3],
    strides: &[3, 1],
};

pub(crate) fn floats() -> Vec<u8> {
    (0..6u8)
        .flat_map(|number| f32::from(number).to_le_bytes())
        .collect()
}

pub(crate) fn archive(pickle: &[u8], members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, bytes) in [("data.pkl", pickle)].iter().chain(members) {
        zip.start_file(format!("model/{name}"), stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Returns a checkpoint with one matrix, `w`.
pub(crate) fn small() -> Vec<u8> {
    archive(
        &Pickle::state(&[("w", MATRIX)]).0,
        &[
            ("byteorder", b"little"),
            ("data/0", &floats()),
            ("version", b"3\n"),
        ],
    )
}

/// Returns the same checkpoint in the layout before PyTorch 1.6.
pub(crate) fn legacy() -> Vec<u8> {
    let mut file = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".to_vec();
    file.extend(Pickle::new().raw(b"M\xe9\x03.").0);
    file.extend(Pickle::new().raw(b"}(").text("little_endian").raw(b"\x88u.").0);
    // In the legacy layout, the persistent id of a storage has one more value.
    let state = Pickle::state(&[("w", MATRIX)]).0;
    let id = state.windows(3).position(|bytes| bytes == b"tQJ").unwrap();
    file.extend([&state[..id], b"N", &state[id..]].concat());
    file.extend(Pickle::new().raw(b"](").text("0").raw(b"e.").0);
    file.extend(6u64.to_le_bytes());
    file.extend(floats());
    file
}
