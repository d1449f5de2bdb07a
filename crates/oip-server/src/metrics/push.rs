//! Collects families to be pushed to a collector.

use oip_telemetry::{MetricFamily, MetricKind, SampleValue};

use super::families::{Family, Kind, Labels, Number, Sink};

/// Families under construction.
#[derive(Default)]
pub(super) struct CollectedFamilies(Vec<MetricFamily>);

impl CollectedFamilies {
    pub(super) fn into_families(self) -> Vec<MetricFamily> {
        self.0
    }

    fn push(&mut self, labels: &Labels<'_>, value: SampleValue) {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        if let Some(family) = self.0.last_mut() {
            family.add(labels.collect(), value);
        }
    }
}

impl Sink for CollectedFamilies {
    fn begin(&mut self, family: &Family) {
        let kind = match family.kind {
            Kind::Counter => MetricKind::Counter,
            Kind::Gauge => MetricKind::Gauge,
            Kind::Histogram => MetricKind::Histogram,
        };
        self.0.push(MetricFamily::new(family.name, family.help, kind));
    }

    fn add(&mut self, labels: &Labels<'_>, value: Number) {
        let value = match value {
            Number::Integer(value) => SampleValue::Integer(value),
            Number::Real(value) => SampleValue::Real(value),
        };
        self.push(labels, value);
    }

    fn add_histogram(&mut self, labels: &Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64) {
        let (bounds, counts) = (bounds.to_vec(), counts.to_vec());
        self.push(labels, SampleValue::Histogram { bounds, counts, sum });
    }
}
