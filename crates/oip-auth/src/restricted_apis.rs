//! Triton's options `--http-restricted-api` and `--grpc-restricted-protocol`: APIs that require a header with
//! a secret value.

use std::fmt;

use http::{HeaderMap, HeaderName};
use oip_service::route::Api;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// APIs that require a header with a certain value.
///
/// ```
/// use oip_auth::RestrictedApis;
///
/// let restricted = RestrictedApis::of_http("inference,model-repository:admin-key=s3cret").unwrap();
/// let error = RestrictedApis::of_http("infer:admin-key=s3cret").unwrap_err();
/// assert!(error.starts_with("unknown API 'infer'; expected health, metadata,"), "{error}");
/// ```
#[derive(Clone)]
pub struct RestrictedApis {
    apis: Vec<Api>,
    header: HeaderName,
    /// Digest of the required value. The value itself is not stored.
    value: [u8; 32],
    /// Triton's word for a group of calls, used in messages.
    noun: &'static str,
}

/// Prefix of the header name over gRPC.
const GRPC_PREFIX: &str = "triton-grpc-protocol-";

impl fmt::Debug for RestrictedApis {
    /// Formats the restriction without its secret value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestrictedApis")
            .field("apis", &self.apis)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl RestrictedApis {
    /// Parses `API,API,...:key=value` for HTTP. Requests to these APIs require the header `key` with this
    /// value.
    ///
    /// # Errors
    /// The string is malformed. The message omits the value.
    pub fn of_http(text: &str) -> Result<Self, String> {
        Self::parse(text, "", "API")
    }

    /// Parses the same format for gRPC, where the header is called `triton-grpc-protocol-key`.
    ///
    /// # Errors
    /// See [`RestrictedApis::of_http`].
    pub fn of_grpc(text: &str) -> Result<Self, String> {
        Self::parse(text, GRPC_PREFIX, "protocol")
    }

    fn parse(text: &str, prefix: &str, noun: &'static str) -> Result<Self, String> {
        let expected = "expected API,API,...:key=value";
        let (names, secret) = text
            .split_once(':')
            .ok_or_else(|| format!("{expected}, found no ':'"))?;
        let (key, value) = secret
            .split_once('=')
            .ok_or_else(|| format!("{expected}, found no '=' after ':'"))?;
        if key.trim().is_empty() || value.is_empty() {
            return Err(format!("{expected}, found an empty key or value"));
        }
        let header = format!("{prefix}{}", key.trim());
        let header = header
            .parse()
            .map_err(|_| format!("{expected}, found a key that is not a valid header name"))?;
        // Triton has all of these APIs except metrics, which Triton serves on a separate port.
        let apis: Result<Vec<Api>, String> = names
            .split(',')
            .map(|name| {
                let api = Api::ALL.into_iter().find(|api| api.name() == name.trim());
                api.ok_or_else(|| {
                    let names = Api::ALL.map(Api::name).join(", ");
                    format!(
                        "unknown {noun} '{}'; expected {names}",
                        name.trim().escape_debug()
                    )
                })
            })
            .collect();
        Ok(Self {
            apis: apis?,
            header,
            value: Sha256::digest(value).into(),
            noun,
        })
    }

    /// Returns the APIs that require the header.
    #[must_use]
    pub fn apis(&self) -> &[Api] {
        &self.apis
    }

    /// Checks the headers of a request. The error names the required header.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), String> {
        let given: [u8; 32] = Sha256::digest(
            headers
                .get(&self.header)
                .map_or(&b""[..], |value| value.as_bytes()),
        )
        .into();
        match bool::from(given.ct_eq(&self.value)) {
            true => Ok(()),
            // The message uses Triton's wording.
            false => Err(format!(
                "This {} is restricted, expecting header '{}'",
                self.noun, self.header
            )),
        }
    }
}

/// Checks that the groups of several options do not share an API.
///
/// # Errors
/// An API is in two groups. Triton rejects such options too.
pub fn check_restricted(groups: &[RestrictedApis]) -> Result<(), String> {
    let mut seen = Vec::new();
    for api in groups.iter().flat_map(RestrictedApis::apis) {
        if seen.contains(api) {
            return Err(format!(
                "'{}' is given twice; each may be in one group only",
                api.name()
            ));
        }
        seen.push(*api);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_must_have_the_value() {
        let restricted = RestrictedApis::of_grpc("health,inference:infer-key=infer-value").unwrap();
        let mut headers = HeaderMap::new();
        let refused = "This protocol is restricted, expecting header 'triton-grpc-protocol-infer-key'";
        assert_eq!(restricted.check(&headers).unwrap_err(), refused);
        headers.insert("triton-grpc-protocol-infer-key", "infer-valu".parse().unwrap());
        assert!(restricted.check(&headers).is_err());
        headers.insert("triton-grpc-protocol-infer-key", "infer-value".parse().unwrap());
        assert_eq!(restricted.check(&headers), Ok(()));
        assert_eq!(restricted.apis(), [Api::Health, Api::Inference]);
    }

    #[test]
    fn wrong_texts_are_refused_without_their_secret() {
        for (text, expected) in [
            ("inference", "found no ':'"),
            ("inference:s3cret", "found no '=' after ':'"),
            ("inference:=s3cret", "an empty key or value"),
            ("inference:key=", "an empty key or value"),
            ("inference:a b=s3cret", "not a valid header name"),
            ("everything:key=s3cret", "unknown API 'everything'"),
        ] {
            let error = RestrictedApis::of_http(text).err().unwrap();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
        let group = RestrictedApis::of_http("inference:a=b").unwrap();
        assert!(check_restricted(std::slice::from_ref(&group)).is_ok());
        let error = check_restricted(&[group.clone(), group]).unwrap_err();
        assert!(error.starts_with("'inference' is given twice"), "{error}");
    }
}
