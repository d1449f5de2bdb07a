//! Families of samples: what is shown, whatever the form.
//!
//! A family is written as a whole, before the next one begins.

/// Samples that mean the same, and differ in what they are of.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// A sentence for people, without a line break.
    pub(crate) help: &'static str,
}

/// How samples go on.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Only upwards, or from 0 again.
    Counter,
    /// Up and down.
    Gauge,
    /// Counters of values by how large they were.
    Histogram,
}

impl Family {
    pub(crate) const fn counter(name: &'static str, help: &'static str) -> Self {
        let kind = Kind::Counter;
        Self { name, kind, help }
    }

    pub(crate) const fn gauge(name: &'static str, help: &'static str) -> Self {
        let kind = Kind::Gauge;
        Self { name, kind, help }
    }

    pub(crate) const fn histogram(name: &'static str, help: &'static str) -> Self {
        let kind = Kind::Histogram;
        Self { name, kind, help }
    }
}

/// The names and values that tell the samples of a family apart.
pub(crate) type Labels<'a> = [(&'a str, &'a str)];

/// Takes families and their samples: a text, or what is sent to a collector.
pub(crate) trait Sink {
    /// Begins a family, of which all samples follow.
    fn begin(&mut self, family: &Family);

    /// Takes the sample of a counter or a gauge.
    fn add(&mut self, labels: &Labels<'_>, value: Number);

    /// Takes a histogram: of how many values were in each range, and of their sum.
    fn add_histogram(&mut self, labels: &Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64);
}

/// Writes families.
pub(crate) struct Families<'a>(&'a mut dyn Sink);

impl<'a> Families<'a> {
    pub(crate) fn new(sink: &'a mut dyn Sink) -> Self {
        Self(sink)
    }

    /// Begins a family, of which all samples follow.
    pub(crate) fn family(&mut self, family: &Family) -> Samples<'_> {
        self.0.begin(family);
        Samples(self.0)
    }
}

/// The samples of a family.
pub(crate) struct Samples<'a>(&'a mut dyn Sink);

impl Samples<'_> {
    /// Writes the sample of a counter or a gauge.
    pub(crate) fn add(&mut self, labels: &Labels<'_>, value: impl Into<Number>) {
        self.0.add(labels, value.into());
    }

    /// Writes the samples of a histogram: of how many values were up to each of `bounds`, of all of them, and of their
    /// sum. `counts` are by range, without those below; the last one is of what is above all bounds.
    pub(crate) fn add_histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: impl IntoIterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let bounds: Vec<f64> = bounds.into_iter().collect();
        self.0.add_histogram(labels, &bounds, counts, sum);
    }
}

/// A value.
#[derive(Clone, Copy)]
pub(crate) enum Number {
    Integer(u64),
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
