//! JSON Web Tokens (RFC 7519), signed with a key from a JSON Web Key Set (RFC 7517).
//!
//! The key determines the algorithm; the token never does. This rule prevents the algorithm `none` and key
//! confusion.

use std::{sync::Arc, time::SystemTime};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    key::{Choice, Key, choose},
    remote_keys::RemoteKeys,
};

/// Keys and required claims for verifying tokens.
pub(crate) struct Verifier {
    keys: Keys,
    issuer: String,
    audience: String,
    claim: String,
}

/// The source of the keys that verify tokens.
#[derive(Clone)]
pub(crate) enum Keys {
    /// Keys read from a file; they do not change.
    File(Arc<Vec<Key>>),
    /// Keys fetched from a server. They may change, and may be missing at first.
    Server(Arc<RemoteKeys>),
}

impl Keys {
    /// Returns the current keys and their version number; `None` before the first fetch.
    fn now(&self) -> Option<(Arc<Vec<Key>>, u64)> {
        match self {
            Self::File(keys) => Some((keys.clone(), 0)),
            Self::Server(fetched) => fetched.keys(),
        }
    }
}

/// The reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// The token is invalid. The message is for the client and quotes nothing from the token.
    Token(&'static str),
    /// The keys for verifying the token have not been fetched yet.
    NoKeys,
}

/// The claims of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedClaims {
    /// The values of the identity claim: one value, or a list.
    pub(crate) values: Vec<String>,
    /// Expiry in seconds since 1970, including the leeway.
    pub(crate) until: u64,
    /// The version number of the keys that verified the token.
    pub(crate) keys: u64,
}

/// Tolerated difference between the clocks of the issuer and the server, in seconds.
const LEEWAY: f64 = 10.0;

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl Verifier {
    pub(crate) fn new(keys: Keys, issuer: String, audience: String, claim: String) -> Self {
        Self {
            keys,
            issuer,
            audience,
            claim,
        }
    }

    /// Returns the version number of the current keys; `None` before the first fetch.
    pub(crate) fn keys(&self) -> Option<u64> {
        self.keys.now().map(|(_, number)| number)
    }

    /// Returns the fetched key set, if the keys are fetched from a URL.
    pub(crate) fn fetched(&self) -> Option<&Arc<RemoteKeys>> {
        match &self.keys {
            Keys::File(_) => None,
            Keys::Server(fetched) => Some(fetched),
        }
    }

    /// Verifies a token and checks its claims at time `now`.
    pub(crate) fn verify(&self, token: &str, now: SystemTime) -> Result<VerifiedClaims, TokenError> {
        let (keys, number) = self.keys.now().ok_or(TokenError::NoKeys)?;
        let verified = self.verify_with(&keys, token, now).map_err(TokenError::Token)?;
        Ok(VerifiedClaims {
            keys: number,
            ..verified
        })
    }

    fn verify_with(
        &self,
        keys: &[Key],
        token: &str,
        now: SystemTime,
    ) -> Result<VerifiedClaims, &'static str> {
        const MALFORMED: &str = "the token is not a signed JSON Web Token";
        let (message, signature) = token.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, claims) = message.split_once('.').ok_or(MALFORMED)?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| MALFORMED);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| MALFORMED)?;
        if header.crit.is_some() {
            return Err("the token has unknown extensions");
        }
        let signature = decode(signature)?;
        let is_signed = match choose(keys, &header.alg, header.kid.as_deref()) {
            Choice::One(key) => key.verifies(message.as_bytes(), &signature),
            Choice::None => false,
            Choice::Several => {
                return Err(
                    "the token names no key ('kid'), and several of the server's keys fit its algorithm",
                );
            }
        };
        if !is_signed {
            // The issuer may have a new key, so the key set is fetched again.
            let is_known = |kid: &String| keys.iter().any(|key| key.id() == Some(kid));
            if let Some(fetched) = self.fetched()
                && !header.kid.as_ref().is_some_and(is_known)
            {
                fetched.ask();
            }
            return Err("the token is not signed by a known key");
        }
        let claims: Map<String, Value> = serde_json::from_slice(&decode(claims)?).map_err(|_| MALFORMED)?;
        self.check_claims(&claims, now)
    }

    /// Checks the claims of a correctly signed token at time `now`.
    fn check_claims(
        &self,
        claims: &Map<String, Value>,
        now: SystemTime,
    ) -> Result<VerifiedClaims, &'static str> {
        let until = valid_until(claims, now)?;
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err("the token is of another issuer");
        }
        let is_for_us = match claims.get("aud") {
            Some(Value::Array(audiences)) => {
                audiences.iter().any(|name| name.as_str() == Some(&self.audience))
            }
            audience => audience.and_then(Value::as_str) == Some(&self.audience),
        };
        if !is_for_us {
            return Err("the token is for another audience");
        }
        let values = match claims.get(&self.claim) {
            Some(Value::String(value)) => vec![value.clone()],
            Some(Value::Array(values)) => values
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            _ => return Err("the token lacks the claim that identifies its holder"),
        };
        Ok(VerifiedClaims {
            values,
            // The cast saturates, so a time beyond `u64` means that the token never expires.
            until: until as u64,
            keys: 0,
        })
    }
}

/// Checks that a token is valid at time `now`, and returns its expiry in seconds since 1970, including the
/// leeway.
fn valid_until(claims: &Map<String, Value>, now: SystemTime) -> Result<f64, &'static str> {
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => value
            .as_f64()
            .map(Some)
            .ok_or("a time of the token is not a number"),
    };
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    let until = time("exp")?.ok_or("the token does not say when it expires")? + LEEWAY;
    if now >= until {
        return Err("the token has expired");
    }
    if time("nbf")?.is_some_and(|from| now + LEEWAY < from) {
        return Err("the token is not valid yet");
    }
    Ok(until)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
    };
    use serde_json::json;

    use super::*;
    use crate::key::read_set;

    /// A test issuer that signs tokens and publishes its key set.
    pub(crate) struct Issuer {
        p256: EcdsaKeyPair,
        ed25519: Ed25519KeyPair,
        random: SystemRandom,
    }

    fn encode(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    impl Issuer {
        pub(crate) fn new() -> Self {
            let random = SystemRandom::new();
            let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let p256 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            let ed25519 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
            Self {
                p256: EcdsaKeyPair::from_pkcs8(algorithm, p256.as_ref(), &random).unwrap(),
                ed25519: Ed25519KeyPair::from_pkcs8(ed25519.as_ref()).unwrap(),
                random,
            }
        }

        pub(crate) fn set(&self) -> Value {
            let point = self.p256.public_key().as_ref();
            json!({"keys": [
                {"kty": "EC", "crv": "P-256", "kid": "ec", "use": "sig", "x": encode(&point[1..33]), "y": encode(&point[33..])},
                {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "alg": "EdDSA", "x": encode(self.ed25519.public_key())},
                {"kty": "EC", "crv": "P-521", "kid": "other", "x": "", "y": ""},
                {"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"},
            ]})
        }

        pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
            let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
            let signature = match header["alg"].as_str() {
                Some("EdDSA") => self.ed25519.sign(message.as_bytes()).as_ref().to_vec(),
                _ => self
                    .p256
                    .sign(&self.random, message.as_bytes())
                    .unwrap()
                    .as_ref()
                    .to_vec(),
            };
            format!("{message}.{}", encode(signature))
        }
    }

    fn verifier(issuer: &Issuer) -> Verifier {
        let (keys, _) = read_set(issuer.set().to_string().as_bytes()).unwrap();
        let [iss, aud, claim] = ["https://issuer", "models", "sub"].map(str::to_owned);
        Verifier::new(Keys::File(Arc::new(keys)), iss, aud, claim)
    }

    const NOW: u64 = 1_000_000;

    fn claims() -> Value {
        json!({"iss": "https://issuer", "aud": "models", "sub": "ci", "exp": NOW + 60, "nbf": NOW - 60})
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
    }

    #[test]
    fn good_tokens_are_taken() {
        let issuer = Issuer::new();
        let verifier = verifier(&issuer);
        let mut of_many = claims();
        of_many["aud"] = json!(["others", "models"]);
        of_many["sub"] = json!(["a", "b", 7]);
        for header in [
            json!({"alg": "ES256", "kid": "ec"}),
            json!({"alg": "EdDSA", "kid": "ed", "typ": "JWT"}),
            json!({"alg": "ES256"}),
        ] {
            let verified = verifier.verify(&issuer.sign(&header, &claims()), now()).unwrap();
            assert_eq!(
                (verified.values, verified.until),
                (vec!["ci".to_owned()], NOW + 70)
            );
            let verified = verifier.verify(&issuer.sign(&header, &of_many), now()).unwrap();
            assert_eq!(verified.values, ["a", "b"]);
        }
    }

    /// A token is verified with at most one key: trying all 64 keys would cost as much as verifying 64
    /// tokens.
    #[test]
    fn a_token_is_verified_with_one_key_or_refused() {
        const SEVERAL: &str =
            "the token names no key ('kid'), and several of the server's keys fit its algorithm";
        let (issuer, other) = (Issuer::new(), Issuer::new());
        let keys = |issuer: &Issuer, prefix: Option<&str>| {
            let mut set = issuer.set();
            for key in set["keys"].as_array_mut().unwrap() {
                match (prefix, key.as_object_mut().unwrap()) {
                    (None, key) => drop(key.remove("kid")),
                    (Some(prefix), key) if key.contains_key("kid") => {
                        key["kid"] = json!(format!("{prefix}{}", key["kid"].as_str().unwrap()));
                    }
                    _ => {}
                }
            }
            read_set(set.to_string().as_bytes()).unwrap().0
        };
        let verify = |sets: &[Vec<Key>], header: &Value| {
            let [iss, aud, claim] = ["https://issuer", "models", "sub"].map(str::to_owned);
            let verifier = Verifier::new(Keys::File(Arc::new(sets.concat())), iss, aud, claim);
            verifier
                .verify(&issuer.sign(header, &claims()), now())
                .map(|verified| verified.values.concat())
        };
        let ci = || Ok("ci".to_owned());
        let refused = |reason| Err(TokenError::Token(reason));
        let (nameless, named) = (json!({"alg": "ES256"}), json!({"alg": "ES256", "kid": "ec"}));
        let own = keys(&issuer, Some(""));
        // A token without a key id is accepted only if exactly one key fits its algorithm.
        assert_eq!(verify(std::slice::from_ref(&own), &nameless), ci());
        assert_eq!(
            verify(&[own.clone(), keys(&other, Some("x-"))], &nameless),
            refused(SEVERAL)
        );
        assert_eq!(verify(&[own, keys(&other, Some("x-"))], &named), ci());
        // Keys without an id are used for tokens whose id is not in the set.
        let unnamed = keys(&issuer, None);
        assert_eq!(verify(&[unnamed.clone(), keys(&other, Some("x-"))], &named), ci());
        assert_eq!(
            verify(&[unnamed.clone(), keys(&other, Some(""))], &named),
            refused("the token is not signed by a known key")
        );
        assert_eq!(verify(&[unnamed, keys(&other, None)], &named), refused(SEVERAL));
    }

    #[test]
    fn an_rsa_signature_of_another_program_is_taken() {
        // The example in RFC 7515, appendix A.2, whose claims belong to another protocol.
        let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        let set = json!({"keys": [{"kty": "RSA", "n": n, "e": "AQAB"}]}).to_string();
        let [iss, aud, claim] = ["joe", "models", "sub"].map(str::to_owned);
        let (keys, _) = read_set(set.as_bytes()).unwrap();
        let verifier = Verifier::new(Keys::File(Arc::new(keys)), iss, aud, claim);
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_300_819_370);
        assert_eq!(
            verifier.verify(token, then).unwrap_err(),
            TokenError::Token("the token is for another audience")
        );
        assert_eq!(
            verifier.verify(token, SystemTime::now()).unwrap_err(),
            TokenError::Token("the token has expired")
        );
        let changed = token.replace("eyJpc3MiOiJqb2Ui", "eyJpc3MiOiJqb2Uj");
        assert_eq!(
            verifier.verify(&changed, then).unwrap_err(),
            TokenError::Token("the token is not signed by a known key")
        );
    }

    #[test]
    fn other_tokens_are_refused_with_the_reason() {
        let issuer = Issuer::new();
        let verifier = verifier(&issuer);
        let es256 = json!({"alg": "ES256", "kid": "ec"});
        let unsigned = "the token is not signed by a known key";
        let with = |name: &str, value: Value| {
            let mut claims = claims();
            claims[name] = value;
            issuer.sign(&es256, &claims)
        };
        let without = |name: &str| {
            let mut claims = claims();
            claims.as_object_mut().unwrap().remove(name);
            issuer.sign(&es256, &claims)
        };
        let good = issuer.sign(&es256, &claims());
        let message = good.rsplit_once('.').unwrap().0;
        let none = format!(
            "{}.{}.",
            encode(r#"{"alg":"none"}"#),
            encode(claims().to_string())
        );
        for (token, reason) in [
            (Issuer::new().sign(&es256, &claims()), unsigned),
            (
                issuer.sign(&json!({"alg": "ES256", "kid": "ed"}), &claims()),
                unsigned,
            ),
            // A key works with only one algorithm, whatever the token's header says.
            (
                issuer.sign(&json!({"alg": "HS256", "kid": "ec"}), &claims()),
                unsigned,
            ),
            (
                issuer.sign(&json!({"alg": "RS256", "kid": "ec"}), &claims()),
                unsigned,
            ),
            (none, unsigned),
            (format!("{message}."), unsigned),
            (
                issuer.sign(&json!({"alg": "ES256", "crit": ["b64"]}), &claims()),
                "the token has unknown extensions",
            ),
            (with("exp", json!(NOW - 11)), "the token has expired"),
            (
                with("exp", json!("9999999999")),
                "a time of the token is not a number",
            ),
            (without("exp"), "the token does not say when it expires"),
            (with("nbf", json!(NOW + 60)), "the token is not valid yet"),
            (with("nbf", json!("0")), "a time of the token is not a number"),
            (
                with("iss", json!("https://other")),
                "the token is of another issuer",
            ),
            (without("iss"), "the token is of another issuer"),
            (with("aud", json!("others")), "the token is for another audience"),
            (
                with("aud", json!(["others"])),
                "the token is for another audience",
            ),
            (without("aud"), "the token is for another audience"),
            (
                without("sub"),
                "the token lacks the claim that identifies its holder",
            ),
            ("a.b.c".to_owned(), "the token is not a signed JSON Web Token"),
            ("..".to_owned(), "the token is not a signed JSON Web Token"),
            ("x".to_owned(), "the token is not a signed JSON Web Token"),
            (format!("{good}="), "the token is not a signed JSON Web Token"),
        ] {
            let refused = verifier.verify(&token, now()).unwrap_err();
            assert_eq!(refused, TokenError::Token(reason), "{token}");
        }
    }
}
