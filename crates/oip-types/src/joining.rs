//! Whether the requests of different callers are joined into batches, as it is shown everywhere.

use std::fmt;

use crate::{ModelConfig, model_config::ConfigParameter};

/// On whose word the requests of different callers are joined into batches, if they are.
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
    /// They are joined because the configuration or the model's own code says so.
    Declared,
    /// They are joined because the model's file proves that rows are independent.
    Proven,
    /// Each request runs alone.
    Alone {
        /// Why, without a full stop.
        reason: String,
        /// What to do so that they are joined, as a clause such as "write `max_batch_size`: 8"; empty where nothing helps.
        advice: String,
    },
}

impl Joining {
    /// The parameter of a model's configuration that shows it. Only the server writes it.
    pub const PARAMETER: &str = "batched";

    /// Each request runs alone, for this reason.
    pub fn alone(reason: impl Into<String>) -> Self {
        Self::Alone {
            reason: reason.into(),
            advice: String::new(),
        }
    }

    /// The same with what to do so that requests are joined, as a clause; nothing changes where they are.
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

    /// Whether requests are joined.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        !matches!(self, Self::Alone { .. })
    }

    /// `declared`, `proven` or `no`, which is the first word of the text.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Proven => "proven",
            Self::Alone { .. } => "no",
        }
    }

    /// Puts it into a model's complete configuration.
    pub fn show_in(&self, config: &mut ModelConfig) {
        let shown = ConfigParameter {
            string_value: self.to_string(),
        };
        config.parameters.insert(Self::PARAMETER.to_owned(), shown);
    }

    /// What a server says about it in a model's complete configuration, where it says it.
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
