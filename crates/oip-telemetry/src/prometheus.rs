//! Prometheus' text exposition format, version 0.0.4.
//!
//! The format requires all samples of a family to follow its description, so a family is written completely
//! before the next one begins. The crate `prometheus-client` writes only `OpenMetrics`, which requires the
//! suffix `_total` in the names of counters; Triton's names of counters lack it.

use std::fmt::{self, Display, Write};

use crate::families::{Families, Family, Labels, MetricKind, Number, Sink};

/// The content type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns a page with the families that `write` writes.
///
/// ```
/// use oip_telemetry::{Family, prometheus};
///
/// const READY: Family = Family::gauge("ready", "Whether the server is ready: 1 or 0.");
/// let page = prometheus::page(|families| families.single(&READY, true));
/// assert_eq!(page, "# HELP ready Whether the server is ready: 1 or 0.\n# TYPE ready gauge\nready 1\n");
/// ```
#[must_use]
pub fn page(write: impl FnOnce(&mut Families<'_>)) -> String {
    let mut text = Text::default();
    write(&mut Families::new(&mut text));
    text.written
}

/// The text of a page under construction.
#[derive(Default)]
struct Text {
    written: String,
    /// The name of the current family.
    name: &'static str,
}

impl Text {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.written, "{line}");
    }
}

impl Sink for Text {
    fn begin(&mut self, family: &Family) {
        self.name = family.name;
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let (name, help) = (family.name, EscapedText(family.help, &['\\', '\n']));
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn add(&mut self, labels: &Labels<'_>, value: Number) {
        let name = self.name;
        self.line(format_args!("{name}{} {value}", LabelList(labels, None)));
    }

    fn add_histogram(&mut self, labels: &Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64) {
        let name = self.name;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let mut count = 0;
        for (bound, in_range) in bounds.zip(counts) {
            count += in_range;
            let labels = LabelList(labels, Some(Number::Real(bound)));
            self.line(format_args!("{name}_bucket{labels} {count}"));
        }
        let labels = LabelList(labels, None);
        let sum = Number::Real(sum);
        self.line(format_args!(
            "{name}_sum{labels} {sum}\n{name}_count{labels} {count}"
        ));
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Real(f64::INFINITY) => f.write_str("+Inf"),
            Self::Real(f64::NEG_INFINITY) => f.write_str("-Inf"),
            // Rust formats NaN as required, and other numbers without an exponent.
            Self::Real(value) => value.fmt(f),
        }
    }
}

/// Labels in braces, with the bound of a histogram bucket. A list without labels and bound is formatted as an
/// empty string.
struct LabelList<'a>(&'a Labels<'a>, Option<Number>);

impl Display for LabelList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(labels, bound) = self;
        let mut before = '{';
        for (name, value) in *labels {
            let value = EscapedText(value, &['\\', '\n', '"']);
            write!(f, "{before}{name}=\"{value}\"")?;
            before = ',';
        }
        if let Some(bound) = bound {
            write!(f, "{before}le=\"{bound}\"")?;
            before = ',';
        }
        f.write_str(if before == '{' { "" } else { "}" })
    }
}

/// Text in which certain characters are escaped with a backslash.
struct EscapedText<'a>(&'a str, &'a [char]);

impl Display for EscapedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text, special) = self;
        for piece in text.split_inclusive(*special) {
            match piece.chars().next_back().filter(|last| special.contains(last)) {
                None => f.write_str(piece)?,
                Some(last) => {
                    f.write_str(&piece[..piece.len() - last.len_utf8()])?;
                    f.write_char('\\')?;
                    f.write_char(if last == '\n' { 'n' } else { last })?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{page as text, *};

    #[test]
    fn families_stand_one_below_the_other() {
        let written = text(|text| {
            let mut samples = text.family(&Family::counter("a_total", "How many."));
            samples.add(&[("model", "m"), ("version", "")], 3);
            samples.add(&[], u64::MAX);
            text.family(&Family::gauge("b", "")).add(&[("x", "y")], true);
        });
        let expected = "\
# HELP a_total How many.
# TYPE a_total counter
a_total{model=\"m\",version=\"\"} 3
a_total 18446744073709551615
# HELP b \n# TYPE b gauge
b{x=\"y\"} 1
";
        assert_eq!(written, expected);
    }

    #[test]
    fn what_would_end_a_value_or_a_line_is_escaped() {
        let family = Family::gauge("g", "a\\b\n\"c\"");
        let written = text(|text| {
            let mut samples = text.family(&family);
            for name in ["\"", "\\", "\n", "a\"} 1\nb{c=\"\\", "ä\u{2028}", "\r\t", "\\n"] {
                samples.add(&[("m", name)], 0);
            }
        });
        // Only line feeds end a line, so carriage returns are kept.
        let expected = [
            r#"# HELP g a\\b\n"c""#,
            "# TYPE g gauge",
            r#"g{m="\""} 0"#,
            r#"g{m="\\"} 0"#,
            r#"g{m="\n"} 0"#,
            r#"g{m="a\"} 1\nb{c=\"\\"} 0"#,
            "g{m=\"ä\u{2028}\"} 0",
            "g{m=\"\r\t\"} 0",
            r#"g{m="\\n"} 0"#,
            "",
        ];
        assert_eq!(written, expected.join("\n"));
    }

    #[test]
    fn buckets_hold_those_below_them_and_the_last_one_holds_all() {
        let family = Family::histogram("h", "Seconds.");
        let written = text(|text| {
            let mut samples = text.family(&family);
            samples.add_histogram(&[("m", "x")], [0.00005, 2.5, 30.0], &[2, 0, 3, 4], 0.1 + 0.2);
            samples.add_histogram(&[], [1.0], &[0, 0], 0.0);
        });
        let expected = "\
# HELP h Seconds.
# TYPE h histogram
h_bucket{m=\"x\",le=\"0.00005\"} 2
h_bucket{m=\"x\",le=\"2.5\"} 2
h_bucket{m=\"x\",le=\"30\"} 5
h_bucket{m=\"x\",le=\"+Inf\"} 9
h_sum{m=\"x\"} 0.30000000000000004
h_count{m=\"x\"} 9
h_bucket{le=\"1\"} 0
h_bucket{le=\"+Inf\"} 0
h_sum 0
h_count 0
";
        assert_eq!(written, expected);
    }

    #[test]
    fn numbers_have_the_forms_of_the_format() {
        for (number, expected) in [
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (1e-7, "0.0000001"),
            (1_795_000_000.25, "1795000000.25"),
            (1e21, "1000000000000000000000"),
        ] {
            assert_eq!(Number::from(number).to_string(), expected);
        }
    }
}
