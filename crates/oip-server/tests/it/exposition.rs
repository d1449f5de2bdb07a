//! A strict parser of Prometheus' text format, with further checks: every family once, contiguous and
//! described; every series once; consistent histograms.

use std::collections::HashSet;

/// A metric with all its samples.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

impl Sample {
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let label = self.labels.iter().find(|(found, _)| found == name);
        label.map(|(_, value)| value.as_str())
    }

    /// Returns the sample's labels without the bound of a histogram bucket.
    fn of(&self) -> Vec<(String, String)> {
        let labels = self.labels.iter().filter(|(name, _)| name != "le");
        labels.cloned().collect()
    }
}

/// Parses a metrics page.
pub(crate) fn parse(text: &str) -> Result<Vec<Family>, String> {
    if !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    let mut families: Vec<Family> = Vec::new();
    let mut lines = text.split_terminator('\n');
    while let Some(line) = lines.next() {
        let wrong = |what: &str| format!("{what}: {line}");
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').ok_or_else(|| wrong("no help"))?;
            if !is_name(name) || families.iter().any(|family| family.name == name) {
                return Err(wrong("no name of a new family"));
            }
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
            let kind = kind.and_then(|kind| kind.strip_prefix(name)?.strip_prefix(' '));
            let kind = kind.filter(|kind| ["counter", "gauge", "histogram"].contains(kind));
            families.push(Family {
                name: name.to_owned(),
                kind: kind.ok_or_else(|| wrong("no type"))?.to_owned(),
                help: help.to_owned(),
                samples: Vec::new(),
            });
        } else {
            let sample = sample(line).ok_or_else(|| wrong("no sample"))?;
            let family = families
                .last_mut()
                .ok_or_else(|| wrong("a sample of no family"))?;
            let suffix = sample.name.strip_prefix(&family.name);
            let suffixes: &[&str] = match family.kind.as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            if !suffix.is_some_and(|suffix| suffixes.contains(&suffix)) {
                return Err(wrong("a sample of another family"));
            }
            if family.kind == "counter" && (sample.value.is_nan() || sample.value < 0.0) {
                return Err(wrong("no count"));
            }
            family.samples.push(sample);
        }
    }
    for family in &families {
        let mut seen = HashSet::new();
        for sample in &family.samples {
            let mut labels = sample.labels.clone();
            labels.sort();
            if !seen.insert((&sample.name, labels)) {
                return Err(format!("twice: {sample:?}"));
            }
        }
        if family.kind == "histogram" {
            check_histograms(family)?;
        }
    }
    Ok(families)
}

/// Checks that buckets are ordered and cumulative, up to the total count, and that there is a sum.
fn check_histograms(family: &Family) -> Result<(), String> {
    let mut samples = family.samples.iter().peekable();
    while let Some(first) = samples.peek() {
        let of = first.of();
        let wrong = |what: &str| format!("{what}: {} of {of:?}", family.name);
        let (mut bound, mut count) = (f64::NEG_INFINITY, 0.0);
        let is_bucket = |sample: &&Sample| sample.name.ends_with("_bucket") && sample.of() == of;
        while let Some(bucket) = samples.next_if(is_bucket) {
            let next = bucket
                .label("le")
                .and_then(number)
                .ok_or_else(|| wrong("no bound"))?;
            if next <= bound || bucket.value < count {
                return Err(wrong("buckets that do not grow"));
            }
            (bound, count) = (next, bucket.value);
        }
        if bound != f64::INFINITY {
            return Err(wrong("no bucket that holds all"));
        }
        let mut end = |suffix: &str| {
            let name = format!("{}{suffix}", family.name);
            let found = samples
                .next()
                .filter(|sample| sample.name == name && sample.labels == of);
            found.map(|sample| sample.value)
        };
        let (sum, all) = (end("_sum"), end("_count"));
        if sum.is_none() || all != Some(count) {
            return Err(wrong("sum and count"));
        }
    }
    Ok(())
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let mut labels = Vec::new();
    let mut rest = rest;
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (name, value) = rest.split_once("=\"")?;
            let is_new = labels.iter().all(|(before, _)| before != name);
            if !is_name(name) || name.contains(':') || !is_new {
                return None;
            }
            let (value, after) = quoted(value)?;
            labels.push((name.to_owned(), value));
            rest = match after.strip_prefix(',') {
                Some(more) => more,
                None => break rest = after.strip_prefix('}')?,
            };
        }
    }
    let value = number(rest.strip_prefix(' ')?)?;
    is_name(name).then(|| Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

/// Returns a value up to its closing quotation mark, and the text after the mark.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(match characters.next()? {
                'n' => '\n',
                same @ ('\\' | '"') => same,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_start = |first: char| first.is_ascii_alphabetic() || first == '_' || first == ':';
    name.starts_with(is_start)
        && name
            .chars()
            .all(|other| is_start(other) || other.is_ascii_digit())
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        _ => text
            .starts_with(|first: char| first.is_ascii_digit() || first == '-')
            .then(|| text.parse().ok())?,
    }
}

/// The parser rejects invalid pages.
#[test]
fn what_is_no_page_is_refused() {
    let histogram = |rest: &str| format!("# HELP h x\n# TYPE h histogram\n{rest}");
    for text in [
        "a 1\n",
        "# HELP a x\na 1\n",
        "# HELP a x\n# TYPE b counter\n",
        "# HELP a x\n# TYPE a counter\na 1",
        "# HELP a x\n# TYPE a counter\n\na 1\n",
        "# HELP a x\n# TYPE a counter\na -1\n",
        "# HELP a x\n# TYPE a counter\nb 1\n",
        "# HELP a x\n# TYPE a counter\na 1\na 1\n",
        "# HELP a x\n# TYPE a counter\na{x=\"1\",y=\"2\"} 1\na{y=\"2\",x=\"1\"} 1\n",
        "# HELP a x\n# TYPE a counter\na{x=\"\\t\"} 1\n",
        "# HELP a x\n# TYPE a counter\na{x=\"\"\"} 1\n",
        "# HELP a x\n# TYPE a counter\na{1=\"\"} 1\n",
        "# HELP a x\n# TYPE a counter\na inf\n",
        "# HELP a x\n# TYPE a counter\n# HELP a x\n# TYPE a counter\n",
        &histogram("h 1\n"),
        &histogram("h_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n"),
        &histogram("h_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"),
        &histogram("h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 1\n"),
        &histogram(
            "h_bucket{le=\"2\"} 1\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n",
        ),
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    let text = histogram(
        "h_bucket{m=\"\\\"\",le=\"1\"} 1\nh_bucket{m=\"\\\"\",le=\"+Inf\"} 1\nh_sum{m=\"\\\"\"} 1\nh_count{m=\"\\\"\"} 1\n",
    );
    assert_eq!(parse(&text).unwrap()[0].samples[0].label("m"), Some("\""));
}
