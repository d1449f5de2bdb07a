//! Matches a model's configuration against the library's providers and the machine's GPUs.

use oip_types::{
    ModelConfig, ServiceError,
    model_config::{Accelerator as Written, InstanceKind},
};

use super::{Accelerator, ConfiguredAccelerator, Gpus, options::chosen};

/// The devices and providers for a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The providers in addition to the CPU's, most preferred first.
    pub(crate) chosen: Vec<ConfiguredAccelerator>,
    /// The GPUs, each with its own session; empty for the CPU.
    pub(crate) gpus: Vec<u32>,
    /// Whether the configuration requires this plan; if so, loading fails without it.
    pub(crate) is_demanded: bool,
    /// Preferences of the configuration that cannot be met, for the log.
    pub(crate) warnings: Vec<String>,
}

impl Plan {
    /// Returns the plan for the CPU only.
    pub(crate) fn cpu() -> Self {
        Self::default()
    }

    /// Returns whether the plan uses only the CPU's own provider.
    pub(crate) fn is_plain_cpu(&self) -> bool {
        self.chosen.is_empty()
    }

    /// Returns the device of each session; `None` is the CPU.
    pub(crate) fn devices(&self) -> Vec<Option<u32>> {
        match self.gpus.is_empty() {
            true => vec![None],
            false => self.gpus.iter().copied().map(Some).collect(),
        }
    }
}

/// The kind of instances that a configuration requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gpu,
    Cpu,
    Auto,
}

/// Plans the devices of a model. `library` describes the library in messages; `providers` are its providers.
///
/// # Errors
/// Returns [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) if a required device is missing, or if
/// the configuration is contradictory.
pub(crate) fn plan(
    config: &ModelConfig,
    gpus: &Gpus,
    library: &str,
    providers: &[String],
) -> Result<Plan, ServiceError> {
    let kind = kind(config)?;
    let accelerators = &config.optimization.execution_accelerators;
    // A misspelled name is an error even if the plan does not use it.
    let on_gpu = read(&accelerators.gpu_execution_accelerator, true, config)?;
    let on_cpu = read(&accelerators.cpu_execution_accelerator, false, config)?;
    let asked = Environment {
        gpus,
        library,
        providers,
    };
    match kind {
        Kind::Gpu => asked.on_gpu(with_cuda(on_gpu, config)?, asked_gpus(config)),
        Kind::Cpu => asked.on_cpu(on_cpu, true),
        Kind::Auto => {
            let wish = !on_gpu.is_empty() || !asked_gpus(config).is_empty();
            asked.automatic(with_cuda(on_gpu, config)?, on_cpu, asked_gpus(config), wish)
        }
    }
}

/// Returns whether a configuration names an accelerator, which only ONNX Runtime supports.
pub(crate) fn names_accelerators(config: &ModelConfig) -> bool {
    let accelerators = &config.optimization.execution_accelerators;
    !accelerators.gpu_execution_accelerator.is_empty() || !accelerators.cpu_execution_accelerator.is_empty()
}

/// Checks the accelerators that a configuration names, whichever runtime the model gets.
///
/// # Errors
/// Returns [`InvalidArgument`](oip_types::ErrorCode::InvalidArgument) for an unknown name, an accelerator in
/// the list for the other kind of device, or a wrong option.
pub(crate) fn check_accelerators(config: &ModelConfig) -> Result<(), ServiceError> {
    let accelerators = &config.optimization.execution_accelerators;
    read(&accelerators.gpu_execution_accelerator, true, config)?;
    read(&accelerators.cpu_execution_accelerator, false, config)?;
    Ok(())
}

/// Returns whether a configuration requires a GPU.
pub(crate) fn demands_gpu(config: &ModelConfig) -> bool {
    config
        .instance_group
        .iter()
        .any(|group| group.kind == InstanceKind::Gpu)
}

fn kind(config: &ModelConfig) -> Result<Kind, ServiceError> {
    let mut found = None;
    for group in &config.instance_group {
        let kind = match group.kind {
            InstanceKind::Gpu => Kind::Gpu,
            InstanceKind::Cpu => Kind::Cpu,
            InstanceKind::Auto | InstanceKind::Model => Kind::Auto,
        };
        if kind == Kind::Cpu && !group.gpus.is_empty() {
            return Err(ServiceError::invalid(
                "instance_group has gpus and KIND_CPU; set KIND_GPU, or remove gpus",
            ));
        }
        if found.is_some_and(|found| found != kind) {
            return Err(ServiceError::invalid(
                "instance_group has groups of different kinds; the instances of a model run on GPUs or on CPUs: give all groups one \
                 kind, or make two models",
            ));
        }
        found = Some(kind);
    }
    Ok(found.unwrap_or(Kind::Auto))
}

/// Returns the GPUs of all instance groups, without duplicates.
fn asked_gpus(config: &ModelConfig) -> Vec<u32> {
    let mut gpus: Vec<u32> = Vec::new();
    for gpu in config.instance_group.iter().flat_map(|group| &group.gpus) {
        if !gpus.contains(gpu) {
            gpus.push(*gpu);
        }
    }
    gpus
}

fn read(
    written: &[Written],
    on_gpu: bool,
    config: &ModelConfig,
) -> Result<Vec<ConfiguredAccelerator>, ServiceError> {
    let mut all: Vec<ConfiguredAccelerator> = Vec::new();
    for written in written {
        let accelerator = Accelerator::from_name(&written.name, on_gpu)?;
        if all.iter().any(|earlier| earlier.accelerator == accelerator) {
            return Err(ServiceError::invalid(format!(
                "the accelerator '{}' is listed twice",
                accelerator.name()
            )));
        }
        all.push(chosen(accelerator, Some(written), config)?);
    }
    Ok(all)
}

/// Adds CUDA for operators that other GPU providers do not support, as Triton does.
fn with_cuda(
    mut on_gpu: Vec<ConfiguredAccelerator>,
    config: &ModelConfig,
) -> Result<Vec<ConfiguredAccelerator>, ServiceError> {
    if on_gpu
        .iter()
        .all(|chosen| chosen.accelerator != Accelerator::Cuda)
    {
        on_gpu.push(chosen(Accelerator::Cuda, None, config)?);
    }
    Ok(on_gpu)
}

struct Environment<'a> {
    gpus: &'a Gpus,
    library: &'a str,
    providers: &'a [String],
}

impl Environment<'_> {
    fn has(&self, accelerator: Accelerator) -> bool {
        self.providers
            .iter()
            .any(|provider| provider == accelerator.provider())
    }

    /// Formats the error for a missing provider, with the remedy.
    fn lacks(&self, accelerator: Accelerator) -> String {
        format!(
            "{} has no {} (it has {}); pip install {} brings a library that has it",
            self.library,
            accelerator.provider(),
            match self.providers {
                [] => "none".to_owned(),
                providers => providers.join(", "),
            },
            accelerator.package()
        )
    }

    fn on_gpu(&self, chosen: Vec<ConfiguredAccelerator>, asked: Vec<u32>) -> Result<Plan, ServiceError> {
        if let Some(missing) = chosen.iter().find(|chosen| !self.has(chosen.accelerator)) {
            return Err(ServiceError::invalid(format!(
                "the model's configuration demands a GPU (KIND_GPU), and {}; with KIND_AUTO the model runs on the CPU where there is \
                 no GPU",
                self.lacks(missing.accelerator)
            )));
        }
        let gpus = match asked.is_empty() {
            true => self.gpus.of_demand(),
            false => asked,
        };
        if let Some(missing) = gpus.iter().find(|gpu| !self.gpus.may_have(**gpu)) {
            return Err(ServiceError::invalid(format!(
                "the model's configuration demands GPU {missing}, and {}",
                self.gpus.describe()
            )));
        }
        Ok(Plan {
            chosen,
            gpus,
            is_demanded: true,
            warnings: Vec::new(),
        })
    }

    fn on_cpu(&self, chosen: Vec<ConfiguredAccelerator>, is_demanded: bool) -> Result<Plan, ServiceError> {
        let (chosen, missing): (Vec<_>, Vec<_>) = chosen
            .into_iter()
            .partition(|chosen| self.has(chosen.accelerator));
        if let (true, Some(missing)) = (is_demanded, missing.first()) {
            return Err(ServiceError::invalid(format!(
                "the model's configuration demands '{}' (KIND_CPU), and {}; with KIND_AUTO the model runs \
                 without it where it is missing",
                missing.accelerator.name(),
                self.lacks(missing.accelerator)
            )));
        }
        let warnings = missing.iter().map(|missing| self.lacks(missing.accelerator));
        Ok(Plan {
            warnings: warnings.collect(),
            is_demanded: is_demanded && !chosen.is_empty(),
            chosen,
            gpus: Vec::new(),
        })
    }

    /// Plans the devices of a model that requests none: the GPUs for such models if there are any, otherwise
    /// the CPU.
    fn automatic(
        &self,
        on_gpu: Vec<ConfiguredAccelerator>,
        on_cpu: Vec<ConfiguredAccelerator>,
        asked: Vec<u32>,
        has_wish: bool,
    ) -> Result<Plan, ServiceError> {
        let free = self.gpus.free_to_take();
        let (gpus, refused): (Vec<u32>, Vec<u32>) = match asked.is_empty() {
            true => (free, Vec::new()),
            false => asked.into_iter().partition(|gpu| free.contains(gpu)),
        };
        let (gpus, absent): (Vec<u32>, Vec<u32>) = gpus.into_iter().partition(|gpu| self.gpus.may_have(*gpu));
        let mut warnings = Vec::new();
        for gpu in absent {
            warnings.push(format!("there is no GPU {gpu}: {}", self.gpus.describe()));
        }
        for gpu in refused {
            match (self.gpus.may_have(gpu), self.gpus.is_default()) {
                (false, _) => warnings.push(format!("there is no GPU {gpu}: {}", self.gpus.describe())),
                (true, false) => warnings.push(format!("GPU {gpu} is excluded by --gpus")),
                // A warning about the library follows.
                (true, true) if !self.has(Accelerator::Cuda) => {}
                (true, true) => warnings.push(format!(
                    "GPU {gpu} is not used, because no GPU was found: the NVIDIA driver's library \
                     libnvidia-ml.so.1 could not be loaded; KIND_GPU, or --gpus {gpu}, uses it nevertheless"
                )),
            }
        }
        let (on_gpu, missing): (Vec<_>, Vec<_>) = on_gpu
            .into_iter()
            .partition(|chosen| self.has(chosen.accelerator));
        // No official library build has a GPU provider without CUDA.
        if has_wish || self.gpus.are_chosen() {
            warnings.extend(missing.iter().map(|missing| self.lacks(missing.accelerator)));
            if gpus.is_empty() && missing.is_empty() && warnings.is_empty() {
                warnings.push(format!("--gpus leaves no GPU: {}", self.gpus.describe()));
            }
        }
        if gpus.is_empty() || on_gpu.is_empty() {
            let mut plan = self.on_cpu(on_cpu, false)?;
            warnings.append(&mut plan.warnings);
            return Ok(Plan { warnings, ..plan });
        }
        Ok(Plan {
            chosen: on_gpu,
            gpus,
            is_demanded: false,
            warnings,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use oip_types::model_config::{ExecutionAccelerators, InstanceGroup, Optimization};

    use super::{super::Gpu, *};

    const CPU: &[&str] = &["AzureExecutionProvider", "CPUExecutionProvider"];
    const GPU: &[&str] = &[
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ];
    const OPENVINO: &[&str] = &["OpenVINOExecutionProvider", "CPUExecutionProvider"];

    fn group(kind: InstanceKind, gpus: &[u32]) -> InstanceGroup {
        InstanceGroup {
            kind,
            gpus: gpus.to_vec(),
            ..InstanceGroup::default()
        }
    }

    fn config(groups: &[InstanceGroup], on_gpu: &[&str], on_cpu: &[&str]) -> ModelConfig {
        let accelerators = |names: &[&str]| {
            let named = |name: &&str| Written {
                name: (*name).to_owned(),
                ..Written::default()
            };
            names.iter().map(named).collect()
        };
        ModelConfig {
            instance_group: groups.to_vec(),
            optimization: Optimization {
                execution_accelerators: ExecutionAccelerators {
                    gpu_execution_accelerator: accelerators(on_gpu),
                    cpu_execution_accelerator: accelerators(on_cpu),
                },
            },
            ..ModelConfig::default()
        }
    }

    fn gpus(choice: &str, seen: Option<usize>) -> Gpus {
        let gpus = match choice {
            "" => Gpus::default(),
            choice => Gpus::new(choice.parse().unwrap()),
        };
        match seen {
            Some(count) => gpus.with_seen((0..count).map(|_| Gpu::new("NVIDIA H100"))),
            None => gpus,
        }
    }

    fn run(config: &ModelConfig, gpus: &Gpus, providers: &[&str]) -> Result<Plan, String> {
        let providers: Vec<String> = providers.iter().map(|&name| name.to_owned()).collect();
        plan(config, gpus, "ONNX Runtime 1.31.1", &providers).map_err(|error| error.message().to_owned())
    }

    fn names(plan: &Plan) -> Vec<&'static str> {
        plan.chosen
            .iter()
            .map(|chosen| chosen.accelerator.name())
            .collect()
    }

    #[test]
    fn without_a_word_the_model_is_on_a_gpu_where_the_library_has_one_and_a_card_is_seen() {
        let silent = ModelConfig::default();
        for (gpus, providers, expected) in [
            (gpus("", Some(2)), GPU, &[0, 1][..]),
            (gpus("", None), GPU, &[]),
            (gpus("", Some(0)), GPU, &[]),
            (gpus("", Some(2)), CPU, &[]),
            (gpus("none", Some(2)), GPU, &[]),
            (gpus("1", Some(2)), GPU, &[1]),
        ] {
            let plan = run(&silent, &gpus, providers).unwrap();
            assert_eq!(plan.gpus, expected, "{gpus:?}");
            assert_eq!(
                (plan.is_demanded, plan.is_plain_cpu()),
                (false, expected.is_empty())
            );
            assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
        }
        // The server's option `--gpus` also counts as a preference.
        let plan = run(&silent, &gpus("all", None), CPU).unwrap();
        assert_eq!(
            plan.warnings,
            [
                "ONNX Runtime 1.31.1 has no CUDAExecutionProvider (it has AzureExecutionProvider, CPUExecutionProvider); pip install \
              onnxruntime-gpu brings a library that has it"
            ]
        );
    }

    #[test]
    fn a_demand_for_a_gpu_is_an_error_where_the_library_has_none() {
        let demand = config(&[group(InstanceKind::Gpu, &[])], &[], &[]);
        assert_eq!(
            run(&demand, &gpus("", None), CPU).unwrap_err(),
            "the model's configuration demands a GPU (KIND_GPU), and ONNX Runtime 1.31.1 has no CUDAExecutionProvider (it has \
             AzureExecutionProvider, CPUExecutionProvider); pip install onnxruntime-gpu brings a library that has it; with KIND_AUTO \
             the model runs on the CPU where there is no GPU"
        );
        // --gpus only concerns models that do not ask for a GPU.
        for choice in ["", "none", "all"] {
            let plan = run(&demand, &gpus(choice, Some(2)), GPU).unwrap();
            assert_eq!((plan.gpus, plan.is_demanded), (vec![0, 1], true), "{choice}");
        }
        let plan = run(&demand, &gpus("1", Some(2)), GPU).unwrap();
        assert_eq!((names(&plan), plan.gpus), (vec!["cuda"], vec![1]));
    }

    /// Checks the errors and warnings for a GPU that does not exist.
    #[test]
    fn a_gpu_that_is_not_there_is_an_error_or_a_warning() {
        let one = gpus("", Some(1));
        let demand = config(&[group(InstanceKind::Gpu, &[7])], &[], &[]);
        assert_eq!(
            run(&demand, &one, GPU).unwrap_err(),
            "the model's configuration demands GPU 7, and this machine has 0 (NVIDIA H100)"
        );
        assert_eq!(
            run(&demand, &gpus("", Some(0)), GPU).unwrap_err(),
            "the model's configuration demands GPU 7, and this machine has none"
        );
        // If the GPUs of the machine are unknown, only the library can check the number.
        assert_eq!(run(&demand, &gpus("", None), GPU).unwrap().gpus, [7]);
        let wish = config(&[group(InstanceKind::Auto, &[0, 7])], &[], &[]);
        let plan = run(&wish, &one, GPU).unwrap();
        assert_eq!(plan.gpus, [0]);
        assert_eq!(
            plan.warnings,
            ["there is no GPU 7: this machine has 0 (NVIDIA H100)"]
        );
        let plan = run(&wish, &gpus("1", Some(2)), GPU).unwrap();
        assert!(plan.is_plain_cpu());
        assert_eq!(
            plan.warnings,
            [
                "GPU 0 is excluded by --gpus",
                "there is no GPU 7: this machine has 0 (NVIDIA H100), 1 (NVIDIA H100)"
            ]
        );
        // Without --gpus, the warnings name what is missing: the provider, or the GPUs.
        let wish = config(&[group(InstanceKind::Auto, &[0])], &[], &[]);
        let plan = run(&wish, &gpus("", None), CPU).unwrap();
        assert_eq!(
            plan.warnings,
            [
                "ONNX Runtime 1.31.1 has no CUDAExecutionProvider (it has AzureExecutionProvider, CPUExecutionProvider); pip install \
                 onnxruntime-gpu brings a library that has it"
            ]
        );
        let plan = run(&wish, &gpus("", None), GPU).unwrap();
        assert!(plan.is_plain_cpu());
        assert_eq!(
            plan.warnings,
            [
                "GPU 0 is not used, because no GPU was found: the NVIDIA driver's library libnvidia-ml.so.1 could not be loaded; \
                 KIND_GPU, or --gpus 0, uses it nevertheless"
            ]
        );
        let plan = run(&wish, &gpus("none", None), GPU).unwrap();
        assert_eq!(plan.warnings, ["GPU 0 is excluded by --gpus"]);
    }

    #[test]
    fn cuda_takes_what_other_providers_leave() {
        let plan = run(
            &config(&[group(InstanceKind::Gpu, &[])], &["tensorrt"], &[]),
            &gpus("", Some(1)),
            GPU,
        );
        assert_eq!(names(&plan.unwrap()), ["tensorrt", "cuda"]);
        let both = config(&[group(InstanceKind::Gpu, &[])], &["cuda", "tensorrt"], &[]);
        assert_eq!(
            names(&run(&both, &gpus("", Some(1)), GPU).unwrap()),
            ["cuda", "tensorrt"]
        );
        // The configuration prefers TensorRT; the library only has CUDA.
        let wish = config(&[], &["tensorrt"], &[]);
        let plan = run(&wish, &gpus("", Some(1)), &GPU[1..]).unwrap();
        assert_eq!(names(&plan), ["cuda"]);
        assert_eq!(plan.warnings.len(), 1);
    }

    #[test]
    fn accelerators_of_cpus_are_demanded_by_kind_cpu_and_else_preferred() {
        let demand = config(&[group(InstanceKind::Cpu, &[])], &[], &["openvino"]);
        let wish = config(&[], &[], &["openvino"]);
        let none = gpus("", Some(1));
        assert_eq!(names(&run(&demand, &none, OPENVINO).unwrap()), ["openvino"]);
        assert_eq!(names(&run(&wish, &none, OPENVINO).unwrap()), ["openvino"]);
        assert_eq!(
            run(&demand, &none, CPU).unwrap_err(),
            "the model's configuration demands 'openvino' (KIND_CPU), and ONNX Runtime 1.31.1 has no OpenVINOExecutionProvider (it has \
             AzureExecutionProvider, CPUExecutionProvider); pip install onnxruntime-openvino brings a \
             library that has it; with KIND_AUTO the model runs without it where it is missing"
        );
        let plan = run(&wish, &none, CPU).unwrap();
        assert!(plan.is_plain_cpu() && plan.warnings.len() == 1, "{plan:?}");
        // Instances of KIND_CPU ignore the accelerators for GPUs.
        let plan = run(
            &config(&[group(InstanceKind::Cpu, &[])], &["cuda"], &[]),
            &none,
            GPU,
        );
        assert!(plan.unwrap().is_plain_cpu());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let (gpu, cpu) = (InstanceKind::Gpu, InstanceKind::Cpu);
        for (config, expected) in [
            (
                config(&[group(gpu, &[]), group(cpu, &[])], &[], &[]),
                "instance_group has groups of different kinds",
            ),
            (
                config(&[group(cpu, &[0])], &[], &[]),
                "instance_group has gpus and KIND_CPU",
            ),
            (
                config(&[], &["cuda", "cuda"], &[]),
                "the accelerator 'cuda' is listed twice",
            ),
            // The error is reported even where the setting would have no effect.
            (
                config(&[group(cpu, &[])], &["cud"], &[]),
                "optimization.execution_accelerators.gpu_execution_accelerator: the name is 'cud'",
            ),
        ] {
            let error = run(&config, &gpus("", Some(1)), GPU).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let twice = config(&[group(gpu, &[0, 1]), group(gpu, &[1])], &[], &[]);
        assert_eq!(run(&twice, &gpus("", None), GPU).unwrap().gpus, [0, 1]);
    }
}
