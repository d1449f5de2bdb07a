//! Reads inputs from files and fits them to the model.

use std::{fs, path::Path};

use fmt_core::{Error, ErrorKind, Layout, TensorReader};
use oip_types::{BytesTensor, DataType, ModelMetadata, TensorMetadata, TensorValue};
use tensor_core::Shape;

use crate::{
    client::{
        cast::cast,
        mismatch,
        options::{Binding, Server, Source},
        texts, values,
    },
    failure::{About, Outcome},
    files, inspect, table,
};

/// Reads a command's inputs and checks them against the model's metadata. If the server has no metadata,
/// inputs are not checked.
pub(super) fn read(server: &Server, metadata: &ModelMetadata) -> Outcome<Vec<(String, TensorValue)>> {
    let mut inputs: Vec<(String, TensorValue)> = Vec::new();
    for binding in &server.inputs {
        let name = &binding.name;
        if inputs.iter().any(|(known, _)| known == name) {
            return Err(mismatch(format!("input '{name}' is given more than once")));
        }
        let expected = expected(metadata, name)?;
        let value = match &binding.source {
            Source::File(source) => open(source)?,
            Source::Lines(path) => TensorValue::Bytes(lines(path)?),
            Source::Literal(text) => values::literal("the value", text, name, expected)?,
            Source::Json(path) => values::json_file(path, name, expected)?,
            Source::Csv(path) => values::csv_file(path, name, expected)?,
        };
        let value = match expected {
            Some(expected) => fit(server, metadata, expected, binding, value)?,
            None => value,
        };
        inputs.push((name.clone(), value));
    }
    Ok(inputs)
}

/// Returns the metadata of the input `name`; `None` if the server does not list the model's inputs.
fn expected<'m>(metadata: &'m ModelMetadata, name: &str) -> Outcome<Option<&'m TensorMetadata>> {
    let found = metadata.inputs.iter().find(|input| input.name == name);
    if found.is_some() || metadata.inputs.is_empty() {
        return Ok(found);
    }
    let known: Vec<String> = metadata.inputs.iter().map(ToString::to_string).collect();
    let (model, known) = (&metadata.name, known.join(", "));
    Err(mismatch(format!(
        "model '{model}' has no input '{name}'; it takes {known}"
    )))
}

/// Reads the tensor that `FILE` or `FILE#TENSOR` names. The file name may also contain `#`.
fn open(source: &str) -> Outcome<TensorValue> {
    let whole = Path::new(source);
    let (path, name) = match source.rsplit_once('#') {
        Some((path, name)) if !whole.exists() => (Path::new(path), Some(name)),
        _ => (whole, None),
    };
    let reader = files::open(path)?;
    let entries = reader.entries();
    let index = match (name, entries.len()) {
        (Some(name), _) => inspect::find(&reader, name).about(path)?,
        (None, 1) => 0,
        (None, count) => {
            let names = entries.iter().take(3).map(|entry| table::text(&entry.name));
            let names: Vec<String> = names.collect();
            let what = format!("the file holds {}", table::tensors(count));
            let error = Error::new(ErrorKind::OutOfBounds, what)
                .expected("one, or its name after a #")
                .found(names.join(", "));
            return Err(error).about(path);
        }
    };
    if let Layout::Coo { .. } = entries[index].layout {
        let error = Error::new(
            ErrorKind::Unsupported,
            "the tensor is sparse; models take dense ones",
        );
        return Err(error.of_tensor(&entries[index].name)).about(path);
    }
    let entry = &entries[index];
    let Some(width) = texts::width(entry) else {
        return Ok(reader.tensor(index).about(path)?.into());
    };
    let texts = texts::read(&reader, index, width).map_err(|error| error.of_tensor(&entry.name));
    Ok(TensorValue::Bytes(texts.about(path)?))
}

/// Reads a text file whose lines are the elements; line endings are not part of them.
fn lines(path: &Path) -> Outcome<BytesTensor> {
    let text = fs::read(path)
        .map_err(|error| Error::io("the file cannot be read", error))
        .about(path)?;
    let mut elements: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // A line ending at the end of the file does not start another line.
    elements.pop_if(|last| last.is_empty());
    let elements = elements
        .iter()
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let count = elements.len() as u64;
    BytesTensor::from_elements(Shape::vector(count), elements).map_err(mismatch)
}

/// Converts a value to the datatype and shape of the model, or explains why that is impossible.
fn fit(
    server: &Server,
    metadata: &ModelMetadata,
    expected: &TensorMetadata,
    binding: &Binding,
    value: TensorValue,
) -> Outcome<TensorValue> {
    let (name, model) = (&binding.name, &metadata.name);
    let source = match &binding.source {
        Source::File(source) => source.clone(),
        Source::Lines(path) | Source::Json(path) | Source::Csv(path) => path.display().to_string(),
        Source::Literal(_) => "the value".to_owned(),
    };
    let value = match (value, expected.datatype) {
        (value, datatype) if value.datatype() == datatype => value,
        (TensorValue::Fixed(tensor), DataType::Fixed(dtype)) if server.cast => {
            let cast = cast(&tensor, dtype);
            let cast = cast.map_err(|error| mismatch(format!("input '{name}': {source}: {error}")))?;
            cast.into()
        }
        (value, datatype) => {
            let found = value.datatype();
            let advice = match (&value, datatype) {
                (TensorValue::Fixed(_), DataType::Fixed(_)) => "--cast converts it",
                (TensorValue::Fixed(_), DataType::Bytes) => {
                    "a text file of its elements is given as NAME=@FILE"
                }
                (TensorValue::Bytes(_), _) => match &binding.source {
                    Source::Lines(_) => "a file of tensors is given without the @",
                    _ => "strings are not converted to numbers",
                },
            };
            let message = format!(
                "input '{name}' of model '{model}' takes {datatype}, {source} holds {found}; {advice}"
            );
            return Err(mismatch(message));
        }
    };
    let value = match &binding.source {
        // A tensor file stores the shape of the value; text formats may not.
        Source::File(_) => value,
        _ => values::fit_shape(expected, value),
    };
    if !expected.shape.matches(value.shape()) {
        let (wanted, found) = (&expected.shape, value.shape());
        let message =
            format!("input '{name}' of model '{model}' takes shape {wanted}, {source} holds {found}");
        return Err(mismatch(message));
    }
    Ok(value)
}
