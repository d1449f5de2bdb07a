//! Tests execution providers: those of a library, those that a configuration requires, and the errors for
//! missing ones. Tests that need a provider are skipped unless `ORT_DYLIB_PATH` names a library that has it:
//! `onnxruntime-gpu` (on a machine without a GPU), `onnxruntime-openvino`.

use std::{sync::Arc, thread};

use backend_onnx::{Gpu, GpuChoice, Gpus, OnnxBackend, OnnxRuntime};
use oip_model::{Backend, LoadContext, Model};
use oip_types::{
    ErrorCode, ModelConfig, ServiceError,
    model_config::{Accelerator, ConfigParameter, InstanceGroup, InstanceKind},
};

use crate::support::{Runtime, compare, file, infer, onnx_runtime, recorded_request, source};

const CUDA: &str = "CUDAExecutionProvider";
const OPENVINO: &str = "OpenVINOExecutionProvider";
const CPU: &str = "CPUExecutionProvider";

/// Loads ONNX Runtime if its library has `provider`, or, with `is_there` false, if it lacks `provider`.
fn library(provider: &str, is_there: bool) -> Option<OnnxRuntime> {
    onnx_runtime().filter(|library| library.providers().iter().any(|name| name == provider) == is_there)
}

fn config(kind: InstanceKind, gpus: &[u32]) -> ModelConfig {
    ModelConfig {
        instance_group: vec![InstanceGroup {
            kind,
            gpus: gpus.to_vec(),
            ..InstanceGroup::default()
        }],
        ..ModelConfig::default()
    }
}

fn accelerator(name: &str, options: &[(&str, &str)]) -> Vec<Accelerator> {
    let options = options
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    vec![Accelerator {
        name: name.to_owned(),
        parameters: options.collect(),
    }]
}

fn on_gpu(kind: InstanceKind, name: &str, options: &[(&str, &str)]) -> ModelConfig {
    let mut config = config(kind, &[]);
    config
        .optimization
        .execution_accelerators
        .gpu_execution_accelerator = accelerator(name, options);
    config
}

fn on_cpu(kind: InstanceKind, options: &[(&str, &str)]) -> ModelConfig {
    let mut config = config(kind, &[]);
    config
        .optimization
        .execution_accelerators
        .cpu_execution_accelerator = accelerator("openvino", options);
    config
}

fn load(backend: &OnnxBackend, name: &str, config: ModelConfig) -> Result<Box<dyn Model>, ServiceError> {
    let cx = LoadContext::default().with_config(Arc::new(config));
    backend.load(&source(file(&format!("{name}.onnx"))), &cx)
}

#[track_caller]
fn refusal(backend: &OnnxBackend, config: ModelConfig) -> String {
    let error = load(backend, "mlp_classifier", config).err().unwrap();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    error.message().to_owned()
}

fn providers(model: &dyn Model) -> Vec<String> {
    model.capabilities().placement.unwrap().providers
}

/// Checks that a model's outputs equal the built-in runtime's.
fn answers_as_built_in(model: &dyn Model, name: &str) {
    let expected = infer(&*Runtime::BuiltIn.model(name), recorded_request(name)).unwrap();
    let found = infer(model, recorded_request(name)).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        compare(found, expected).unwrap();
    }
}

#[test]
fn the_built_in_runtime_has_no_gpu() {
    let alone = OnnxBackend::new();
    let message = refusal(&alone, config(InstanceKind::Gpu, &[]));
    assert_eq!(
        message,
        "the model's configuration demands a GPU (KIND_GPU), which needs a library of ONNX Runtime: pip install \
         'onnxruntime-gpu[cuda,cudnn]' brings one, which --onnxruntime auto finds; with KIND_AUTO the model runs on the CPU where \
         there is no GPU"
    );
    for kind in [InstanceKind::Auto, InstanceKind::Cpu] {
        let model = load(&alone, "mlp_classifier", config(kind, &[])).unwrap();
        assert_eq!(model.capabilities().placement, None);
    }
    // Without a library, a preference for CUDA is ignored, and is not an error; a misspelled name is one.
    assert!(load(&alone, "mlp_classifier", on_gpu(InstanceKind::Auto, "cuda", &[])).is_ok());
    for (name, expected) in [
        ("cudda", "expected 'cuda' or 'tensorrt'; did you mean 'cuda'?"),
        ("openvino", "it belongs to cpu_execution_accelerator"),
    ] {
        for runtime in ["", "built-in"] {
            let mut config = on_gpu(InstanceKind::Auto, name, &[]);
            config.runtime = runtime.to_owned();
            let message = refusal(&alone, config);
            assert!(message.ends_with(expected), "{message}");
        }
    }
}

#[test]
fn a_library_without_the_provider_is_an_error_for_a_demand_and_else_the_cpu() {
    let Some(library) = library(CUDA, false) else {
        return;
    };
    let gpus = Gpus::new(GpuChoice::All).with_seen([Gpu::new("NVIDIA H100")]);
    let backend = OnnxBackend::new().with_runtime(library).with_gpus(gpus);
    let message = refusal(&backend, config(InstanceKind::Gpu, &[0]));
    assert!(
        message.starts_with("the model's configuration demands a GPU (KIND_GPU), and the ONNX Runtime ")
            && message.contains(" has no CUDAExecutionProvider (it has ")
            && message
                .contains("; pip install onnxruntime-gpu brings a library that has it; with KIND_AUTO "),
        "{message}"
    );
    let message = refusal(&backend, on_gpu(InstanceKind::Auto, "cudda", &[]));
    assert!(message.ends_with("; did you mean 'cuda'?"), "{message}");
    for wish in [
        config(InstanceKind::Auto, &[0]),
        on_gpu(InstanceKind::Auto, "tensorrt", &[]),
        config(InstanceKind::Cpu, &[]),
    ] {
        let model = load(&backend, "mlp_classifier", wish).unwrap();
        assert_eq!(providers(&*model), [CPU]);
        answers_as_built_in(&*model, "mlp_classifier");
    }
    let mut own = config(InstanceKind::Gpu, &[]);
    own.runtime = "built-in".to_owned();
    let message = refusal(&backend, own);
    assert!(
        message.contains("and the built-in runtime, which supports only the CPU"),
        "{message}"
    );
}

/// Checks the errors on a machine without a driver, or without CUDA's libraries. Skipped on machines with a
/// GPU.
#[test]
fn libraries_of_cuda_that_are_missing_are_named_with_what_brings_them() {
    let Some(library) = library(CUDA, true) else {
        return;
    };
    if std::path::Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let backend = OnnxBackend::new().with_runtime(library);
    let message = refusal(&backend, config(InstanceKind::Gpu, &[0]));
    assert!(
        message.starts_with("the accelerator 'cuda' cannot be used on GPU 0: libraries are missing: ")
            && message.contains("libcuda.so.1 (the NVIDIA driver; in a container, its runtime brings it)"),
        "{message}"
    );
    // If the configuration does not require a GPU, the model runs on the CPU.
    let gpus = Gpus::new(GpuChoice::All);
    let backend = backend.with_gpus(gpus);
    let model = load(&backend, "mlp_classifier", ModelConfig::default()).unwrap();
    assert_eq!(providers(&*model), [CPU]);
    answers_as_built_in(&*model, "mlp_classifier");
    let message = refusal(&backend, on_gpu(InstanceKind::Gpu, "tensorrt", &[]));
    assert!(
        message.contains("'tensorrt' cannot be used on GPU 0: libraries are missing: ")
            && message.contains("libnvinfer.so.10 (pip install 'tensorrt-cu13==10.*')"),
        "{message}"
    );
}

/// Checks that OpenVINO on the CPU returns the same outputs as ONNX Runtime's own operators, also in
/// concurrent runs.
#[test]
fn openvino_answers_as_the_cpu_does() {
    let Some(library) = library(OPENVINO, true) else {
        return;
    };
    let backend = OnnxBackend::new().with_runtime(library);
    let names = [
        "convolution_gated",
        "convolution_residual_free",
        "normalized",
        "tied_weights",
        "transposed_constant",
    ];
    for name in names {
        let model = load(&backend, name, on_cpu(InstanceKind::Cpu, &[])).unwrap();
        assert_eq!(providers(&*model), [OPENVINO, CPU]);
        let model = &*model;
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        answers_as_built_in(model, name);
                    }
                });
            }
        });
    }
}

/// Checks that the error for refused options quotes the provider's message, and that a model that OpenVINO
/// refuses runs on the CPU unless the configuration requires OpenVINO.
#[test]
fn what_openvino_refuses_is_a_reason_or_the_cpu() {
    let Some(library) = library(OPENVINO, true) else {
        return;
    };
    let backend = OnnxBackend::new().with_runtime(library);
    let wrong = &[("no_such_option", "1")];
    let demanded = load(&backend, "transposed_constant", on_cpu(InstanceKind::Cpu, wrong));
    let message = demanded.err().unwrap().message().to_owned();
    assert!(
        message.contains("openvino") && message.contains("no_such_option"),
        "{message}"
    );
    // The provider only logs what is wrong with the value of an option.
    let wrong_value = on_cpu(InstanceKind::Cpu, &[("num_of_threads", "many")]);
    let message = refusal(&backend, wrong_value);
    assert!(
        message.contains("(its options: num_of_threads): ") && message.contains("should be a number"),
        "{message}"
    );
    let preferred = load(&backend, "transposed_constant", on_cpu(InstanceKind::Auto, wrong)).unwrap();
    assert_eq!(providers(&*preferred), [CPU]);

    let preferred = load(&backend, "mlp_classifier", on_cpu(InstanceKind::Auto, &[])).unwrap();
    answers_as_built_in(&*preferred, "mlp_classifier");
}

/// Checks that models on the CPU ignore Triton's CUDA parameters, even with invalid values.
#[test]
fn parameters_of_other_providers_do_no_harm_on_the_cpu() {
    let Some(library) = onnx_runtime() else {
        return;
    };
    let backend = OnnxBackend::new().with_runtime(library);
    let mut config = config(InstanceKind::Cpu, &[]);
    let parameter = ConfigParameter {
        string_value: "many".to_owned(),
    };
    config.parameters.insert("gpu_mem_limit".to_owned(), parameter);
    assert!(load(&backend, "mlp_classifier", config).is_ok());
}
