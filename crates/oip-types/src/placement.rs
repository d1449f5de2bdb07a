//! The hardware that a model runs on, as shown in its configuration.

use std::fmt;

use crate::{ModelConfig, model_config::ConfigParameter};

/// The execution providers and GPUs that a model runs on, if its backend has a choice.
///
/// ```
/// use oip_types::{ModelConfig, Placement};
///
/// let placement = Placement::new(["CUDAExecutionProvider", "CPUExecutionProvider"]).on_gpus([1]);
/// let mut config = ModelConfig::default();
/// placement.show_in(&mut config);
/// assert_eq!(Placement::shown_in(&config), Some("CUDAExecutionProvider (GPU 1), CPUExecutionProvider"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The execution providers in order of preference, under ONNX Runtime's names. An operator that one
    /// provider does not support runs on the next provider.
    pub providers: Vec<String>,
    /// The CUDA indices of the GPUs; empty on the CPU.
    pub gpus: Vec<u32>,
}

impl Placement {
    /// The configuration parameter that shows the providers. Only the server writes it.
    pub const PARAMETER: &str = "execution_providers";

    /// Creates a placement on the CPU with these providers.
    pub fn new(providers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            providers: providers.into_iter().map(Into::into).collect(),
            gpus: Vec::new(),
        }
    }

    /// Returns the placement with `gpus` as its GPUs.
    #[must_use]
    pub fn on_gpus(self, gpus: impl IntoIterator<Item = u32>) -> Self {
        Self {
            gpus: gpus.into_iter().collect(),
            ..self
        }
    }

    /// Writes the placement into `config`, a model's complete configuration.
    pub fn show_in(&self, config: &mut ModelConfig) {
        let shown = ConfigParameter {
            string_value: self.to_string(),
        };
        config.parameters.insert(Self::PARAMETER.to_owned(), shown);
    }

    /// Returns the description that [`Self::show_in`] wrote into `config`; `None` if the server wrote none.
    #[must_use]
    pub fn shown_in(config: &ModelConfig) -> Option<&str> {
        let shown = config.parameters.get(Self::PARAMETER)?;
        Some(&shown.string_value)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, provider) in self.providers.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            f.write_str(provider)?;
            if index == 0 && !self.gpus.is_empty() {
                let gpus: Vec<String> = self.gpus.iter().map(u32::to_string).collect();
                write!(f, " (GPU {})", gpus.join(", "))?;
            }
        }
        Ok(())
    }
}
