//! Scans a model: its inputs, outputs and operators, and the location of its weights.

use std::{collections::BTreeMap, ops::Range};

use fmt_core::{ByteSource, Error, ErrorKind, Limits};

use crate::{
    dtype::name_of,
    tensor::Weight,
    wire::{COST, Value, Walk, entry, malformed, message},
};

/// The metadata of a model: everything except its weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// The version of the file format.
    pub ir_version: u64,
    /// Name and version of the program that wrote the model, as the file states them.
    pub producer: String,
    /// The graph's name.
    pub graph: String,
    /// The versions of the operator sets, by domain; the usual domain is `ai.onnx`.
    pub opsets: BTreeMap<String, u64>,
    /// The model's inputs, without weights that are listed as inputs with a default.
    pub inputs: Vec<Port>,
    /// The model's outputs.
    pub outputs: Vec<Port>,
    /// How often each operator occurs in all graphs and functions, by domain (empty for `ai.onnx`) and name.
    /// Calls to the file's own functions are not counted.
    pub operators: BTreeMap<(String, String), u64>,
    /// Further metadata of the file (`metadata_props`), by key.
    pub properties: BTreeMap<String, String>,
}

/// An input or an output of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// The name of the input or output.
    pub name: String,
    /// The type in readable form, such as `f32[batch, 3, 224, 224]`.
    pub kind: String,
}

/// The result of scanning a file: its summary and its weights.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) summary: Summary,
    pub(crate) weights: Vec<Weight>,
    /// Descriptions of the parts that are not dense tensors, such as sparse weights.
    pub(crate) foreign: Vec<String>,
}

pub(crate) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Contents, Error> {
    let mut walk = Walk::new(source, limits);
    let walk = &mut walk;
    let mut found = Contents::default();
    let summary = &mut found.summary;
    let (mut graph, mut version, mut functions) = (None, String::new(), Vec::new());
    let mut rest = 0..source.len();
    while let Some((number, value)) = walk.field(&mut rest)? {
        match (number, &value) {
            (1, Value::Number(number)) => summary.ir_version = *number,
            (2, value) => summary.producer = walk.text(value, "the producer's name")?,
            (3, value) => version = walk.text(value, "the producer's version")?,
            (7, value) => {
                let before = graph.replace(message(value, "the graph")?);
                if before.is_some() {
                    return Err(malformed("the model has two graphs"));
                }
            }
            (8, value) => {
                let (domain, version) = opset(walk, message(value, "an operator set")?)?;
                summary.opsets.insert(domain, version);
            }
            (14, value) => {
                let (key, text) = entry(walk, message(value, "a property")?)?;
                summary.properties.insert(key, text);
            }
            (25, value) => {
                functions.push(function(walk, message(value, "a function")?, summary)?);
            }
            _ => {}
        }
    }
    if !version.is_empty() {
        summary.producer = format!("{} {version}", summary.producer).trim().to_owned();
    }
    let graph = graph.ok_or_else(|| {
        Error::new(ErrorKind::BadMagic, "the file is not an ONNX model")
            .expected("a graph")
            .found("none")
    })?;
    main_graph(walk, graph, &mut found)?;
    for function in &functions {
        found.summary.operators.remove(function);
    }
    Ok(found)
}

/// Counts the operators of a function that the file defines, and returns its domain and name.
fn function(
    walk: &mut Walk<'_>,
    mut rest: Range<u64>,
    summary: &mut Summary,
) -> Result<(String, String), Error> {
    walk.charge(COST)?;
    let (mut name, mut domain) = (String::new(), String::new());
    while let Some((number, value)) = walk.field(&mut rest)? {
        match number {
            1 => name = walk.text(&value, "a function's name")?,
            7 => node(walk, message(&value, "a node")?, summary, 0)?,
            10 => domain = walk.text(&value, "a function's domain")?,
            _ => {}
        }
    }
    Ok((domain, name))
}

fn main_graph(walk: &mut Walk<'_>, mut rest: Range<u64>, found: &mut Contents) -> Result<(), Error> {
    let mut inputs = Vec::new();
    while let Some((number, value)) = walk.field(&mut rest)? {
        match number {
            1 => node(walk, message(&value, "a node")?, &mut found.summary, 0)?,
            2 => found.summary.graph = walk.text(&value, "the graph's name")?,
            5 => {
                if found.weights.len() as u64 >= walk.limits().tensors {
                    let error = Error::new(ErrorKind::TooLarge, "the number of tensors");
                    return Err(error.expected(format_args!("at most {}", walk.limits().tensors)));
                }
                found
                    .weights
                    .push(Weight::read(walk, message(&value, "a weight")?)?);
            }
            11 => inputs.push(port(walk, message(&value, "an input")?)?),
            12 => {
                let port = port(walk, message(&value, "an output")?)?;
                found.summary.outputs.push(port);
            }
            15 => {
                walk.charge(COST)?;
                found
                    .foreign
                    .push(format!("sparse weight {}", found.foreign.len()));
            }
            _ => {}
        }
    }
    let names: std::collections::HashSet<_> = found.weights.iter().map(|weight| &*weight.name).collect();
    inputs.retain(|input| !names.contains(&*input.name));
    found.summary.inputs = inputs;
    Ok(())
}

/// Counts the operator of a node, and the operators of the node's subgraphs.
fn node(walk: &mut Walk<'_>, mut rest: Range<u64>, summary: &mut Summary, depth: u64) -> Result<(), Error> {
    if depth > walk.limits().depth {
        let error = Error::new(ErrorKind::TooLarge, "the depth of graphs inside graphs").at(rest.start);
        return Err(error.expected(format_args!("at most {}", walk.limits().depth)));
    }
    let (mut name, mut domain) = (String::new(), String::new());
    while let Some((number, value)) = walk.field(&mut rest)? {
        match number {
            4 => name = walk.text(&value, "an operator's name")?,
            7 => domain = walk.text(&value, "an operator's domain")?,
            5 => {
                let mut rest = message(&value, "an attribute")?;
                while let Some((number, value)) = walk.field(&mut rest)? {
                    if matches!(number, 6 | 11) {
                        graph_inside(walk, message(&value, "a graph")?, summary, depth + 1)?;
                    }
                }
            }
            _ => {}
        }
    }
    if domain == "ai.onnx" {
        domain.clear();
    }
    *summary.operators.entry((domain, name)).or_default() += 1;
    Ok(())
}

fn graph_inside(
    walk: &mut Walk<'_>,
    mut rest: Range<u64>,
    summary: &mut Summary,
    depth: u64,
) -> Result<(), Error> {
    while let Some((number, value)) = walk.field(&mut rest)? {
        if number == 1 {
            node(walk, message(&value, "a node")?, summary, depth)?;
        }
    }
    Ok(())
}

fn opset(walk: &mut Walk<'_>, mut rest: Range<u64>) -> Result<(String, u64), Error> {
    walk.charge(COST)?;
    let (mut domain, mut version) = (String::new(), 0);
    while let Some((number, value)) = walk.field(&mut rest)? {
        match (number, &value) {
            (1, value) => domain = walk.text(value, "the domain of an operator set")?,
            (2, Value::Number(number)) => version = *number,
            _ => {}
        }
    }
    if domain.is_empty() {
        "ai.onnx".clone_into(&mut domain);
    }
    Ok((domain, version))
}

fn port(walk: &mut Walk<'_>, mut rest: Range<u64>) -> Result<Port, Error> {
    walk.charge(COST)?;
    let mut port = Port {
        kind: "of any type".to_owned(),
        ..Port::default()
    };
    while let Some((number, value)) = walk.field(&mut rest)? {
        match number {
            1 => port.name = walk.text(&value, "the name of an input or output")?,
            2 => port.kind = kind(walk, message(&value, "a type")?)?,
            _ => {}
        }
    }
    Ok(port)
}

/// Returns the readable form of a type.
fn kind(walk: &mut Walk<'_>, mut rest: Range<u64>) -> Result<String, Error> {
    let mut kind = "of any type".to_owned();
    while let Some((number, value)) = walk.field(&mut rest)? {
        kind = match number {
            1 => tensor_kind(walk, message(&value, "a type")?)?,
            4 => "a sequence".to_owned(),
            5 => "a map".to_owned(),
            7 => "opaque".to_owned(),
            8 => "a sparse tensor".to_owned(),
            9 => "optional".to_owned(),
            _ => continue,
        };
    }
    Ok(kind)
}

fn tensor_kind(walk: &mut Walk<'_>, mut rest: Range<u64>) -> Result<String, Error> {
    let (mut dtype, mut dims) = ("any".to_owned(), None);
    while let Some((number, value)) = walk.field(&mut rest)? {
        match (number, &value) {
            (1, Value::Number(number)) => dtype = name_of(*number),
            (2, value) => {
                let mut rest = message(value, "a shape")?;
                let mut shape: Vec<String> = Vec::new();
                while let Some((number, value)) = walk.field(&mut rest)? {
                    if number == 1 {
                        walk.charge(32)?;
                        shape.push(dim(walk, message(&value, "a dimension")?)?);
                    }
                }
                dims = Some(shape.join(", "));
            }
            _ => {}
        }
    }
    Ok(match dims {
        Some(dims) => format!("{dtype}[{dims}]"),
        None => format!("{dtype} of any shape"),
    })
}

fn dim(walk: &mut Walk<'_>, mut rest: Range<u64>) -> Result<String, Error> {
    let mut dim = "?".to_owned();
    while let Some((number, value)) = walk.field(&mut rest)? {
        match (number, &value) {
            (1, Value::Number(number)) => dim = number.cast_signed().to_string(),
            (2, value) => dim = walk.text(value, "the name of a dimension")?,
            _ => {}
        }
    }
    Ok(dim)
}
