use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use oip_types::{ErrorCode, ServiceError};
use tensor_core::Quoted;

use crate::{
    EngineConfig, ModelControl, Repository,
    config::{Syntax, Written},
    files::{Digest, DigestBy, Part, Snapshot},
    loader::{self, Job},
    registry::Registry,
    repository::{FoundVersion, ModelFolder},
    served::Retirement,
};

/// Loads and unloads models, one operation per model at a time; who calls sees to that.
pub(crate) struct Lifecycle {
    pub(crate) repository: Repository,
    pub(crate) registry: Arc<Registry>,
    pub(crate) retirement: Arc<Retirement>,
    pub(crate) config: EngineConfig,
    /// What was in the folders of models when they were last loaded, or tried to be.
    known: Mutex<BTreeMap<String, Known>>,
}

/// What was in a model's folder.
#[derive(Clone)]
struct Known {
    snapshot: Snapshot,
    /// What all versions share: files, and a configuration that came by request.
    shared: (Digest, Option<String>),
    /// The versions that were loaded.
    versions: BTreeMap<Option<String>, Digest>,
}

/// Who wants a model to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The operator: it was there at start, or was put there.
    Repository,
    /// A client, who is told how it ended.
    Request,
}

impl Lifecycle {
    pub(crate) fn new(repository: Repository, registry: Arc<Registry>, config: EngineConfig) -> Self {
        Self {
            repository,
            registry,
            retirement: Arc::default(),
            config,
            known: Mutex::default(),
        }
    }

    /// Loads what of a model is not loaded as it is in the repository now, and takes out of service what is not wanted
    /// any more. Until a version is ready, the one before it goes on.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when there is no such model, [`ErrorCode::InvalidArgument`] when a version of it cannot be
    /// loaded.
    pub(crate) fn load(&self, name: &str, config: Option<String>, cause: Cause) -> Result<(), ServiceError> {
        // A model that runs stands in for what is to replace it.
        let is_waited_for = cause == Cause::Repository && !self.registry.has_ready(name);
        let fail = |reason: &str| {
            tracing::warn!(model = name, reason, "a model is unavailable");
            self.registry.fail(name, reason, is_waited_for);
            Err(ServiceError::invalid(format!(
                "failed to load {}, {reason}",
                Quoted(name)
            )))
        };
        let folder = match self.repository.folder(name) {
            Ok(Some(folder)) => folder,
            Ok(None) => {
                let reason = "failed to poll from model repository: it is not there";
                if cause == Cause::Repository || self.registry.has_ready(name) {
                    let _ = fail(reason);
                }
                let message = format!("failed to load {}, {reason}", Quoted(name));
                return Err(ServiceError::new(ErrorCode::NotFound, message));
            }
            Err(reason) => return fail(&reason),
        };
        let snapshot = match folder.snapshot() {
            Ok(snapshot) => snapshot,
            Err(reason) => return fail(&reason),
        };
        let written = match &config {
            // What a client sends and is wrong is the client's business only.
            Some(config) => Written::read(config, Syntax::Json).map_err(|error| {
                ServiceError::invalid(format!("failed to load {}, its config: {error}", Quoted(name)))
            })?,
            None => match folder.configuration() {
                Ok(written) => written,
                Err(reason) => {
                    self.remember(name, &snapshot, config);
                    return fail(&reason);
                }
            },
        };
        let versions = match folder
            .check_name(&written)
            .and_then(|()| folder.versions(&written))
        {
            Ok(versions) => versions,
            Err(reason) => {
                self.remember(name, &snapshot, config);
                return fail(&reason);
            }
        };
        for warning in &written.warnings {
            tracing::warn!(model = name, "configuration: {warning}");
        }
        let plan = Plan {
            name,
            folder,
            written: Arc::new(written),
            is_waited_for,
        };
        self.carry_out(&plan, versions, snapshot, config)
    }

    /// Loads the versions that changed.
    fn carry_out(
        &self,
        plan: &Plan<'_>,
        versions: Vec<FoundVersion>,
        snapshot: Snapshot,
        config: Option<String>,
    ) -> Result<(), ServiceError> {
        let (name, by) = (plan.name, self.digest_by());
        let wanted: Vec<Option<String>> = versions.iter().map(|found| found.version.clone()).collect();
        let wanted: Vec<Option<&str>> = wanted.iter().map(Option::as_deref).collect();
        let shared = match &wanted[..] {
            [None] => Part::All,
            _ => Part::Shared,
        };
        let shared = (snapshot.digest(shared, by), config);
        let before = self.lock().get(name).cloned();
        let before = before.filter(|before| before.shared == shared);
        let mut known = Known {
            snapshot,
            shared,
            versions: BTreeMap::new(),
        };
        let mut changed = Vec::new();
        for found in versions {
            let version = found.version.as_deref();
            let digest = known
                .snapshot
                .digest(version.map_or(Part::All, Part::Version), by);
            let loaded = before
                .as_ref()
                .and_then(|before| before.versions.get(&found.version));
            if loaded == Some(&digest) && self.registry.is_ready(name, version) {
                known.versions.insert(found.version, digest);
            } else {
                changed.push((found, digest));
            }
        }
        let loading: Vec<Option<&str>> = changed
            .iter()
            .map(|(found, _)| found.version.as_deref())
            .collect();
        let is_there = |version: &str| plan.folder.has_version(version);
        self.registry
            .start_loading(name, &loading, plan.is_waited_for, is_there);
        let mut failures = Vec::new();
        for (found, digest) in changed {
            let version = found.version.clone();
            match self.load_version(plan, found, &known.snapshot) {
                Ok(()) => drop(known.versions.insert(version, digest)),
                Err(reason) => failures.push(match version {
                    Some(version) => format!("version {}: {reason}", Quoted(&version)),
                    None => reason,
                }),
            }
        }
        self.lock().insert(name.to_owned(), known);
        // If something failed, what it should replace goes on.
        if failures.is_empty() {
            self.retire(name, &wanted, false);
            return Ok(());
        }
        let failures = failures.join("; ");
        Err(ServiceError::invalid(format!(
            "failed to load {}, {failures}",
            Quoted(name)
        )))
    }

    fn load_version(&self, plan: &Plan<'_>, found: FoundVersion, snapshot: &Snapshot) -> Result<(), String> {
        let (name, version) = (plan.name, found.version);
        let start = Instant::now();
        let loaded = found.file.and_then(|file| {
            let job = Job {
                name: name.to_owned(),
                version: version.clone(),
                folder: plan.folder.clone(),
                file,
                written: plan.written.clone(),
            };
            let served = loader::load(job, &self.config)?;
            // What was read while it was written is neither the old nor the new.
            let part = version.as_deref().map_or(Part::All, Part::Version);
            let stamps =
                |snapshot: &Snapshot| [Part::Shared, part].map(|part| snapshot.digest(part, DigestBy::Stamp));
            match plan.folder.snapshot() {
                Ok(after) if stamps(&after) != stamps(snapshot) => {
                    Err("its files changed while they were read".to_owned())
                }
                // Gone is no change: everything was read.
                _ => Ok(Arc::new(served)),
            }
        });
        let (took, version) = (start.elapsed(), version.as_deref());
        let outcome = match &loaded {
            Ok(_) => {
                let milliseconds = took.as_millis() as u64;
                tracing::info!(model = name, version, milliseconds, "loaded a model");
                Ok(())
            }
            Err(reason) => {
                tracing::warn!(model = name, version, reason, "a model is unavailable");
                Err(reason.clone())
            }
        };
        let before = self
            .registry
            .finish_loading(name, version, loaded, took, plan.is_waited_for);
        if let Some(before) = before {
            self.retirement.retire(before, || {});
        }
        outcome
    }

    /// Takes a model out of service. With `forget`, it leaves no trace, since it is not in the repository either.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when there is no such model, loaded or not.
    pub(crate) fn unload(&self, name: &str, forget: bool) -> Result<(), ServiceError> {
        if !self.registry.knows(name) && matches!(self.repository.folder(name), Ok(None)) {
            let message = format!(
                "failed to unload {}, it is not in the model repository",
                Quoted(name)
            );
            return Err(ServiceError::new(ErrorCode::NotFound, message));
        }
        self.lock().remove(name);
        self.retire(name, &[], forget);
        Ok(())
    }

    fn retire(&self, name: &str, keep: &[Option<&str>], forget: bool) {
        for (version, served) in self.registry.retire(name, keep) {
            tracing::info!(model = name, version, "unloading a model");
            let (registry, name) = (self.registry.clone(), name.to_owned());
            let then = move || registry.unloaded(&name, version.as_deref(), forget);
            self.retirement.retire(served, then);
        }
    }

    /// A model's folder as it is now, if that is not how it was when it was loaded.
    ///
    /// # Errors
    /// Why it cannot be looked at.
    pub(crate) fn changed(&self, name: &str) -> Result<Option<Snapshot>, String> {
        let Some(folder) = self.repository.folder(name)? else {
            return Ok(None);
        };
        let snapshot = folder.snapshot()?;
        let is_known = self
            .lock()
            .get(name)
            .is_some_and(|known| known.snapshot == snapshot);
        Ok((!is_known).then_some(snapshot))
    }

    /// The names of models that are loaded, or were tried to be.
    pub(crate) fn known_names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Remembers that what is in a folder now has been tried.
    fn remember(&self, name: &str, snapshot: &Snapshot, config: Option<String>) {
        let mut all = self.lock();
        let shared = (snapshot.digest(Part::Shared, self.digest_by()), config);
        let known = all.entry(name.to_owned()).or_insert_with(|| Known {
            snapshot: Snapshot::default(),
            shared: shared.clone(),
            versions: BTreeMap::new(),
        });
        known.snapshot = snapshot.clone();
        known.shared = shared;
    }

    fn digest_by(&self) -> DigestBy {
        match self.config.control {
            ModelControl::Poll { .. } => DigestBy::Content,
            ModelControl::None | ModelControl::Explicit { .. } => DigestBy::Stamp,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model that is being loaded.
struct Plan<'n> {
    name: &'n str,
    folder: ModelFolder,
    written: Arc<Written>,
    is_waited_for: bool,
}
