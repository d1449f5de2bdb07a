//! `tensor diff`: what two files do not have in common.

use std::{collections::HashMap, io::Write};

use fmt_core::{Entry, Error, Layout, TensorReader};

use crate::{
    failure::{About, Failure, Outcome},
    files,
    options::Diff,
    pieces,
    progress::Progress,
    stats::see_all,
    table,
};

pub(crate) fn run(options: &Diff, out: &mut impl Write) -> Outcome {
    let (left, right) = (files::open(&options.left)?, files::open(&options.right)?);
    let names = |reader: &dyn TensorReader| -> HashMap<String, usize> {
        let entries = reader.entries().iter().enumerate();
        entries
            .map(|(index, entry)| (entry.name.clone(), index))
            .collect()
    };
    let (left_names, right_names) = (names(&*left), names(&*right));
    let mut differences = 0;
    for (key, value) in left.metadata() {
        if right.metadata().get(key) != Some(value) {
            writeln!(out, "- {}: {}", table::text(key), table::text(value))?;
            differences += 1;
        }
    }
    for (key, value) in right.metadata() {
        if left.metadata().get(key) != Some(value) {
            writeln!(out, "+ {}: {}", table::text(key), table::text(value))?;
            differences += 1;
        }
    }
    let bytes = |entry: &Entry| entry.byte_len().unwrap_or(0);
    let mut progress = Progress::new(left.entries().iter().map(bytes).sum());
    for (index, entry) in left.entries().iter().enumerate() {
        let name = table::text(&entry.name);
        let Some(&other_index) = right_names.get(&entry.name) else {
            writeln!(out, "- tensor '{name}' {}", kind(entry))?;
            differences += 1;
            continue;
        };
        let other = &right.entries()[other_index];
        if kind(entry) != kind(other) {
            writeln!(out, "~ tensor '{name}': {} became {}", kind(entry), kind(other))?;
            differences += 1;
            continue;
        }
        let pair = Pair {
            left: (&*left, index),
            right: (&*right, other_index),
            options,
        };
        if let Some(difference) = pair.compare(&mut progress)? {
            writeln!(out, "~ tensor '{name}': {difference}")?;
            differences += 1;
        }
    }
    for entry in right
        .entries()
        .iter()
        .filter(|entry| !left_names.contains_key(&entry.name))
    {
        writeln!(out, "+ tensor '{}' {}", table::text(&entry.name), kind(entry))?;
        differences += 1;
    }
    if differences == 0 {
        Ok(())
    } else {
        Err(Failure::Found)
    }
}

/// What a tensor is, whatever is in it.
fn kind(entry: &Entry) -> String {
    let layout = match &entry.layout {
        Layout::Dense => "",
        Layout::Coo { .. } => ", coo",
        _ => ", of an unknown layout",
    };
    format!(
        "{}{:?}{layout}",
        table::text(&entry.dtype.to_string()),
        entry.shape.dims()
    )
}

/// A tensor in two files.
struct Pair<'r> {
    left: (&'r dyn TensorReader, usize),
    right: (&'r dyn TensorReader, usize),
    options: &'r Diff,
}

impl Pair<'_> {
    /// Says how the two differ, if they do.
    fn compare(&self, progress: &mut Progress) -> Outcome<Option<String>> {
        let ((left, left_index), (right, right_index)) = (self.left, self.right);
        if let Layout::Coo { .. } = left.entries()[left_index].layout {
            let sparse = left.sparse(left_index).about(&self.options.left)?;
            let other = right.sparse(right_index).about(&self.options.right)?;
            let sorted = |sparse: &tensor_core::SparseCoo| sparse.sorted().map_err(|error| error.to_string());
            let is_same = match (sorted(&sparse), sorted(&other)) {
                (Ok(sparse), Ok(other)) => {
                    sparse.indices() == other.indices() && sparse.values().bytes() == other.values().bytes()
                }
                _ => sparse.indices() == other.indices() && sparse.values().bytes() == other.values().bytes(),
            };
            return Ok((!is_same).then(|| format!("other entries ({} and {})", sparse.nnz(), other.nnz())));
        }
        let mut differences = Differences::default();
        let (mut lefts, mut rights) = (Numbers::new(left, left_index), Numbers::new(right, right_index));
        loop {
            let (a, b) = (
                lefts.next_part().about(&self.options.left)?,
                rights.next_part().about(&self.options.right)?,
            );
            if a.bytes.is_empty() && b.bytes.is_empty() {
                break;
            }
            // Parts of both have the same rows, unless one of them comes whole.
            let size = lefts.element_size();
            let len = a.bytes.len().min(b.bytes.len());
            if a.bytes[..len] != b.bytes[..len] {
                differences.count(self.options, &a, &b, len / size, lefts.seen);
            }
            progress.advance(len)?;
            lefts.skip(len);
            rights.skip(len);
        }
        Ok(differences.say(left.entries()[left_index].shape.dims()))
    }
}

/// A tensor's elements that come in parts and are taken in others.
struct Numbers<'r> {
    parts: pieces::Parts<'r>,
    current: Option<tensor_core::Tensor>,
    /// Bytes of the current part that are done.
    done: usize,
    /// Elements that are done.
    seen: u64,
    size: usize,
}

/// What is left of a part.
struct Part {
    bytes: tensor_core::Bytes,
    dtype: tensor_core::DType,
}

impl<'r> Numbers<'r> {
    fn new(reader: &'r dyn TensorReader, index: usize) -> Self {
        let size = reader.entries()[index]
            .dtype
            .known()
            .map_or(1, |dtype| dtype.size());
        Self {
            parts: pieces::parts(reader, index),
            current: None,
            done: 0,
            seen: 0,
            size,
        }
    }

    fn element_size(&self) -> usize {
        self.size
    }

    fn next_part(&mut self) -> Result<Part, Error> {
        loop {
            if let Some(tensor) = &self.current
                && self.done < tensor.bytes().len()
            {
                return Ok(Part {
                    bytes: tensor.bytes().slice(self.done..),
                    dtype: tensor.spec().dtype(),
                });
            }
            self.done = 0;
            match self.parts.next() {
                Some(part) => self.current = Some(part?),
                None => {
                    self.current = None;
                    return Ok(Part {
                        bytes: tensor_core::Bytes::new(),
                        dtype: tensor_core::DType::U8,
                    });
                }
            }
        }
    }

    fn skip(&mut self, bytes: usize) {
        self.done += bytes;
        self.seen += (bytes / self.size) as u64;
    }
}

/// How many elements differ, and by how much.
#[derive(Default)]
struct Differences {
    count: u64,
    first: Option<u64>,
    largest: f64,
    at: u64,
}

impl Differences {
    /// Compares the first elements of two parts that are behind `seen` others.
    fn count(&mut self, options: &Diff, left: &Part, right: &Part, elements: usize, seen: u64) {
        let values = |part: &Part| {
            let size = part.dtype.size();
            let mut values = Vec::with_capacity(elements);
            let shape = tensor_core::Shape::vector(elements as u64);
            let tensor = tensor_core::TensorSpec::new(part.dtype, shape)
                .and_then(|spec| tensor_core::Tensor::new(spec, part.bytes.slice(..elements * size)));
            if let Ok(tensor) = tensor {
                see_all(&tensor, &mut |value| values.push(value));
            }
            values
        };
        let (lefts, rights) = (values(left), values(right));
        let size = left.dtype.size();
        for (index, (a, b)) in lefts.iter().zip(&rights).enumerate() {
            let own = index * size..(index + 1) * size;
            // What is the same to the bit is the same, NaNs too.
            if left.bytes[own.clone()] == right.bytes[own] {
                continue;
            }
            let distance = (a - b).abs();
            let tolerated = options.atol + options.rtol * b.abs();
            let is_close = tolerated > 0.0 && (distance <= tolerated || (a.is_nan() && b.is_nan()));
            if is_close {
                continue;
            }
            let place = seen + index as u64;
            self.count += 1;
            self.first.get_or_insert(place);
            if distance > self.largest {
                (self.largest, self.at) = (distance, place);
            }
        }
    }

    fn say(&self, dims: &[u64]) -> Option<String> {
        let first = self.first?;
        let all: u64 = dims.iter().product();
        let mut text = format!(
            "{} of {all} elements differ, the first at {:?}",
            self.count,
            place(first, dims)
        );
        if self.largest > 0.0 {
            text += &format!(", most by {:e} at {:?}", self.largest, place(self.at, dims));
        }
        Some(text)
    }
}

/// The coordinates of an element.
fn place(mut element: u64, dims: &[u64]) -> Vec<u64> {
    let mut place = vec![0; dims.len()];
    for (place, &dim) in place.iter_mut().zip(dims).rev() {
        *place = element % dim.max(1);
        element /= dim.max(1);
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_row_major() {
        assert_eq!(place(7, &[2, 3, 2]), [1, 0, 1]);
        assert_eq!(place(0, &[]), [0u64; 0]);
    }
}
