//! Negotiates the form of the response from `Accept` and `Accept-Encoding`.

use axum::http::{
    HeaderMap, HeaderName,
    header::{ACCEPT, ACCEPT_ENCODING},
};

use crate::content_encoding::ContentEncoding;

/// The client's preferences for an inference response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponsePreferences {
    /// Whether the response must be JSON only, even if the request asks for binary outputs.
    pub(crate) json_only: bool,
    /// The preferred supported compression, if any.
    pub(crate) encoding: Option<ContentEncoding>,
    /// Whether the client names a single compression, which is deliberate; libraries list all that they
    /// support on every request.
    pub(crate) insists: bool,
    /// Whether the client rejects uncompressed bodies (`identity;q=0`, or `*;q=0` without `identity`).
    pub(crate) refuses_plain: bool,
}

impl ResponsePreferences {
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let types = weighted(headers, &ACCEPT);
        let takes = |wanted: &[&str]| {
            let mut types = types.iter();
            types.any(|(name, weight)| *weight > 0 && wanted.contains(&name.as_str()))
        };
        let encodings = weighted(headers, &ACCEPT_ENCODING);
        let weight_of = |names: &[&str]| {
            let found = encodings.iter().find(|(name, _)| names.contains(&name.as_str()));
            found.map(|(_, weight)| *weight)
        };
        let any = weight_of(&["*"]);
        let identity = weight_of(&["identity"]);
        let refuses_plain = identity.or(any) == Some(0);
        // A `*` alone does not say which encodings the client can decode, so it selects a compression only if
        // the response must have one (RFC 9110, 12.5.3).
        let unnamed = any.filter(|_| refuses_plain || identity.is_some());
        let known = [
            (ContentEncoding::Gzip, &["gzip", "x-gzip"][..]),
            (ContentEncoding::Deflate, &["deflate"]),
        ];
        let known =
            known.map(|(encoding, names)| (encoding, names, weight_of(names).or(unnamed).unwrap_or(0)));
        // Compression must be preferred to no compression. Of encodings with equal weights, the first is
        // used.
        let least = identity.unwrap_or(0);
        let best = known.iter().map(|(_, _, weight)| *weight).max().unwrap_or(0);
        let place = |names: &[&str]| {
            encodings
                .iter()
                .position(|(name, _)| names.contains(&name.as_str()))
        };
        let encoding = known
            .iter()
            .filter(|(_, _, weight)| *weight == best && best > least)
            .min_by_key(|(_, names, _)| place(names).unwrap_or(usize::MAX));
        let accepted = encodings.iter().filter(|(_, weight)| *weight > 0).count();
        Self {
            json_only: takes(&["application/json"])
                && !takes(&["*/*", "application/*", "application/octet-stream"]),
            encoding: encoding.map(|(encoding, _, _)| *encoding),
            insists: encoding.is_some() && accepted == 1,
            refuses_plain,
        }
    }

    /// Selects the compression for a response of this size, with or without binary data.
    ///
    /// Binary tensors are mostly floats, which hardly compress; they are compressed only for clients that
    /// name a single compression. If a client rejects uncompressed bodies, a response of any size is
    /// compressed, provided that the client accepts a supported compression. Otherwise the response is sent
    /// uncompressed, which is more useful than an error.
    pub(crate) fn encoding(
        self,
        bytes: usize,
        has_binary: bool,
        threshold: usize,
    ) -> Option<ContentEncoding> {
        let is_worth_it = bytes >= threshold && (!has_binary || self.insists);
        self.encoding.filter(|_| is_worth_it || self.refuses_plain)
    }
}

/// Parses a header into names and weights in thousandths. A weight of 0 means that the name is rejected.
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
        // A malformed weight is treated as missing.
        let weight = weight
            .and_then(|weight| {
                weight
                    .trim()
                    .parse::<f32>()
                    .ok()
                    .filter(|weight| !weight.is_nan())
            })
            .unwrap_or(1.0);
        (name, (weight.clamp(0.0, 1.0) * 1000.0) as u16)
    });
    entries.filter(|(name, _)| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(header: HeaderName, value: &str) -> ResponsePreferences {
        ResponsePreferences::from_headers(&HeaderMap::from_iter([(header, value.parse().unwrap())]))
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
            ("*;q=0.5", None, false),
            ("gzip, *", Some(Gzip), false),
            ("gzip;q=0, *", None, false),
            ("identity;q=0, *", Some(Gzip), true),
            ("identity;q=0, gzip;q=0, *", Some(Deflate), true),
            ("identity;q=0.5, *", Some(Gzip), false),
            ("identity, *;q=0.5", None, false),
            ("deflate;q=0.1, *;q=0", Some(Deflate), true),
            ("identity;q=0", None, false),
            ("*;q=0", None, false),
            ("gzip;q=0.0005", None, false),
            ("gzip;q=high", Some(Gzip), true),
            ("gzip;q=nan", Some(Gzip), true),
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
        for refusing in ["identity;q=0, gzip, br", "*;q=0, gzip, br", "identity;q=0, *, br"] {
            let refusing = wanted(ACCEPT_ENCODING, refusing);
            assert!(refusing.encoding(1, false, 1024).is_some());
            assert!(refusing.encoding(1, true, 1024).is_some());
        }
        for accepting in [
            "gzip, identity;q=0.1, *;q=0",
            "br;q=0, gzip",
            "identity;q=0",
            "*;q=0",
        ] {
            assert_eq!(
                wanted(ACCEPT_ENCODING, accepting).encoding(1, false, 1024),
                None,
                "{accepting}"
            );
        }
    }
}
