//! The sessions of a model: one on the CPU, or one on each of its GPUs.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use oip_model::CancelToken;
use oip_types::{Placement, ServiceError};
use onnx_session::SharedSession;
use ort::{session::SessionInputValue, value::DynValue};

use super::{
    faults::failed,
    providers::Plan,
    session::{self, Runs, Settings},
    traps::Guards,
    watch::watch,
};

/// The sessions of a model, and their devices.
pub(super) struct OnDevices {
    sessions: Vec<OnDevice>,
    placement: Placement,
}

struct OnDevice {
    session: SharedSession,
    runs: Runs,
    gpu: Option<u32>,
    load: Arc<AtomicUsize>,
}

/// Name of the CPU provider, which every library has.
const CPU: &str = "CPUExecutionProvider";

impl OnDevices {
    /// Creates the sessions of a plan. If the plan is optional and fails, the model runs on the CPU, and the
    /// reason is logged.
    ///
    /// # Errors
    /// Returns an error if the library refuses the model, or if a required device is not available.
    pub(super) fn open(
        settings: Settings<'_>,
        plan: &Plan,
        model: &str,
        content: &Bytes,
    ) -> Result<Self, ServiceError> {
        let refusal = match Self::with_plan(settings, plan, content) {
            Ok(opened) => return Ok(opened),
            Err(refusal) if plan.is_demanded || plan.is_plain_cpu() => return Err(refusal),
            Err(refusal) => refusal,
        };
        let opened = Self::with_plan(settings, &Plan::cpu(), content)?;
        tracing::warn!(
            model,
            reason = refusal.message(),
            "the model runs on the CPU, by ONNX Runtime's own operators"
        );
        Ok(opened)
    }

    fn with_plan(settings: Settings<'_>, plan: &Plan, content: &Bytes) -> Result<Self, ServiceError> {
        let sessions = plan.devices().into_iter().map(|gpu| {
            let session = match plan.is_plain_cpu() {
                true => session::open(settings, content)?,
                false => session::open_with(settings, content, &plan.chosen, gpu)?,
            };
            Ok(OnDevice {
                session,
                runs: Runs::new(gpu),
                gpu,
                load: Arc::default(),
            })
        });
        let providers = plan.chosen.iter().map(|chosen| chosen.accelerator.provider());
        Ok(Self {
            sessions: sessions.collect::<Result<_, ServiceError>>()?,
            placement: Placement::new(providers.chain([CPU])).on_gpus(plan.gpus.clone()),
        })
    }

    /// Returns one of the sessions, for properties that all sessions share.
    pub(super) fn any(&self) -> Option<&SharedSession> {
        self.sessions.first().map(|device| &device.session)
    }

    /// Returns the devices of the sessions.
    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Runs the model once, on the device with the fewest runs.
    pub(super) fn run(
        &self,
        inputs: &[SessionInputValue<'_>],
        guards: &Guards,
        cancel: &CancelToken,
    ) -> Result<Vec<DynValue>, ServiceError> {
        let loads: Vec<usize> = self
            .sessions
            .iter()
            .map(|device| device.load.load(Ordering::Relaxed))
            .collect();
        let device = idlest(&loads).and_then(|index| self.sessions.get(index));
        let device = device.ok_or_else(|| ServiceError::internal("the model has no session"))?;
        let _running = Running::begin(&device.load);
        device
            .run(inputs, cancel)
            .map_err(|error| failed(error, guards, cancel, device.gpu))
    }
}

impl OnDevice {
    fn run(&self, inputs: &[SessionInputValue<'_>], cancel: &CancelToken) -> ort::Result<Vec<DynValue>> {
        let outcome = self.run_once(inputs, cancel);
        match outcome {
            Err(error) if self.runs.must_keep_memory(&error) => self.run_once(inputs, cancel),
            outcome => outcome,
        }
    }

    fn run_once(&self, inputs: &[SessionInputValue<'_>], cancel: &CancelToken) -> ort::Result<Vec<DynValue>> {
        let options = self.runs.options()?;
        let watched = watch(cancel, &options);
        let outcome = self.session.run(inputs, &options);
        drop(watched);
        outcome
    }
}

/// Returns the index of the device with the fewest runs; the first one wins a tie.
fn idlest(loads: &[usize]) -> Option<usize> {
    let loads = loads.iter().enumerate();
    loads.min_by_key(|(_, load)| **load).map(|(index, _)| index)
}

/// Counts a run on its device until this value is dropped.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn begin(load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(load.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_to_the_device_with_the_fewest() {
        assert_eq!(idlest(&[]), None);
        assert_eq!(idlest(&[3]), Some(0));
        assert_eq!(idlest(&[1, 0, 0]), Some(1));
        let load = Arc::default();
        let first = Running::begin(&load);
        let second = Running::begin(&load);
        drop(first);
        assert_eq!(load.load(Ordering::Relaxed), 1);
        drop(second);
        assert_eq!(load.load(Ordering::Relaxed), 0);
    }
}
