//! Metric families, independent of the output format.
//!
//! A family is written completely before the next one begins.

/// A metric with a name and a description. Its samples differ by label.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    /// A one-line description of the metric, for people.
    pub(crate) help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A monotonic counter, except for resets to 0.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Counts of observations by value.
    Histogram,
}

impl Family {
    /// Creates the family of a counter.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        let kind = MetricKind::Counter;
        Self { name, kind, help }
    }

    /// Creates the family of a gauge.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        let kind = MetricKind::Gauge;
        Self { name, kind, help }
    }

    /// Creates the family of a histogram.
    #[must_use]
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        let kind = MetricKind::Histogram;
        Self { name, kind, help }
    }
}

/// The labels of a sample: names and values.
pub(crate) type Labels<'a> = [(&'a str, &'a str)];

/// Receives families and samples, for a text page or a message to a collector.
pub(crate) trait Sink {
    /// Begins a family. All its samples follow.
    fn begin(&mut self, family: &Family);

    /// Adds the sample of a counter or gauge.
    fn add(&mut self, labels: &Labels<'_>, value: Number);

    /// Adds a histogram with non-cumulative bucket counts and the sum.
    fn add_histogram(&mut self, labels: &Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64);
}

/// Writes families, to a page for Prometheus ([`prometheus::page`](crate::prometheus::page)) or to a
/// collector (`MetricFamily::collect`).
pub struct Families<'a>(&'a mut dyn Sink);

impl<'a> Families<'a> {
    pub(crate) fn new(sink: &'a mut dyn Sink) -> Self {
        Self(sink)
    }

    /// Begins a family. All its samples follow.
    pub fn family(&mut self, family: &Family) -> Samples<'_> {
        self.0.begin(family);
        Samples(self.0)
    }

    /// Writes a family with one sample without labels.
    pub fn single(&mut self, family: &Family, value: impl Into<Number>) {
        self.family(family).add(&[], value);
    }
}

/// Writes the samples of a family.
pub struct Samples<'a>(&'a mut dyn Sink);

impl Samples<'_> {
    /// Writes the sample of a counter or gauge.
    pub fn add(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.0.add(labels, value.into());
    }

    /// Writes a histogram with the upper bounds `bounds`. `counts` are not cumulative and have one more
    /// entry, for values above all bounds.
    pub fn add_histogram(
        &mut self,
        labels: &[(&str, &str)],
        bounds: impl IntoIterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let bounds: Vec<f64> = bounds.into_iter().collect();
        self.0.add_histogram(labels, &bounds, counts, sum);
    }
}

/// A number in a sample: a value or a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Number {
    /// An integer value of a counter or gauge.
    Integer(u64),
    /// A floating-point value of a counter or gauge.
    Real(f64),
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Self {
        Self::Integer(value.into())
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}
