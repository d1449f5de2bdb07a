//! In which form a client wants its answer: what its headers `Accept` and `Accept-Encoding` say.

use axum::http::{
    HeaderMap, HeaderName,
    header::{ACCEPT, ACCEPT_ENCODING},
};

use crate::content_encoding::ContentEncoding;

/// What a client wants of the answer to an inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// JSON and nothing else, whatever the request says about binary outputs.
    pub(crate) json_only: bool,
    /// The compression that it understands and likes best.
    pub(crate) encoding: Option<ContentEncoding>,
    /// It names this one compression and no other, so it means it. Libraries list all that they know on every request.
    pub(crate) insists: bool,
}

impl Wanted {
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let types = weighted(headers, &ACCEPT);
        let takes = |wanted: &[&str]| types.iter().any(|(name, _)| wanted.contains(&name.as_str()));
        let encodings = weighted(headers, &ACCEPT_ENCODING);
        let encoding = |name: &str| match name {
            "gzip" | "x-gzip" => Some(ContentEncoding::Gzip),
            "deflate" => Some(ContentEncoding::Deflate),
            _ => None,
        };
        // What is preferred to no compression at all; of equals the first one.
        let identity = encodings
            .iter()
            .find(|(name, _)| name == "identity")
            .map(|(_, weight)| *weight);
        let known = encodings
            .iter()
            .filter_map(|(name, weight)| Some((encoding(name)?, *weight)));
        let known: Vec<_> = known
            .filter(|(_, weight)| identity.is_none_or(|identity| *weight > identity))
            .collect();
        let best = known.iter().map(|(_, weight)| *weight).max();
        Self {
            json_only: takes(&["application/json"])
                && !takes(&["*/*", "application/*", "application/octet-stream"]),
            encoding: known
                .iter()
                .find(|(_, weight)| Some(*weight) == best)
                .map(|(encoding, _)| *encoding),
            insists: known.len() == 1 && encodings.len() == 1,
        }
    }

    /// The compression for an answer of so many bytes, some of them binary or none.
    ///
    /// Binary tensors are mostly floats, which hardly get smaller; they are compressed for clients that insist.
    pub(crate) fn encoding(
        self,
        bytes: usize,
        has_binary: bool,
        threshold: usize,
    ) -> Option<ContentEncoding> {
        self.encoding
            .filter(|_| bytes >= threshold && (!has_binary || self.insists))
    }
}

/// The names in a header and their weights in thousandths, without those that are refused.
fn weighted(headers: &HeaderMap, header: &HeaderName) -> Vec<(String, u16)> {
    let values = headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let entries = values.flat_map(|value| value.split(','));
    let entries = entries.map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        // A weight that is none counts as if it were not there.
        let weight = weight
            .and_then(|weight| weight.trim().parse::<f32>().ok())
            .unwrap_or(1.0);
        (name, (weight.clamp(0.0, 1.0) * 1000.0) as u16)
    });
    entries
        .filter(|(name, weight)| !name.is_empty() && *weight > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(header: HeaderName, value: &str) -> Wanted {
        Wanted::from_headers(&HeaderMap::from_iter([(header, value.parse().unwrap())]))
    }

    #[test]
    fn compressions_are_chosen_by_weight() {
        use ContentEncoding::{Deflate, Gzip};
        for (value, encoding, insists) in [
            ("", None, false),
            ("gzip", Some(Gzip), true),
            ("deflate", Some(Deflate), true),
            ("gzip, deflate, br", Some(Gzip), false),
            ("deflate, gzip;q=0.5", Some(Deflate), false),
            ("gzip;q=0.5, deflate;q=0.8", Some(Deflate), false),
            ("GZIP ; Q=1", Some(Gzip), true),
            ("gzip;q=0", None, false),
            ("gzip;q=0, deflate", Some(Deflate), true),
            ("br, zstd", None, false),
            ("identity, gzip;q=0.5", None, false),
            ("identity;q=0.5, gzip", Some(Gzip), false),
            ("identity;q=0, gzip", Some(Gzip), true),
            ("*", None, false),
            ("gzip;q=high", Some(Gzip), true),
            (",,;;,", None, false),
        ] {
            let found = wanted(ACCEPT_ENCODING, value);
            assert_eq!((found.encoding, found.insists), (encoding, insists), "{value}");
        }
    }

    #[test]
    fn only_json_is_wanted_when_nothing_else_is_accepted() {
        for (value, json_only) in [
            ("", false),
            ("*/*", false),
            ("application/json", true),
            ("Application/JSON; q=0.9, text/plain", true),
            ("application/json, */*", false),
            ("application/json, */*;q=0", true),
            ("application/json, application/octet-stream", false),
            ("application/*", false),
            ("text/html", false),
        ] {
            assert_eq!(wanted(ACCEPT, value).json_only, json_only, "{value}");
        }
    }

    #[test]
    fn small_and_binary_answers_are_left_alone() {
        let listed = wanted(ACCEPT_ENCODING, "gzip, deflate");
        let insisted = wanted(ACCEPT_ENCODING, "gzip");
        assert_eq!(listed.encoding(1023, false, 1024), None);
        assert!(listed.encoding(1024, false, 1024).is_some());
        assert_eq!(listed.encoding(1 << 20, true, 1024), None);
        assert!(insisted.encoding(1 << 20, true, 1024).is_some());
        assert_eq!(insisted.encoding(1023, true, 1024), None);
    }
}
