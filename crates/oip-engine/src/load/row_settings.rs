//! Decides whether requests of different callers are batched, from the model's row independence, its
//! configuration and the policy.

use model_config::{CompletedConfig, Defaults};
use oip_model::{Capabilities, IndependentRows, RowIndependence};
use oip_types::Joining;
use tensor_core::QuotedName;

use crate::{batching::scheduler::BatchPolicy, config::EngineConfig, load::error::LoadError};

/// How requests are batched if the configuration does not specify it.
pub(crate) struct RowSettings {
    joining: Joining,
    rows: IndependentRows,
    max_batch_size: u32,
}

impl RowSettings {
    /// Returns the settings of a model. `advice` explains to the operator how to enable batching.
    pub(crate) fn of(model: &Capabilities, config: &EngineConfig, advice: &str) -> Self {
        let own = model.max_batch_size;
        let limit = u32::try_from(config.default_max_batch_size).unwrap_or(u32::MAX);
        let alone = |reason: String| {
            (
                Joining::alone(reason).advising(advice),
                IndependentRows::default(),
            )
        };
        let (joining, rows) = match (own, model.row_independence.clone()) {
            (Some(0), _) => (
                Joining::alone("its own max_batch_size is 0"),
                IndependentRows::default(),
            ),
            _ if limit == 0 => {
                alone("this server joins only requests to models that are configured so".to_owned())
            }
            (_, RowIndependence::Proven(rows)) => match row_axis_elsewhere(&rows) {
                Some(dimension) => alone(format!("the number of rows is also the size of {dimension}")),
                None => (Joining::Proven, rows),
            },
            (Some(_), _) => (Joining::Declared, IndependentRows::default()),
            (None, RowIndependence::Unproven(reason)) => alone(reason),
            (None, _) => alone("its rows are not known to be independent".to_owned()),
        };
        let of_proof = u32::try_from(rows.max_rows).unwrap_or(u32::MAX);
        Self {
            joining,
            rows,
            max_batch_size: own.unwrap_or(limit).min(limit).min(of_proof),
        }
    }

    /// Returns the defaults for a model's configuration: the model's own, or else the server's.
    pub(crate) fn defaults(&self, own: &Capabilities, config: &EngineConfig) -> Defaults {
        let instances = own
            .instances
            .map_or(config.instances, |instances| instances as usize);
        Defaults::default()
            .with_instances(instances.max(1))
            .with_max_batch_size(self.max_batch_size)
            .with_decoupled(own.decoupled)
            .with_joined_only_when_told(own.joined_only_when_told)
            .with_joining(self.joining.clone())
            .with_shared_inputs(self.rows.shared_inputs.clone())
            .with_gpus(
                own.placement
                    .as_ref()
                    .map_or(Vec::new(), |placement| placement.gpus.clone()),
            )
    }

    /// Returns the policy of a complete configuration, and records in the configuration whether requests are
    /// batched.
    ///
    /// # Errors
    /// [`LoadError::Policy`] if values of the configuration contradict each other.
    pub(crate) fn policy(&self, completed: &mut CompletedConfig) -> Result<BatchPolicy, LoadError> {
        if let Some(input) = self.reshaped_equal_dims(completed)
            && let Some(config) = completed.without_batches.take()
        {
            completed.config = config;
            completed.joining = Joining::alone(format!(
                "reshape moves axes of input {input} that must have equal sizes"
            ));
        }
        completed.joining.show_in(&mut completed.config);
        if let Some(config) = &mut completed.without_batches {
            Joining::alone("a batch's outputs had other rows than its inputs").show_in(config);
            let max_rows = self.max_batch_size.into();
            return Ok(BatchPolicy::derived(&completed.metadata, &self.rows, max_rows));
        }
        let policy = BatchPolicy::from_config(&completed.config).map_err(LoadError::Policy)?;
        Ok(match completed.joining.is_joined() {
            true => policy,
            false => policy.without_joining(),
        })
    }

    /// Returns an input with equal dimensions ([`IndependentRows::equal_dims`]) that the configuration
    /// reshapes, so that clients see different axes.
    fn reshaped_equal_dims(&self, completed: &CompletedConfig) -> Option<QuotedName<'_>> {
        let mut dimensions = self.rows.equal_dims.iter().flatten();
        let is_reshaped = |name: &String| completed.reshaped_inputs.iter().any(|(known, _)| known == name);
        let (name, _) = dimensions.find(|(name, _)| is_reshaped(name))?;
        Some(QuotedName(name))
    }
}

/// Returns an axis that shares the symbolic name of the batch dimension but is not the batch dimension. In a
/// batch, the size of this axis would not match the total number of rows.
fn row_axis_elsewhere(rows: &IndependentRows) -> Option<String> {
    let counts_rows = |(input, axis): &(String, usize)| *axis == 0 && !rows.shared_inputs.contains(input);
    let groups = rows.equal_dims.iter();
    let mut mixed = groups.filter(|group| group.iter().any(counts_rows));
    let (input, axis) = mixed.find_map(|group| group.iter().find(|dimension| !counts_rows(dimension)))?;
    Some(format!("axis {axis} of input {}", QuotedName(input)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_have_the_size_of_another_axis_are_not_joined() {
        let found = |group: &[(&str, usize)]| {
            let rows = IndependentRows::default().with_shared_input("table");
            row_axis_elsewhere(&rows.with_equal_dims(group.iter().copied()))
        };
        assert_eq!(found(&[("x", 0), ("y", 0)]), None);
        assert_eq!(found(&[("x", 1), ("table", 0)]), None);
        assert_eq!(found(&[("x", 0), ("x", 1)]).unwrap(), "axis 1 of input 'x'");
        assert_eq!(
            found(&[("table", 0), ("x", 0)]).unwrap(),
            "axis 0 of input 'table'"
        );
    }
}
