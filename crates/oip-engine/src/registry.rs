use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use oip_service::Readiness;
use oip_types::{ErrorCode, ModelMetadata, ModelRef, ServiceError};

use crate::{instances::Instances, version::VersionKey};

/// Which versions of which models there are, and how each of them is.
#[derive(Default)]
pub(crate) struct Registry {
    models: Mutex<BTreeMap<String, Versions>>,
    changed: Condvar,
}

/// Versions from oldest to newest; a model without versions has one entry, under `None`.
type Versions = BTreeMap<Option<VersionKey>, Entry>;

struct Entry {
    state: State,
    load_time: Option<Duration>,
}

enum State {
    Loading,
    Ready(Arc<Instances>),
    Failed(String),
}

/// How a version of a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelState {
    /// It is being loaded.
    Loading,
    /// It takes requests.
    Ready,
    /// It cannot be used, and this is why.
    Unavailable(String),
}

/// A version of a model and how it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelStatus {
    /// The model's name.
    pub name: String,
    /// Its version, none for a model without versions.
    pub version: Option<String>,
    /// How it is.
    pub state: ModelState,
    /// What it takes and gives, once it is ready.
    pub metadata: Option<Arc<ModelMetadata>>,
    /// How long loading took.
    pub load_time: Option<Duration>,
}

impl ModelStatus {
    /// A version without metadata, which was not loaded.
    #[must_use]
    pub fn new(name: &str, version: Option<&str>, state: ModelState) -> Self {
        let (name, version) = (name.to_owned(), version.map(str::to_owned));
        Self {
            name,
            version,
            state,
            metadata: None,
            load_time: None,
        }
    }

    /// The same with what the model takes and gives.
    #[must_use]
    pub fn with_metadata(self, metadata: Arc<ModelMetadata>) -> Self {
        Self {
            metadata: Some(metadata),
            ..self
        }
    }

    /// The same with the time that loading took.
    #[must_use]
    pub fn with_load_time(self, load_time: Duration) -> Self {
        Self {
            load_time: Some(load_time),
            ..self
        }
    }
}

impl Registry {
    /// Notes a version that is about to be loaded.
    pub(crate) fn insert_loading(&self, name: &str, version: Option<&str>) {
        let entry = Entry {
            state: State::Loading,
            load_time: None,
        };
        self.lock()
            .entry(name.to_owned())
            .or_default()
            .insert(version.map(VersionKey::new), entry);
    }

    /// Notes how loading ended.
    pub(crate) fn finish_loading(
        &self,
        name: &str,
        version: Option<&str>,
        result: Result<Arc<Instances>, String>,
        load_time: Duration,
    ) {
        let state = result.map_or_else(State::Failed, State::Ready);
        let entry = Entry {
            state,
            load_time: Some(load_time),
        };
        self.lock()
            .entry(name.to_owned())
            .or_default()
            .insert(version.map(VersionKey::new), entry);
        self.changed.notify_all();
    }

    /// Waits until nothing is being loaded.
    pub(crate) fn wait_until_loaded(&self) {
        let is_loading = |models: &mut BTreeMap<String, Versions>| {
            models
                .values()
                .flat_map(BTreeMap::values)
                .any(|entry| matches!(entry.state, State::Loading))
        };
        drop(
            self.changed
                .wait_while(self.lock(), is_loading)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// The version that answers requests to `model`: the one it names, else the highest that is ready.
    pub(crate) fn find(&self, model: ModelRef<'_>) -> Result<Arc<Instances>, ServiceError> {
        let models = self.lock();
        let not_found = || ServiceError::new(ErrorCode::NotFound, format!("{model} does not exist"));
        let versions = models.get(model.name()).ok_or_else(not_found)?;
        let entry = match model.version() {
            Some(version) => versions
                .get(&Some(VersionKey::new(version)))
                .ok_or_else(not_found)?,
            None => {
                let ready = versions
                    .values()
                    .rev()
                    .find(|entry| matches!(entry.state, State::Ready(_)));
                ready
                    .or_else(|| versions.values().next_back())
                    .ok_or_else(not_found)?
            }
        };
        let unavailable = |reason: &str| {
            Err(ServiceError::new(
                ErrorCode::Unavailable,
                format!("{model} is not ready: {reason}"),
            ))
        };
        let instances = match &entry.state {
            State::Ready(instances) => instances.clone(),
            State::Loading => return unavailable("it is being loaded"),
            State::Failed(reason) => return unavailable(reason),
        };
        // Without the lock: this can wake those who wait.
        drop(models);
        match instances.unavailable() {
            None => Ok(instances),
            Some(reason) => unavailable(&reason),
        }
    }

    /// The versions of a model that may be asked for, oldest first.
    pub(crate) fn ready_versions(&self, name: &str) -> Vec<String> {
        let models = self.lock();
        let versions = models.get(name).into_iter().flatten();
        let ready = versions.filter(|(_, entry)| matches!(entry.state, State::Ready(_)));
        ready
            .filter_map(|(version, _)| version.as_ref().map(|version| version.as_str().to_owned()))
            .collect()
    }

    /// Whether everything is loaded, and well if that is demanded.
    pub(crate) fn readiness(&self, strict: bool) -> Readiness {
        let models = self.lock();
        let is_waited_for = |entry: &Entry| match &entry.state {
            State::Ready(instances) => strict && instances.unavailable().is_some(),
            State::Loading => true,
            State::Failed(_) => strict,
        };
        let names = models
            .iter()
            .filter(|(_, versions)| versions.values().any(is_waited_for));
        let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        match &names[..] {
            [] => Readiness::Ready,
            names => Readiness::NotReady(format!("models not ready: {}", names.join(", "))),
        }
    }

    /// All versions of all models.
    pub(crate) fn statuses(&self) -> Vec<ModelStatus> {
        let models = self.lock();
        let entries = models
            .iter()
            .flat_map(|(name, versions)| versions.iter().map(move |entry| (name, entry)));
        entries
            .map(|(name, (version, entry))| ModelStatus {
                name: name.clone(),
                version: version.as_ref().map(|version| version.as_str().to_owned()),
                state: match &entry.state {
                    State::Loading => ModelState::Loading,
                    State::Ready(instances) => match instances.unavailable() {
                        None => ModelState::Ready,
                        Some(reason) => ModelState::Unavailable(reason),
                    },
                    State::Failed(reason) => ModelState::Unavailable(reason.clone()),
                },
                metadata: match &entry.state {
                    State::Ready(instances) => Some(instances.metadata().clone()),
                    _ => None,
                },
                load_time: entry.load_time,
            })
            .collect()
    }

    /// Everything that runs.
    pub(crate) fn instances(&self) -> Vec<Arc<Instances>> {
        let models = self.lock();
        let entries = models.values().flat_map(BTreeMap::values);
        entries
            .filter_map(|entry| match &entry.state {
                State::Ready(instances) => Some(instances.clone()),
                _ => None,
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Versions>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
