//! The machine's GPUs, and the GPUs for models that do not request one.

use std::{fmt, str::FromStr};

use tensor_core::QuotedName;

/// The GPUs of this machine, and the GPUs for models whose configuration does not request one.
///
/// ```
/// use backend_onnx::{Gpu, Gpus};
///
/// let gpus = Gpus::new("0".parse()?).with_seen([Gpu::new("NVIDIA H100 80GB HBM3")]);
/// assert_eq!(gpus.free_to_take(), [0]);
/// # Ok::<(), backend_onnx::GpuChoiceError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Gpus {
    choice: GpuChoice,
    seen: Option<Vec<Gpu>>,
}

/// A GPU of this machine, with the vendor's name for it.
///
/// ```
/// assert_eq!(backend_onnx::Gpu::new("NVIDIA H100").name, "NVIDIA H100");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gpu {
    /// The vendor's name for the GPU.
    pub name: String,
}

impl Gpu {
    /// Creates a GPU with the vendor's name `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

/// The GPUs for models that do not ask for one: `all`, `none`, or comma-separated GPU numbers.
///
/// ```
/// use backend_onnx::GpuChoice;
///
/// assert_eq!("0,1".parse(), Ok(GpuChoice::Only(vec![0, 1])));
/// assert_eq!(
///     "first".parse::<GpuChoice>().unwrap_err().to_string(),
///     "'first' is not 'all', 'none' or GPU numbers such as '0,1'"
/// );
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuChoice {
    /// All detected GPUs; no GPU if detection was not possible.
    #[default]
    Seen,
    /// All GPUs of the machine, or GPU 0 if they are unknown.
    All,
    /// No GPU.
    None,
    /// Only the GPUs with these numbers, as CUDA counts them.
    Only(Vec<u32>),
}

/// A choice of GPUs that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuChoiceError(String);

impl fmt::Display for GpuChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = QuotedName(&self.0);
        write!(f, "{found} is not 'all', 'none' or GPU numbers such as '0,1'")
    }
}

impl std::error::Error for GpuChoiceError {}

impl FromStr for GpuChoice {
    type Err = GpuChoiceError;

    fn from_str(text: &str) -> Result<Self, GpuChoiceError> {
        match text.trim() {
            "all" => Ok(Self::All),
            "none" => Ok(Self::None),
            numbers => {
                let numbers = numbers.split(',').map(|number| number.trim().parse().ok());
                let numbers: Option<Vec<u32>> = numbers.collect();
                let mut numbers = numbers.ok_or_else(|| GpuChoiceError(text.to_owned()))?;
                let mut seen = Vec::new();
                numbers.retain(|number| {
                    let is_new = !seen.contains(number);
                    seen.push(*number);
                    is_new
                });
                Ok(Self::Only(numbers))
            }
        }
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seen => f.write_str("seen"),
            Self::All => f.write_str("all"),
            Self::None => f.write_str("none"),
            Self::Only(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
                f.write_str(&numbers.join(","))
            }
        }
    }
}

impl Gpus {
    /// Creates a choice without knowledge of the machine's GPUs.
    #[must_use]
    pub fn new(choice: GpuChoice) -> Self {
        Self { choice, seen: None }
    }

    /// Sets the GPUs of the machine, in CUDA's order.
    #[must_use]
    pub fn with_seen(self, gpus: impl IntoIterator<Item = Gpu>) -> Self {
        Self {
            seen: Some(gpus.into_iter().collect()),
            ..self
        }
    }

    /// Returns the GPUs of this machine; `None` if they are unknown.
    #[must_use]
    pub fn seen(&self) -> Option<&[Gpu]> {
        self.seen.as_deref()
    }

    /// Returns whether nothing was chosen for models that do not ask for a GPU.
    pub(crate) fn is_default(&self) -> bool {
        self.choice == GpuChoice::Seen
    }

    /// Returns whether GPUs for models that do not ask for one were chosen explicitly.
    pub(crate) fn are_chosen(&self) -> bool {
        matches!(self.choice, GpuChoice::All | GpuChoice::Only(_))
    }

    /// Returns the GPUs for models that do not ask for one, in order.
    #[must_use]
    pub fn free_to_take(&self) -> Vec<u32> {
        let all = || self.seen.as_ref().map(|seen| (0u32..).take(seen.len()).collect());
        match &self.choice {
            GpuChoice::None => Vec::new(),
            GpuChoice::Only(numbers) => numbers.clone(),
            GpuChoice::Seen => all().unwrap_or_default(),
            GpuChoice::All => all().unwrap_or_else(|| vec![0]),
        }
    }

    /// Returns the GPUs for a model whose configuration requires a GPU without giving its number.
    pub(crate) fn of_demand(&self) -> Vec<u32> {
        let free = self.free_to_take();
        let seen = || Self::new(GpuChoice::All).with_seen_of(self).free_to_take();
        let found = if free.is_empty() { seen() } else { free };
        // Chooses GPU 0 if there is none, so that the library reports the error.
        if found.is_empty() { vec![0] } else { found }
    }

    fn with_seen_of(self, other: &Self) -> Self {
        Self {
            seen: other.seen.clone(),
            ..self
        }
    }

    /// Returns whether the machine has this GPU; true if its GPUs are unknown.
    pub(crate) fn may_have(&self, gpu: u32) -> bool {
        let seen = self.seen.as_ref();
        seen.is_none_or(|seen| usize::try_from(gpu).is_ok_and(|gpu| gpu < seen.len()))
    }

    /// Describes the machine's GPUs for messages.
    pub(crate) fn describe(&self) -> String {
        match self.seen.as_deref() {
            None => "its GPUs are unknown".to_owned(),
            Some([]) => "this machine has none".to_owned(),
            Some(seen) => {
                let gpus = seen.iter().enumerate();
                let gpus: Vec<String> = gpus
                    .map(|(index, gpu)| format!("{index} ({})", gpu.name))
                    .collect();
                format!("this machine has {}", gpus.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn gpus(choice: &str, seen: Option<usize>) -> Gpus {
        let choice = match choice {
            "" => GpuChoice::default(),
            choice => choice.parse().unwrap(),
        };
        let gpus = Gpus::new(choice);
        match seen {
            Some(count) => gpus.with_seen((0..count).map(|_| Gpu::new("H100"))),
            None => gpus,
        }
    }

    #[test]
    fn without_a_choice_models_take_what_is_seen() {
        for (choice, seen, free, demanded) in [
            ("", None, &[][..], &[0][..]),
            ("", Some(0), &[], &[0]),
            ("", Some(2), &[0, 1], &[0, 1]),
            ("none", Some(2), &[], &[0, 1]),
            ("none", None, &[], &[0]),
            ("all", Some(2), &[0, 1], &[0, 1]),
            ("all", None, &[0], &[0]),
            ("1", Some(2), &[1], &[1]),
            (" 1, 0,1 ", None, &[1, 0], &[1, 0]),
        ] {
            let gpus = gpus(choice, seen);
            let found = (gpus.free_to_take(), gpus.of_demand());
            assert_eq!(found, (free.to_vec(), demanded.to_vec()), "{choice} {seen:?}");
        }
    }

    #[test]
    fn choices_that_are_none_are_refused() {
        for wrong in ["", "first", "0,", "-1", "0 1", "4294967296", "all,0"] {
            let error = wrong.parse::<GpuChoice>().unwrap_err().to_string();
            assert!(error.contains("is not 'all', 'none' or GPU numbers"), "{error}");
        }
        for good in ["all", "none", "0,3"] {
            assert_eq!(good.parse::<GpuChoice>().unwrap().to_string(), good);
        }
    }
}
