//! Admits or refuses requests by their heads.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::{
    HeaderMap,
    header::{AUTHORIZATION, HeaderValue},
};
use oip_resources::{CpuPool, Lease};
use oip_service::{
    Grant, Rights,
    route::{Api, Route},
};
use oip_types::{ErrorCode, ServiceError};
use parking_lot::{Mutex, RwLock};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

use crate::{
    error::AuthError,
    jwt::TokenError,
    restricted_apis::RestrictedApis,
    table::{Bearer, Contents, RequestIdentity, Table, denied},
};

/// Authorizes requests. Clones share one state.
#[derive(Clone, Default)]
pub struct Guard(Arc<SharedState>);

#[derive(Default)]
struct SharedState {
    path: Option<PathBuf>,
    table: RwLock<Option<Arc<Table>>>,
    /// Contents of the files at the last check.
    seen: Mutex<Option<FileSnapshot>>,
    /// Pool that verifies signatures.
    cpu: CpuPool,
}

/// The contents of the table file, and of the files that it names, at one check.
struct FileSnapshot {
    contents: Contents,
    /// Whether the contents were valid.
    is_used: bool,
}

/// Statistics about fetching JWT keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyFetches {
    /// Number of successful fetches.
    pub succeeded: u64,
    /// Number of failed fetches.
    pub failed: u64,
    /// Whether keys are available, current or outdated.
    pub has_keys: bool,
}

/// The kinds of calls that an address accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcceptedCalls {
    /// All calls.
    Everything,
    /// Rejects calls that change the server, unless there is an access table or the API is restricted. The
    /// string tells the client which address or option to use instead.
    NoChanges(&'static str),
    /// Rejects calls that change the server, and calls to the logging, tracing, shared memory and metrics
    /// APIs. A separate address accepts all of these calls. The string tells the client which address to use
    /// instead.
    NoAdministration(&'static str),
}

impl AcceptedCalls {
    /// Returns the error for a call that the address does not accept. `is_protected` is true if the call
    /// needs a credential.
    fn refusal(&self, route: &Route, is_protected: bool) -> Option<ServiceError> {
        match self {
            Self::Everything => None,
            Self::NoChanges(advice) => {
                let change = route.change().filter(|_| !is_protected)?;
                Some(denied(format!(
                    "'{change}' is refused on this address, which is open to everybody: {advice}"
                )))
            }
            Self::NoAdministration(advice) => {
                let api = route.api();
                let is_moved = matches!(api, Api::Logging | Api::Trace | Api::SharedMemory | Api::Metrics);
                let what = route.change().or(is_moved.then_some(api.name()))?;
                Some(denied(format!("'{what}' is refused on this address: {advice}")))
            }
        }
    }
}

/// The rules of an address on which the server listens.
#[derive(Clone)]
pub struct Door {
    /// The calls that the address accepts.
    pub accepts: AcceptedCalls,
    /// APIs that require a header.
    pub restricted: Arc<[RestrictedApis]>,
}

impl Default for Door {
    /// Creates a door that accepts all calls.
    fn default() -> Self {
        Self {
            accepts: AcceptedCalls::Everything,
            restricted: Arc::new([]),
        }
    }
}

impl Door {
    /// Checks the headers that the called API requires; returns whether it requires any.
    fn check_restricted(&self, route: &Route, headers: &HeaderMap) -> Result<bool, ServiceError> {
        let mut is_restricted = false;
        for restricted in self.restricted.iter() {
            if restricted.apis().contains(&route.api()) {
                restricted.check(headers).map_err(denied)?;
                is_restricted = true;
            }
        }
        Ok(is_restricted)
    }
}

/// The result of admitting a request.
pub(crate) struct Admission {
    /// The client's identity for the log; `None` if the client was not identified.
    pub(crate) shown: Option<String>,
    /// Checks that the transport runs once it has read the content; `None` if no such check is needed.
    pub(crate) grant: Option<Grant>,
    /// The model that was checked last; set only for a call that changes state.
    pub(crate) model: RequestedModel,
}

/// The name of the model that a request concerns. The name is known once the content of the request is read.
pub(crate) type RequestedModel = Option<Arc<Mutex<Option<String>>>>;

impl Guard {
    /// Creates a guard without identities, which admits all calls that the door accepts.
    #[must_use]
    pub fn open() -> Self {
        Self::default()
    }

    /// Creates a guard from the table file at `path`. JWT signatures are verified on the threads of `cpu`.
    ///
    /// # Errors
    /// A file is unreadable or invalid.
    pub fn with_table(path: impl Into<PathBuf>, cpu: CpuPool) -> Result<Self, AuthError> {
        let path = path.into();
        let contents = Contents::read(&path)?;
        let table = Table::new(&path, &contents, None)?;
        Ok(Self(Arc::new(SharedState {
            path: Some(path),
            table: RwLock::new(Some(Arc::new(table))),
            seen: Mutex::new(Some(FileSnapshot {
                contents,
                is_used: true,
            })),
            cpu,
        })))
    }

    /// Reloads the files. Returns whether the files changed.
    ///
    /// # Errors
    /// A file is unreadable or invalid. The previous table stays in use. The error for the same contents is
    /// returned only once.
    pub fn reload(&self) -> Result<bool, AuthError> {
        self.look(false)
    }

    /// Reloads the files like [`Guard::reload`], but on an explicit request: invalid files are reported every
    /// time.
    ///
    /// # Errors
    /// A file is unreadable or invalid. The previous table stays in use.
    pub fn reload_on_request(&self) -> Result<bool, AuthError> {
        self.look(true)
    }

    fn look(&self, is_requested: bool) -> Result<bool, AuthError> {
        let Some(path) = &self.0.path else {
            return Ok(false);
        };
        let mut seen = self.0.seen.lock();
        let contents = Contents::read(path).inspect_err(|_| *seen = None)?;
        if let Some(last) = &*seen
            && last.contents == contents
            && (last.is_used || !is_requested)
        {
            return Ok(false);
        }
        let before = self.table();
        let made = Table::new(path, &contents, before.as_deref());
        // A key server may respond differently next time, even if the files stay unchanged.
        let is_settled = !made.as_ref().is_err_and(AuthError::is_of_server);
        let is_used = made.is_ok();
        *seen = is_settled.then_some(FileSnapshot { contents, is_used });
        *self.0.table.write() = Some(Arc::new(made?));
        Ok(true)
    }

    // `Tls` of `oip-listen` watches its files in the same way. No crate is below both.
    /// Checks the files every `period` and logs changes. Returns immediately if there is no table. Needs a
    /// Tokio runtime.
    pub async fn watch(self, period: Duration) {
        if self.0.path.is_none() {
            return;
        }
        let mut ticks = interval(period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Message of the last failure, which is already logged.
        let mut said = None;
        loop {
            ticks.tick().await;
            let guard = self.clone();
            match spawn_blocking(move || guard.reload()).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => {
                    said = None;
                    tracing::info!("the changed table of identities is in use");
                }
                Ok(Err(error)) => {
                    let text = error.to_string();
                    if said.as_ref() != Some(&text) {
                        let error = &text;
                        tracing::error!(
                            error,
                            "the changed table of identities cannot be used; the previous one stays in use"
                        );
                        said = Some(text);
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn table(&self) -> Option<Arc<Table>> {
        self.0.table.read().clone()
    }

    /// Returns statistics about fetching JWT keys; `None` if the keys are not fetched from a URL. The counts
    /// restart when the table names another URL.
    #[must_use]
    pub fn key_fetches(&self) -> Option<KeyFetches> {
        let table = self.table()?;
        let fetched = table.fetched()?;
        let (succeeded, failed) = fetched.counts();
        Some(KeyFetches {
            succeeded,
            failed,
            has_keys: fetched.keys().is_some(),
        })
    }

    /// Returns the path of the table file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Returns whether clients without credentials may call `api` for all models.
    #[must_use]
    pub fn is_open_to_all(&self, api: Api) -> bool {
        let Some(table) = self.table() else {
            return true;
        };
        let anonymous = table.anonymous();
        anonymous.is_some_and(|known| table.identity(known.identity).may_use(api))
    }

    /// Admits or refuses a request. `sender` is the result of [`Guard::verify`], if the token had to be
    /// verified.
    pub(crate) fn admit(
        &self,
        door: &Door,
        route: &Route,
        headers: &HeaderMap,
        certificate: impl FnOnce() -> Vec<String>,
        sender: Option<Sender>,
    ) -> Result<Admission, Stop> {
        if route.api() == Api::Page {
            return Ok(Admission {
                shown: None,
                grant: None,
                model: None,
            });
        }
        let is_restricted = door.check_restricted(route, headers)?;
        let (table, found) = match sender {
            Some(Sender { table, found }) => (Some(table), Some(found)),
            None => (self.table(), None),
        };
        let identify = |table: &Arc<Table>| match found {
            Some(found) => found.map_err(Stop::Refused),
            None => identify(table, headers, certificate),
        };
        if let Some(error) = door.accepts.refusal(route, table.is_some() || is_restricted) {
            return Err(refused_at_door(error, table.as_ref().map(identify)));
        }
        let model = || Arc::new(Mutex::new(route.model_name().map(str::to_owned)));
        let model: RequestedModel = route.change().is_some().then(model);
        let Some(table) = table else {
            return Ok(Admission {
                shown: None,
                // A gRPC call that changes a model contains the model's name in its message.
                grant: route
                    .change()
                    .is_some()
                    .then(|| Grant::new(ContentChecks::new(None, &model))),
                model,
            });
        };
        let known = identify(&table)?;
        let identity = table.identity(known.identity);
        let allowed = identity.check_route(route).and_then(|()| identity.take_turn());
        allowed.map_err(|error| Refusal {
            error,
            challenge: None,
            shown: Some(known.shown.clone()),
        })?;
        let is_asked_again =
            route.change().is_some() || !identity.may_use_all_models() || identity.has_rate();
        let shown = Some(known.shown);
        let who = Some((table.clone(), known.identity));
        Ok(Admission {
            grant: is_asked_again.then(|| Grant::new(ContentChecks::new(who, &model))),
            shown,
            model,
        })
    }
}

/// Returns the refusal of a call that this listening address does not allow, for the reason `error`. The
/// refusal names the client for the log, so an unverified token must be verified first.
fn refused_at_door(error: ServiceError, known: Option<Result<RequestIdentity, Stop>>) -> Stop {
    match known {
        Some(Err(Stop::Unverified(token))) => Stop::Unverified(token),
        known => Stop::Refused(Refusal {
            shown: known.and_then(Result::ok).map(|known| known.shown),
            ..error.into()
        }),
    }
}

impl Guard {
    /// Verifies the signature of a token on a thread of the pool.
    pub(crate) async fn verify(&self, unverified: UnverifiedToken) -> Sender {
        let UnverifiedToken { table, value, digest } = unverified;
        let (held, bytes) = (table.clone(), value.len() as u64);
        let verify = move || Ok(held.by_signature(token(&value).unwrap_or_default(), digest));
        // If the client disconnects, this future is dropped, which cancels the verification.
        let found = match self.0.cpu.run(&Lease::unlimited(), bytes, verify).await {
            Ok(found) => found.map_err(Refusal::from),
            Err(error) => Err(error.into()),
        };
        Sender { table, found }
    }
}

/// The reason why a request is not admitted.
pub(crate) enum Stop {
    Refused(Refusal),
    /// The signature of the request's token must be verified first.
    Unverified(UnverifiedToken),
}

impl<R: Into<Refusal>> From<R> for Stop {
    fn from(refusal: R) -> Self {
        Self::Refused(refusal.into())
    }
}

/// A JWT, and the table with the keys to verify its signature.
pub(crate) struct UnverifiedToken {
    table: Arc<Table>,
    /// Value of the `authorization` header. It shares the request's memory.
    value: HeaderValue,
    digest: [u8; 32],
}

/// The client that sent a request, identified by a verified token, and the table that contains its identity.
pub(crate) struct Sender {
    table: Arc<Table>,
    found: Result<RequestIdentity, Refusal>,
}

/// A refused request: the error, and details for the client and the log.
pub(crate) struct Refusal {
    pub(crate) error: ServiceError,
    /// Value of the header `WWW-Authenticate`.
    pub(crate) challenge: Option<HeaderValue>,
    /// The client's identity; `None` if it is unknown.
    pub(crate) shown: Option<String>,
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        Self {
            error,
            challenge: None,
            shown: None,
        }
    }
}

impl From<TokenError> for Refusal {
    fn from(refused: TokenError) -> Self {
        match refused {
            TokenError::Token(reason) => Self::unauthenticated(reason, WRONG),
            TokenError::NoKeys => {
                let reason = "the keys of tokens could not be fetched yet, so the token cannot be checked";
                let error = ServiceError::new(ErrorCode::Unavailable, reason);
                error.retry_after(Duration::from_secs(5)).into()
            }
        }
    }
}

/// The challenge for clients without credentials, and the one for clients with wrong credentials.
const NONE: HeaderValue = HeaderValue::from_static("Bearer realm=\"models\"");
const WRONG: HeaderValue = HeaderValue::from_static("Bearer realm=\"models\", error=\"invalid_token\"");

impl Refusal {
    fn unauthenticated(reason: &str, challenge: HeaderValue) -> Self {
        Self {
            error: ServiceError::new(ErrorCode::Unauthenticated, reason),
            challenge: Some(challenge),
            shown: None,
        }
    }
}

/// Identifies the client by its token or, without one, by its certificate.
fn identify(
    table: &Arc<Table>,
    headers: &HeaderMap,
    certificate: impl FnOnce() -> Vec<String>,
) -> Result<RequestIdentity, Stop> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        let known = table.by_certificate(&certificate()).or_else(|| table.anonymous());
        return known.ok_or_else(|| {
            let expected = "expected a header 'authorization: Bearer TOKEN', or a known certificate";
            Refusal::unauthenticated(expected, NONE).into()
        });
    };
    let Some(token) = token(value).filter(|_| values.next().is_none()) else {
        let expected = "expected one header 'authorization: Bearer TOKEN'";
        return Err(Refusal::unauthenticated(expected, WRONG).into());
    };
    match table.by_token(token) {
        Bearer::Known(known) => Ok(known),
        Bearer::Refused(refused) => Err(Refusal::from(refused).into()),
        Bearer::Unverified(digest) => Err(Stop::Unverified(UnverifiedToken {
            table: table.clone(),
            value: value.clone(),
            digest,
        })),
    }
}

/// Returns the token of an `authorization: Bearer TOKEN` header.
fn token(value: &HeaderValue) -> Option<&str> {
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The checks of a [`Grant`], which need the request's content.
struct ContentChecks {
    who: Option<(Arc<Table>, usize)>,
    model: RequestedModel,
}

impl ContentChecks {
    fn new(who: Option<(Arc<Table>, usize)>, model: &RequestedModel) -> Self {
        Self {
            who,
            model: model.clone(),
        }
    }
}

impl Rights for ContentChecks {
    fn check_model(&self, model: &str) -> Result<(), ServiceError> {
        if let Some(asked) = &self.model {
            *asked.lock() = Some(model.to_owned());
        }
        match &self.who {
            None => Ok(()),
            Some((table, identity)) => table.identity(*identity).check_model(model),
        }
    }

    fn take_turn(&self) -> Result<(), ServiceError> {
        match &self.who {
            None => Ok(()),
            Some((table, identity)) => table.identity(*identity).take_turn(),
        }
    }
}
