//! Loads tensor contents from separate files next to the model (external data). PyTorch writes such files,
//! and models beyond 2 GB need them.
//!
//! A file's name must not contain directories. The caller opens the files and applies its own rules for model
//! files. Offsets and lengths are checked against the file's size.

use std::collections::BTreeSet;

use bytes::Bytes;
use tensor_core::QuotedName;

use crate::{
    Error,
    proto::{AttributeProto, GraphProto, ModelProto, TensorProto, tensor_proto::DataLocation},
};

/// Maximum number of files per model.
const MAX_FILES: usize = 10_000;

/// Returns the names of the files that a model needs next to it.
///
/// # Errors
/// Returns an error for a name with directories, an offset or length that is not a number, a tensor that also
/// has contents inside the model, and too many files.
pub fn names(model: &ModelProto) -> Result<Vec<String>, Error> {
    let mut names = BTreeSet::new();
    // Cloning the model is cheap, since clones share the contents of tensors.
    visit(&mut model.clone(), &mut |tensor| {
        names.insert(ExternalLocation::of(tensor)?.name);
        Ok(())
    })?;
    if names.len() > MAX_FILES {
        return Err(Error::invalid(format!(
            "the model's external data is in {} files, the limit is {MAX_FILES}",
            names.len()
        )));
    }
    Ok(names.into_iter().collect())
}

/// Sets the contents of all external tensors to slices of the files, given by name.
///
/// # Errors
/// Returns the errors of [`names`], and errors for a file missing from `files` and for ranges beyond the end
/// of a file.
pub fn take_in(model: &mut ModelProto, files: &[(String, Bytes)]) -> Result<(), Error> {
    visit(model, &mut |tensor| {
        let location = ExternalLocation::of(tensor)?;
        let file = files.iter().find(|(name, _)| *name == location.name);
        let (_, content) = file.ok_or_else(|| {
            invalid(
                tensor,
                format!(
                    "has its external data in the file {}, which was not given",
                    QuotedName(&location.name)
                ),
            )
        })?;
        let length = content.len() as u64;
        let end = match location.length {
            Some(length) => location.offset.checked_add(length),
            None => Some(length),
        };
        let end = end.filter(|&end| location.offset <= end && end <= length).ok_or_else(|| {
            invalid(
                tensor,
                format!(
                    "has its external data at {} of {}, {} bytes long, which is beyond the file's {length} bytes",
                    location.offset,
                    QuotedName(&location.name),
                    location.length.unwrap_or(0)
                ),
            )
        })?;
        // The casts are lossless: the range was checked against a buffer in memory.
        tensor.raw_data = content.slice(location.offset as usize..end as usize);
        tensor.external_data.clear();
        tensor.set_data_location(DataLocation::Default);
        Ok(())
    })
}

/// The file, offset and length of a tensor's contents.
struct ExternalLocation {
    name: String,
    offset: u64,
    /// Number of bytes; `None` means up to the end of the file.
    length: Option<u64>,
}

impl ExternalLocation {
    fn of(tensor: &TensorProto) -> Result<Self, Error> {
        let entry = |key: &str| {
            let mut entries = tensor.external_data.iter();
            entries
                .find(|entry| entry.key == key)
                .map(|entry| entry.value.as_str())
        };
        let number = |key: &str| {
            let number = entry(key).map(|text| text.trim().parse::<u64>());
            number.transpose().map_err(|_| {
                let text = QuotedName(entry(key).unwrap_or_default()).to_string();
                invalid(
                    tensor,
                    format!("has external data with the {key} {text}, expected a number"),
                )
            })
        };
        let name = entry("location").unwrap_or_default();
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
            return Err(invalid(
                tensor,
                format!(
                    "has its external data in {}, expected a file name in the directory of the model's \
                     version; save it again with such a name (in Python: onnx.save(model, 'model.onnx', \
                     save_as_external_data=True, location='model.onnx.data'))",
                    QuotedName(name)
                ),
            ));
        }
        if !tensor.raw_data.is_empty() {
            return Err(invalid(tensor, "has both data and external data"));
        }
        Ok(Self {
            name: name.to_owned(),
            offset: number("offset")?.unwrap_or(0),
            length: number("length")?,
        })
    }
}

fn invalid(tensor: &TensorProto, reason: impl AsRef<str>) -> Error {
    Error::invalid(format!("tensor {} {}", QuotedName(&tensor.name), reason.as_ref()))
}

type Visitor<'v> = dyn FnMut(&mut TensorProto) -> Result<(), Error> + 'v;

/// Visits all tensors with external data.
fn visit(model: &mut ModelProto, visitor: &mut Visitor<'_>) -> Result<(), Error> {
    if let Some(graph) = &mut model.graph {
        visit_graph(graph, visitor)?;
    }
    for function in &mut model.functions {
        let nodes = function.node.iter_mut().flat_map(|node| &mut node.attribute);
        for attribute in nodes.chain(&mut function.attribute_proto) {
            visit_attribute(attribute, visitor)?;
        }
    }
    Ok(())
}

fn visit_graph(graph: &mut GraphProto, visitor: &mut Visitor<'_>) -> Result<(), Error> {
    let sparse = graph.sparse_initializer.iter_mut();
    let parts = sparse.flat_map(|sparse| sparse.values.iter_mut().chain(&mut sparse.indices));
    for tensor in graph.initializer.iter_mut().chain(parts) {
        visit_tensor(tensor, visitor)?;
    }
    let mut attributes = graph.node.iter_mut().flat_map(|node| &mut node.attribute);
    attributes.try_for_each(|attribute| visit_attribute(attribute, visitor))
}

fn visit_attribute(attribute: &mut AttributeProto, visitor: &mut Visitor<'_>) -> Result<(), Error> {
    let sparse = attribute
        .sparse_tensor
        .iter_mut()
        .chain(&mut attribute.sparse_tensors);
    let parts = sparse.flat_map(|sparse| sparse.values.iter_mut().chain(&mut sparse.indices));
    for tensor in attribute.t.iter_mut().chain(&mut attribute.tensors).chain(parts) {
        visit_tensor(tensor, visitor)?;
    }
    let mut graphs = attribute.g.iter_mut().chain(&mut attribute.graphs);
    graphs.try_for_each(|graph| visit_graph(graph, visitor))
}

fn visit_tensor(tensor: &mut TensorProto, visitor: &mut Visitor<'_>) -> Result<(), Error> {
    match tensor.data_location() == DataLocation::External || !tensor.external_data.is_empty() {
        true => visitor(tensor),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::proto::StringStringEntryProto;

    fn model(entries: &[(&str, &str)]) -> ModelProto {
        let entry = |&(key, value): &(&str, &str)| StringStringEntryProto {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let tensor = TensorProto {
            name: "w".to_owned(),
            data_location: DataLocation::External as i32,
            external_data: entries.iter().map(entry).collect(),
            ..TensorProto::default()
        };
        ModelProto {
            graph: Some(GraphProto {
                initializer: vec![tensor],
                ..GraphProto::default()
            }),
            ..ModelProto::default()
        }
    }

    fn taken(entries: &[(&str, &str)]) -> Result<Bytes, String> {
        let files = [("data".to_owned(), Bytes::from_static(b"0123456789"))];
        let mut model = model(entries);
        take_in(&mut model, &files).map_err(|error| error.to_string())?;
        let tensor = &model.graph.unwrap().initializer[0];
        assert_eq!(tensor.data_location(), DataLocation::Default);
        Ok(tensor.raw_data.clone())
    }

    #[test]
    fn contents_are_slices_of_the_file() {
        assert_eq!(
            taken(&[("location", "data"), ("offset", "2"), ("length", "3")]).unwrap(),
            "234"
        );
        assert_eq!(taken(&[("location", "data"), ("offset", "7")]).unwrap(), "789");
        assert_eq!(taken(&[("location", "data")]).unwrap(), "0123456789");
        assert_eq!(names(&model(&[("location", "data")])).unwrap(), ["data"]);
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for name in ["", ".", "..", "../data", "/data", "a/data", "a\\data", "da\0ta"] {
            let error = names(&model(&[("location", name)])).unwrap_err().to_string();
            assert!(error.contains("'w' has its external data in"), "{error}");
        }
        let most = u64::MAX.to_string();
        for (offset, length) in [
            ("8", "3"),
            ("11", "0"),
            (&*most, "1"),
            (&*most, &*most),
            ("11", ""),
        ] {
            let mut entries = vec![("location", "data"), ("offset", offset)];
            if !length.is_empty() {
                entries.push(("length", length));
            }
            let error = taken(&entries).unwrap_err();
            assert!(error.contains("beyond the file's 10 bytes"), "{error}");
        }
        let error = taken(&[("location", "data"), ("offset", "-1")]).unwrap_err();
        assert!(error.contains("the offset '-1', expected a number"), "{error}");
        let error = taken(&[("location", "other")]).unwrap_err();
        assert!(error.contains("'other', which was not given"), "{error}");
    }
}
