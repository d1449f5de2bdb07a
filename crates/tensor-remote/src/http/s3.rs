//! `s3://`: objects of stores that speak Amazon S3's protocol, asked for by requests that are signed (Signature Version 4).

use std::{fmt, time::SystemTime};

use fmt_core::{Error, ErrorKind};
use hmac::{Hmac, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

use super::{RemoteOptions, target::Target};

/// Who asks, and in which region.
#[derive(Clone)]
pub(crate) struct Signer {
    key_id: String,
    secret: String,
    /// For keys that end after some hours.
    session: Option<String>,
    region: String,
}

/// What does not stand in the path of an address as it is.
const KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');
/// The digest of a request without a body.
const NO_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Where the object is, by what stands behind `s3://` and by the environment; and who asks for it.
pub(crate) fn resolve(
    place: &str,
    variable: &dyn Fn(&str) -> Option<String>,
    options: &mut RemoteOptions,
) -> Result<Target, Error> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let malformed = || {
        let error = Error::new(ErrorKind::Malformed, "the location in an object store");
        error.expected("s3://BUCKET/KEY")
    };
    let (bucket, key) = place.split_once('/').ok_or_else(malformed)?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(is_name) || key.is_empty() || key.ends_with('/') {
        return Err(malformed());
    }
    let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
    let region = region.unwrap_or_else(|| "us-east-1".to_owned());
    if !region
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        let error = Error::new(ErrorKind::Malformed, "the region (AWS_REGION)");
        return Err(error.expected("such as eu-west-1").found(region.escape_debug()));
    }
    options.signer = match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
        (Some(key_id), Some(secret)) => Some(Signer {
            key_id,
            secret,
            session: variable("AWS_SESSION_TOKEN"),
            region: region.clone(),
        }),
        (None, None) => None,
        (found, _) => {
            let (found, missing) = match found {
                Some(_) => ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
                None => ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
            };
            let error = Error::new(ErrorKind::Unsupported, format!("{missing} is not set"));
            return Err(error
                .expected("both keys, or none")
                .found(format_args!("{found} only")));
        }
    };
    // A token is for other servers.
    options.token = None;
    let key = utf8_percent_encode(key, KEY);
    let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
    Target::parse(&match endpoint {
        Some(endpoint) => format!("{}/{bucket}/{key}", endpoint.trim_end_matches('/')),
        // The store's certificate is for one name before its own.
        None if bucket.contains(['.', '_']) => format!("https://s3.{region}.amazonaws.com/{bucket}/{key}"),
        None => format!("https://{bucket}.s3.{region}.amazonaws.com/{key}"),
    })
}

impl Signer {
    /// The headers that say who asks for a range of an object, now.
    pub(crate) fn sign(&self, target: &Target, range: &str, now: SystemTime) -> Vec<(&'static str, String)> {
        // 2013-05-24T00:00:00Z without what separates.
        let time = humantime::format_rfc3339_seconds(now)
            .to_string()
            .replace(['-', ':'], "");
        let date = &time[..8];
        let mut headers = vec![
            ("host", target.authority().to_owned()),
            ("range", range.to_owned()),
            ("x-amz-content-sha256", NO_BODY.to_owned()),
            ("x-amz-date", time.clone()),
        ];
        headers.extend(
            self.session
                .clone()
                .map(|session| ("x-amz-security-token", session)),
        );
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = headers
            .iter()
            .map(|(name, value)| format!("{name}:{value}\n"))
            .collect();
        let path = target.uri().path();
        let request = format!("GET\n{path}\n\n{lines}\n{names}\n{NO_BODY}");
        let region = &self.region;
        let scope = format!("{date}/{region}/s3/aws4_request");
        let digest = hex(&Sha256::digest(request));
        let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
        let secret = format!("AWS4{}", self.secret).into_bytes();
        let key = [date, region, "s3", "aws4_request"]
            .into_iter()
            .fold(secret, |key, part| keyed_digest(&key, part));
        let signature = hex(&keyed_digest(&key, &to_sign));
        let key_id = &self.key_id;
        headers.push((
            "authorization",
            format!(
                "AWS4-HMAC-SHA256 Credential={key_id}/{scope},SignedHeaders={names},Signature={signature}"
            ),
        ));
        // The range is sent in any case.
        headers.retain(|(name, _)| *name != "range");
        headers
    }
}

/// Keys are not printed.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

fn keyed_digest(key: &[u8], text: &str) -> Vec<u8> {
    // A key of any length will do.
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    let mut digest = Hmac::<Sha256>::new_from_slice(key).expect("a key");
    digest.update(text.as_bytes());
    digest.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn resolved(place: &str, variables: &[(&str, &str)]) -> Result<(String, RemoteOptions), Error> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let mut options = RemoteOptions::default().with_token("of the Hub");
        let target = resolve(place, &variable, &mut options)?;
        Ok((target.uri().to_string(), options))
    }

    /// The example "GET Object" of "Signature Calculations for the Authorization Header" in Amazon S3's API reference.
    #[test]
    fn the_signature_is_that_of_the_reference() {
        let signer = Signer {
            key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session: None,
            region: "us-east-1".into(),
        };
        let target = Target::parse("https://examplebucket.s3.amazonaws.com/test.txt").unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let headers = signer.sign(&target, "bytes=0-9", time);
        let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            ["host", "x-amz-content-sha256", "x-amz-date", "authorization"]
        );
        assert_eq!(
            headers[3].1,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        assert!(!format!("{signer:?}").contains("AKIA"));
    }

    #[test]
    fn places_of_objects() {
        for (place, variables, url) in [
            (
                "models/a/b.zt",
                &[][..],
                "https://models.s3.us-east-1.amazonaws.com/a/b.zt",
            ),
            (
                "models/a b+ä%20?#.zt",
                &[("AWS_REGION", "eu-west-1")],
                "https://models.s3.eu-west-1.amazonaws.com/a%20b%2B%C3%A4%2520%3F%23.zt",
            ),
            (
                "my.models/a.zt",
                &[("AWS_DEFAULT_REGION", "eu-west-1"), ("AWS_REGION", "")],
                "https://s3.eu-west-1.amazonaws.com/my.models/a.zt",
            ),
            (
                "m/a.zt",
                &[("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/")],
                "http://127.0.0.1:9000/m/a.zt",
            ),
        ] {
            let (found, options) = resolved(place, variables).unwrap();
            assert_eq!(found, url);
            assert!(options.signer.is_none() && options.token.is_none());
        }
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        assert!(resolved("m/a.zt", &keys).unwrap().1.signer.is_some());
        assert!(
            resolved("m/a.zt", &keys[..1])
                .unwrap_err()
                .to_string()
                .contains("AWS_SECRET_ACCESS_KEY is not set")
        );
        for wrong in [
            "",
            "bucket",
            "bucket/",
            "/key",
            "bucket/folder/",
            "a b/key",
            "user@bucket/key",
            "a:1/key",
        ] {
            assert_eq!(
                resolved(wrong, &keys).unwrap_err().kind(),
                ErrorKind::Malformed,
                "{wrong}"
            );
        }
        assert!(resolved("m/a.zt", &[("AWS_REGION", "evil.example/")]).is_err());
    }
}
