//! `s3://`: objects in stores that use Amazon S3's protocol.

use fmt_core::{Error, ErrorKind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{AwsProfile, RemoteOptions, signer::Signer, target::Target};

/// Characters to percent-encode in a path.
const KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');
/// Resolves the part of a location after `s3://` to a URL. Reads the endpoint and the credentials from the
/// environment.
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
    let profile = AwsProfile::read(&variable)?;
    let region = variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION"));
    let region = region.or_else(|| profile.region().map(str::to_owned));
    let region = region.unwrap_or_else(|| "us-east-1".to_owned());
    if !region
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        let error = Error::new(ErrorKind::Malformed, "the region (AWS_REGION)");
        return Err(error.expected("such as eu-west-1").found(region.escape_debug()));
    }
    let is_unsigned = variable("AWS_SKIP_SIGNATURE")
        .is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
    options.signer = match (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
        _ if is_unsigned => None,
        (Some(key_id), Some(secret)) => Some(Signer {
            key_id,
            secret,
            session: variable("AWS_SESSION_TOKEN"),
            region: region.clone(),
        }),
        (None, None) => of_profile(&profile, &region, variable("AWS_PROFILE").is_some())?,
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
    // A token in the options is for other servers, so it is not sent to the store.
    options.token = None;
    let key = utf8_percent_encode(key, KEY);
    let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
    let endpoint = endpoint.or_else(|| profile.endpoint().map(str::to_owned));
    Target::parse(&match endpoint {
        Some(endpoint) => format!("{}/{bucket}/{key}", endpoint.trim_end_matches('/')),
        // Amazon's wildcard certificate covers one DNS label, so these buckets are named in the path.
        None if bucket.contains(['.', '_']) => format!("https://s3.{region}.amazonaws.com/{bucket}/{key}"),
        None => format!("https://{bucket}.s3.{region}.amazonaws.com/{key}"),
    })
}

/// Returns the credentials of an AWS profile, if there are any.
fn of_profile(profile: &AwsProfile, region: &str, is_named: bool) -> Result<Option<Signer>, Error> {
    profile.check_means(is_named)?;
    Ok(profile.keys().map(|keys| Signer {
        key_id: keys.id.to_owned(),
        secret: keys.secret.to_owned(),
        session: keys.session.map(str::to_owned),
        region: region.to_owned(),
    }))
}

#[cfg(test)]
mod tests {
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
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let text = "[profile p]\nregion = eu-north-1\naws_access_key_id = id\naws_secret_access_key = secret\n[profile sso]\nsso_session = x\n";
        std::fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        let by = |name| {
            [
                ("AWS_CONFIG_FILE", file.as_str()),
                ("AWS_PROFILE", name),
                ("AWS_SKIP_SIGNATURE", "true"),
            ]
        };
        let (url, options) = resolved("m/a.zt", &by("p")[..2]).unwrap();
        assert_eq!(url, "https://m.s3.eu-north-1.amazonaws.com/a.zt");
        assert_eq!(options.signer.unwrap().key_id, "id");
        for unsigned in [&by("p")[..], &by("sso")[..], &[keys[0], by("p")[2]][..]] {
            assert!(resolved("m/a.zt", unsigned).unwrap().1.signer.is_none());
        }
        let error = resolved("m/a.zt", &by("sso")[..2]).unwrap_err().to_string();
        assert!(
            error.contains("aws configure export-credentials --profile 'sso'"),
            "{error}"
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
