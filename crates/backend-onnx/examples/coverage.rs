//! Runs the test cases of the ONNX project. Each case is a model with inputs and expected outputs.
//!
//! The Python package `onnx` contains these tests. `PATH` is its directory `onnx/backend/test/data`:
//!
//! ```text
//! cargo run --release -p backend-onnx --example coverage -- PATH [--list] [--only TEXT] [--constants] [--free | --free-all]
//! ```
//!
//! `--list` prints each case that does not pass, and `--only` selects the cases whose name contains TEXT.
//!
//! Tests whose expected values are wrong, or differ from those of both runtimes, count separately as
//! `disputed`; the constant `DISPUTED` lists them with the reasons. Results may differ from the expected ones
//! by the tolerances of the tests and by FP32 rounding: sums with large terms have a rounding error even
//! where the sum is small.
//!
//! The tests pass axes, paddings and sizes as inputs, which are constants in real models. `--constants` turns
//! all inputs but the first into constants before loading. `--free` makes the leading dimension of every
//! input free, and `--free-all` all dimensions, which tests shape inference with unknown sizes.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints, and stops on broken test data"
)]

use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use backend_onnx::OnnxBackend;
use bytes::Bytes;
use oip_model::{Backend, Call, CancelToken, LoadContext, ModelSource};
use oip_types::{BytesTensor, DataType, ErrorCode, InferRequest, ModelRef, TensorValue};
use onnx_graph::proto::{ModelProto, TensorProto, tensor_proto, tensor_shape_proto::dimension, type_proto};
use prost::Message;
use tensor_core::{DType, Shape, Tensor, bf16, f16};

/// Stack size per case: as large as the stacks of an engine's threads can be.
const STACK: usize = 64 << 20;

fn main() {
    let options = Options::parse();
    // A panic counts as a result of the case; `--list` also prints its location.
    std::panic::set_hook(Box::new(|info| {
        LAST_PANIC.with(|last| last.replace(info.to_string()));
    }));
    let mut table: BTreeMap<String, BTreeMap<&'static str, usize>> = BTreeMap::new();
    for case in cases(&options.data) {
        if !case.name.contains(&options.only) {
            continue;
        }
        let change = options.change;
        let name = case.name.clone();
        let kind = case.kind.clone();
        let run = std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || run(&case, change))
            .unwrap();
        let outcome = run.join().unwrap();
        *table
            .entry(kind.clone())
            .or_default()
            .entry(outcome.column())
            .or_default() += 1;
        if options.list && !matches!(outcome, Outcome::Pass) {
            println!("{:<8} {kind}/{name}: {}", outcome.column(), outcome.reason());
        }
    }
    print(&table);
}

struct Options {
    data: PathBuf,
    list: bool,
    change: Change,
    only: String,
}

/// The changes to a model before it is loaded.
#[derive(Clone, Copy, Default)]
struct Change {
    constants: bool,
    /// How many leading dimensions of each input become free.
    free: usize,
}

impl Options {
    fn parse() -> Self {
        let mut options = Self {
            data: PathBuf::new(),
            list: false,
            change: Change::default(),
            only: String::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--list" => options.list = true,
                "--constants" => options.change.constants = true,
                "--free" => options.change.free = 1,
                "--free-all" => options.change.free = usize::MAX,
                "--only" => options.only = arguments.next().unwrap_or_default(),
                path => options.data = path.into(),
            }
        }
        assert!(
            options.data.join("node").is_dir(),
            "give the path of onnx/backend/test/data"
        );
        options
    }
}

struct Case {
    kind: String,
    name: String,
    model: PathBuf,
    data_sets: Vec<DataSet>,
    rtol: f64,
    atol: f64,
}

enum DataSet {
    Folder(PathBuf),
    /// The example makes up the inputs; the file with the expected output is next to the model.
    Ramp(PathBuf),
}

fn cases(data: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in ["node", "simple", "pytorch-converted", "pytorch-operator", "real"] {
        for folder in entries(&data.join(kind)) {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let settings = fs::read_to_string(folder.join("data.json")).unwrap_or_default();
            let number = |key: &str, default: f64| {
                setting(&settings, key)
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(default)
            };
            let (rtol, atol) = (number("rtol", 1e-3), number("atol", 1e-7));
            let mut model = folder.join("model.onnx");
            let data_sets = if model.exists() {
                let is_data_set = |path: &PathBuf| {
                    path.is_dir()
                        && path
                            .file_name()
                            .unwrap()
                            .to_string_lossy()
                            .starts_with("test_data_set")
                };
                entries(&folder)
                    .into_iter()
                    .filter(is_data_set)
                    .map(DataSet::Folder)
                    .collect()
            } else {
                let file = setting(&settings, "url")
                    .unwrap()
                    .rsplit('/')
                    .next()
                    .unwrap()
                    .to_owned();
                model = data.join("light").join(&file);
                vec![DataSet::Ramp(
                    data.join("light").join(file.replace(".onnx", "_output_0.pb")),
                )]
            };
            cases.push(Case {
                kind: kind.to_owned(),
                name,
                model,
                data_sets,
                rtol,
                atol,
            });
        }
    }
    cases
}

/// Returns the string value of `key` in the flat JSON objects that hold the tests' settings.
fn setting<'a>(json: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{key}\":"))?;
    Some(rest.split([',', '}']).next()?.trim().trim_matches('"'))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

enum Outcome {
    Pass,
    Refused(String),
    Disputed(String),
    Failed(String),
    Wrong(String),
    Panic(String),
}

/// Name prefixes of tests whose expected values are wrong, or differ from those of both runtimes, and the
/// reasons.
const DISPUTED: &[(&str, &str)] = &[
    (
        "test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
        "places beyond the padding do not count in a mean; ONNX Runtime does not count them either",
    ),
    (
        "test_cast_FLOAT_to_STRING",
        "texts of FP32 have 8 digits, as in ONNX Runtime",
    ),
    ("test_castlike_FLOAT_to_STRING", "as with Cast"),
    (
        "test_maxunpool_export_with_output_shape",
        "indices count in the result as it is; so they do in ONNX Runtime",
    ),
    (
        "test_qlinearmatmul_2D_int8_",
        "the values wrap around where the specification has them saturate, as they do in ONNX Runtime",
    ),
    ("test_qlinearmatmul_3D_int8_", "as in 2D"),
    ("test_bernoulli", "the values are random, whatever the seed is"),
    (
        "test_resize_downsample_scales_cubic_align_corners",
        "scales that do not lead to whole sizes are used as they are; ONNX Runtime uses the sizes",
    ),
    (
        "test_resize_downsample_scales_linear_align_corners",
        "as with cubic interpolation",
    ),
];

/// The allowed rounding error of FP32 sums, relative to the largest number of a tensor.
const NOISE: f64 = 4e-6;

impl Outcome {
    const COLUMNS: [&'static str; 6] = ["pass", "refused", "disputed", "failed", "wrong", "panic"];

    fn column(&self) -> &'static str {
        let index = match self {
            Self::Pass => 0,
            Self::Refused(_) => 1,
            Self::Disputed(_) => 2,
            Self::Failed(_) => 3,
            Self::Wrong(_) => 4,
            Self::Panic(_) => 5,
        };
        Self::COLUMNS[index]
    }

    fn reason(&self) -> &str {
        match self {
            Self::Pass => "",
            Self::Refused(reason)
            | Self::Disputed(reason)
            | Self::Failed(reason)
            | Self::Wrong(reason)
            | Self::Panic(reason) => reason,
        }
    }
}

thread_local! {
    static LAST_PANIC: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

fn run(case: &Case, change: Change) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| run_case(case, change)));
    outcome.unwrap_or_else(|_| Outcome::Panic(LAST_PANIC.with(|last| last.borrow().replace('\n', " "))))
}

fn run_case(case: &Case, change: Change) -> Outcome {
    let mut content = Bytes::from(fs::read(&case.model).unwrap());
    if change.constants || change.free > 0 {
        let mut proto = ModelProto::decode(content.clone()).unwrap();
        if let (true, Some(DataSet::Folder(folder))) = (change.constants, case.data_sets.first()) {
            make_constants(&mut proto, folder);
        }
        free_dims(&mut proto, change.free);
        content = proto.encode_to_vec().into();
    }
    let source = ModelSource::new(case.name.clone(), "1", case.model.clone(), content);
    let model = match OnnxBackend::new().load(&source, &LoadContext::default()) {
        Ok(model) => model,
        Err(error) => return Outcome::Refused(chain(&error)),
    };
    let mut outcomes = case
        .data_sets
        .iter()
        .map(|data_set| run_data_set(case, change, &*model, data_set));
    outcomes
        .find(|outcome| !matches!(outcome, Outcome::Pass))
        .unwrap_or(Outcome::Pass)
}

/// Runs a model with the inputs of a data set, and compares the outputs.
fn run_data_set(case: &Case, change: Change, model: &dyn oip_model::Model, data_set: &DataSet) -> Outcome {
    let metadata = model.metadata();
    let (inputs, expected) = match data_set {
        DataSet::Folder(folder) => (tensors(folder, "input"), tensors(folder, "output")),
        DataSet::Ramp(output) => {
            let dims = |input: &oip_types::TensorMetadata| {
                input
                    .shape
                    .dims()
                    .iter()
                    .map(|dim| dim.unwrap_or(1))
                    .collect::<Vec<u64>>()
            };
            let inputs = metadata.inputs.iter().map(|input| ramp(&dims(input))).collect();
            (inputs, vec![read(output)])
        }
    };
    let mut request = InferRequest::new(ModelRef::new("m", None).unwrap());
    for (input, value) in metadata.inputs.iter().zip(inputs) {
        let Some(value) = value else {
            return Outcome::Refused("an input is no tensor".into());
        };
        request = request.with_input(&input.name, value);
    }
    if change.constants {
        // The model's constants have the values of the first data set, so the other data sets do not
        // apply.
        let first: Vec<_> = metadata.inputs.iter().map(|input| &input.name).collect();
        debug_assert!(first.len() <= 1 || matches!(data_set, DataSet::Ramp(_)));
    }
    if let Err(error) = metadata.check_request(&request) {
        return Outcome::Failed(format!("the test's inputs do not fit: {error}"));
    }
    let outcome = model.run(Call::new(request, &CancelToken::new(None)));
    let outputs = match outcome.and_then(oip_model::Outcome::into_outputs) {
        Ok(outputs) => outputs,
        Err(error) if error.code() == ErrorCode::InvalidArgument => {
            return Outcome::Refused(chain(&error));
        }
        Err(error) => return Outcome::Failed(chain(&error)),
    };
    let outputs = match metadata.pick_outputs(&[], outputs) {
        Ok(outputs) => outputs,
        Err(error) => return Outcome::Wrong(error.to_string()),
    };
    for (output, expected) in outputs.iter().zip(expected) {
        let expected = expected.unwrap();
        if let Err(difference) = compare(&output.value, &expected, case.rtol, case.atol) {
            let disputed = DISPUTED.iter().find(|(name, _)| case.name.starts_with(name));
            if let Some((_, reason)) = disputed {
                return Outcome::Disputed((*reason).to_owned());
            }
            return Outcome::Wrong(format!("{}: {difference}", output.name));
        }
    }
    Outcome::Pass
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(" <- ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(4000).collect()
}

/// Turns all inputs but the first into constants with the values of a data set.
fn make_constants(model: &mut ModelProto, data_set: &Path) {
    let graph = model.graph.as_mut().unwrap();
    for (index, input) in graph.input.iter().enumerate().skip(1) {
        let Ok(content) = fs::read(data_set.join(format!("input_{index}.pb"))) else {
            continue;
        };
        let is_tensor = matches!(
            input.r#type.as_ref().and_then(|t| t.value.as_ref()),
            Some(type_proto::Value::TensorType(_))
        );
        if let (true, Ok(mut tensor)) = (is_tensor, TensorProto::decode(Bytes::from(content))) {
            tensor.name.clone_from(&input.name);
            graph.initializer.push(tensor);
        }
    }
}

/// Makes the first `axes` dimensions of each input free. Equal sizes get the same dimension name.
fn free_dims(model: &mut ModelProto, axes: usize) {
    let graph = model.graph.as_mut().unwrap();
    for info in graph.input.iter_mut().chain(&mut graph.output) {
        if let Some(type_proto::Value::TensorType(tensor)) =
            info.r#type.as_mut().and_then(|r#type| r#type.value.as_mut())
        {
            for dim in tensor
                .shape
                .iter_mut()
                .flat_map(|shape| &mut shape.dim)
                .take(axes)
            {
                if let Some(dimension::Value::DimValue(size)) = dim.value {
                    dim.value = Some(dimension::Value::DimParam(format!("d{size}")));
                }
            }
        }
    }
}

/// Returns numbers from 0 to 1, like those that the ONNX project's test runner makes up.
fn ramp(dims: &[u64]) -> Option<TensorValue> {
    let shape = Shape::new(dims).unwrap();
    let count = shape.element_count();
    let values: Vec<f32> = (0..count)
        .map(|index| (index as f64 / count as f64) as f32)
        .collect();
    Some(Tensor::from_vec(shape, values).unwrap().into())
}

fn tensors(folder: &Path, prefix: &str) -> Vec<Option<TensorValue>> {
    (0..)
        .map(|index| folder.join(format!("{prefix}_{index}.pb")))
        .take_while(|path| path.exists())
        .map(|path| read(&path))
        .collect()
}

/// Reads a tensor file. Returns `None` if it is not a tensor, or if the protocol does not support its type.
fn read(path: &Path) -> Option<TensorValue> {
    let tensor = TensorProto::decode(Bytes::from(fs::read(path).unwrap())).ok()?;
    let dims: Vec<u64> = tensor.dims.iter().map(|&dim| dim as u64).collect();
    let shape = Shape::new(&dims).ok()?;
    use tensor_proto::DataType as Code;
    let datatype = match Code::try_from(tensor.data_type).ok()? {
        Code::Float => DataType::FP32,
        Code::Double => DataType::FP64,
        Code::Float16 => DataType::FP16,
        Code::Bfloat16 => DataType::BF16,
        Code::Uint8 => DataType::UINT8,
        Code::Uint16 => DataType::UINT16,
        Code::Uint32 => DataType::UINT32,
        Code::Uint64 => DataType::UINT64,
        Code::Int8 => DataType::INT8,
        Code::Int16 => DataType::INT16,
        Code::Int32 => DataType::INT32,
        Code::Int64 => DataType::INT64,
        Code::Bool => DataType::BOOL,
        Code::String => {
            return Some(
                BytesTensor::from_elements(shape, &tensor.string_data)
                    .ok()?
                    .into(),
            );
        }
        _ => return None,
    };
    let raw = if !tensor.raw_data.is_empty() || shape.element_count() == 0 {
        tensor.raw_data
    } else if !tensor.float_data.is_empty() {
        tensor
            .float_data
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    } else if !tensor.int64_data.is_empty() {
        tensor
            .int64_data
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    } else if !tensor.double_data.is_empty() {
        tensor
            .double_data
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()
    } else {
        let size = datatype.dtype()?.size();
        tensor
            .int32_data
            .iter()
            .flat_map(|value| value.to_le_bytes()[..size].to_vec())
            .collect()
    };
    TensorValue::from_raw(datatype, shape, raw).ok()
}

fn compare(found: &TensorValue, expected: &TensorValue, rtol: f64, atol: f64) -> Result<(), String> {
    if found.datatype() != expected.datatype() || found.shape() != expected.shape() {
        return Err(format!(
            "expected {}{}, found {}{}",
            expected.datatype(),
            expected.shape(),
            found.datatype(),
            found.shape()
        ));
    }
    let (TensorValue::Fixed(found), TensorValue::Fixed(expected)) = (found, expected) else {
        let same = found.raw() == expected.raw();
        return if same { Ok(()) } else { Err("other strings".into()) };
    };
    let close = |index: usize, found: f64, expected: f64, noise: f64| {
        let same = found == expected || (found.is_nan() && expected.is_nan());
        if same || (found - expected).abs() <= (atol + rtol * expected.abs()).max(noise) {
            return Ok(());
        }
        Err(format!("element {index}: expected {expected}, found {found}"))
    };
    macro_rules! floats {
        ($T:ty, $to:expr) => {{
            let numbers = |tensor: &Tensor| -> Vec<f64> {
                let values = tensor.to_vec::<$T>().unwrap();
                values.into_iter().map($to).collect()
            };
            let (found, expected) = (numbers(found), numbers(expected));
            let finite = expected.iter().filter(|number| number.is_finite());
            let noise = NOISE * finite.fold(0.0f64, |most, number| most.max(number.abs()));
            let mut pairs = found.iter().zip(&expected).enumerate();
            pairs.try_for_each(|(index, (&found, &expected))| close(index, found, expected, noise))
        }};
    }
    match found.spec().dtype() {
        DType::F32 => floats!(f32, f64::from),
        DType::F64 => floats!(f64, |value| value),
        DType::F16 => floats!(f16, f16::to_f64),
        DType::BF16 => floats!(bf16, bf16::to_f64),
        _ if found.bytes() == expected.bytes() => Ok(()),
        _ => Err(format!("expected {expected}, found {found}")
            .replace('\n', " ")
            .chars()
            .take(300)
            .collect()),
    }
}

fn print(table: &BTreeMap<String, BTreeMap<&'static str, usize>>) {
    println!(
        "{:<20}{}",
        "",
        Outcome::COLUMNS.map(|column| format!("{column:>9}")).concat()
    );
    let mut sums = BTreeMap::new();
    for (kind, counts) in table {
        let count = |column| counts.get(column).copied().unwrap_or(0);
        println!(
            "{kind:<20}{}",
            Outcome::COLUMNS
                .map(|column| format!("{:>9}", count(column)))
                .concat()
        );
        for column in Outcome::COLUMNS {
            *sums.entry(column).or_insert(0) += count(column);
        }
    }
    println!(
        "{:<20}{}",
        "all",
        Outcome::COLUMNS
            .map(|column| format!("{:>9}", sums.get(column).copied().unwrap_or(0)))
            .concat()
    );
}
