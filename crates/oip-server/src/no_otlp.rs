//! Replaces exports to a collector in builds without the feature `otlp`: there are none.

use oip_telemetry::{Families, requests::Traces};

use crate::{failure::Failure, options::FileOptions};

pub(crate) struct ExportConfig;

#[derive(Default)]
pub(crate) struct Exports;

impl ExportConfig {
    pub(crate) fn resolve(_: &FileOptions, _: &mut Vec<String>) -> Result<Self, Failure> {
        Ok(Self)
    }
}

impl Exports {
    pub(crate) fn start(_: ExportConfig) -> Result<(Self, Option<Traces>), Failure> {
        Ok((Self, None))
    }

    pub(crate) fn pushes_metrics(&self) -> bool {
        false
    }

    pub(crate) fn push(&self, _: impl Fn(&mut Families<'_>) + Send + 'static) -> Result<(), Failure> {
        Ok(())
    }

    pub(crate) fn finish(&self) {}

    pub(crate) fn write(&self, _: &mut Families<'_>) {}
}
