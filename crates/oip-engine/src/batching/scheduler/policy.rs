//! The batching policy of a model version, from its configuration or from the independence of its rows.

use std::{collections::BTreeMap, error::Error, fmt, time::Duration};

use model_config::batch_obstacle;
use oip_model::IndependentRows;
use oip_types::{
    ModelConfig, ModelMetadata,
    model_config::{DynamicBatching, QueuePolicy, TimeoutAction},
};

/// Rules for how long requests to a model version wait, and which of them run together.
///
/// A policy comes from a configuration with Triton's fields ([`BatchPolicy::from_config`]), or from known
/// properties of the model's rows ([`BatchPolicy::derived`]).
#[derive(Clone, Debug, PartialEq)]
pub struct BatchPolicy {
    max_rows: u64,
    max_joined_bytes: u64,
    joins: bool,
    is_configured: bool,
    independent_rows: IndependentRows,
    preferred_rows: Vec<u64>,
    max_delay: Duration,
    preserves_order: bool,
    levels: u64,
    default_level: u64,
    queue: QueuePolicy,
    level_queues: BTreeMap<u64, QueuePolicy>,
}

impl BatchPolicy {
    /// Default maximum number of rows in a batch (64).
    ///
    /// On CPUs larger batches gain little: the digits network takes 6 us per row alone and 0.7 us in batches
    /// of 32, 64 or 128, and the first request of a batch waits for the last.
    pub const DEFAULT_MAX_ROWS: u64 = 64;

    /// Default maximum size of a batch's inputs, in bytes (16 MiB). Batching copies the inputs. For large
    /// rows, the copy costs more than the batch saves.
    pub const DEFAULT_MAX_JOINED_BYTES: u64 = 16 << 20;

    /// Creates a policy that runs every request alone, in the order of arrival.
    #[must_use]
    pub fn one_by_one() -> Self {
        Self {
            max_rows: 0,
            max_joined_bytes: u64::MAX,
            joins: true,
            is_configured: false,
            independent_rows: IndependentRows::default(),
            preferred_rows: Vec::new(),
            max_delay: Duration::ZERO,
            preserves_order: false,
            levels: 0,
            default_level: 0,
            queue: QueuePolicy::default(),
            level_queues: BTreeMap::new(),
        }
    }

    /// Creates the policy of an unconfigured model with independent rows: requests of up to `max_rows` rows
    /// are combined into batches of up to `max_rows` rows. Larger requests, and those whose inputs have
    /// different numbers of rows, run alone.
    ///
    /// In addition, the first dimension of all outputs, and of all inputs with rows, must be free in
    /// `metadata`, and at least one input with rows must be required. Otherwise, or if `max_rows` is 0, every
    /// request runs alone.
    #[must_use]
    pub fn derived(metadata: &ModelMetadata, rows: &IndependentRows, max_rows: u64) -> Self {
        let shared = &rows.shared_inputs;
        let has_rows = metadata.inputs.iter().any(|input| !shared.contains(&input.name));
        let is_batchable =
            has_rows && !metadata.outputs.is_empty() && batch_obstacle(metadata, shared).is_none();
        if max_rows == 0 || !is_batchable {
            return Self::one_by_one();
        }
        Self {
            max_rows,
            max_joined_bytes: Self::DEFAULT_MAX_JOINED_BYTES,
            independent_rows: rows.clone(),
            ..Self::one_by_one()
        }
    }

    /// Creates the policy that `config` describes. The fields have the same meaning as in Triton: a
    /// `max_batch_size` above 1 enables batching, and `dynamic_batching` holds its settings.
    ///
    /// # Errors
    /// [`PolicyError`] for contradictory values.
    pub fn from_config(config: &ModelConfig) -> Result<Self, PolicyError> {
        let max_rows = u64::from(config.max_batch_size);
        let Some(batching) = &config.dynamic_batching else {
            return Ok(Self {
                max_rows,
                is_configured: true,
                ..Self::one_by_one()
            });
        };
        check(batching, max_rows)?;
        let mut preferred_rows: Vec<u64> = batching
            .preferred_batch_size
            .iter()
            .copied()
            .map(u64::from)
            .collect();
        preferred_rows.sort_unstable();
        Ok(Self {
            max_rows,
            is_configured: true,
            preferred_rows,
            max_delay: Duration::from_micros(batching.max_queue_delay_microseconds),
            preserves_order: batching.preserve_ordering,
            levels: batching.priority_levels,
            default_level: batching.default_priority_level,
            queue: batching.default_queue_policy.clone().unwrap_or_default(),
            level_queues: batching.priority_queue_policy.clone(),
            ..Self::one_by_one()
        })
    }

    /// Returns the same policy, except that each request runs alone with all its rows.
    #[must_use]
    pub fn without_joining(self) -> Self {
        Self { joins: false, ..self }
    }

    /// Returns whether requests are batched together.
    pub(crate) fn joins(&self) -> bool {
        self.joins
    }

    /// Returns the maximum number of rows in a batch; 0 if the model does not batch.
    #[must_use]
    pub fn max_rows(&self) -> u64 {
        self.max_rows
    }

    /// Returns whether the limits come from a configuration. If they do, requests above the limits are
    /// refused, and outputs must have as many rows as the inputs.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.is_configured
    }

    /// Returns the conditions under which requests are batched together.
    pub(crate) fn independent_rows(&self) -> &IndependentRows {
        &self.independent_rows
    }

    pub(crate) fn preserves_order(&self) -> bool {
        self.preserves_order
    }

    pub(crate) fn max_delay(&self) -> Duration {
        self.max_delay
    }

    pub(crate) fn max_joined_bytes(&self) -> u64 {
        self.max_joined_bytes
    }

    pub(crate) fn is_preferred(&self, rows: u64) -> bool {
        self.preferred_rows.binary_search(&rows).is_ok()
    }

    /// Returns the number of rows at which waiting for more requests is pointless.
    pub(crate) fn enough_rows(&self) -> u64 {
        self.preferred_rows.last().copied().unwrap_or(self.max_rows)
    }

    /// Returns the level of a request with `priority`; a priority out of range selects the default level, as
    /// in Triton.
    pub(crate) fn level(&self, priority: u64) -> u64 {
        match priority {
            _ if self.levels == 0 => 0,
            0 => self.default_level,
            _ if priority > self.levels => self.default_level,
            _ => priority,
        }
    }

    /// Returns the queue policy of a level.
    pub(crate) fn queue(&self, level: u64) -> &QueuePolicy {
        self.level_queues.get(&level).unwrap_or(&self.queue)
    }

    /// Returns the queue timeout of a request. The timeout `own` of the request can only shorten the
    /// configured one.
    pub(crate) fn timeout(&self, level: u64, own: Option<Duration>) -> Option<Duration> {
        let queue = self.queue(level);
        let configured = Duration::from_micros(queue.default_timeout_microseconds);
        let configured = Some(configured).filter(|timeout| !timeout.is_zero());
        let own = own.filter(|timeout| queue.allow_timeout_override && !timeout.is_zero());
        [configured, own].into_iter().flatten().min()
    }

    pub(crate) fn is_delayed_by_timeout(&self, level: u64) -> bool {
        self.queue(level).timeout_action == TimeoutAction::Delay
    }
}

/// Maximum number of priority levels. Each level can have its own queue limit, so the maximum also bounds the
/// number of waiting requests.
const MAX_LEVELS: u64 = 256;

fn check(batching: &DynamicBatching, max_rows: u64) -> Result<(), PolicyError> {
    let check = |field, is_right: bool, expected: String, found: u64| match is_right {
        true => Ok(()),
        false => Err(PolicyError {
            field,
            expected,
            found,
        }),
    };
    check("", max_rows > 0, "a max_batch_size above 0".to_owned(), max_rows)?;
    for &size in &batching.preferred_batch_size {
        let size = u64::from(size);
        let expected = format!("1 to {max_rows} (max_batch_size)");
        check(
            "preferred_batch_size",
            (1..=max_rows).contains(&size),
            expected,
            size,
        )?;
    }
    let levels = batching.priority_levels;
    check(
        "priority_levels",
        levels <= MAX_LEVELS,
        format!("at most {MAX_LEVELS}"),
        levels,
    )?;
    check(
        "preserve_ordering",
        !batching.preserve_ordering || levels <= 1,
        "at most 1 priority level".to_owned(),
        levels,
    )?;
    let expected = || format!("1 to {levels} (priority_levels)");
    let default = batching.default_priority_level;
    let is_level = levels == 0 || (1..=levels).contains(&default);
    check("default_priority_level", is_level, expected(), default)?;
    for &level in batching.priority_queue_policy.keys() {
        let is_level = (1..=levels).contains(&level);
        check("priority_queue_policy", is_level, expected(), level)?;
    }
    Ok(())
}

/// A contradictory value in `dynamic_batching`.
///
/// ```
/// use oip_engine::BatchPolicy;
/// use oip_types::{ModelConfig, model_config::DynamicBatching};
///
/// let config = ModelConfig {
///     max_batch_size: 8,
///     dynamic_batching: Some(DynamicBatching { preferred_batch_size: vec![9], ..Default::default() }),
///     ..Default::default()
/// };
/// assert_eq!(
///     BatchPolicy::from_config(&config).unwrap_err().to_string(),
///     "dynamic_batching.preferred_batch_size: expected 1 to 8 (max_batch_size), found 9"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The field of `dynamic_batching`; empty if the error concerns the whole message.
    field: &'static str,
    expected: String,
    found: u64,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            expected,
            found,
        } = self;
        let dot = if field.is_empty() { "" } else { "." };
        write!(
            f,
            "dynamic_batching{dot}{field}: expected {expected}, found {found}"
        )
    }
}

impl Error for PolicyError {}

#[cfg(test)]
mod tests {
    use oip_types::{DataType, TensorMetadata};

    use super::*;

    fn metadata(inputs: &[&[i64]], outputs: &[&[i64]]) -> ModelMetadata {
        let tensors = |shapes: &[&[i64]]| {
            let tensor = |(index, dims): (usize, &&[i64])| {
                TensorMetadata::new(format!("t{index}"), DataType::FP32, dims)
            };
            shapes.iter().enumerate().map(tensor).collect()
        };
        ModelMetadata::new("m", "test_test", tensors(inputs), tensors(outputs))
    }

    #[test]
    fn models_whose_first_dimensions_are_all_free_take_batches() {
        let max_rows = |inputs: &[&[i64]], outputs: &[&[i64]]| {
            BatchPolicy::derived(&metadata(inputs, outputs), &IndependentRows::default(), 64).max_rows()
        };
        assert_eq!(max_rows(&[&[-1, 4], &[-1]], &[&[-1]]), 64);
        assert_eq!(max_rows(&[&[1, 4]], &[&[-1]]), 0);
        assert_eq!(max_rows(&[&[-1, 4], &[]], &[&[-1]]), 0);
        assert_eq!(max_rows(&[&[-1, 4]], &[&[-1], &[2, -1]]), 0);
        assert_eq!(max_rows(&[], &[&[-1]]), 0);
        // The second input is `t1`.
        let scaled = |shared: &str| {
            let rows = IndependentRows::default().with_shared_input(shared);
            BatchPolicy::derived(&metadata(&[&[-1, 4], &[]], &[&[-1]]), &rows, 64).max_rows()
        };
        assert_eq!((scaled("t1"), scaled("t2")), (64, 0));
        // A request without the optional input takes its row count from the other input.
        let with_optional = |count: usize| {
            let mut metadata = metadata(&[&[-1], &[-1]], &[&[-1]]);
            for input in metadata.inputs.iter_mut().rev().take(count) {
                *input = input.clone().optional();
            }
            BatchPolicy::derived(&metadata, &IndependentRows::default(), 64).max_rows()
        };
        assert_eq!([0, 1, 2].map(with_optional), [64, 64, 0]);
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let good = DynamicBatching {
            preferred_batch_size: vec![8, 4],
            priority_levels: 2,
            default_priority_level: 2,
            ..DynamicBatching::default()
        };
        let refusal = |max_batch_size, batching: &DynamicBatching| {
            let config = ModelConfig {
                max_batch_size,
                dynamic_batching: Some(batching.clone()),
                ..ModelConfig::default()
            };
            BatchPolicy::from_config(&config).map_or_else(|error| error.to_string(), |_| String::new())
        };
        assert_eq!(refusal(8, &good), "");
        assert_eq!(
            refusal(0, &good),
            "dynamic_batching: expected a max_batch_size above 0, found 0"
        );
        assert_eq!(
            refusal(7, &good),
            "dynamic_batching.preferred_batch_size: expected 1 to 7 (max_batch_size), found 8"
        );
        let ordered = DynamicBatching {
            preserve_ordering: true,
            ..good.clone()
        };
        assert_eq!(
            refusal(8, &ordered),
            "dynamic_batching.preserve_ordering: expected at most 1 priority level, found 2"
        );
        let many = DynamicBatching {
            priority_levels: 257,
            ..good.clone()
        };
        assert_eq!(
            refusal(8, &many),
            "dynamic_batching.priority_levels: expected at most 256, found 257"
        );
        let no_default = DynamicBatching {
            default_priority_level: 0,
            ..good.clone()
        };
        assert_eq!(
            refusal(8, &no_default),
            "dynamic_batching.default_priority_level: expected 1 to 2 (priority_levels), found 0"
        );
        let beyond = DynamicBatching {
            priority_queue_policy: BTreeMap::from([(3, QueuePolicy::default())]),
            ..good
        };
        assert_eq!(
            refusal(8, &beyond),
            "dynamic_batching.priority_queue_policy: expected 1 to 2 (priority_levels), found 3"
        );
    }

    #[test]
    fn numbers_that_are_no_level_mean_the_default() {
        let config = ModelConfig {
            max_batch_size: 8,
            dynamic_batching: Some(DynamicBatching {
                priority_levels: 3,
                default_priority_level: 2,
                ..DynamicBatching::default()
            }),
            ..ModelConfig::default()
        };
        let policy = BatchPolicy::from_config(&config).unwrap();
        assert_eq!(
            [0, 1, 2, 3, 4, u64::MAX].map(|p| policy.level(p)),
            [2, 1, 2, 3, 2, 2]
        );
        assert_eq!(BatchPolicy::one_by_one().level(7), 0);
    }

    #[test]
    fn a_requests_own_time_can_only_be_shorter() {
        let [long, short] = [500, 300].map(Duration::from_micros);
        let timeout = |default_timeout_microseconds, allow_timeout_override, own| {
            let policy = BatchPolicy {
                queue: QueuePolicy {
                    default_timeout_microseconds,
                    allow_timeout_override,
                    ..QueuePolicy::default()
                },
                ..BatchPolicy::one_by_one()
            };
            policy.timeout(0, own)
        };
        assert_eq!(timeout(0, false, Some(short)), None);
        assert_eq!(timeout(0, true, Some(short)), Some(short));
        assert_eq!(timeout(500, false, Some(short)), Some(long));
        assert_eq!(timeout(500, true, Some(short)), Some(short));
        assert_eq!(timeout(300, true, Some(long)), Some(short));
        assert_eq!(timeout(500, true, Some(Duration::ZERO)), Some(long));
    }
}
