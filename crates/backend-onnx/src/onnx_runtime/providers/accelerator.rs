//! One execution provider: its names, its options, and how it is added to a session.

use std::collections::BTreeMap;

use oip_types::ServiceError;
use ort::{
    ep::{self, ArbitrarilyConfigurableExecutionProvider, ExecutionProvider},
    session::builder::SessionBuilder,
};
use tensor_core::QuotedName;

/// An execution provider that a configuration can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    Cuda,
    TensorRt,
    OpenVino,
}

impl Accelerator {
    /// The providers for instances on GPUs.
    const ON_GPU: [Self; 2] = [Self::Cuda, Self::TensorRt];

    /// The providers for instances on CPUs.
    const ON_CPU: [Self; 1] = [Self::OpenVino];

    /// Finds the accelerator called `name` in a configuration, among those for GPUs if `on_gpu`, otherwise
    /// among those for CPUs.
    ///
    /// # Errors
    /// Returns [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) with the known names and the most
    /// similar one.
    pub(crate) fn from_name(name: &str, on_gpu: bool) -> Result<Self, ServiceError> {
        let known: &[Self] = if on_gpu { &Self::ON_GPU } else { &Self::ON_CPU };
        if let Some(found) = known.iter().find(|known| known.name() == name) {
            return Ok(*found);
        }
        let (field, other) = match on_gpu {
            true => ("gpu_execution_accelerator", "cpu_execution_accelerator"),
            false => ("cpu_execution_accelerator", "gpu_execution_accelerator"),
        };
        let is_elsewhere = |other: &&Self| other.name() == name && !known.contains(other);
        let all = Self::ON_GPU.iter().chain(&Self::ON_CPU);
        let hint = match all.clone().find(is_elsewhere) {
            Some(_) => format!("; it belongs to {other}"),
            None => nearest(name, known).map_or(String::new(), |meant| format!("; did you mean '{meant}'?")),
        };
        let names: Vec<String> = known.iter().map(|known| format!("'{}'", known.name())).collect();
        Err(ServiceError::invalid(format!(
            "optimization.execution_accelerators.{field}: the name is {}, expected {}{hint}",
            QuotedName(name),
            names.join(" or ")
        )))
    }

    /// Returns the name in a configuration, which is Triton's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::TensorRt => "tensorrt",
            Self::OpenVino => "openvino",
        }
    }

    /// Returns ONNX Runtime's name.
    pub(crate) fn provider(self) -> &'static str {
        match self {
            Self::Cuda => ep::CUDA::NAME,
            Self::TensorRt => ep::TensorRT::NAME,
            Self::OpenVino => "OpenVINOExecutionProvider",
        }
    }

    /// Returns the Python package whose library includes the provider.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Cuda | Self::TensorRt => "onnxruntime-gpu",
            Self::OpenVino => "onnxruntime-openvino",
        }
    }

    /// Returns the provider's file, which is next to ONNX Runtime's library.
    pub(crate) fn file(self) -> String {
        format!("libonnxruntime_providers_{}.so", self.name())
    }
}

/// Returns the known name with a similar spelling, if any.
fn nearest(name: &str, known: &[Accelerator]) -> Option<&'static str> {
    /// Longer names are not compared: they are not misspellings, and comparing takes time.
    const MAX_NAME: usize = 64;
    if name.len() > MAX_NAME {
        return None;
    }
    let likeness = |known: &Accelerator| {
        let lower = name.to_ascii_lowercase();
        let lower = lower.trim_end_matches("executionprovider");
        strsim::normalized_damerau_levenshtein(lower, known.name())
    };
    let near = known.iter().map(|known| (likeness(known), known.name()));
    let near = near.filter(|(likeness, _)| *likeness >= 0.6);
    near.max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, name)| name)
}

/// An execution provider with its options, for one session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredAccelerator {
    pub(crate) accelerator: Accelerator,
    pub(crate) options: BTreeMap<String, String>,
}

impl ConfiguredAccelerator {
    /// Returns a copy of the provider, with options for a session on `gpu`.
    pub(crate) fn on(&self, gpu: Option<u32>) -> Self {
        let mut chosen = self.clone();
        if let (Some(gpu), Accelerator::Cuda | Accelerator::TensorRt) = (gpu, self.accelerator) {
            chosen.options.insert("device_id".to_owned(), gpu.to_string());
        }
        chosen
    }

    /// Adds the provider to a session builder. This loads the provider's library on first use.
    pub(crate) fn register(&self, builder: &mut SessionBuilder) -> ort::Result<()> {
        fn with<P: ArbitrarilyConfigurableExecutionProvider>(
            provider: P,
            options: &BTreeMap<String, String>,
        ) -> P {
            options.iter().fold(provider, |provider, (key, value)| {
                provider.with_arbitrary_config(key, value)
            })
        }
        match self.accelerator {
            Accelerator::Cuda => with(ep::CUDA::default(), &self.options).register(builder),
            Accelerator::TensorRt => with(ep::TensorRT::default(), &self.options).register(builder),
            Accelerator::OpenVino => with(ep::OpenVINO::default(), &self.options).register(builder),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Checks the error for an accelerator name that does not exist.
    #[test]
    fn names_that_do_not_exist_are_errors_with_the_one_that_was_meant() {
        assert_eq!(Accelerator::from_name("cuda", true).unwrap(), Accelerator::Cuda);
        assert_eq!(
            Accelerator::from_name("openvino", false).unwrap(),
            Accelerator::OpenVino
        );
        for (name, on_gpu, expected) in [
            (
                "tensor_rt",
                true,
                "optimization.execution_accelerators.gpu_execution_accelerator: the name is 'tensor_rt', expected 'cuda' or \
                 'tensorrt'; did you mean 'tensorrt'?",
            ),
            (
                "CUDAExecutionProvider",
                true,
                "optimization.execution_accelerators.gpu_execution_accelerator: the name is 'CUDAExecutionProvider', expected \
                 'cuda' or 'tensorrt'; did you mean 'cuda'?",
            ),
            (
                "openvino",
                true,
                "optimization.execution_accelerators.gpu_execution_accelerator: the name is 'openvino', expected 'cuda' or \
                 'tensorrt'; it belongs to cpu_execution_accelerator",
            ),
            (
                "",
                false,
                "optimization.execution_accelerators.cpu_execution_accelerator: the name is '', expected 'openvino'",
            ),
        ] {
            let error = Accelerator::from_name(name, on_gpu).unwrap_err();
            assert_eq!(error.message(), expected);
        }
        let long = "x".repeat(1 << 20);
        assert!(Accelerator::from_name(&long, true).unwrap_err().message().len() < 1000);
    }

    #[test]
    fn only_providers_of_gpus_have_a_device() {
        let chosen = |accelerator| ConfiguredAccelerator {
            accelerator,
            options: BTreeMap::new(),
        };
        let cuda = chosen(Accelerator::Cuda).on(Some(3));
        assert_eq!(cuda.options["device_id"], "3");
        assert!(chosen(Accelerator::OpenVino).on(Some(3)).options.is_empty());
    }
}
