//! S3, Google Cloud Storage, Azure and other stores that the crate `object_store` supports.

use std::{
    env,
    fmt::Write as _,
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::{
    BackoffConfig, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig,
    aws::AmazonS3Builder, azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, path::Path,
};
use tensor_remote::{AwsProfile, RemoteConnector, RemoteOptions};
use tokio::runtime::{Builder, Runtime};

use crate::{
    error::StoreError,
    location::Cloud,
    name::ObjectName,
    store::{Listing, Object, OpenObject, Store},
    web::without_options,
};

/// The objects of an [`ObjectStore`] (a bucket, a container, a directory or memory) whose keys have a prefix.
///
/// ```
/// use std::sync::Arc;
/// use model_store::{CloudStore, Store};
/// use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Arc::new(InMemory::new());
/// let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// runtime.block_on(memory.put(&Path::from("models/iris/1/model.onnx"), "content".into()))?;
/// let store = CloudStore::new(memory, "models", "memory://models")?;
/// let listing = store.list(None, None)?.unwrap_or_default();
/// assert_eq!(listing.objects[0].name.as_str(), "iris/1/model.onnx");
/// assert_eq!(store.open(&listing.objects[0])?.read(3..7)?, "tent");
/// # Ok(())
/// # }
/// ```
pub struct CloudStore {
    shared: Arc<SharedState>,
    prefix: String,
}

struct SharedState {
    store: Arc<dyn ObjectStore>,
    /// The store's URL in error messages.
    url: String,
    hint: &'static str,
    /// The runtime with timers and blocking threads for requests. The callers' threads drive the requests.
    runtime: Option<Runtime>,
}

impl CloudStore {
    /// Creates a store for the objects of `store` under `prefix`, which has no surrounding slashes. `url`
    /// names the store in messages.
    ///
    /// # Errors
    /// [`StoreError::Settings`] when no threads can be created.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, url: &str) -> Result<Self, StoreError> {
        Self::with_hint(store, prefix, url, "it may need credentials")
    }

    fn with_hint(
        store: Arc<dyn ObjectStore>,
        prefix: &str,
        url: &str,
        hint: &'static str,
    ) -> Result<Self, StoreError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| StoreError::Settings {
            url: url.to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self {
            shared: Arc::new(SharedState {
                store,
                url: url.to_owned(),
                hint,
                runtime: Some(runtime),
            }),
            prefix: prefix.to_owned(),
        })
    }

    /// Creates a store for a cloud bucket, with settings and credentials from the environment.
    pub(crate) fn of(
        cloud: Cloud,
        bucket: &str,
        prefix: &str,
        url: &str,
        options: &RemoteOptions,
    ) -> Result<Self, StoreError> {
        let connector = RemoteConnector::new(options.clone());
        let retry = retries();
        let (store, hint) = match cloud {
            Cloud::S3 => {
                let settings = |error: fmt_core::Error| StoreError::Settings {
                    url: url.to_owned(),
                    why: error.to_string(),
                };
                let variable = |name: &str| env::var(name).ok();
                let builder = with_profile(AmazonS3Builder::from_env(), &variable).map_err(settings)?;
                (
                    shared(
                        builder
                            .with_bucket_name(bucket)
                            .with_http_connector(connector)
                            .with_retry(retry)
                            .build(),
                    ),
                    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile in ~/.aws (AWS_PROFILE), a web \
                     identity or the machine's role give credentials; a public bucket needs only \
                     AWS_SKIP_SIGNATURE=true",
                )
            }
            Cloud::Google => (
                shared(
                    GoogleCloudStorageBuilder::from_env()
                        .with_bucket_name(bucket)
                        .with_http_connector(connector)
                        .with_retry(retry)
                        .build(),
                ),
                "GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT or the machine's account give \
                 credentials; a public bucket needs only GOOGLE_SKIP_SIGNATURE=true",
            ),
            Cloud::Azure => (
                shared(
                    MicrosoftAzureBuilder::from_env()
                        .with_container_name(bucket)
                        .with_http_connector(connector)
                        .with_retry(retry)
                        .build(),
                ),
                "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, a SAS token or an identity give \
                 credentials; a public container needs only AZURE_SKIP_SIGNATURE=true",
            ),
        };
        let store = store.map_err(|error| StoreError::Settings {
            url: url.to_owned(),
            why: format!("{}; {hint}", text_of(&error)),
        })?;
        Self::with_hint(store, prefix, url, hint)
    }

    /// Returns the part of a key after the location's prefix; `None` if the key does not have the prefix.
    fn below<'k>(&self, key: &'k str) -> Option<&'k str> {
        match self.prefix.as_str() {
            "" => Some(key),
            prefix => key.strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    fn whole_key(&self, name: &str) -> String {
        let parts = [self.prefix.as_str(), name];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("/")
    }

    fn object_at(&self, key: &str) -> Result<Option<ObjectMeta>, StoreError> {
        let path = path_of(key)?;
        match self.shared.block_on(self.shared.store.head(&path)) {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.shared.failed("the object", &error)),
        }
    }
}

impl Store for CloudStore {
    fn list(&self, within: Option<&str>, _: Option<&str>) -> Result<Option<Listing>, StoreError> {
        let key = self.whole_key(within.unwrap_or_default());
        let prefix = match key.as_str() {
            "" => None,
            key => Some(path_of(key)?),
        };
        let url = &self.shared.url;
        let mut listing = Listing::default();
        let mut objects = self.shared.store.list(prefix.as_ref());
        while let Some(meta) = self.shared.block_on(objects.next()) {
            let meta = meta.map_err(|error| match error {
                // The client rejects keys that are not valid paths before they can be checked here.
                object_store::Error::InvalidPath { source } => StoreError::Name {
                    name: name_in(&source),
                    why: format!("cannot be a path ({source})"),
                },
                error => self.shared.failed("the list of objects", &error),
            })?;
            let key = meta.location.as_ref();
            if let Some(name) = self.below(key) {
                let object = |name| object(name, &meta);
                listing.add(url, name, object)?;
            }
        }
        drop(objects);
        if listing.objects.is_empty() && within.is_none() && !self.prefix.is_empty() {
            // The location may be a single object instead of a directory.
            if let Some(meta) = self.object_at(&key)?.filter(|meta| meta.size > 0) {
                let name = key.rsplit('/').next().unwrap_or(&key);
                let object = |name| object(name, &meta);
                listing.add(url, name, object)?;
                listing.is_file = !listing.objects.is_empty();
            }
        }
        Ok(Some(listing))
    }

    fn open(&self, object: &Object) -> Result<Arc<dyn OpenObject>, StoreError> {
        Ok(Arc::new(CloudObject {
            shared: Arc::clone(&self.shared),
            path: path_of(&object.key)?,
            object: object.clone(),
            first: OnceLock::new(),
        }))
    }
}

struct CloudObject {
    shared: Arc<SharedState>,
    path: Path,
    object: Object,
    /// The version in the response to the first range, if the list has no entity tags. All other ranges must
    /// have the same version.
    first: OnceLock<String>,
}

impl OpenObject for CloudObject {
    fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let changed = || StoreError::Changed {
            name: self.object.name.to_string(),
        };
        let failed = |error: object_store::Error| match error {
            object_store::Error::Precondition { .. } | object_store::Error::NotFound { .. } => changed(),
            error => self.shared.failed(self.object.name.as_str(), &error),
        };
        let has_tag = !self.object.etag.starts_with(DATED);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: has_tag.then(|| self.object.etag.clone()),
            ..GetOptions::default()
        };
        self.shared.block_on(async {
            let answer = self
                .shared
                .store
                .get_opts(&self.path, options)
                .await
                .map_err(failed)?;
            // Some stores ignore the condition in the request, so the metadata in the response is checked as
            // well.
            if !self.is_listed(&answer.meta) || answer.meta.size != self.object.size {
                return Err(changed());
            }
            answer.bytes().await.map_err(failed)
        })
    }
}

impl CloudObject {
    /// Returns whether a response has the listed version.
    fn is_listed(&self, answer: &ObjectMeta) -> bool {
        let tag = etag(answer);
        if !self.object.etag.starts_with(DATED) {
            return plain(&tag) == plain(&self.object.etag);
        }
        // In lists without entity tags, the version is a time. Some responses omit its fraction of a second.
        let (seconds, _) = self
            .object
            .etag
            .split_once('.')
            .unwrap_or((&self.object.etag, ""));
        seconds == format!("{DATED}{}", answer.last_modified.timestamp())
            && *self.first.get_or_init(|| tag.clone()) == tag
    }
}

impl SharedState {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.runtime {
            Some(runtime) => runtime.block_on(future),
            // Only `drop` removes the runtime.
            None => unreachable!("a store is used after its end"),
        }
    }

    fn failed(&self, what: &str, error: &object_store::Error) -> StoreError {
        let (url, what, why) = (self.url.clone(), what.to_owned(), text_of(error));
        // For other errors, `object_store` returns only a message, which includes the HTTP status.
        let is_denied = ["403 Forbidden", "401 Unauthorized"]
            .iter()
            .any(|status| why.contains(status));
        let hint = self.hint;
        match error {
            // The machine has no credentials, so the error does not depend on the object.
            _ if is_about_credentials(&why) => StoreError::Denied { url, what, hint, why },
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                StoreError::Denied { url, what, hint, why }
            }
            object_store::Error::NotFound { .. } => StoreError::NotFound { url, what, why },
            _ if why.contains("404 Not Found") => StoreError::NotFound { url, what, why },
            _ if is_denied => StoreError::Denied { url, what, hint, why },
            _ => StoreError::Unavailable { url, what, why },
        }
    }
}

impl Drop for SharedState {
    fn drop(&mut self) {
        // The store may be dropped inside a future, which must not block on a runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Adds the settings that the environment lacks, from the files that `aws configure` writes.
fn with_profile(
    mut builder: AmazonS3Builder,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<AmazonS3Builder, fmt_core::Error> {
    let is_set = |names: &[&str]| {
        let mut names = names.iter();
        names.any(|name| variable(name).is_some_and(|value| !value.is_empty()))
    };
    let profile = AwsProfile::read(variable)?;
    let has_keys = is_set(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
        || is_set(&["AWS_WEB_IDENTITY_TOKEN_FILE"]) && is_set(&["AWS_ROLE_ARN"]);
    let is_unsigned = variable("AWS_SKIP_SIGNATURE")
        .is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
    if !has_keys && !is_unsigned {
        profile.check_means(is_set(&["AWS_PROFILE"]))?;
        if let Some(keys) = profile.keys() {
            builder = builder
                .with_access_key_id(keys.id)
                .with_secret_access_key(keys.secret);
            if let Some(session) = keys.session {
                builder = builder.with_token(session);
            }
        }
    }
    if let Some(region) = profile
        .region()
        .filter(|_| !is_set(&["AWS_REGION", "AWS_DEFAULT_REGION"]))
    {
        builder = builder.with_region(region);
    }
    let endpoints = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    if let Some(endpoint) = profile.endpoint().filter(|_| !is_set(&endpoints)) {
        builder = builder.with_endpoint(endpoint);
    }
    Ok(builder)
}

/// Returns how often, and for how long, a failed request is retried.
fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(10),
            base: 2.0,
        },
        max_retries: 5,
        retry_timeout: Duration::from_secs(60),
    }
}

fn shared<S: ObjectStore>(store: object_store::Result<S>) -> object_store::Result<Arc<dyn ObjectStore>> {
    Ok(Arc::new(store?))
}

/// Prefix of the version of an object without an entity tag.
const DATED: &str = "of ";

fn etag(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        Some(tag) => tag.clone(),
        None => {
            let time = meta.last_modified;
            format!("{DATED}{}.{:09}", time.timestamp(), time.timestamp_subsec_nanos())
        }
    }
}

/// Normalizes an entity tag: stores add `W/` and quotes in some responses and not in others.
fn plain(tag: &str) -> &str {
    tag.trim_start_matches("W/").trim_matches('"')
}

fn object(name: ObjectName, meta: &ObjectMeta) -> Object {
    Object::new(name, meta.location.as_ref(), meta.size, etag(meta))
}

fn path_of(key: &str) -> Result<Path, StoreError> {
    Path::parse(key).map_err(|error| StoreError::Name {
        name: key.to_owned(),
        why: error.to_string(),
    })
}

fn name_in(error: &object_store::path::Error) -> String {
    match error {
        object_store::path::Error::EmptySegment { path }
        | object_store::path::Error::BadSegment { path, .. }
        | object_store::path::Error::NonUnicode { path, .. } => path.clone(),
        _ => String::new(),
    }
}

/// Returns whether an error means that credentials are missing. Without keys, the client asks the machine's
/// metadata service for credentials, and the error only reports that this request failed.
fn is_about_credentials(why: &str) -> bool {
    let places = [
        "169.254.169.254",
        "metadata.google.internal",
        "/latest/api/token",
        "/latest/meta-data/",
        "oauth2.googleapis.com",
        "login.microsoftonline.com",
    ];
    places.iter().any(|word| why.contains(word))
}

/// Returns the text of an error and its causes. Removes the queries of URLs, which may contain a signature.
pub(crate) fn text_of(error: &dyn std::error::Error) -> String {
    const LONGEST: usize = 600;
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        source = cause.source();
    }
    let words = text.split_whitespace().map(|word| match word.split_once("://") {
        Some((_, place)) if place.contains('?') => {
            let (shown, _) = word.split_once('?').unwrap_or((word, ""));
            format!("{shown}?…")
        }
        _ => word.to_owned(),
    });
    let text = without_options(&words.collect::<Vec<_>>().join(" "));
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_not_told() {
        let error = std::io::Error::other("GET https://a.example/c/x?sv=1&sig=secret in 3ms: 403 Forbidden");
        assert_eq!(
            text_of(&error),
            "GET https://a.example/c/x?… in 3ms: 403 Forbidden"
        );
    }
}
