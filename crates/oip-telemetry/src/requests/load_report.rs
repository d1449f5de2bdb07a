//! ORCA (Open Request Cost Aggregation) load reports for load balancers, with Triton's headers.

use http::{HeaderMap, HeaderName};

/// The request header with the requested form of the report.
const WANTED: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");

/// The response header with the report.
pub(super) const REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// The supported forms of a load report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadFormat {
    Text,
    Json,
}

impl LoadFormat {
    /// Returns the requested form, if it is supported.
    pub(super) fn of_request(headers: &HeaderMap) -> Option<Self> {
        let wanted = headers.get(WANTED)?.as_bytes();
        if wanted.eq_ignore_ascii_case(b"text") {
            Some(Self::Text)
        } else if wanted.eq_ignore_ascii_case(b"json") {
            Some(Self::Json)
        } else {
            None
        }
    }
}

/// The server's current load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The fraction of the request memory that is in use, from 0 to 1.
    pub memory: f64,
    /// Number of running requests to models, including this one; `None` if they are not counted.
    pub running: Option<u64>,
    /// Number of requests that wait for their model.
    pub waiting: u64,
}

impl Load {
    pub(super) fn write(self, format: LoadFormat) -> String {
        let Self {
            memory,
            running,
            waiting,
        } = self;
        let counted = [("running_requests", running), ("waiting_requests", Some(waiting))];
        let counted = counted
            .into_iter()
            .filter_map(|(name, count)| Some((name, count?)));
        let parts: Vec<String> = match format {
            LoadFormat::Text => counted
                .map(|(name, count)| format!("named_metrics.{name}={count}"))
                .collect(),
            LoadFormat::Json => counted
                .map(|(name, count)| format!("\"{name}\": {count}"))
                .collect(),
        };
        let parts = parts.join(", ");
        match format {
            LoadFormat::Text => format!("TEXT mem_utilization={memory:.4}, {parts}"),
            LoadFormat::Json => {
                format!("JSON {{\"mem_utilization\": {memory:.4}, \"named_metrics\": {{{parts}}}}}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_have_the_form_that_is_asked_for() {
        let load = Load {
            memory: 0.25,
            running: Some(3),
            waiting: 1,
        };
        assert_eq!(
            load.write(LoadFormat::Text),
            "TEXT mem_utilization=0.2500, named_metrics.running_requests=3, named_metrics.waiting_requests=1"
        );
        let json = load.write(LoadFormat::Json);
        let json: serde_json::Value = serde_json::from_str(json.strip_prefix("JSON ").unwrap()).unwrap();
        assert_eq!(json["mem_utilization"], 0.25);
        assert_eq!(json["named_metrics"]["running_requests"], 3);
        let uncounted = Load {
            running: None,
            ..load
        };
        assert_eq!(
            uncounted.write(LoadFormat::Text),
            "TEXT mem_utilization=0.2500, named_metrics.waiting_requests=1"
        );
        for (wanted, expected) in [
            ("text", Some(LoadFormat::Text)),
            ("JSON", Some(LoadFormat::Json)),
            ("BIN", None),
        ] {
            let headers = HeaderMap::from_iter([(WANTED, wanted.parse().unwrap())]);
            assert_eq!(LoadFormat::of_request(&headers), expected);
        }
    }
}
