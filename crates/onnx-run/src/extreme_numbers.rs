//! Tests robustness against extreme integers: sets each integer attribute in the operators' table, and each
//! constant integer input, to the largest, the smallest and other unusual integers. No model may crash the
//! process, panic, or run for long.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use onnx_graph::{
    decode,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, canonical_domain,
        tensor_proto::DataType,
        tensor_shape_proto::{Dimension, dimension},
        type_proto,
    },
};
use onnx_operators::{AttributeType, NEWEST, attribute_type};
use onnx_tensor::{Tensor, cancelling::Cancellation};
use prost::Message;

use crate::operators::registry::{registered_name, rows};
use crate::{
    Session, fixtures,
    test_models::{self, int, ints, node},
};

const EXTREMES: [i64; 6] = [0, 1, -1, 1 << 31, i64::MAX, i64::MIN];

/// Maximum time to load and run one model.
const PATIENCE: Duration = Duration::from_secs(60);

/// Deadline of one run.
const REQUEST: Duration = Duration::from_secs(5);

/// Stack size of the engine's threads.
const STACK: usize = 8 << 20;

/// Maximum size of a file to use, in bytes. Larger files contain weights, so they take long to load, and have
/// no additional integers.
const MAX_FILE: usize = 20 << 10;

/// The location of an integer in a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum IntegerLocation {
    Attribute(&'static str),
    Input(usize),
}

/// The index of a model, and the index of a node among the nodes of all graphs of the model, in the order of
/// [`each_node`].
type Base = (usize, usize);

/// Returns the fixtures' models, and some models of operators without a fixture.
fn bases() -> Vec<ModelProto> {
    let paths = fixtures::FILES
        .values()
        .filter(|path| path.extension().is_some_and(|ending| ending == "onnx"))
        .filter(|path| path.with_extension("response.json").exists());
    let files = paths.map(|path| std::fs::read(path).unwrap());
    let models = files
        .filter(|file| file.len() <= MAX_FILE)
        .map(|file| decode(&file.into()).unwrap());
    models.chain(without_fixtures()).collect()
}

fn without_fixtures() -> Vec<ModelProto> {
    let of_ints = |op_type: &str, inputs: &[&str], attributes: Vec<AttributeProto>| NodeProto {
        attribute: attributes,
        ..node(op_type, inputs, "y")
    };
    let model = |node: NodeProto, dims: &[i64], constants: Vec<TensorProto>| {
        let mut model = test_models::model(vec![node], dims, dims, constants);
        model.graph.as_mut().unwrap().output[0].r#type = None;
        model.opset_import.push(onnx_graph::proto::OperatorSetIdProto {
            domain: "ai.onnx.ml".to_owned(),
            version: 3,
        });
        model
    };
    let vectorizer = NodeProto {
        domain: "ai.onnx.ml".to_owned(),
        ..of_ints("FeatureVectorizer", &["x"], vec![ints("inputdimensions", &[3])])
    };
    let mut older = model(
        of_ints("Scatter", &["x", "i", "u"], vec![]),
        &[2, 3],
        vec![
            integers("i", &[1, 3], &[0; 3]),
            test_models::constant("u", &[1, 3]),
        ],
    );
    older.opset_import[0].version = 10;
    let pairs = [
        "And", "Equal", "Greater", "Less", "Or", "Pow", "Xor", "Add", "Sub", "Mul", "Div",
    ]
    .map(|op_type| {
        let mut pair = model(
            of_ints(op_type, &["x", "x"], vec![int("broadcast", 1)]),
            &[2, 3],
            vec![],
        );
        pair.opset_import[0].version = 6;
        pair
    });
    let others = vec![
        model(of_ints("Bernoulli", &["x"], vec![]), &[2, 3], vec![]),
        model(of_ints("CastLike", &["x", "x"], vec![]), &[2, 3], vec![]),
        model(
            of_ints("GroupNormalization", &["x", "s", "s"], vec![int("num_groups", 2)]),
            &[1, 4, 3],
            vec![test_models::constant("s", &[2])],
        ),
        model(of_ints("IsInf", &["x"], vec![]), &[2, 3], vec![]),
        model(of_ints("LogSoftmax", &["x"], vec![]), &[2, 3], vec![]),
        model(of_ints("Mod", &["x", "x"], vec![int("fmod", 1)]), &[2, 3], vec![]),
        model(
            of_ints("RandomNormal", &[], vec![ints("shape", &[2, 3])]),
            &[2, 3],
            vec![],
        ),
        model(of_ints("RandomNormalLike", &["x"], vec![]), &[2, 3], vec![]),
        model(
            of_ints("Trilu", &["x", "k"], vec![]),
            &[2, 3],
            vec![integers("k", &[], &[0])],
        ),
        model(vectorizer, &[2, 3], vec![]),
        older,
    ];
    others.into_iter().chain(pairs).chain(of_sizes()).collect()
}

/// The name of the graphs of [`of_sizes`], in which an operator combines a size and a constant.
const OF_SIZES: &str = "sizes";

/// Returns models that compute with a dimension's size and use the result as a shape, a slice bound, and an
/// output.
fn of_sizes() -> Vec<ModelProto> {
    let operators = [
        "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Pow", "Equal", "Less", "Concat", "Gather",
    ];
    let uses = operators
        .into_iter()
        .flat_map(|op_type| ["ConstantOfShape", "Slice", "Identity"].map(|user| (op_type, user)));
    uses.map(|(op_type, user)| {
        let attributes = if op_type == "Concat" {
            vec![int("axis", 0)]
        } else {
            vec![]
        };
        let computed = NodeProto {
            attribute: attributes,
            ..node(op_type, &["size", "c"], "computed")
        };
        let inputs: &[&str] = if user == "Slice" {
            &["x", "one", "computed"]
        } else {
            &["computed"]
        };
        let size = NodeProto {
            attribute: vec![int("start", 0), int("end", 1)],
            ..node("Shape", &["x"], "size")
        };
        let nodes = vec![size, computed, node(user, inputs, "y")];
        let constants = vec![integers("c", &[1], &[0]), integers("one", &[1], &[1])];
        let mut model = test_models::model(nodes, &[4, 3], &[], constants);
        let graph = model.graph.as_mut().unwrap();
        graph.name = OF_SIZES.to_owned();
        graph.output[0].r#type = None;
        model
    })
    .collect()
}

fn integers(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: dims.to_vec(),
        data_type: DataType::Int64 as i32,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// Calls a function for each node of a graph and its subgraphs, with the node's graph.
fn each_node(
    graph: &mut GraphProto,
    number: &mut usize,
    change: &mut impl FnMut(&mut GraphProto, usize, usize),
) {
    for index in 0..graph.node.len() {
        change(graph, index, *number);
        *number += 1;
        let mut node = std::mem::take(&mut graph.node[index]);
        for attribute in &mut node.attribute {
            if let Some(inner) = &mut attribute.g {
                each_node(inner, number, change);
            }
        }
        graph.node[index] = node;
    }
}

/// Returns the number of integers of a small integer constant.
fn small_integers(tensor: &TensorProto) -> Option<usize> {
    let is_integer = [DataType::Int64 as i32, DataType::Int32 as i32].contains(&tensor.data_type);
    let count: i64 = tensor.dims.iter().product();
    (is_integer && (1..=64).contains(&count)).then_some(count as usize)
}

fn replace(tensor: &mut TensorProto, number: i64) {
    let count = small_integers(tensor).unwrap();
    tensor.raw_data = bytes::Bytes::new();
    (tensor.int32_data, tensor.int64_data) = (vec![], vec![]);
    match tensor.data_type == DataType::Int64 as i32 {
        true => tensor.int64_data = vec![number; count],
        false => tensor.int32_data = vec![number.clamp(i32::MIN.into(), i32::MAX.into()) as i32; count],
    }
}

/// Finds a constant by name: an initializer, or the value of a `Constant`.
fn constant<'g>(graph: &'g mut GraphProto, name: &str) -> Option<&'g mut TensorProto> {
    let made = graph.node.iter_mut().filter(|node| node.op_type == "Constant");
    let made = made.filter(|node| node.output.iter().any(|output| output == name));
    let made = made
        .flat_map(|node| &mut node.attribute)
        .filter_map(|attribute| attribute.t.as_mut());
    let mut all = graph
        .initializer
        .iter_mut()
        .filter(|tensor| tensor.name == name)
        .chain(made);
    all.find(|tensor| small_integers(tensor).is_some())
}

/// Turns a model input of a few integers into a constant.
fn close(graph: &mut GraphProto, name: &str) {
    let Some(at) = graph.input.iter().position(|input| input.name == name) else {
        return;
    };
    let Some(type_proto::Value::TensorType(tensor)) = graph.input[at]
        .r#type
        .as_ref()
        .and_then(|kind| kind.value.as_ref())
    else {
        return;
    };
    let dims = tensor
        .shape
        .iter()
        .flat_map(|shape| &shape.dim)
        .map(|dim| match dim.value {
            Some(dimension::Value::DimValue(size)) => size,
            _ => 1,
        });
    let dims: Vec<i64> = dims.collect();
    let count = dims.iter().product::<i64>();
    if tensor.elem_type == DataType::Int64 as i32 && dims.len() < 2 && (1..=8).contains(&count) {
        graph
            .initializer
            .push(integers(name, &dims, &vec![1; count as usize]));
        graph.input.remove(at);
    }
}

/// Returns the locations of integers in nodes, each with one model that has an integer there.
fn locations(models: &mut [ModelProto]) -> BTreeMap<(String, IntegerLocation), Base> {
    let mut locations = BTreeMap::new();
    let mut sizes = BTreeMap::new();
    for (index, model) in models.iter_mut().enumerate() {
        let size = model.encoded_len();
        let graph = model.graph.as_mut().unwrap();
        let of_sizes = (graph.name == OF_SIZES).then(|| format!(" of sizes for {}", graph.node[2].op_type));
        each_node(graph, &mut 0, &mut |graph, at, number| {
            let node = graph.node[at].clone();
            let domain = canonical_domain(&node.domain);
            let name = registered_name(domain, &node.op_type);
            let Some(row) = rows().find(|row| row.domain == domain && row.name == node.op_type) else {
                return;
            };
            let mut keep = |location: IntegerLocation, is_there: bool| {
                let key = (format!("{name}{}", of_sizes.as_deref().unwrap_or("")), location);
                // Prefers models that already set the attribute, since there it is valid together with the
                // other attributes.
                let cost = (!is_there, size);
                if sizes.get(&key).is_none_or(|known| cost < *known) {
                    sizes.insert(key.clone(), cost);
                    locations.insert(key, (index, number));
                }
            };
            for &attribute in row.attributes {
                let kind = attribute_type(row.name, attribute);
                if matches!(kind, Some(AttributeType::Int | AttributeType::Ints)) {
                    let is_there = node.attribute.iter().any(|given| given.name == attribute);
                    keep(IntegerLocation::Attribute(attribute), is_there);
                }
            }
            for (input, value) in node.input.iter().enumerate() {
                let mut copy = graph.clone();
                close(&mut copy, value);
                if constant(&mut copy, value).is_some() {
                    keep(IntegerLocation::Input(input), true);
                }
            }
        });
    }
    locations
}

/// Returns the model with one changed integer, and its input sizes fixed or free.
fn with_number(
    model: &ModelProto,
    node: usize,
    location: &IntegerLocation,
    extreme: i64,
    is_free: bool,
) -> ModelProto {
    let mut model = model.clone();
    let graph = model.graph.as_mut().unwrap();
    each_node(graph, &mut 0, &mut |graph, at, number| {
        if number != node {
            return;
        }
        match location {
            IntegerLocation::Attribute(name) => set(&mut graph.node[at], name, extreme),
            IntegerLocation::Input(input) => {
                let name = graph.node[at].input[*input].clone();
                close(graph, &name);
                replace(constant(graph, &name).unwrap(), extreme);
            }
        }
    });
    for output in &mut graph.output {
        forget(output.r#type.as_mut(), true);
    }
    if is_free {
        for input in &mut graph.input {
            forget(input.r#type.as_mut(), false);
        }
    }
    model
}

fn set(node: &mut NodeProto, name: &str, extreme: i64) {
    let others = node.attribute.iter().filter(|other| other.name != name);
    let count = others.map(|other| other.ints.len()).max().unwrap_or(0).max(1);
    if !node.attribute.iter().any(|attribute| attribute.name == name) {
        let kind = attribute_type(&node.op_type, name).unwrap();
        node.attribute.push(match kind {
            AttributeType::Int => int(name, 0),
            _ => ints(name, &vec![0; count]),
        });
    }
    let mut attributes = node.attribute.iter_mut();
    let attribute = attributes.find(|attribute| attribute.name == name).unwrap();
    attribute.i = extreme;
    attribute.ints.fill(extreme);
}

/// Removes the sizes of a type, or its whole shape.
fn forget(kind: Option<&mut onnx_graph::proto::TypeProto>, is_all: bool) {
    if let Some(type_proto::Value::TensorType(tensor)) = kind.and_then(|kind| kind.value.as_mut()) {
        match &mut tensor.shape {
            Some(shape) if !is_all => shape.dim.fill(Dimension { value: None }),
            shape => *shape = None,
        }
    }
}

/// A model with one changed integer.
struct ChangedModel {
    name: String,
    model: usize,
    node: usize,
    location: IntegerLocation,
    extreme: i64,
    is_free: bool,
}

/// Returns all changes, in the same order in every process.
fn changes(models: &mut [ModelProto]) -> Vec<ChangedModel> {
    let locations = locations(models);
    let covered: BTreeSet<(&str, &IntegerLocation)> = locations
        .keys()
        .map(|(name, location)| (name.as_str(), location))
        .collect();
    let mut missing = vec![];
    for row in rows().filter(|row| row.domain != NEWEST) {
        let name = row.full_name();
        for &attribute in row.attributes {
            let kind = attribute_type(row.name, attribute);
            let is_integer = matches!(kind, Some(AttributeType::Int | AttributeType::Ints));
            if is_integer && !covered.contains(&(&*name, &IntegerLocation::Attribute(attribute))) {
                missing.push(format!("{name} {attribute}"));
            }
        }
    }
    assert!(missing.is_empty(), "no model has these operators: {missing:?}");
    let mut changes = vec![];
    for ((name, location), (model, node)) in locations {
        for extreme in EXTREMES {
            // Fixed sizes are only tried with the largest integers, since smaller integers reveal few
            // additional faults.
            let is_extreme = extreme.unsigned_abs() > 1 << 31;
            for is_free in [false, true].into_iter().filter(|is_free| *is_free || is_extreme) {
                let sizes = if is_free { "free" } else { "fixed" };
                changes.push(ChangedModel {
                    name: format!("{name} {location:?} = {extreme}, {sizes} sizes"),
                    model,
                    node,
                    location: location.clone(),
                    extreme,
                    is_free,
                });
            }
        }
    }
    changes
}

/// Number of concurrent child processes.
const CHILDREN: usize = 2;

/// Environment variable with the index of the first change for a child process.
const FROM: &str = "EXTREME_NUMBERS_FROM";

/// Prefix of the lines that a child process writes before and after it loads a model.
const LOADING: &str = "loading ";
const PANICKED: &str = "panicked ";
const OVERFLOWED: &str = "overflowed ";

/// Loads models until one crashes the process, by stack overflow or memory exhaustion.
#[test]
fn child() {
    // The test below sets this when it starts this test in a child process.
    let Ok(from) = std::env::var(FROM) else {
        return;
    };
    let from: usize = from.parse().unwrap();
    let mut models = bases();
    let changes = changes(&mut models);
    let mut out = std::io::stderr();
    static LOADED: AtomicUsize = AtomicUsize::new(0);
    // Reports overflows, since release builds wrap instead of panicking.
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("");
        if text.contains("overflow") {
            let (index, location) = (LOADED.load(Ordering::Relaxed), info.location());
            let location = location.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(std::io::stderr(), "{OVERFLOWED}{index} {text} {location}");
        }
    }));
    for (index, changed) in changes.iter().enumerate().skip(from).step_by(CHILDREN) {
        LOADED.store(index, Ordering::Relaxed);
        writeln!(out, "{LOADING}{index}").unwrap();
        let model = with_number(
            &models[changed.model],
            changed.node,
            &changed.location,
            changed.extreme,
            changed.is_free,
        );
        let file = model.encode_to_vec();
        let thread = thread::Builder::new().stack_size(STACK).spawn(move || {
            if let Ok(session) = Session::read(&file.into()) {
                drop(ask(&session));
            }
        });
        if thread.unwrap().join().is_err() {
            writeln!(out, "{PANICKED}{index}").unwrap();
        }
    }
}

/// A [`Cancellation`] with a deadline.
struct Until(Instant);

impl Cancellation for Until {
    fn is_cancelled(&self) -> bool {
        Instant::now() > self.0
    }
}

/// Runs a model with zeros as inputs. Free dimensions of the inputs are 2.
fn ask(session: &Session) -> Option<Vec<Arc<Tensor>>> {
    let mut inputs = vec![];
    for port in &session.signature().inputs {
        let dims = port.dims.as_ref()?.iter().map(|dim| dim.fixed().unwrap_or(2));
        let dims: Option<Vec<usize>> = dims.map(|dim| usize::try_from(dim).ok()).collect();
        let dims = dims.filter(|dims| {
            dims.iter().try_fold(1, |all: usize, &dim| all.checked_mul(dim)) <= Some(1 << 20)
        })?;
        inputs.push(Tensor::zero_of(crate::computed(port.element_type)?, &dims).ok()?);
    }
    let until: Arc<dyn Cancellation> = Arc::new(Until(Instant::now() + REQUEST));
    session.run_until(inputs, &until).ok()
}

#[test]
fn no_number_in_an_attribute_or_a_constant_input_ends_the_process() {
    let changes = changes(&mut bases());
    assert!(changes.len() > 2000, "{}", changes.len());
    let faults: Vec<String> = thread::scope(|scope| {
        let children: Vec<_> = (0..CHILDREN)
            .map(|first| {
                let changes = &changes;
                scope.spawn(move || faults_from(first, changes))
            })
            .collect();
        children
            .into_iter()
            .flat_map(|child| child.join().unwrap())
            .collect()
    });
    assert!(faults.is_empty(), "{}: {faults:#?}", faults.len());
}

/// Returns the faults of every [`CHILDREN`]th change from index `first`. Starts a new process when one
/// crashes.
fn faults_from(first: usize, changes: &[ChangedModel]) -> Vec<String> {
    let name = |index: usize| changes[index].name.clone();
    let (mut next, mut faults) = (first, vec![]);
    while next < changes.len() {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "extreme_numbers::child",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(FROM, next.to_string())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let output = BufReader::new(process.stderr.take().unwrap());
        let reader = thread::spawn(move || {
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let mut loading = next;
        let how = loop {
            match lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    if let Some(index) = line.strip_prefix(LOADING) {
                        loading = index.parse().unwrap();
                    } else if let Some(index) = line.strip_prefix(PANICKED) {
                        faults.push(format!("{} panics", name(index.parse().unwrap())));
                    } else if let Some(overflow) = line.strip_prefix(OVERFLOWED) {
                        let (index, where_) = overflow.split_once(' ').unwrap();
                        faults.push(format!("{}: {where_}", name(index.parse().unwrap())));
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    process.kill().unwrap();
                    break Some("takes too long");
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break None,
            }
        };
        let status = process.wait().unwrap();
        let _ = reader.join().unwrap();
        next = loading + CHILDREN;
        if !status.success() {
            faults.push(format!(
                "{} {} ({status})",
                name(loading),
                how.unwrap_or("ends the process")
            ));
        } else {
            assert!(next >= changes.len());
        }
    }
    faults
}
