//! Performs the loads and unloads that `control.rs` queues: compares a model with its directory, loads what
//! changed, replaces the old versions, and replans the pipelines that contain it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use model_config::{Syntax, WrittenConfig, steps};
use model_repository::{
    Digest, DigestBy, FileSubset, ModelDirectory, ModelVersion, Repositories, Snapshot, VersionContent,
};
use oip_types::{ErrorCode, ServiceError};
use parking_lot::{Mutex, MutexGuard};
use tensor_core::QuotedName;

use crate::{
    config::{EngineConfig, ModelControl},
    load::{
        LoadError,
        loader::{self, Job},
        memory_shares::MemoryShares,
        retirement::Retirement,
    },
    pipeline::{Change, Pipeline},
    run::model_calls::Others,
    versions::{cache::ResponseCache, entry::LoadCost, registry::Registry, served_version::ServedVersion},
};

/// Target of log events about unavailable models, each with its `reason`. Programs that report the reasons
/// elsewhere can filter these events out.
pub const UNAVAILABLE: &str = "oip_engine::unavailable";

/// Loads and unloads models. The caller runs at most one operation per model at a time.
pub(crate) struct Lifecycle {
    pub(crate) repository: Repositories,
    pub(crate) registry: Arc<Registry>,
    pub(crate) retirement: Arc<Retirement>,
    pub(crate) config: EngineConfig,
    /// Contents of model directories at their last load attempt.
    known: Mutex<BTreeMap<String, ModelContents>>,
    cache: Option<Arc<ResponseCache>>,
    memory_shares: MemoryShares,
    /// Locked while models change and pipelines are planned.
    planning: Mutex<()>,
    /// Models loaded only as steps of a pipeline.
    as_steps: Mutex<BTreeSet<String>>,
    /// Models of the embedding program, which are never loaded or unloaded.
    embedded: BTreeSet<String>,
}

/// Contents of a model directory.
#[derive(Clone)]
struct ModelContents {
    snapshot: Snapshot,
    /// Digest of the files that all versions share, and the configuration sent with a load request.
    shared: (Digest, Option<String>),
    /// Digests of the versions that were loaded.
    versions: BTreeMap<Option<String>, Digest>,
}

/// The reason for loading a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The model existed when the engine started.
    Start,
    /// Polling found that the model is new or has changed.
    Poll,
    /// A client requested the load and waits for the result.
    Request,
    /// A pipeline contains the model. If the model fails to load, the pipeline reports the error.
    Step,
}

impl Lifecycle {
    pub(crate) fn new(repository: Repositories, registry: Arc<Registry>, config: EngineConfig) -> Self {
        let cache_bytes = config.response_cache_bytes;
        // Nothing has been loaded from a repository yet, so all models in the registry belong to the
        // embedding program.
        let embedded = registry.served().into_iter();
        let embedded = embedded.map(|served| served.metadata().name.clone()).collect();
        Self {
            embedded,
            repository,
            registry,
            retirement: Arc::default(),
            config,
            known: Mutex::default(),
            cache: (cache_bytes > 0).then(|| Arc::new(ResponseCache::new(cache_bytes))),
            memory_shares: MemoryShares::default(),
            planning: Mutex::default(),
            as_steps: Mutex::default(),
        }
    }

    /// Refuses to load or unload models of the embedding program.
    fn check_loadable(&self, name: &str) -> Result<(), ServiceError> {
        if !self.embedded.contains(name) {
            return Ok(());
        }
        let message = format!(
            "{} is built into the server's program: it cannot be loaded or unloaded",
            QuotedName(name)
        );
        Err(ServiceError::invalid(message))
    }

    /// Returns the models that the pipeline `name` runs according to `config`, or according to its current
    /// configuration if `config` is `None`. Returns an empty list for a model that is not a pipeline.
    pub(crate) fn steps(&self, name: &str, config: Option<&str>) -> Vec<String> {
        let written = match config {
            Some(config) => WrittenConfig::read(config, Syntax::Json).ok(),
            None => match self.repository.model(name) {
                Ok(Some(directory)) => directory.configuration().ok(),
                _ => None,
            },
        };
        let steps = written.iter().flat_map(|written| steps(&written.config));
        steps.map(str::to_owned).collect()
    }

    /// Loads the versions of a model that differ from the repository, and unloads versions that are no longer
    /// selected. The old version serves until the new one is ready.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] if there is no such model, [`ErrorCode::InvalidArgument`] if a version cannot
    /// be loaded.
    pub(crate) fn load(
        self: &Arc<Self>,
        name: &str,
        config: Option<String>,
        cause: Cause,
    ) -> Result<(), ServiceError> {
        match cause {
            Cause::Step if self.embedded.contains(name) => return Ok(()),
            _ => self.check_loadable(name)?,
        }
        let has_ready = self.registry.has_ready(name);
        let is_waited_for = self.is_waited_for(name, cause, has_ready);
        match cause {
            Cause::Step if !has_ready => drop(self.as_steps.lock().insert(name.to_owned())),
            Cause::Step => {}
            Cause::Start | Cause::Poll | Cause::Request => drop(self.as_steps.lock().remove(name)),
        }
        let fail = |reason| Err(self.fail(name, reason, is_waited_for));
        let directory = match self.repository.model(name) {
            Ok(Some(directory)) => directory,
            Ok(None) => return Err(self.missing(name, cause, has_ready, is_waited_for)),
            Err(reason) => return fail(reason.into()),
        };
        let snapshot = match directory.snapshot() {
            Ok(snapshot) => snapshot,
            Err(reason) => return fail(reason.into()),
        };
        if let Some(reason) = self.repository.upstream_failure(name) {
            self.remember(name, &directory, &snapshot, config);
            return fail(LoadError::NotFetched { reason });
        }
        let sent = config
            .as_deref()
            .map(|config| sent_configuration(config, &directory));
        // A client's invalid request affects only that client.
        let sent = sent.transpose().map_err(|reason| failed(name, reason))?;
        let (written, versions) = match configured_versions(&directory, &snapshot, sent) {
            Ok(read) => read,
            Err(reason) => {
                self.remember(name, &directory, &snapshot, config);
                return fail(reason);
            }
        };
        for warning in &written.warnings {
            tracing::warn!(model = name, "configuration: {warning}");
        }
        let plan = Plan {
            name,
            directory,
            written: Arc::new(written),
            is_waited_for,
            is_polled: cause == Cause::Poll,
        };
        self.carry_out(&plan, versions, snapshot, config)
    }

    /// Returns the error for a model without a directory, and records it unless only the client that
    /// requested the model is affected.
    fn missing(&self, name: &str, cause: Cause, has_ready: bool, is_waited_for: bool) -> ServiceError {
        // A pipeline can name any model, so failures of unknown names are not recorded.
        if cause == Cause::Step && !has_ready {
            self.as_steps.lock().remove(name);
        }
        let reason = match self.repository.upstream_failure(name) {
            Some(reason) => LoadError::NotFetched { reason },
            None => LoadError::Gone,
        };
        match matches!(cause, Cause::Start | Cause::Poll) || has_ready {
            true => self.fail(name, reason, is_waited_for),
            false => failed(name, reason),
        }
    }

    /// Returns whether the server's readiness waits for this model.
    fn is_waited_for(&self, name: &str, cause: Cause, has_ready: bool) -> bool {
        match cause {
            // The running version serves until it is replaced.
            _ if has_ready => false,
            Cause::Start => true,
            // A model that is added later must not make a ready server unready.
            Cause::Poll => self.registry.is_waited_for(name),
            Cause::Request | Cause::Step => false,
        }
    }

    /// Records why no version of a model can be loaded, and returns the error for the client.
    fn fail(&self, name: &str, reason: LoadError, is_waited_for: bool) -> ServiceError {
        let text = reason.to_string();
        tracing::warn!(target: UNAVAILABLE, model = name, reason = text, "a model is unavailable");
        let polls = matches!(self.config.control, ModelControl::Poll { .. });
        // With polling, a model without files may be one whose files are still being copied.
        let is_coming = polls && matches!(reason, LoadError::NoFiles);
        self.registry.fail(name, &text, is_waited_for && !is_coming);
        failed(name, reason)
    }

    /// Loads the versions that changed.
    fn carry_out(
        self: &Arc<Self>,
        plan: &Plan<'_>,
        versions: Vec<ModelVersion>,
        snapshot: Snapshot,
        config: Option<String>,
    ) -> Result<(), ServiceError> {
        let name = plan.name;
        let wanted: Vec<Option<String>> = versions.iter().map(|found| found.version.clone()).collect();
        let wanted: Vec<Option<&str>> = wanted.iter().map(Option::as_deref).collect();
        let shared = match &wanted[..] {
            [None] => FileSubset::All,
            _ => FileSubset::Shared,
        };
        let shared = plan.directory.digest(&snapshot, shared, self.digest_by());
        let mut known = ModelContents {
            snapshot,
            shared: (shared, config),
            versions: BTreeMap::new(),
        };
        let changed = self.changed_versions(plan, versions, &mut known);
        let loading: Vec<Option<&str>> = changed
            .iter()
            .map(|(found, _)| found.version.as_deref())
            .collect();
        let is_there = |version: &str| plan.directory.has_version(version);
        self.registry
            .start_loading(name, &loading, plan.is_waited_for, is_there);
        let mut failures = Vec::new();
        for (found, digest) in changed {
            let version = found.version.clone();
            match self.load_version(plan, found, &known.snapshot) {
                Ok(()) => drop(known.versions.insert(version, digest)),
                Err(reason) => failures.push(match version {
                    Some(version) => format!("version {}: {reason}", QuotedName(&version)),
                    None => reason.to_string(),
                }),
            }
        }
        self.lock().insert(name.to_owned(), known);
        // If a load failed, the old versions stay in service.
        if failures.is_empty() {
            self.retire(name, &wanted, false);
            return Ok(());
        }
        let failures = failures.join("; ");
        Err(ServiceError::invalid(format!(
            "failed to load {}, {failures}",
            QuotedName(name)
        )))
    }

    /// Returns the versions to load, each with its digest. Adds the others, which are loaded already, to
    /// `known`.
    fn changed_versions(
        &self,
        plan: &Plan<'_>,
        versions: Vec<ModelVersion>,
        known: &mut ModelContents,
    ) -> Vec<(ModelVersion, Digest)> {
        let before = self.lock().get(plan.name).cloned();
        let before = before.filter(|before| before.shared == known.shared);
        let mut changed = Vec::new();
        for found in versions {
            let version = found.version.as_deref();
            let part = version.map_or(FileSubset::All, FileSubset::Version);
            let digest = plan.directory.digest(&known.snapshot, part, self.digest_by());
            let loaded = before
                .as_ref()
                .and_then(|before| before.versions.get(&found.version));
            if loaded == Some(&digest) && self.registry.is_ready(plan.name, version) {
                known.versions.insert(found.version, digest);
            } else {
                changed.push((found, digest));
            }
        }
        changed
    }

    fn load_version(
        &self,
        plan: &Plan<'_>,
        found: ModelVersion,
        snapshot: &Snapshot,
    ) -> Result<(), LoadError> {
        let (name, version) = (plan.name, found.version);
        let is_pipeline = matches!(found.content, Ok(VersionContent::Pipeline));
        let share = self.memory_shares.begin();
        let start = Instant::now();
        let version = version.as_deref();
        let content = found.content.map_err(LoadError::Model);
        let loaded = content.and_then(|content| self.load_content(plan, version, content, snapshot));
        let cost = LoadCost {
            time: start.elapsed(),
            memory: share.end().filter(|_| !is_pipeline),
        };
        let waits = loaded.as_ref().is_ok_and(|served| {
            let mut steps = served.pipeline().into_iter().flat_map(Pipeline::models);
            steps.any(|model| self.registry.is_loading(model))
        });
        let outcome = self.take_over(plan, version, loaded, cost);
        match &outcome {
            Ok(()) => {
                let milliseconds = cost.time.as_millis() as u64;
                tracing::info!(model = name, version, milliseconds, "loaded a model");
            }
            Err(reason) => {
                let reason = reason.to_string();
                match waits {
                    true => tracing::info!(model = name, version, reason, "a pipeline waits for its models"),
                    false => {
                        tracing::warn!(target: UNAVAILABLE, model = name, version, reason, "a model is unavailable");
                    }
                }
            }
        }
        outcome
    }

    /// Loads the content of a version, and checks that its files are still those of `snapshot`.
    fn load_content(
        &self,
        plan: &Plan<'_>,
        version: Option<&str>,
        content: VersionContent,
        snapshot: &Snapshot,
    ) -> Result<Arc<ServedVersion>, LoadError> {
        let job = Job {
            name: plan.name.to_owned(),
            version: version.map(str::to_owned),
            directory: plan.directory.clone(),
            written: plan.written.clone(),
        };
        let served = loader::load(
            job,
            content,
            &self.config,
            self.cache.as_ref(),
            Others::of(&self.registry),
        )?;
        // A file that changed while it was read may contain a mixture of the old and the new content.
        let part = version.map_or(FileSubset::All, FileSubset::Version);
        let stamps = |snapshot: &Snapshot| {
            [FileSubset::Shared, part].map(|part| plan.directory.digest(snapshot, part, DigestBy::Stamp))
        };
        match plan.directory.snapshot() {
            Ok(after) if stamps(&after) != stamps(snapshot) => Err(LoadError::Changed),
            // A deleted directory does not count as a change: everything has been read.
            _ => Ok(Arc::new(served)),
        }
    }

    /// Replaces a version with the newly loaded one, or records why the load failed.
    fn take_over(
        &self,
        plan: &Plan<'_>,
        version: Option<&str>,
        loaded: Result<Arc<ServedVersion>, LoadError>,
        cost: LoadCost,
    ) -> Result<(), LoadError> {
        let _planning = self.planning.lock();
        let (served, failure) = match loaded {
            Err(reason) => (None, Some(reason)),
            Ok(served) => {
                let failure = served.pipeline().and_then(|pipeline| {
                    pipeline.plan(&*self.registry);
                    pipeline.unavailable().map(LoadError::Plan)
                });
                // A running version stays in service. A failed pipeline without a running version is still
                // listed and waits for its models.
                let goes_on = failure.is_some() && self.registry.is_ready(plan.name, version);
                (Some(served).filter(|_| !goes_on), failure)
            }
        };
        // The server's readiness depends on a model found by polling only once that model has been ready.
        let is_waited_for = plan.is_waited_for || plan.is_polled && failure.is_none();
        let result = served.ok_or_else(|| failure.iter().map(ToString::to_string).collect());
        let before = self
            .registry
            .finish_loading(plan.name, version, result, cost, is_waited_for);
        if let Some(before) = before {
            self.retirement.retire(before, || {});
        }
        self.plan_users_of(plan.name);
        failure.map_or(Ok(()), Err)
    }

    /// Replans the pipelines that contain a model, directly or through another pipeline. The caller holds
    /// `planning`.
    fn plan_users_of(&self, name: &str) {
        let all = self.registry.served();
        let mut changed = vec![name.to_owned()];
        while let Some(name) = changed.pop() {
            for served in &all {
                let Some(pipeline) = served.pipeline() else {
                    continue;
                };
                if !pipeline.models().any(|model| model == name) {
                    continue;
                }
                let (model, version) = (&served.metadata().name, served.version());
                let change = pipeline.plan(&*self.registry);
                match pipeline.unavailable() {
                    _ if change != Change::Availability => {}
                    None => tracing::info!(model, version, "a pipeline is available"),
                    Some(reason) => {
                        let reason = reason.to_string();
                        tracing::warn!(target: UNAVAILABLE, model, version, reason, "a pipeline is unavailable");
                    }
                }
                // Replan pipelines that contain this model.
                if change != Change::Nothing {
                    changed.push(model.clone());
                }
            }
        }
    }

    /// Unloads a model. With `forget`, also removes the model from the registry, because the model was
    /// removed from the repository.
    ///
    /// Returns the models that were loaded only as steps of this model and are no longer needed.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] if there is no such model; [`ErrorCode::InvalidArgument`] for a model of the
    /// embedding program.
    pub(crate) fn unload(self: &Arc<Self>, name: &str, forget: bool) -> Result<Vec<String>, ServiceError> {
        self.check_loadable(name)?;
        if !self.registry.knows(name) && matches!(self.repository.model(name), Ok(None)) {
            let message = format!(
                "failed to unload {}, it is not in the model repository",
                QuotedName(name)
            );
            return Err(ServiceError::new(ErrorCode::NotFound, message));
        }
        self.lock().remove(name);
        self.as_steps.lock().remove(name);
        let retired = self.retire(name, &[], forget);
        let steps = retired.iter().filter_map(|served| served.pipeline());
        let steps: BTreeSet<&str> = steps.flat_map(Pipeline::models).collect();
        let (others, as_steps) = (self.registry.served(), self.as_steps.lock());
        let others = others.iter().filter_map(|served| served.pipeline());
        let needed: BTreeSet<&str> = others.flat_map(Pipeline::models).collect();
        let is_free = |step: &&str| as_steps.contains(*step) && !needed.contains(step);
        Ok(steps.into_iter().filter(is_free).map(str::to_owned).collect())
    }

    fn retire(self: &Arc<Self>, name: &str, keep: &[Option<&str>], forget: bool) -> Vec<Arc<ServedVersion>> {
        let retired = {
            let _planning = self.planning.lock();
            let retired = self.registry.retire(name, keep, forget);
            if !retired.is_empty() {
                self.plan_users_of(name);
            }
            retired
        };
        let end = |(version, served): (Option<String>, Arc<ServedVersion>)| {
            tracing::info!(model = name, version, "unloading a model");
            let (this, name, load) = (self.clone(), name.to_owned(), served.load_generation());
            let then = move || {
                let _planning = this.planning.lock();
                this.registry.unloaded(&name, version.as_deref(), load);
                this.plan_users_of(&name);
            };
            self.retirement.retire(served.clone(), then);
            served
        };
        retired.into_iter().map(end).collect()
    }

    /// Returns the current contents of a model's directory if they differ from those at its load.
    ///
    /// # Errors
    /// The reason why the directory cannot be listed.
    pub(crate) fn changed(&self, name: &str) -> Result<Option<Snapshot>, LoadError> {
        let Some(directory) = self.repository.model(name)? else {
            return Ok(None);
        };
        let snapshot = directory.snapshot()?;
        let is_known = self
            .lock()
            .get(name)
            .is_some_and(|known| known.snapshot == snapshot);
        Ok((!is_known).then_some(snapshot))
    }

    /// Returns the names of all models that the engine has tried to load.
    pub(crate) fn known_names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Records the contents of a directory for which a load was attempted.
    fn remember(&self, name: &str, directory: &ModelDirectory, snapshot: &Snapshot, config: Option<String>) {
        let shared = (
            directory.digest(snapshot, FileSubset::Shared, self.digest_by()),
            config,
        );
        let mut all = self.lock();
        let known = all.entry(name.to_owned()).or_insert_with(|| ModelContents {
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ModelContents>> {
        self.known.lock()
    }
}

/// Returns the first parameter in `sent` that would change which program runs. A client's configuration may
/// repeat such a parameter but not change it.
fn operators_choice(sent: &WrittenConfig, own: &WrittenConfig) -> Option<&'static str> {
    let names = |written: &WrittenConfig, parameter: &str| written.config.parameters.get(parameter).cloned();
    let is_chosen = |parameter: &&str| {
        let chosen = names(sent, parameter);
        chosen.is_some() && chosen != names(own, parameter)
    };
    ["python"].into_iter().find(is_chosen)
}

/// Determines the versions selected by the configuration that a client sent, or else by the one in the
/// directory.
fn configured_versions(
    directory: &ModelDirectory,
    snapshot: &Snapshot,
    sent: Option<WrittenConfig>,
) -> Result<(WrittenConfig, Vec<ModelVersion>), LoadError> {
    let written = match sent {
        Some(written) => written,
        None => directory.configuration()?,
    };
    let versions = directory
        .check_name(&written)
        .and_then(|()| directory.versions(&written));
    match versions {
        Ok(versions) => Ok((written, versions)),
        Err(reason) if snapshot.is_empty() && reason.is_of_missing_files() => Err(LoadError::NoFiles),
        Err(reason) => Err(reason.into()),
    }
}

/// Reads a configuration that a client sent, and checks that it changes nothing that only the operator may
/// choose.
fn sent_configuration(config: &str, directory: &ModelDirectory) -> Result<WrittenConfig, LoadError> {
    let written = WrittenConfig::read(config, Syntax::Json)
        .map_err(|error| LoadError::SentConfiguration(error.into()))?;
    if written.is_mapped {
        return Err(LoadError::SentMapping);
    }
    let own = directory.configuration().unwrap_or_default();
    match operators_choice(&written, &own) {
        Some(parameter) => Err(LoadError::SentProgram { parameter }),
        None => Ok(written),
    }
}

/// Returns the error for a client that requested the load.
fn failed(name: &str, reason: LoadError) -> ServiceError {
    let code = match reason {
        LoadError::Gone => ErrorCode::NotFound,
        LoadError::NotFetched { .. } => ErrorCode::Unavailable,
        _ => ErrorCode::InvalidArgument,
    };
    ServiceError::new(code, format!("failed to load {}, {reason}", QuotedName(name))).caused_by(reason)
}

/// The plan for loading a model.
struct Plan<'n> {
    name: &'n str,
    directory: ModelDirectory,
    written: Arc<WrittenConfig>,
    is_waited_for: bool,
    /// Whether polling requested the load.
    is_polled: bool,
}
