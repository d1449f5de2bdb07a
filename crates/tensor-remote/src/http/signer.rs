//! Signs requests as Amazon S3 requires (Signature Version 4).

use std::{fmt, time::SystemTime};

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

/// The credentials and the region with which requests are signed.
#[derive(Clone)]
pub(crate) struct Signer {
    pub(crate) key_id: String,
    pub(crate) secret: String,
    /// The session token of temporary keys.
    pub(crate) session: Option<String>,
    pub(crate) region: String,
}

/// The SHA-256 of an empty body.
const NO_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

impl Signer {
    /// Returns the headers that sign a request for `range` of `path` on `host`, at the time `now`.
    pub(crate) fn sign(
        &self,
        host: &str,
        path: &str,
        range: &str,
        now: SystemTime,
    ) -> Vec<(&'static str, String)> {
        // 2013-05-24T00:00:00Z without separators.
        let time = humantime::format_rfc3339_seconds(now)
            .to_string()
            .replace(['-', ':'], "");
        let date = &time[..8];
        let mut headers = vec![
            ("host", host.to_owned()),
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
        // The caller adds the range header itself.
        headers.retain(|(name, _)| *name != "range");
        headers
    }
}

/// Writes the signer without its keys.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

fn keyed_digest(key: &[u8], text: &str) -> Vec<u8> {
    // HMAC accepts keys of any length.
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

    /// The example "GET Object" of "Signature Calculations for the Authorization Header" in Amazon S3's API
    /// reference.
    #[test]
    fn the_signature_is_that_of_the_reference() {
        let signer = Signer {
            key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session: None,
            region: "us-east-1".into(),
        };
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let headers = signer.sign("examplebucket.s3.amazonaws.com", "/test.txt", "bytes=0-9", time);
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
}
