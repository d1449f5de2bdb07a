//! The identity table: how clients are identified, and what they may do.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use lru::LruCache;
use oip_resources::TokenBucket;
use oip_service::route::{Api, Route};
use oip_types::{ErrorCode, ServiceError};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tensor_core::QuotedName;
use toml::Spanned;

use crate::{
    error::AuthError,
    jwt::{Keys, TokenError, VerifiedClaims, Verifier},
    key::read_set,
    pattern::Pattern,
    remote_keys::{KeysLocation, RemoteKeys, check_authorities},
};

/// Identities and their credentials, as read from the table file.
pub(crate) struct Table {
    identities: Vec<Identity>,
    /// The identity of clients without credentials.
    anonymous: Option<usize>,
    /// Digests of tokens, with the index of their identity.
    tokens: Vec<([u8; 32], usize)>,
    /// Patterns for the names in certificates, with the index of their identity.
    certificates: Vec<(Pattern, usize)>,
    jwt: Option<Jwt>,
}

struct Jwt {
    verifier: Verifier,
    /// Patterns for the values of the JWT claim, with the index of their identity.
    values: Vec<(Pattern, usize)>,
    /// Cache (LRU) of verified tokens, by digest.
    known: Mutex<LruCache<[u8; 32], VerifiedClaims>>,
}

/// An identity and its rights.
pub(crate) struct Identity {
    name: String,
    /// The APIs that the identity may call; `None` allows all APIs.
    apis: Option<Vec<Api>>,
    models: Vec<Pattern>,
    rate: Option<Mutex<TokenBucket>>,
}

/// The identity of a request.
pub(crate) struct RequestIdentity {
    pub(crate) identity: usize,
    /// Display name: the identity's name, plus the credential if that adds information.
    pub(crate) shown: String,
}

/// The result of looking up a bearer token without verifying a signature.
pub(crate) enum Bearer {
    Known(RequestIdentity),
    Refused(TokenError),
    /// The digest of a JWT; [`Table::by_signature`] must verify its signature.
    Unverified([u8; 32]),
}

/// Maximum number of tokens in a table.
const MOST_TOKENS: usize = 1024;

/// Capacity of the cache of verified tokens.
const KNOWN_TOKENS: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// Maximum size of the table file and of each file that it names, in bytes.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TableFile {
    #[serde(default)]
    identities: BTreeMap<String, IdentityFile>,
    anonymous: Option<RightsFile>,
    jwt: Option<JwtFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct IdentityFile {
    #[serde(default)]
    token_sha256: Vec<Spanned<String>>,
    #[serde(default)]
    certificates: Vec<Spanned<String>>,
    #[serde(default)]
    jwt: Vec<Spanned<String>>,
    apis: Vec<Spanned<String>>,
    models: Option<Vec<Spanned<String>>>,
    rate: Option<Spanned<f64>>,
    burst: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RightsFile {
    apis: Vec<Spanned<String>>,
    models: Option<Vec<Spanned<String>>>,
    rate: Option<Spanned<f64>>,
    burst: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct JwtFile {
    /// Path of a file, or URL, with the key set.
    keys: Spanned<String>,
    /// File with CA certificates that verify the server, if the keys are at a URL.
    ca: Option<Spanned<PathBuf>>,
    issuer: String,
    audience: String,
    claim: Option<String>,
}

/// The contents of the table file and of the files that it names.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    table: String,
    keys: Option<KeysFrom>,
}

/// The source of the JWT keys. For a file, includes its contents.
#[derive(Clone, PartialEq, Eq)]
enum KeysFrom {
    File(PathBuf, Vec<u8>),
    Server(KeysLocation),
}

impl Contents {
    pub(crate) fn read(path: &Path) -> Result<Self, AuthError> {
        let table =
            String::from_utf8(read(path)?).map_err(|_| AuthError::new(path, "expected text in UTF-8"))?;
        let beside = |other: &Path| path.parent().unwrap_or(Path::new("")).join(other);
        let wrong = |offset: usize, problem: &str| AuthError::at(path, line(&table, offset), problem);
        let keys = parse(path, &table)?.jwt.map(|jwt| {
            let place = jwt.keys.get_ref();
            if !KeysLocation::is_url(place) {
                if let Some(ca) = &jwt.ca {
                    let problem = "`ca` is for keys at a URL, and these are in a file";
                    return Err(wrong(ca.span().start, problem));
                }
                let keys = beside(Path::new(place));
                let contents = read(&keys)?;
                return Ok(KeysFrom::File(keys, contents));
            }
            KeysLocation::check(place).map_err(|problem| wrong(jwt.keys.span().start, &problem))?;
            let authorities = jwt.ca.map(|ca| {
                let ca = beside(ca.get_ref());
                let pem = read(&ca)?;
                check_authorities(&pem).map_err(|problem| AuthError::new(&ca, problem))?;
                Ok(pem)
            });
            Ok(KeysFrom::Server(KeysLocation {
                url: place.clone(),
                authorities: authorities.transpose()?,
            }))
        });
        let keys = keys.transpose()?;
        Ok(Self { table, keys })
    }
}

impl KeysFrom {
    /// Returns the keys. If the keys come from a URL, reuses those that were fetched for the previous table,
    /// `before`.
    fn keys(&self, before: Option<&Arc<RemoteKeys>>) -> Result<Keys, AuthError> {
        match self {
            Self::File(path, contents) => match read_set(contents) {
                Ok((keys, None)) => Ok(Keys::File(Arc::new(keys))),
                Ok((_, Some(problem))) | Err(problem) => Err(AuthError::new(path, problem)),
            },
            Self::Server(location) => {
                if let Some(before) = before.filter(|before| before.location() == location) {
                    return Ok(Keys::Server(before.clone()));
                }
                let fetched = RemoteKeys::start(location.clone());
                let fetched = fetched.map_err(|failure| AuthError::at_url(&location.url, &failure.reason))?;
                Ok(Keys::Server(Arc::new(fetched)))
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, AuthError> {
    let unreadable = |error| AuthError::new(path, format_args!("cannot be read: {error}"));
    // Opening a named pipe would block until it has a writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(AuthError::new(
            path,
            "expected a file, found something else, such as a directory or a pipe",
        ));
    }
    let mut contents = Vec::new();
    let opened = File::open(path).map_err(unreadable)?;
    opened
        .take(MAX_BYTES + 1)
        .read_to_end(&mut contents)
        .map_err(unreadable)?;
    if contents.len() as u64 > MAX_BYTES {
        return Err(AuthError::new(
            path,
            format_args!("expected at most {MAX_BYTES} bytes"),
        ));
    }
    Ok(contents)
}

fn line(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or_default().matches('\n').count() + 1
}

fn parse(path: &Path, text: &str) -> Result<TableFile, AuthError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let place = line(text, error.span().map_or(0, |span| span.start));
        AuthError::at(path, place, error.message().replace('\n', " "))
    })
}

impl Table {
    /// Parses a table. Reuses keys that were fetched for the previous table, `before`.
    pub(crate) fn new(path: &Path, contents: &Contents, before: Option<&Self>) -> Result<Self, AuthError> {
        let text = &contents.table;
        let file = parse(path, text)?;
        let wrong = |offset: usize, problem: &str| AuthError::at(path, line(text, offset), problem);
        let mut table = Self {
            identities: Vec::new(),
            anonymous: None,
            tokens: Vec::new(),
            certificates: Vec::new(),
            jwt: None,
        };
        let mut values = Vec::new();
        for (name, identity) in file.identities {
            let number = table.identities.len();
            table.add_tokens(&identity.token_sha256, number, &wrong)?;
            if table.tokens.len() > MOST_TOKENS {
                return Err(AuthError::new(
                    path,
                    format_args!("expected at most {MOST_TOKENS} tokens"),
                ));
            }
            table.add_certificates(&identity.certificates, number, &wrong)?;
            for pattern in &identity.jwt {
                if file.jwt.is_none() {
                    return Err(wrong(
                        pattern.span().start,
                        "values of a token's claim need a section [jwt]",
                    ));
                }
                values.push((Pattern::new(pattern.get_ref()), number));
            }
            let rights = RightsFile {
                apis: identity.apis,
                models: identity.models,
                rate: identity.rate,
                burst: identity.burst,
            };
            table.identities.push(Identity::new(name, &rights, &wrong)?);
        }
        if let Some(rights) = file.anonymous {
            table.anonymous = Some(table.identities.len());
            table
                .identities
                .push(Identity::new("anonymous".to_owned(), &rights, &wrong)?);
        }
        // Keys are fetched last, so that errors in the file are reported without network access.
        if let (Some(jwt), Some(keys)) = (file.jwt, &contents.keys) {
            let claim = jwt.claim.unwrap_or_else(|| "sub".to_owned());
            let keys = keys.keys(before.and_then(Self::fetched))?;
            table.jwt = Some(Jwt {
                verifier: Verifier::new(keys, jwt.issuer, jwt.audience, claim),
                values,
                known: Mutex::new(LruCache::new(KNOWN_TOKENS)),
            });
        }
        Ok(table)
    }

    /// Adds the token digests of the identity `number`. `wrong` creates an error for an offset in the table
    /// file.
    fn add_tokens(
        &mut self,
        digests: &[Spanned<String>],
        number: usize,
        wrong: &impl Fn(usize, &str) -> AuthError,
    ) -> Result<(), AuthError> {
        const EXPECTED: &str =
            "expected the SHA-256 of a token, 64 hexadecimal digits (printf %s TOKEN | sha256sum)";
        for token in digests {
            let at = token.span().start;
            // The message does not quote the value, since it may be a token entered by mistake.
            let digest = digest(token.get_ref()).ok_or_else(|| wrong(at, EXPECTED))?;
            if self.tokens.iter().any(|(known, _)| *known == digest) {
                return Err(wrong(at, "this token already belongs to another identity"));
            }
            self.tokens.push((digest, number));
        }
        Ok(())
    }

    /// Adds the patterns for names in certificates of the identity `number`.
    fn add_certificates(
        &mut self,
        patterns: &[Spanned<String>],
        number: usize,
        wrong: &impl Fn(usize, &str) -> AuthError,
    ) -> Result<(), AuthError> {
        for pattern in patterns {
            let mut kinds = ["uri:", "dns:", "email:"].iter();
            if !kinds.any(|kind| pattern.get_ref().starts_with(kind)) {
                let expected = "expected a certificate's name with its kind: uri:..., dns:... or email:...";
                return Err(wrong(pattern.span().start, expected));
            }
            self.certificates.push((Pattern::new(pattern.get_ref()), number));
        }
        Ok(())
    }

    /// Returns the fetched key set, if the keys are fetched from a URL.
    pub(crate) fn fetched(&self) -> Option<&Arc<RemoteKeys>> {
        self.jwt.as_ref()?.verifier.fetched()
    }

    pub(crate) fn identity(&self, number: usize) -> &Identity {
        &self.identities[number]
    }

    /// Identifies a bearer token without verifying a signature.
    pub(crate) fn by_token(&self, token: &str) -> Bearer {
        let digest: [u8; 32] = Sha256::digest(token).into();
        // The token is compared with all tokens, so that the time does not reveal which one matches.
        let mut found = None;
        for (known, identity) in &self.tokens {
            if bool::from(known.ct_eq(&digest)) {
                found = Some(*identity);
            }
        }
        if let Some(identity) = found {
            return Bearer::Known(self.known(identity, None));
        }
        match &self.jwt {
            Some(jwt) if token.bytes().filter(|byte| *byte == b'.').count() == 2 => {
                match jwt.remembered(&digest, SystemTime::now()) {
                    Some(verified) => self
                        .by_claim(jwt, &verified)
                        .map_or_else(Bearer::Refused, Bearer::Known),
                    None => Bearer::Unverified(digest),
                }
            }
            _ => Bearer::Refused(TokenError::Token("the token is not known")),
        }
    }

    /// Verifies the signature of a JWT and identifies the client. The verification takes up to a millisecond.
    pub(crate) fn by_signature(&self, token: &str, digest: [u8; 32]) -> Result<RequestIdentity, TokenError> {
        let jwt = self
            .jwt
            .as_ref()
            .ok_or(TokenError::Token("the token is not known"))?;
        let verified = jwt.verify(token, digest, SystemTime::now())?;
        self.by_claim(jwt, &verified)
    }

    fn by_claim(&self, jwt: &Jwt, verified: &VerifiedClaims) -> Result<RequestIdentity, TokenError> {
        let of_value = |value: &String| {
            let found = jwt.values.iter().find(|(pattern, _)| pattern.takes(value));
            found.map(|(_, identity)| self.known(*identity, Some(value)))
        };
        let found = verified.values.iter().find_map(of_value);
        found.ok_or(TokenError::Token(
            "the token's claim fits no identity of the server's table",
        ))
    }

    /// Returns the identity for a certificate that contains `names`.
    pub(crate) fn by_certificate(&self, names: &[String]) -> Option<RequestIdentity> {
        names.iter().find_map(|name| {
            let found = self.certificates.iter().find(|(pattern, _)| pattern.takes(name));
            found.map(|(_, identity)| self.known(*identity, Some(name)))
        })
    }

    /// Returns the identity of clients without credentials.
    pub(crate) fn anonymous(&self) -> Option<RequestIdentity> {
        self.anonymous.map(|identity| self.known(identity, None))
    }

    fn known(&self, identity: usize, by: Option<&str>) -> RequestIdentity {
        let name = &self.identities[identity].name;
        RequestIdentity {
            identity,
            shown: match by {
                None => name.clone(),
                Some(by) => format!("{name} ({})", QuotedName(by)),
            },
        }
    }
}

impl Jwt {
    /// Returns the cached claims of a token, if it was verified with the current keys and has not expired.
    fn remembered(&self, digest: &[u8; 32], now: SystemTime) -> Option<VerifiedClaims> {
        let seconds = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        let mut known = self.known.lock();
        let verified = known.get(digest)?;
        let is_good = seconds < verified.until && Some(verified.keys) == self.verifier.keys();
        is_good.then(|| verified.clone())
    }

    fn verify(&self, token: &str, digest: [u8; 32], now: SystemTime) -> Result<VerifiedClaims, TokenError> {
        let verified = self.verifier.verify(token, now)?;
        let mut known = self.known.lock();
        known.put(digest, verified.clone());
        Ok(verified)
    }
}

impl Identity {
    fn new(
        name: String,
        rights: &RightsFile,
        wrong: &impl Fn(usize, &str) -> AuthError,
    ) -> Result<Self, AuthError> {
        let mut apis = Some(Vec::new());
        for group in &rights.apis {
            if group.get_ref() == "*" {
                apis = None;
                continue;
            }
            let found = GROUPS.iter().find(|(name, _)| name == group.get_ref());
            let (_, members) = found.ok_or_else(|| {
                let names = GROUPS.map(|(name, _)| name).join(", ");
                let problem = format!(
                    "unknown group {}; expected {names} or *",
                    QuotedName(group.get_ref())
                );
                wrong(group.span().start, &problem)
            })?;
            if let Some(apis) = &mut apis {
                apis.extend_from_slice(members);
            }
        }
        let models = match &rights.models {
            None => vec![Pattern::new("*")],
            Some(models) => models
                .iter()
                .map(|pattern| Pattern::new(pattern.get_ref()))
                .collect(),
        };
        let rate = match &rights.rate {
            None => None,
            Some(rate) if (0.001..=1e9).contains(rate.get_ref()) => {
                let per_second = *rate.get_ref();
                let burst = rights.burst.unwrap_or_else(|| per_second.ceil() as u32);
                Some(Mutex::new(TokenBucket::full(
                    per_second,
                    f64::from(burst.max(1)),
                    Instant::now(),
                )))
            }
            Some(rate) => {
                return Err(wrong(
                    rate.span().start,
                    "expected a rate from 0.001 to 1e9 calls each second",
                ));
            }
        };
        Ok(Self {
            name,
            apis,
            models,
            rate,
        })
    }

    /// Returns whether the identity may call `api`.
    pub(crate) fn may_use(&self, api: Api) -> bool {
        self.apis.as_ref().is_none_or(|apis| apis.contains(&api))
    }

    /// Checks that the identity may send a request with this route.
    pub(crate) fn check_route(&self, route: &Route) -> Result<(), ServiceError> {
        // An unknown path may belong to any API.
        if !self.may_use(route.api()) {
            let name = &self.name;
            return Err(denied(match route.api() {
                Api::Unknown => format!(
                    "identity '{name}' may not use this path: there is no such path, or it needs an identity without `apis`"
                ),
                api => format!("identity '{name}' may not use the API '{}'", api.name()),
            }));
        }
        match route.model_name() {
            Some(model) => self.check_model(model),
            None => Ok(()),
        }
    }

    /// Checks that the identity may use `model`.
    pub(crate) fn check_model(&self, model: &str) -> Result<(), ServiceError> {
        match self.models.iter().any(|pattern| pattern.takes(model)) {
            true => Ok(()),
            false => Err(denied(format!(
                "identity '{}' may not use model {}",
                self.name,
                QuotedName(model)
            ))),
        }
    }

    /// Returns whether the identity may use all models.
    pub(crate) fn may_use_all_models(&self) -> bool {
        self.models.iter().any(Pattern::takes_all)
    }

    pub(crate) fn has_rate(&self) -> bool {
        self.rate.is_some()
    }

    /// Takes one call from the identity's rate limit. Fails if the limit is exceeded.
    pub(crate) fn take_turn(&self) -> Result<(), ServiceError> {
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.lock().take(Instant::now()).map_err(|wait| {
            let message = format!("identity '{}' exceeds its rate", self.name);
            ServiceError::new(ErrorCode::Overloaded, message).retry_after(wait.max(Duration::from_millis(1)))
        })
    }
}

pub(crate) fn denied(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ErrorCode::PermissionDenied, message)
}

/// The names that the table uses for groups of APIs.
const GROUPS: [(&str, &[Api]); 8] = [
    ("health", &[Api::Health]),
    ("metadata", &[Api::Metadata, Api::ModelConfig]),
    ("inference", &[Api::Inference]),
    ("repository", &[Api::Repository]),
    ("statistics", &[Api::Statistics]),
    ("logging", &[Api::Logging, Api::Trace]),
    ("shared-memory", &[Api::SharedMemory]),
    ("metrics", &[Api::Metrics]),
];

fn digest(hexadecimal: &str) -> Option<[u8; 32]> {
    let digits = hexadecimal.as_bytes();
    let mut bytes = [0; 32];
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::jwt::tests::Issuer;

    /// The SHA-256 of `s3cret`.
    const SECRET: &str = "1ec1c26b50d5d3c58d9583181af8076655fe00756bf7285940ba3670f99fcba0";

    fn table(text: &str) -> Result<Table, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("auth.toml");
        fs::write(&path, text).unwrap();
        let contents = Contents::read(&path).map_err(|error| error.to_string())?;
        Table::new(&path, &contents, None).map_err(|error| error.to_string())
    }

    /// Identifies the client by its token, and verifies the token's signature if necessary.
    fn identify(table: &Table, token: &str) -> Result<RequestIdentity, TokenError> {
        match table.by_token(token) {
            Bearer::Known(known) => Ok(known),
            Bearer::Refused(refused) => Err(refused),
            Bearer::Unverified(digest) => table.by_signature(token, digest),
        }
    }

    #[test]
    fn tokens_are_known_by_their_digests() {
        let table = table(&format!(
            "[identities.ci]\ntoken-sha256 = [\"{SECRET}\"]\napis = [\"inference\", \"health\"]\nmodels = [\"iris-*\"]\nrate = 1"
        ))
        .unwrap();
        let known = identify(&table, "s3cret").unwrap();
        assert_eq!(known.shown, "ci");
        let identity = table.identity(known.identity);
        let check = |method: Method, path: &str| {
            let refused = identity.check_route(&Route::of_http(&method, path));
            refused.map_err(|error| error.to_string())
        };
        assert_eq!(check(Method::POST, "/v2/models/iris-1/infer"), Ok(()));
        assert_eq!(check(Method::GET, "/v2/health/live"), Ok(()));
        assert_eq!(
            check(Method::POST, "/v2/models/other/infer").unwrap_err(),
            "identity 'ci' may not use model 'other'"
        );
        assert_eq!(
            check(Method::GET, "/v2/models/iris-1").unwrap_err(),
            "identity 'ci' may not use the API 'metadata'"
        );
        assert!(check(Method::GET, "/unheard-of").is_err());
        assert!(identity.take_turn().is_ok());
        let error = identity.take_turn().unwrap_err();
        assert!(error.code() == ErrorCode::Overloaded && error.retry_delay().is_some());
        assert_eq!(
            identify(&table, "other").err(),
            Some(TokenError::Token("the token is not known"))
        );
        assert_eq!(
            identify(&table, "").err(),
            Some(TokenError::Token("the token is not known"))
        );
        assert!(table.anonymous().is_none());
    }

    #[test]
    fn certificates_are_known_by_their_names() {
        let table = table(
            "[identities.robots]\ncertificates = [\"uri:spiffe://example.com/robots/*\"]\napis = [\"*\"]\n[anonymous]\napis = [\"health\"]",
        )
        .unwrap();
        let names = ["dns:x".to_owned(), "uri:spiffe://example.com/robots/7".to_owned()];
        let known = table.by_certificate(&names).unwrap();
        assert_eq!(known.shown, "robots ('uri:spiffe://example.com/robots/7')");
        assert!(
            table
                .identity(known.identity)
                .check_route(&Route::of_http(&Method::GET, "/unheard-of"))
                .is_ok()
        );
        assert!(table.by_certificate(&names[..1]).is_none());
        let anonymous = table.anonymous().unwrap();
        assert!(
            table
                .identity(anonymous.identity)
                .check_route(&Route::of_grpc("/grpc.health.v1.Health/Check"))
                .is_ok()
        );
    }

    #[test]
    fn tokens_with_claims_are_known_by_a_value() {
        let (folder, issuer) = (tempfile::tempdir().unwrap(), Issuer::new());
        let path = folder.path().join("auth.toml");
        fs::write(folder.path().join("keys.json"), issuer.set().to_string()).unwrap();
        let text = "[jwt]\nkeys = \"keys.json\"\nissuer = \"i\"\naudience = \"a\"\nclaim = \"groups\"\n[identities.team]\njwt = [\"ml-*\"]\napis = [\"*\"]";
        fs::write(&path, text).unwrap();
        let table = Table::new(&path, &Contents::read(&path).unwrap(), None).unwrap();
        let sign = |groups: &[&str], exp: u64| {
            let claims = json!({"iss": "i", "aud": "a", "groups": groups, "exp": exp});
            issuer.sign(&json!({"alg": "EdDSA"}), &claims)
        };
        let good = sign(&["all", "ml-7"], u64::MAX);
        assert_eq!(identify(&table, &good).unwrap().shown, "team ('ml-7')");
        assert!(
            matches!(table.by_token(&good), Bearer::Known(known) if known.shown == "team ('ml-7')"),
            "it is not remembered"
        );
        let nobody = identify(&table, &sign(&["all"], u64::MAX));
        assert_eq!(
            nobody.err(),
            Some(TokenError::Token(
                "the token's claim fits no identity of the server's table"
            ))
        );
        assert_eq!(
            identify(&table, &sign(&["ml-7"], 1)).err(),
            Some(TokenError::Token("the token has expired"))
        );
    }

    #[test]
    fn wrong_tables_are_told_with_the_line_and_without_secrets() {
        for (text, expected) in [
            ("x = 1", "line 1: unknown field `x`"),
            ("[identities.ci]\n", "line 1: missing field `apis`"),
            (
                "[identities.ci]\napis = [\"infer\"]",
                "line 2: unknown group 'infer'; expected health, metadata, inference",
            ),
            (
                "[identities.ci]\napis = []\ntoken-sha256 = [\"s3cret\"]",
                "line 3: expected the SHA-256 of a token",
            ),
            (
                "[identities.ci]\napis = []\ncertificates = [\"robot\"]",
                "line 3: expected a certificate's name with its kind",
            ),
            (
                "[identities.ci]\napis = []\njwt = [\"ci\"]",
                "line 3: values of a token's claim need a section [jwt]",
            ),
            (
                "[identities.ci]\napis = []\nrate = 0",
                "line 3: expected a rate from 0.001",
            ),
            (
                "[jwt]\nkeys = \"nowhere.json\"\nissuer = \"i\"\naudience = \"a\"",
                "nowhere.json: cannot be read: No such file",
            ),
            (
                "[jwt]\nissuer = \"i\"\nkeys = \"http://login.example.com/keys\"\naudience = \"a\"",
                "line 3: keys are fetched by https:// only",
            ),
            (
                "[jwt]\nissuer = \"i\"\nkeys = \"auth.toml\"\naudience = \"a\"\nca = \"ca.pem\"",
                "line 5: `ca` is for keys at a URL",
            ),
            (
                "[jwt]\nissuer = \"i\"\nkeys = \"https://x/\"\naudience = \"a\"\nca = \"auth.toml\"",
                "auth.toml: expected certificates in PEM, found none",
            ),
            ("[", "line 1: "),
        ] {
            let error = table(text).err().unwrap();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{error}");
        }
        let twice = format!(
            "[identities.a]\napis = []\ntoken-sha256 = [\"{SECRET}\"]\n[identities.b]\napis = []\ntoken-sha256 = [\"{SECRET}\"]"
        );
        assert!(
            table(&twice)
                .err()
                .unwrap()
                .contains("line 6: this token already belongs to another identity")
        );
    }
}
