//! Public keys of JSON Web Key Sets (RFC 7517). Each key is bound to one algorithm.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A key bound to one algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    id: Option<String>,
    public: Public,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Public {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point on P-256.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl Public {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Self::Rsa { n, e } => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Self::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.is_ok()
    }
}

/// Maximum number of keys in a set. Issuers have two or three keys.
const MOST_KEYS: usize = 64;

#[derive(Deserialize)]
struct Set {
    keys: Vec<Map<String, Value>>,
}

impl Key {
    /// Returns the id of the key.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns whether `signature` is valid for `message`.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.public.verifies(message, signature)
    }
}

/// The result of choosing a key for a token.
#[derive(Debug)]
pub(crate) enum Choice<'a> {
    One(&'a Key),
    /// No key fits the token.
    None,
    /// The token has no key id, and several keys fit its algorithm.
    Several,
}

/// Chooses the key in `keys` for a token whose header names `algorithm` and, if any, the key `id`.
///
/// At most one key is tried: verification takes up to a millisecond, and a set has up to 64 keys. Keys
/// without an id are used for tokens whose key id is not in the set.
pub(crate) fn choose<'a>(keys: &'a [Key], algorithm: &str, id: Option<&str>) -> Choice<'a> {
    let fitting = |is_meant: &dyn Fn(&Key) -> bool| {
        let mut fitting = keys
            .iter()
            .filter(|key| key.public.algorithm() == algorithm && is_meant(key));
        match (fitting.next(), fitting.next()) {
            (None, _) => Choice::None,
            (Some(key), None) => Choice::One(key),
            (Some(_), Some(_)) => Choice::Several,
        }
    };
    match id {
        None => fitting(&|_| true),
        Some(id) if keys.iter().any(|key| key.id() == Some(id)) => fitting(&|key| key.id() == Some(id)),
        Some(_) => fitting(&|key| key.id().is_none()),
    }
}

/// Parses a key set. Returns the usable keys, and the error of the first key that should be usable but is
/// not. Keys for other purposes and of unknown types are skipped.
///
/// # Errors
/// The set as a whole is invalid.
pub(crate) fn read_set(set: &[u8]) -> Result<(Vec<Key>, Option<String>), String> {
    let set: Set = serde_json::from_slice(set).map_err(|error| format!("not a JSON Web Key Set: {error}"))?;
    if set.keys.len() > MOST_KEYS {
        let found = set.keys.len();
        return Err(format!("expected at most {MOST_KEYS} keys, found {found}"));
    }
    let (mut keys, mut complaint) = (Vec::<Key>::new(), None);
    for (index, key) in set.keys.iter().enumerate() {
        let read = read_key(key).and_then(|read| match read {
            Some(key) => distinct(key, &keys),
            None => Ok(None),
        });
        match read {
            Ok(read) => keys.extend(read),
            Err(reason) => drop(complaint.get_or_insert(format!("keys[{index}]: {reason}"))),
        }
    }
    match (keys.is_empty(), complaint) {
        (true, Some(complaint)) => Err(complaint),
        (true, None) => {
            Err("expected a public key of RSA, EC with P-256, or OKP with Ed25519, found none".to_owned())
        }
        (false, complaint) => Ok((keys, complaint)),
    }
}

/// Returns the key, or `None` if it repeats an earlier key. A different key with the same id and algorithm is
/// an error, since such a key could never be chosen.
fn distinct(key: Key, before: &[Key]) -> Result<Option<Key>, String> {
    if before.contains(&key) {
        return Ok(None);
    }
    let is_same = |other: &&Key| other.id == key.id && other.public.algorithm() == key.public.algorithm();
    match before.iter().find(is_same).and(key.id.as_deref()) {
        Some(id) => Err(format!(
            "expected ids ('kid') that differ, found {} again",
            tensor_core::QuotedName(id)
        )),
        None => Ok(Some(key)),
    }
}

/// Parses a key. Returns `None` if the key has another purpose or an unknown type.
fn read_key(key: &Map<String, Value>) -> Result<Option<Key>, String> {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    let bytes = |name: &str| {
        let text = text(name).ok_or_else(|| format!("'{name}' is missing"))?;
        let decoded = URL_SAFE_NO_PAD.decode(text);
        decoded.map_err(|_| format!("'{name}': expected base64url without padding"))
    };
    if key.contains_key("d") || key.contains_key("k") {
        return Err(
            "expected a public key, found a secret one, which a set of keys should not have".to_owned(),
        );
    }
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return Ok(None);
    }
    let public = match (text("kty"), text("crv")) {
        (Some("RSA"), _) => {
            let n = bytes("n")?;
            let leading = n.iter().take_while(|byte| **byte == 0).count();
            let n = n[leading..].to_vec();
            let bits = n.len() * 8;
            if !(2048..=8192).contains(&bits) {
                return Err(format!("expected an RSA key of 2048 to 8192 bits, found {bits}"));
            }
            Public::Rsa { n, e: bytes("e")? }
        }
        (Some("EC"), Some("P-256")) => {
            let (x, y) = (bytes("x")?, bytes("y")?);
            if x.len() != 32 || y.len() != 32 {
                return Err("expected coordinates of 32 bytes".to_owned());
            }
            Public::P256([&[4][..], &x, &y].concat())
        }
        (Some("OKP"), Some("Ed25519")) => Public::Ed25519(bytes("x")?),
        (None, _) => return Err("'kty' is missing".to_owned()),
        _ => return Ok(None),
    };
    if text("alg").is_some_and(|algorithm| algorithm != public.algorithm()) {
        return Ok(None);
    }
    Ok(Some(Key {
        id: text("kid").map(str::to_owned),
        public,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_that_cannot_be_used_are_refused() {
        for (set, expected) in [
            ("", "not a JSON Web Key Set"),
            (r#"{"keys": []}"#, "found none"),
            (r#"{"keys": [{"crv": "P-256"}]}"#, "keys[0]: 'kty' is missing"),
            (
                r#"{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}"#,
                "of 2048 to 8192 bits, found 24",
            ),
            (
                r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "!", "y": ""}]}"#,
                "'x': expected base64url",
            ),
            (
                r#"{"keys": [{"kty": "oct", "k": "AAAA"}]}"#,
                "keys[0]: expected a public key, found a secret one",
            ),
        ] {
            let error = read_set(set.as_bytes()).err().unwrap();
            assert!(error.contains(expected), "{error}");
        }
        // A bad key in a set is reported, and the good key is used.
        let set = r#"{"keys": [{"kty": "oct", "k": "AAAA"}, {"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "AA"}]}"#;
        let (keys, complaint) = read_set(set.as_bytes()).unwrap();
        assert_eq!((keys.len(), keys[0].id()), (1, Some("a")));
        assert!(complaint.unwrap().starts_with("keys[0]: "));
        let set = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "AA"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "AA"}, {"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "AQ"}]}"#;
        let (keys, complaint) = read_set(set.as_bytes()).unwrap();
        assert_eq!(
            (keys.len(), complaint.as_deref()),
            (
                1,
                Some("keys[2]: expected ids ('kid') that differ, found 'a' again")
            )
        );
        let many = format!(r#"{{"keys": [{}]}}"#, vec!["{}"; 65].join(","));
        assert_eq!(
            read_set(many.as_bytes()).err().unwrap(),
            "expected at most 64 keys, found 65"
        );
    }
}
