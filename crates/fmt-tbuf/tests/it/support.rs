//! Builds files field by field, including invalid files that this crate's writer would never write.

use fmt_core::{Error, ReadOptions, TensorReader};
use fmt_tbuf::{TbufReader, TbufWriter, WriteOptions, tensor_id};
use tensor_core::{Bytes, DType, Shape, Tensor, TensorSpec};

/// Opens bytes with a strict reader.
pub(crate) fn open(bytes: &[u8]) -> Result<TbufReader, Error> {
    TbufReader::from_bytes(bytes.to_vec())
}

/// Opens bytes with a lenient reader.
pub(crate) fn open_leniently(bytes: &[u8]) -> Result<TbufReader, Error> {
    let options = ReadOptions {
        lenient: true,
        ..ReadOptions::default()
    };
    TbufReader::open(std::sync::Arc::new(Bytes::copy_from_slice(bytes)), &options)
}

/// Opens bytes and reads the tensor with this name.
pub(crate) fn tensor(bytes: &[u8], name: &str) -> Result<Tensor, Error> {
    let reader = open(bytes)?;
    let index = reader.find(name).unwrap_or_else(|| panic!("no tensor {name:?}"));
    reader.tensor(index)
}

pub(crate) fn spec(dtype: DType, dims: &[u64]) -> TensorSpec {
    TensorSpec::new(dtype, Shape::new(dims).unwrap()).unwrap()
}

/// Returns a tensor whose bytes are 0, 1, 2 and so on.
pub(crate) fn counting(dtype: DType, dims: &[u64]) -> Tensor {
    let spec = spec(dtype, dims);
    let bytes: Vec<u8> = (0..spec.byte_len()).map(|byte| byte as u8).collect();
    Tensor::new(spec, bytes).unwrap()
}

/// Returns the file that this crate's writer writes for `tensors`.
pub(crate) fn written(options: WriteOptions, tensors: &[(&str, &Tensor)]) -> Vec<u8> {
    let mut writer = TbufWriter::new(Vec::new(), options).unwrap();
    for (name, tensor) in tensors {
        writer.tensor(name, tensor).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns options for the layout of the reference implementation.
pub(crate) fn back_to_back() -> WriteOptions {
    WriteOptions {
        alignment: 1,
        ..WriteOptions::default()
    }
}

/// The fields of a tensor's table in a [`Forge`]; `None` omits a field.
#[derive(Clone, Debug)]
pub(crate) struct ForgedTensor {
    pub(crate) id: Option<u64>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) shape: Option<Vec<u32>>,
    pub(crate) dtype: Option<i8>,
    pub(crate) offset: Option<u32>,
    pub(crate) size: Option<u32>,
    /// The value of a seventh field, which the schema lacks.
    pub(crate) unknown: Option<u32>,
}

impl ForgedTensor {
    pub(crate) fn new(name: &str, dtype: i8, shape: &[u32], offset: u32, size: u32) -> Self {
        Self {
            id: Some(tensor_id(name)),
            name: Some(name.into()),
            shape: Some(shape.to_vec()),
            dtype: Some(dtype),
            offset: Some(offset),
            size: Some(size),
            unknown: None,
        }
    }

    /// Returns the fields of the tensor `a`, an `f32[3]` whose elements are the first twelve bytes of the
    /// data.
    pub(crate) fn plain() -> Self {
        Self::new("a", 1, &[3], 4, 12)
    }
}

/// A file to build, whose fields may be missing or wrong.
#[derive(Clone, Debug)]
pub(crate) struct Forge {
    /// The bytes between the magic and the index.
    pub(crate) data: Vec<u8>,
    pub(crate) version: Option<Vec<u8>>,
    pub(crate) model: Option<Vec<u8>>,
    pub(crate) tensors: Option<Vec<ForgedTensor>>,
    /// Number of additional references to the first tensor's table.
    pub(crate) repeats: usize,
    /// The value of a fourth field of the root, as in files with operations.
    pub(crate) operations: Option<u32>,
}

/// Offsets of parts of the index, for overwriting them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offsets {
    /// The offset of the root table; the next word is the offset of its vtable.
    pub(crate) root: usize,
    pub(crate) root_fields: usize,
    pub(crate) version: usize,
    pub(crate) model: usize,
    /// Offset of the vector of tensors.
    pub(crate) vector: usize,
    /// Offsets of each tensor's table, vtable, name and shape.
    pub(crate) tables: Vec<usize>,
    pub(crate) fields: Vec<usize>,
    pub(crate) names: Vec<usize>,
    pub(crate) shapes: Vec<usize>,
}

impl Forge {
    /// Creates a file with one tensor, `f32[3]` called `a`.
    pub(crate) fn new() -> Self {
        Self::of(&[ForgedTensor::plain()])
    }

    pub(crate) fn of(tensors: &[ForgedTensor]) -> Self {
        Self {
            data: (0..60).collect(),
            version: Some(b"1.0.0".to_vec()),
            model: None,
            tensors: Some(tensors.to_vec()),
            repeats: 0,
            operations: None,
        }
    }

    /// Creates a file with one tensor, `f32[3]` called `name`.
    pub(crate) fn with_name(name: &str) -> Self {
        Self::of(&[ForgedTensor::new(name, 1, &[3], 4, 12)])
    }

    /// Returns a file with one tensor: [`ForgedTensor::plain`], modified by `change`.
    pub(crate) fn with(change: impl FnOnce(&mut ForgedTensor)) -> Vec<u8> {
        let mut tensor = ForgedTensor::plain();
        change(&mut tensor);
        Self::of(&[tensor]).file()
    }

    /// Returns the whole file.
    pub(crate) fn file(&self) -> Vec<u8> {
        self.file_around(&self.index().0)
    }

    /// Returns the file after `patch` has changed its index.
    pub(crate) fn patched(&self, patch: impl FnOnce(&mut Vec<u8>, &Offsets)) -> Vec<u8> {
        let (mut index, places) = self.index();
        patch(&mut index, &places);
        self.file_around(&index)
    }

    fn file_around(&self, index: &[u8]) -> Vec<u8> {
        let len = index.len() as u32;
        [b"TBS1", &self.data[..], index, &len.to_le_bytes(), b"TBS1"].concat()
    }

    /// Encodes the index from front to back: root, tables, strings and shapes, each after its first
    /// reference.
    pub(crate) fn index(&self) -> (Vec<u8>, Offsets) {
        let mut out = vec![0; 4];
        let mut places = Offsets::default();
        let tensors = self.tensors.as_deref().unwrap_or_default();

        // A table begins with the offset of its vtable, which takes four bytes, followed by fields of four
        // bytes each.
        let present = [
            self.version.is_some(),
            self.model.is_some(),
            self.tensors.is_some(),
            self.operations.is_some(),
        ];
        places.root_fields = out.len();
        push_fields(&mut out, &present.map(|present| if present { 4 } else { 0 }));
        places.root = out.len();
        let root = out.len() as u32;
        out[..4].copy_from_slice(&root.to_le_bytes());
        push_table(&mut out, places.root_fields);
        let root_slots: Vec<usize> = present
            .iter()
            .filter(|present| **present)
            .map(|_| push_word(&mut out, 0))
            .collect();
        let mut slots = root_slots.into_iter();
        if let Some(version) = &self.version {
            places.version = push_text(&mut out, slots.next().unwrap(), version);
        }
        if let Some(model) = &self.model {
            places.model = push_text(&mut out, slots.next().unwrap(), model);
        }
        if self.tensors.is_some() {
            align(&mut out, 4);
            places.vector = out.len();
            point_to(&mut out, slots.next().unwrap(), places.vector);
            let count = tensors.len() + self.repeats;
            push_word(&mut out, count as u32);
            let slots: Vec<usize> = (0..count).map(|_| push_word(&mut out, 0)).collect();
            for (tensor, slot) in tensors.iter().zip(&slots) {
                push_tensor(&mut out, &mut places, tensor);
                point_to(&mut out, *slot, places.tables[places.tables.len() - 1]);
            }
            for slot in &slots[tensors.len()..] {
                point_to(&mut out, *slot, places.tables[0]);
            }
        }
        if self.operations.is_some() {
            // An empty vector of tensors.
            align(&mut out, 4);
            let vector = push_word(&mut out, 0);
            point_to(&mut out, slots.next().unwrap(), vector);
        }
        align(&mut out, 4);
        (out, places)
    }
}

fn push_tensor(out: &mut Vec<u8>, places: &mut Offsets, tensor: &ForgedTensor) {
    let widths = [
        tensor.id.map_or(0, |_| 8),
        tensor.name.as_ref().map_or(0, |_| 4),
        tensor.shape.as_ref().map_or(0, |_| 4),
        tensor.dtype.map_or(0, |_| 1),
        tensor.offset.map_or(0, |_| 4),
        tensor.size.map_or(0, |_| 4),
        tensor.unknown.map_or(0, |_| 4),
    ];
    align(out, 2);
    // Fields are ordered by decreasing width: the id is first, at a multiple of 8.
    places.fields.push(out.len());
    let fields = push_fields_placed(out, &widths);
    while out.len() % 8 != 4 {
        out.push(0);
    }
    let table = out.len();
    places.tables.push(table);
    push_table(out, places.fields[places.fields.len() - 1]);
    out.resize(table + fields.1, 0);
    let mut put = |field: usize, bytes: &[u8]| {
        let at = table + fields.0[field];
        out[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(
        0,
        tensor
            .id
            .map(u64::to_le_bytes)
            .as_ref()
            .map_or(&[], |bytes| bytes),
    );
    put(
        3,
        tensor
            .dtype
            .map(i8::to_le_bytes)
            .as_ref()
            .map_or(&[], |bytes| bytes),
    );
    put(
        4,
        tensor
            .offset
            .map(u32::to_le_bytes)
            .as_ref()
            .map_or(&[], |bytes| bytes),
    );
    put(
        5,
        tensor
            .size
            .map(u32::to_le_bytes)
            .as_ref()
            .map_or(&[], |bytes| bytes),
    );
    put(
        6,
        tensor
            .unknown
            .map(u32::to_le_bytes)
            .as_ref()
            .map_or(&[], |bytes| bytes),
    );
    places.names.push(out.len());
    if let Some(name) = &tensor.name {
        let at = push_text(out, table + fields.0[1], name);
        *places.names.last_mut().unwrap() = at;
    }
    align(out, 4);
    places.shapes.push(out.len());
    if let Some(shape) = &tensor.shape {
        let vector = out.len();
        point_to(out, table + fields.0[2], vector);
        push_word(out, shape.len() as u32);
        for dim in shape {
            push_word(out, *dim);
        }
    }
}

/// Writes a vtable for consecutive fields of these widths; width 0 means absent.
fn push_fields(out: &mut Vec<u8>, widths: &[usize]) {
    let mut offset = 4;
    let mut offsets = Vec::new();
    for width in widths {
        offsets.push(if *width == 0 { 0 } else { offset });
        offset += width;
    }
    push_field_list(out, &offsets, offset);
    align(out, 4);
}

/// Writes a vtable with the widest fields first; returns the fields' offsets and the table's length.
fn push_fields_placed(out: &mut Vec<u8>, widths: &[usize]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; widths.len()];
    let mut offset = 4;
    for wanted in [8, 4, 1] {
        for (field, width) in widths.iter().enumerate() {
            if *width == wanted {
                offsets[field] = offset;
                offset += width;
            }
        }
    }
    push_field_list(out, &offsets, offset);
    (offsets, offset)
}

fn push_field_list(out: &mut Vec<u8>, offsets: &[usize], table_len: usize) {
    let used = offsets
        .iter()
        .rposition(|offset| *offset != 0)
        .map_or(0, |last| last + 1);
    for half in [4 + 2 * used, table_len].iter().chain(&offsets[..used]) {
        out.extend((*half as u16).to_le_bytes());
    }
}

fn push_table(out: &mut Vec<u8>, fields: usize) {
    let back = (out.len() - fields) as i32;
    out.extend(back.to_le_bytes());
}

fn push_text(out: &mut Vec<u8>, slot: usize, text: &[u8]) -> usize {
    align(out, 4);
    let at = push_word(out, text.len() as u32);
    point_to(out, slot, at);
    out.extend(text);
    out.push(0);
    at
}

fn push_word(out: &mut Vec<u8>, word: u32) -> usize {
    out.extend(word.to_le_bytes());
    out.len() - 4
}

fn point_to(out: &mut [u8], slot: usize, target: usize) {
    put_word(out, slot, (target - slot) as u32);
}

fn align(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

pub(crate) fn put_word(out: &mut [u8], at: usize, word: u32) {
    out[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

pub(crate) fn put_half(out: &mut [u8], at: usize, half: u16) {
    out[at..at + 2].copy_from_slice(&half.to_le_bytes());
}
