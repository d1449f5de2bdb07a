//! Loads fixtures by name, and compares outputs.

use std::{io::Write, path::PathBuf, sync::LazyLock};

use backend_onnx::{OnnxBackend, OnnxRuntime};
use bytes::Bytes;
use oip_model::{Backend, CancelToken, LoadContext, Model, ModelSource};
use oip_types::{
    InferOutput, InferRequest, InferResponse, ModelRef, RequestLimits, ServiceError, TensorValue,
    rest::{decode_request, decode_response},
};
use tensor_core::{DType, Tensor};

use crate::fixtures::FILES;

/// Reads a fixture's file.
pub(crate) fn file(name: &str) -> Vec<u8> {
    let path = FILES
        .get(name)
        .unwrap_or_else(|| panic!("no fixture is named {name}"));
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of all fixtures with this file suffix, in order.
pub(crate) fn names(ending: &str) -> Vec<String> {
    let mut names: Vec<String> = FILES
        .keys()
        .filter_map(|file| Some(file.strip_suffix(ending)?.to_owned()))
        .collect();
    names.sort();
    names
}

/// The runtime under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    BuiltIn,
    OnnxRuntime,
}

/// Returns the runtimes under test: the built-in one, and ONNX Runtime if `ORT_DYLIB_PATH` names its library.
pub(crate) fn runtimes() -> &'static [Runtime] {
    static RUNTIMES: LazyLock<Vec<Runtime>> = LazyLock::new(|| {
        if onnx_runtime().is_some() {
            return vec![Runtime::BuiltIn, Runtime::OnnxRuntime];
        }
        // Written directly to stderr, since the test harness captures the output of passing tests.
        let note = b"skipped: everything over ONNX Runtime, as ORT_DYLIB_PATH names no library\n";
        std::io::stderr().write_all(note).unwrap();
        vec![Runtime::BuiltIn]
    });
    &RUNTIMES
}

/// Loads ONNX Runtime, if it is available.
pub(crate) fn onnx_runtime() -> Option<OnnxRuntime> {
    let path = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty())?;
    Some(OnnxRuntime::load(path).unwrap())
}

/// Models whose expected outputs are computed from the operator's definition (`decoders.py`), each with the
/// reason why they are not recorded from ONNX Runtime.
const NOT_BY_ONNX_RUNTIME: [(&str, &str); 7] = [
    (
        "decoder_attention_appended",
        "it appends keys on other devices only",
    ),
    ("mat_mul_bnb4_turned", "its numbers are wrong"),
    (
        "mat_mul_n_bits_of_groups_with_zero_points",
        "it leaves the zero points out",
    ),
    ("moe_gated", "it has no third weights on a CPU"),
    ("moe_swiglu_apart", "it has interleaved SwiGLU only on a CPU"),
    ("moe_swiglu_halves", "it has interleaved SwiGLU only on a CPU"),
    ("qmoe_gated", "it has one number of bits for all weights on a CPU"),
];

impl Runtime {
    /// Returns the names of the models with a recorded request whose recorded response this runtime
    /// reproduces.
    pub(crate) fn recorded(self) -> Vec<String> {
        let is_answered = |name: &String| {
            self == Self::BuiltIn || NOT_BY_ONNX_RUNTIME.iter().all(|(other, _)| name != other)
        };
        names(".request.json").into_iter().filter(is_answered).collect()
    }

    pub(crate) fn load(self, content: impl Into<Bytes>) -> Result<Box<dyn Model>, ServiceError> {
        let backend = match self {
            Self::BuiltIn => OnnxBackend::new(),
            Self::OnnxRuntime => OnnxBackend::new().with_runtime(onnx_runtime().unwrap()),
        };
        backend.load(&source(content), &LoadContext::default())
    }

    pub(crate) fn model(self, name: &str) -> Box<dyn Model> {
        self.load(file(&format!("{name}.onnx")))
            .unwrap_or_else(|error| panic!("{name} with {self:?}: {}", error.report()))
    }
}

pub(crate) fn source(content: impl Into<Bytes>) -> ModelSource {
    ModelSource::new("m", "1", PathBuf::from("m/1/model.onnx"), content.into())
}

/// Parses a request for any model from JSON.
pub(crate) fn request(json: impl Into<Bytes>) -> InferRequest {
    let model = ModelRef::new("m", None).unwrap();
    let decoded = decode_request(model, &json.into(), None, &RequestLimits::default());
    decoded.unwrap().request
}

pub(crate) fn recorded_request(name: &str) -> InferRequest {
    request(file(&format!("{name}.request.json")))
}

pub(crate) fn recorded_response(name: &str) -> InferResponse {
    let json = file(&format!("{name}.response.json"));
    decode_response(&json.into(), None, &RequestLimits::default()).unwrap()
}

/// Returns all outputs of a model, with the checks that an engine makes on requests and outputs.
pub(crate) fn infer(model: &dyn Model, mut request: InferRequest) -> Result<Vec<InferOutput>, ServiceError> {
    request.outputs.clear();
    model.infer(request, &CancelToken::new(None))
}

/// Compares an output with the expected one: FP32 with a small tolerance, everything else exactly.
pub(crate) fn compare(found: &InferOutput, expected: &InferOutput) -> Result<(), String> {
    let (name, found, wanted) = (&found.name, &found.value, &expected.value);
    if *name != expected.name || found.datatype() != wanted.datatype() || found.shape() != wanted.shape() {
        return Err(format!("expected {expected:?}, found {name} {found:?}"));
    }
    let (TensorValue::Fixed(found), TensorValue::Fixed(wanted)) = (found, wanted) else {
        return if found.raw() == wanted.raw() {
            Ok(())
        } else {
            Err(format!("{name}: expected {wanted:?}, found {found:?}"))
        };
    };
    let is_equal = match found.spec().dtype() {
        DType::F32 => {
            let (found, wanted) = (floats(found), floats(wanted));
            // Sums have a rounding error relative to their terms, even where the sum is small.
            let finite = wanted.iter().filter(|number| number.is_finite());
            let noise = 1e-5 * finite.fold(1.0f32, |most, number| most.max(number.abs()));
            let close = |(found, wanted): (&f32, &f32)| {
                found == wanted
                    || (found.is_nan() && wanted.is_nan())
                    || (found - wanted).abs() <= noise + 1e-4 * wanted.abs()
            };
            found.iter().zip(&wanted).all(close)
        }
        _ => found.bytes() == wanted.bytes(),
    };
    if is_equal {
        return Ok(());
    }
    Err(format!("{name}: expected {wanted}, found {found}"))
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}
