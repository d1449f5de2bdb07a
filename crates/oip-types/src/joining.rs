//! Whether a server batches requests of different clients, and why.

use std::fmt;

use crate::{ModelConfig, model_config::ConfigParameter};

/// Whether requests of different clients are batched together, and the reason.
///
/// ```
/// use oip_types::Joining;
///
/// let declared = Joining::Declared;
/// let not = Joining::alone("CumSum 'y' runs along axis 0").advising("write max_batch_size: 8");
/// assert_eq!(declared.to_string(), "declared");
/// assert_eq!(
///     not.to_string(),
///     "no (CumSum 'y' runs along axis 0; to promise that rows are independent, write max_batch_size: 8)"
/// );
/// assert_eq!((not.word(), not.is_joined()), ("no", false));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Joining {
    /// Batched: the configuration or the backend declares it.
    Declared,
    /// Batched: analysis of the model file proves that rows are independent.
    Proven,
    /// Not batched: each request runs alone.
    Alone {
        /// The reason why requests are not batched, without a full stop.
        reason: String,
        /// How to enable batching, as a clause such as "write `max_batch_size`: 8"; empty if nothing helps.
        advice: String,
    },
}

impl Joining {
    /// The name of the configuration parameter that shows whether requests are batched, and why. Only the
    /// server sets it.
    pub const PARAMETER: &str = "batched";

    /// Creates [`Joining::Alone`] with a reason.
    pub fn alone(reason: impl Into<String>) -> Self {
        Self::Alone {
            reason: reason.into(),
            advice: String::new(),
        }
    }

    /// Sets the advice on how to enable batching, as a clause. Has no effect if requests are batched.
    #[must_use]
    pub fn advising(self, advice: impl Into<String>) -> Self {
        match self {
            Self::Alone { reason, .. } => Self::Alone {
                reason,
                advice: advice.into(),
            },
            joined => joined,
        }
    }

    /// Returns whether requests of different clients are batched.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        !matches!(self, Self::Alone { .. })
    }

    /// Returns `declared`, `proven` or `no`: the first word of the display form.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Proven => "proven",
            Self::Alone { .. } => "no",
        }
    }

    /// Writes this value into `config`, a model's complete configuration.
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

impl fmt::Display for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word();
        match self {
            Self::Declared | Self::Proven => f.write_str(word),
            Self::Alone { reason, advice } if advice.is_empty() => write!(f, "{word} ({reason})"),
            Self::Alone { reason, advice } => {
                write!(
                    f,
                    "{word} ({reason}; to promise that rows are independent, {advice})"
                )
            }
        }
    }
}
